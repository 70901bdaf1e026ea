"""capture HOST: make a site's profile from here. The site's deployer captures its login node and partitions.

One node per partition is captured. Results stay on the site until the capture is complete, so an interrupted command
continues when it is called again. The results are untrusted text: they are read as JSON, and written under our own
file names.
"""

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.site_profile import decisions, drift, published
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.decisions import Access, Decision
from deployer.connected.site_profile.profile import Profile
from deployer.connected.transfer.remote import Remote
from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError, Refused, TransferError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.site import facts
from deployer.system import files

#: The folder on the site, removed at the end.
FOLDER = "~/.deployer-capture"
#: Pythons to try. RHEL's own is not in PATH, and other systems have a newer one beside an outdated ``python3``.
_PYTHONS = [
    "python3", "/usr/bin/python3", "/usr/libexec/platform-python", *(f"python3.{minor}" for minor in range(14, 5, -1))
]  # fmt: skip
#: Seconds for the capture of the login node, and between two checks of the jobs: at first, and at most.
_LOGIN_SECONDS = 300.0
_FIRST, _LAST = 1.0, 15.0
#: Keys that a capture must not have, at the top and in ``login``. They decide where bundles go and what is allowed.
_DECISIONS, _LOGIN_DECISIONS = ("extends", "workspace", "policy"), ("transfer", "inbox")


class CapturedPartition(NamedTuple):
    """The state of a partition's capture, as the site's program reports it.

    Attributes:
        name: the partition.
        state: waiting, captured, ...
        reason: the reason, in the words of the scheduler or the job.
        job_id: the scheduler's job id, or empty.
        seconds: the time from the submission of its job to its capture.
    """

    name: str
    state: str
    reason: str
    job_id: str
    seconds: int

    def __str__(self) -> str:
        job = f"job {self.job_id}, " if self.job_id else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.name}: {self.state}{why} ({job}{self.seconds} s after its submission)"


class SiteRequest(NamedTuple):
    """A capture request.

    Attributes:
        host: the login host for ssh.
        output: the profile to write; the capture is written beside it.
        partitions: ``all``, or names separated by commas.
        name: the site's name (default: the cluster's name).
        ssh_config: an ssh configuration to use instead of the user's.
        folder: a folder on the site that all nodes see.
        workspace: the root folder for the profile.
        options: further words for the site's command.
        python: the site's Python; None: search for one.
    """

    host: str
    output: Path
    partitions: str = "all"
    name: str | None = None
    ssh_config: Path | None = None
    folder: str = FOLDER
    workspace: str | None = None
    options: Sequence[str] = ()
    python: str | None = None

    @property
    def captured(self) -> Path:
        return self.output.with_name(f"{self.output.stem}-captured.json")

    @property
    def facts(self) -> Path:
        return self.output.with_name(f"{self.output.stem}-captured.facts.json")


class CapturedSite(NamedTuple):
    """The result of a capture.

    Attributes:
        name: the site's name.
        problem: why the existing profile does not fit the new facts, or None.
        decisions: points for a person to review; empty if the profile already existed.
        missing: facts that plans still lack.
        partitions: the final state of each partition.
        notes: facts that could not be found.
        differences: differences from the previous capture.
        seconds: the duration.
    """

    name: str
    problem: UsageError | None
    decisions: list[Decision]
    missing: list[str]
    partitions: list[CapturedPartition]
    notes: list[str]
    differences: list[drift.Drift]
    seconds: float


def _partition(fields: Fields) -> CapturedPartition:
    return records.read(CapturedPartition, fields, reason=fields.text("reason", lines=True))


def dry_run(request: SiteRequest) -> dict[str, str]:
    """Return the jobs that would be submitted, by partition. Captures only the login node and keeps nothing."""
    with _remote(request) as remote:
        remote.prepare(tries=True)
        answer = remote.site([*_words(request, remote), "--dry-run"], _LOGIN_SECONDS, login=True)
        _clean(request, remote)
    return answer.mapping("jobs", lines=True)


