"""result: read the evidence in a job's folder, evaluate it, and write result.json; job.sh calls it after each step.

The evaluating modules are imported only for that, because `status` and `jobs` only read.
"""

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Set, Tuple, Type, TypeVar

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError, SpaceError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import HostRecord, Launch, NetworkRecord, NodeRecord, ProbeRecord
from deployer.contract.proof.payload import PayloadRecord
from deployer.contract.rules.findings import Finding, finding
from deployer.contract.site.plan import CANARY_TEXT
from deployer.site.jobs import result_reserve
from deployer.site.proof import rank_record
from deployer.system import files, process

if TYPE_CHECKING:
    from deployer.site.proof.causes import Told
    from deployer.site.proof.result import Evidence, StepOutcome

LAUNCH_FILE = "job.json"
RESULT_FILE = "result.json"
#: The folder in which ranks save their state. It moves to the next job, which continues this one.
CHECKPOINT = "checkpoint"
#: The field of result.json with the name of the job that continues this one.
NEXT = "next"
PAYLOAD_FILE = "payload.json"
#: The parameters of a task, for its program.
PARAMETERS_FILE = "parameters.json"
SCRIPT = "job.sh"
LOG = "output.log"
#: Prefixes of names in a job's folder: for a batch system's own output file, and for a folder with what the job left
#: before its batch system started it again.
BATCH_LOG, EARLIER = "batch-system", "earlier-attempt-"
JOB_ID = "job_id"
#: The program that starts commands on the nodes of a job, in job.sh's environment.
AGENT, ENVIRONMENT, MACHINES = "agent", "environment", "machines"
HOSTS_FOLDER = "hosts"
#: What ranks report about themselves and about each other.
RANKS_FOLDER = "ranks"

#: The suffix of files with the canary output of containers, and the maximum number of bytes to read from them.
ROOT_SUFFIX = ".root"
_MAX_ROOT = 64 * 1024
_MAX_RESULT = 64 * 1024 * 1024
#: The records of the ranks in a result.json, as ``write`` writes them: nearly all of it.
_ROWS = re.compile(rb'(?<=^  "ranks": )\[\n(    \{.*\},?\n)+  \]', re.MULTILINE)
#: Bytes. A payload's own result is a summary, so a larger file is a mistake.
_MAX_PAYLOAD = 16 * 1024 * 1024
#: The number of bytes at the end of a rank's log and of the job's log that can show why it ended.
_LOG_TAIL = 4096
_JOB_TAIL = 64 * 1024
_MAX_DIGITS = 20
#: Seconds for the batch system to list the job's nodes.
_PATIENCE = 10.0
#: A file in the hosts folder: the length of the job's log at the end of the last step before the payload.
_LOG_FROM = "log-from"
#: A file in the same folder: when each step ended.
_STEPS = "steps"
#: In the job's folder: what the judge tells of nodes while others have not answered (``watch``).
NOTICE = os.path.join(HOSTS_FOLDER, "notice")

_T = TypeVar("_T")


def write_result(folder: str, outcome: "StepOutcome") -> json_records.Record:
    """Evaluate the job in ``folder`` after ``outcome``; write and return its result.json. Raises DeployerError."""
    from deployer.site.jobs import rendezvous
    from deployer.site.proof.result import HOSTS, PAYLOAD, assemble

    started, gathered = launch(folder), gather(folder)
    succeeded = outcome.exit_code == 0 and outcome.signal is None
    if outcome.step == PAYLOAD or not succeeded:
        gathered = gathered._replace(told=told(folder))
    shown = set(gathered.roots.values()) <= {CANARY_TEXT}
    if (outcome.exit_code != 0 or not shown) and outcome.signal is None:
        gathered = gathered._replace(image=_image(folder, started))
    if outcome.step == HOSTS and outcome.reason is None and len(gathered.hosts) < started.nodes:
        gathered = gathered._replace(absent=absent(started, {node.host for node in gathered.hosts}))
    if outcome.step == HOSTS and succeeded:
        hosts = os.path.join(folder, HOSTS_FOLDER)
        try:
            rendezvous.write(hosts, started, gathered.hosts, os.path.join(folder, MACHINES))
        except SpaceError as error:
            result_reserve.release(folder)
            outcome = outcome._replace(full=error.message)
    steps = _steps(folder, outcome)
    record = assemble(started, gathered, outcome, steps)
    try:
        write(folder, record)
    except SpaceError as error:
        # Other writes to this folder have failed too: evidence, the log, perhaps the payload's output.
        result_reserve.release(folder)
        record = assemble(started, gathered, outcome._replace(full=error.message), steps)
        write(folder, record)
    if outcome.step == PAYLOAD or record["exit_code"]:
        result_reserve.release(folder)
    else:
        with suppress(DeployerError):  # without the reserve, the job continues
            result_reserve.keep(folder, started.ranks)  # in case its batch system starts the job again
        with suppress(DeployerError):  # without it, more of the log is attributed to the payload
            log_state = files.status(os.path.join(folder, LOG))  # None: a manually started script writes to a terminal
            size = log_state.st_size if log_state else 0
            files.write_text(os.path.join(folder, HOSTS_FOLDER, _LOG_FROM), "%d" % size)
    return record


