"""What a job knows of its nodes while some have not answered, for its log, `status` and `run --wait`.

The judge of job.sh looks at the records in the job's folder each second, until the step ends. It tells which nodes are
wrong already, and which have not answered long after the others: Slurm, for example, waits 20 seconds for a node whose
slurmd hangs. This is a notice: the step goes on, and its end is judged as always.
"""

import os
import select
import time
from contextlib import suppress
from typing import IO, Iterator, Set

from deployer.contract.base.errors import DeployerError
from deployer.contract.base.text import counted
from deployer.site.jobs import result
from deployer.site.proof import nodes
from deployer.site.proof.result import already_wrong
from deployer.system import files, terminal

#: Seconds between two looks.
_LOOK = 1.0
#: Missing nodes are listed after this many seconds without an answer, or after as many as all the others took if that
#: is longer. In the first step, these count from the first answer: before it, the script loads modules.
_QUIET = 3.0


def lines(folder: str, stream: IO[str]) -> Iterator[str]:
    """Yield the lines of a stream, one for each step of the job in ``folder``; look at the nodes meanwhile."""
    watch = Watch(folder)
    while True:
        while not select.select([stream], [], [], _LOOK if watch.waits else None)[0]:
            with suppress(DeployerError):  # it only helps
                watch.look()
        watch.begin(result.ROOT_SUFFIX)  # nodes that stage an image write what their containers show
        line = stream.readline()
        if not line:
            return
        yield line


class Watch:
    """The answers of the nodes of the job in ``folder``, whose first step begins now."""

    def __init__(self, folder: str) -> None:
        self._hosts, self._notice = os.path.join(folder, result.HOSTS_FOLDER), os.path.join(folder, result.NOTICE)
        self._launch = result.launch(folder)
        self._told: Set[str] = set()
        self.begin(".json")

    def begin(self, suffix: str) -> None:
        """Begin with a step, in which each node writes a file with this suffix: first its facts."""
        with suppress(FileNotFoundError):
            os.unlink(self._notice)
        self._suffix, self._count, self._seen = suffix, 0, (0, False)
        self._begun = self._last = time.monotonic()

    @property
    def waits(self) -> bool:
        """Return whether not all nodes have answered."""
        return self._count < self._launch.nodes > 1

    def look(self) -> None:
        """Tell what is new."""
        names, now = files.names(self._hosts), time.monotonic()
        count = sum(name.endswith(self._suffix) for name in names)
        if count != self._count:
            if self._count == 0 and self._suffix != result.ROOT_SUFFIX:
                self._begun = now
            self._count, self._last = count, now
        late = count > 0 and now - self._last >= max(_QUIET, self._last - self._begun)
        if self.waits and (len(names), late) != self._seen:  # otherwise the step ends now
            self._seen = (len(names), late)
            lines = list(self._lines(late))
            if lines:
                terminal.tell(*("deployer: " + line for line in lines if line not in self._told))
                self._told.update(lines)
                files.write_text(self._notice, "; ".join(lines))

    def _lines(self, late: bool) -> Iterator[str]:
        known = result.of_hosts(result.texts(self._hosts))
        for item in already_wrong(self._launch, known):
            yield str(item)
        if late:
            there = {node.host for node in known.hosts}
            stages = self._suffix == result.ROOT_SUFFIX
            absent = there - set(known.roots) if stages else result.absent(self._launch, there)
            shown = nodes.shown(absent) or counted(self._launch.nodes - self._count, "node")
            yield f"still waiting for {shown}: {self._count} nodes answered within {self._last - self._begun:.0f} s"
