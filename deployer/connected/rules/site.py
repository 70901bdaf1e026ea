"""Rules of what is known of a site, and whether there can be a plan for it at all."""

from collections.abc import Iterator

from deployer.connected.profile import Profile
from deployer.connected.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.contract.errors import DeployerError, Unknown
from deployer.contract.findings import ERROR, Finding


def captured(case: Case) -> Iterator[Finding]:
    """facts.mpi: nobody has captured the libraries of the site's MPI."""
    mpi = case.plan.mpi
    if mpi and not case.processes:
        text = f"nobody has captured the libraries of {mpi.says or mpi.family}"
        yield Finding("facts.mpi", MISSING_FACTS, case.plan.site, text, CAPTURE)


def no_plan(profile: Profile, error: DeployerError) -> Finding:
    """plan.refused, facts.plan: there can be no plan; one by a rule, the other for want of facts."""
    if isinstance(error, Unknown):
        hint = error.hint or "say it in the profile"
        return Finding("facts.plan", MISSING_FACTS, profile.name, error.message, hint)
    return Finding("plan.refused", ERROR, profile.name, error.message, error.hint or "see the profile")
