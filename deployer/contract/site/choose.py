"""Choose a start option: the first in the plan that the nodes, their memory and the site allow, with the reason.

Facts about the site can rule out a start option but never add one.
"""

from typing import List, Mapping, NamedTuple, Optional

from deployer.contract.base.errors import Refused
from deployer.contract.base.text import counted
from deployer.contract.site import memory_copies, runtime_table
from deployer.contract.site.plan import DISK, NOT_STAGED, STAGINGS, Plan, StartOption


class Choice(NamedTuple):
    """The start option for a job.

    Attributes:
        start_option: the chosen option.
        reason: why it was chosen, in words.
    """

    start_option: StartOption
    reason: str


class Obstacle(NamedTuple):
    """Why a start option cannot be used.

    Attributes:
        reason: in words.
        remedy: what to do about it; empty: depends on the site.
    """

    reason: str
    remedy: str = ""


class StagingNeed(NamedTuple):
    """What a node must hold.

    Attributes:
        sizes: size of the image in MiB, by its form.
        ranks_mb: MiB that all ranks of a node need; 0 if not specified.
        objections: why the image cannot be staged at all, by its form.
    """

    sizes: Mapping[str, int]
    ranks_mb: int = 0
    objections: Mapping[str, Obstacle] = {}


_NOTHING = StagingNeed({})

#: With more ranks, the folder on the shared file system comes last even on few nodes: each further rank that imports
#: PyTorch makes 20,000 calls there, and opens 1,300 files (docs/evidence/benchmarks.md).
FEW_RANKS = 32


def explained(plan: Plan) -> List[str]:
    """Describe what ranks would use: MPI, the runtimes in order, and what any of them prevents."""
    return [plan.way, plan.tries, *memory_copies.reasons(plan)]


def choose(
    plan: Plan,
    nodes: int,
    vetoes: Mapping[str, str],
    need: StagingNeed = _NOTHING,
    staging: Optional[str] = None,
    runtime: Optional[str] = None,
    ranks: int = 1,
) -> Choice:
    """Return the start option of ``plan`` to use on ``nodes`` nodes.

    Args:
        vetoes: why a runtime, launcher or start option cannot be used here, by its name ("no ch-run in PATH"). Others
            are usable unless the plan rules them out.
        need: what one node must hold.
        staging: the user's choice; it overrides a start option's limit on the number of nodes.
        runtime: the user's choice; None selects among the containers.
        ranks: the ranks on all nodes.

    Raises:
        Refused: no start option is left; the message lists the reason against each.
    """
    remedies: List[str] = []
    vetoes = dict(plan.against, **vetoes)
    among = plan.containers if runtime is None else [each for each in plan.start_options if each.runtime == runtime]
    tried = [option.runtime for option in plan.start_options]
    without_option = [name for name in plan.against if name not in tried and runtime in (None, name)]
    against = [f"{name} ({plan.against[name]})" for name in without_option]
    offered = [option for option in among if staging in (None, option.staging)]
    if ranks > FEW_RANKS:
        offered.sort(key=lambda option: (tried.index(option.runtime), option.max_nodes is not None))
    for place, option in enumerate(offered):
        objection = _objection(option, plan, nodes, vetoes, need, staging)
        if objection is None:
            given = (("runtime", runtime), ("staging", staging))
            asked = "".join(f"--{name} {value}: " for name, value in given if value)
            first = "first in the plan for {} that {} can use".format(counted(nodes, "node"), plan.site)
            return Choice(option, asked + first + ("; skipped: " + ", ".join(against) if against else ""))
        against.insert(place, f"{option.name} ({objection.reason})")
        remedies.append(objection.remedy)
    reasons = ", ".join(against) or _no_option(runtime, staging)
    raise Refused(
        "no way to start %s on %d nodes of %s: %s" % (plan.bundle, nodes, plan.site, reasons),
        "; or ".join(dict.fromkeys(filter(None, remedies)))
        or "the plan's start options come from the site's profile: correct it, and on the laptop: deployer plan",
    )


def _no_option(runtime: Optional[str], staging: Optional[str]) -> str:
    known = runtime_table.RUNTIMES.get(runtime or "")
    if known and staging and staging not in known.stagings:
        return "{} cannot use an image that is staged so; it can: {}".format(known.name, ", ".join(known.stagings))
    with_runtime = f" with {runtime}, which the site's policy must allow" if runtime else ""
    return "the plan has no start option" + with_runtime + (" that stages to " + staging if staging else "")


def _objection(
    option: StartOption, plan: Plan, nodes: int, vetoes: Mapping[str, str], need: StagingNeed, staging: Optional[str]
) -> Optional[Obstacle]:
    if staging is None and option.max_nodes is not None and nodes > option.max_nodes:
        reason = "meant for at most {}".format(counted(option.max_nodes, "node"))
        return Obstacle(reason, f"use it on more nodes all the same: --staging {option.staging}")
    if option.staging != NOT_STAGED:
        if option.staging not in STAGINGS or option.place is None:
            return Obstacle("this deployer does not know its staging")
        objection = need.objections.get(option.form) or _too_large(option, plan, need)
        if objection:
            return objection
    veto = vetoes.get(option.runtime) or vetoes.get(option.launcher)
    if not veto and option.name in vetoes:
        return Obstacle(vetoes[option.name], "ask the site to allow it in the runtime's configuration")
    return Obstacle(veto) if veto else None


def _too_large(option: StartOption, plan: Plan, need: StagingNeed) -> Optional[Obstacle]:
    """Return the calculation if the image does not fit into a node, else None."""
    size, memory = need.sizes.get(option.form, 0), plan.node.memory_mb
    if option.room_mb is not None and size > option.room_mb:
        return Obstacle("the image takes %d MiB, but %s has %d MiB" % (size, option.place, option.room_mb))
    whole = size + need.ranks_mb
    if option.staging != DISK and whole > memory:
        sums = (size, need.ranks_mb, whole, memory)
        return Obstacle(
            "%d MiB for the image + %d MiB for the ranks = %d MiB, but a job may use %d MiB per node" % sums,
            "use fewer ranks per node",
        )
    return None
