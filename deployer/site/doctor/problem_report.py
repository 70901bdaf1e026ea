"""doctor --report: one file about a problem at a site, without names, to attach to an issue. Nothing is sent.

Before its JSON object, the file contains the same content as readable lines, each after ``# ``. Only the fields
listed here are included. In their texts, only words from deployer's own documents, small numbers, and versions are
kept. All other words are replaced with placeholders: known names with those of ``redact``, the rest with ``word-1``,
etc.
"""

import errno
import os
import platform
import re
import shutil
from contextlib import suppress
from typing import Any, Dict, FrozenSet, List, Mapping, Match, Optional, Sequence, Tuple

from deployer import __version__
from deployer.contract.base import json_records, records
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.json_records import Fields, Record
from deployer.contract.proof import in_words
from deployer.contract.site.plan import NATIVE, Plan
from deployer.contract.site.runtime_table import RUNTIMES
from deployer.site.capture import machine, redact
from deployer.site.capture.capture_files import pretty
from deployer.site.capture.tools import Tools
from deployer.site.doctor.climb import Climb, Ground
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.system.tool import documents

SCHEMA = "problem-report"
_HEAD = """
A report of `doctor` for deployer's developers. Nothing was sent. Read all of it before you attach it to an issue.
Placeholders such as host-1 and word-1 replace names, addresses and folders: no word is here that deployer's own
documents do not have. Versions and hardware may still show which site it is.
"""
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_OF_PLAN = ("node", "limits", "launch", "modules", "directives", "namespaces", "pass_environment", "start_options")
_OF_LAUNCH = ("nodes", "ranks_per_node", "threads", "workers", "runtime", "time", "without_mpi")

_TOKEN = re.compile(r"\w(?:[\w.+-]*\w)?")
#: Names of steps, systems and version parts that the documents may lack, and folders that all systems have. After a
#: slash, no other word is kept.
_MORE = (
    "aarch64 almalinux centos debian enterprise fedora hat leap linux opensuse oracle red rhel rocky stream suse "
    "ubuntu x86_64 broken codec completed drain gnu idle intel-mpi libzstd mixed ok os pmi2 pmix right skipped sysctl "
    "us usable works zstd"
)
_PLACES = (
    "bin dev etc home include lib lib64 linux libexec local mnt modules opt proc run sbin share shm sys tmp usr var "
    "cray cuda hpcx intel mpi mpich mvapich2 nvidia oneapi openmpi python3 x86_64-linux-gnu aarch64-linux-gnu"
)
_FOLDERS = frozenset(_PLACES.split())
_PROGRAMS = frozenset([*RUNTIMES, *(known.program for known in RUNTIMES.values())])
_PLACEHOLDER = re.compile(r"(?:account|address|folder|host|job|partition|site|bundle|user)-\d+")
_SUFFIX = r"(?:[.+-](?:el\d{1,2}(?:_\d{1,2})?|x86_64|aarch64|amd64|arm64|cloud|default|generic|rt|dfsg\d|rc\d{1,2}))*"
_NUMBER = re.compile(r"v?\d{1,4}(?:\.\d{1,4}){0,5}(?:-\d{1,4}(?:\.\d{1,4}){0,3})?" + _SUFFIX)
_FILE = re.compile(
    r"lib(?:c|cuda|fabric|ibverbs|m|mpi|mpifort|nccl|pmi2?|pmix|psm2|uc[pst])\.so(?:\.\d{1,3})*|python3(?:\.\d{1,2})?"
)
#: The part to keep of a kernel version that includes its builder's name.
_BEGINNING = re.compile(r"\d{1,2}(?:\.\d{1,4})+-")
#: The maximum number of digits to keep: ids of users and jobs, and telephone numbers, have more.
_DIGITS = 11


def last_job(ground: Ground) -> str:
    """Return the newest job folder under the root folder; empty if there is none."""
    with suppress(DeployerError):
        return jobs.find(ground.store, None)
    return ""


def text(ground: Ground, climb: Climb, folder: str) -> str:
    """Return the report: the ladder, the machine's facts, the plan, and the last job before the climb."""
    last_job, last_result = _job(folder) if folder else (None, None)
    record = {
        "versions": _versions(ground.plan),
        "plan": _plan(ground.plan) if ground.plan else None,
        "doctor": [step.record() for step in climb.steps],
        "proofs": list(map(_proof, ground.results.values())),
        "last_job": last_job,
    }
    results = [fields for fields in (*ground.results.values(), last_result) if fields]
    clean = Anonymous(_names(ground, results))(record)
    head = [("# " + line).rstrip() for line in [*_HEAD.strip().splitlines(), "", *_summary(clean)]]
    return "\n".join([*head, pretty(json_records.stamped(SCHEMA, clean)), ""])


def _versions(plan: Optional[Plan]) -> Record:
    """Return a description of each kind of software on this machine."""
    tools = Tools(settings=[each for known in SCHEDULERS.values() for each in known.settings])
    mpi = plan.mpi if plan else None
    there = [name for name, known in RUNTIMES.items() if name != NATIVE and shutil.which(known.program)]
    asked = {kind: known.version.split() for kind, known in SCHEDULERS.items() if known.version}
    kinds = [plan.scheduler] if plan else [kind for kind, words in asked.items() if shutil.which(words[0])][:1]
    about = [tools.ask(asked[kind], any_status=True) for kind in kinds if kind in asked]
    return {
        "deployer": __version__,
        "python": platform.python_version(),
        "system": ", ".join(filter(None, [machine.os_name(), os.uname().release, os.uname().machine])),
        "glibc": machine.glibc() or "another C library",
        "batch": " ".join(kinds + [each for said in about if said for each in _VERSION.findall(said.both)[:1]])
        or "none",
        "runtimes": ", ".join("{} {}".format(name, machine.version(tools, name) or "") for name in there)
        or "none in PATH",
        "mpi": f"{mpi.family} {mpi.version}, {mpi.library}" if mpi else "not the site's",
    }


