"""Looks from outside at what a payload's processes have mapped: a process of this machine, which sees all of a lab's.

    python -m tests.matrix.watch NODE=NET ...       ends when its stdin does, and prints what it saw as JSON

A node is told by its network namespace, which containers share. The payload's processes are those below the product's
``rank``, which starts them; nothing that the product says of them is looked at.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.lab import Lab

#: Seconds between two looks: MPI_Init takes some 100 ms.
_PAUSE = 0.02
#: Files that tell of an MPI.
_WORD = re.compile(r"/libmpi|/libmpich|/libopen-(pal|rte)|/libfabric|-fi\.so|/libucp")
_REPOSITORY = Path(__file__).resolve().parents[2]


class Watched(NamedTuple):
    """A process of the payload: its node, its program, and the files that it had mapped, with their inodes."""

    host: str
    program: str
    mapped: list[tuple[str, int]]


class Watch:
    """What runs beside a job. ``ended`` has what was seen."""

    def __init__(self, lab: Lab, nodes: Iterable[str]) -> None:
        named = [f"{node}={_network(lab.holder(node))}" for node in nodes]
        self._argv = [sys.executable, "-s", "-m", "tests.matrix.watch", *named]
        self.seen: list[Watched] = []

    def __enter__(self) -> Watch:
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_REPOSITORY, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        out, _ = self._process.communicate(timeout=30)
        if self._process.returncode != 0:
            raise RuntimeError(f"the watcher ended with {self._process.returncode}")
        self.seen = [
            Watched(host, program, [(path, inode) for path, inode in maps]) for host, program, maps in json.loads(out)
        ]


def _network(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


class PayloadProcesses:
    """The processes of payloads on nodes, told by their network namespaces. ``found`` has what was seen of each."""

    def __init__(self, nodes: dict[str, str]) -> None:
        self._nodes = nodes
        #: Processes of payloads, and all others: what a process is below of is known when it is born.
        self._payload: set[str] = set()
        self._others: set[str] = set()
        self.found: dict[str, tuple[str, str, dict[tuple[str, int], None]]] = {}

    def look(self) -> None:
        there = {name for name in os.listdir("/proc") if name.isdigit()}
        self._others &= there
        self._payload &= there
        for pid in there - self._others:
            with suppress(OSError):
                self._look_at(pid)

    def _look_at(self, pid: str) -> None:
        host = self._nodes.get(_network(pid), "")
        if pid not in self._payload:
            (self._payload if host and self._is_payload(pid) else self._others).add(pid)
        if pid not in self._payload:
            return
        mapped = list(_mapped(pid))
        program = os.readlink(f"/proc/{pid}/exe")
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        entry = self.found.setdefault(f"{pid}-{start}-{program}", (host, program, {}))
        entry[2].update(dict.fromkeys(mapped))

    def _is_payload(self, pid: str) -> bool:
        """Return whether a process is below one that is the product's ``rank``."""
        while pid not in ("0", "1"):
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"deployer.pyz") for word in words[:-1]) and b"rank" in words:
                return True
        return False


def _mapped(pid: str) -> Iterator[tuple[str, int]]:
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6 and _WORD.search(fields[5]):
                yield fields[5].strip(), int(fields[4])


def main(words: list[str]) -> None:
    """Look until the end of stdin."""
    seen = PayloadProcesses({network: node for node, _, network in (word.partition("=") for word in words)})
    while not select.select([sys.stdin], [], [], _PAUSE)[0]:
        seen.look()
    found: list[Any] = [[host, program, list(mapped)] for host, program, mapped in seen.found.values()]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
