"""Join bundles for different processors into one file (``contract.bundle.multiarch``)."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import multiarch
from deployer.contract.bundle.multiarch import OneOfSeveral, Several
from deployer.system import files
from deployer.system.trust import verify


def join(bundles: Sequence[Path], output: Path) -> Several:
    """Write a file with several bundles, which have the same name and version, and return its table.

    Raises:
        UsageError: two bundles are for the same processor, or have another name or version.
        SpaceError: there is not enough space.
    """
    with ExitStack() as opened:
        streams = [opened.enter_context(verify.opened(str(path))) for path in bundles]
        begun = [verify.begin(stream, str(path), ()) for stream, path in zip(streams, bundles, strict=True)]
        manifests = [each.manifest for each in begun]
        names = {(manifest.name, manifest.version) for manifest in manifests}
        architectures = [manifest.image.architecture for manifest in manifests]
        if len(names) != 1 or len({*architectures}) != len(architectures):
            labels = ", ".join(f"{each.name}:{each.version} for {each.image.architecture}" for each in manifests)
            raise UsageError(f"one file cannot hold {labels}", "join one name and version, for different processors")
        table = [
            OneOfSeveral.of(each.manifest, each.seal, verify.size_of(stream))
            for each, stream in zip(begun, streams, strict=True)
        ]
        several = Several(*names.pop(), table)
        with files.errors_named(f"write {output}"), files.published(str(output)) as target:
            for stream, one in zip(streams, table, strict=True):
                shutil.copyfileobj(files.Window(stream.fileno(), 0, one.size - multiarch.END), target, files.CHUNK)
            target.write(multiarch.ending(several))
    return several
