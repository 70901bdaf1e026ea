"""The simulated site, a separate program that reads an order from standard input.

It makes a user namespace that contains only the user. In it are the machines: the one on which job.sh runs, and the
nodes. A bridge joins them, and nothing connects them to the outside. Then job.sh runs as if a batch system started it.
All processes are in one pid namespace. When its first process ends for any reason, the kernel ends all others and
removes all mounts and interfaces.

It prints one JSON object to standard output: how job.sh ended, or why there is no simulated site.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from deployer.connected.rehearse.watch.syscalls import PATIENCE
from deployer.connected.rehearse.world import kernel, machine, node
from deployer.connected.rehearse.world.file_system import MachineFiles, layered
from deployer.connected.rehearse.world.limits import MOST_TASKS, LaptopLimit, UntilSaid
from deployer.connected.rehearse.world.machine import LOGIN, SimulatedMachine
from deployer.connected.rehearse.world.namespaces import explained
from deployer.connected.rehearse.world.node import NodeOrder
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, JobFailed

#: Seconds for a node to become ready, and to end.
READY, END = 15.0 + PATIENCE, 5.0 + 2 * PATIENCE
#: Seconds between two checks of what the job uses of this machine.
_PERIOD = 0.25
#: The folders in which job.sh finds programs.
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class WorldOrder(NamedTuple):
    """The order for a simulated site.

    Attributes:
        parent: the pid of the process that orders it.
        nodes: the number of nodes.
        folder: a private folder, with ``bin/ssh``, ``home`` and the empty folders ``sockets`` and ``machine``.
        readable: read-only files and folders of this machine for all machines, besides its system.
        writable: files and folders that the machines can change.
        fixed: files of the job that its script can change, but the nodes cannot.
        seen: the folder for the observers' records.
        job: the job's folder.
        words: the command that starts job.sh.
        memory_mb: the memory of a node in MiB; None: no limit.
        observer: the command of a node's observer, with NODE for the node's name and OUT for the observer's folder.
        tasks: the maximum number of processes and threads at once.
        layered: folders of which all nodes share a changeable view in memory, if the kernel permits it.
        doors: the socket of the program that answers for the internet (``doors``); empty: no internet.
        until: end the job when it prints this text; empty: never.
    """

    parent: int
    nodes: int
    folder: str
    readable: Sequence[str]
    writable: Sequence[str]
    fixed: Sequence[str]
    seen: str
    job: str
    words: Sequence[str]
    memory_mb: int | None
    observer: Sequence[str]
    tasks: int = MOST_TASKS
    layered: Sequence[str] = ()
    doors: str = ""
    until: str = ""


#: In the observer's command: a placeholder for the node's name.
NODE = "{node}"


class WorldReport(NamedTuple):
    """What happened on the simulated site.

    Attributes:
        exit_code: the exit code of job.sh's command; None: there was no simulated site.
        seconds: from the start of job.sh to its end.
        error: why there was no simulated site.
        hint: the remedy; empty: unknown.
        nodes: each node's report, by its name.
        stopped: the limit of this machine that ended the job; empty: none.
    """

    exit_code: int | None
    seconds: float = 0.0
    error: str = ""
    nodes: Mapping[str, Mapping[str, Any]] = {}
    stopped: str = ""
    hint: str = ""


def main() -> int:
    """Make the simulated site, run the job and print the report."""
    order = WorldOrder(**json_records.parse(sys.stdin.buffer.read(), "the order of a simulated site"))
    kernel.die_with_parent()
    if os.getppid() != order.parent:
        return 1
    kernel.leave_keyring()
    try:
        kernel.leave_namespaces()
    except OSError as error:
        _report(WorldReport(None, error=explained(error)))
        return 0
    first = os.fork()
    if first == 0:
        _be_first(order)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    os.waitpid(first, 0)
    return 0


def _be_first(order: WorldOrder) -> NoReturn:
    """Run as the first process of the simulated site."""
    kernel.die_with_parent()
    try:
        _report(_live(order))
    except OSError as error:
        _report(WorldReport(None, error=explained(error)))
    except DeployerError as error:
        _report(WorldReport(None, error=error.message, hint=error.hint))
    finally:
        os._exit(0)


def _live(order: WorldOrder) -> WorldReport:
    kernel.keep_capabilities()
    sockets = os.path.join(order.folder, "sockets")
    kernel.mount("tmpfs", sockets, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=700")
    writable = [*order.writable, *layered(order.layered, os.path.join(order.folder, "machine"))]
    addresses = machine.addresses(order.nodes)
    home = os.path.join(order.folder, "home")
    settings = machine.settings(addresses, home)
    # The user's own folders of programs do not exist there.
    path = os.pathsep.join([os.path.join(order.folder, "bin"), *_PATH])
    readable = [*order.readable, *(os.path.join(order.folder, name) for name in ("bin", "home"))]

    def node_order(name: str, fixed: Sequence[str], cpus: Sequence[int]) -> NodeOrder:
        made = MachineFiles([*readable, *fixed], writable, settings)
        simulated = SimulatedMachine(name, addresses[name], made, os.path.join(order.folder, "machine"), sockets)
        observer = [name if word == NODE else word for word in order.observer]
        doors = "" if name == LOGIN else order.doors
        return NodeOrder(simulated, home, path, cpus, order.memory_mb, observer, order.seen, order.tasks, doors)

    login = node_order(LOGIN, (), ())
    names = machine.names(order.nodes)
    cpus = sorted(os.sched_getaffinity(0))
    share = len(cpus) // order.nodes  # none if there are fewer CPUs than nodes: then each node has all
    shares = (cpus[place * share : (place + 1) * share] for place in range(order.nodes))
    begun = [_Begun(node_order(name, order.fixed, own)) for name, own in zip(names, shares, strict=True)]
    machine.ip(machine.switch(login.machine, [started.pid for started in begun]))
    machine.become(login.machine)
    for started in begun:
        started.go()
    for started in begun:
        started.wait()
    begin = time.monotonic()
    code, stopped = _run(order, login)
    seconds = time.monotonic() - begin
    return WorldReport(code, round(seconds, 3), nodes=_end(begun), stopped=stopped)


class _Begun:
    """A started node: a process with namespaces of its own, which waits for its interface."""

    def __init__(self, order: NodeOrder) -> None:
        self.order = order
        told, tell = os.pipe()
        self._go, awaited = os.pipe()[::-1]
        self._heard, say = os.pipe()
        middle = os.fork()
        if middle == 0:
            with contextlib.suppress(OSError):
                kernel.unshare(kernel.MACHINE)
                pid = os.fork()
                if pid == 0:
                    os.close(self._go)
                    if os.read(awaited, 1):
                        node.serve(order, awaited, say)
                    os._exit(1)
                os.write(tell, b"%d" % pid)
            os._exit(0)
        for descriptor in (tell, awaited, say):
            os.close(descriptor)
        os.waitpid(middle, 0)
        self.pid = int(os.read(told, 20) or 0)
        os.close(told)
        if not self.pid:
            raise JobFailed(f"cannot make the namespaces of {order.machine.name}")

    def go(self) -> None:
        """Let the node continue."""
        os.write(self._go, b"g")

    def wait(self) -> None:
        """Wait until the node is ready. Raises JobFailed."""
        ready, _, _ = select.select([self._heard], [], [], READY)
        said = os.read(self._heard, 4096).decode() if ready else "it does not answer"
        if said != node.READY:
            raise JobFailed(f"cannot make {self.order.machine.name}: {said or 'it ended'}")

    def end(self) -> None:
        """Make the node end."""
        with contextlib.suppress(OSError):  # it has already ended
            os.write(self._go, b"e")

    def report(self, until: float) -> bytes:
        """Return the node's final report, waiting until the time ``until``."""
        said = b""
        while select.select([self._heard], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (chunk := os.read(self._heard, 4096)):
                break
            said += chunk
        return said


def _run(order: WorldOrder, login: NodeOrder) -> tuple[int, str]:
    """Run job.sh to its end. Return its exit code, and the limit of this machine that ended it."""
    limit, said = LaptopLimit(order.job, order.tasks), UntilSaid(os.path.join(order.job, "output.log"), order.until)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.chdir(order.job)
            output = os.open("output.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            nothing = os.open("/dev/null", os.O_RDONLY)
            for target, source in enumerate((nothing, output, output)):
                os.dup2(source, target)
            node.start(order.words, login)
        finally:
            os._exit(255)
    stopped = ""
    first = os.pidfd_open(pid)
    while True:
        select.select([first], [], [], _PERIOD)
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:  # this process is the parent of all orphans
            if ended[0] == pid:
                code = os.waitstatus_to_exitcode(ended[1])
                return 128 - code if code < 0 else code, stopped
        stopped = stopped or said.reached() or limit.reached()
        if stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all processes of the simulated site


def _end(begun: Sequence[_Begun]) -> dict[str, Mapping[str, Any]]:
    """End the nodes and return their reports."""
    for started in begun:
        started.end()
    until = time.monotonic() + END
    reports = {}
    for started in begun:
        with contextlib.suppress(DeployerError):
            reports[started.order.machine.name] = json_records.parse(started.report(until), "the report of a node")
    return reports


def _report(report: WorldReport) -> None:
    sys.stdout.write(json.dumps(report._asdict()))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
