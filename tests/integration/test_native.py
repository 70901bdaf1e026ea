"""Without a container on the lab: the same job, launcher and proof, on the host's own programs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import PYTHON, WORKSPACE, Site
from tests.integration.test_jobs import record, until

NAME = "native"
NATIVE = ("--runtime", "native")
#: Sites that allow it, by the launcher of their ranks.
PROFILES = {
    "native-hydra": ("lab", "launcher: mpiexec.hydra, pmi: null"),
    "native-openmpi": ("lab-openmpi", "launcher: srun, pmi: pmix"),
    "native-mpirun": ("lab-openmpi", "launcher: mpirun, pmi: null"),
}
#: It finds the tool in the container by the bind, on the host by what stands there in its place.
SUM = """
import ctypes, json, os, socket, sys
sys.path.insert(0, "/deployer/deployer.pyz")
from deployer.site.rank import mpi
library = mpi.load(mpi.USUAL_SONAMES)
library.start()
given, total = ctypes.c_double(library.rank + 1), ctypes.c_double()
library.sum(ctypes.byref(given), ctypes.byref(total), 1)
if library.rank == 0:
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        said = {"sum": total.value, "library": library.version(), "threads": os.environ["OMP_NUM_THREADS"]}
        json.dump(dict(said, canary=os.path.exists("/deployer/canary"), home=os.environ["HOME"]), stream)
library.end()
"""


@pytest.fixture(scope="module")
def image(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of hello-mpi without its job, on the lab, with a plan for each of the sites."""
    folder = tmp_path_factory.mktemp(NAME)
    options: list[str | Path] = ["--site", "lab", "--site", "lab-openmpi"]
    for name, (base, said) in PROFILES.items():
        profile = folder / f"{name}.yaml"
        profile.write_text(
            f"{{format: 1, name: {name}, extends: {base}, source: {{kind: document, where: this test}},\n"
            f" policy: {{runtimes: [charliecloud, native]}}, partitions: {{batch: {{{said}}}}}}}\n"
        )
        options += ["--site", profile]
    named = ["--image", "deployer/hello-mpi:1.0.0", "--name", NAME, "--version", "1"]
    site.cli("pack", *named, *options, "-o", folder / "native.tar")
    site.cli("push", folder / "native.tar", "lab", "--ssh-config", site.lab.ssh_config)
    yield NAME
    site.cli("remove", *site.options, NAME)


def proven(result: dict[str, Any], library: str) -> None:
    """Assert that a job of two ranks without a container has the proof that one with it has."""
    assert (result["runtime"], result["world_size"], result["exit_code"]) == ("native", 2, 0)
    assert [(finding["code"], finding["severity"]) for finding in result["findings"]] == [("runtime.native", "note")]
    assert (result["digest"], result["check"]) == (None, None)
    assert [rank["host"] for rank in result["ranks"]] == ["cn1", "cn2"]
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith(library)
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
        assert rank["mpi_seen_in"] == "payload"
        assert rank["cpus"]


def test_the_bundle_s_own_job_with_packages_of_the_host(site: Site) -> None:
    """hello-mpi's app, with mpi4py as a module of the site would bring it: by PYTHONPATH."""
    packages = site.alice(f"dirname $(find {WORKSPACE}/images/*/rootfs/usr -type d -name mpi4py | head -n 1)").strip()
    host = site.alice("""python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])'""").strip()
    if f"/{host}/" not in packages:
        pytest.skip(f"the image's mpi4py is not compiled for the host's {host}")
    result = site.run(*NATIVE, "--nodes", "2", f"--directive=--export=ALL,PYTHONPATH={packages}")
    proven(result, "Intel(R) MPI Library 2021.15")
    assert (result["payload"]["world_size"], result["payload"]["sum"]) == (2, 1)
    assert result["payload"]["hosts"] == ["cn1", "cn2"]


@pytest.mark.slow
def test_a_job_is_the_same_but_for_the_image(site: Site, image: str) -> None:
    command = ["--nodes", "2", "--", "python3", "-c", SUM]
    ours = site.run(*NATIVE, *command, bundle=image)
    proven(ours, "Intel(R) MPI Library 2021.15")
    theirs = site.run(*command, bundle=image)
    assert (theirs["runtime"], theirs["findings"]) == ("charliecloud", [])
    assert [ours["payload"][name] for name in ("canary", "home")] == [False, "/home/alice"]
    assert theirs["payload"]["canary"]
    assert theirs["payload"]["home"].startswith("/tmp/deployer-home-2001-")
    for result in (ours, theirs):
        assert {**result["payload"], "canary": None, "home": None} == {
            "sum": 3,
            "library": ours["payload"]["library"],
            "threads": "1",
            "canary": None,
            "home": None,
        }
    seen = ("host", "mpi_library", "mpi_identity", "provider", "thread_level", "threads", "cpus")
    assert [[rank[name] for name in seen] for rank in ours["ranks"]] == [
        [rank[name] for name in seen] for rank in theirs["ranks"]
    ]


def test_exec_has_the_host_s_programs_and_the_app_by_its_name(site: Site) -> None:
    said = site.alice(
        f"export MINE=mine; cd /tmp; {PYTHON} {WORKSPACE}/deployer.pyz exec hello-mpi --plan lab {' '.join(NATIVE)} -- "
        "sh -c 'hostname; pwd; ls -d /deployer/app; echo $MINE $HOME $FI_PROVIDER; exit 5'",
        code=5,
    )
    host, folder, app, environment = said.splitlines()
    assert (host, folder, environment) == ("login1", "/tmp", "mine /home/alice tcp")
    assert app.startswith(f"{WORKSPACE}/images/")
    assert app.endswith("/app")


def test_a_site_that_does_not_name_it_does_not_give_it(site: Site, image: str) -> None:
    for command in ("run", "exec"):
        said = site.tool(command, image, "--plan", "lab-openmpi", *NATIVE, "--", "true", code=3)
        assert "no start option with native, which the site's policy must allow" in said


@pytest.mark.slow
@pytest.mark.parametrize("plan", sorted(PROFILES))
def test_each_launcher_starts_it(site: Site, image: str, plan: str) -> None:
    result = site.run("--plan", plan, *NATIVE, "--nodes", "2", "--", "python3", "-c", SUM, bundle=image)
    library = "Intel(R) MPI Library 2021.15" if plan == "native-hydra" else "Open MPI v5.0.11"
    proven(result, library)
    assert (result["payload"]["sum"], result["payload"]["canary"]) == (3, False)
    assert result["payload"]["library"].startswith(library)


@pytest.mark.slow
def test_sigterm_and_exit_codes_are_the_payload_s(site: Site, image: str) -> None:
    result = site.run(*NATIVE, "--nodes", "2", "--", "sh", "-c", "exit 7", bundle=image, code=1)
    assert result["exit_code"] == 7
    assert [finding["code"] for finding in result["findings"]] == ["payload.failed", "runtime.native"]
    goodbye = 'trap "echo goodbye; exit 0" TERM; echo begun; while :; do sleep 0.1; done'
    words = (*NATIVE, "--plan", "lab", "--nodes", "2", "--json", "--", "sh", "-c", f"'{goodbye}'")
    job = record(site.tool("run", image, *words))
    log = f"{job['folder']}/output.log"
    until(lambda: site.alice(f"cat {log} 2>/dev/null; true").count("begun") == 2, "both have begun")
    site.tool("cancel", job["job"])
    until(lambda: '"exit_code": 143' in site.alice(f"cat {job['folder']}/result.json 2>/dev/null; true"), "the end")
    assert site.alice(f"cat {log}").count("goodbye") == 2
