"""take_plan: verify a plan update and keep it with the installed image, where ``run`` prefers it to the bundle's plan.

Its signatures are checked against the same policies as a bundle's, before any of its content is parsed. As with an
image, later policy changes do not affect it: it is kept until the image is removed.
"""

from typing import List, NamedTuple, Optional, Tuple

from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.contract.bundle import plan_update
from deployer.site.install import admit
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files
from deployer.system.trust import policy, trust
from deployer.system.trust.policy import Policy


class TakenPlan(NamedTuple):
    """The result of taking a plan update.

    Attributes:
        image: the installed image.
        update: the plan update.
        signers: the names under which the policies accept its signers.
        warnings: for the user.
    """

    image: InstalledImage
    update: plan_update.PlanUpdate
    signers: List[str]
    warnings: Tuple[str, ...]


def take(data: bytes, what: str, store: Store, signers_file: Optional[str] = None) -> TakenPlan:
    """Verify the plan update ``data`` and keep it; after an error the earlier plans apply.

    Args:
        what: its name in error messages.
        signers_file: an allowed_signers file that it must satisfy, besides the site's policies.

    Raises:
        IntegrityError: a signature is wrong.
        Refused: a policy forbids it.
        UsageError: it is not a plan update, or its bundle is not installed.
    """
    policies = policy.load(store.root, signers_file)
    try:
        message, signatures = plan_update.split(data)
        whose = trust.establish(message, signatures, policies, "plan")
    except IntegrityError as error:
        hint = "the plan or its signature was changed: get it again from its maker; the earlier plan still applies"
        raise IntegrityError(f"{what}: {error.message}", hint) from error
    update = plan_update.read(data, what)
    image = _image(store, update)
    unsigned = "the plan is not signed: whoever sent it decides what jobs bind and set"
    warnings = admit.origin(whose, "") if whose.signers or whose.keys else [unsigned]
    warnings += _older(image, update, policies)
    files.write_text(image.newer_plan(update.site), data.decode("utf-8"))
    return TakenPlan(image, update, whose.signers, tuple(warnings))


def _image(store: Store, update: plan_update.PlanUpdate) -> InstalledImage:
    image = store.carrying(update.digest)
    if image is None or image.receipt.digest != update.digest:
        name = update.bundle.split(":")[0]
        same = [other.receipt.digest for other in store.installed() if other.receipt.name == name]
        raise UsageError(
            f"the plan is for {update.bundle} ({update.digest}), which is not installed under {store.root}",
            "push that bundle, or make a plan for an installed one: %s" % (", ".join(same) or "none of that name"),
        )
    if update.bundle != image.receipt.label:
        raise UsageError(f"the plan names {update.bundle}, but its digest is that of {image.receipt.name}")
    store.check_own(image)
    return image


def _older(image: InstalledImage, update: plan_update.PlanUpdate, policies: List[Policy]) -> List[str]:
    """Return a warning if a later update is already here. Raises Refused if a policy forbids an older one.

    The age of a damaged update is unknown, so only a policy can require that a person removes it first.
    """
    strict = next((policy.source for policy in policies if policy.refuse_rollback), None)
    try:
        before = image.update(update.site)
    except UsageError as error:
        message = f"the plan for {update.site} that was kept is damaged"
        if strict:
            problem = f"{message}, and {strict} forbids downgrades: its age is not known"
            raise Refused(problem, f"remove {image.newer_plan(update.site)}, then send the plan again") from error
        return [f"{message}, and is replaced: {error.message}"]
    if before is None or before.made <= update.made:
        return []
    message = f"the plan for {update.site} is older than the one that is in use"
    if strict:
        problem = f"{message}, and {strict} forbids downgrades"
        raise Refused(problem, "on the laptop, make a new plan: deployer plan")
    return [message]
