"""result: read what a job's folder holds, judge it, write result.json; the batch script calls it after each step."""

import json
import os
import re
from typing import Any, Callable, Dict, List, Tuple, TypeVar

from deployer.contract import evidence, records
from deployer.contract.errors import DeployerError, UsageError
from deployer.contract.evidence import Launch
from deployer.contract.findings import Finding, errors
from deployer.contract.records import Fields
from deployer.contract.result import Evidence, Outcome, Verdict, assemble
from deployer.system import files

LAUNCH = "job.json"
RESULT = "result.json"
PAYLOAD = "payload.json"
SCRIPT = "job.sh"
LOG = "output.log"
JOB_ID = "job_id"
HOSTS = "hosts"
RANKS = "ranks"

#: A payload's own result is a summary; more than this would be a mistake.
_MAX_PAYLOAD = 16 * 1024 * 1024

_T = TypeVar("_T")


def write(folder: str, outcome: Outcome) -> Verdict:
    """Judge the job in ``folder`` after ``outcome`` and write its result.json; raises DeployerError."""
    verdict = assemble(launch(folder), gather(folder), outcome)
    files.write_text(os.path.join(folder, RESULT), records.pretty(verdict.record))
    return verdict


def launch(folder: str) -> Launch:
    """Return the job as it was submitted; raises UsageError where ``folder`` is no job's."""
    path = os.path.join(folder, LAUNCH)
    return evidence.read_launch(files.read_text(path, "is this a job's folder?").encode(), path)


def gather(folder: str) -> Evidence:
    """Read all that the steps of a job left; a record that cannot be read counts as not written."""
    payload, reason = _payload(os.path.join(folder, PAYLOAD))
    ranks = os.path.join(folder, RANKS)
    return Evidence(
        _read_all(os.path.join(folder, HOSTS), r"(.+)\.json", evidence.read_host),
        _read_all(ranks, r"probe-\d+\.json", evidence.read_probe),
        _read_all(ranks, r"payload-\d+\.json", evidence.read_payload),
        _last_lines(ranks),
        payload,
        reason,
    )


def findings(folder: str) -> List[Finding]:
    """Return the findings of a job's result.json; none where there is no result yet."""
    path = os.path.join(folder, RESULT)
    if not os.path.isfile(path):
        return []
    record = records.loads(files.read_text(path).encode(), "result", path)
    return [Finding.read(item) for item in record.items("findings")]


def first_error(folder: str) -> str:
    """Return the first error of a job's result in one line, or empty text."""
    wrong = errors(findings(folder))
    return "%s: %s (%s)" % (wrong[0].subject, wrong[0].message, wrong[0].code) if wrong else ""


def read(folder: str) -> Fields:
    """Return a job's result.json; raises UsageError where it is not there or malformed."""
    path = os.path.join(folder, RESULT)
    return records.loads(files.read_text(path).encode(), "result", path)


def _read_all(folder: str, pattern: str, parse: Callable[[bytes, str], _T]) -> List[_T]:
    found = []
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
        if re.match("^%s$" % pattern, name) and not name.startswith("."):
            path = os.path.join(folder, name)
            try:
                found.append(parse(files.read_text(path).encode(), path))
            except UsageError:
                continue  # cut short by a node that died: as good as not written
    return found


def _last_lines(folder: str) -> Dict[int, str]:
    """Return the last line of each rank's probe log."""
    found = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        match = re.match(r"^probe-(\d+)\.log$", name)
        if match:
            with open(os.path.join(folder, name), "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
                lines = stream.read().decode("utf-8", "replace").strip().splitlines()
            found[int(match.group(1))] = lines[-1] if lines else "no output"
    return found


def _payload(path: str) -> Tuple[Any, Any]:
    """Return (the JSON that the payload wrote, None), or (None, why not); (None, None) where it wrote none."""
    if not os.path.isfile(path) or os.path.getsize(path) == 0:
        return None, None
    if os.path.getsize(path) > _MAX_PAYLOAD:
        return None, "larger than %d bytes" % _MAX_PAYLOAD
    try:
        return json.loads(files.read_text(path)), None
    except (ValueError, RecursionError, DeployerError) as error:
        return None, str(error)
