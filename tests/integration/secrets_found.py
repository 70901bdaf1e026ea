"""python -m tests.integration.secrets_found [WHEEL...]: secrets in files of others, as `pack` searches them.

Without wheels: the images of the engine. Each line has the files, those of no package, and what is found in these;
then, as if no package listed its files, what is found in all.
"""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deployer.connected.bundle import sources
from deployer.connected.ground import engine
from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs.entries import FileContent, InMemory
from deployer.connected.rootfs.package_files import PackageFiles
from deployer.connected.rootfs.secrets import in_files
from deployer.contract.base.tarformat import FILE

Files = Sequence[tuple[str, FileContent]]


def images(scratch: Scratch) -> Iterator[tuple[str, Files]]:
    for image in sorted({str(image.id) for image in engine.connect().images.list()}):
        root = sources.read_image(image, scratch).root
        yield image, [(os.fsdecode(path), node.data) for path, node in root.walk() if node.kind == FILE and node.data]


def wheels(paths: Sequence[str]) -> Iterator[tuple[str, Files]]:
    for path in paths:
        with zipfile.ZipFile(path) as wheel:
            infos = [info for info in wheel.infolist() if not info.is_dir()]
            yield Path(path).name, [(info.filename, InMemory(wheel.read(info))) for info in infos]


def main() -> None:
    totals = [0, 0, 0, 0]
    with Scratch(Path(tempfile.gettempdir())) as scratch:
        for name, files in wheels(sys.argv[1:]) if sys.argv[1:] else images(scratch):
            packages = PackageFiles.of(files)
            found = [list(in_files(files, packages)), list(in_files(files))]
            counts = [len(files), sum(path not in packages for path, _ in files), *map(len, found)]
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
            print(name, *counts, *found[0], flush=True)
    print("all", *totals)


if __name__ == "__main__":
    main()
