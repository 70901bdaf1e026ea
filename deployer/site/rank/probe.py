"""probe: evidence from inside the job, before the payload: per node on the host, per rank in the container."""

import glob
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import List, Mapping, Optional, Sequence

from deployer.contract import evidence, json_records, rank_record
from deployer.contract.errors import DeployerError
from deployer.contract.evidence import HostRecord, ProbeRecord
from deployer.contract.measurements import GPU, Measures
from deployer.contract.payload import MappedLibrary
from deployer.site.jobs import result
from deployer.site.rank import interfaces, mapped_mpi, payload_monitor
from deployer.site.rank.node_records import NodeRecords
from deployer.site.rank.outside import SIZE, number
from deployer.site.rank.rank import SIGNALS, task_number
from deployer.site.rank.rendezvous import LOCAL_TASK
from deployer.system import elf, files, payload

#: Seconds after which a probe that hangs in the MPI library is killed; thousands of ranks start in less time.
PATIENCE = 120

#: Bytes of a probe's output, and of its end, that are of use.
_MAX_OUTPUT, _TAIL = 4 * 1024 * 1024, 4096

#: Makes Intel MPI and MPICH print which libfabric provider they chose.
_TALK = {"I_MPI_DEBUG": "1", "MPIR_CVAR_DEBUG_SUMMARY": "1"}


def first_of_node(environment: Mapping[str, str]) -> bool:
    """Return whether this is the first process of its node, according to its launcher; True if it does not say."""
    return next((environment[name] for name in LOCAL_TASK if name in environment), "0") == "0"


def host(out: str, library: Optional[str], own: Optional[str] = None) -> HostRecord:
    """Write this node's record into ``out``, a folder of the job.

    The host paths that the job binds are in its job.json.

    Args:
        library: the plan's MPI on the host, or None.
        own: the home to make for the job on this node.
    """
    job = os.path.dirname(os.path.abspath(out))
    launch = result.launch(job) if files.exists(os.path.join(job, result.LAUNCH_FILE)) else None
    if own:
        from deployer.site.container import home, links

        home.make(own)
        links.make(own, launch.links if launch else {})
    name = socket.gethostname()
    # A file that this user cannot access counts as missing: ranks cannot use it either.
    found = elf.identity(library) if library and os.path.isfile(library) else None  # noqa: TID251
    bound = launch.bound if launch else ()
    missing = tuple(path for path in bound if not os.path.exists(path))  # noqa: TID251
    record = HostRecord(
        name, found, missing, tuple(numa_domains()), tuple(interfaces.addresses()), interfaces.free_port()
    )
    _write(os.path.join(out, name + ".json"), record.record())
    return record


def numa_domains(top: str = "/sys/devices/system/node") -> List[str]:
    """Return the CPUs of each NUMA domain of this node, as the kernel lists them, without domains that have no CPUs."""
    found = []
    for path in sorted(glob.glob(os.path.join(top, "node[0-9]*", "cpulist"))):
        with open(path) as stream:
            found.append(stream.read().strip())
    return [cpus for cpus in found if cpus]


def rank(out: str, soname: Optional[str], expects: Sequence[str] = (), without_mpi: bool = False) -> ProbeRecord:
    """Start MPI in a child of this process, and write this rank's record into the folder ``out``.

    The record is written before the library runs, and again at the end. So if the library ends or hangs the child, the
    first record shows that, and the end of the child's output is written beside it. This process ends as the child did.

    Args:
        soname: the library to load; None: any known one.
        expects: what else to measure (``measurements.EXPECTABLE``).
        without_mpi: do not start MPI: the job's programs do not use it.
    """
    task = task_number(os.environ)
    records = NodeRecords(out)
    output = _continue_in_child(records, task)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # no Python code runs while a C library hangs
    signal.alarm(PATIENCE)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    record = ProbeRecord(
        task,
        socket.gethostname(),
        evidence.LOADING,
        None,
        None,
        None,
        None,
        None,
        None,
        int(threads) if threads.isdigit() else None,
        evidence.render_numbers(set(os.sched_getaffinity(0))),
        _measures(expects),
    )
    if without_mpi:
        record = record._replace(stage=evidence.DONE, rank=task, size=number(os.environ, SIZE))
        _add(records, record, last=True)
        return record
    os.environ.update(_TALK)
    try:
        from deployer.site.rank import allreduce, mpi

        library = mpi.load([soname] if soname else mpi.USUAL_SONAMES)
    except (ImportError, DeployerError) as error:
        record = record._replace(stage=evidence.DONE, reason=str(error))
        _add(records, record, last=True)
        return record
    found = mapped_mpi.mpi_libraries(mapped_mpi.maps(os.getpid()))
    if found:
        seen = MappedLibrary(found[0][0], mapped_mpi.identity(os.getpid(), found[0]), library.version())
        record = record._replace(library=seen)
    record = record._replace(stage=evidence.STARTING)
    _add(records, record)
    world = library.start()
    library.meet()
    record = record._replace(stage=evidence.SUMMING, rank=world.rank, size=world.size)
    _add(records, record)
    measures = record.measures and record.measures._replace(allreduce=allreduce.measure(library, world))
    mpi.flush()
    record = record._replace(
        stage=evidence.DONE,
        thread_level=world.thread_level,
        provider=mpi.provider(_text(output, 0)),
        measures=measures,
    )
    _add(records, record, last=True)
    library.end()
    return record


def _measures(expects: Sequence[str]) -> Measures:
    """Return the measurements before MPI starts: no process is started after it has opened the fabric."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = Measures(None if limit == resource.RLIM_INFINITY else limit, shm=payload_monitor.shared_memory())
    if GPU in expects and first_of_node(os.environ):
        from deployer.site.rank import gpu

        found = found._replace(gpu=gpu.look())
    return found


def _continue_in_child(records: NodeRecords, task: int) -> int:
    """Return in a child of this process, whose output, also the C library's, goes into a file: its descriptor.

    This process waits for the child and ends as it did. If that was not with exit code 0, it first adds the end of the
    output to ``records``.
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
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # launchers signal both, and this process ends last
    _, status = os.waitpid(pid, 0)
    if status:
        tail = _text(output, max(0, os.fstat(output).st_size - _TAIL))
        records.try_to_add(rank_record.PROBE_LOG % task, rank_record.dumps(tail), last=True)
    if os.WIFSIGNALED(status):
        payload_monitor.end_by(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _unnamed_file(out: str, task: int) -> int:
    """Open a new file of this node that nothing else can open; if there can be none, a log in the folder ``out``."""
    unnamed = getattr(os, "O_TMPFILE", 0)  # 0: the image's Python was built with older headers
    for folder in ("/dev/shm", os.environ.get("TMPDIR", "/tmp")) if unnamed else ():  # noqa: S108
        with suppress(OSError):
            return os.open(folder, os.O_RDWR | unnamed | os.O_CLOEXEC, 0o600)
    log = os.path.join(out, rank_record.PROBE_LOG % task)
    with files.errors_named("write " + log):
        return os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def _text(output: int, start: int) -> str:
    return os.pread(output, _MAX_OUTPUT, start).decode("utf-8", "replace")


def _add(records: NodeRecords, record: ProbeRecord, last: bool = False) -> None:
    with files.errors_named("write " + records.path):
        records.add(rank_record.PROBE % record.task, json.dumps(record.record()), last)


def _write(path: str, record: json_records.Record) -> None:
    files.write_text(path, json_records.pretty(record))
