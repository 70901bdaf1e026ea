"""fetch: run a job once with internet on this machine, and keep what it downloaded for sites without internet."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deployer.connected.deploy.packing import DeployRequest, DeployStage, Packing
from deployer.connected.fetch import answers, hub, kept, snapshot
from deployer.connected.fetch.downloads import Download, DownloadStore
from deployer.connected.fetch.kept import KeptFiles
from deployer.connected.fetch.recorder import FetchRules, Recorder, Refusal
from deployer.connected.fetch.snapshot import HubSnapshot
from deployer.connected.ground import caches, locked_folder, progress
from deployer.connected.image.definition import fetched
from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.definition.fetched import FetchedJob, LockedUrl
from deployer.connected.rehearse.ask import outcome as outcomes
from deployer.connected.rehearse.ask import ways
from deployer.connected.rehearse.ask.rehearse import Online
from deployer.connected.rehearse.ask.request import RehearsalRequest
from deployer.connected.rehearse.world.limits import SAID
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, JobFailed, Refused, UsageError
from deployer.contract.rehearsal import rehearsal
from deployer.contract.site import replay
from deployer.contract.site.plan import DATA, HOME
from deployer.system import files

#: Bytes at the end of the output in which the address of a failed download is searched for.
_LAST_WORDS = 64 * 1024
_CA = ".deployer-fetch.pem"
#: Answers of services, which are different each time.
_ANSWERS = re.compile(r"(application|text)/([\w.-]+\+)?(json|html|xml)")


class FetchRequest(NamedTuple):
    """What to fetch.

    Attributes:
        definition: the folder of the definition, or its bundle.yaml.
        seconds: the time limit.
        until: end the job when it prints this text; empty: never.
        locked: refuse files that are not those of the lock.
        private: let the job reach hosts of private networks.
        keep: names in the job's folder to keep in any case.
        extra: words for the end of the job's command.
        accept: codes of ``lint`` to treat as warnings.
        settings: files with settings of the build, by their names in ``BuildOptions``.
        ca_bundle: CA certificates of the real hosts; None: this machine's.
    """

    definition: Path
    seconds: int
    until: str = ""
    locked: bool = False
    private: bool = False
    keep: Sequence[str] = ()
    extra: Sequence[str] = ()
    accept: Sequence[str] = ()
    settings: Mapping[str, Any] = {}
    ca_bundle: str | None = None


class Fetched(NamedTuple):
    """What was fetched.

    Attributes:
        job: the job.
        folder: the folder with the kept files.
        ending: how the job ended.
        downloads: the downloaded files.
        refusals: requests without a file.
        hosts: all requested hosts, with the number of requests.
        received: bytes that came over the network.
        kept: the kept files.
        replayed: the addresses whose answers the job gets from the bundle.
        licences: the licences of the hub's repositories.
        changed: differences from the last lock, in words.
    """

    job: str
    folder: Path
    ending: str
    downloads: Sequence[Download]
    refusals: Sequence[Refusal]
    hosts: Mapping[str, int]
    received: int
    kept: KeptFiles
    replayed: Sequence[str]
    licences: Mapping[str, str]
    changed: Sequence[str]

    def by_host(self) -> list[tuple[str, int, int]]:
        """Return each host with the number and bytes of the files from it, the largest first."""
        count: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for each in self.downloads:
            host = urlsplit(each.url).hostname or ""
            count[host] += 1
            size[host] += each.size
        return sorted(((host, count[host], size[host]) for host in count), key=lambda item: -item[2])

    def record(self) -> json_records.Record:
        """Return the fields for ``--json``."""
        return {
            "job": self.job, "folder": str(self.folder), "ending": self.ending, "received": self.received,
            "hosts": dict(self.hosts),
            "downloads": [{"url": each.url, "sha256": each.sha256, "size": each.size} for each in self.downloads],
            "refusals": [each._asdict() for each in self.refusals],
            "kept": {"home": self.kept.home, "job": self.kept.job, "left": self.kept.left},
            "replayed": list(self.replayed),
            "runs_code": self.kept.running, "licences": dict(self.licences), "changed": list(self.changed),
        }  # fmt: skip


def fetch(
    definition: Definition,
    job: str,
    request: FetchRequest,
    show: Callable[[DeployStage], None],
    say: Callable[[str], None],
) -> Fetched:
    """Run a job with internet and keep its files beside the definition.

    Args:
        show: receives the stages of the build.
        say: receives progress messages.

    Raises:
        JobFailed: the job failed; nothing is kept.
        IntegrityError: with ``locked``, a file is not that of the lock.
        Refused: this machine cannot simulate a site, or ``locked`` without a lock.
        SpaceError: the disk is full.
        DeployerError: as ``Packing.bundle`` and ``rehearse`` raise.
    """
    locked = _locked(definition, job) if request.locked else None
    folder = definition.folder
    with _alone(folder), contextlib.ExitStack() as cleanup:
        bundle = _packed(definition.to_fetch(job), request, show, say)
        recorder = Recorder(DownloadStore(), FetchRules(locked, hub.login, request.private, request.ca_bundle))
        cleanup.callback(caches.FETCH.trim)
        cleanup.callback(recorder.close)
        part = Path(files.part_of(str(folder / fetched.FOLDER)))
        cleanup.callback(files.remove_tree, str(part))
        home = part / "run"
        home.mkdir(parents=True, mode=0o700)
        files.write_text(str(home / _CA), recorder.certificate.decode(), 0o600)
        online = Online(recorder.doors, str(home), str(home / _CA), _environment(), request.until)
        asked = RehearsalRequest(str(bundle), job, None, 1, request.seconds, (), request.extra)
        outcome, log = _run(asked, online, recorder, say)
        (home / _CA).unlink(missing_ok=True)
        recorder.settle()
        records = recorder.records
        if records.full:
            raise records.full
        _refuse_other_files(records.refusals.values(), locked)
        ending = _ending(outcome, records.refusals.values(), log)
        found = list(records.downloads.values())
        sizes = {each.sha256: each.size for each in found}
        own = kept.keep(home, log.parent, part / "kept", sizes, request.keep)
        store, last_answers = recorder.store, folder / fetched.FOLDER / job / replay.FOLDER
        replayed = answers.keep(records, store, own.digests, part / "kept" / replay.FOLDER, last_answers)
        real = [each for each in found if each.sha256 in own.digests or not _ANSWERS.match(each.kind)]
        real.sort(key=lambda each: each.url)
        urls = [LockedUrl(each.url, each.sha256, each.size) for each in real]
        made = FetchedJob(urls, sorted(own.home), sorted(own.job), _offline(job, records.asked, own, replayed))
        last = definition.fetched.get(job)
        changed = _changes(last, made, records.refusals)
        if locked is not None and last is not None:
            made = _of_lock(last, made)
        licences = hub.licences((each.url for each in real), recorder.session())
        _publish(definition, job, made, part / "kept", locked is None)
        return Fetched(
            job, folder / fetched.FOLDER / job, ending, real, list(records.refusals.values()), records.asked,
            records.received, own, replayed, licences, changed,
        )  # fmt: skip


def fetch_data(
    definition: Definition, locked: bool, ca_bundle: str | None, say: Callable[[str], None]
) -> list[HubSnapshot]:
    """Download the repositories of a hub that the definition's data name. Raises as ``snapshot.download``."""
    with _alone(definition.folder):
        return snapshot.download(definition, locked, ca_bundle, say)


