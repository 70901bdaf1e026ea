#!/usr/bin/env python3
"""mpiexec of PALS and ibrun by their manuals; words that a manual does not list are refused.

- mpiexec: options, binding keywords, PMI types, abort on failure, exit codes and signals as in HPE's craycli
  (cray/modules/mpiexec/cli.py, cray/pals.py). A host file has a bare name per line (seen by users of Polaris).
- ibrun: TACC-Docs, docs/hpc/frontera/launching.md: without words, or with -n and -o together. It reads the numbers that
  ``sbatch -n`` and ``-N`` set.

All ranks run on this host; $FAKE_HOSTS names the job's nodes. Each call is a line in $FAKE_CALLS.
"""

import json
import os
import re
import signal
import subprocess
import sys

HOSTS = os.environ["FAKE_HOSTS"].split()
#: mpiexec's options without a value, and with one.
FLAGS = re.compile(
    "envall|envnone|(no-)?transfer|(no-)?label|exclusive|shared|(no-)?line-buffer|(no-)?abort-on-failure|(no-)?sstartup"
)
VALUES = re.compile(
    "np|ppn|soft|host|hosts|hostlist|hostfile|arch|wdir|path|file|umask|envlist|cpu-bind|mem-bind|depth|include-tasks"
    "|exclude-tasks|procinfo-file|pmi|rlimits"
)
#: Those that craycli also has with one dash, and letters.
ONE_DASH = re.compile("np|ppn|soft|host|hosts|hostlist|hostfile|arch|wdir|path|file|umask|env|envlist|envall|envnone")
LETTERS = {"-n": "np", "-f": "hostfile", "-d": "depth", "-l": "label"}
RANGES = r"\d+(-\d+)?(,\d+(-\d+)?)*"
BIND = re.compile(r"(verbose,)?(none|numa|socket|core|thread|depth|list:{0}(:{0})*|mask:[0-9a-fx,]+)$".format(RANGES))


def fail(words):
    sys.stderr.write(words + "\n")
    sys.exit(1)


def pals(words):
    found = {}
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        option = LETTERS.get(name) or name[2:] * name.startswith("--") or name[1:] * bool(ONE_DASH.fullmatch(name[1:]))
        if option == "env":
            del words[:2]
        elif FLAGS.fullmatch(option) and not equals:
            found[option] = True
        elif VALUES.fullmatch(option):
            found[option] = value if equals else words.pop(0)
        else:
            fail("Error: No such option: " + name)
    ranks, per_node = int(found.get("np", 1)), int(found.get("ppn", 0))
    with open(found.get("hostfile", os.environ.get("PBS_NODEFILE"))) as stream:
        hosts = [line.strip() for line in stream if line.strip()]
    if any(host not in HOSTS for host in hosts) or ranks > per_node * len(hosts):
        fail("launch failed: hosts %r" % hosts)
    bind = found.get("cpu-bind", "thread")
    if not BIND.match(bind) or found.get("pmi", "cray") not in ("cray", "pmix", "none"):
        fail("launch failed: %r" % found)
    if bind.startswith("list:") and len(bind.split(":")) - 1 < per_node:
        fail("launch failed: too few CPUs in " + bind)
    names = {"PALS_RANKID": 0, "PALS_LOCAL_RANKID": 1, "PALS_NODEID": 2}
    return ranks, per_node, names, "no-abort-on-failure" not in found, words


def ibrun(words):
    ranks = int(os.environ["SLURM_NTASKS"])
    if words[:1] == ["-n"] or words[:1] == ["-o"]:
        if words[2:3] != ["-o"]:
            fail("ibrun: -n and -o must be used together")
        ranks, words = int(words[1]), words[4:]
    if words[0].startswith("-"):
        fail("ibrun: unknown option " + words[0])
    return ranks, ranks // int(os.environ["SLURM_NNODES"]), {"PMI_RANK": 0, "MPI_LOCALRANKID": 1}, True, words


def main(name, words):
    with open(os.environ["FAKE_CALLS"], "a") as stream:
        stream.write(json.dumps([name, *words]) + "\n")
    if words == ["--version"]:
        print("mpiexec version 1.8.0 revision 0")
        return 0
    ranks, per_node, names, aborts, command = {"mpiexec": pals, "ibrun": ibrun}[name](words)
    started = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: [each.send_signal(number) for each in started])
    for rank in range(ranks):
        numbers = (rank, rank % per_node, rank // per_node)
        own = {variable: str(numbers[at]) for variable, at in names.items()}
        started.append(subprocess.Popen(command, env=dict(os.environ, **own)))
    codes = [0]
    while len(codes) <= ranks:
        pid, status = os.wait()
        codes.append(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
        ended = next(each for each in started if each.pid == pid)
        ended.returncode = codes[-1]
        if codes[-1] and aborts:
            for other in started:
                other.terminate()
    return max(codes)


sys.exit(main(os.path.basename(sys.argv[0]), sys.argv[1:]))
