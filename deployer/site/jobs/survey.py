"""survey: capture a whole site, with the login node here and one node of each partition in a small job.

The files stay in a folder next to the result until all captures are complete, so that an interrupted survey continues:
existing captures and jobs are reused. Each call of ``step`` does what is possible now, without waiting for the queue.
"""

import os
import re
import stat
import sys
import time
from contextlib import suppress
from typing import List, NamedTuple, Optional, Sequence

from deployer.contract.base import json_records, shell
from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.contract.base.shell import code
from deployer.contract.rules import batch_words
from deployer.contract.site.network import NodeAddress
from deployer.contract.site.plan import GpuRequest
from deployer.site.capture import capture_files, ports
from deployer.site.capture.capture import CaptureRequest, capture
from deployer.site.capture.capture_files import SiteCapture
from deployer.site.capture.started import TrialWords
from deployer.site.jobs import jobs
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import AGENT, JobRequest
from deployer.site.proof import causes
from deployer.site.storage import store
from deployer.system import files

#: The states of a partition's capture. WAITING and RUNNING can still change.
CAPTURED, WAITING, RUNNING, FAILED, SKIPPED = "captured", "waiting", "running", "failed", "skipped"
#: The time limit of a job. A capture takes at most half a minute.
_MINUTES = 10
#: Within ``step``, the state of a job that has ended before its capture arrived.
_ENDED = "ended"
#: An unfinished survey is not continued after this many seconds without a job or a new file: its facts may be outdated.
_STALE = 86400.0
#: Seconds until a shared file system shows this node what another node has written.
_LAG = 15.0
_LOGIN = "login.json"
_NO_SCHEDULER = (
    "only the login node was captured: no batch system whose partitions capture lists is here; on a compute node run "
    "`deployer.pyz capture --node --partition NAME -o NODE.json`, then `capture --merge`"
)
_MAX_LOG = 64 * 1024


class SurveyRequest(NamedTuple):
    """What to survey.

    Attributes:
        output: the path of the result, FILE.json.
        partitions: their names; None: all.
        name: the site's name (default: the cluster's).
        mpi: prefixes of installations that the search would miss.
        account: the account to charge for the jobs; None: $SBATCH_ACCOUNT.
        directives: additional words for the batch system.
        redact: replace hosts, users and addresses with placeholders.
        hide: additional words to replace.
        words: see ``CaptureRequest``.
        addresses: this node's addresses.
    """

    output: str
    partitions: Optional[Sequence[str]] = None
    name: Optional[str] = None
    mpi: Sequence[str] = ()
    account: Optional[str] = None
    directives: Sequence[str] = ()
    redact: bool = False
    hide: Sequence[str] = ()
    words: Optional[TrialWords] = None
    addresses: Sequence[NodeAddress] = ()

    @property
    def folder(self) -> str:
        """The folder for files that are not merged yet."""
        return self.output + ".parts"


class PartitionCapture(NamedTuple):
    """The progress of a partition's capture.

    Attributes:
        name: the partition.
        state: one of the states above.
        reason: the reason for the state, from the scheduler or the job.
        job_id: the scheduler's id of the job, or empty.
        seconds: the time from the job's submission until its capture.
    """

    name: str
    state: str
    reason: str = ""
    job_id: str = ""
    seconds: int = 0

    @property
    def active(self) -> bool:
        return self.state in (WAITING, RUNNING)

    def __str__(self) -> str:
        job = f" (job {self.job_id})" if self.active else ""
        since = (" for %d s" if self.active else " after %d s") % self.seconds if self.seconds else ""
        return "{}: {}{}{}{}".format(self.name, self.state, since, job, ": " + self.reason if self.reason else "")


class _Part(NamedTuple):
    """A partition and the files of its capture; ``failure`` has the reason why the job failed, once that is final.

    ``port``: where the node listens for a trial. ``reached``: whether this login node could connect to it.
    """

    name: str
    partition: json_records.Record
    capture: str
    script: str
    job_id: str
    log: str
    failure: str
    port: str
    reached: str


#: The suffixes of these files.
_SUFFIXES = (".json", ".sh", ".job", ".log", ".failed", ".port", ".reached")


def step(request: SurveyRequest) -> List[PartitionCapture]:
    """Do what is possible now, and return the progress of each partition.

    Raises:
        UsageError: there is no such partition, or the folder cannot be used.
        TransferError: the batch system does not answer.
    """
    survey = Survey(request, login(request).profile)
    wanted = survey.wanted()
    survey.cancel_others(wanted)
    captures = [survey.advance(part) for part in wanted]
    until = time.monotonic() + _LAG  # shared by all partitions
    return [_settle(part, each, until) if each.state == _ENDED else each for part, each in zip(wanted, captures)]


