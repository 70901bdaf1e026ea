"""Where a simulated site is made: in namespaces of this machine, or in a container of Docker."""

import shutil
import sys
from collections.abc import Callable, Sequence

from deployer.connected.ground import progress
from deployer.connected.rehearse import namespaces
from deployer.connected.rehearse.judged import DOCKER, NAMESPACES, Judged
from deployer.connected.rehearse.request import RehearsalRequest
from deployer.contract import programs
from deployer.contract.errors import MissingTool, Refused

WAYS = (NAMESPACES, DOCKER)

_ELSEWHERE = "or rehearse on another machine"


def rehearsed(
    request: RehearsalRequest, accepted: Sequence[str], way: str | None, tell: Callable[[str], None]
) -> Judged:
    """Run a job on a simulated site and judge it.

    Args:
        way: NAMESPACES or DOCKER; None: namespaces if this machine can make them, else Docker.

    Raises:
        Refused: this machine cannot simulate a site.
        MissingTool: Docker was asked for, and no engine answers.
        DeployerError: as ``rehearse.rehearse`` raises.
    """
    if (way or _possible(tell)) == DOCKER:
        from deployer.connected.rehearse import container

        return container.rehearse(request, accepted, tell)
    if way == NAMESPACES and (forbidden := namespaces.forbidden()):
        raise Refused(f"this machine cannot simulate a site: {forbidden}", f"use --engine docker, or {_remedy()}")
    from deployer.connected.rehearse.outcome import judge
    from deployer.connected.rehearse.own_tools import own_tools
    from deployer.connected.rehearse.rehearse import rehearse

    return judge(rehearse(request, own_tools(tell), tell, progress.far_bar), tuple(accepted))


def _remedy() -> str:
    """Return how namespaces become possible here."""
    if sys.platform != "linux":
        return _ELSEWHERE.partition(" ")[2]
    if shutil.which("ip") is None:
        return f"{programs.remedy('ip')}, {_ELSEWHERE}"
    return f"allow user namespaces ({namespaces.SYSCTL}), {_ELSEWHERE}"


def _possible(tell: Callable[[str], None]) -> str:
    """Return the way that works here. Raises Refused."""
    forbidden = namespaces.forbidden()
    if not forbidden:
        return NAMESPACES
    from deployer.connected.ground import engine

    try:
        engine.connect().close()
    except MissingTool as error:
        hint = f"start Docker, or {_remedy()}"
        raise Refused(f"this machine cannot simulate a site: {forbidden}; {error.message}", hint) from error
    tell(f"the simulated site runs in a container of Docker, because {forbidden}")
    return DOCKER
