"""A new folder, for a job or for another start of its script."""

import os
import stat
import time
from contextlib import ExitStack
from typing import NamedTuple, Optional

from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused
from deployer.contract.bundle.sweep import TaskGroup
from deployer.contract.proof.evidence import Launch
from deployer.site.container import links
from deployer.site.jobs import groups, result, result_reserve
from deployer.site.storage import unfinished
from deployer.system import files

#: The umask for the content of a new folder. Over ssh, the user's own umask is unknown: login files are skipped.
_UMASK = 0o022
#: Mode bits that a new folder lacks; job.sh adds those that the user's login files allow.
_CLOSED = 0o077


class JobFolder(NamedTuple):
    """The content of the folder.

    Attributes:
        launch: the job.
        script: the text of job.sh.
        agent: the text of the agent program; None if the job needs none.
        number: the batch system's id of the job; empty if it is not known yet.
        tasks: the tasks of a group; None: the job is not a group.
    """

    launch: Launch
    script: str
    agent: Optional[str]
    number: str = ""
    tasks: Optional[TaskGroup] = None


def make(parent: str, content: JobFolder) -> str:
    """Create the folder, completely or not at all, and return its path. Raises Refused if the name is taken."""
    launch = content.launch
    target = os.path.join(parent, launch.job if launch.task is None else str(launch.task))
    programs = [(result.SCRIPT, content.script), (result.AGENT, content.agent or "")]
    with files.errors_named("make " + target), ExitStack() as held:
        os.makedirs(parent, exist_ok=True)
        held.callback(os.umask, os.umask(_UMASK))
        unfinished.reap(parent)
        with unfinished.folder(parent) as half:
            os.chmod(half, stat.S_IMODE(os.stat(half).st_mode) & ~_CLOSED)
            result_reserve.keep(half, launch.ranks)
            if launch.warn is not None:
                os.mkdir(os.path.join(half, result.CHECKPOINT))
            links.make(half, launch.folder_links)
            os.makedirs(os.path.join(half, launch.workdir), exist_ok=True)
            files.write_text(os.path.join(half, result.LAUNCH_FILE), json_records.pretty(launch.record()))
            if content.tasks:
                groups.write(half, content.tasks)
                files.write_text(os.path.join(half, result.JOB_ID), "group\n")  # so that no task takes this folder
            if launch.task is not None:
                parameters = json_records.pretty(launch.parameters)
                files.write_text(os.path.join(half, result.PARAMETERS_FILE), parameters)
            if content.number:
                files.write_text(os.path.join(half, result.JOB_ID), content.number + "\n")
            for name, text in programs:
                if text:
                    files.write_text(os.path.join(half, name), text, 0o777)
            if files.lexists(target):
                raise Refused(f"there is a job {launch.job}", "run the same command again")
            os.rename(half, target)
    return target


def new_token() -> str:
    """Return the random suffix of a new job's name."""
    return "{}-{}".format(time.strftime("%Y%m%dT%H%M%S", time.gmtime()), os.urandom(2).hex())
