"""remove: take away an image, or all of it; what a job uses stays unless it is forced."""

import os
import shutil
from typing import Callable, List, Sequence

from deployer.contract.errors import MissingTool, Refused, TransferError, Unknown, UsageError
from deployer.contract.evidence import Launch
from deployer.site.jobs import jobs, result
from deployer.site.storage import data, unfinished
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files


def remove(store: Store, image: InstalledImage, force: bool = False) -> None:
    """Remove an installed image: first its name, so that nothing finds it half removed.

    Raises Refused where a job that waits or runs uses it, or another bundle its data; Unknown where the scheduler does
    not tell; unless ``force``.
    """
    if not force:
        check_unused(store, image)
        needing = data.users(store, image)
        if needing:
            name = "%s:%s" % (image.receipt.name, image.receipt.version)
            raise Refused("%s needs the data of %s" % (", ".join(needing), name), "remove that first, or --force")
    with files.errors_named("remove " + image.folder):
        unfinished.discard(image.folder)


def check_unused(store: Store, image: InstalledImage) -> None:
    """Raise Refused where a job that waits or runs uses the image, Unknown where that cannot be known.

    Only jobs of ``run`` are seen: what a user's own batch script starts by ``exec`` leaves nothing to see here.
    """
    digest = image.receipt.digest
    _check_jobs(store, "%s:%s" % (image.receipt.name, image.receipt.version), lambda launch: digest in _digests(launch))


def check_rest(store: Store, folder: str) -> None:
    """Do as ``check_unused`` for the rest of an image, in ``folder``, that has no receipt to tell its name."""
    _check_jobs(store, folder, lambda launch: folder in map(store.image_folder, _digests(launch)))


def _digests(launch: Launch) -> Sequence[str]:
    return (launch.digest, *launch.data)


def _check_jobs(store: Store, name: str, uses: Callable[[Launch], bool]) -> None:
    for folder in [*jobs.folders(store), *jobs.unseen(store)]:
        job = os.path.basename(folder)
        try:
            launch = result.launch(folder)
        except UsageError as error:
            hint = "remove that folder where the job is over, or --force"
            raise Unknown("cannot tell whether job %s uses %s: %s" % (job, name, error.message), hint) from error
        if not uses(launch):
            continue
        try:
            active = jobs.status(folder).active
        except (MissingTool, TransferError, UsageError) as error:
            raise Unknown(
                "cannot tell whether job %s still uses %s: %s" % (job, name, error.message),
                "try again where the scheduler answers, or --force",
            ) from error
        if active:
            raise Refused("job %s uses %s" % (job, name), "wait for its end, cancel %s, or --force" % job)


def uninstall(store: Store, with_jobs: bool = False, force: bool = False) -> List[str]:
    """Remove all that deployer made under the root folder, and that itself if nothing is left; return what is left.

    The folders of jobs hold users' results: they stay unless ``with_jobs``. Raises as ``remove`` does, before anything
    is removed.
    """
    if not force:
        for image in store.installed():
            check_unused(store, image)
    with files.errors_named("remove " + store.root):
        unfinished.reap(store.root)
        for folder in [store.images, store.bundles, store.incoming] + ([store.jobs] if with_jobs else []):
            unfinished.discard(folder)
        shutil.rmtree(store.logs, ignore_errors=True)
        # The tool is what runs just now: it goes last, and a second try needs it.
        if files.lexists(store.tool):
            os.unlink(store.tool)
        left = files.names(store.root)
        if not left and files.is_folder(store.root):
            os.rmdir(store.root)
    return left
