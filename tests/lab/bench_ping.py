"""`scripts/bench ping`: a small message between two nodes of a lab, as each launcher places the ranks."""

from __future__ import annotations

import argparse
import re
import shlex
import sys

from tests.lab.cluster import Lab

#: Prints each rank's node, its CPUs, and half of a round trip of 8 bytes; needs the MPI library alone.
_PING = """
import ctypes, os, sys, time
openmpi = sys.argv[1] == "openmpi"
mpi = ctypes.CDLL("libmpi.so.40" if openmpi else "libmpi.so.12", ctypes.RTLD_GLOBAL)
def handle(name, number):
    return ctypes.byref(ctypes.c_char.in_dll(mpi, name)) if openmpi else ctypes.c_int(number)
world, byte = handle("ompi_mpi_comm_world", 0x44000000), handle("ompi_mpi_byte", 0x4C00010D)
mpi.MPI_Init(None, None)
rank, buffer, status = ctypes.c_int(), ctypes.create_string_buffer(8), ctypes.create_string_buffer(256)
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
me, times = rank.value, []
send = lambda: mpi.MPI_Send(buffer, 8, byte, 1 - me, 7, world)
receive = lambda: mpi.MPI_Recv(buffer, 8, byte, 1 - me, 7, world, status)
for _ in range(1100):
    begun = time.perf_counter()
    for each in (receive, send) if me else (send, receive):
        each()
    times.append((time.perf_counter() - begun) / 2 * 1e6)
times = sorted(times[100:])
cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
print("rank", me, os.uname()[1], "cpus", cpus, "us %.1f %.1f %.1f" % (times[0], times[500], times[900]), flush=True)
mpi.MPI_Finalize()
"""
_MPIRUN = "mpirun -np 2 --stdin none --map-by ppr:1:node"
#: The module, and how two ranks are started; with --bind-to core as `deployer` does.
_WAYS = {
    "Open MPI, srun --mpi=pmix": ("openmpi", "srun --mpi=pmix"),
    "Open MPI, mpirun --bind-to core": ("openmpi", f"{_MPIRUN}:PE=1 --bind-to core"),
    "  the same, mpi_yield_when_idle": ("openmpi", f"OMPI_MCA_mpi_yield_when_idle=1 {_MPIRUN}:PE=1 --bind-to core"),
    "Open MPI, mpirun --bind-to none": ("openmpi", f"{_MPIRUN} --bind-to none"),
    "Intel MPI, srun --mpi=pmi2": ("intel-mpi", "srun --mpi=pmi2"),
    "Intel MPI, mpiexec.hydra": ("intel-mpi", "mpiexec.hydra -bootstrap slurm -ppn 1 -n 2"),
}
_SAID = re.compile(r"rank (\d) (\S+) cpus (\S+) us (\S+) (\S+) (\S+)")


def measure(args: argparse.Namespace) -> None:
    """Print half of a round trip in microseconds, and where the two ranks were."""
    lab = Lab(args.lab)
    try:
        lab.up(nodes=2)
        (lab.home / "alice" / "ping.py").write_text(_PING)
        print(f"{'us, half of a round trip of 8 bytes':<34} {'min':>8} {'median':>8} {'90 %':>8}  CPUs of the ranks")
        for name, (module, start) in _WAYS.items():
            script = f"#!/bin/bash -l\nmodule load {module}\n{start} python3 ping.py {module}\n"
            submit = f"sbatch --wait --nodes=2 --ntasks-per-node=1 --output=ping.log <<<{shlex.quote(script)}"
            said = lab.sh("login1", "alice", f"{submit} >/dev/null; cat ping.log; rm ping.log", timeout=120).stdout
            ranks = sorted(_SAID.findall(said))
            if len(ranks) < 2:
                sys.exit(f"bench: error: {name} failed: {said}")
            where = ", ".join(f"{node}: {cpus}" for _, node, cpus, *_ in ranks)
            print(f"{name:<34} " + " ".join(f"{float(word):8.1f}" for word in ranks[0][3:]) + f"  {where}", flush=True)
    finally:
        lab.down(purge=True)
