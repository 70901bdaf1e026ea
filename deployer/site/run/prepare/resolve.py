"""resolve: find the image, data, plan and job of a request, and compute the layout."""

import os
from typing import List, NamedTuple, Optional, Sequence

from deployer.contract.base.errors import Refused
from deployer.contract.base.shell import plain
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.rules import findings
from deployer.contract.rules.verdict import REFUSE
from deployer.contract.site.plan import NATIVE, Plan
from deployer.site.container import container
from deployer.site.install import mount_points
from deployer.site.run.prepare.request import RunRequest, Settled, settle
from deployer.site.storage import data, group, inventory, scans
from deployer.site.storage.store import InstalledImage, Store


class ResolvedRun(NamedTuple):
    """The user's request, with its data from the store and the plan."""

    store: Store
    request: RunRequest
    installed: InstalledImage
    manifest: Manifest
    #: The installed bundles with the data that this one needs.
    data: List[data.InstalledData]
    #: The job as it will run.
    settled: Settled
    #: Whether the job is the caller's instead of the bundle's, so that its command is not checked.
    own: bool
    #: Mount points that the bundle does not list, also the targets of ``--bind`` that only other images have.
    mounts: Sequence[str]


def resolve(store: Store, request: RunRequest, own: Optional[Job]) -> ResolvedRun:
    """Find the image, plan and job of ``request``, and compute the layout."""
    installed = store.find(request.image)
    scans.check_installed(store, installed.receipt.digest)
    if not request.just_checked:
        inventory.check(installed)
    manifest = installed.manifest()
    carriers = data.resolve(store, manifest)
    group.mark([installed.folder, *(item.carrier.folder for item in carriers)])
    settled = settle(installed.plans(request.plan), manifest.name, manifest.jobs, request, os.environ, own)
    plan = settled.plan
    _check_verdict(plan, request.force)
    mount_points.make_if_permitted(installed.rootfs, plan.mounts)
    options = [] if request.runtime == NATIVE else request.binds  # the host has its own folders
    targets = [plain(bind.target) for bind in container.parse_binds(options, None)]
    return ResolvedRun(
        store=store,
        request=request,
        installed=installed,
        manifest=manifest,
        data=carriers,
        settled=settled,
        own=own is not None,
        mounts=[*plan.mounts, *mount_points.others(installed, manifest.mount_points, targets)],
    )


def _check_verdict(plan: Plan, force: bool) -> None:
    """Raise Refused if ``check`` refused the bundle on the laptop, unless forced."""
    if plan.checked is None or plan.checked.verdict != REFUSE or force:
        return
    against = plan.checked.against
    codes = ", ".join(sorted({item.code for item in against}))
    first = against[0] if against else None
    refusal = findings.finding(
        "check.refused",
        plan.site,
        by=plan.checked.by,
        codes=codes or "no finding",
        first=f"{first.subject}: {first.message}" if first else "see the plan",
        remedy=first.remedy if first else "make a new plan",
    )
    raise Refused(f"{refusal.subject}: {refusal.message}", refusal.remedy)
