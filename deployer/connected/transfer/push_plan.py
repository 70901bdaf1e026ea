"""push --plan: send a plan update to a site. The site verifies its signatures under the policies for bundles."""

import time
from pathlib import Path
from typing import NamedTuple

from deployer.connected.site_profile.profile import Profile
from deployer.connected.transfer.remote import Remote
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle import limits, plan_update
from deployer.contract.bundle.plan_update import PlanUpdate
from deployer.contract.rules.verdict import REFUSE
from deployer.system import files


class PushedPlan(NamedTuple):
    """The result of ``push --plan``.

    Attributes:
        bundle: NAME:VERSION.
        digest: the bundle's digest.
        site: the site of the plans.
        sent: bytes of the payload, without ssh's overhead.
        seconds: the duration, with login and verification at the site.
        plan: the file on the site; None after a dry run.
        signers: the signers' names in the site's policies.
        warnings: warnings from the site's deployer.
    """

    bundle: str
    digest: str
    site: str
    sent: int
    seconds: float
    plan: str | None = None
    signers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def push_plan(
    path: Path, profile: Profile, ssh_config: Path | None = None, dry_run: bool = False, force: bool = False
) -> PushedPlan:
    """Send the plan update ``path`` to the site of ``profile``.

    Args:
        dry_run: compute what would be sent, but send nothing.
        force: send a plan that ``check`` refused.

    Raises:
        UsageError: it is not a plan update, or it is for another site.
        Refused: ``check`` refused it, or a policy of the site forbids it.
        TransferError: the connection failed.
    """
    data = files.read_bytes(str(path), limit=plan_update.MAX_SIZE)
    update = plan_update.read(data, str(path))
    if update.site != profile.name:
        hint = f"make one: deployer plan BUNDLE.tar --site {profile.name} -o FILE"
        raise UsageError(f"{path} has plans for {update.site}, not for {profile.name}", hint)
    if not force:
        _check(update)
    packed = plan_update.packed(data)
    pushed = PushedPlan(update.bundle, update.digest, update.site, len(packed), 0.0)
    if dry_run:
        return pushed
    started = time.monotonic()
    with Remote(profile, ssh_config) as remote:
        remote.prepare()
        answer = remote.feed(["take-plan", "-"], [packed])
    seconds, signers, warnings = time.monotonic() - started, answer.texts("signers"), answer.words("warnings")
    pushed = pushed._replace(seconds=seconds, plan=answer.text("plan"))
    return pushed._replace(signers=tuple(signers), warnings=tuple(warnings))


def _check(update: PlanUpdate) -> None:
    """Raise Refused if ``check`` refused all plans for every job when they were made."""
    checked = [plan.checked and plan.checked.of_job("").without(limits.CODES) for plan in update.plans]
    refused = [verdict for verdict in checked if verdict and verdict.verdict == REFUSE]
    if refused and len(refused) == len(checked):
        first = refused[0].against[0]
        text = f"check predicts that {update.bundle} will not run on {update.site}{refused[0].by}: "
        text += f"{first.code}: {first.subject}: {first.message}"
        raise Refused(text, f"{first.remedy}; `push --force` sends the plan anyway")
