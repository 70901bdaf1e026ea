"""A site with hierarchical modules and its MPIs outside of /opt: from a capture to jobs that load the whole chain."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan
from deployer.contract.site.plan import Plan
from tests.conftest import ROOT
from tests.integration.conftest import Alice, Site
from tests.lab import Lab, config

SW = "/home/alice/sw"
#: Copies of the lab's MPIs, each behind the module of a compiler; the compilers exclude each other.
HIERARCHY = f"""
mkdir -p {SW}/gcc/12 {SW}/intel/2023 mf/Core/gcc mf/Core/intel mf/gcc/12/intel-mpi mf/intel/2023/openmpi
cp -a {config.INTEL_MPI_PREFIX} {SW}/gcc/12/impi
cp -a {config.OPENMPI_PREFIX} {SW}/intel/2023/openmpi
compiler() {{ printf 'family("compiler")\\nprepend_path("MODULEPATH", "%s")\\n' "$HOME/mf/$1" >mf/Core/$1.lua; }}
compiler gcc/12; compiler intel/2023
mpi() {{ printf 'family("mpi")\\nsetenv("%s", "%s")\\nprepend_path("PATH", "%s/bin")\\n' "$2" "$3" "$3" >mf/$1.lua; }}
mpi gcc/12/intel-mpi/2021.15 I_MPI_ROOT {SW}/gcc/12/impi
echo 'setenv("FI_PROVIDER", "tcp")' >>mf/gcc/12/intel-mpi/2021.15.lua
mpi intel/2023/openmpi/5.0.11 MPI_HOME {SW}/intel/2023/openmpi
chmod -R a+rX mf sw
echo 'export MODULEPATH=$HOME/mf/Core' >.bash_profile
"""
MPIS = {
    "gcc/12/impi": ["gcc/12", "intel-mpi/2021.15"],
    "intel/2023/openmpi": ["intel/2023", "openmpi/5.0.11"],
}


@pytest.fixture(scope="module")
def hierarchy(alice: Alice, lab: Lab) -> Iterator[Path]:
    """Yield the capture of such a site, made in a shell that has one of its compilers loaded."""
    alice("cd; set -e\n" + HIERARCHY)
    alice("module load gcc/12 && eval $tool capture -o login.json")
    alice("srun -N1 -n1 $(eval echo $tool) capture --node -o node.json </dev/null")
    alice("eval $tool capture --merge login.json node.json -o modules.json")
    yield lab.home / "alice" / "capture" / "modules.json"
    alice("cd; rm -rf .bash_profile mf sw")


def named(profile: Path) -> dict[str, str]:
    """Return the names of the MPIs in a capture by their folders below SW."""
    found = json.loads(profile.read_text())["mpi"]
    return {each["prefix"].removeprefix(SW + "/"): name for name, each in found.items()}


def test_the_capture_has_the_chains_of_a_fresh_login_shell(hierarchy: Path) -> None:
    found = json.loads(hierarchy.read_text())["mpi"]
    own = {each["prefix"].removeprefix(SW + "/"): each.get("module") for each in found.values()}
    assert {prefix: own[prefix] for prefix in MPIS} == MPIS
    assert found[named(hierarchy)["gcc/12/impi"]]["environment"] == {"FI_PROVIDER": "tcp"}


@pytest.fixture(scope="module")
def plans(hierarchy: Path, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Plan]]:
    """Yield the plans with each of the MPIs, in a bundle that is on the site."""
    folder = tmp_path_factory.mktemp("modules")
    profile, found = [], {}
    for prefix, pmi in (("gcc/12/impi", "pmi2"), ("intel/2023/openmpi", "pmix")):
        path = folder / f"behind-{prefix.split('/')[0]}.yaml"
        own = json.dumps({"mpi": named(hierarchy)[prefix], "pmi": pmi})
        path.write_text(
            f"format: 1\nname: {path.stem}\nextends: {hierarchy}\nworkspace: ~/deployer\nlogin: {{host: login1}}\n"
            f"policy: {{runtimes: [charliecloud]}}\npartitions:\n  batch: {own}\n"
        )
        profile += ["--site", path]
        found[prefix] = make_plan(profiles.load(str(path)), "hello-modules:1.0.0")
    definition = shutil.copytree(ROOT / "bundles" / "hello-mpi", folder / "hello-modules") / "bundle.yaml"
    definition.write_text(definition.read_text().replace("name: hello-mpi", "name: hello-modules"))
    site.cli("build", definition.parent)
    site.cli("pack", definition.parent, *profile, "-o", folder / "hello.tar")
    site.cli("push", folder / "hello.tar", profile[1], "--ssh-config", site.lab.ssh_config)
    yield found
    site.tool("remove", "hello-modules")


@pytest.mark.parametrize("prefix", list(MPIS))
def test_a_job_loads_the_chain_and_runs_on_the_mpi_behind_it(site: Site, plans: dict[str, Plan], prefix: str) -> None:
    made = plans[prefix]
    assert made.modules == MPIS[prefix]
    assert made.mpi is not None
    assert f"{SW}/{prefix}/lib/libmpi.so" in made.mpi.library
    run = f"python3 deployer/deployer.pyz run hello-modules --plan {made.site} --nodes 2"
    site.alice(f"{run} --wait", timeout=600)
    result = site.result()
    assert (result["exit_code"], result["world_size"]) == (0, 2)
    assert {rank["mpi_path"].partition("/lib/")[0] for rank in result["ranks"]} == {f"{SW}/{prefix}"}
    # A library beside an unchanged libmpi: the nodes find it in a job that was prepared before, and `run` refuses.
    folder = json.JSONDecoder().raw_decode(site.alice(f"{run} --dry-run --json"))[0]["folder"]
    path = next(each for each in made.mpi.libraries if each.startswith(SW) and "libmpi" not in each)
    library = site.lab.home / Path(path).relative_to("/home")
    library.chmod(0o755)
    library.write_bytes(b"another")
    site.alice(f"id=$(sbatch --parsable {folder}/job.sh) && while squeue -h -j $id | grep -q .; do sleep 0.3; done")
    found = json.loads(site.alice(f"cat {folder}/result.json"))["findings"]
    assert {(each["code"], each["subject"]) for each in found} == {("mpi.host-drift", "2 nodes: cn1-cn2")}
    assert all(f"its {path} is sha256:" in each["message"] for each in found)
    assert f"mpi.host-drift: this host: its {path} is sha256:" in site.alice(run, 3)
