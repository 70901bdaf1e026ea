"""exec --rehearse: run one process in the container, as ``exec`` does, and report what it tried to access.

Root and Docker are not available here, and user namespaces may not be. So audit hooks observe Python programs, and the
network is disabled if this user may do that. The report includes what was not possible.
"""

import os
import signal
import sys
import time
from typing import List, Optional, Tuple

from deployer import __version__
from deployer.contract.base.errors import JobFailed, Refused, UsageError
from deployer.contract.base.shell import argv
from deployer.contract.rehearsal import observation, rehearsal
from deployer.contract.rehearsal.rehearsal import JobEnding, Rehearsal
from deployer.contract.site.plan import CHARLIECLOUD_KIT, JOB, Bind
from deployer.site.container import container, home
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.run import exec as execs
from deployer.site.run.exec import ExecRequest
from deployer.site.storage.store import Store
from deployer.system import process
from deployer.system.observe import observations

#: Becomes a program, with its standard output redirected to standard error: standard output is only for the report.
#: If the first word is "alone", the program runs in a network namespace that has only the loopback device.
_START = """
import ctypes, fcntl, os, socket, struct, sys
os.dup2(2, 1)
if sys.argv[1] == "alone":
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000 | 0x40000000):
        sys.exit("user namespaces are not allowed: " + os.strerror(ctypes.get_errno()))
    maps = (("setgroups", "deny"), ("uid_map", "%d %d 1" % (user, user)), ("gid_map", "%d %d 1" % (group, group)))
    for name, text in maps:
        with open("/proc/self/" + name, "w") as stream:
            stream.write(text)
    fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit("deployer: error: cannot start %s: %s" % (sys.argv[2], error.strerror))
"""
#: Runtimes that still work in a network namespace of this user.
_ALONE = ("charliecloud", CHARLIECLOUD_KIT, "udocker")
_INTERRUPTED = {128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP}


def rehearse(store: Store, request: ExecRequest, command: List[str], accepted: Tuple[str, ...] = ()) -> Rehearsal:
    """Run ``command`` to its end, and return what it tried to access.

    Raises:
        UsageError: there is no such image or plan, or no command.
        Refused: the plan or the site does not allow it, or it would run without a container.
    """
    if not command:
        raise UsageError("no command to rehearse", f"exec --rehearse {request.image} -- COMMAND [ARG...]")
    unknown = sorted(set(accepted) - set(rehearsal.CODES))
    if unknown:
        hint = "codes: " + ", ".join(rehearsal.CODES)
        raise UsageError("no rule of a rehearsal has the code {}".format(", ".join(unknown)), hint)
    installed = store.find(request.image)
    manifest = installed.manifest()
    runtime, settings, _ = execs.prepare(store, request)
    if not runtime.contained:
        raise Refused("a rehearsal needs a container", "leave --runtime native out")
    notes = ["only Python was observed: `deployer rehearse` on the laptop sees other programs too"]
    if manifest.image.python is None:
        notes = ["the image has no Python, so only the exit code is known: `deployer rehearse` on the laptop sees more"]
    refusal = _refusal(runtime)
    if refusal:
        notes.append("the network was as it is on this machine: " + refusal)
    with home.temporary() as folder, home.temporary() as own:
        observations.prepare(folder)
        environment = container.user_environment()
        words = argv(runtime.argv(_observed(settings, folder), command), {**environment, container.OWN.name: own})
        started = time.time()
        status = process.attach([*_starter(alone=refusal is None), *words], environment)
        seconds = round(time.time() - started, 1)
        observed = observation.read(observations.written(os.path.join(folder, observations.SEEN)))
    how = rehearsal.STOPPED if status in _INTERRUPTED else rehearsal.FAILED if status else rehearsal.DONE
    ending = JobEnding(how, status, None, seconds)
    job = manifest.jobs[0].name if manifest.jobs else "NAME"
    reached = rehearsal.judge(observed, ending, own=(os.uname().nodename,), job=job)
    return Rehearsal(
        bundle=installed.receipt.label,
        image=manifest.image.layer_digest,
        job=command[0],
        site=request.plan or next(iter(installed.sites()), ""),
        date=int(time.time()),
        deployer=__version__,
        nodes=1,
        ranks=1,
        watched=(rehearsal.PYTHON,) if observed.has_python else (),
        ending=ending,
        findings=(*reached, *(rehearsal.unseen(text) for text in notes)),
        accepted=accepted,
        command=tuple(command),
    )


def _refusal(runtime: Runtime) -> Optional[str]:
    """Return why the process keeps this machine's network; None if the network is disabled."""
    if runtime.known.name not in _ALONE:
        return f"{runtime.known.name} cannot start in a namespace of this user"
    try:
        process.run([*_starter(alone=True), sys.executable, "-I", "-S", "-c", ""], 30)
    except JobFailed as error:
        return error.message.rpartition(": ")[2]
    return None


def _starter(alone: bool) -> List[str]:
    return [sys.executable, "-I", "-S", "-c", _START, "alone" if alone else "here"]


def _observed(unobserved: Container, folder: str) -> Container:
    """Return the container with the folders for the rehearsal, in which each Python imports the hook."""
    hook = f"{JOB}/{observations.HOOK}"
    before = unobserved.environment.get("PYTHONPATH")
    environment = {
        **unobserved.environment,
        "PYTHONPATH": observations.before(hook, before if isinstance(before, str) else ""),
        observations.VARIABLE: f"{JOB}/{observations.SEEN}",
    }
    bound = Bind(folder, JOB, "the folders of the rehearsal")
    return unobserved._replace(binds=[*unobserved.binds, bound], environment=environment)
