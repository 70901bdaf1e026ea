"""The choice of a variant: the first of the plan's table that the node count and the site allow, with the reason.

The site's facts may veto a variant, never invent one.
"""

from typing import List, Mapping, NamedTuple, Optional

from deployer.contract.errors import Refused
from deployer.contract.plan import Plan, Variant


class Choice(NamedTuple):
    """A variant and why it was taken, in words."""

    variant: Variant
    reason: str


def choose(plan: Plan, nodes: int, vetoes: Mapping[str, str]) -> Choice:
    """Return the variant of ``plan`` to use on ``nodes`` nodes.

    ``vetoes`` maps a runtime's or launcher's name to why it cannot be used here ("no ch-run in PATH"); what is not
    named is taken to be usable. Raises Refused when no variant is left, with what stood against each.
    """
    against: List[str] = []
    for variant in plan.variants:
        objection = _objection(variant, nodes, vetoes)
        if objection is None:
            passed_over = "; passed over " + ", ".join(against) if against else ""
            return Choice(
                variant,
                "first in the plan for %d node%s that %s can use%s"
                % (nodes, "" if nodes == 1 else "s", plan.site, passed_over),
            )
        against.append("%s (%s)" % (variant.name, objection))
    raise Refused(
        "no way to start %s on %d nodes of %s: %s"
        % (plan.bundle, nodes, plan.site, ", ".join(against) or "the plan has no variant"),
        "the plan's variants come from the site's profile: `deployer plan` makes a new one when it is mended",
    )


def _objection(variant: Variant, nodes: int, vetoes: Mapping[str, str]) -> Optional[str]:
    if variant.max_nodes is not None and nodes > variant.max_nodes:
        return "meant for at most %d nodes" % variant.max_nodes
    return vetoes.get(variant.runtime) or vetoes.get(variant.launcher)
