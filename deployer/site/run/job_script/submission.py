"""Requests to the batch system besides the layout: account, partition, and the user's own options. Pure."""

import re
from typing import Collection, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle import limits
from deployer.contract.rules.findings import finding, refused
from deployer.contract.site.plan import GpuRequest, Plan, requests_gpus
from deployer.site.jobs import schedulers
from deployer.site.jobs.schedulers.interface import STEPS, JobRequest

#: Options that the script sets from the job's layout; other values would contradict it.
_OURS = ("job-name", "J", "output", "o", "nodes", "N", "ntasks", "n", "ntasks-per-node", "cpus-per-task", "c", "time",
         "t", "mem", "account", "A", "partition", "p", "constraint", "C", "reservation", "array", "a",
         "wrap")  # fmt: skip
#: Variables in which users store their account.
_VARIABLES = ("SBATCH_ACCOUNT", "SLURM_ACCOUNT")


class SubmissionOptions(NamedTuple):
    """The user's options; None selects the plan's value.

    Attributes:
        account: the account to charge.
        partition: the partition.
        constraint: required features of nodes.
        reservation: the reservation.
        directives: complete directives for the batch system.
        gpus: GPUs per node; 0 requests none.
    """

    account: Optional[str] = None
    partition: Optional[str] = None
    constraint: Optional[str] = None
    reservation: Optional[str] = None
    directives: Sequence[str] = ()
    gpus: Optional[int] = None


def ask(
    plan: Plan,
    options: SubmissionOptions,
    nodes: int,
    time: str,
    environment: Optional[Mapping[str, str]],
    gpus: Optional[int] = None,
    waived: Collection[str] = (),
) -> JobRequest:
    """Return the request to the batch system, without the layout.

    The constraints of the plan and the user are combined. Only the limits of the plan's own partition are checked.

    Args:
        time: the job's time limit.
        environment: the user's environment, for the account and Slurm's cluster. sbatch does not get these variables,
            because they would take precedence over the script's directives. None: unknown, as on the laptop.
        gpus: GPUs per node that the job's ranks need; 0: request none; None: not specified.
        waived: the codes of ``contract.bundle.limits`` to ignore; only the batch system knows whether they still apply.

    Raises:
        Refused: the site would not accept the job.
        UsageError: a word is invalid.
    """
    scheduler, batch = schedulers.known(plan.scheduler), plan.batch
    queue, given = options.partition or plan.queue, environment or {}
    if queue == plan.queue or not scheduler.prefix:
        for against in limits.of_request(plan, nodes, time):
            if against.code not in waived:
                raise refused(against)
    account = options.account or plan.account or next(filter(None, map(given.get, _VARIABLES)), None)
    needed = environment is not None and plan.limits.account
    if account is None and needed and not _in_directives(plan.directives, "account", "A", "P"):
        reason = f"jobs on {plan.site} must name the account that they are charged to"
        remedy = "--account NAME, or SBATCH_ACCOUNT in the environment, or scheduler.account in the site's profile"
        raise refused(finding("queue.account", "", reason=reason, remedy=remedy))
    suffix = batch.account_suffix
    if account and suffix and not account.endswith(suffix):
        account += suffix
    check = _sbatch_word if scheduler.way == STEPS else _line
    directives = [*plan.directives, *(check(text, scheduler.ours) for text in options.directives)]
    request = JobRequest(
        queue=queue,
        account=account,
        constraints=[text for text in (batch.constraint, options.constraint) if text],
        reservation=options.reservation,
        qos=None if _in_directives(options.directives, "qos", "q") else batch.qos,
        cluster=batch.cluster or given.get(scheduler.selects),
        storage=batch.storage,
        gpus=_gpus(plan, options.gpus, directives, gpus),
        parallel_environment=batch.parallel_environment,
        directives=directives,
        exclusive=batch.exclusive and queue == plan.queue,
    )
    for name in ("qos", "cluster", "storage", "parallel_environment", "gpus", "exclusive"):
        if getattr(request, name) and name not in scheduler.knows and scheduler.prefix:
            hint = "remove it from partitions.%s in the site's profile" % (plan.partition or "NAME")
            raise Refused(f"{scheduler.title} cannot request what the plan of {plan.site} says: {name}", hint)
    for value in (request.queue, account, *request.constraints, options.reservation, request.qos, request.cluster):
        _one_line(value or "")
    return request


def _gpus(plan: Plan, asked: Optional[int], directives: Sequence[str], needed: Optional[int]) -> Optional[GpuRequest]:
    """Return the GPU request: all GPUs of a node, or the user's number; None if a directive requests them.

    If nodes have different numbers of GPUs, a job gets as many as it needs.
    """
    there = plan.batch.gpus
    site_word = re.compile(rf"-l (.*,)?{re.escape(there.word)}=") if there else None
    requesting = (line for line in directives if requests_gpus(line) or (site_word and site_word.match(line)))
    own = next(requesting, None)
    if asked is None:
        every = there and needed != 0 and (there.per_node or needed)
        return there._replace(per_node=every) if there and every and not own else None
    if asked < 0:
        raise UsageError("--gpus %d: not a number of GPUs" % asked, "0 or more GPUs per node")
    if own:
        hint = "give only one of them; if it is a directive of the site's profile, replace it there by gpu_request"
        raise UsageError("--gpus %d: the directive %s requests GPUs already" % (asked, own), hint)
    if not asked:
        return None
    if there is None:
        raise Refused(
            "--gpus %d: the plan of %s does not know how jobs request GPUs" % (asked, limits.name(plan)),
            "set scheduler.gpu_request and node.gpus in the site's profile and make a new plan, or use --directive",
        )
    if asked > there.per_node > 0:
        raise Refused(
            "%d GPUs per node are asked for, but a node of %s has %d" % (asked, limits.name(plan), there.per_node),
            "--gpus %d at most, and more --nodes" % there.per_node,
        )
    return there._replace(per_node=asked)


def _line(line: str, ours: Sequence[str]) -> str:
    """Return a directive for a batch system whose options are separate words, such as ``-l gpu=1``."""
    words = _one_line(line).split()
    if not re.match(r"^-[A-Za-z]", line):
        raise UsageError(f"--directive {line}: not a valid option", "for instance --directive='-l NAME=VALUE'")
    if any(words[0] == option or line.startswith(option + "=") for option in ours):
        raise UsageError(f"--directive {line}: the script sets this itself", "see the options of run for it")
    return line


def _sbatch_word(word: str, ours: Sequence[str]) -> str:
    del ours
    match = re.match(r"^(?:--([a-z][a-z-]*)|-([A-Za-z])[^=]*)(?:=.*)?$", _one_line(word))
    if not match:
        raise UsageError(f"--directive {word}: not a valid word for sbatch", "for instance --directive=--exclusive")
    if (match.group(1) or match.group(2)) in _OURS:
        raise UsageError(f"--directive {word}: the script sets this itself", "see the options of run for it")
    return word


def _one_line(word: str) -> str:
    if "\n" in word:
        raise UsageError(f"{word!r}: a directive cannot have a line end")
    return word


def _in_directives(directives: Sequence[str], name: str, *letters: str) -> bool:
    return any(word.startswith((f"--{name}", *("-" + letter for letter in letters))) for word in directives)
