"""Find the cause of a job's end in its log, with one rule for all steps. Pure.

The log contains the output and errors of all ranks, with messages from the launcher and the batch system. Buffered
output may follow an error, and the end of one rank makes others fail. Therefore the most specific kind of line wins,
and within a kind the earliest line. The order is: a message from the loader or MPI, the exception that ended the first
rank, an error among the last lines. Lines that launchers add, and consequences of another rank's end, count only if the
log has nothing else.
"""

import re
from typing import List, Mapping, NamedTuple, Optional, Pattern, Sequence, Tuple

from deployer.contract.base.text import printable
from deployer.contract.rules.findings import Finding, finding

#: The beginning of the error line of deployer's own steps, and of a rank that cannot start its program.
_OURS = "deployer: error: "
#: The number of characters of a line that are shown.
_WIDTH = 300


class End(NamedTuple):
    """A job's end for which the batch system gives the reason.

    Attributes:
        why: the reason.
        remedy: what to do.
        line: Slurm's wording in the job's log.
    """

    why: str
    remedy: str
    line: Pattern[str]


_AGAIN = "run it again, from its last checkpoint"
#: The end for a node that is lost while the script continues: Slurm's state, and srun's messages, with the node.
NODE_FAIL, _NODE = "NODE_FAIL", "NODE"
_LOST_NODE = re.compile(r"(?:Node failure on|Task launch for \S+ failed on node) (?P<node>[\w.-]+)")
_MEMORY = "use fewer ranks per node, a smaller batch, or more nodes; --memory MIB asks for more memory per rank"
#: The batch systems' states that explain why a job ended, the most specific line first. Slurm's messages are those of
#: version 17 and later: from slurmstepd, for a control group's limit and its own polling, and from srun.
ENDS: Mapping[str, End] = {
    "OUT_OF_MEMORY": End(
        "the kernel killed it for lack of memory",
        _MEMORY,
        re.compile(
            r"^(slurmstepd\S*|srun): error: .*"
            r"(oom[-_ ]kill|out.of.memory|exceeded (job |step )?(virtual )?memory limit|memory limit at some point)",
            re.IGNORECASE,
        ),
    ),
    NODE_FAIL: End(
        "a node of it died or does not answer properly",
        _AGAIN + f", without the node (--directive=--exclude={_NODE}); `sinfo -R` may show why: slurmd, munge, clock",
        re.compile(rf"^srun: error: ({_LOST_NODE.pattern})|DUE TO NODE FAILURE"),
    ),
    "BOOT_FAIL": End("a node did not start", "run it again; `sinfo -R` shows why", re.compile("DUE TO BOOT FAILURE")),
    "PREEMPTED": End("another job took its nodes", _AGAIN, re.compile("DUE TO PREEMPTION")),
    "DEADLINE": End("its deadline passed", "run it again", re.compile("DUE TO DEADLINE")),
    "TIMEOUT": End("it reached its time limit", "set a longer one (--time)", re.compile("DUE TO TIME LIMIT")),
    "CANCELLED": End(
        "its owner or the site cancelled it",
        "run it again, unless that was intended",
        re.compile(r"^slurmstepd\S*: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*"),
    ),
}

