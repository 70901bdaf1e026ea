"""The login node's side of a notebook: submit its job, tell the laptop where it listens, and cancel it at the end.

When the laptop has gone, for whatever reason, this process and the job end.
Also here: the job of an interactive shell.
"""

import itertools
import json
import os
import shlex
import sys
import threading
import time
from contextlib import suppress
from typing import Callable, List, NoReturn, Sequence, Tuple

from deployer.contract.base.dialogue import ANSWER
from deployer.contract.base.errors import DeployerError, Refused
from deployer.contract.bundle.command import Unsure, locate
from deployer.contract.bundle.job import Job
from deployer.contract.site import plan as plans
from deployer.site.container.container import user_environment
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import STEPS
from deployer.site.notebook.jupyter import NAME, REQUEST, SERVER
from deployer.site.rank import interfaces
from deployer.site.run import command, run
from deployer.site.run.prepare.request import RunRequest, with_options
from deployer.site.storage import unfinished
from deployer.site.storage.store import Store
from deployer.system import files, process, terminal

#: What an image may have, the best first.
_PROGRAMS = ("jupyter-lab", "jupyter-notebook", "jupyter-server")
#: Directives of a batch script that `salloc` does not know.
_OF_BATCH = ("--output", "--no-requeue")
#: Seconds between two looks at the job's folder.
_PAUSE = 0.5


def hold(store: Store, request: RunRequest, idle: int, tell: Callable[[str], None]) -> None:
    """Run a notebook until its job ends, or until nobody reads this process's output.

    Args:
        idle: seconds without activity after which it ends.
        tell: receives a line whenever the job's state changes.

    Raises:
        Refused: the image has no Jupyter, or as in ``run``.
        JobFailed: the job failed.
    """
    python, program = _found(store, request)
    folder = run.prepare(store, request, _job(store, request, [python, "-I", plans.TOOL, "jupyter"]))
    tell(f"job {os.path.basename(folder)}")
    private = os.path.join(folder, NAME)
    os.mkdir(private, 0o700)
    wanted = {"program": program, "idle": idle, "login": interfaces.addresses()}
    files.write_text(os.path.join(private, REQUEST), json.dumps(wanted))
    run.submit(folder)
    try:
        threading.Thread(target=_announce, args=(private,), daemon=True).start()
        jobs.follow(folder, tell)
    finally:
        with suppress(DeployerError):
            jobs.cancel(folder)


def _found(store: Store, request: RunRequest) -> Tuple[str, str]:
    """Return the image's Python, and Jupyter's program in it. Raises Refused if there is none."""
    installed = store.find(request.image)
    image = installed.manifest().image
    where = command.place(installed, image, installed.plan(request.plan), [])
    for name in _PROGRAMS:
        with suppress(Unsure):
            if image.python and (name in where.programs or locate(name, where)):
                return image.python, name
    raise Refused(f"{installed.receipt.label} has no Jupyter", "add jupyterlab to the image: pip install jupyterlab")


def _job(store: Store, request: RunRequest, words: List[str]) -> Job:
    """Return the job for a request, by default of an hour and up to 4 threads."""
    cores = store.find(request.image).plan(request.plan).node.cores
    return with_options(Job(NAME, words, 1, 1, min(4, cores), "01:00:00"), request)


def _announce(private: str) -> None:
    """Tell the laptop where the notebook listens, as soon as its job has written it, and remove that file."""
    with suppress(OSError, DeployerError):  # the job has ended, and its folder is gone
        while SERVER not in os.listdir(private):  # listed, so that an NFS client looks again
            time.sleep(_PAUSE)
        terminal.show(ANSWER + files.read_text(os.path.join(private, SERVER)))
        sys.stdout.flush()
        os.unlink(os.path.join(private, SERVER))


def interactive(store: Store, request: RunRequest, words: Sequence[str]) -> NoReturn:
    """Become an interactive job that runs ``words`` on a node with this terminal. Raises as ``run``, and Refused."""
    folder = run.prepare(store, request, _job(store, request, ["true"]))
    try:
        scheduler, script = SCHEDULERS[result.launch(folder).scheduler], run.show_script(folder)
    finally:
        unfinished.discard(folder)
    if scheduler.way != STEPS:
        raise Refused(f"--in-job: not with {scheduler.title}", "start its interactive job yourself, and `shell` in it")
    head = itertools.takewhile(lambda line: line.startswith("#"), script.split("\n"))
    lines = shlex.split(" ".join(line[len(scheduler.prefix) :] for line in head if line.startswith(scheduler.prefix)))
    asked = [word for word in lines if not word.startswith(_OF_BATCH)]
    cpus = [word for word in asked if word.startswith("--cpus-per-task")]  # srun does not inherit them
    process.replace(["salloc", *asked, "srun", "--pty", "--mpi=none", *cpus, *words], user_environment())