def _locked(definition: Definition, job: str) -> dict[str, str]:
    known = definition.fetched.get(job)
    if known is None:
        raise Refused(f"{definition.folder / fetched.FILE} has no job {job}", "fetch it once without --locked")
    return {each.url: each.sha256 for each in known.urls}


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of fetches for a definition, and remove what killed ones left."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            locked_folder.lock(descriptor)
        except BlockingIOError:
            raise UsageError(f"another fetch for {folder} is running", "wait until it has ended") from None
        for name in files.names(str(folder)):
            if re.fullmatch(rf"\.{fetched.FOLDER}\.[0-9a-f]{{8}}\.part", name):
                files.remove_tree(str(folder / name))
        yield
    finally:
        os.close(descriptor)


def _packed(
    definition: Definition, request: FetchRequest, show: Callable[[DeployStage], None], say: Callable[[str], None]
) -> Path:
    """Return the bundle of the job, built and packed if something has changed."""
    path = caches.DEPLOY.folder / f"fetch-{definition.name}-{definition.version}.tar"
    wanted = DeployRequest(request.definition, "", output=path, accept=request.accept, settings=request.settings)
    return Packing(definition, None, wanted, show, say).bundle()


def _environment() -> dict[str, str]:
    """Return the variables of the job: certificates, and libraries that ask for the network."""
    return {
        **dict.fromkeys(replay.CA_READERS, f"{HOME}/{_CA}"),
        **dict.fromkeys(hub.OFFLINE, "0"),
        "HF_HUB_DISABLE_XET": "1",  # another protocol, without the hub's own URLs
        "PYTHONUNBUFFERED": "1",  # --until waits for a text
        "TMPDIR": HOME,  # as at the site: tiktoken keeps its files there
    }


