"""run: create a job folder with a batch script from an installed image, a plan and a job, and submit the script."""

import os
import shlex
from contextlib import suppress
from typing import List, Optional, Tuple

from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.bundle.job import Job, seconds
from deployer.site.jobs import groups, jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import NotTaken
from deployer.site.run import jobfolder
from deployer.site.run.prepare.render import render
from deployer.site.run.prepare.request import RunRequest
from deployer.site.run.prepare.resolve import resolve
from deployer.site.run.prepare.start_option import choose_option
from deployer.site.storage import events, scans, unfinished
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
    group, known = groups.read(folder) if groups.is_group(folder) else None, SCHEDULERS[launch.scheduler]
    try:
        job_id = jobs.submit(known, script, seconds(launch.time), array=known.array(group) if group else ())
    except NotTaken:
        with suppress(OSError, DeployerError):  # gc removes the remaining files
            if group and len(group.arrays) > 1:
                groups.write(folder, group._replace(arrays=group.arrays[:-1]))
            else:
                unfinished.discard(folder)
        raise
    try:
        if group:
            groups.write(folder, group.submitted(job_id))
        else:
            files.write_text(os.path.join(folder, result.JOB_ID), job_id + "\n")
    except DeployerError as error:  # job.sh writes the id too
        terminal.warn(f"job {job_id} was submitted, but: {error.message}")
    root, label = os.path.dirname(os.path.dirname(os.path.abspath(folder))), f"{launch.bundle}:{launch.version}"
    events.note(root, "run", bundle=label, digest=launch.digest, job=launch.job, job_id=job_id)
    return job_id


def repeat(folder: str) -> Tuple[str, List[int], int]:
    """Submit the tasks of a group again that failed or never ran.

    Args:
        folder: the group's folder, or the folder of one of its tasks.

    Returns:
        The id of their array, the numbers of the tasks (empty: there are none), and how many wait or run.

    Raises:
        UsageError: the folder is not a group's.
        Refused, TransferError: as in ``submit``; or an earlier submission had no answer; or the site now refuses the
            image's scan or the group's store.
    """
    group, only = groups.group_of(folder)
    if not groups.is_group(group):
        raise UsageError(f"{os.path.basename(folder)} is not a group of tasks", "start a new job: run NAME")
    own = groups.read(group)
    if any(array.job_id is None for array in own.arrays):
        text = f"a submission of {os.path.basename(group)} had no answer, so its tasks may still wait or run"
        raise Refused(text, f"if the batch system does not have them, remove that array from {group}/{groups.TASKS}")
    seen = {number: task for number, task in jobs.tasks(group).items() if only in (None, number)}
    wanted = [number for number, task in seen.items() if not task.active and task.exit_code != 0]
    if wanted:
        store, digest = Store(os.path.dirname(os.path.dirname(group))), result.launch(group).digest
        scans.check_installed(store, digest)
        store.mark(digest)
        groups.write(group, own.submitting(",".join(map(str, wanted))))
        text = groups.ARRAY_LINE.sub(r"array=%d\1" % (len(own.arrays) + 1), show_script(group), 1)
        files.write_text(os.path.join(group, result.SCRIPT), text, 0o777)
    return submit(group) if wanted else "", wanted, sum(task.active for task in seen.values())


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
    group = groups.read(folder) if groups.is_group(folder) else None
    words = SCHEDULERS[result.launch(folder).scheduler].submitting(group)
    return words.replace("./" + result.SCRIPT, result.SCRIPT).replace(
        result.SCRIPT, shlex.quote(os.path.join(folder, result.SCRIPT))
    )