def login(request: SurveyRequest) -> SiteCapture:
    """Return the capture of the login node; create it if there is none, or if the survey is too old."""
    _make_folder(request.folder)
    path = os.path.join(request.folder, _LOGIN)
    if files.lexists(path) and _is_stale(request):
        files.remove_tree(request.folder)
        _make_folder(request.folder)
    if not files.lexists(path):
        wanted = CaptureRequest(mpi=request.mpi, name=request.name, words=request.words)
        capture(wanted, SCHEDULERS.values()).write(path)
    return capture_files.read(path)


def _is_stale(request: SurveyRequest) -> bool:
    """Return whether a survey has no recent files and no job that can still run."""
    paths = [os.path.join(request.folder, name) for name in files.names(request.folder)]
    if time.time() - max(os.stat(path).st_mtime for path in paths) <= _STALE:
        return False
    try:
        profile = capture_files.read(os.path.join(request.folder, _LOGIN)).profile
    except (UsageError, IntegrityError):
        return True
    survey = Survey(request, profile)
    return not any(survey.advance(part).active for part in survey.parts if files.lexists(part.job_id))


def collect(request: SurveyRequest, captures: Sequence[PartitionCapture]) -> List[str]:
    """Write the result, remove what is no longer needed, and return the notes for the user."""
    base = capture_files.read(os.path.join(request.folder, _LOGIN))  # ``step`` also read it regardless of its age
    survey = Survey(request, base.profile)
    paths = {part.name: part.capture for part in survey.parts}
    merged = capture_files.merge(
        [base, *(capture_files.read(paths[each.name]) for each in captures if each.state == CAPTURED)]
    )
    missing = [each for each in captures if each.state != CAPTURED]
    left_out = [f"partition {each.name}: no node was captured: {each.reason or each.state}" for each in missing]
    notes = [*merged.profile.get("notes", []), *left_out, *([] if survey.has_scheduler else [_NO_SCHEDULER])]
    reached = [files.read_text(part.reached) for part in survey.parts if files.lexists(part.reached)]
    if reached:
        merged.profile["login"]["reaches_nodes"] = str(True) in reached
    merged = merged._replace(profile=dict(merged.profile, **({"notes": notes} if notes else {})))
    if request.redact or request.hide:
        merged = merged.redacted(request.hide)
    merged.write(request.output)
    files.remove_tree(request.folder)
    return notes


