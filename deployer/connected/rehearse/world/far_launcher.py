"""The program `mpiexec.hydra` of a rehearsal, for ranks that start without MPI: it assigns each rank its number.

It accepts the options that job.sh passes to hydra, and starts the ranks with the same agent. It runs as a standalone
file and needs only Python's standard library. Like hydra, it ends with the exit code of the rank that failed first,
after it ended the other ranks. If the site has Slurm, ranks also have the variables that Slurm sets there.
"""

import json
import os
import pwd
import shlex
import signal
import socket
import sys

#: The options that job.sh passes, each with a value.
_OPTIONS = ("-bootstrap", "-bootstrap-exec", "-f", "-n", "-ppn", "-bind-to")
#: The file beside this program if the site has Slurm: the job's variables that are known before it starts, as JSON.
SLURM = "slurm.json"


def main() -> int:
    """Start the ranks and return their exit code."""
    words, given = sys.argv[1:], {}
    while words and words[0] in _OPTIONS:
        given[words[0]] = words[1]
        words = words[2:]
    with open(given["-f"]) as stream:
        nodes = [line.split()[0].split(":")[0] for line in stream if line.strip()]
    ranks, each = int(given["-n"]), int(given["-ppn"])
    job = _of_slurm(nodes, each, given.get("-bind-to", ":1").partition(":")[2])
    own = dict(os.environ, REHEARSAL_TIED="1")
    left = set()
    for rank in range(ranks):
        known = {"PMI_RANK": rank, "PMI_SIZE": ranks, "MPI_LOCALRANKID": rank % each, "MPI_LOCALNRANKS": each}
        of_slurm = {**job, **_of_rank(nodes, each, rank)} if job else {}
        exports = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in {**known, **of_slurm}.items())
        text = f"export {exports}; exec {shlex.join(words)}"
        agent = given["-bootstrap-exec"]
        left.add(os.posix_spawn(agent, [agent, nodes[rank // each], text], own))

    def end(*_: object) -> None:
        for process in left:
            os.kill(process, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    worst = 0
    while left:
        process, status = os.wait()
        left.discard(process)
        code = os.waitstatus_to_exitcode(status)
        if code and not worst:
            worst = 128 - code if code < 0 else code
            end()
    return worst


def _of_slurm(nodes: "list[str]", each: int, cpus: str) -> "dict[str, object]":
    """Return the variables that srun sets for all ranks of a job; empty if the site has no Slurm.

    Variables that only the site's own Slurm knows, such as the name of its cluster, are left out.
    """
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), SLURM)) as stream:
            known: dict[str, object] = json.loads(stream.read())
    except FileNotFoundError:
        return {}
    count = len(nodes)
    on_each = f"(x{count})" if count > 1 else ""
    variables = {
        "JOB_ID JOBID": 1,
        "STEP_ID STEPID": 0,
        "JOB_NODELIST NODELIST STEP_NODELIST": nodes[0] if count == 1 else f"node[1-{count}]",
        "JOB_NUM_NODES NNODES STEP_NUM_NODES": count,
        "NTASKS NPROCS STEP_NUM_TASKS": count * each,
        "NTASKS_PER_NODE": each,
        "TASKS_PER_NODE STEP_TASKS_PER_NODE": f"{each}{on_each}",
        "CPUS_PER_TASK": cpus,
        "CPUS_ON_NODE": int(cpus) * each,
        "JOB_CPUS_PER_NODE": f"{int(cpus) * each}{on_each}",
        "LAUNCH_NODE_IPADDR": socket.gethostbyname(nodes[0]),
        "SUBMIT_HOST": socket.gethostname(),
        "SUBMIT_DIR": os.getcwd(),
        "JOB_USER": pwd.getpwuid(os.getuid()).pw_name,
        "JOB_UID": os.getuid(),
    }
    for names, value in variables.items():
        known.update((f"SLURM_{name}", value) for name in names.split())
    return known


def _of_rank(nodes: "list[str]", each: int, rank: int) -> "dict[str, object]":
    """Return the variables that srun sets for one rank."""
    node = rank // each
    return {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank % each,
        "SLURM_NODEID": node,
        "SLURM_GTIDS": ",".join(str(each * node + number) for number in range(each)),
        "SLURMD_NODENAME": nodes[node],
    }


if __name__ == "__main__":
    sys.exit(main())
