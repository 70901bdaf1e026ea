"""again: submit the job that continues another one, from the state that its ranks saved; job.sh calls it at its end.

The next job is the same script under another name, with what a person changed in it. A job's name is in all paths of
its folder and nowhere else by chance, because it ends with random characters.
"""

import os
import re
import time

from deployer.contract import json_records
from deployer.contract.errors import DeployerError, JobFailed, UsageError
from deployer.contract.job import seconds
from deployer.site.jobs import jobs, result, result_reserve, schedulers
from deployer.site.jobs.schedulers.interface import NotTaken
from deployer.site.storage import unfinished
from deployer.system import files

_NAME = re.compile(r"^(.+)-\d{8}T\d{6}-[0-9a-f]{4,8}$")


def continue_job(folder: str) -> str:
    """Submit the next job, which starts after this one, and return its folder.

    Raises:
        JobFailed: no more jobs may continue this one.
        UsageError: the folder is not that of such a job.
        Refused, TransferError: the batch system did not accept it. Unless that is certain, it may have the job: then
            the next folder and the state in it stay.
    """
    launch = result.launch(folder)
    match = _NAME.match(launch.job)
    if launch.warn is None or not match or os.path.basename(os.path.abspath(folder)) != launch.job:
        raise UsageError("%s cannot be continued" % folder, "start it with: run --again N")
    if launch.again < 1:
        raise JobFailed(
            "the job saved its state, and no job is left to continue it",
            "run it again with a larger --again; its state: %s" % os.path.join(folder, result.CHECKPOINT),
        )
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    name = "%s-%s-%s" % (match.group(1), stamp, os.urandom(2).hex())
    parent = os.path.dirname(os.path.abspath(folder))
    target = os.path.join(parent, name)
    following = launch._replace(job=name, again=launch.again - 1, previous=launch.job, created=int(time.time()))
    with files.errors_named("make " + target), unfinished.folder(parent) as half:
        result_reserve.keep(half, following.ranks)
        files.write_text(os.path.join(half, result.LAUNCH_FILE), json_records.pretty(following.record()))
        for each in (result.SCRIPT, result.AGENT):
            path = os.path.join(folder, each)
            if files.is_file(path):
                text = files.read_bytes(path).decode("utf-8", "surrogateescape").replace(launch.job, name)
                files.write_text(os.path.join(half, each), text, 0o777)
        os.rename(half, target)
    try:
        scheduler = schedulers.known(launch.scheduler)
        script = os.path.join(target, result.SCRIPT)
        argv = scheduler.submit(script, seconds(launch.time), jobs.job_id(folder))
        _move(folder, target)  # the next job may start as soon as it is submitted
    except BaseException:
        _take_back(target, folder)
        raise
    try:
        number = jobs.submit(scheduler, argv, script)
    except NotTaken:
        _take_back(target, folder)
        raise
    except DeployerError as error:
        said = "%s; perhaps the next job was submitted all the same: its folder, with the saved state, is %s"
        raise type(error)(said % (error.message, target), error.hint, error.details) from error
    files.write_text(os.path.join(target, result.JOB_ID), number + "\n")
    _link(folder, name)
    return target


def _take_back(target: str, folder: str) -> None:
    """Remove the next job, which was not submitted; its state returns to ``folder``."""
    _move(target, folder)
    unfinished.discard(target)


def _move(source: str, target: str) -> None:
    """Move the saved state, if it is there."""
    path = os.path.join(source, result.CHECKPOINT)
    if files.is_folder(path):
        with files.errors_named("move " + path):
            os.rename(path, os.path.join(target, result.CHECKPOINT))


def _link(folder: str, name: str) -> None:
    """Write the name of the next job to result.json."""
    record = dict(result.read(folder).record)
    record[result.NEXT] = name
    result.write(folder, record)