class Survey:
    """The jobs of a survey. Without a batch system there are no partitions, and so no jobs.

    Args:
        request: what to survey.
        profile: the capture of the login node.

    Attributes:
        parts: all partitions.
        has_scheduler: whether there is a batch system.
    """

    def __init__(self, request: SurveyRequest, profile: json_records.Record) -> None:
        self._request = request
        scheduler = profile.get("scheduler") or {}
        self._gpu_word, self._kind = scheduler.get("gpu_request"), str(scheduler.get("kind"))
        self.has_scheduler = self._kind in SCHEDULERS
        self._scheduler = SCHEDULERS.get(self._kind, SCHEDULERS["local"])
        self.parts: List[_Part] = []
        partitions: json_records.Record = profile.get("partitions") or {} if self.has_scheduler else {}
        for number, (name, partition) in enumerate(partitions.items()):
            stem = "%s/%02d-%s" % (request.folder, number, re.sub(r"[^A-Za-z0-9_.-]", "_", name))
            self.parts.append(_Part(name, partition, *(stem + suffix for suffix in _SUFFIXES)))

    def wanted(self) -> List[_Part]:
        """Return the partitions to capture. Raises UsageError for one that does not exist."""
        names = [{part.name, part.partition.get("queue")} for part in self.parts]
        wanted = self._request.partitions
        unknown = [name for name in wanted or () if not any(name in own for own in names)]
        if unknown:
            hint = "there are: %s" % (", ".join(part.name for part in self.parts) or "none")
            raise UsageError("there is no partition {}".format(", ".join(unknown)), hint)
        return [part for part, own in zip(self.parts, names) if wanted is None or own.intersection(wanted)]

    def script(self, part: _Part) -> str:
        """Return the batch script for a partition."""
        tool, scheduler = store.running_archive(), self._scheduler
        if tool is None:
            hint = "start it as: python3 deployer.pyz capture"
            raise UsageError("a capture of compute nodes needs deployer.pyz", hint)
        words = [tool, "capture", "--node", "--partition", part.name, "-o", part.capture, "--listen", part.port]
        words += [word for prefix in self._request.mpi for word in ("--mpi", prefix)]
        # a login shell, so that modules are available; Grid Engine ignores this line
        pieces = [code("#!/bin/bash -l\n")]
        if scheduler.prefix:
            pieces += [shell.directive(scheduler.prefix, line) for line in scheduler.directives(self._job(part))]
        pieces += [code("exec >>{log} 2>&1\n", log=part.log)] if scheduler.own_log else []
        pieces += [code('shopt -q login_shell || exec /bin/bash -l "$0"\n')] if scheduler.way == AGENT else []
        start = code(
            'for python in {pythons}; do\n    command -v "$python" >/dev/null 2>&1 && exec "$python" {words}\ndone\n'
            "echo 'deployer: error: this node has no Python' >&2\nexit 7\n",
            pythons=[sys.executable, "python3"],
            words=words,
        )
        return shell.together([*pieces, start]).text

    def _job(self, part: _Part) -> JobRequest:
        """Return the batch system request of a partition's job."""
        partition, request = part.partition, self._request
        word = partition.get("gpu_request") or self._gpu_word or batch_words.words(self._kind).gpus
        return JobRequest(
            name="capture",
            folder=request.folder,
            log=part.log,
            time="00:%02d:00" % _MINUTES,
            seconds=_MINUTES * 60,
            queue=partition.get("queue", part.name),
            constraints=[partition["constraint"]] if "constraint" in partition else [],
            account=request.account or os.environ.get("SBATCH_ACCOUNT"),
            # Without a GPU request, the job may see no GPU at all; the scheduler reports how many a node has.
            gpus=GpuRequest(word, 1, None) if "gpus" in (partition.get("node") or {}) and word else None,
            directives=list(request.directives),
        )

    def advance(self, part: _Part) -> PartitionCapture:
        """Submit a partition's job if there is none, and return its progress."""
        if files.lexists(part.capture):
            return _captured(part)
        if not files.lexists(part.job_id):
            return self._submit(part)
        if files.lexists(part.failure):
            return PartitionCapture(part.name, FAILED, files.read_text(part.failure).strip())
        job_id = files.read_text(part.job_id).strip()
        seconds = int(time.time() - os.stat(part.job_id).st_mtime)
        reached = ports.reached(part.port, self._request.addresses) if files.lexists(part.port) else None
        if reached is not None:
            files.write_text(part.reached, str(reached))
        state = self._scheduler.parse_states(*jobs.ask(self._scheduler.states([job_id]))).get(job_id)
        if state and state.active:
            return PartitionCapture(part.name, RUNNING if state.nodes else WAITING, state.reason, job_id, seconds)
        reason = "job {} ended without a capture ({})".format(job_id, state.word if state else "forgotten")
        return PartitionCapture(part.name, _ENDED, reason, job_id, seconds)

    def _submit(self, part: _Part) -> PartitionCapture:
        scheduler = self._scheduler
        queue = scheduler.parse_queue(*jobs.ask(scheduler.queue(part.partition.get("queue", part.name))))
        if queue is None or not queue.open or not queue.usable:
            reason = "it runs no jobs now: %s" % (queue.says if queue else "not found")
            return PartitionCapture(part.name, SKIPPED, reason)
        files.write_text(part.script, self.script(part), 0o700)
        try:
            job_id = jobs.submit(scheduler, part.script, _MINUTES * 60)
        except Refused as error:
            return PartitionCapture(part.name, FAILED, error.message)
        files.write_text(part.job_id, job_id + "\n")
        return PartitionCapture(part.name, WAITING, "", job_id)

    def cancel_others(self, wanted: Sequence[_Part]) -> None:
        """Cancel the jobs of an earlier call for partitions that are no longer wanted."""
        for part in self.parts:
            if part not in wanted and files.lexists(part.job_id):
                job_id = files.read_text(part.job_id).strip()
                self._scheduler.parse_cancel(*jobs.ask(self._scheduler.cancel(job_id)))
                for path in filter(files.lexists, (part.job_id, part.failure)):
                    os.unlink(path)


def _settle(part: _Part, ended: PartitionCapture, until: float) -> PartitionCapture:
    """Return the result of a job that has ended; its files may still appear until the time ``until``."""
    while not files.lexists(part.capture) and time.monotonic() < until and not _words(part):
        time.sleep(0.2)
    if files.lexists(part.capture):
        return _captured(part)
    reason = _words(part) or ended.reason
    files.write_text(part.failure, reason + "\n")  # so that later calls do not wait for the capture
    return ended._replace(state=FAILED, reason=reason)


def _captured(part: _Part) -> PartitionCapture:
    took = os.stat(part.capture).st_mtime - os.stat(part.job_id).st_mtime if files.lexists(part.job_id) else 0
    return PartitionCapture(part.name, CAPTURED, seconds=max(0, int(took)))


def _words(part: _Part) -> str:
    """Return the error in a job's log, if any."""
    with suppress(FileNotFoundError), files.open_regular(part.log) as stream:
        return causes.told(stream.read(_MAX_LOG).decode("utf-8", "replace")).reason or ""
    return ""


def _make_folder(path: str) -> None:
    """Create a folder that only this user can write to, or accept an existing one. Raises UsageError for any other."""
    with files.errors_named("make " + path, "choose another file with -o"):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            state = os.lstat(path)
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
                raise UsageError(f"{path} is not a folder of yours alone", "choose another file with -o") from None