def absent(started: Launch, there: Set[str]) -> List[str]:
    """Return the job's nodes that are not ``there``; empty if the batch system has other names for them."""
    from deployer.site.jobs.schedulers import known

    with suppress(DeployerError):
        words = ["bash", "-c", known(started.scheduler).node_list.text]
        listed = set(process.run(words, _PATIENCE, env=dict(os.environ), check=False).stdout.split())
        return sorted(listed - there) if there <= listed else []
    return []


def _steps(folder: str, outcome: "StepOutcome") -> List[json_records.Record]:
    """Note when a step ended, and return the ends of all steps, or only of this one if the disk is full."""
    path, steps = os.path.join(folder, HOSTS_FOLDER, _STEPS), []
    with suppress(DeployerError):
        before = json_records.loads(files.read_bytes(path), _STEPS, path, own=True)
        steps = [step.record for step in before.items("steps")]
    steps = [*steps, {"name": outcome.step, "seconds": round(outcome.ended - outcome.started, 1)}]
    if files.is_folder(os.path.dirname(path)):  # else job.sh could not make it, and makes it when it starts again
        with suppress(DeployerError):
            files.write_text(path, json_records.pretty(json_records.stamped(_STEPS, {"steps": steps})))
    return steps


def write(folder: str, record: json_records.Record) -> None:
    """Write a job's result.json. Raises DeployerError."""
    files.write_text(os.path.join(folder, RESULT_FILE), json_records.pretty_rows(record, "ranks"))


def told(folder: str) -> "Told":
    """Return what the end of the job's log shows about the last step, without the output of the steps before it."""
    from deployer.site.proof import causes

    start, end = 0, b""
    with suppress(OSError, ValueError), open(os.path.join(folder, HOSTS_FOLDER, _LOG_FROM)) as stream:
        start = int(stream.read(_MAX_DIGITS))
    with suppress(OSError), open(os.path.join(folder, LOG), "rb") as log:
        log.seek(max(start, os.fstat(log.fileno()).st_size - _JOB_TAIL))
        end = log.read(_JOB_TAIL)
    return causes.told(end.decode("utf-8", "replace"))


def _image(folder: str, started: Launch) -> List[Finding]:
    """Return what is wrong with the image of a failed job, for example if it or some of its files are missing."""
    from deployer.site.proof.result import WHOLE_JOB
    from deployer.site.storage import inventory
    from deployer.site.storage.store import Store

    job = os.path.abspath(folder) if started.task is None else os.path.dirname(os.path.abspath(folder))
    store = Store(os.path.dirname(os.path.dirname(job)))
    place, image = store.image_folder(started.digest), store.carrying(started.digest)
    if image is None:
        return [] if files.is_folder(os.path.join(place, "rootfs")) else [finding("image.gone", WHOLE_JOB, image=place)]
    gone = inventory.gone(image)
    return [finding("image.incomplete", WHOLE_JOB, gone=gone)] if gone.missing else []


def launch(folder: str) -> Launch:
    """Return the job as it was submitted. Raises UsageError if ``folder`` is not a job's."""
    path = os.path.join(folder, LAUNCH_FILE)
    return evidence.read_launch(files.read_text(path, "is this a job's folder?").encode(), path)


