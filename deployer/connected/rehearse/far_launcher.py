"""The program `mpiexec.hydra` of a rehearsal, for ranks that need no MPI to start: it gives each its number.

It takes the words that job.sh gives to hydra, and starts the ranks by the same agent. It runs as a file of its own,
with nothing but Python's library. It ends with the exit code of the rank that failed first, and then ends the others,
as hydra does.
"""

import os
import shlex
import signal
import sys

#: The options that job.sh gives, each with a value.
_OPTIONS = ("-bootstrap", "-bootstrap-exec", "-f", "-n", "-ppn", "-bind-to")


def main() -> int:
    """Start the ranks and return their exit code."""
    words, given = sys.argv[1:], {}
    while words and words[0] in _OPTIONS:
        given[words[0]] = words[1]
        words = words[2:]
    with open(given["-f"]) as stream:
        nodes = [line.split()[0].split(":")[0] for line in stream if line.strip()]
    ranks, each = int(given["-n"]), int(given["-ppn"])
    own = dict(os.environ, REHEARSAL_TIED="1")
    left = set()
    for rank in range(ranks):
        known = {"PMI_RANK": rank, "PMI_SIZE": ranks, "MPI_LOCALRANKID": rank % each, "MPI_LOCALNRANKS": each}
        exports = " ".join(f"{name}={number}" for name, number in known.items())
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


if __name__ == "__main__":
    sys.exit(main())