def _run(
    asked: RehearsalRequest, online: Online, recorder: Recorder, say: Callable[[str], None]
) -> tuple[rehearsal.Rehearsal, Path]:
    """Run the job. Return its outcome, and its log."""
    records = recorder.records
    judged = progress.of_size("fetch", lambda: records.received, None, lambda: ways.online(asked, online, say))
    return judged.outcome, judged.folder / "output.log"


def _refuse_other_files(refusals: Collection[Refusal], locked: Mapping[str, str] | None) -> None:
    """Raise IntegrityError if a file of the lock came otherwise, or not at all."""
    for each in refusals:
        if locked is not None and each.url in locked:
            hint = f"look at it, then fetch without --locked: {fetched.FILE} changes, and the next job has other files"
            raise IntegrityError(f"{each.url}: {each.why}", hint)


def _of_lock(last: FetchedJob, made: FetchedJob) -> FetchedJob:
    """Return the lock if the job kept what it lists. Raises IntegrityError."""
    known = {each.url for each in last.urls}
    new = [f"{fetched.FILE} has no {each.url}" for each in made.urls if each.url not in known]
    new += [f"it no longer wrote ~/{name}" for name in last.home if name not in made.home]
    new += [f"it no longer wrote {name}" for name in last.job if name not in made.job]
    if new:
        raise IntegrityError(new[0], "fetch without --locked, and check in the new lock")
    return last


def _ending(outcome: rehearsal.Rehearsal, refusals: Collection[Refusal], log: Path) -> str:
    """Return how the job ended, in words. Raises JobFailed."""
    ending = outcome.ending
    if ending.how == rehearsal.DONE:
        return "the job ended"
    if ending.how == rehearsal.LIMIT:
        return "the time limit ended it (--time)"
    if ending.last == SAID:
        return SAID
    # It had a network: a finding about it says where the program asked, not why it failed.
    causes = (each for each in outcome.findings if each.stopped and each.finding.code != rehearsal.NETWORK_CODE)
    why = next((each.finding.message for each in causes), ending.last or "")
    said = outcomes.tail(log, _LAST_WORDS).decode("utf-8", "replace")
    answers = [f"{each.url}: {each.why}" for each in refusals if each.url in said]
    why = f"{why}; {answers[-1]}" if answers else why
    hint = (
        f"its output: {log}; if it fails only after its downloads, end it before: --until TEXT, or `fetch:` of the job"
    )
    raise JobFailed(f"the job failed, and nothing was kept: {why}", hint)


def _offline(job: str, asked: Collection[str], own: KeptFiles, replayed: Collection[str]) -> dict[str, str]:
    """Return the job's variables. NLTK refuses links that lead out of its folder, so it gets the folder itself."""
    top = f"{DATA}/{fetched.FOLDER}/{job}"
    nltk = {"NLTK_DATA": f"{top}/{fetched.HOME}/nltk_data"} if "nltk_data" in own.home else {}
    recorded = {replay.VARIABLE: f"{top}/{replay.FOLDER}"} if replayed else {}
    return {**(dict.fromkeys(hub.OFFLINE, "1") if hub.HOST in asked else {}), **nltk, **recorded}


def _changes(last: FetchedJob | None, now: FetchedJob, refusals: Mapping[str, Refusal]) -> list[str]:
    """Return what differs from the last lock: gone, moved, other and new files."""
    if last is None:
        return []
    before = {each.url: each for each in last.urls}
    after = {each.url: each for each in now.urls}
    said = [f"changed: {url}" for url in after if url in before and after[url].sha256 != before[url].sha256]
    said += [f"new: {url}" for url in after if url not in before]
    for url in before:
        if url not in after:
            said.append(f"{url}: {refusals[url].why}" if url in refusals else f"no longer asked for: {url}")
    return said


def _publish(definition: Definition, job: str, made: FetchedJob, new: Path, writes_lock: bool) -> None:
    """Put the kept files beside the definition, then write the lock."""
    top = definition.folder / fetched.FOLDER
    place, old = top / job, new.parent / "old"
    with files.errors_named(f"write {place}"):
        new.mkdir(exist_ok=True)
        files.write_text(str(new / fetched.MARKER), made.digest() + "\n")
        top.mkdir(exist_ok=True)
        fetched.ignore(top)
        if files.is_folder(str(place)):
            place.rename(old)
        new.rename(place)
    if writes_lock:
        fetched.write(definition.folder, {**definition.fetched, job: made}, fetched.read_data(definition.folder))
