"""gc --jobs: find old job folders, and remove them.

Active jobs are never touched. The user must consent to the removal of a folder with results, or of a folder whose job
has an unknown end.
"""

import os
import socket
import time
from typing import List, NamedTuple, Optional, Set

from deployer.site.jobs import jobs, overview, result, result_reserve
from deployer.site.jobs.jobs import Status
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.storage import unfinished
from deployer.site.storage.store import Store
from deployer.system import files

#: The files in a job's folder before there is any result: the log, and the evidence of its steps.
_OURS = (
    result.LAUNCH_FILE,
    result.SCRIPT,
    result.JOB_ID,
    result.AGENT,
    result.ENVIRONMENT,
    result.MACHINES,
    result.LOG,
    result.HOSTS_FOLDER,
    result.RANKS_FOLDER,
    result_reserve.NAME,
)
_SHOWN = 3


class Old(NamedTuple):
    """The folder of a job.

    Attributes:
        path: its path.
        days: days since the last change.
        keeps: what its removal would lose; None if it has only logs and evidence.
        spared: why it must be kept, or None.
    """

    path: str
    days: float
    keeps: Optional[str]
    spared: Optional[str]


def find(store: Store, older: float) -> List[Old]:
    """Return the folders without any change for ``older`` seconds, the newest first.

    Raises:
        TransferError: the scheduler does not answer, so any job may still be active.
        MissingTool: the scheduler's commands are missing.
    """
    seen = overview.look(store)
    outputs = _outputs({status.launch.scheduler for status in seen.jobs})
    now = time.time()
    ages = [(status, now - _changed(status.folder)) for status in seen.jobs]
    return [
        *(Old(job.folder, age / 86400, _keeps(job), _spared(job, outputs)) for job, age in ages if age >= older),
        *(Old(folder, 0.0, None, "cannot tell whether it runs: " + why) for folder, why in seen.unreadable),
    ]


def collect(store: Store, folders: List[Old]) -> None:
    """Remove these folders and the leftovers of earlier removals."""
    unfinished.reap(store.jobs)
    for item in folders:
        with files.errors_named("remove " + item.path):
            unfinished.discard(item.path)


def _outputs(schedulers: Set[str]) -> Set[str]:
    """Return the folders with the output of all active jobs. A manually submitted script has no id file yet."""
    known = [SCHEDULERS[name] for name in schedulers & set(SCHEDULERS)]
    paths = (path for scheduler in known for path in scheduler.parse_outputs(*jobs.ask(scheduler.outputs)))
    return {os.path.realpath(os.path.dirname(path.replace("%%", "%"))) for path in paths}


def _spared(status: Status, outputs: Set[str]) -> Optional[str]:
    if files.is_link(status.folder):
        return "a link"
    if status.active:
        return "the job is active: " + status.state
    if os.path.realpath(status.folder) in outputs:
        return "its script was submitted by hand, and waits or runs"
    if status.job_id and status.exit_code is None:
        host = jobs.scheduler(status.job_id, status.launch.scheduler).elsewhere(status.job_id, socket.gethostname())
        return f"only {host} can tell whether it runs" if host else None
    return None


def _keeps(status: Status) -> Optional[str]:
    others = [name for name in files.names(status.folder) if name not in _OURS]
    names = sorted(name for name in others if not name.startswith((result.BATCH_LOG, result.EARLIER)))
    if names:
        return ", ".join(names[:_SHOWN]) + (" and %d more" % (len(names) - _SHOWN) if len(names) > _SHOWN else "")
    return "an unknown end" if status.job_id and status.exit_code is None else None


def _changed(folder: str) -> float:
    """Return when a folder, or an entry directly in it, last changed."""
    states = [files.status(os.path.join(folder, name), follow=False) for name in (".", *files.names(folder))]
    return max((state.st_mtime for state in states if state), default=0.0)
