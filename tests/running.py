"""Records and installed images that the tests of running share."""

import os
from pathlib import Path

from deployer.contract.base import json_records
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import Image, Manifest
from deployer.contract.site.plan import Bind, HostMpi, NodeShape, Plan, StartOption
from deployer.site.storage.store import Receipt, Store

PREFIX = "/opt/intel/mpi/2021.15"
START_OPTION = StartOption("charliecloud-folder", "charliecloud", "folder", "srun", "pmi2", None)
PLAN = Plan(
    site="lab",
    partition="batch",
    bundle="hello:1",
    workspace="~/d",
    python=["python3"],
    node=NodeShape(1, 4, 1, 4000),
    scheduler="slurm",
    directives=[],
    modules=["intel-mpi/2021.15"],
    mpi=HostMpi("intel", "2021.15", PREFIX, PREFIX + "/lib/libmpi.so.12", "Intel(R) MPI Library 2021.15"),
    binds=[Bind(PREFIX, PREFIX, "the site's MPI, on the same path")],
    environment={"FI_PROVIDER": "tcp", "LD_LIBRARY_PATH": PREFIX + "/lib"},
    pass_environment=["SLURM_*", "PMI_*"],
    start_options=[START_OPTION],
)
IMAGE = Image(
    "sha256:0",
    "sha256:0",
    "amd64",
    ["PATH=/usr/bin:/bin", "GREETING=it's $5: cheap"],
    "/work",
    [],
    [],
    "/usr/bin/python3",
    1,
    1,
)
JOBS = [
    Job("train", ["python3", "/deployer/app/train.py"], 2, 1, 2, "00:30:00"),
    Job("short", ["true"], 1, 1, 1, "00:01:00"),
]


def store(folder, plan=PLAN, jobs=JOBS, image=IMAGE, name="hello"):
    """Return a store under ``folder`` with one installed image, ``name``:1."""
    made = Store(str(folder))
    home = os.path.join(made.images, "aaaa")
    os.makedirs(os.path.join(home, "app"))
    targets = [bind.target.strip("/") for bind in plan.binds] if plan else []
    for below in ("usr/bin", "data", "deployer/app", "deployer/job", "deployer/host", *targets):
        os.makedirs(os.path.join(home, "rootfs", below))
    os.symlink("usr/bin", os.path.join(home, "rootfs", "bin"))
    for tool in ("python", "python3", "true"):
        binary = Path(home, "rootfs", "usr/bin", tool)
        binary.write_bytes(b"\x7fELF")
        binary.chmod(0o755)
    write(os.path.join(home, "app", "train.py"), {})
    if plan:
        os.makedirs(os.path.join(home, "plans"))
        write(os.path.join(home, "plans", plan.site + ".json"), plan.record())
    manifest = Manifest(name, "1", {"name": "zstd"}, {}, image, {}, list(jobs), [], [])
    write(os.path.join(home, "bundle.json"), manifest.record())
    write(os.path.join(home, "receipt.json"), Receipt(name, "1", "sha256:0", 1, 1, 1).record())
    write(made.tool, {})
    return made


def member(plan):
    """Return the name and the bytes of a plan in a bundle."""
    return f"deployer/plans/{plan.site}.json", json_records.dumps(plan.record())


def write(path, record):
    Path(path).write_text(json_records.pretty(record))


def program(folder, name, text):
    """Put an executable into ``folder``: a script, for sh if it does not say for what."""
    path = os.path.join(str(folder), name)
    Path(path).write_text(text if text.startswith("#!") else "#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path
