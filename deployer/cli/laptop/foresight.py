"""What a site would refuse about a job and its options, found on the laptop before anything is built or sent.

The rules are those of the site's ``run`` (``site/run/request.py``), with plans that follow from the profile here.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence

from deployer.cli.site import jobs
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Profile
from deployer.contract.errors import DeployerError, Refused, Unknown, UsageError
from deployer.contract.job import Job, find
from deployer.contract.plan import NATIVE, NO_MPI, Plan
from deployer.contract.verdict import judged
from deployer.site.run.request import RunRequest, foresee
from deployer.site.storage import site_plans


def of_deploy(args: argparse.Namespace, profile: Profile, name: str, own: Sequence[Job]) -> None:
    """Judge the job of a definition that is about to be deployed.

    Args:
        profile: that of the site.
        name: the bundle's name.
        own: its jobs.

    Raises:
        UsageError, Refused: as the site's ``run`` would.
    """
    request = _request(args)
    find(name, own, request.job, request.extra, f"deployer deploy {args.definition}")
    plans = list(_plans(profile, name, profile.partitions, args.accept))
    if plans:
        foresee(site_plans.of(plans, []), name, own, request)


def of_run(args: argparse.Namespace, profile: Profile) -> None:
    """Judge the options of a job of a bundle that only the site knows: what holds for each bundle and partition there.

    Nothing is known here of a plan that the profile did not make (--plan).

    Raises:
        UsageError, Refused: as the site's ``run`` would.
    """
    request = _request(args)
    if request.force or args.plan not in (None, profile.name):
        return
    if request.time is None:  # the job's own limit is not known here
        request = request._replace(warn=1)
    least = Job(request.job or args.image, [], 1, 1, 1, "00:00:02")
    asked = request.options.partition
    own = [name for name, each in profile.partitions.items() if asked and asked in (name, each.queue)]
    names = own or list(profile.partitions)
    found = [_against(plan, least, request) for plan in _plans(profile, args.image, names)]
    if found and len(found) == len(names) and all(found):  # else the site may have a plan that permits it
        raise next(filter(None, found))


def _against(plan: Plan, job: Job, request: RunRequest) -> DeployerError | None:
    """Return what a plan has against a job; None: nothing."""
    try:
        foresee(site_plans.of([plan], []), plan.bundle, [job], request)
    except (Refused, UsageError) as error:
        return error
    return None


def _request(args: argparse.Namespace) -> RunRequest:
    """Return the request, without a way to start ranks: that depends on the image."""
    request = jobs.request(args)
    return request if request.runtime == NATIVE else request._replace(launch=None)


def _plans(profile: Profile, name: str, partitions: Iterable[str], accepted: Sequence[str] = ()) -> Iterator[Plan]:
    """Yield the plans for a bundle whose MPI does not matter: limits, nodes and runtimes are those of each plan."""
    for partition in partitions:
        try:
            plan = make_plan(profile, name, [NO_MPI], partition)
        except (Refused, Unknown):
            continue  # `check` reports it, with what else it knows
        yield plan._replace(checked=judged([], accepted))
