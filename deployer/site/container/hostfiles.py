"""The folder of stubs below an installed image, and the binds of a plan's single host files over these stubs."""

import contextlib
import hashlib
import os
from typing import List

from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused
from deployer.contract.rules import hostfiles
from deployer.contract.rules.hostfiles import HostFile
from deployer.contract.site.plan import Bind, Plan
from deployer.site.storage.store import InstalledImage
from deployer.system import files


def binds(installed: InstalledImage, plan: Plan) -> List[Bind]:
    """Return the binds of the plan's host files for this image, in the required order, and make their stubs.

    Raises:
        Refused: the image was flattened with a deployer version that made no target for them.
    """
    wanted = hostfiles.for_image(plan.host, lambda path: files.lexists(installed.rootfs + path))
    if not wanted:
        return []
    if not files.is_folder(installed.rootfs + hostfiles.FOLDER):
        raise Refused(
            f"the image of {installed.receipt.label} has no {hostfiles.FOLDER}, where the plan for "
            f"{plan.site} puts the host's libraries",
            "pack it again with this deployer",
        )
    bound = [Bind(_stubs(installed.folder, wanted), hostfiles.FOLDER, "placeholders for single files of the host")]
    bound += [Bind(item.source, item.target, item.why) for item in wanted if item.kind != hostfiles.LINK]
    return bound


def _stubs(home: str, wanted: List[HostFile]) -> str:
    """Return the folder of stubs, whose name depends on its content, so that concurrent processes make the same.

    It is made again if the site's purge has removed it.
    """
    text = json_records.dumps([[item.name, item.kind, item.source * (item.kind == hostfiles.LINK)] for item in wanted])
    folder = os.path.join(home, "host", hashlib.sha256(text).hexdigest()[:16])
    with files.errors_named("make " + folder):
        for item in wanted:
            path = os.path.join(folder, item.name)
            os.makedirs(path if item.kind == hostfiles.DIRECTORY else os.path.dirname(path), exist_ok=True)
            if item.kind == hostfiles.LINK and not files.is_link(path):
                with contextlib.suppress(FileExistsError):  # another run was first
                    os.symlink(item.source, path)
            elif item.kind == hostfiles.FILE:
                os.close(os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o644))
    return folder