#: Messages that launchers, torchrun and this tool print when a rank fails; and lines without a reason.
_OTHERS = re.compile(
    r"^(srun: |slurmstepd\S*: |deployer: (?!error: )|hint: |=+$|=   |\[(mpiexec|proxy)[:@]|-{20,}$|mpirun |prterun "
    r"|mpiexec|Primary job  ?terminated|Process name: |Exit code: |a non-zero exit code"
    r"|An MPI communication peer process|Abort\(\d+\) on node \d+ \(rank \d+ in comm "
    r"|MPI_ABORT was invoked on rank |with errorcode -?\d+\.$"
    r"|NOTE: invoking MPI_ABORT causes |You may or may not see output from |exactly when Open MPI kills them\.)"
    r"|(^|: )Command exited with non-zero status"
    r"|^[EWI]\d{4} \S+ \d+ torch/distributed/|\bChildFailedError\b|^(Failures|Root Cause \(.*\)|\[\d+\]):$| FAILED$"
    r"|^(time|host|rank|exitcode|error_file|traceback) +: "
    r"|^@ +0x[0-9a-f]+ |^\*\*\* Check failure stack trace: \*\*\*$|^RPC: /"  # of XLA's own logger, after its message
)
#: Messages that count if there is nothing else; the earliest wins.
_ADDED = re.compile(
    r"^Abort\(|^MPI_ABORT was invoked|^(srun|slurmstepd\S*): (error|fatal): (?!\S+: tasks? \d|\*\*\* JOB )",
    re.IGNORECASE,
)
#: The lines of a Python traceback except its last: the position, the source, and the marks below it.
_TRACEBACK = re.compile(r"(\[rank\d+\]: *)?Traceback \(most recent call last\):$")
_WHERE = re.compile(r'(\[rank\d+\]: *)? +File "[^"]+", line \d+')
_SOURCE = re.compile(r"(\[rank\d+\]: *)? {4}")
#: The exception that Python prints when it ends; PyTorch puts the rank before it.
_EXCEPTION = re.compile(r"^(\[rank\d+\]: )?(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Failure)(: |:?$)")
#: The text that Python prints between an exception and the one that replaced it.
_REPLACED = re.compile(
    r"^(During handling of the above exception, another|The above exception was the direct cause of the following)"
)
_LOST = "a Python traceback whose last lines are lost: the launcher ended the ranks before they were printed"
#: The messages of Gloo and NCCL in other ranks after one rank has ended.
_FOLLOWS = re.compile(r"Connection (closed|reset) by peer|remote process exited or there was a network error")
#: Messages of the loader and of MPI libraries about a program's end. Other ranks or a launcher may print more after it.
_LOADER_OR_MPI = re.compile(
    r"error while loading shared libraries: |symbol lookup error: |: version [`'][^']+' not found"
    r"|^Fatal error in \w*Init|^Abort\(\d+\).*: Fatal error in |An error occurred in MPI_Init|MPI_Init\w* failed"
    r"|OMPI was not built with SLURM"
)
#: The number of last lines in which an error may have any wording.
_NEAR = 5
_ERROR = re.compile(
    r"\b([A-Za-z]*error(?! *[=:]? *\d*\.\d)|fatal|failed|failure|cannot|can't|could not|couldn't|unable to"
    r"|abort(ed|ing)?|exception|panic(ked)?|segmentation fault|killed|no such|not found|denied|read-only|invalid"
    r"|undefined symbol|no space left|quota exceeded|temporarily unavailable)\b",
    re.IGNORECASE,
)

#: The findings about a line of the payload. For the network: the wording of libc, curl, wget, Python, requests, Hugging
#: Face's hub and Java.
_CAUSES = (
    ("payload.read-only", re.compile(r"Read-only file system|\bEROFS\b|\berrno = 30\b", re.IGNORECASE)),
    ("payload.no-network", re.compile(
        r"Name or service not known|Temporary failure in name resolution|Could not resolve (host|proxy)"
        r"|unable to resolve host|getaddrinfo failed|NameResolutionError|No address associated with hostname"
        r"|Name does not resolve|nodename nor servname|UnknownHostException|Network is unreachable"
        r"|couldn't connect to 'https?:|LocalEntryNotFoundError|Max retries exceeded with url",
        re.IGNORECASE,
    )),
)  # fmt: skip
#: The findings about a runtime that does not start a container, by its message; the last one applies to all others.
_RUNTIMES = (
    ("runtime.namespaces", re.compile("namespaces")),
    ("runtime.space", re.compile("No space left on device|Disk quota exceeded")),
    ("runtime.start", re.compile("")),
)


