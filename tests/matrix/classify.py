"""What was seen, in words, and whether the verdict said it. Pure: judged by the program's words, not the product's."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

from deployer.contract.rules.verdict import REFUSE, RUN, UNKNOWN, WARN
from tests.matrix.app import App
from tests.matrix.run import Seen

RUNS, FAILS, WRONG, HANGS = "runs", "fails", "silently wrong", "hangs"
RANKS = 2

_LIBMPI = re.compile(r"^libmpi(ch|_abi)?\.so")

#: Lines of a log that say why, the first that fits.
_REASONS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(error while loading shared libraries: .*)",
        r"(\S+: version `[^']+' not found.*)",
        r"(symbol lookup error: .*)",
        r"((?:ImportError|OSError|RuntimeError|ModuleNotFoundError|ValueError): .*)",
        r"(.*built with SLURM's PMI support.*)",
        r"(ch-run\[\d+\]: error: .*)",
        r"(FATAL:   .*)",
        r"(Error: (?:crun|runc|OCI|creating|mounting|statfs|invalid).*)",
        r"(deployer: error: .*)",
        r"(.*(?:SIGSEGV|Abort\(|MPI_ERR|Fatal error|Assertion failed|PMI_Init|double free|corrupted).*)",
        r"(srun: error: \w+: tasks? .*)",
    )
)

#: Which way of failing a code speaks of, as a pattern of class and reason; any other code: that it does not run.
_MEANT = {
    "link.missing": r"fails: .*cannot open shared object file",
    "link.version": r"fails: .*version `",
    "mpi.escape": r"silently wrong: (another library|no MPI library|worlds of)|fails|hangs",
    "mpi.symbols": r"fails: .*undefined symbol",
}


#: A runtime that did not start the container.
_RUNTIME = re.compile(r"udocker: |^ch-run\[|^FATAL: |^Error: ")


class Outcome(NamedTuple):
    """A class, and the reason in a line."""

    kind: str
    reason: str

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


def outcome(seen: Seen, app: App | None = None) -> Outcome:
    """Return what happened to a program of ours, or to an application of others."""
    return _of_app(seen, app) if app else _of_ours(seen)


def _of_app(seen: Seen, app: App) -> Outcome:
    """Judge by what the application prints, its exit code, and what its processes had mapped."""
    right = re.search(app.right, seen.log, re.MULTILINE)
    worlds = [found[1] if found.re.groups else "" for found in re.finditer(app.world, seen.log, re.MULTILINE)]
    if seen.timed_out:
        return Outcome(HANGS, "after its result" if right else "before its result")
    if seen.exit_code != 0:
        return Outcome(FAILS, _why(seen.log))
    sizes = sorted(set(worlds) - {str(RANKS)}) if any(worlds) else ["1"] * (len(worlds) > 1)
    if sizes:
        return Outcome(WRONG, f"worlds of {', '.join(sizes)}")
    if not (right and worlds):
        return Outcome(WRONG, f"its result is not there: {_why(seen.log)}"[:150])
    libraries = {host: set[tuple[str, int]]() for host, _, _ in seen.watched}
    for host, _, mapped in seen.watched:
        libraries[host].update(each for each in mapped if _LIBMPI.match(posixpath.basename(each[0])))
    others = {path for found in libraries.values() for path, inode in found if inode not in seen.inodes}
    if others:
        return Outcome(WRONG, f"another library: {', '.join(sorted(others))}")
    if sum(map(bool, libraries.values())) != RANKS:
        nodes = ", ".join(sorted(host for host, found in libraries.items() if found))
        return Outcome(WRONG, f"no MPI library was seen but on {nodes}" if nodes else "no MPI library was seen")
    return Outcome(RUNS, "")


def _of_ours(seen: Seen) -> Outcome:
    if seen.timed_out:
        return Outcome(HANGS, "after the sum" if len(seen.ranks) == RANKS else "before the sum")
    if seen.exit_code != 0:
        return Outcome(FAILS, _why(seen.log))
    if len(seen.ranks) != RANKS:
        return Outcome(FAILS, f"{len(seen.ranks)} of {RANKS} ranks said anything")
    if {rank["size"] for rank in seen.ranks} != {RANKS}:
        return Outcome(WRONG, f"worlds of {', '.join(sorted({str(rank['size']) for rank in seen.ranks}))}")
    if any(rank["wrong"] for rank in seen.ranks):
        return Outcome(WRONG, "the sum is not right")
    if len({rank["host"] for rank in seen.ranks}) != RANKS:
        return Outcome(WRONG, "all ranks on one node")
    others = {path for rank in seen.ranks for path, inode in _libraries(rank) if inode not in seen.inodes}
    if others:
        return Outcome(WRONG, f"another library: {', '.join(sorted(others))}")
    if not all(_libraries(rank) for rank in seen.ranks):
        return Outcome(WRONG, "no MPI library was seen")
    return Outcome(RUNS, "")


def _libraries(rank: dict[str, list[tuple[str, int]]]) -> list[tuple[str, int]]:
    return [(path, inode) for path, inode in rank["mapped"] if _LIBMPI.match(posixpath.basename(path))]


def _why(log: str) -> str:
    for pattern in _REASONS:
        found = pattern.search(log)
        if found:
            return " ".join(found[1].split())[:150]
    ours = ("srun:", "matrix", "hint:", "deployer: more:")
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(ours)]
    return " ".join(lines[-1].split())[:150] if lines else "it said nothing"


RIGHT, FALSE_RUN, FALSE_REFUSE, FALSE_WARN, OTHER_REASON, UNDECIDED = (
    "right", "FALSE RUN", "FALSE REFUSE", "FALSE WARN", "OTHER REASON", "undecided",
)  # fmt: skip


def judge(verdict: str, codes: Sequence[str], seen: Outcome) -> str:
    """Return whether a verdict was right about what was seen."""
    if verdict == RUN:
        return RIGHT if seen.kind == RUNS else FALSE_RUN
    if verdict == REFUSE:
        if seen.kind == RUNS:
            return FALSE_REFUSE
        if _RUNTIME.search(seen.reason) and not any(code.startswith(("runtime.", "kernel.")) for code in codes):
            return OTHER_REASON  # the container did not start: nothing was seen of what the codes say
        meant = any(re.search(_MEANT.get(code, ""), seen.text) for code in codes)
        return RIGHT if meant else OTHER_REASON
    if verdict == WARN:
        return RIGHT if seen.kind == RUNS else FALSE_WARN
    if verdict == UNKNOWN:
        return UNDECIDED
    raise ValueError(f"no such verdict: {verdict}")