def capture_site(request: SiteRequest, tell: Callable[[Sequence[CapturedPartition]], None]) -> CapturedSite:
    """Capture a site. Write its capture and facts and, if there is none yet, a profile with the decisions.

    Args:
        tell: receives the state of all partitions after each check.

    Raises:
        TransferError: the connection failed; the next call continues.
        UsageError: the partition does not exist, or the captured facts are not a valid profile.
    """
    began = time.monotonic()
    before, notes = _before(request)
    with _remote(request) as remote:
        remote.prepare(tries=True)
        words = _words(request, remote)
        while True:
            answer = remote.site([*words, "--no-wait"], _LOGIN_SECONDS, login=True)
            partitions = [_partition(fields) for fields in answer.each("partitions")]
            tell(partitions)
            captured_there = answer.maybe_text("profile")
            if captured_there:
                notes += answer.words("notes")
                break
            time.sleep(min(_LAST, _FIRST + (time.monotonic() - began) / 10))
        profile = remote.fetch(captured_there, published.MAX_PROFILE)
        _write(request, profile, remote.fetch(answer.text("facts"), published.MAX_FACTS))
        _clean(request, remote)
        access = Access(request.host, remote.python, request.workspace)
    captured = profiles.load(str(request.captured))
    name = request.name or captured.name
    decided = _decided(request, access, name, captured)
    differences = drift.between(*map(profiles.comparable, (before, captured))) if before else []
    problem, missing = None, []
    try:
        missing = [f"{fact.key}: {fact.why}" for fact in decisions.lacking(profiles.load(str(request.output)))]
    except UsageError as error:  # a decision refers to a removed item, such as an older MPI version
        hint = f"the facts are new, and a decision no longer fits them: correct {request.output}"
        problem = UsageError(error.message, hint, error.details)
    seconds = time.monotonic() - began
    return CapturedSite(name, problem, decided, missing, partitions, notes, differences, seconds)


def _before(request: SiteRequest) -> tuple[Profile | None, list[str]]:
    """Return the previous capture, or a note why there is nothing to compare the new one with."""
    if not request.captured.is_file():
        return None, []
    try:
        return profiles.load(str(request.captured)), []
    except DeployerError as error:
        return None, [f"the earlier {request.captured} cannot be read, so nothing was compared: {error.message}"]


def _remote(request: SiteRequest) -> Remote:
    """Return a connection to a site whose host alone is known. Raises UsageError for an invalid host."""
    pythons = [request.python] if request.python else _PYTHONS
    reached = profiles.of_host(request.host, "give the name of a login node", pythons, request.folder)
    return Remote(reached, request.ssh_config)


def _words(request: SiteRequest, remote: Remote) -> list[str]:
    target = f"{remote.workspace}/{request.captured.name}"
    name = ["--name", request.name] if request.name else []
    return ["capture", "--partitions", request.partitions, "-o", target, *name, *request.options]


def _clean(request: SiteRequest, remote: Remote) -> None:
    """Remove the result from the site, and also our folder unless a capture in it still waits for jobs."""
    remote.remove([request.captured.name, request.facts.name])
    if request.folder == FOLDER:  # queued jobs use its deployer.pyz
        remote.remove(["deployer.pyz", "incoming", "images", "logs", ""], unless="*.parts")


def _write(request: SiteRequest, profile: bytes, trees: bytes) -> None:
    """Write the capture.

    Raises:
        TransferError: the files do not belong together.
        Refused: the capture contains decisions that only the user may make.
    """
    record = json_records.parse(profile, f"the capture of {request.host}", TransferError)
    facts.read(trees, f"the facts of {request.host}")
    expected = {"file": request.facts.name, "sha256": hashlib.sha256(trees).hexdigest()}
    if not isinstance(record, dict) or record.get("facts") != expected:
        raise TransferError(f"{request.host}: the capture and its facts do not belong together", "capture again")
    login = record.get("login")
    chosen = [key for key in _DECISIONS if key in record]
    chosen += [f"login.{key}" for key in _LOGIN_DECISIONS if isinstance(login, dict) and key in login]
    if chosen:
        hint = "it was changed at the site: ask its admin; such a key could decide where bundles go"
        raise Refused(f"the capture of {request.host} has {', '.join(chosen)}, which no capture finds out", hint)
    files.write_text(str(request.facts), trees.decode("utf-8"))
    files.write_text(str(request.captured), profile.decode("utf-8"))


def _decided(request: SiteRequest, access: Access, name: str, captured: Profile) -> list[Decision]:
    """Write the profile over the capture unless it exists, and return its decisions."""
    if request.output.exists():
        return []
    extends = f"./{request.captured.name}"
    date = captured.source.date or ""
    heading = f"What people decide about {name}. Its facts are in {extends}, captured {date}."
    decided = decisions.decide(captured, access)
    # Use an absolute path: a name without a slash would be a profile's name.
    place = request.output.absolute().with_name(f".{request.output.name}.new")
    try:
        files.write_text(str(place), decisions.text(name, extends, access, decided, heading))
        examples = decisions.lacking(profiles.load(str(place)))
        decided = list({decision.place: decision for decision in [*decided, *examples]}.values())
        files.write_text(str(request.output), decisions.text(name, extends, access, decided, heading))
    finally:
        place.unlink(missing_ok=True)
    return decided


def stem(host: str) -> str:
    """Return the file name of a host's profile."""
    short = host.rpartition("@")[2].partition(".")[0].lower()
    return re.sub(r"^[^a-z0-9]+", "", re.sub(r"[^a-z0-9_-]+", "-", short)) or "site"
