"""Requests to the batch system besides the layout: account, partition, time, and the user's own words. Pure."""

import re
from typing import List, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.errors import Refused, UsageError
from deployer.contract.job import seconds
from deployer.contract.plan import Plan

#: Options that the script sets from the job's layout; another value would contradict it.
_OURS = ("job-name", "J", "output", "o", "nodes", "N", "ntasks", "n", "ntasks-per-node", "cpus-per-task", "c", "time",
         "t", "mem", "account", "A", "partition", "p", "constraint", "C", "reservation", "array", "a",
         "wrap")  # fmt: skip
#: Variables in which users keep their account; Slurm itself reads the first.
_VARIABLES = ("SBATCH_ACCOUNT", "SLURM_ACCOUNT")


#: Slurm's words that request GPUs.
_GPUS = re.compile(r"--gres=gpu|--gpus|-G")
_GRES = "gres"


class SubmissionOptions(NamedTuple):
    """The user's options; None: the plan's value.

    Attributes:
        account: the account to charge.
        partition: the partition.
        constraint: features of nodes.
        reservation: the reservation.
        directives: complete words for sbatch.
    """

    account: Optional[str] = None
    partition: Optional[str] = None
    constraint: Optional[str] = None
    reservation: Optional[str] = None
    directives: Sequence[str] = ()


def sbatch_options(
    plan: Plan, options: SubmissionOptions, nodes: int, time: str, environment: Mapping[str, str]
) -> List[str]:
    """Return the words for sbatch.

    The constraints of the plan and of the user both hold. Only the limits of the plan's own partition are known and
    checked.

    Args:
        time: the job's time limit.
        environment: the user's environment, for the account.

    Raises:
        Refused: the site would not accept the job.
        UsageError: a word is invalid.
    """
    if plan.scheduler == "local" and nodes > 1:
        raise Refused("%s has no batch system: a job has one node, not %d" % (plan.site, nodes), "--nodes 1")
    limits = plan.limits
    partition, batch = options.partition or plan.queue, plan.batch
    if partition == plan.queue:
        if limits.max_nodes is not None and nodes > limits.max_nodes:
            raise Refused(
                "%d nodes are asked for, but a job in %s may have %d" % (nodes, _named(plan), limits.max_nodes),
                "--nodes %d at most" % limits.max_nodes,
            )
        if limits.max_time is not None and seconds(time) > seconds(limits.max_time):
            raise Refused(
                "a time limit of %s is asked for, but a job in %s may have %s" % (time, _named(plan), limits.max_time),
                "--time %s at most, and let the job continue from its checkpoint" % limits.max_time,
            )
    account = options.account or plan.account or next(filter(None, map(environment.get, _VARIABLES)), None)
    if account is None and limits.account and not _in_directives(plan.directives, "account", "A"):
        raise Refused(
            "jobs on %s must name the account that they are charged to" % plan.site,
            "--account NAME, or SBATCH_ACCOUNT in the environment, or scheduler.account in the site's profile",
        )
    suffix = batch.account_suffix
    if account and suffix and not account.endswith(suffix):
        account += suffix
    constraint = "&".join(filter(None, [batch.constraint, options.constraint]))
    asked = [
        ("clusters", batch.cluster),
        ("partition", partition),
        ("account", account),
        ("qos", None if _in_directives(options.directives, "qos", "q") else batch.qos),
        ("constraint", constraint),
        ("reservation", options.reservation),
    ]
    return [
        *("--%s=%s" % (name, _one_line(value)) for name, value in asked if value),
        *_gpus(plan, options),
        *plan.directives,
        *map(_directive, options.directives),
    ]


def _gpus(plan: Plan, options: SubmissionOptions) -> List[str]:
    """Return the words that request all GPUs of the nodes, unless other words request GPUs."""
    gpus, words = plan.batch.gpus, [*plan.directives, *options.directives]
    if gpus is None or any(_GPUS.match(word) for word in words):
        return []
    kind = gpus.type + ":" if gpus.type else ""
    if gpus.word == _GRES:
        return ["--gres=gpu:%s%d" % (kind, gpus.per_node)]
    return ["--%s=%s%d" % (gpus.word, kind, gpus.per_node)]


def _directive(word: str) -> str:
    match = re.match(r"^(?:--([a-z][a-z-]*)|-([A-Za-z])[^=]*)(?:=.*)?$", _one_line(word))
    if not match:
        raise UsageError("--directive %s: not a valid word for sbatch" % word, "for instance --directive=--exclusive")
    if (match.group(1) or match.group(2)) in _OURS:
        raise UsageError("--directive %s: the script sets this itself" % word, "see the options of run for it")
    return word


def _one_line(word: str) -> str:
    if "\n" in word:
        raise UsageError("%r: a word for sbatch cannot have a line end" % word)
    return word


def _in_directives(directives: Sequence[str], name: str, letter: str) -> bool:
    return any(word.startswith(("--%s" % name, "-" + letter)) for word in directives)


def _named(plan: Plan) -> str:
    return "%s of %s" % (plan.partition or "the default partition", plan.site)
