"""The choice of a start option: the first in the plan that the nodes, their memory and the site allow, and the reason.

Facts of the site can rule out a start option; they never add one.
"""

from typing import List, Mapping, NamedTuple, Optional

from deployer.contract import memory_copies, runtime_table
from deployer.contract.errors import Refused
from deployer.contract.plan import DISK, NOT_STAGED, STAGINGS, Plan, StartOption
from deployer.contract.text import counted


class Choice(NamedTuple):
    """The start option for a job.

    Attributes:
        start_option: the chosen one.
        reason: why it was chosen, in words.
    """

    start_option: StartOption
    reason: str


class StagingNeed(NamedTuple):
    """What one node must hold.

    Attributes:
        sizes: MiB that the image takes, by staging.
        ranks_mb: MiB that all ranks of a node need; 0 if not specified.
        objections: why the image cannot be staged at all, by staging.
    """

    sizes: Mapping[str, int]
    ranks_mb: int = 0
    objections: Mapping[str, str] = {}

    def size(self, staging: str) -> int:
        """Return the MiB that the image takes on a node with this staging."""
        return self.sizes.get(staging, 0)


_NOTHING = StagingNeed({})


def explained(plan: Plan) -> List[str]:
    """Return what ranks would use, for people: MPI and runtimes, the order of these, and what one of them prevents."""
    return [plan.way, plan.tries, *memory_copies.reasons(plan)]


def choose(
    plan: Plan,
    nodes: int,
    vetoes: Mapping[str, str],
    need: StagingNeed = _NOTHING,
    staging: Optional[str] = None,
    runtime: Optional[str] = None,
) -> Choice:
    """Return the start option of ``plan`` to use on ``nodes`` nodes.

    Args:
        vetoes: why a runtime or launcher cannot be used here, by its name ("no ch-run in PATH"). Others are usable,
            unless the plan knows better.
        need: what one node must hold.
        staging: the user's choice; it overrides the number of nodes that a start option is meant for.
        runtime: the user's choice; None selects among the containers.

    Raises:
        Refused: no start option is left; the message lists the reason against each.
    """
    against: List[str] = []
    vetoes = dict(plan.against, **vetoes)
    among = plan.containers if runtime is None else [each for each in plan.start_options if each.runtime == runtime]
    offered = [option for option in among if staging in (None, option.staging)]
    asked = "".join("--%s %s: " % pair for pair in (("runtime", runtime), ("staging", staging)) if pair[1])
    for option in offered:
        objection = _objection(option, plan, nodes, vetoes, need, staging)
        if objection is None:
            return Choice(option, asked + _reason(plan, nodes, against + _without_option(plan, runtime)))
        against.append("%s (%s)" % (option.name, objection))
    raise Refused(
        "no way to start %s on %d nodes of %s: %s"
        % (
            plan.bundle,
            nodes,
            plan.site,
            ", ".join(against + _without_option(plan, runtime)) or _no_option(runtime, staging),
        ),
        "the plan's start options come from the site's profile: correct it, and on the laptop: deployer plan",
    )


def _without_option(plan: Plan, runtime: Optional[str]) -> List[str]:
    """Return the reasons against runtimes that the policy allows but that have no start option."""
    tried = [option.runtime for option in plan.start_options]
    over = [name for name in plan.against if name not in tried and runtime in (None, name)]
    return ["%s (%s)" % (name, plan.against[name]) for name in over]


def _no_option(runtime: Optional[str], staging: Optional[str]) -> str:
    known = runtime_table.RUNTIMES.get(runtime or "")
    if known and staging and staging not in known.stagings:
        return "%s cannot use an image that is staged so; it can: %s" % (known.name, ", ".join(known.stagings))
    said = "the plan has no start option"
    said += " with %s, which the site's policy must allow" % runtime if runtime else ""
    return said + (" that stages to " + staging if staging else "")


def _reason(plan: Plan, nodes: int, against: List[str]) -> str:
    first = "first in the plan for %d node%s that %s can use" % (nodes, "" if nodes == 1 else "s", plan.site)
    return first + ("; skipped: " + ", ".join(against) if against else "")


def _objection(
    option: StartOption, plan: Plan, nodes: int, vetoes: Mapping[str, str], need: StagingNeed, staging: Optional[str]
) -> Optional[str]:
    if staging is None and option.max_nodes is not None and nodes > option.max_nodes:
        return "meant for at most %s" % counted(option.max_nodes, "node")
    if option.staging != NOT_STAGED:
        if option.staging not in STAGINGS or option.place is None:
            return "this deployer does not know its staging"
        objection = need.objections.get(option.staging) or _too_large(option, plan, need)
        if objection:
            return objection
    return vetoes.get(option.runtime) or vetoes.get(option.launcher)


def _too_large(option: StartOption, plan: Plan, need: StagingNeed) -> Optional[str]:
    """Return the calculation if the image does not fit into the node, else None."""
    size, memory = need.size(option.staging), plan.node.memory_mb
    if option.room_mb is not None and size > option.room_mb:
        return "the image takes %d MiB, but %s has %d MiB" % (size, option.place, option.room_mb)
    whole = size + need.ranks_mb
    if option.staging != DISK and whole > memory:
        return "%d MiB for the image + %d MiB for the ranks = %d MiB, but a job may use %d MiB per node" % (
            size,
            need.ranks_mb,
            whole,
            memory,
        )
    return None
