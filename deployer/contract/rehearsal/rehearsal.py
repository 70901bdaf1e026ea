"""A rehearsal: how a job ended without a network, what it tried to access, and what it used. Pure.

The findings begin with the reason that stopped the job. The exception that ended a process is compared with the
process's accesses, because a library may catch a network error and raise its own.
"""

import collections
import itertools
import posixpath
import re
from typing import Collection, Dict, Iterable, List, NamedTuple, Optional, Pattern, Sequence, Tuple

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import EXIT_DONE, Refused
from deployer.contract.base.grouping import grouped
from deployer.contract.base.json_records import Fields, Record
from deployer.contract.base.text import counted, printable
from deployer.contract.rehearsal import downloads, remedies
from deployer.contract.rehearsal import observation as seen
from deployer.contract.rehearsal.downloads import STANDARD, Offline, Wanted
from deployer.contract.rehearsal.observation import CodeFrame, Observation, Observed
from deployer.contract.rules import verdict
from deployer.contract.rules.findings import ERROR, NOTE, WARNING, Finding, Rule
from deployer.contract.site.plan import DATA, JOB

SCHEMA = "rehearsal"

# How a job ended. LIMIT: it was still running when the rehearsal's own time was over. MEMORY: the kernel killed one of
# its processes. STOPPED: a person, or the rehearsal itself, stopped it.
DONE, FAILED, LIMIT, MEMORY, STOPPED = "done", "failed", "limit", "memory", "stopped"

#: The observers: Python's audit hooks; a name server and a sink in place of the network; the kernel's answers.
PYTHON, NETWORK, FILES = "python", "network", "files"

NETWORK_CODE, BLIND_CODE, TIME_CODE = "rehearse.network", "rehearse.blind", "rehearse.time"
RULES: Dict[str, Rule] = {
    NETWORK_CODE: Rule(ERROR, "{what}", "{remedy}"),
    "rehearse.readonly": Rule(
        ERROR,
        "it would write to {path}, which cannot be changed{how}",
        "write to the job's folder ({job}, the default working folder) or to HOME; or bind a folder: --bind SRC:DST",
    ),
    "rehearse.memory": Rule(ERROR, "{how}", "{remedy}"),
    "rehearse.missing": Rule(ERROR, "it looked for {path}, which does not exist{how}", "{remedy}"),
    "rehearse.program": Rule(ERROR, "it started {program}, which the image does not have", "{remedy}"),
    "rehearse.daemon": Rule(ERROR, "it contacted {what}", "{remedy}"),
    "rehearse.threads": Rule(
        WARNING,
        "{threads} threads ran at once in a rank that has {cpus} CPUs",
        "set the threads of the job, or limit the program's own (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, workers of a "
        "data loader)",
    ),
    "rehearse.ended": Rule(ERROR, "{how}", "read its output: the rehearsal kept the job's log"),
    BLIND_CODE: Rule(
        verdict.MISSING_FACTS,
        "{what}",
        "what it reached for is known only as far as this report shows it",
    ),
    TIME_CODE: Rule(
        WARNING,
        "it ran for {seconds} s here, and its time limit is {limit} s",
        "give the job a longer `time` in bundle.yaml, unless the site's nodes are faster than this machine",
    ),
}
NOT_WHOLE = "the kernel's account of %s is missing or not complete: rehearse it again"
#: The codes of rehearsal findings; each has a page in docs/rules.md.
CODES = tuple(sorted(RULES))

