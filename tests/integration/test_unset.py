"""Programs whose script removes the launcher's variables: each rank is a world of one, and the job says so."""

import shutil

import pytest
import yaml

from tests.integration.conftest import ROOT, SITES, Site

HELLO = "exec python3 -m mpi4py /deployer/app/hello.py"
#: Without grep, which the image lacks.
LOST = f"""
for v in $(python3 -c "import os; print(*[n for n in os.environ if n.startswith(('SLURM_', 'PMI', 'OMPI_'))])"); do
    unset $v
done
{HELLO}
"""
NAME = "unset"


@pytest.fixture(scope="module")
def pushed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("definition") / NAME
    shutil.copytree(ROOT / "bundles" / "hello-mpi", folder)
    record = yaml.safe_load((folder / "bundle.yaml").read_text())
    record["name"] = NAME
    record["jobs"] = {job: {"command": ["sh", f"/deployer/app/{job}.sh"], "nodes": 2} for job in ("lost", "kept")}
    (folder / "bundle.yaml").write_text(yaml.safe_dump(record))
    (folder / "app" / "lost.sh").write_text(LOST)
    (folder / "app" / "kept.sh").write_text(f"unset SLURM_PROCID SLURM_NTASKS\n{HELLO}\n")
    bundle = folder.with_suffix(".tar")
    site.cli("build", folder)
    site.cli("pack", folder, *SITES, "-o", bundle)
    site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config)
    return NAME


@pytest.mark.parametrize(("plan", "names"), [("lab", "PMI_FD"), ("lab-openmpi", "PMIX_NAMESPACE, PMIX_RANK")])
def test_a_loop_that_unsets_the_launcher_s_variables_fails_the_job(
    site: Site, pushed: str, plan: str, names: str
) -> None:
    site.cli("run", *site.options, pushed, "lost", "--wait", "--plan", plan, code=1)
    result = site.result()
    errors = [each for each in result["findings"] if each["severity"] == "error"]
    assert [(each["code"], each["subject"]) for each in errors] == [("mpi.unset", "ranks 0-1")], errors
    (finding,) = errors
    assert f"without {names}, which" in finding["message"]
    assert (result["exit_code"], result["world_size"], result["payload"]["world_size"]) == (3, None, 1)
    assert [rank["exit_code"] for rank in result["ranks"]] == [0, 0]


def test_variables_that_mpi_does_without(site: Site, pushed: str) -> None:
    site.cli("run", *site.options, pushed, "kept", "--wait")
    result = site.result()
    assert (result["exit_code"], result["world_size"], result["payload"]["world_size"]) == (0, 2, 2)
    assert [each["code"] for each in result["findings"] if each["code"].startswith("mpi.")] == []
