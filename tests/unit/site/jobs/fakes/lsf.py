#!/usr/bin/env python3
"""LSF's bsub, bjobs, bkill, bqueues, bhosts and blaunch by IBM's command reference for 10.1; no more of them.

Jobs are files in $FAKE_BATCH. A job runs at once and never ends by itself. The queue is "normal".
The grammar is that of bsub.1, bjobs.1 and the pages "Affinity string", "Usage string" and "-gpu". IBM documents
messages only in part: those for bad options are from memory.
"""

import json
import os
import re
import shlex
import sys

STATE = os.environ["FAKE_BATCH"]
SECTION = re.compile(r"(select|rusage|span|affinity|order|same|cu)\[[^][]*\]$")
INSIDE = {
    "span": r"(ptile=\d+|hosts=-?\d+)$",
    "rusage": r"\w+=\d+(KB|MB|GB|K|M|G)?(/(host|task|job))?$",
    "affinity": r"(core|thread|numa|socket)(\(\d+\))?(\*\d+)?(:(cpubind|membind|distribute)=\w+)*$",
}
VALUES = {
    "-n": r"\d+(,\d+)?$",
    "-nnodes": r"\d+$",
    "-W": r"(\d+:)?\d+(/.+)?$",
    "-w": r"(ended|done|exit)\(\d+\)$",
    "-J": r"[^\s/]{1,4094}$",
    "-gpu": r"num=\d+(/(task|host))?(:(mode=(shared|exclusive_process)|j_exclusive=(yes|no)|gmodel=[\w.-]+))*$",
    "-o": r"/[^%]*$",  # %J and %I are replaced
}
#: Fields of bjobs -o that are used here; there are some hundred.
FIELDS = ("jobid", "jobindex", "stat", "run_time", "exec_host", "pend_reason", "output_file")


def fail(code, words):
    sys.stderr.write(words + "\n")
    sys.exit(code)


def requirement(text):
    """Check the text of -R: sections with a name and brackets."""
    for section in text.split():
        name = section.partition("[")[0]
        if not SECTION.match(section) or not re.match(INSIDE.get(name, ".+"), section[len(name) + 1 : -1]):
            fail(255, "Bad resource requirement syntax. Job not submitted.")


def source(words):
    """Check the options of bsub; return the script, and whether it is a file: so it is on systems with launch nodes."""
    while words:
        if len(words) == 1 and not words[0].startswith("-"):
            with open(words[0]) as stream:
                return stream.read(), True
        option, value, *words = words
        if option != "-w" or not re.match(VALUES["-w"], value):
            fail(255, f"{value}: Bad argument for option {option}. Job not submitted.")
        number = re.search(r"\d+", value).group()
        if not os.path.exists(os.path.join(STATE, number)):
            fail(255, f"{value}: No matching job found. Job not submitted.")
    return sys.stdin.read(), False


def bsub(words):
    found = {}
    text, is_file = source(words)
    for line in text.splitlines()[1:]:
        if not line.startswith("#"):
            break
        if not line.startswith("#BSUB "):
            continue
        option, *rest = shlex.split(line[len("#BSUB ") :])
        if option == "-rn" and not rest:
            continue
        if option not in ("-J", "-o", "-n", "-nnodes", "-R", "-W", "-q", "-P", "-U", "-w", "-gpu") or len(rest) != 1:
            fail(255, f"Illegal option -- {option}. Job not submitted.")
        if option == "-R":
            requirement(rest[0])
        elif not re.match(VALUES.get(option, ".+"), rest[0]):
            fail(255, f"{rest[0]}: Bad argument for option {option}. Job not submitted.")
        if option == "-q" and rest[0] != "normal":
            fail(255, f"{rest[0]}: No such queue. Job not submitted.")
        found[option] = rest[0]
    if ("-nnodes" in found) != is_file or {"-nnodes", "-n"} <= set(found):
        fail(255, "Job not submitted.")  # OLCF: bsub reads a file there, "input redirection will not work"
    number = str(len(os.listdir(STATE)) + 1)
    with open(os.path.join(STATE, number), "w") as stream:
        json.dump(dict(found, stat="RUN"), stream)
    print("Job <{}> is submitted to {}queue <normal>.".format(number, "" if "-q" in found else "default "))


def bjobs(words):
    if words[:1] == ["-a"]:
        del words[0]
    if words[:2] != ["-noheader", "-o"]:
        fail(255, "bjobs: Illegal option")
    code, numbers = 0, words[3:] or sorted(os.listdir(STATE))
    for number in numbers:
        if not os.path.exists(os.path.join(STATE, number)):
            sys.stderr.write(f"Job <{number}> is not found\n")
            code = 255
            continue
        with open(os.path.join(STATE, number)) as stream:
            found = json.load(stream)
        values = {
            "jobid": number, "jobindex": "0", "stat": found["stat"], "run_time": "7 second(s)",
            "exec_host": "2*cn1:2*cn2", "pend_reason": "-", "output_file": found.get("-o", "-"),
        }  # fmt: skip
        fields, _, delimiter = words[2].partition("delimiter=")
        if any(field not in FIELDS for field in fields.split()):
            fail(255, f"bjobs: unknown field in {fields!r}")
        print(delimiter.strip("'").join(values[field] for field in fields.split()))
    sys.exit(code)


def bkill(words):
    path = os.path.join(STATE, words[0])
    if not os.path.exists(path):
        fail(255, f"Job <{words[0]}>: No matching job found")
    with open(path) as stream:
        found = json.load(stream)
    if found["stat"] == "EXIT":
        fail(255, f"Job <{words[0]}>: Job has already finished")
    with open(path, "w") as stream:
        json.dump(dict(found, stat="EXIT"), stream)
    print(f"Job <{words[0]}> is being terminated")


def bqueues(words):
    if words not in ([], ["normal"]):
        fail(255, f"{words[0]}: No such queue")
    print("QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP")
    print("normal           30  Open:Active       -    -    -    -     0     0     0     0")


def bhosts(words):
    del words
    print("HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV")
    for name, state in (("cn1", "ok"), ("cn2", "closed_Full"), ("cn3", "unavail")):
        print("%-18s %-15s    -      4      0      0      0      0      0" % (name, state))


def blaunch(words):
    """Do as rsh: give the words to a shell of the node."""
    while words[0] == "-n":
        del words[0]
    os.execv("/bin/sh", ["/bin/sh", "-c", " ".join(words[1:])])


COMMANDS = {"bsub": bsub, "bjobs": bjobs, "bkill": bkill, "bqueues": bqueues, "bhosts": bhosts, "blaunch": blaunch}
COMMANDS[os.path.basename(sys.argv[0])](sys.argv[1:])
