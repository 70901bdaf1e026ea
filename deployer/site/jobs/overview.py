"""jobs: all jobs under the root folder, with a single query of the scheduler."""

from typing import List, NamedTuple, Tuple

from deployer.contract.base.errors import UsageError
from deployer.site.jobs import jobs, result
from deployer.site.jobs.jobs import Status
from deployer.site.storage.store import Store


class Overview(NamedTuple):
    """The jobs under a root folder.

    Attributes:
        jobs: the jobs, the newest first.
        unreadable: folders whose job.json cannot be read, each with the reason.
    """

    jobs: List[Status]
    unreadable: List[Tuple[str, str]]

    @property
    def active(self) -> List[Status]:
        """The jobs that are waiting or running."""
        return [status for status in self.jobs if status.active]


def look(store: Store) -> Overview:
    """Return all jobs. Raises TransferError or MissingTool if the scheduler does not answer."""
    launches = []
    readable, hidden = jobs.folders(store)
    unreadable = [(folder, "you may not look into it") for folder in hidden]
    for folder in reversed(readable):
        try:
            launches.append((result.launch(folder), folder, jobs.job_ids(folder)))
        except UsageError as error:
            unreadable.append((folder, error.message))
    states = jobs.states([(number, launch.scheduler) for launch, _, ids in launches for number in ids])
    statuses = [jobs.described(launch, folder, ids, states) for launch, folder, ids in launches]
    return Overview(statuses, unreadable)
