"""Select where a simulated site is made: in namespaces of this machine, or in a Docker container."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deployer.connected.ground import caches, progress, this_machine
from deployer.connected.rehearse.ask.judged import DOCKER, NAMESPACES, Judged
from deployer.connected.rehearse.ask.request import RehearsalRequest
from deployer.connected.rehearse.world import namespaces
from deployer.contract.base import programs
from deployer.contract.base.errors import MissingTool, Refused
from deployer.contract.site.plan import CHARLIECLOUD_FOLDER, CHARLIECLOUD_START, Plan
from deployer.system.trust.verify import begin, opened

if TYPE_CHECKING:
    from deployer.connected.rehearse.ask.rehearse import Online
    from deployer.connected.site_profile.profile import Profile

WAYS = (NAMESPACES, DOCKER)
#: The default time limit in seconds.
SECONDS = 120


def rehearsed(
    request: RehearsalRequest, accepted: Sequence[str], way: str | None, tell: Callable[[str], None]
) -> Judged:
    """Run a job on a simulated site and return its outcome.

    Args:
        way: NAMESPACES or DOCKER; None: namespaces if this machine can make them, otherwise Docker.

    Raises:
        Refused: this machine cannot simulate a site.
        MissingTool: Docker was requested, and no engine responds.
        DeployerError: an error of ``rehearse.rehearse``.
    """
    if (way or _possible(tell)) == DOCKER:
        from deployer.connected.rehearse.ask import container

        return container.rehearse(request, accepted, tell)
    if way == NAMESPACES and (forbidden := namespaces.forbidden()):
        raise Refused(f"this machine cannot simulate a site: {forbidden}", f"use --engine docker, or {_remedy()}")
    return _in_namespaces(request, accepted, tell)


def online(request: RehearsalRequest, internet: Online, tell: Callable[[str], None]) -> Judged:
    """Run a job on a simulated site with internet. Raises as ``rehearsed``, without Docker."""
    if forbidden := namespaces.forbidden():
        raise Refused(f"this machine cannot simulate a site: {forbidden}", _remedy())
    return _in_namespaces(request, (), tell, internet)


def _in_namespaces(
    request: RehearsalRequest, accepted: Sequence[str], tell: Callable[[str], None], internet: Online | None = None
) -> Judged:
    from deployer.connected.bundle.pyz import make_pyz
    from deployer.connected.rehearse.ask.outcome import judge
    from deployer.connected.rehearse.ask.rehearse import SiteTools, rehearse

    tools = SiteTools(make_pyz(), _ch_run(tell))
    return judge(rehearse(request, tools, tell, progress.far_bar, internet), tuple(accepted))


def plan_of(bundle: str, profile: Profile, partition: str | None) -> Plan:
    """Return the plan of a bundle for a partition of a site. Raises the same errors as ``make_plan``."""
    from deployer.connected.site_profile.plan import make_plan

    with opened(bundle) as stream:
        manifest = begin(stream, bundle).manifest
    return make_plan(profile, f"{manifest.name}:{manifest.version}", manifest.mpi, partition)


def _ch_run(tell: Callable[[str], None]) -> Path:
    """Return the ch-run of the kit, or this machine's own if the kit would have to be made first."""
    from deployer.connected.bundle import kit

    here = shutil.which("ch-run")
    machine = this_machine.machine()
    folder = caches.KIT.folder / kit.PARTS["charliecloud"].recipe.key(machine)
    if here and not folder.is_dir():
        return Path(here)
    kit.members("charliecloud", machine, tell)
    return folder / CHARLIECLOUD_FOLDER / CHARLIECLOUD_START


def _remedy() -> str:
    """Return the hint for enabling namespaces here."""
    if not this_machine.is_linux():
        return "rehearse on another machine"
    first = f"allow user namespaces ({namespaces.SYSCTL})" if shutil.which("ip") else programs.remedy("ip")
    return f"{first}, or rehearse on another machine"


def _possible(tell: Callable[[str], None]) -> str:
    """Return the way that is possible here. Raises Refused."""
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
