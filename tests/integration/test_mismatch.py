"""What is not as it was asked for stops the job, with its rule's code; `-s` shows after how many seconds of job time.

The table in docs/evidence/benchmarks.md is what this printed. Marked slow: it is a measurement, and the rules
have their own tests.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Site, image_folder, plan_record

pytestmark = pytest.mark.slow

#: What is changed in the plan for the lab, or in the words of `run`, by the rule that has to see it.
Change = Callable[[dict[str, Any]], dict[str, Any]]
PLANS: dict[str, Change] = {
    "job.module": lambda plan: {"modules": ["intel-mpi/1999"]},
    "job.launcher": lambda plan: option(plan, launcher="mpiexec.hydra", program="/opt/none/bin/mpiexec.hydra", pmi=""),
    "hosts.missing": lambda plan: {"binds": [*plan["binds"], {"source": "/var/tmp/own", "target": "/mnt", "why": ""}]},
    "mpi.host-missing": lambda plan: {"mpi": {**plan["mpi"], "library": "/opt/none/libmpi.so.12"}},
    "mpi.version": lambda plan: {"mpi": {**plan["mpi"], "says": "Intel(R) MPI Library 2019"}},
    "mpi.singletons": lambda plan: option(plan, pmi="none"),
    "mpi.not-host-library": lambda plan: environment(plan, LD_LIBRARY_PATH="/nowhere"),
    "probe.unfinished": lambda plan: environment(plan, FI_PROVIDER="psm2"),
}


def option(plan: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"start_options": [{**plan["start_options"][0], **fields}]}


def environment(plan: dict[str, Any], **values: str) -> dict[str, Any]:
    return {"environment": {**plan["environment"], **values}}


def told(site: Site, code: str) -> None:
    """See that the last job was stopped by the rule, before the payload, and show when."""
    result = site.result()
    codes = [finding["code"] for finding in result["findings"]]
    assert code in codes
    assert result["payload"] is None
    print(f"| `{code}` | {result['seconds']} | {result['exit_code']} |", codes)


def run(site: Site, plan: str, before: str = "") -> None:
    site.alice(f"{before} python3 deployer/deployer.pyz run hello-mpi --plan {plan} --nodes 2 --wait", 1)


@pytest.mark.parametrize("code", list(PLANS))
def test_a_plan_that_does_not_fit(site: Site, plan: Callable[..., str], code: str) -> None:
    site.alice("mkdir -p /var/tmp/own")  # on the login node alone
    run(site, plan(**PLANS[code](plan_record(site, "lab"))))
    told(site, code)


def test_little_memory_may_be_locked(site: Site, plan: Callable[..., str]) -> None:
    """Slurm hands the limits of the shell that submits on to the job."""
    run(site, plan(**environment(plan_record(site, "lab"), FI_PROVIDER="psm2")), "ulimit -l 64;")
    told(site, "limits.memlock")


@contextmanager
def covered(site: Site, node: str, path: str, by: str) -> Iterator[None]:
    site.lab.sh(node, "root", ["mount", "--bind", by, path]).check("cover it")
    try:
        yield
    finally:
        site.lab.sh(node, "root", ["umount", "-l", path])


def test_another_library_on_one_node(site: Site) -> None:
    library = plan_record(site, "lab")["mpi"]["library"]
    with covered(site, "cn2", library, plan_record(site, "lab-openmpi")["mpi"]["library"]):
        run(site, "lab")
    told(site, "mpi.host-differs")


def test_a_runtime_that_does_not_start_on_one_node(site: Site) -> None:
    with covered(site, "cn2", "/usr/bin/ch-run", "/usr/bin/false"):
        run(site, "lab")
    told(site, "runtime.start")


def dry_run(site: Site) -> Path:
    """Return the folder of a job that was not submitted."""
    said = site.tool("run", "hello-mpi", "--plan", "lab", "--nodes", "2", "--dry-run", "--json")
    return Path(json.JSONDecoder().raw_decode(said)[0]["folder"])


def submit(site: Site, folder: Path) -> None:
    site.alice(f"id=$(sbatch --parsable {folder}/job.sh) && while squeue -h -j $id | grep -q .; do sleep 0.3; done")


def test_another_network(site: Site) -> None:
    """The plan meant the fast one, as far as job.json tells."""
    folder = dry_run(site)
    job = site.lab.home / folder.relative_to("/home") / "job.json"
    job.write_text(job.read_text().replace('"provider": "tcp"', '"provider": "psm2"'))
    submit(site, folder)
    told(site, "mpi.provider")


def test_a_container_that_shows_another_root(site: Site) -> None:
    """The image's canary is gone between the submission and the start."""
    folder = dry_run(site)
    canary = image_folder(site) / "rootfs" / "deployer" / "canary"
    canary.rename(canary.with_name("away"))
    try:
        submit(site, folder)
    finally:
        canary.with_name("away").rename(canary)
    told(site, "runtime.root")


def test_gpus_that_cannot_be_used(site: Site, plan: Callable[..., str]) -> None:
    """By an image with CUDA, as far as its folder tells, and a driver's library that is none."""
    library = site.lab.home / "alice" / "none" / "libcuda.so.1"
    library.parent.mkdir(exist_ok=True)
    library.write_text("not a library")
    driver = {"name": "lib/libcuda.so.1", "kind": "file", "source": "/home/alice/none/libcuda.so.1"}
    cuda = image_folder(site) / "rootfs" / "usr" / "local" / "cuda-12.4"
    cuda.mkdir(parents=True)
    try:
        run(site, plan(host=[{**driver, "why": "none", "spare": False}]))
    finally:
        cuda.rmdir()
    told(site, "gpu.unusable")
