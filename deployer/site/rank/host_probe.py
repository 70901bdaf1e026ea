"""The facts about a node outside the container, recorded by the job's first step."""

import glob
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import List, Optional, Sequence

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError
from deployer.contract.proof import evidence
from deployer.contract.proof.evidence import HostRecord, Launch
from deployer.site.capture.tools import read_word
from deployer.site.jobs import result
from deployer.site.rank import interfaces
from deployer.site.rank.node_records import node_name
from deployer.site.rank.payload_monitor import KEPT
from deployer.system import elf, files, process

#: Folders on a node to which runtimes write.
_PLACES = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108
#: Seconds for a container to start and to print the image's canary, which may be slow on a shared file system.
_PATIENCE = 300.0


def host(
    out: str, library: Optional[str], own: Optional[str] = None, reader: Sequence[str] = (), keep: Sequence[str] = ()
) -> HostRecord:
    """Write this node's record into ``out``, a folder of the job.

    The host paths that the job binds are in its job.json.

    Args:
        library: the plan's MPI on the host, or None.
        own: the home to make for the job on this node.
        reader: a command that prints the image's canary in a container; empty for none. It runs only if the node has
            everything that the container needs.
        keep: the beginning of the image's archives, and the paths in ``own`` to which they go; empty: none.
    """
    job = os.path.dirname(os.path.abspath(out))
    launch = result.launch(job) if files.exists(os.path.join(job, result.LAUNCH_FILE)) else None
    if not own:
        return _record(out, launch, library, reader)
    from deployer.site.container import caches, home

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        home.make(own, job, _has_ended)
        if launch and launch.links:
            from deployer.site.container import links  # imports many modules, and most jobs have no links

            links.make(own, launch.links)
        if keep:
            caches.restore(own, keep[0], keep[1:])
            if os.environ.get("SLURM_NODEID") == "0":  # this node saves them, after the ranks
                os.mkdir(own + KEPT)
        return _record(out, launch, library, reader)
    except BaseException:
        files.remove_tree(own)
        raise


def _has_ended(job: str) -> bool:
    """Return whether the job in a folder has certainly ended."""
    from deployer.site.jobs import jobs

    with suppress(DeployerError):
        status = jobs.status(job)
        return not status.active and (status.job_id is not None or status.exit_code is not None)
    return False


def _record(out: str, launch: Optional[Launch], library: Optional[str], reader: Sequence[str]) -> HostRecord:
    # A file that this user cannot access counts as missing, because ranks cannot use it either.
    identity = elf.identity(library) if library and os.path.isfile(library) else None  # noqa: TID251
    bound = launch.bound if launch else ()
    missing = tuple(path for path in bound if not os.path.exists(path))  # noqa: TID251
    record = HostRecord(
        host=socket.gethostname(),
        identity=identity,
        missing=missing,
        numa=tuple(numa_domains()),
        addresses=tuple(interfaces.addresses()),
        port=interfaces.free_port(),
        changed=elf.changed(launch.mpi.libraries) if launch and launch.mpi and identity else {},
    )
    files.write_text(os.path.join(out, node_name() + ".json"), json_records.pretty(evidence.record(record)))
    if reader and not missing and (identity or not library):
        read_root(out, reader)
    return record


def read_root(out: str, reader: Sequence[str]) -> str:
    """Run ``reader`` with job.sh's environment, write its output on this node into ``out``, and return it."""
    try:
        done = process.run(reader, _PATIENCE, env=dict(os.environ), check=False)
        output = done.stdout + done.stderr
        if "No space left" in output:
            full = [place for place in _PLACES if os.statvfs(place).f_bavail == 0]
            output += "full: %s\n" % (", ".join(full) or "neither of " + ", ".join(_PLACES))
    except DeployerError as error:
        output = error.message + "\n"
    files.write_text(os.path.join(out, socket.gethostname() + result.ROOT_SUFFIX), output)
    return output


def numa_domains(top: str = "/sys/devices/system/node") -> List[str]:
    """Return the kernel's list of CPUs for each NUMA domain of this node that has CPUs."""
    paths = sorted(glob.glob(os.path.join(top, "node[0-9]*", "cpulist")))
    return list(filter(None, map(read_word, paths)))
