"""The folder of a group of tasks: ``tasks.json``, with the tasks and the arrays that were submitted, and their folders.

A task of an array starts job.sh of the group, which makes the folder of the task (``run.again``), or continues in it
after a failure.
"""

import os
import re
from typing import Optional, Tuple

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle.sweep import GroupTask, TaskGroup, numbers
from deployer.system import files

TASKS = "tasks.json"
#: In job.sh: the line of the group with the number of the array, which the script of a task does not have.
ARRAY_LINE = re.compile(r"^array=\d+( task='' parameters=\(\))$", re.MULTILINE)
#: In the id of a task, the number that the batch system gives it.
_INDEX = re.compile(r"^(\d+)(?:[_.]|\[)(\d+)(?=\]|;|$)\]?")


def is_group(folder: str) -> bool:
    """Return whether a job's folder is a group's."""
    return files.is_file(os.path.join(folder, TASKS))


def group_of(folder: str) -> Tuple[str, Optional[int]]:
    """Return the folder of the group of a task, and the task's number; None: the folder is not a task's."""
    parent, name = os.path.split(os.path.abspath(folder))
    return (parent, int(name)) if re.match("[0-9]{1,9}$", name) and is_group(parent) else (folder, None)


def read(folder: str) -> TaskGroup:
    """Return the content of ``tasks.json``. Raises UsageError."""
    path = os.path.join(folder, TASKS)
    fields = json_records.loads(files.read_bytes(path), "tasks", path, own=True, limit=json_records.MAX_LARGE)
    group = records.read(TaskGroup, fields)
    for array in group.arrays:
        numbers(array.tasks)
    return group


def write(folder: str, group: TaskGroup) -> None:
    """Write ``tasks.json`` to the folder of the group. Raises DeployerError."""
    text = json_records.pretty(json_records.stamped("tasks", records.plain(group)))
    files.write_text(os.path.join(folder, TASKS), text)


def began(folder: str, array: int, job_id: str, own_numbers: bool) -> GroupTask:
    """Return the task that the batch system starts as ``job_id``, in the array with the number ``array``, from 1.

    Raises:
        UsageError: the start is not a task of this array.
    """
    group, index = read(folder), _INDEX.match(job_id)
    tasks = group.arrays[array - 1].by_index(own_numbers) if 1 <= array <= len(group.arrays) else {}
    number = tasks.get(int(index.group(2)) if index else 1, -1) if index or len(tasks) == 1 else -1
    for task in (task for task in group.tasks if task.number == number):
        if group.arrays[-1].job_id is None and array == len(group.arrays):  # its answer is late, or lost
            write(folder, group.submitted(array_id(job_id)))
        return task
    name = os.path.basename(folder)
    raise UsageError(f"{job_id} is not a task of {name}", "submit it with the command in job.sh")


def array_id(job_id: str) -> str:
    """Return the batch system's id of an array from the id of its task."""
    return _INDEX.sub(lambda match: match.group(1) + ("[]" if "]." in job_id else ""), job_id)
