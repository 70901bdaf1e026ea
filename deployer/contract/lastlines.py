"""What the last lines of a payload's output show about its end. Pure.

The log has the output and the errors of all ranks, and messages of the launcher. Buffered output may follow an error.
So an error among the last lines is preferred, then an exception anywhere in the end of the log. The first message of
the loader or of MPI_Init precedes both: if one rank ends so, the launcher ends the others.
"""

import re
from typing import List, NamedTuple, Optional, Pattern, Sequence, Tuple

from deployer.contract import memory
from deployer.contract.findings import Finding, finding
from deployer.contract.text import printable

#: The number of characters of a line that are shown.
_WIDTH = 300

#: Messages of launchers, torchrun among them, and of this tool when a rank fails; and lines without a reason.
_OTHERS = re.compile(
    r"^(srun: |slurmstepd(-\S+)?: |deployer: |hint: |=+$|=   |\[(mpiexec|proxy)[:@]|-{20,}$|mpirun |prterun |mpiexec"
    r"|Primary job  ?terminated|Process name: |Exit code: |a non-zero exit code|An MPI communication peer process)"
    r"|(^|: )Command exited with non-zero status"
    r"|^[EWI]\d{4} \S+ \d+ torch/distributed/|\bChildFailedError\b|^(Failures|Root Cause \(.*\)|\[\d+\]):$| FAILED$"
    r"|^(time|host|rank|exitcode|error_file|traceback) +: |^Traceback \(most recent call last\):$"
    r"|^@ +0x[0-9a-f]+ |^\*\*\* Check failure stack trace: \*\*\*$|^RPC: /"  # of XLA's own logger, after its message
)
#: How Python prints an exception that ends it; PyTorch puts the rank before it.
_EXCEPTION = re.compile(r"^(\[rank\d+\]: )?(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Failure)(: |$)")
#: How Gloo and NCCL word in the other ranks that one has ended.
_FOLLOWS = re.compile(r"Connection (closed|reset) by peer|remote process exited or there was a network error")
#: How the loader and MPI libraries word why a program ended: other ranks, or a launcher, may print more after it.
_LOADER_OR_MPI = re.compile(
    r"error while loading shared libraries: |symbol lookup error: |: version [`'][^']+' not found"
    r"|^Fatal error in \w*Init|^Abort\(\d+\).*: Fatal error in |An error occurred in MPI_Init|MPI_Init\w* failed"
    r"|OMPI was not built with SLURM"
)
#: The number of last lines in which an error may have any wording.
_NEAR = 5
_ERROR = re.compile(
    r"\b(\w*error|fatal|failed|failure|cannot|can't|could not|couldn't|unable to|abort(ed|ing)?|exception|panic(ked)?"
    r"|segmentation fault|killed|no such|not found|denied|read-only|invalid|undefined symbol|traceback)\b",
    re.IGNORECASE,
)

_READ_ONLY = re.compile(r"Read-only file system|\bEROFS\b|\berrno = 30\b", re.IGNORECASE)
#: The wording of libc, curl, wget, Python, requests, Hugging Face's hub and Java.
_NO_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|Could not resolve (host|proxy)"
    r"|unable to resolve host|getaddrinfo failed|NameResolutionError|No address associated with hostname"
    r"|Name does not resolve|nodename nor servname|UnknownHostException|Network is unreachable"
    r"|couldn't connect to 'https?:|LocalEntryNotFoundError|Max retries exceeded with url",
    re.IGNORECASE,
)
_CAUSES = (("payload.read-only", _READ_ONLY), ("payload.no-network", _NO_NETWORK))


class Told(NamedTuple):
    """What the end of a log shows.

    Attributes:
        last: the line that best explains why the payload ended, or None.
        causes: codes of findings, each with the last line that shows it.
        memory: the line in which Slurm reports a lack of memory, or None.
    """

    last: Optional[str] = None
    causes: Tuple[Tuple[str, str], ...] = ()
    memory: Optional[str] = None

    def findings(self, subject: str) -> List[Finding]:
        """Return a finding for each cause."""
        return [finding(code, subject, line=line) for code, line in self.causes]


def told(text: str) -> Told:
    """Return what the end of a log shows; ``text`` may begin within a line and contain anything."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    said = memory.slurms_words(lines)
    said = None if said is None else _shown(said)
    lines = [line for line in lines if line and not _OTHERS.search(line)]
    if not lines:
        return Told(memory=said)
    causes = []
    for code, pattern in _CAUSES:
        shown = _last(lines, pattern)
        if shown is not None:
            causes.append((code, _shown(shown)))
    first = next((line for line in lines if _LOADER_OR_MPI.search(line)), None)
    causing = [line for line in lines if not _FOLLOWS.search(line)]
    best = first or _error(causing) or _error(lines) or lines[-1]
    return Told(_shown(best), tuple(causes), said)


def _error(lines: Sequence[str]) -> Optional[str]:
    """Return an error among the last lines, else the last exception, or None."""
    return _last(lines[-_NEAR:], _ERROR) or _last(lines, _EXCEPTION)


def _last(lines: Sequence[str], pattern: Pattern[str]) -> Optional[str]:
    return next((line for line in reversed(lines) if pattern.search(line)), None)


def _shown(line: str) -> str:
    """Return a line for a terminal: without control characters, and not too long to read."""
    whole = printable(line)
    return whole if len(whole) <= _WIDTH else whole[: _WIDTH - 3] + "..."