class Told(NamedTuple):
    """What the end of a log shows.

    Attributes:
        error: the line that best explains why the job ended, or None.
        last: that line, else the last line; None if only the launcher printed anything.
        added: what the launcher or the batch system added about the end; None if nothing.
        causes: codes of findings, each with the last line that shows it.
        ends: the lines in which Slurm reports the reason, by state.
    """

    error: Optional[str] = None
    last: Optional[str] = None
    added: Optional[str] = None
    causes: Tuple[Tuple[str, str], ...] = ()
    ends: Mapping[str, str] = {}

    @property
    def reason(self) -> Optional[str]:
        """The most specific line about any step except the payload, or None."""
        return self.error or self.added


def told(text: str) -> Told:
    """Return what the end of a log shows; ``text`` may begin within a line and contain anything."""
    whole = re.split(r"[\r\n]+", text)
    plain = [line.strip() for line in whole]
    ends = {state: line for state, end in ENDS.items() for line in list(filter(end.line.search, plain))[:1]}
    before = min(map(plain.index, ends.values()), default=len(plain))  # whatever follows such a line is its consequence
    first = next(filter(_LOADER_OR_MPI.search, plain[:before]), None)
    lines, cut = _without_tracebacks(whole[:before])
    lines = [line for line in lines if line and not _OTHERS.search(line)]
    causing = [line for line in lines if not _FOLLOWS.search(line)]
    error = first or _error(causing) or (_LOST if cut else None) or _error(lines)
    last = error or (lines[-1] if lines else None)
    return Told(
        error=error and _shown(error),
        last=last and _shown(last),
        added=next(map(_shown, filter(_ADDED.search, plain)), None),
        causes=tuple((code, _shown(line)) for code, part in _CAUSES for line in list(filter(part.search, lines))[-1:]),
        ends={state: _shown(line) for state, line in ends.items()},
    )


def ended(subject: str, state: str, log: Told) -> Finding:
    """Return the finding about an end that the batch system explains."""
    end, line = ENDS[state], log.ends.get(state)
    lost = _LOST_NODE.search(line or "")
    remedy = end.remedy.replace(_NODE, lost.group("node")) if lost else end.remedy
    return finding("job.ended", subject, why=end.why + (": " + line if line else ""), remedy=remedy)


def of_runtime(message: str) -> str:
    """Return the code for what a runtime printed instead of the content of a container."""
    return next(code for code, pattern in _RUNTIMES if pattern.search(message))


def _without_tracebacks(whole: Sequence[str]) -> Tuple[List[str], bool]:
    """Return stripped lines, of each traceback only the last, and whether a traceback lacks its exception."""
    lines, cut, source = [], False, False
    for line in whole:
        where = _WHERE.match(line) is not None
        if _TRACEBACK.match(line):
            cut = True
        elif not (where or (source and _SOURCE.match(line))):
            lines.append(line.strip())
            cut = cut and not _EXCEPTION.search(line)
        source = where or (source and _SOURCE.match(line) is not None)
    return lines, cut


def _error(lines: Sequence[str]) -> Optional[str]:
    """Return an error among the last lines, else the first exception that ended a rank, or None."""
    exception = _exception(lines)
    last_lines = [line for line in lines if not _REPLACED.search(line)][-_NEAR:]
    near = next(filter(_ERROR.search, reversed(last_lines)), None)
    return exception if near is None or _EXCEPTION.search(near) else near


def _exception(lines: Sequence[str]) -> Optional[str]:
    """Return the first exception of the last uninterrupted series of exceptions.

    Earlier ones may have been handled, and an exception that another one replaced has not ended the program.
    """
    first, replaced = None, False
    for line in reversed(lines):
        if _EXCEPTION.search(line):
            first = first if replaced and first else line
            replaced = False
        elif _REPLACED.search(line):
            replaced = True
        elif first is not None:
            break
    return first


def _shown(line: str) -> str:
    """Return a line for a terminal: without control characters, and cut to a readable length."""
    whole = printable(line[len(_OURS) :] if line.startswith(_OURS) else line)
    return whole if len(whole) <= _WIDTH else whole[: _WIDTH - 3] + "..."
