"""The login node's side of a notebook: submit its job, tell the laptop where it listens, and cancel it at the end.

The laptop holds this process's standard input open. When it ends, for whatever reason, so do this process and the job.
Also here: the job of an interactive shell.
"""

import os
import select
import shlex
import time
from contextlib import suppress
from typing import Callable, List, NoReturn, Sequence

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, Refused, TransferError
from deployer.contract.base.json_records import Record
from deployer.contract.bundle.command import Unsure, locate
from deployer.contract.bundle.job import Job
from deployer.contract.site import plan as plans
from deployer.site.container.container import user_environment
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import STEPS
from deployer.site.notebook.jupyter import NAME, SERVER
from deployer.site.rank import interfaces
from deployer.site.run import command, run
from deployer.site.run.prepare.request import RunRequest, with_options
from deployer.site.storage import unfinished
from deployer.site.storage.store import Store
from deployer.system import files, process

#: What an image may have, the best first.
_PROGRAMS = ("jupyter-lab", "jupyter-notebook", "jupyter-server")
#: The default limit and threads of the job.
_TIME, _THREADS = "01:00:00", 4
#: Directives of a batch script that `salloc` does not know.
_OF_BATCH = ("--output", "--no-requeue")
#: Seconds between two looks at the job's folder, and the first and longest between two questions to the scheduler.
_PAUSE, _FIRST, _LAST = 0.5, 1.0, 15.0


def hold(store: Store, request: RunRequest, idle: int, tell: Callable[[Record], None]) -> None:
    """Run a notebook until its job ends, or until standard input does.

    Args:
        idle: seconds without activity after which it ends.
        tell: receives the job's states, and then once where the notebook listens.

    Raises:
        Refused: the image has no Jupyter, or as in ``run``.
        JobFailed: the job failed.
    """
    program, python = _program(store, request)
    login = ["%s,%s,%d" % each[:3] for each in interfaces.addresses()]
    words = [python, "-I", plans.TOOL, "jupyter", program, "--idle", str(idle)]
    job = _job(store, request, [*words, *(f"--login={word}" for word in login)])
    folder = run.prepare(store, request, job)
    private = os.path.join(folder, NAME)
    os.mkdir(private, 0o700)
    run.submit(folder)
    try:
        if _watch(folder, os.path.join(private, SERVER), tell):
            jobs.follow(folder, lambda _: None)
    finally:
        with suppress(DeployerError):
            jobs.cancel(folder)
        with suppress(OSError):  # usually it was read
            os.unlink(os.path.join(private, SERVER))


def _program(store: Store, request: RunRequest) -> List[str]:
    """Return Jupyter's program and Python in the image."""
    installed = store.find(request.image)
    image, plan = installed.manifest().image, installed.plan(request.plan)
    where = command.place(installed, image, plan, [])
    for name in _PROGRAMS:
        with suppress(Unsure):
            if image.python and (name in where.programs or locate(name, where)):
                return [name, image.python]
    raise Refused(f"{installed.receipt.label} has no Jupyter", "add jupyterlab to the image: pip install jupyterlab")


def _job(store: Store, request: RunRequest, words: List[str]) -> Job:
    plan = store.find(request.image).plan(request.plan)
    return with_options(Job(NAME, words, 1, 1, min(_THREADS, plan.node.cores), _TIME), request)


def _watch(folder: str, server: str, tell: Callable[[Record], None]) -> bool:
    """Tell what happens until the job ends; return False if standard input ended first."""
    number, kind = jobs.job_id(folder) or "", result.launch(folder).scheduler
    job = os.path.basename(folder)
    due, pause, before, told = 0.0, _FIRST, "", False
    while True:
        if time.monotonic() >= due:
            with suppress(TransferError):  # it does not answer now
                state = jobs.state(number, kind)
                if state is None or not state.active:
                    return True
                shown = " ".join(filter(None, (state.word, state.nodes, state.reason)))
                if shown != before:
                    tell({"job": job, "state": shown})
                before, pause = shown, _FIRST if shown != before else min(pause * 1.2, _LAST)
            due = time.monotonic() + pause
        if not told and SERVER in os.listdir(os.path.dirname(server)):  # listed, so that an NFS client looks again
            tell({"job": job, "server": json_records.parse(files.read_text(server).encode(), server)})
            os.unlink(server)
            told = True
        if select.select([0], [], [], _PAUSE)[0] and not os.read(0, 4096):
            return False


def interactive(store: Store, request: RunRequest, words: Sequence[str]) -> NoReturn:
    """Become an interactive job that runs ``words`` on a node with this terminal. Raises as ``run``, and Refused."""
    folder = run.prepare(store, request, _job(store, request, ["true"]))
    try:
        scheduler, script = SCHEDULERS[result.launch(folder).scheduler], run.show_script(folder)
    finally:
        unfinished.discard(folder)
    if scheduler.way != STEPS:
        hint = "start the batch system's interactive job yourself, and `shell` in it"
        raise Refused(f"shell --job: not with {scheduler.title}", hint)
    lines = [line[len(scheduler.prefix) :] for line in script.splitlines() if line.startswith(scheduler.prefix)]
    asked = [word for line in lines for word in shlex.split(line) if not word.startswith(_OF_BATCH)]
    cpus = [word for word in asked if word.startswith("--cpus-per-task")]  # srun does not inherit them
    process.replace(["salloc", *asked, "srun", "--pty", "--mpi=none", *cpus, *words], user_environment())
