"""run: create a job folder with a batch script from an installed image, a plan and a job, and submit the script."""

import os
import shlex
from contextlib import suppress
from typing import List, Optional

from deployer.contract.base.errors import DeployerError
from deployer.contract.bundle.job import Job, seconds
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import NotTaken
from deployer.site.run import jobfolder
from deployer.site.run.prepare.render import render
from deployer.site.run.prepare.request import RunRequest
from deployer.site.run.prepare.resolve import resolve
from deployer.site.run.prepare.start_option import choose_option
from deployer.site.storage import unfinished
from deployer.site.storage.store import Store
from deployer.system import files, terminal

_SHOWN = 10  # maximum number of `check` findings to print


def prepare(store: Store, request: RunRequest, own: Optional[Job] = None) -> str:
    """Create the job's folder with job.sh and job.json, and return its path; submit nothing.

    Args:
        own: a job that replaces the bundle's jobs.

    Raises:
        UsageError: an image, plan, job or path does not exist.
        Refused: `check` refused it, the layout does not fit the nodes, no start option can be used, or a job of this
            name exists.
    """
    resolved = resolve(store, request, own)
    return jobfolder.make(store.jobs, render(resolved, choose_option(resolved)))


def submit(folder: str) -> str:
    """Submit the script of a prepared job and return the scheduler's id. Raises Refused, TransferError.

    If the batch system has certainly not accepted the job, its folder is removed. After any other error, the batch
    system may have the job.
    """
    launch = result.launch(folder)
    script = os.path.join(folder, result.SCRIPT)
    try:
        job_id = jobs.submit(SCHEDULERS[launch.scheduler], script, seconds(launch.time))
    except NotTaken:
        with suppress(OSError, DeployerError):  # gc removes the remaining files
            unfinished.discard(folder)
        raise
    try:
        files.write_text(os.path.join(folder, result.JOB_ID), job_id + "\n")
    except DeployerError as error:  # job.sh writes the id too
        terminal.warn(f"job {job_id} was submitted, but: {error.message}")
    return job_id


def warnings(folder: str) -> List[str]:
    """Return warnings for a prepared job: one line per finding of ``check``, and one for ranks across NUMA domains."""
    launch = result.launch(folder)
    lines = [launch.straddling] if launch.straddling else []
    checked = launch.checked
    if checked is None or not checked.findings:
        return lines
    meaning = f": {checked.meaning}" if checked.meaning else ""
    lines += [
        f"check said {checked.verdict} on the laptop{checked.by}{meaning}",
        *map(str, checked.findings[:_SHOWN]),
    ]
    more = len(checked.findings) - _SHOWN
    return [*lines, "and %d more: see the plan" % more] if more > 0 else lines


def show_script(folder: str) -> str:
    """Return the text of a job's script; bytes that are not UTF-8 are kept as ``files.write_text`` received them."""
    with open(os.path.join(folder, result.SCRIPT), encoding="utf-8", errors="surrogateescape") as stream:
        return stream.read()


def by_hand(folder: str) -> str:
    """Return the command to start a prepared job manually."""
    words = SCHEDULERS[result.launch(folder).scheduler].by_hand
    return words.replace("./" + result.SCRIPT, result.SCRIPT).replace(
        result.SCRIPT, shlex.quote(os.path.join(folder, result.SCRIPT))
    )
