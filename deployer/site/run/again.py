"""Jobs that continue another one, and repeated starts of one job.sh: each has its own folder.

The new job has the same script, with any manual changes, under another name. Replacing the name is safe: it is in all
paths of the job's folder, and cannot occur elsewhere by chance because it ends with random characters.
"""

import os
import re
import stat
import time
from contextlib import suppress
from typing import Optional

from deployer.contract.base.errors import DeployerError, JobFailed, UsageError
from deployer.contract.base.shell import code
from deployer.contract.bundle.job import seconds
from deployer.contract.proof.evidence import Launch
from deployer.site.jobs import groups, jobs, result, schedulers
from deployer.site.jobs.schedulers.interface import NotTaken
from deployer.site.run import jobfolder
from deployer.site.storage import unfinished
from deployer.site.storage.store import Store
from deployer.system import files

_NAME = re.compile(r"^(.+)-\d{8}T\d{6}-[0-9a-f]{4,8}$")
#: The files left by a job that its batch system starts again.
_EVIDENCE = (result.HOSTS_FOLDER, result.RANKS_FOLDER, result.RESULT_FILE, result.PAYLOAD_FILE, result.LOG)


def continue_job(folder: str) -> str:
    """Submit the next job, which starts after this one has ended, and return its folder.

    Raises:
        JobFailed: no more jobs may continue this one.
        UsageError: the folder is not a job's, or the job cannot be continued.
        Refused, TransferError: the batch system did not accept the job. If it may have accepted it anyway, the next
            folder and the state in it are kept. Or others can now write into the group's store.
    """
    launch = result.launch(folder)
    if launch.warn is None:
        raise UsageError(f"{folder} cannot be continued", "start it with: run --again N")
    if launch.again < 1:
        raise JobFailed(
            "the job saved its state, and no job is left to continue it",
            f"run it again with a larger --again; its state: {os.path.join(folder, result.CHECKPOINT)}",
        )
    Store(os.path.dirname(os.path.dirname(folder))).mark(launch.digest)
    target = _copy(folder, launch._replace(again=launch.again - 1, previous=launch.job), result.SCRIPT)
    try:
        scheduler, after = schedulers.known(launch.scheduler), jobs.job_id(folder)
        _move(folder, target)  # the next job may start as soon as it is submitted
    except BaseException:
        _take_back(target, folder)
        raise
    try:
        script = os.path.join(target, result.SCRIPT)
        number = jobs.submit(scheduler, script, seconds(launch.time), after)
    except NotTaken:
        _take_back(target, folder)
        raise
    except DeployerError as error:
        text = "%s; perhaps the next job was submitted all the same: its folder, with the saved state, is %s"
        raise type(error)(text % (error.message, target), error.hint, error.details) from error
    files.write_text(os.path.join(target, result.JOB_ID), number + "\n")
    _link(folder, target)
    return target


def start(folder: str, script: str, number: str, array: Optional[str] = None) -> str:
    """Return the folder for another start of a job's script.

    A job that its batch system starts again, under its old id, continues in its own folder. Any other start gets a new
    folder. It takes over the saved state of the last start if that start has ended and failed.

    Args:
        folder: the folder that the script names.
        script: the script that is running, perhaps with manual changes.
        number: the batch system's id of the start; empty if it has none.
        array: the number of an array in the group that ``folder`` is; None: it is not a group.

    Raises:
        UsageError: the script does not belong to the job in ``folder``, or the start is not a task of the array.
    """
    if array:
        return _start_task(folder, script, number, array)
    if number and jobs.job_id(folder) == number:
        _put_aside(folder)
        return folder
    _keep_output(folder)
    launch, last = result.launch(folder), folder
    while jobs.following(last):
        last = jobs.following(last)
    saved = launch.warn is not None and _has_failed(last)
    target = _copy(folder, launch._replace(previous=os.path.basename(last) if saved else None), script, number)
    if saved:
        with suppress(DeployerError):  # another start came first, or there is no result
            _move(last, target)
            _link(last, target)
    return target


