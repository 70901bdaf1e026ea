"""The ladder as a table, and the function that climbs it."""

import time
from contextlib import suppress
from typing import Callable, List, Optional

from deployer.contract.base.errors import DeployerError, UsageError
from deployer.site.doctor import cluster, here
from deployer.site.doctor.climb import BROKEN, OK, SKIPPED, Climb, Ground, Skipped, Step

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
    with suppress(UsageError):  # the plan also affects the first rungs; the image rung reports why there is none
        ground.installed = here.find(ground)
        ground.plan = ground.installed.plan(ground.site)
    steps: List[Step] = []
    error: Optional[DeployerError] = None
    for name, rung in RUNGS:
        begun = time.monotonic()
        hint = ""
        try:
            state, saw = OK, rung(ground)
        except Skipped as reason:
            state, saw = SKIPPED, str(reason)
        except DeployerError as broken:
            state, saw, hint, error = BROKEN, broken.message, broken.hint, broken
        steps.append(Step(name, state, saw, time.monotonic() - begun, hint))
        tell(steps[-1])
        if error:
            break
    return Climb(steps, error)
