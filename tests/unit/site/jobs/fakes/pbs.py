#!/usr/bin/env python3
"""PBS's qsub, qstat, qdel, pbsnodes and pbs_tmrsh by the manual pages and sources of OpenPBS 23.06; no more of them.

Jobs are files in $FAKE_BATCH. A job runs at once and never ends by itself. The queue is "workq".
With a file "no-history" beside $FAKE_BATCH, it has no history of jobs, as by default.
What it refuses, its messages and exit codes are those of qsub(1B), pbs_resources(7B), qsub.c, qstat.c and
pbs_messages.c: a command exits with the last byte of the server's error (15001, Unknown Job Id: 153).
"""

import itertools
import json
import os
import re
import sys

STATE = os.environ["FAKE_BATCH"]
SERVER = "pbs01"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]{0,229}$")
CHUNK = re.compile(r"(\d+:)?([a-z_]+=[\w.-]+)(:[a-z_]+=[\w.-]+)*$")
RESOURCES = {
    "ncpus": r"\d+",
    "mpiprocs": r"\d+",
    "ompthreads": r"\d+",
    "mem": r"\d+[kmg]?b",
    "ngpus": r"\d+",
    "host": ".+",
}
PLACE = re.compile(r"(free|pack|scatter|vscatter)(:(excl|shared|exclhost))?(:group=\w+)?$")
DEPEND = r"depend=(after|afterany|afterok|afternotok)(:\d+(\.[\w.-]+)?)+"
CLOCK = re.compile(r"(\d+:)?[0-5]?\d:[0-5]\d$")


def fail(code, words):
    sys.stderr.write(words + "\n")
    sys.exit(code)


def limits(words, found):
    """Check -l's words: a select statement, a placement, or job-wide resources."""
    for word in words.split(",") if not words.startswith("select=") else [words]:
        name, _, value = word.partition("=")
        if name == "select":
            for chunk in value.split("+"):
                if not CHUNK.match(chunk):
                    fail(166, "qsub: Illegal attribute or resource value Resource_List.select")
                for pair in re.sub(r"^\d+:", "", chunk).split(":"):
                    key, _, given = pair.partition("=")
                    if key not in RESOURCES:
                        fail(187, "qsub: Unknown resource: " + key)
                    if not re.match(RESOURCES[key] + "$", given):
                        fail(166, "qsub: Illegal attribute or resource value Resource_List.select")
        elif name == "place":
            if not PLACE.match(value):
                fail(166, "qsub: Illegal attribute or resource value Resource_List.place")
        elif name == "walltime":
            if not CLOCK.match(value):
                fail(166, "qsub: Illegal attribute or resource value Resource_List.walltime")
        else:
            fail(187, "qsub: Unknown resource: " + name)
        found[name] = value


def directives(script):
    """Return the options in a script and their values; those behind the first command are not read."""
    with open(script) as stream:
        lines = stream.read().splitlines()[1:]
    head = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return [line[len("#PBS ") :].split(None, 1) for line in head if line.startswith("#PBS ")]


def qsub(words):
    found = {"Job_Name": os.path.basename(words[-1])}
    if words[0] == "-f":
        del words[0]
    given = [*directives(words[-1]), *zip(words[:-1:2], words[1:-1:2])]
    for option, value in given:
        if option == "-l":
            limits(value, found)
        elif option == "-N":
            if not NAME.match(value):
                fail(1, "qsub: illegal -N value")
            found["Job_Name"] = value
        elif option == "-q":
            if value != "workq":
                fail(170, "qsub: Unknown queue")
        elif option in ("-r", "-j", "-o", "-A", "-S", "-W"):
            allowed = {"-r": "[yn]", "-j": "oe|eo|n", "-o": r"([\w.-]+:)?[^:]+", "-W": DEPEND}.get(option, ".+")
            if not re.match(f"({allowed})$", value):
                fail(1, f"qsub: illegal {option} value")
            found[option] = value
        else:
            fail(2, "usage: qsub [-a date_time] [-A account_string] ...")
    if "-j" in found and "-o" in found:
        found["Output_Path"] = "login1:" + found["-o"]
    number = "%d.%s" % (len(os.listdir(STATE)) + 1, SERVER)
    with open(os.path.join(STATE, number), "w") as stream:
        json.dump(dict(found, job_state="R"), stream)
    print(number)


def wrapped(line):
    """Return a line of ``qstat -f``, which goes on behind a tab after 80 characters."""
    parts = [line[:78]] + [line[at : at + 70] for at in range(78, len(line), 70)]
    return "\n\t".join(parts)


def qstat(words):
    if words[0] == "-Qf":
        if words[1:] not in ([], ["workq"]):
            fail(170, "qstat: Unknown queue " + words[1])
        print("Queue: workq\n    queue_type = Execution\n    enabled = True\n    started = True\n")
        return
    numbers = [word for word in words if not word.startswith("-")]
    code = 0
    history = not os.path.exists(STATE + "/../no-history")
    if "-x" in words and not history:
        sys.stderr.write("qstat: PBS is not configured to maintain job history \n")
        return  # with exit code 0, and no job at all
    for number in numbers or sorted(os.listdir(STATE)):
        found = None
        if os.path.exists(os.path.join(STATE, number)):
            with open(os.path.join(STATE, number)) as stream:
                found = json.load(stream)
        if found is None or (found["job_state"] == "F" and not history):
            sys.stderr.write(f"qstat: Unknown Job Id {number}\n")
            code = 153
            continue
        if found["job_state"] == "F" and "-x" not in words:
            sys.stderr.write(f"qstat: {number} Job has finished, use -x or -H to obtain historical job information\n")
            code = 35
            continue
        print("Job Id: " + number)
        hosts = "cn1/0*4+cn2/0*4"
        for name, value in (*found.items(), ("exec_host", hosts), ("resources_used.walltime", "00:00:07")):
            if not name.startswith("-"):
                print(wrapped(f"    {name} = {value}"))
        print()
    sys.exit(code)


def qdel(words):
    path = os.path.join(STATE, words[0])
    if not os.path.exists(path):
        fail(153, "qdel: Unknown Job Id " + words[0])
    with open(path) as stream:
        found = json.load(stream)
    if found["job_state"] == "F":
        fail(35, "qdel: Job has finished " + words[0])
    with open(path, "w") as stream:
        json.dump(dict(found, job_state="F", Exit_status="271"), stream)


def pbs_tmrsh(words):
    """Execute the words on a node of the job, without a shell (tm_spawn); the output goes to the job's own file."""
    while words[0] == "-n":
        del words[0]
    if words[0] not in ("cn1", "cn2"):
        fail(255, f'pbs_tmrsh: host "{words[0]}" is not a node in job <1.pbs01>')
    output = os.open(os.path.join(STATE, "1.OU"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    try:
        os.execvp(words[1], words[1:])
    except OSError:
        sys.exit(254)


def pbsnodes(words):
    del words
    for name, state in (("cn1", "free"), ("cn2", "job-busy"), ("cn3", "down,offline")):
        print(f"{name}\n     Mom = {name}\n     state = {state}\n")


COMMANDS = {"qsub": qsub, "qstat": qstat, "qdel": qdel, "pbsnodes": pbsnodes, "pbs_tmrsh": pbs_tmrsh}
COMMANDS[os.path.basename(sys.argv[0])](sys.argv[1:])