def _start_task(folder: str, script: str, number: str, array: str) -> str:
    """Return the folder of the task of a group that starts as ``number``. A task that is repeated keeps its folder."""
    launch = result.launch(folder)
    task = groups.began(folder, int(array), number, schedulers.known(launch.scheduler).own_numbers)
    os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | (0o777 & ~files.umask()))  # as job.sh does with a job's
    target, words = os.path.join(folder, str(task.number)), task.words
    if files.lexists(target):
        _put_aside(target)
        files.write_text(os.path.join(target, result.JOB_ID), number + "\n")
        return target
    line = code("task={task}\nparameters=({words})", task=task.number, words=words).text
    text = groups.ARRAY_LINE.sub(lambda _: line, _text(os.path.join(folder, script)), 1)
    agent = _text(os.path.join(folder, result.AGENT))
    text, agent = (part.replace(launch.job, f"{launch.job}/{task.number}") for part in (text, agent))
    of_task = launch._replace(task=task.number, parameters=task.parameters, command=[*launch.command, *words])
    return jobfolder.make(
        folder, jobfolder.JobFolder(of_task._replace(job=f"{launch.job}.{task.number}"), text, agent, number)
    )


def _copy(folder: str, launch: Launch, script: str, number: str = "") -> str:
    """Create the folder of another job with the script of this one, and return its path."""
    match = _NAME.match(launch.job)
    text = _text(os.path.join(folder, script))
    if not match or os.path.basename(os.path.abspath(folder)) != launch.job or launch.job not in text:
        raise UsageError(f"{folder} is not the folder of the job {launch.job}", "start a new job: run NAME")
    name = f"{match.group(1)}-{jobfolder.new_token()}"
    agent = _text(os.path.join(folder, result.AGENT)).replace(launch.job, name)
    following = launch._replace(job=name, created=int(time.time()))
    content = jobfolder.JobFolder(following, text.replace(launch.job, name), agent, number)
    return jobfolder.make(os.path.dirname(os.path.abspath(folder)), content)


def _text(path: str) -> str:
    return files.read_bytes(path).decode("utf-8", "surrogateescape") if files.is_file(path) else ""


def _put_aside(folder: str) -> None:
    """Move the files of an earlier attempt of the job to a folder next to its own, except its saved state."""
    number = 1
    while files.lexists("%s/%s%d" % (folder, result.EARLIER, number)):
        number += 1
    aside = "%s/%s%d" % (folder, result.EARLIER, number)
    with files.errors_named("make " + aside):
        os.mkdir(aside)
        for name in _EVIDENCE:
            if files.lexists(os.path.join(folder, name)):
                os.rename(os.path.join(folder, name), os.path.join(aside, name))


def _keep_output(folder: str) -> None:
    """Rename the batch system's own output file of an ended start; this start would overwrite it when it ends."""
    own = schedulers.known(result.launch(folder).scheduler).own_log
    path = os.path.join(folder, own)
    if own and files.is_file(path):
        with suppress(FileNotFoundError):  # another start came first
            os.rename(path, f"{path}.{jobs.job_id(folder)}")


def _has_failed(folder: str) -> bool:
    """Return whether the job has certainly ended, and failed."""
    with suppress(DeployerError):  # the batch system does not answer here
        status = jobs.status(folder)
        return status.job_id is not None and not status.active and status.exit_code != 0
    return False


def _take_back(target: str, folder: str) -> None:
    """Remove the next job, which was not submitted, and return its saved state to ``folder``."""
    _move(target, folder)
    unfinished.discard(target)


def _move(source: str, target: str) -> None:
    """Replace the empty target folder with the saved state, if there is any."""
    path = os.path.join(source, result.CHECKPOINT)
    if files.names(path):
        with files.errors_named("move " + path):
            os.rename(path, os.path.join(target, result.CHECKPOINT))


def _link(folder: str, target: str) -> None:
    """Write the name of the next job to result.json."""
    record = dict(result.read(folder).record)
    record[result.NEXT] = os.path.basename(target)
    result.write(folder, record)
