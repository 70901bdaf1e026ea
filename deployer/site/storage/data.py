"""Data folders in the container: the bundle's own, and those that it needs from other bundles.

All of them are below /deployer/data. An image is read-only, and a bind's target must exist in it. Therefore ``install``
makes an empty folder in the image's own data folder for each folder from another bundle. The own data folder is bound
as a whole, and the others are bound over the empty folders.
"""

import logging
import os
from typing import List, NamedTuple

from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.bundle.manifest import DataNeed, Manifest
from deployer.contract.site.plan import DATA, Bind
from deployer.site.storage.store import MANIFEST, InstalledImage, Store
from deployer.system import files

log = logging.getLogger("deployer.data")


class InstalledData(NamedTuple):
    """A need for data, and the installed bundle that satisfies it."""

    need: DataNeed
    carrier: InstalledImage

    @property
    def folder(self) -> str:
        return os.path.join(self.carrier.data, self.need.data)


def resolve(store: Store, manifest: Manifest) -> List[InstalledData]:
    """Return the bundles with the data that a bundle needs: the newest installed one with that name, or version.

    Raises:
        Refused: a bundle is not installed or lacks the folder; the hint has the remedy.
        UsageError: the bundle itself has only data, so nothing can run in it.
    """
    if manifest.is_data:
        hint = f"name it in the data of a bundle with jobs: data: {{NAME: {{bundle: {manifest.name}}}}}"
        raise UsageError(f"{manifest.name} contains only data: nothing can run in it", hint)
    installed = []
    for need in manifest.needs:
        carrier = store.newest(need.bundle)
        if carrier is None:
            where = (manifest.name, need.data, need.bundle, store.root)
            problem = "{} needs the data {} of the bundle {}, which is not installed under {}".format(*where)
            raise Refused(problem, f"push or install {need.bundle} first")
        installed.append(InstalledData(need, carrier))
        if not files.is_folder(installed[-1].folder):
            words = (manifest.name, need.data, carrier.receipt.label)
            raise Refused(
                "{} needs the data {} of {}, which has no such folder".format(*words),
                f"push or install a version of {need.bundle} that has it",
            )
    return installed


def binds(installed: InstalledImage, others: List[InstalledData]) -> List[Bind]:
    """Return the binds of a bundle's own data folder and of the others' folders, in the required order."""
    if not files.is_folder(installed.data):
        return []
    return [Bind(installed.data, DATA, "the bundle's data folders")] + [
        Bind(item.folder, f"{DATA}/{item.need.data}", "data of " + item.carrier.receipt.label) for item in others
    ]


def missing(store: Store, manifest: Manifest) -> List[str]:
    """Return warnings about missing data bundles that must be installed before a bundle can run."""
    return [
        f"it needs the data {need.data} of the bundle {need.bundle}, which is not installed here: push or install "
        "that too"
        for need in manifest.needs
        if store.newest(need.bundle) is None
    ]


def users(store: Store, image: InstalledImage) -> List[str]:
    """Return the installed bundles, NAME:VERSION, that currently use data of ``image``.

    If ``image`` has data, a bundle with an unreadable manifest also counts.
    """
    bundles = []
    for user in store.installed():
        if user.folder == image.folder:
            continue
        name = user.receipt.label
        try:
            if any(store.newest(need.bundle) == image for need in user.manifest().needs):
                bundles.append(name)
        except DeployerError as error:
            log.debug("%s: %s", name, error.message)
            if _carries(image):
                bundles.append(f"{name}, whose {MANIFEST} cannot be read,")
    return bundles


def _carries(image: InstalledImage) -> bool:
    """Return whether an image has its own data; the folders for other bundles' data are empty there."""
    folders = (os.path.join(image.data, name) for name in files.names(image.data))
    return any(files.names(folder) for folder in folders if files.is_folder(folder))
