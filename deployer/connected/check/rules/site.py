"""Rules for the facts about a site, whether a plan for it is possible at all, and the limits of jobs."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base.errors import DeployerError, Unknown
from deployer.contract.base.text import counted
from deployer.contract.bundle import limits
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.rules.verdict import NO_PLAN

#: Sites install new software on maintenance days, about twice a year; then the captured software may be gone.
OLD_DAYS = 180


def captured(case: Case) -> Iterator[Finding]:
    """facts.mpi: the libraries of the site's MPI have not been captured."""
    mpi = case.plan.mpi
    files = case.profile.files_of(case.plan)
    if mpi and mpi.library not in (files.files.keys() | files.links.keys()):
        text = f"the libraries of {mpi.says or mpi.family} have not been captured"
        yield Finding("facts.mpi", MISSING_FACTS, case.plan.site, text, CAPTURE)


def age(case: Case) -> Iterator[Finding]:
    """profile.age: the site's facts are old or undated. This is a note: the verdict is as old as the facts."""
    if case.today is None:
        return
    ages = profiles.age(case.profile, case.today)
    undated = [facts.group for facts in ages if facts.days is None]
    old = [facts for facts in ages if facts.days is not None and facts.days > OLD_DAYS]
    if old or undated:
        texts = [f"{facts.group} is {counted(facts.days or 0, 'day')} old" for facts in old[:1]]
        more = counted(len(old) - 1, "more group")
        texts += [f"facts of {more} are older than {OLD_DAYS} days"] if len(old) > 1 else []
        texts += [f"the age of {undated[0]} is unknown"] if undated else []
        remedy = "capture the site again: `deployer capture HOST` prints what has changed"
        yield Finding("profile.age", NOTE, case.plan.site, "; ".join(texts), remedy)


def numbers(case: Case) -> Iterator[Finding]:
    """job.layout, job.memory, queue.nodes, queue.time: a job requests more than its partition or its nodes have."""
    for job in case.manifest.jobs:
        yield from limits.of_job(case.plan, job)


def no_plan(profile: Profile, error: DeployerError) -> Finding:
    """plan.refused, facts.plan: no plan is possible, because of a rule or because of missing facts."""
    if isinstance(error, Unknown):
        return Finding(NO_PLAN, MISSING_FACTS, profile.name, error.message, error.hint or "add it to the profile")
    return Finding("plan.refused", ERROR, profile.name, error.message, error.hint or "see the profile")