def _plan(plan: Plan) -> Record:
    """Return the plan without its private parts, with the keys of mappings as strings."""
    whole, checked = records.plain(plan), plan.checked
    check: Optional[Record] = None
    if checked:
        codes = sorted({item.code for item in checked.findings})
        check = {"verdict": checked.verdict, "codes": codes, "accepted": checked.accepted}
    return {
        **{name: whole[name] for name in _OF_PLAN},
        "binds": [bind.source for bind in plan.binds],
        "environment": ["{}={}".format(*pair) for pair in plan.environment.items()],
        "against": ["{}: {}".format(*pair) for pair in plan.against.items()],
        "check": check,
    }


def _job(folder: str) -> Tuple[Record, Optional[Fields]]:
    """Return a job's layout, end, codes, proof and steps, and its result, as far as its files are readable."""
    record: Record = {}
    fields: Optional[Fields] = None
    try:
        launch, status = result.launch(folder), jobs.status(folder)
        record.update((name, getattr(launch, name)) for name in _OF_LAUNCH)
        record.update(state=status.state, problem=status.problem, exit_code=status.exit_code, seconds=status.seconds)
        fields = result.read(folder)
        record["findings"] = [[item.text("severity"), item.text("code")] for item in fields.items("findings")]
        record["proof"] = _proof(fields)
        record["steps"] = [[step.text("name"), step.record.get("seconds")] for step in fields.items("steps")]
    except DeployerError as error:
        record["problem"] = error.message
    return record, fields


def _proof(fields: Fields) -> str:
    """Return what the ranks of a job proved, and the number of nodes."""
    return "%s; nodes: %d" % (in_words.words(fields.record), len(_hosts(fields)))


def _hosts(fields: Fields) -> List[str]:
    return sorted({rank.maybe_text("host") or "" for rank in fields.items("ranks")} - {""})


def _names(ground: Ground, results: Sequence[Fields]) -> Dict[str, List[str]]:
    """Return the known confidential names by kind; these names may also be words in the documents."""
    images, plan = ground.store.installed(), ground.plan
    hosts: List[str] = []
    for fields in results:
        with suppress(DeployerError):
            hosts += _hosts(fields)
    names = {
        "folder": [ground.store.root, os.path.expanduser("~")],
        "bundle": [name for image in images for name in (image.receipt.label, image.receipt.name)],
        "site": [site for image in images for site in image.sites()],
    }
    if plan:
        names["folder"].append(plan.workspace)
        names["site"] += [plan.site, plan.batch.cluster or ""]
        names["account"] = [plan.account or "", plan.batch.account_suffix or ""]
        batch = plan.batch
        names["partition"] = [plan.partition, plan.queue, *plan.without, batch.qos or "", batch.constraint or ""]
        hosts += batch.hosts
    return {**names, "user": redact.users(), "host": redact.hosts(hosts)}


def _summary(record: Record) -> List[str]:
    """Return the report in a few lines."""
    plan, job = record["plan"], record["last_job"]
    verdict = plan["check"]["verdict"] if plan and plan["check"] else "not asked" if plan else "no plan"
    lines = ["%-8s  %s" % pair for pair in [*record["versions"].items(), ("check", verdict)]]
    lines += ["%(state)-8s  %(name)-10s %(saw)s  (%(seconds).1f s)" % rung for rung in record["doctor"]]
    if job:
        codes = ", ".join(map(" ".join, job.get("findings", ())))
        lines.append(f"last job  {job.get('state', 'unknown')}: {codes or job.get('problem') or 'no findings'}")
    return [" ".join(line.splitlines()) for line in lines]  # a failed program may have printed several


# --- without names ---


class Anonymous:
    """Replaces names and unknown words in JSON values; keys must be deployer's own.

    Args:
        names: known names by kind, as for ``Redaction``.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._redact = redact.Redaction(names)
        #: Texts of deployer's own, which are kept whole.
        self._ours = frozenset([*(page.code for page in documents.every_page()), *RUNTIMES, *SCHEDULERS])
        self._vocabulary = _vocabulary()
        self._unknown: Dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        """Return ``value`` without names."""
        if isinstance(value, str):
            return value if value in self._ours else _TOKEN.sub(self._word, self._redact(value))
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(each) for each in value]
        return value

    def _word(self, match: Match[str]) -> str:
        word, before = match.group(), match.string[: match.start()]
        known = _FOLDERS if before.endswith("/") else self._vocabulary
        if word.lower() in known or word in _PROGRAMS or len(word) == 1 or _PLACEHOLDER.fullmatch(word):
            return word
        if _FILE.fullmatch(word) or (_NUMBER.fullmatch(word) and sum(map(str.isdigit, word)) <= _DIGITS):
            return word
        version = _BEGINNING.match(word)
        return (version.group() if version else "") + self._unknown.setdefault(
            word.lower(), "word-%d" % (len(self._unknown) + 1)
        )


def _vocabulary() -> FrozenSet[str]:
    """Return the words of the documents and of the system's error messages, except those with digits."""
    texts = [*documents.by_name().values(), *map(os.strerror, errno.errorcode)]
    words = {word.lower() for text in texts for word in _TOKEN.findall(text)}
    return frozenset(_MORE.split()).union(word for word in words if not any(map(str.isdigit, word)))
