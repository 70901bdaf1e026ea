"""The job that an earlier, unanswered request has already created."""

import hashlib
import os
import time
from typing import Callable, NamedTuple, Optional

from deployer.contract.base.errors import DeployerError
from deployer.site.jobs import jobs, result
from deployer.site.run.prepare.request import RunRequest
from deployer.site.storage.store import Store
from deployer.system import files

#: Seconds to wait for the id of a job that another process is submitting, and between two checks. The wait starts when
#: the job folder is created: 60 s for the batch system, 10 s for the shared file system, and 5 s in reserve.
_NUMBER_SECONDS, _NUMBER_PAUSE = 75.0, 2.0


class EarlierJob(NamedTuple):
    """A job with the name in a request.

    Attributes:
        folder: its folder.
        number: its id in the batch system; empty: see ``problem``.
        problem: why it is not this request's job, or why it may not have been submitted.
    """

    folder: str
    number: str = ""
    problem: str = ""


def earlier(store: Store, request: RunRequest, tell: Callable[[str], None]) -> Optional[EarlierJob]:
    """Return the job that the same request has already created; None if there is none.

    A laptop that got no answer repeats its request with the same suffix of the job's name. Another process
    may be submitting the job at that moment. If so, wait for the job's id; ``tell`` then receives a line.

    Raises:
        DeployerError: the files of that job cannot be read, or the batch system does not answer.
    """
    if request.token is None:
        return None
    receipt = store.find(request.image).receipt
    folder = os.path.join(store.jobs, f"{receipt.name}-{request.token}")
    state = files.status(folder, follow=False)
    if state is None:
        return None
    try:
        job = _made_before(folder, receipt.digest, state.st_mtime, tell)
    except DeployerError:
        if files.lexists(folder):
            raise
        return None
    # If the batch system has refused the job, another process removes the folder at once. Then there is no job.
    return job if job.number or files.lexists(folder) else None


def _made_before(folder: str, digest: str, created: float, tell: Callable[[str], None]) -> EarlierJob:
    """Return the job in ``folder``; wait for its id. The result is invalid if the folder is removed during the wait.

    Raises:
        DeployerError: its files cannot be read, or the batch system does not answer.
    """
    if not files.is_own(folder):
        return EarlierJob(folder, problem="is another user's")
    if result.launch(folder).digest != digest:
        return EarlierJob(folder, problem="is of another bundle")
    until = min(time.time(), created) + _NUMBER_SECONDS
    number = jobs.number(folder)
    if not number and time.time() <= until:
        tell(f"waiting for the number of job {os.path.basename(folder)}")
    while not number:
        if time.time() > until or not files.lexists(folder):
            return EarlierJob(folder, problem="has no number, so perhaps it was not submitted")
        time.sleep(_NUMBER_PAUSE)
        number = jobs.number(folder)
    return EarlierJob(folder, number)


def renamed(request: RunRequest) -> RunRequest:
    """Return the request with another suffix of the job's name. It is always the same, so it can be repeated too."""
    stamp, _, digits = (request.token or "").rpartition("-")
    return request._replace(token=f"{stamp}-{hashlib.sha256(digits.encode()).hexdigest()[: len(digits)]}")
