"""The plans of an installed image for one site, and which of them a partition's name means. Pure."""

from typing import Dict, List, Mapping, NamedTuple, Optional

from deployer.contract.errors import UsageError
from deployer.contract.plan import Plan


class SitePlans(NamedTuple):
    """The plans for one site.

    Attributes:
        first: the plan that is used without a partition.
        plans: the plans by partition; newer ones replace those that the bundle brought.
        without: the partitions that have no plan, each with the reason. If a newer update has a reason, it counts also
            for a partition for which the bundle brought a plan.
    """

    first: Plan
    plans: Mapping[str, Plan]
    without: Mapping[str, str]

    def find(self, partition: Optional[str] = None) -> Plan:
        """Return the plan for a partition, given by the profile's name for it or by the batch system's.

        Args:
            partition: None: that of the first plan. A partition that no plan knows gets the first plan.

        Raises:
            UsageError: several plans are for this queue.
        """
        wanted = partition or self.first.partition
        if wanted in self.plans:
            return self.plans[wanted]
        same = [] if wanted in self.without else [plan for plan in self.plans.values() if plan.queue == wanted]
        if len(same) > 1:
            raise UsageError(
                "%s has several plans for %s of %s" % (self.first.bundle, wanted, self.first.site),
                "give one of these: --partition %s" % " or ".join(plan.partition for plan in same),
            )
        return same[0] if same else self.plans[self.first.partition]

    def reason(self, partition: Optional[str] = None) -> Optional[str]:
        """Return why the plan that ``find`` returns must not be used for a partition; None: it may be used."""
        names = [partition or self.first.partition, self.find(partition).partition]
        return next((self.without[name] for name in names if name in self.without), None)


def of(carried: List[Plan], newer: List[Plan]) -> SitePlans:
    """Return the plans for one site.

    Args:
        carried: those that the bundle brought, its first one first.
        newer: those of a plan update.
    """
    without: Dict[str, str] = {}
    for plan in carried:
        without.update(plan.without)
    for plan in newer:
        without.pop(plan.partition, None)
    for plan in newer:
        without.update(plan.without)
    plans = {plan.partition: plan for plan in [*carried, *newer]}
    return SitePlans((carried or newer)[0], plans, without)
