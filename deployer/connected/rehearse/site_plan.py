"""The plan of the site that a rehearsal simulates."""

from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Profile
from deployer.contract.plan import Plan
from deployer.system.verify import begin, opened


def plan_of(bundle: str, profile: Profile, partition: str | None) -> Plan:
    """Return the plan of a bundle for a partition of a site. Raises as ``make_plan`` does."""
    with opened(bundle) as stream:
        manifest = begin(stream, bundle).manifest
    return make_plan(profile, f"{manifest.name}:{manifest.version}", manifest.mpi, partition)
