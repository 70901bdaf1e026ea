"""The plans of an installed image for one site, and the choice of one by partition. Pure."""

from typing import Dict, List, Mapping, NamedTuple, Optional

from deployer.contract.base.errors import UsageError
from deployer.contract.site.plan import Plan


class SitePlans(NamedTuple):
    """The plans for one site.

    Attributes:
        first: the plan to use if no partition is given.
        plans: the plans by partition; newer ones replace the bundle's.
        without: the partitions that have no plan, each with the reason. A reason in a newer update also applies to a
            partition that has a plan in the bundle.
    """

    first: Plan
    plans: Mapping[str, Plan]
    without: Mapping[str, str]

    def find(self, partition: Optional[str] = None) -> Plan:
        """Return the plan for a partition, given by its name in the profile or in the batch system.

        Args:
            partition: None: the first plan's. The first plan is also used for an unknown partition.

        Raises:
            UsageError: several plans are for this queue.
        """
        wanted = partition or self.first.partition
        if wanted in self.plans:
            return self.plans[wanted]
        same = [] if wanted in self.without else [plan for plan in self.plans.values() if plan.queue == wanted]
        if len(same) > 1:
            raise UsageError(
                f"{self.first.bundle} has several plans for {wanted} of {self.first.site}",
                "give one of these: --partition {}".format(" or ".join(plan.partition for plan in same)),
            )
        return same[0] if same else self.plans[self.first.partition]

    def reason(self, partition: Optional[str] = None) -> Optional[str]:
        """Return why the plan from ``find`` must not be used for a partition; None if it may be used."""
        names = [partition or self.first.partition, self.find(partition).partition]
        return next((self.without[name] for name in names if name in self.without), None)


def of(carried: List[Plan], newer: List[Plan]) -> SitePlans:
    """Return the plans for one site.

    Args:
        carried: the plans in the bundle, its first plan first.
        newer: the plans in a plan update.
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
