"""A rehearsal with the usual settings, as `pack --rehearse` and `deploy` make it."""

from collections.abc import Callable

from deployer.connected.rehearse import ways
from deployer.connected.rehearse.request import RehearsalRequest
from deployer.connected.rehearse.site_plan import plan_of
from deployer.connected.site_profile.profile import Profile
from deployer.contract.rehearsal import Rehearsal

#: The time limit in seconds.
SECONDS = 120


def rehearsal(
    bundle: str, job: str | None, site: Profile | None, tell: Callable[[str], None], partition: str | None = None
) -> Rehearsal:
    """Rehearse a job of a bundle (None: the first), and return the outcome.

    Args:
        site: what is simulated; None: no site in particular.
        tell: receives a line about what is done now.
        partition: of the site; None: its first.
    """
    plan = plan_of(bundle, site, partition or next(iter(site.partitions), None)) if site else None
    return ways.rehearsed(RehearsalRequest(bundle, job, plan, None, SECONDS), (), None, tell).outcome
