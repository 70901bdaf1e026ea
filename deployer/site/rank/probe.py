"""probe: measure MPI library, network and CPUs of each rank in the container, before the payload starts.

Each rank of a job starts this module like ``rank``, with as few imports, for the reasons given there.
"""

import os
import sys

from deployer.site.proof import rank_record
from deployer.site.rank import payload_monitor
from deployer.site.rank.launched import SIZE, number, task_number
from deployer.site.rank.node_records import NodeRecords
from deployer.site.rank.observed import mapped_mpi
from deployer.site.rank.rank import SIGNALS
from deployer.site.rank.rendezvous import LOCAL_TASK
from deployer.system import payload

MYPY = False
if MYPY:
    import signal
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

    from deployer.site.rank.mpi import Library
else:
    import _signal as signal

#: Seconds after which a probe that hangs in the MPI library is killed; even thousands of ranks start in less time.
PATIENCE = 120

#: Maximum bytes of a probe's output, and of the end of its output, to use.
_MAX_OUTPUT, _TAIL = 4 * 1024 * 1024, 4096

#: Makes Intel MPI and MPICH print which libfabric provider they chose.
_TALK = {"I_MPI_DEBUG": "1", "MPIR_CVAR_DEBUG_SUMMARY": "1"}
_VALUED = ("--out", "--library", "--expect", "--home", "--good")


def main(words: "List[str]") -> int:
    """Parse job.sh's call and run it, without argparse, which is too slow."""
    given, expects, options = {}, [], iter(words)
    for word in options:
        value = next(options, "") if word in _VALUED else word
        if word == "--expect":
            expects.append(value)
        given[word] = value
    if not given.get("--out") or set(given) - {*_VALUED, "--rank", "--without-mpi"}:
        payload.complain(
            "deployer: error: probe --rank --out DIR [--library SONAME] [--without-mpi] [--expect WHAT] [--home DIR] "
            "[--good NANOSECONDS:BYTES_PER_SECOND] is what job.sh calls"
        )
        return 2
    try:
        good = None
        if "--good" in given:
            nanoseconds, _, bytes_per_second = given["--good"].partition(":")
            good = int(nanoseconds), int(bytes_per_second)
        without_mpi, home = "--without-mpi" in given, given.get("--home")
        return rank(given["--out"], given.get("--library"), expects, without_mpi, home, good)
    except OSError as error:
        return _explain(error, NodeRecords(given["--out"]).path)


def _explain(error: OSError, path: str) -> int:
    """Print why the records could not be written, and return the exit code."""
    from deployer.contract.base.errors import DeployerError
    from deployer.system import files

    try:
        files.raise_named(error, "write " + path)
    except DeployerError as named:
        payload.complain("\n".join(named.lines()))
        return named.exit_code


def first_of_node(environment: "Mapping[str, str]") -> bool:
    """Return whether this is the first process on its node, according to its launcher; True if that is unknown."""
    return next((environment[name] == "0" for name in LOCAL_TASK if name in environment), True)


def rank(
    out: str, soname: "Optional[str]", expects: "Sequence[str]", without_mpi: bool, home: "Optional[str]",
    good: "Optional[Tuple[int, int]]" = None,
) -> int:  # fmt: skip
    """Start MPI in a child process, write this rank's record into the folder ``out``, and return the exit code.

    The record is written before the library runs, and again at the end. If the library ends or hangs the child, the
    first record shows that, and the end of the child's output is written beside it. The exit code is the child's.

    Args:
        soname: the library to load; None: any known one.
        expects: further measurements to make (``measurements.GPU``).
        without_mpi: do not start MPI, because the job's programs do not use it.
        home: the job's home, to remove after a request to end, as in ``rank``.
        good: the speed of the network that is good enough, as for ``speed.ring``.

    Raises:
        OSError: the record could not be written.
    """
    task = task_number(os.environ)
    records, name = NodeRecords(out), rank_record.PROBE % task
    output = _continue_in_child(records, task, home)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # no Python code runs while a C library hangs
    signal.alarm(PATIENCE)
    record = rank_record.probing(task, os.uname().nodename)
    record.update(
        threads=number(os.environ, ("OMP_NUM_THREADS",)),
        cpus=rank_record.render_numbers(os.sched_getaffinity(0)),
        measures=_measures(expects),
    )

    def done(**facts: object) -> int:
        record.update(stage=rank_record.DONE, **facts)
        records.add(name, rank_record.dumps(record), last=True)
        return 0

    if without_mpi:
        return done(rank=task, size=number(os.environ, SIZE))
    os.environ.update(_TALK)
    try:
        from deployer.site.rank import mpi
    except ImportError as error:  # no ctypes in the image's Python
        return done(reason=str(error))
    try:
        library = mpi.load([soname] if soname else mpi.USUAL_SONAMES)
    except mpi.MpiError as error:
        return done(reason=str(error))
    try:
        _start(library, records, record, output, good)
    except mpi.MpiError as error:
        mpi.flush()
        payload.complain(f"deployer: error: {error}")
        return 1
    return 0


