"""remove: remove an image, or everything, unless a job uses it or removal is forced."""

import os
import shutil
from typing import Callable, List, Sequence

from deployer.contract.base.errors import MissingTool, Refused, TransferError, Unknown, UsageError
from deployer.contract.proof.evidence import Launch
from deployer.site.container import caches
from deployer.site.jobs import jobs, result
from deployer.site.storage import data, group, layers, unfinished
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files


def remove(store: Store, image: InstalledImage, force: bool = False) -> None:
    """Remove an installed image, and its layer and caches if no other image needs them; names first, then contents.

    Args:
        force: do not check for jobs that use it.

    Raises:
        Refused: an active job uses it, or another bundle needs its data.
        Unknown: the scheduler does not answer.
    """
    if not force:
        check_unused(store, image)
        needing = data.users(store, image)
        if needing:
            what = "{} needs the data of {}".format(", ".join(needing), image.receipt.label)
            raise Refused(what, "remove that first, or --force")
    with files.errors_named("remove " + image.folder):
        unfinished.discard(image.folder)
        layers.release(store)
        for path in caches.unused(store):
            os.unlink(path)


def check_unused(store: Store, image: InstalledImage) -> None:
    """Raise Refused if an active job uses the image, or Unknown if that cannot be determined.

    Only jobs started with ``run`` are known, and what a group's members used. Containers that users' own batch scripts
    start with ``exec`` cannot be detected.
    """
    digest = image.receipt.digest
    _check_jobs(store, image.receipt.label, lambda launch: digest in _digests(launch))
    group.check_unused(image.folder, image.receipt.label)


def check_rest(store: Store, folder: str) -> None:
    """Do the checks of ``check_unused`` for a damaged image in ``folder``, which has no receipt with its name."""
    _check_jobs(store, folder, lambda launch: folder in map(store.image_folder, _digests(launch)))


def check_layer_unused(store: Store, layer: str) -> None:
    """Do the checks of ``check_unused`` for all images that need a layer."""
    for folder in layers.users(store, layer):
        image = store.at(folder)
        if image:
            check_unused(store, image)
        else:
            check_rest(store, folder)


def _digests(launch: Launch) -> Sequence[str]:
    return (launch.digest, *launch.data)


def _check_jobs(store: Store, name: str, uses: Callable[[Launch], bool]) -> None:
    readable, hidden = jobs.folders(store)
    for folder in [*readable, *hidden]:
        job = os.path.basename(folder)
        try:
            launch = result.launch(folder)
        except UsageError as error:
            hint = "remove that folder if the job has ended, or use --force"
            raise Unknown(f"cannot tell whether job {job} uses {name}: {error.message}", hint) from error
        if not uses(launch):
            continue
        try:
            active = jobs.status(folder).active
        except (MissingTool, TransferError, UsageError) as error:
            raise Unknown(
                f"cannot tell whether job {job} still uses {name}: {error.message}",
                "try again when the scheduler answers, or use --force",
            ) from error
        if active:
            raise Refused(f"job {job} uses {name}", f"wait for its end, cancel {job}, or --force")


def uninstall(store: Store, force: bool = False) -> List[str]:
    """Remove everything that deployer made under the root folder, and the folder itself if it is then empty.

    Job folders contain users' results: they are kept, like the events. Raises the errors of ``remove``, before anything
    is removed.

    Returns:
        The names that are left in the root folder.
    """
    if not force:
        for image in store.own():
            check_unused(store, image)
    with files.errors_named("remove " + store.root):
        unfinished.reap(store.root)
        for folder in (store.images, store.layers, store.bundles, store.incoming, store.scans):
            unfinished.discard(folder)
        shutil.rmtree(store.caches, ignore_errors=True)
        shutil.rmtree(store.logs, ignore_errors=True)
        # The running program is removed last: a second attempt needs it.
        if files.lexists(store.tool):
            os.unlink(store.tool)
        left = files.names(store.root)
        if not left and files.is_folder(store.root):
            os.rmdir(store.root)
    return left