def gather(folder: str) -> "Evidence":
    """Read all evidence of a job's steps; unreadable records count as missing."""
    payload, reason = _payload(os.path.join(folder, PAYLOAD_FILE))
    ranks = texts(os.path.join(folder, RANKS_FOLDER))
    staged = _read_all(ranks, r"node-.+\.json", NodeRecord)
    for record in staged:
        ranks.update(record.files)
    return of_hosts(texts(os.path.join(folder, HOSTS_FOLDER)))._replace(
        probes=_read_all(ranks, r"probe-\d+\.json", ProbeRecord),
        payloads=_read_all(ranks, r"payload-\d+\.json", PayloadRecord),
        logs=_last_lines(ranks),
        payload=payload,
        payload_error=reason,
        received={record.host: record.image for record in staged if record.image},
    )


def of_hosts(known: Mapping[str, str]) -> "Evidence":
    """Return the evidence about the nodes from the texts in the hosts folder, by file name."""
    from deployer.site.proof.result import Evidence

    return Evidence(
        hosts=_read_all(known, r".+\.json", HostRecord),
        roots={
            name[: -len(ROOT_SUFFIX)]: text[:_MAX_ROOT] for name, text in known.items() if name.endswith(ROOT_SUFFIX)
        },
        networks=_read_all(known, r".+" + re.escape(evidence.NETWORK_SUFFIX), NetworkRecord),
    )


def log(folder: str) -> str:
    """Return the path of a job's log, or of the batch system's own file until job.sh has begun."""
    path = os.path.join(folder, LOG)
    own = [] if files.exists(path) else sorted(name for name in files.names(folder) if name.startswith(BATCH_LOG))
    return os.path.join(folder, own[-1]) if own else path


def read_file(path: str, ranks: bool = True) -> Fields:
    """Parse a result.json, which may have a record for each of thousands of ranks; or without these records."""
    data = files.read_bytes(path, limit=_MAX_RESULT)
    data = data if ranks else _ROWS.sub(b"[]", data, 1)
    return json_records.loads(data, "result", path, own=True, limit=json_records.MAX_LARGE)


def read(folder: str, ranks: bool = True) -> Fields:
    """Return a job's result.json, as ``read_file``. Raises UsageError if it is missing or malformed."""
    return read_file(os.path.join(folder, RESULT_FILE), ranks)


def findings(fields: Fields) -> List[Finding]:
    """Return the findings of a result.json. Raises UsageError if one is malformed."""
    return [records.read(Finding, item) for item in fields.items("findings")]


def texts(folder: str) -> Dict[str, str]:
    """Return the text of each file and rank record in a folder of evidence, by name; only the end of logs."""
    by_name: Dict[str, str] = {}
    for name in files.names(folder):
        if name.startswith("."):
            continue
        with files.open_regular(os.path.join(folder, name)) as stream:
            if name.endswith(".log"):
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_TAIL))
            text = stream.read().decode("utf-8", "replace")
        if not name.endswith(rank_record.SUFFIX):
            by_name[name] = text
            continue
        for own, record in rank_record.latest(text).items():
            by_name[own] = record
            if own.endswith(".log"):  # its text is stored as a record
                with suppress(UsageError):
                    by_name[own] = str(json_records.parse(record.encode(), own))
    return by_name


def _read_all(known: Mapping[str, str], pattern: str, kind: Type[_T]) -> List[_T]:
    parsed = []
    for name in filter(re.compile(f"^{pattern}$").match, sorted(known)):
        with suppress(UsageError):  # truncated by the failure of a node: it counts as missing
            parsed.append(evidence.read(kind, known[name].encode(), name))
    return parsed


def _last_lines(known: Mapping[str, str]) -> Dict[int, str]:
    """Return the last line of each rank's probe log."""
    log = re.compile(r"^probe-(\d+)\.log$").match
    matches = ((log(name), text.strip().splitlines()) for name, text in known.items())
    return {int(match.group(1)): lines[-1] if lines else "no output" for match, lines in matches if match}


def _payload(path: str) -> Tuple[Any, Any]:
    """Return (the JSON that the payload wrote, None), or (None, the reason); (None, None) if it wrote nothing."""
    if not files.is_file(path) or os.path.getsize(path) == 0:
        return None, None
    try:
        return json_records.parse(files.read_bytes(path, limit=_MAX_PAYLOAD), path), None
    except DeployerError as error:
        return None, error.message
