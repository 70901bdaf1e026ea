"""Find job options that a site would refuse, on the laptop, before anything is built or sent.

The rules are those of the site's ``run`` (``site/run/prepare/request.py``), applied to plans from the profile.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from deployer.cli.site import jobs
from deployer.connected.ground.yaml_model import Document
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base.errors import DeployerError, Refused, Unknown, UsageError
from deployer.contract.bundle import sweep
from deployer.contract.bundle.job import Job, find
from deployer.contract.rules.verdict import judged
from deployer.contract.site.plan import NATIVE, NO_MPI, Plan
from deployer.site.run.prepare.request import RunRequest, foresee
from deployer.site.storage import site_plans

#: Linux limits a word of a command line to 128 KiB; ssh's one word also has the rest of the site's command.
_MAX_SWEEP = 96 * 1024


def of_deploy(args: argparse.Namespace, profile: Profile, name: str, own: Sequence[Job]) -> None:
    """Check the job of a definition before its deploy.

    Args:
        profile: the site's profile.
        name: the bundle's name.
        own: the bundle's jobs.

    Raises:
        UsageError, Refused: as in the site's ``run``.
    """
    request = _request(args)
    find(name, own, request.job, request.extra, f"deployer deploy {args.definition}")
    plans = list(_plans(profile, name, profile.partitions, args.accept))
    if plans:
        foresee(site_plans.of(plans, []), name, own, request)


def of_run(args: argparse.Namespace, profile: Profile) -> None:
    """Check the job options for a bundle that only the site has: what no bundle and no partition there permits.

    Plans that were not made from the profile (--plan) are unknown here.

    Raises:
        UsageError, Refused: as in the site's ``run``.
    """
    request = _request(args)
    if request.force or args.plan not in (None, profile.name):
        return
    if request.time is None:  # the job's own limit is unknown here
        request = request._replace(warn=1)
    least = Job(request.job or args.image, [], 1, 1, 1, "00:00:02")
    asked = request.options.partition
    own = [name for name, partition in profile.partitions.items() if asked and asked in (name, partition.queue)]
    names = own or list(profile.partitions)
    objections: list[DeployerError] = []
    for plan in _plans(profile, args.image, names):
        try:
            foresee(site_plans.of([plan], []), plan.bundle, [least], request)
        except (Refused, UsageError) as error:
            objections.append(error)
    if objections and len(objections) == len(names):  # otherwise the site may have a plan that permits it
        raise objections[0]


def read_sweep(args: argparse.Namespace) -> None:
    """Replace the file of ``--sweep`` with its content as JSON, which the site's command line accepts too.

    Raises:
        UsageError: it is not a sweep, or too long for a command line.
    """
    if not args.sweep or args.sweep.lstrip().startswith("{"):
        return
    path = args.sweep
    document = Document(Path(path), "a sweep")
    given = document.mapping()
    for problem in document.problems:
        raise UsageError(problem.text())
    sweep.of_sweep(given, path)
    args.sweep = json.dumps(given, default=str)
    if len(args.sweep) > _MAX_SWEEP:
        hint = "copy it to the site as JSON, and give it to `deployer.pyz run` there"
        raise UsageError(f"{path} is too long to be sent: {len(args.sweep) >> 10} KiB as JSON", hint)


def _request(args: argparse.Namespace) -> RunRequest:
    """Return the request without a way to start ranks, because that depends on the image."""
    request = jobs.request(args)
    return request if request.runtime == NATIVE else request._replace(launch=None)


def _plans(profile: Profile, name: str, partitions: Iterable[str], accepted: Sequence[str] = ()) -> Iterator[Plan]:
    """Yield plans for a bundle regardless of its MPI. Each plan has its limits, nodes and runtimes."""
    for partition in partitions:
        try:
            plan = make_plan(profile, name, [NO_MPI], partition)
        except (Refused, Unknown):
            continue  # `check` reports it with more details
        yield plan._replace(checked=judged([], accepted))
