"""Data folders in the container: a bundle's own, and those of other bundles that it needs.

All of them are below /deployer/data. An image is read-only, and a bind's target must exist in it. So ``install`` leaves
an empty folder in the image's own data folder for each folder of another bundle. The own data folder is bound as one,
and the others are bound over the empty folders.
"""

import logging
import os
from typing import List, NamedTuple

from deployer.contract import plan as plans
from deployer.contract.errors import DeployerError, Refused, UsageError
from deployer.contract.manifest import DataNeed, Manifest
from deployer.contract.plan import Bind
from deployer.site.storage.store import MANIFEST, InstalledImage, Store
from deployer.system import files

log = logging.getLogger("deployer.data")


class InstalledData(NamedTuple):
    """A need, and the installed bundle that satisfies it."""

    need: DataNeed
    carrier: InstalledImage

    @property
    def folder(self) -> str:
        return os.path.join(self.carrier.data, self.need.data)


def resolve(store: Store, manifest: Manifest) -> List[InstalledData]:
    """Return the bundles with the data that a bundle needs: the newest installed one of the name, or of the version.

    Raises:
        Refused: one is not installed or has no such folder; the hint is the remedy.
        UsageError: the bundle itself has only data, so nothing can run in it.
    """
    if manifest.is_data:
        hint = "name it in the data of a bundle with jobs: data: {NAME: {bundle: %s}}" % manifest.name
        raise UsageError("%s contains only data: nothing can run in it" % manifest.name, hint)
    installed = []
    for need in manifest.needs:
        carrier = store.newest(need.bundle)
        if carrier is None:
            where = (manifest.name, need.data, need.bundle, store.root)
            problem = "%s needs the data %s of the bundle %s, which is not installed under %s" % where
            raise Refused(problem, "push or install %s first" % need.bundle)
        installed.append(InstalledData(need, carrier))
        if not files.is_folder(installed[-1].folder):
            words = (manifest.name, need.data, carrier.receipt.label)
            raise Refused(
                "%s needs the data %s of %s, which has no such folder" % words,
                "push or install a version of %s that has it" % need.bundle,
            )
    return installed


def binds(installed: InstalledImage, others: List[InstalledData]) -> List[Bind]:
    """Return the binds of a bundle's own data folder and of those of others, in the required order."""
    if not files.is_folder(installed.data):
        return []
    return [Bind(installed.data, plans.DATA, "the bundle's data folders")] + [
        Bind(item.folder, "%s/%s" % (plans.DATA, item.need.data), "data of " + item.carrier.receipt.label)
        for item in others
    ]


def missing(store: Store, manifest: Manifest) -> List[str]:
    """Return warnings about bundles with data that must be installed before a bundle can run."""
    return [
        "it needs the data %s of the bundle %s, which is not installed here: push or install that too"
        % (need.data, need.bundle)
        for need in manifest.needs
        if store.newest(need.bundle) is None
    ]


def users(store: Store, image: InstalledImage) -> List[str]:
    """Return the installed bundles, NAME:VERSION, that currently use data of ``image``.

    A bundle whose manifest cannot be read counts too if ``image`` has data.
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
                bundles.append("%s, whose %s cannot be read," % (name, MANIFEST))
    return bundles


def _carries(image: InstalledImage) -> bool:
    """Return whether an image has data of its own; data folders of other bundles are empty there."""
    folders = (os.path.join(image.data, name) for name in files.names(image.data))
    return any(files.names(folder) for folder in folders if files.is_folder(folder))
