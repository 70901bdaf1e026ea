"""The ladder as a table, and the function that climbs it."""

from typing import Callable

from deployer.contract.base.errors import UsageError
from deployer.site.doctor import climb, cluster, here
from deployer.site.doctor.climb import Climb, Ground, Step

RUNGS = (
    ("kernel", here.kernel),
    ("python", here.python),
    ("runtime", here.runtime),
    ("image", here.image),
    ("scheduler", here.scheduler),
    ("one node", cluster.one_node),
    ("two nodes", cluster.two_nodes),
    ("fabric", cluster.fabric),
    ("horovod", cluster.horovod),
)


def examine(ground: Ground, tell: Callable[[Step], None]) -> Climb:
    """Climb until the first failure; ``tell`` receives each step when it is done."""
    try:  # the plan also affects the first rungs; the image rung reports why there is none
        ground.installed = here.find(ground)
        ground.plan = ground.installed.plan(ground.site)
    except UsageError:
        pass
    return climb.climb(ground, RUNGS, tell)