def _start(
    library: "Library", records: NodeRecords, record: "Dict[str, Any]", output: int, good: "Optional[Tuple[int, int]]"
) -> None:
    """Start MPI, and record each stage with its results. Raises MpiError, OSError."""
    from deployer.site.rank import mpi, speed

    name = rank_record.PROBE % record["task"]
    libraries = mapped_mpi.mpi_libraries(mapped_mpi.maps(os.getpid()))
    if libraries:
        seen = mapped_mpi.identity(os.getpid(), libraries[0])
        record.update(library={"path": libraries[0][0], "identity": seen, "says": library.version()})
    record.update(stage=rank_record.STARTING)
    records.add(name, rank_record.dumps(record))
    library.start()
    library.meet()
    record.update(stage=rank_record.SUMMING, rank=library.rank, size=library.size)
    records.add(name, rank_record.dumps(record))
    link = speed.ring(library, good)
    record["measures"].update(link=link, allreduce=speed.allreduce(library, link))
    # Libraries map it only if a node has several ranks: tested with Intel MPI 2021.15, MPICH 4.2 and Open MPI 5.0.
    # A library in an image that is staged there is not mapped as shared and writable.
    mapped = mapped_mpi.maps(os.getpid()).splitlines()
    record.update(shared_memory=any(" rw-s " in line and " /dev/shm/" in line for line in mapped))
    mpi.flush()
    record.update(stage=rank_record.DONE, thread_level=library.thread_level, provider=mpi.provider(_text(output, 0)))
    records.add(name, rank_record.dumps(record), last=True)
    library.end()


def _measures(expects: "Sequence[str]") -> "Dict[str, Any]":
    """Make the measurements (``measurements.Measures``) before MPI starts, after which no process may be started."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # The limits in ``measurements.LIMITS``, in the units of `ulimit`.
    kinds = (("v", "AS", 1024), ("n", "NOFILE", 1), ("u", "NPROC", 1), ("f", "FSIZE", 1024), ("t", "CPU", 1))
    limits = [(name, resource.getrlimit(getattr(resource, "RLIMIT_" + kind))[0], unit) for name, kind, unit in kinds]
    measures: "Dict[str, Any]" = {
        "memlock": None if limit == resource.RLIM_INFINITY else limit,
        "allreduce": None,
        "link": None,
        "gpu": None,
        "shm": payload_monitor.shared_memory(),
        "limits": {name: value // unit for name, value, unit in limits if value != resource.RLIM_INFINITY},
    }
    wanted = [each for each in expects if each.startswith("gpu")]  # ``measurements.GPU`` and others
    if wanted and first_of_node(os.environ):
        from deployer.site.rank import gpu

        measures.update(gpu=dict(gpu.look(wanted[0])._asdict()))
    return measures


def _continue_in_child(records: NodeRecords, task: int, home: "Optional[str]") -> int:
    """Continue in a child process whose output, including the C library's, is in a file; return its descriptor there.

    This process waits for the child and ends in the same way. If the child's exit code is not 0, it first adds the end
    of the output to ``records``.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    output = _unnamed_file(os.path.dirname(records.path), task)
    pid = os.fork()
    if pid == 0:
        payload.end_with_parent()
        os.dup2(output, 1)
        os.dup2(output, 2)
        return output
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # launchers signal both processes, and this one must end last
    _, status = os.waitpid(pid, 0)
    if status:
        tail = _text(output, max(0, os.fstat(output).st_size - _TAIL))
        records.try_to_add(rank_record.PROBE_LOG % task, rank_record.dumps(tail), last=True)
    if signal.SIGTERM in signal.sigpending():
        payload_monitor.leave(home)
    if os.WIFSIGNALED(status):
        payload_monitor.end_by(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _unnamed_file(out: str, task: int) -> int:
    """Open a new unnamed file on this node; if that is impossible, open a log in the folder ``out``."""
    unnamed = getattr(os, "O_TMPFILE", 0)  # 0: the image's Python was built with older headers
    for folder in ("/dev/shm", os.environ.get("TMPDIR", "/tmp")) if unnamed else ():  # noqa: S108
        try:
            return os.open(folder, os.O_RDWR | unnamed | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
    log = os.path.join(out, rank_record.PROBE_LOG % task)
    return os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def _text(output: int, start: int) -> str:
    return os.pread(output, _MAX_OUTPUT, start).decode("utf-8", "replace")
