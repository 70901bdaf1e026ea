"""The ladder as a table, and the climb of it."""

from typing import Callable

from deployer.contract.errors import UsageError
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
    """Climb the ladder, up to the first rung that is broken; ``tell`` gets each step when it is done."""
    try:  # what the plan says decides about the first rungs as well; why there is none is for the image's rung to say
        ground.installed = here.find(ground)
        ground.plan = ground.installed.plan(ground.site)
    except UsageError:
        pass
    return climb.climb(ground, RUNGS, tell)
