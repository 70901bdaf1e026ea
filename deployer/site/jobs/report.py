"""report: find the results of jobs, on the site by name or number, or anywhere by path."""

import os
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base.errors import DeployerError, UsageError
from deployer.contract.base.json_records import Record
from deployer.contract.proof import measured_runs
from deployer.contract.proof.measured_runs import Run
from deployer.site.jobs import groups, jobs, result
from deployer.site.storage.store import Store
from deployer.system import files


def of_group(references: Sequence[str], store: Optional[Callable[[], Store]]) -> Optional[List[Record]]:
    """Return the tasks of a group from the files in its folder; None: it is not a single group. See ``collect``."""
    path = references[0] if store is None or os.sep in references[0] else jobs.find(store(), references[0])
    if len(references) > 1 or not (files.is_folder(path) and groups.is_group(path)):
        return None
    return [task.record() for task in jobs.tasks(path, {}).values()]


class Collected(NamedTuple):
    """The measurements of jobs.

    Attributes:
        runs: the jobs with measurements.
        left_out: the other jobs, each with the reason.
    """

    runs: List[Run]
    left_out: List[Tuple[str, str]]


def collect(references: Sequence[str], store: Optional[Callable[[], Store]]) -> Collected:
    """Return the measurements of jobs, without duplicates.

    Args:
        references: names or scheduler ids of jobs, or paths of job folders and result.json files.
        store: returns the root folder with the jobs; None: accept only paths.

    Raises:
        UsageError: a job was not found. A job without measurements is only left out.
    """
    runs: List[Run] = []
    left_out: List[Tuple[str, str]] = []
    for reference in dict.fromkeys(references):
        path = reference if store is None or os.sep in reference else jobs.find(store(), reference)
        folder = files.is_folder(path)
        if not folder and not files.is_file(path):
            raise UsageError(f"there is no {path}", "give a job's folder, or its result.json")
        try:
            runs.append(measured_runs.of_result(result.read(path) if folder else result.read_file(path)))
        except DeployerError as error:
            left_out.append((reference, error.message))
    return Collected(runs, left_out)