_DAEMON_REMEDY = "no such daemon runs on the nodes: switch it off, or bind its socket with --bind if the site has it"
#: A port of the node itself, used for the rendezvous of ranks in programs for one machine; a path belongs to a socket.
_LOOPBACK_PORT = re.compile(r"^[^/@].* port \d+$")
_LOOPBACK_REMEDY = (
    "each node has a localhost of its own: if ranks meet there, use $MASTER_ADDR and $MASTER_PORT, which every rank "
    "has; if it is a daemon, none runs on the nodes: switch it off"
)
#: The kinds of observations that can cause an exception.
_NETWORK_KINDS = (seen.HOST, seen.ADDRESS, seen.URL)
_LOOKED = (seen.MISSING, seen.ASKED)
_WITH_CAUSE: Sequence[Tuple[Pattern[str], Sequence[str]]] = (
    (
        re.compile(
            r"gaierror|URLError|ConnectionError|ConnectionRefused|NameResolution|MaxRetryError|ConnectTimeout"
            r"|Max retries|Network is unreachable|No route to host|Name or service not known"
            r"|Temporary failure in name resolution"
            r"|LocalEntryNotFound|OfflineMode|URL fetch failure|couldn't connect to|CommError"
            r"|[Cc](annot|ould not) connect"
        ),
        (*_NETWORK_KINDS, seen.DAEMON),
    ),
    (re.compile(r"Read-only file system|\[Errno 30\]|PermissionError|\[Errno 13\]|cannot be opened"), (seen.WRITE,)),
    (
        re.compile(
            r"FileNotFoundError|\[Errno 2\]|cannot open shared object|NotADirectoryError|No such file|not found"
        ),
        (seen.PROGRAM, seen.MISSING, seen.LIBRARY, seen.WRITE),
    ),
)
_OUT_OF_MEMORY = re.compile(r"^(\w+\.)*(MemoryError|_ArrayMemoryError|OutOfMemoryError)\b")
#: Words in the messages of programs that fail because of the network, whatever they raise.
_DOWNLOAD = re.compile(r"download|fetch|connect|offline|internet|network|resolve", re.IGNORECASE)
#: Library folders in the paths of source files; a user's own code is elsewhere.
_LIBRARIES = re.compile(
    r"/(site|dist)-packages/|/lib/python[0-9.]*/|^<frozen |/deployer/(wheels|variant)/|/rehearsal-hook/"
)
#: Files that programs search for but usually do not need.
_USUAL = re.compile(
    r"^/(etc|proc|sys|dev|usr|lib|lib64|opt|bin|sbin|run|var|root|tmp|build|builds|croot|home/conda)(/|$)|/\.[^/]*($|/)|/__pycache__(/|$)|\.(pyc|pth|so|cfg|ini)$"
)
#: Folders of programs, not data; and files that belong to programs, wherever they are.
_OF_PROGRAMS = re.compile(
    r"^/(etc|proc|sys|dev|usr|lib|lib64|bin|sbin|run|var|tmp|deployer/(job|canary|wheels|variant))(/|$)"
    r"|/(lib|(site|dist)-packages)/|\.(py|pyc|pth)$|\.so([.0-9]*)$"
)
#: Folders of the job itself, where missing files may be created later.
_OF_JOB = re.compile(r"^/deployer/(?!data/)")
#: Paths that programs check but usually do not need: files that they create later, and the folders of other services.
_MAY_LACK = re.compile(r"^/(deployer/(?!data/)|content(/|$)|kaggle(/|$))")
#: Files that libraries try but do not need: UCX's settings, the clock of libuuid.
_NEVER = re.compile(r"/ucx\.conf$|^/var/lib/libuuid/")
#: Caches that programs renew if they can: fonts, bytecode.
_USUAL_WRITES = re.compile(r"^/var/cache/|/__pycache__(/|$)|[.]pyc([.][0-9]+)?$")
#: A path in the text of an exception; the second form is PyTorch's.
_QUOTED = re.compile(r"(?<=')[^']{1,300}(?=')|(?<=File )\S{1,300}(?= cannot be opened)")
_OWN_HOSTS = re.compile(r"^(localhost|ip6-localhost|localhost\.localdomain|127\.[0-9.]+|::1|0\.0\.0\.0|::|)$")
#: The host of a URL, without a user and a port.
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[^/?#:@]*)")
#: The most findings of one code to report, because a program may search for thousands of files.
_MOST = 20
#: The most host names and addresses in a record.
_MAX_REQUESTED = 1000
_FRAMES_SHOWN = 6


class JobEnding(NamedTuple):
    """How the job ended.

    Attributes:
        how: DONE, FAILED, LIMIT, MEMORY or STOPPED.
        exit_code: the exit code of the first rank that failed, or 0; None: unknown, or the job was still running.
        last: the last line of its output that explains the end, or None.
        seconds: how long the payload ran.
    """

    how: str
    exit_code: Optional[int] = None
    last: Optional[str] = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Return whether the job itself failed within the rehearsal's time."""
        return self.how in (FAILED, MEMORY, STOPPED)


class Used(NamedTuple):
    """The job's resource usage; None: unknown.

    Attributes:
        seconds_to_first_step: from the start of the payload.
        peak_memory: MiB of the largest rank.
        threads: threads that ran at once in a rank.
        temporary: bytes in HOME, TMPDIR and the job's folder.
        files_opened: the number of different files.
        node_memory: the peak MiB that a node needed, with the files in its /tmp and /dev/shm, if it has less.
    """

    seconds_to_first_step: Optional[float] = None
    peak_memory: Optional[int] = None
    threads: Optional[int] = None
    temporary: Optional[int] = None
    files_opened: Optional[int] = None
    node_memory: Optional[int] = None


class Bounds(NamedTuple):
    """The resources that a rank may use at the site; None: unknown, or not limited.

    Attributes:
        memory: MiB.
        cpus: CPUs of the layout.
        seconds: the time limit of the job.
    """

    memory: Optional[int] = None
    cpus: Optional[int] = None
    seconds: Optional[int] = None


class Reached(NamedTuple):
    """A finding of a rehearsal.

    Attributes:
        finding: code, severity, subject, message and remedy, as for all rules.
        stopped: whether the job ended because of it.
        stack: where the program did it, the innermost frame first; empty if it was not Python.
        prepare: commands for the laptop.
        definition: lines for ``bundle.yaml``.
        processes: how many processes did it.
    """

    finding: Finding
    stopped: bool = False
    stack: Tuple[CodeFrame, ...] = ()
    prepare: Tuple[str, ...] = ()
    definition: Tuple[str, ...] = ()
    processes: int = 1

    def record(self) -> Record:
        """Return the finding as a JSON object: the keys of ``check``'s findings, and those of a rehearsal."""
        place = user_frame(self.stack)
        known = dict(self._asdict(), file=place.file if place else None, line=place.line if place else None)
        return {**known.pop("finding").record(), **known}

    @staticmethod
    def read(fields: Fields) -> "Reached":
        return records.read(Reached, fields, finding=records.read(Finding, fields), stack=_frames(fields))

    def lines(self, stack: bool = False) -> List[str]:
        """Return the finding for people."""
        found = self.finding
        times = " (%d processes)" % self.processes if self.processes > 1 else ""
        shown = [f"{found.severity} {found.code}: {found.subject}: {found.message}{times}"]
        place = user_frame(self.stack)
        if place:
            shown.append(f"  at: {place!s}")
        if stack and len(self.stack) > 1:
            shown += ["  stack, the innermost call first:"]
            shown += [f"    {frame!s}" for frame in self.stack[:_FRAMES_SHOWN]]
            if len(self.stack) > _FRAMES_SHOWN:
                shown.append("    ... and %d more" % (len(self.stack) - _FRAMES_SHOWN))
        shown.append(f"  remedy: {found.remedy}")
        if self.prepare:
            shown += ["  on the laptop, in the folder of the definition:"]
            shown += [f"    {line}" for line in self.prepare]
        if self.definition:
            shown += ["  in bundle.yaml:"]
            shown += [f"    {line}" for line in self.definition]
        return [printable(line) for line in shown]


class Rehearsal(NamedTuple):
    """The outcome of a rehearsal.

    Attributes:
        bundle: NAME:VERSION.
        image: the digest of the image's layer.
        job: the name of the job.
        site: the site whose plan was used.
        date: seconds since the epoch.
        deployer: the version of deployer that rehearsed it.
        nodes: the number of nodes.
        ranks: the number of ranks.
        watched: the observers: PYTHON, NETWORK, FILES.
        ending: how the job ended.
        used: the resources that it used.
        findings: the findings that stopped it, then the others by severity.
        accepted: the codes that the user accepted.
        command: the words of the job's command.
        requested: the host names and addresses that programs requested according to the kernel, or, without NETWORK in
            ``watched``, according to Python's audit hook.
    """

    bundle: str
    image: str
    job: str
    site: str
    date: int
    deployer: str
    nodes: int
    ranks: int
    watched: Tuple[str, ...]
    ending: JobEnding
    used: Used = Used()
    findings: Tuple[Reached, ...] = ()
    accepted: Tuple[str, ...] = ()
    command: Tuple[str, ...] = ()
    requested: Tuple[str, ...] = ()

    @property
    def checked(self) -> verdict.Checked:
        """Return the verdict in the form of ``check``. RUN requires a job that was observed to its end."""
        found = [item.finding for item in self.findings]
        known = {item.code for item in found if item.severity == verdict.MISSING_FACTS}
        if BLIND_CODE not in known and not {NETWORK, FILES}.issubset(self.watched):
            found.append(unseen(NOT_WHOLE % "a node").finding)
        if TIME_CODE not in known and self.ending.how == LIMIT:
            found.append(_still_ran(self.ending).finding)
        return verdict.judged(found, self.accepted)

    @property
    def _verdict(self) -> str:
        """Return the verdict for people: UNKNOWN with the parts that were not observed."""
        checked = self.checked
        reasons = dict.fromkeys(item.message for item in checked.against) if checked.verdict == verdict.UNKNOWN else ()
        return ": ".join(filter(None, (checked.verdict, "; ".join(reasons))))

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command: 3 if an error was found, else 0."""
        return Refused.exit_code if self.checked.verdict == verdict.REFUSE else EXIT_DONE

    def record(self) -> Record:
        return json_records.stamped(SCHEMA, dict(records.plain(self), verdict=self.checked.verdict))

    def lines(self) -> List[str]:
        """Return the report: what stopped the job, what else it tried to access, what it used, and the verdict."""
        who = "{}, job {}{}".format(self.bundle, self.job, f" for {self.site}" if self.site else "")
        shown = [printable(f"{who}: {_ended(self.ending)}")]
        first = [item for item in self.findings if item.stopped]
        rest = [item for item in self.findings if not item.stopped]
        for item in first:
            shown += ["", "What stopped the job:", *item.lines(stack=True)]
        if rest:
            shown += ["", "What it reached for besides:" if first else "What it reached for:"]
            for item in rest:
                shown += item.lines()
        if all(item.finding.code == BLIND_CODE and item.finding.severity == NOTE for item in self.findings):
            shown += ["", "It reached for nothing that the site lacks."]
        shown += ["", *_used(self.used), "watched: %s" % (", ".join(self.watched) or "nothing")]
        return [*shown, printable(f"verdict: {self._verdict}")]


def read(data: bytes, what: str) -> Rehearsal:
    """Parse the record of a rehearsal. Raises UsageError."""
    fields = json_records.loads(data, SCHEMA, what)
    date = fields.number("date")
    if date > seen.MAX_TIME:
        raise fields.error(f"{fields.what}: field 'date' is not a time before the year 3000")
    return records.read(Rehearsal, fields, date=date, command=tuple(fields.words("command")))


def _frames(fields: Fields) -> Tuple[CodeFrame, ...]:
    """Return the stack. Its texts are escaped when they are printed."""
    found = fields.record.get("stack", [])
    if not isinstance(found, list) or not all(seen.is_frame(item) and item[1] >= 0 for item in found):
        raise fields.error(f"{fields.what}: field 'stack' is not a list of file, line and function")
    return tuple(CodeFrame(*item) for item in found)


# ------------------------------------------------------------------------------------------------ the judgement


def user_frame(stack: Sequence[CodeFrame]) -> Optional[CodeFrame]:
    """Return the innermost frame of the program itself, else the outermost frame; None without a stack."""
    own = [frame for frame in stack if not _LIBRARIES.search(frame.file)]
    own.sort(key=lambda frame: frame.file.startswith("<"))  # generated code, such as <attrs generated init>
    # A thread of a library begins in Python's own modules.
    others = [frame for frame in stack if not STANDARD.search(frame.file)] or stack
    return own[0] if own else (others[-1] if others else None)


def judge(
    observed: Observed,
    ending: JobEnding,
    used: Used = Used(),  # noqa: B008 (an immutable record)
    bounds: Bounds = Bounds(),  # noqa: B008
    own: Collection[str] = (),
    job: str = "train",
    had_input: bool = True,
) -> Tuple[Reached, ...]:
    """Return the findings of a rehearsal, beginning with those that stopped the job.

    Args:
        observed: the job's accesses.
        ending: how the job ended.
        own: names and addresses of its own nodes, which do not count as network accesses.
        job: the job's name.
        had_input: whether it may have read data (``is_input``).
    """
    waits = ending.how == LIMIT and used.seconds_to_first_step is None
    judgement = _Judgement(observed, ending, own, job, waits, had_input)
    found = [*judgement.reached(), *_consumed(ending, used, bounds)]
    if ending.how == STOPPED or (ending.failed and not any(item.stopped for item in found)):
        found.append(judgement.ended())
    if ending.how == FAILED and any(map(_ended_by_us, observed.observations)):
        found = [_not_certain(item) if item.stopped and item.finding.code != NETWORK_CODE else item for item in found]
    order = {ERROR: 0, verdict.MISSING_FACTS: 1, WARNING: 2, NOTE: 3}
    found.sort(key=lambda item: (not item.stopped, order[item.finding.severity]))
    return tuple(_limited(found))


def _is_just_before(item: Observation, end: Observation) -> bool:
    """Return whether an exception was raised just after a check for a file: `assert os.path.exists(...)`."""
    if not (item.stack and end.stack):
        return False
    asked, raised = item.stack[0], end.stack[0]
    return (asked.file, asked.function) == (raised.file, raised.function) and 0 <= raised.line - asked.line <= 3


def _ended_by_us(item: Observation) -> bool:
    """Return whether an observation concerns a program that a rehearsal always ends but a site does not."""
    return item.kind == seen.BLIND and bool(item.about.get("ended"))


def _not_certain(item: Reached) -> Reached:
    """Return a finding about a job that may have failed only because the rehearsal ended one of its programs."""
    text = item.finding.message + "; perhaps only because the rehearsal ended a program of it"
    return item._replace(finding=item.finding._replace(severity=verdict.MISSING_FACTS, message=text))


def is_input(path: str) -> bool:
    """Return whether a file that a job opened may be data, not part of a program or output of the job."""
    return not _OF_PROGRAMS.search(path)


def requested(observations: Iterable[Observation], own: Collection[str]) -> Tuple[str, ...]:
    """Return the host names and addresses that programs requested, without those of the job's own nodes."""
    mine = {name.lower() for name in own}
    asked = (item for item in observations if item.kind in _NETWORK_KINDS and not _is_own(item, mine))
    found = sorted({_escaped(_host(item)) for item in asked})
    left = len(found) - _MAX_REQUESTED
    return tuple(found if left <= 0 else [*found[:_MAX_REQUESTED], "and %d more" % left])


def unseen(text: str, severity: str = verdict.MISSING_FACTS) -> Reached:
    """Return the finding about something that this rehearsal could not observe."""
    return Reached(_finding(BLIND_CODE, "the job", severity, what=text))


def _still_ran(ending: JobEnding) -> Reached:
    how = "it still ran when the rehearsal's time was over, after %.0f s: what comes later was not watched"
    remedy = "rehearse it longer (--time), or shorten it by arguments of its own: words after --"
    return Reached(Finding(TIME_CODE, verdict.MISSING_FACTS, "the job", how % ending.seconds, remedy))


#: A host, the place in the program that requested it, and the URL.
_Asked = Tuple[str, Optional[CodeFrame], str]


class _Judgement:
    def __init__(
        self, observed: Observed, ending: JobEnding, own: Collection[str], job: str, waits: bool, had_input: bool
    ) -> None:
        self.ending = ending
        self.had_input = had_input
        self.waits = waits  # it may still try to download
        self.job = job
        self.observed = observed
        mine = {name.lower() for name in own}
        self.observations = [
            item for item in observed.observations if not _is_own(item, mine) and not _NEVER.search(item.what)
        ]
        self.processes = {item.process: item.about for item in observed.observations if item.kind == seen.PROCESS}
        self.uncaught = self._first_uncaught() if ending.failed else None
        self.cause = self._cause()

    def _first_uncaught(self) -> Optional[Observation]:
        """Return the exception that ended the job: the first that ended a process, not only a thread."""
        found = [item for item in self.observations if item.kind == seen.UNCAUGHT]
        ends = [item for item in found if not item.about.get("thread")]
        return next(iter(ends or found), None)

    def _cause(self) -> Optional[Observation]:
        """Return the observation that explains the job's end, or None."""
        end = self.uncaught
        if not self.ending.failed:
            return None
        if end is None:
            return self._last_reach()
        text = end.what + "\n" + end.about.get("after", "")
        before = [item for item in self.observations if item.process == end.process and item.time <= end.time]
        asked = [item for item in before if item.kind == seen.ASKED and _is_just_before(item, end)]
        if asked:
            return asked[-1]
        for pattern, kinds in _WITH_CAUSE:
            if pattern.search(text):
                alike = [item for item in before if item.kind in kinds]
                # A service that the program started may have made the request.
                named = [item for item in self.observations if item.kind in kinds and _is_named(item, text)]
                path = next(iter(_QUOTED.findall(end.what)), "")
                if path and seen.WRITE in kinds:  # a path may be relative, and another observer may have the full one
                    named = [item for item in self.observations if item.kind in kinds and _ends_with(item.what, path)]
                    alike = []
                elif not alike and seen.HOST in kinds:  # a native library in this process made the request
                    pid = self.processes.get(end.process, {}).get("pid")
                    native = [item for item in self.observations if item.kind in kinds and not item.stack]
                    alike = [item for item in native if pid and item.about.get("pid") == pid and item.time <= end.time]
                if named or alike:
                    return max(named or alike, key=lambda item: (_shared(item.stack, end.stack), item.time))
        # Made by the function that raised the exception, or by a function that it called.
        within = [item for item in before if end.stack and _shared(item.stack, end.stack) == len(end.stack)]
        inside = [item for item in within if item.kind in (*_NETWORK_KINDS, seen.WRITE)]
        if inside and (_DOWNLOAD.search(text) or inside[-1].stack[:1] != end.stack[:1]):
            return inside[-1]
        return None

    def _last_reach(self) -> Optional[Observation]:
        """Return why a job without an exception probably ended: programs may exit, or abort MPI, by themselves."""
        kinds = (*_NETWORK_KINDS, seen.WRITE, seen.PROGRAM, seen.DAEMON)
        told = self.ending.last or ""
        reached = [item for item in self.observations if item.kind in (*kinds, seen.MISSING, seen.LIBRARY)]
        named = [item for item in reached if _is_named(item, told)]
        if named:
            return named[-1]
        causes = next((causes for pattern, causes in (*_WITH_CAUSE, (_DOWNLOAD, kinds)) if pattern.search(told)), ())
        return next((item for item in reversed(self.observations) if item.kind in causes), None)

    # ------------------------------------------------------------------------------------------ findings

    def reached(self) -> List[Reached]:
        """Return the findings about the job's accesses, and about what stopped it."""
        found = [*self._network(), *self._others(), *self._blind()]
        if self.uncaught is not None and not any(item.stopped for item in found):
            found.append(self._of_exception(self.uncaught))
        return found

    def _made(
        self, code: str, group: Sequence[Observation], subject: str, usual: str = WARNING, **values: str
    ) -> Reached:
        stopped = any(item is self.cause for item in group)
        made = _finding(code, subject, ERROR if stopped else usual, **values)
        count = len({item.process for item in group if item.stack}) or 1
        return Reached(made, stopped, self._stack(group, stopped), processes=count)

    def _stack(self, group: Sequence[Observation], stopped: bool) -> Tuple[CodeFrame, ...]:
        chosen = self.cause if stopped and self.cause is not None else group[0]
        found = chosen.stack or next((item.stack for item in group if item.stack), ())
        end = self.uncaught.stack if stopped and self.uncaught is not None else ()
        # Libraries download in their own threads, so the exception shows the program's line.
        return end if _is_of_libraries(found) and not _is_of_libraries(end) else found

    def _asked(self) -> Dict[_Asked, List[Observation]]:
        """Return the network observations by the request and its place in the program."""
        groups: Dict[_Asked, List[Observation]] = {}
        hosts: Dict[str, _Asked] = {}
        known: Dict[str, _Asked] = {}
        for item in self.observations:
            if item.kind not in _NETWORK_KINDS:
                continue
            name, place = _host(item), user_frame(item.stack)
            last = hosts.get(item.process)
            key = (name, place, item.what if item.kind == seen.URL else "")
            if item.kind == seen.HOST and last and last[:2] == key[:2]:
                key = last  # for the URL that this process requested just before
            elif item.kind == seen.HOST:
                key = (name, place, item.about.get("url", ""))
            if item.kind == seen.ADDRESS and item.stack and item.process in hosts:
                key = hosts[item.process]  # the host that this process resolved just before
            elif not item.stack:
                key = known.get(name, key)  # the name server observed the same request as Python
            elif item.kind != seen.ADDRESS:
                hosts[item.process] = key
                known.setdefault(name, key)
            groups.setdefault(key, []).append(item)
        return groups

    def _network(self) -> Iterable[Reached]:
        """Yield a finding for each thing that a place in the program requested."""
        groups = self._asked()
        # A library that tries several mirrors in turn wants only one thing.
        wanted: Dict[Tuple[str, Optional[CodeFrame]], Tuple[Offline, List[str], List[Observation]]] = {}
        with_place = {name for name, place, _ in groups if place is not None}
        for (name, place, _), group in groups.items():
            if place is None and name in with_place:  # a native program's request for a host that Python also requested
                continue
            asked = self._wanted(name, group)
            offline = downloads.recognise(asked) or downloads.general(asked)
            _, names, whole = wanted.setdefault((offline.what, place), (offline, [], []))
            if self.cause in group:
                names.insert(0, name)
            elif name not in names:
                names.append(name)
            whole.extend(group)
        for offline, names, group in wanted.values():
            what = f"asked for {offline.what}"
            who = group[0].about.get("program", "")
            if who and not any(item.stack for item in group):
                what = f"{who} {what}"
            if names[1:]:
                what += " (also at {})".format(", ".join(names[1:]))
            made = self._made(NETWORK_CODE, group, names[0] or "an address", what=what, remedy=offline.remedy)
            asks = any(item.about.get("still") for item in group)
            if self.waits and (asks or offline.waits):
                why = "it still asked for that" if asks else "it may wait for that"
                still = f"{made.finding.message}; it had made no step when the time was over: {why}"
                made = made._replace(finding=made.finding._replace(severity=ERROR, message=still))
            yield made._replace(prepare=offline.prepare, definition=offline.definition)

    def _wanted(self, name: str, group: Sequence[Observation]) -> Wanted:
        """Return what the library behind these observations wanted; ``name`` is the host, if it contacted one."""
        about: Dict[str, str] = {}
        for item in group:
            about.update(item.about)
            if item.kind == seen.ADDRESS:
                about["port"] = item.what.rpartition(" ")[2]
        longest = max((item.stack for item in group), key=len)
        url = next((item.what for item in group if item.kind == seen.URL), "")
        url = url or about.get("url", "") or about.get("fullurl", "")
        return Wanted(name, url, about, longest, self.job)

    def _others(self) -> Iterable[Reached]:
        """Yield the findings about files, programs, libraries and daemons."""
        groups = grouped(((item.kind, item.what), item) for item in self.observations)
        for (kind, what), group in groups.items():
            stopped = any(item is self.cause for item in group)
            if kind == seen.WRITE and _USUAL_WRITES.search(what) and not stopped:
                continue
            if kind == seen.WRITE:
                yield self._made("rehearse.readonly", group, what, path=what, how=self._thrown(stopped), job=JOB)
            elif kind == seen.PROGRAM:
                usual = WARNING if self._is_of_program(group) else NOTE  # matplotlib tries fc-list but does not need it
                remedy = remedies.of_program(what)
                yield self._made("rehearse.program", group, what, usual, program=what, remedy=remedy)
            elif kind == seen.DAEMON:
                of_node = _LOOPBACK_PORT.search(what) is not None
                remedy = _LOOPBACK_REMEDY if of_node else _DAEMON_REMEDY
                shown = what if of_node else "the socket " + what
                yield self._made("rehearse.daemon", group, what, what=shown, remedy=remedy)
            elif (kind, what) == (seen.MISSING, "/dev/tty"):
                remedy = "jobs have no terminal: use the program's option for batch jobs"
                yield self._made("rehearse.missing", group, what, NOTE, path="a terminal", how="", remedy=remedy)
            elif (kind, what) == (seen.MISSING, "standard input"):
                values = {"path": "an answer on standard input", "how": "", "remedy": remedies.NO_ANSWERS}
                yield self._made("rehearse.missing", group, what, WARNING, **values)
            elif kind == seen.ASKED and (seen.MISSING, what) in groups and not stopped:
                continue  # it was also opened
            elif (stopped and kind == seen.LIBRARY) or (
                kind in _LOOKED and (stopped or self._is_worth_a_note(what, group))
            ):
                is_data = what.startswith("/") and not (_USUAL.search(what) or _OF_JOB.search(what))
                lacks = is_data and not self.had_input
                how = "; it opened no other data" if lacks and not stopped else self._thrown(stopped)
                values = {"path": what, "how": how, "remedy": _remedy_of(what)}
                yield self._made("rehearse.missing", group, what, WARNING if lacks else NOTE, **values)

    def _is_worth_a_note(self, what: str, group: Sequence[Observation]) -> bool:
        """Return whether a missing file that did not stop the job may interest its user.

        Libraries search for many files that they do not need. For a program that is not Python, a file is of interest
        if the job failed, or if the program succeeded: then an observer reports only files that no image has.
        """
        if _USUAL.search(what) or (group[0].kind == seen.ASKED and _MAY_LACK.search(what)):
            return False
        if self._stack(group, False):
            return self._is_of_program(group)
        return self.ending.failed or group[0].about.get("exit_code") == "0"

    def _is_of_program(self, group: Sequence[Observation]) -> bool:
        """Return whether the program itself or a native program did it, not a library."""
        stack = self._stack(group, False)
        caller = next((frame for frame in stack if not STANDARD.search(frame.file)), None)
        return not stack or (caller is not None and not _LIBRARIES.search(caller.file))

    def _thrown(self, stopped: bool) -> str:
        return ": " + self.uncaught.what if stopped and self.uncaught is not None else ""

    def _blind(self) -> Iterable[Reached]:
        reasons = sorted({item.what for item in self.observations if item.kind == seen.BLIND})
        for reason in reasons:
            group = [item for item in self.observations if (item.kind, item.what) == (seen.BLIND, reason)]
            severity = verdict.MISSING_FACTS if _ended_by_us(group[0]) else NOTE
            yield self._made(BLIND_CODE, group, group[0].about.get("program") or "python", severity, what=reason)
        if self.observed.cut or any(item.kind == seen.MORE for item in self.observations):
            yield unseen("it did more than a rehearsal keeps, so some observations are missing")
        if self.observed.unreadable:
            yield unseen("{} of its observations could not be read".format(counted(self.observed.unreadable, "line")))

    def _of_exception(self, end: Observation) -> Reached:
        """Return the finding about an exception without an observed access that explains it."""
        text = end.what + "\n" + end.about.get("after", "")
        subject = posixpath.basename(end.stack[-1].file) if end.stack else "the job"
        path = next(iter(_QUOTED.findall(end.what)), "")
        ended, how = "it ended with " + end.what, ": " + end.what
        made = _finding("rehearse.ended", subject, ERROR, how=ended)
        known_end = remedies.of_exception(end.what)
        if known_end is not None:
            made = made._replace(remedy=known_end)
        elif _OUT_OF_MEMORY.search(end.what):
            made = _finding("rehearse.memory", subject, ERROR, how=ended, remedy=_MEMORY_REMEDY)
        elif re.search(r"Read-only file system|\[Errno 30\]", text):
            made = _finding("rehearse.readonly", path or subject, ERROR, path=path or "a file", how=how, job=JOB)
        elif re.search(r"^(FileNotFoundError|OSError: .*cannot open shared object)", end.what):
            values = {"path": path or "a file", "how": how, "remedy": _remedy_of(path)}
            made = _finding("rehearse.missing", path or subject, ERROR, **values)
        elif re.search(r"^(ModuleNotFoundError|ImportError)", end.what):
            values = {"path": "the module " + path, "how": how, "remedy": _MODULE_REMEDY}
            made = _finding("rehearse.missing", path or subject, ERROR, **values)
        elif _WITH_CAUSE[0][0].search(text):
            known = downloads.recognise(self._wanted("", [end])) or downloads.general(Wanted("", "", {}, ()))
            made = _finding(NETWORK_CODE, subject, ERROR, what=f"ended with {end.what}", remedy=known.remedy)
            return Reached(made, True, end.stack, known.prepare, known.definition)
        elif _DOWNLOAD.search(text) or "not found" in text:
            # A library may search for files without opening them: torchvision without download=True.
            made = _finding("rehearse.missing", subject, ERROR, path="a download", how=how, remedy=_LATER_REMEDY)
        return Reached(made, True, end.stack)

    def ended(self) -> Reached:
        """Return the finding about a job that was stopped, or failed without an observed reason."""
        code = "" if self.ending.exit_code is None else " with exit code %d" % self.ending.exit_code
        last = self.ending.last or ""
        # The last line of a stopped job is the reason.
        how, before = ("it was stopped", ": ") if self.ending.how == STOPPED else ("it failed", "; last line: ")
        how += code + (before + last if last else "")
        return Reached(_finding("rehearse.ended", "the job", ERROR, how=how), True)


_MEMORY_REMEDY = "use fewer ranks per node, a smaller batch or another partition; `memory` of the job asks for more"
_FILES_IN_MEMORY = (
    "a node needed %d MiB for its processes and the files in /tmp (HOME and TMPDIR) and /dev/shm: more than the job "
    "has there, if the site keeps /tmp in memory"
)
_FILES_REMEDY = "write large files to the job's folder, or bind a folder of a disk: --bind SRC:DST"
_LATER_REMEDY = (
    "it expects what an earlier program downloads: give the job that program's command (`fetch:` in the definition), "
    "and run deployer fetch on the laptop; or put the files in the bundle (`data:` and `links`)"
)
_MODULE_REMEDY = "install the package in the image, or add it to the wheels of the definition"


def _consumed(ending: JobEnding, used: Used, bounds: Bounds) -> Iterable[Reached]:
    """Yield the findings about the resources and the time that the job used."""
    if ending.how == LIMIT:
        yield _still_ran(ending)
    if ending.how in (DONE, LIMIT) and bounds.seconds and ending.seconds > bounds.seconds:
        took = f"{ending.seconds:.0f}"
        yield Reached(_finding(TIME_CODE, "the job", WARNING, seconds=took, limit=str(bounds.seconds)))
    limit = "%d MiB" % bounds.memory if bounds.memory else "the limit"
    if ending.how == MEMORY:
        how = f"the kernel killed it for lack of memory: a rank may use {limit}, its files in /dev/shm included"
        yield Reached(_finding("rehearse.memory", "the job", ERROR, how=how, remedy=_MEMORY_REMEDY), True)
    elif bounds.memory and used.peak_memory and used.peak_memory > bounds.memory:
        how = "a rank used %d MiB, and the site's nodes have %s for it" % (used.peak_memory, limit)
        yield Reached(_finding("rehearse.memory", "the job", ERROR, how=how, remedy=_MEMORY_REMEDY))
    elif used.node_memory:
        how = _FILES_IN_MEMORY % used.node_memory
        yield Reached(_finding("rehearse.memory", "the job", WARNING, how=how, remedy=_FILES_REMEDY))
    # One more is usual, because the thread that waits for the workers also runs at times.
    if bounds.cpus and used.threads and used.threads > bounds.cpus + 1:
        threads, cpus = str(used.threads), str(bounds.cpus)
        yield Reached(_finding("rehearse.threads", "the job", WARNING, threads=threads, cpus=cpus))


def _finding(code: str, subject: str, severity: str, **values: str) -> Finding:
    made = RULES[code].about(code, printable(subject), **{name: _escaped(value) for name, value in values.items()})
    return made._replace(severity=severity)


def _escaped(text: str) -> str:
    return printable(" ".join(text.split()))


def _limited(found: Sequence[Reached]) -> Iterable[Reached]:
    """Yield at most ``_MOST`` findings of each code, and a note about the others."""
    counts: Dict[str, int] = collections.Counter()
    for item in found:
        counts[item.finding.code] += 1
        if counts[item.finding.code] <= _MOST or item.stopped:
            yield item
    for code, count in sorted(counts.items()):
        if count > _MOST:
            yield unseen("not shown: {} of {}".format(counted(count - _MOST, "finding"), code), NOTE)


def _is_own(item: Observation, own: Collection[str]) -> bool:
    """Return whether an observation concerns the job's own nodes, or nothing outside this machine."""
    if item.kind not in _NETWORK_KINDS:
        return False
    name = _host(item).lower()
    return name in own or _OWN_HOSTS.match(name) is not None


def _host(item: Observation) -> str:
    """Return the host name or address of a network observation."""
    if item.kind == seen.ADDRESS:
        return item.what.partition(" ")[0]
    if item.kind == seen.HOST:
        return item.what
    found = _AUTHORITY.match(item.what)
    return found.group(1).lower() if found else ""


def _is_named(item: Observation, text: str) -> bool:
    """Return whether a text contains the accessed thing (for the network, the host) as a separate word."""
    what = _host(item) if item.kind in _NETWORK_KINDS else item.what
    return bool(what) and re.search(rf"(?<![\w.-]){re.escape(what)}(?![\w-])", text) is not None


def _ends_with(whole: str, path: str) -> bool:
    """Return whether ``whole`` is ``path`` or, if that is relative, ends with it."""
    plain = posixpath.normpath(path)
    return whole in (path, plain) or whole.endswith("/" + plain.lstrip("./"))


def _is_of_libraries(stack: Sequence[CodeFrame]) -> bool:
    return all(_LIBRARIES.search(frame.file) for frame in stack)


def _shared(stack: Sequence[CodeFrame], other: Sequence[CodeFrame]) -> int:
    """Return how many outermost frames two stacks share."""
    same = ((one.file, one.function) == (two.file, two.function) for one, two in zip(stack[::-1], other[::-1]))
    return sum(itertools.takewhile(bool, same))


def _remedy_of(path: str) -> str:
    if path.startswith(DATA + "/"):
        return "add the file to the data folder of the definition, or correct the path"
    if path.startswith("/") and not path.startswith(JOB + "/"):
        return "put it in the image, the app or the data of the bundle, or bind it with --bind"
    return f"jobs start in {JOB}: use the file's path below /deployer/app or /deployer/data, or set `workdir`"


def _used(used: Used) -> List[str]:
    """Return the job's resource usage for people, without unknown values."""
    texts = (
        ("first step after", used.seconds_to_first_step, "%.1f s"),
        ("peak memory per rank", used.peak_memory, "%d MiB"),
        ("threads per rank", used.threads, "%d"),
        ("temporary space", used.temporary, "%d bytes"),
        ("files opened", used.files_opened, "%d"),
    )
    known = [f"{name} {form % value}" for name, value, form in texts if value is not None]
    return ["used: " + ", ".join(known)] if known else []


def _ended(ending: JobEnding) -> str:
    texts = {
        DONE: "it ended without an error after %.1f s",
        FAILED: "it failed after %.1f s",
        LIMIT: "it still ran when the time of the rehearsal was over, after %.1f s",
        MEMORY: "the kernel killed it for lack of memory after %.1f s",
        STOPPED: "it was stopped after %.1f s",
    }
    return texts.get(ending.how, "it ended after %.1f s") % ending.seconds
