"""probe: evidence from inside the job, before the payload: per node on the host, per rank in the container."""

import glob
import os
import resource
import signal
import socket
import sys
from typing import List, Mapping, Optional, Sequence

from deployer.contract import evidence, json_records
from deployer.contract.errors import DeployerError
from deployer.contract.evidence import HostRecord, ProbeRecord
from deployer.contract.measurements import GPU, Measures
from deployer.contract.payload import MappedLibrary
from deployer.site.jobs import result
from deployer.site.rank import interfaces, mapped_mpi, payload_monitor
from deployer.site.rank.outside import SIZE, number
from deployer.site.rank.rank import task_number
from deployer.site.rank.rendezvous import LOCAL_TASK
from deployer.system import elf, files

#: Seconds after which a probe that hangs in the MPI library is killed; thousands of ranks start in less time.
PATIENCE = 120

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
    """Start MPI and write this rank's record into the folder ``out``.

    The record is written before the library runs, and again at the end. So if the library ends or hangs this process,
    the first record shows that. All output goes into a log beside the record.

    Args:
        soname: the library to load; None: any known one.
        expects: what else to measure (``measurements.EXPECTABLE``).
        without_mpi: do not start MPI: the job's programs do not use it.
    """
    task = task_number(os.environ)
    path = os.path.join(out, "probe-%d.json" % task)
    log = os.path.join(out, "probe-%d.log" % task)
    _redirect(log)
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
        _write(path, record.record())
        return record
    os.environ.update(_TALK)
    try:
        from deployer.site.rank import allreduce, mpi

        library = mpi.load([soname] if soname else mpi.USUAL_SONAMES)
    except (ImportError, DeployerError) as error:
        record = record._replace(stage=evidence.DONE, reason=str(error))
        _write(path, record.record())
        return record
    found = mapped_mpi.mpi_libraries(mapped_mpi.maps(os.getpid()))
    if found:
        seen = MappedLibrary(found[0][0], mapped_mpi.identity(os.getpid(), found[0]), library.version())
        record = record._replace(library=seen)
    record = record._replace(stage=evidence.STARTING)
    _write(path, record.record())
    world = library.start()
    library.meet()
    record = record._replace(stage=evidence.SUMMING, rank=world.rank, size=world.size)
    _write(path, record.record())
    measures = record.measures and record.measures._replace(allreduce=allreduce.measure(library, world))
    mpi.flush()
    record = record._replace(
        stage=evidence.DONE,
        thread_level=world.thread_level,
        provider=mpi.provider(files.read_text(log)),
        measures=measures,
    )
    _write(path, record.record())
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


def _redirect(log: str) -> None:
    """Send this process's output, including the C library's, to ``log``."""
    sys.stdout.flush()
    sys.stderr.flush()
    with files.errors_named("write " + log):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _write(path: str, record: json_records.Record) -> None:
    files.write_text(path, json_records.pretty(record))
