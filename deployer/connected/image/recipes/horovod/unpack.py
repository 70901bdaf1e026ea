"""unpack.py WHEEL TARGET: lay out the tree that a wheel of an MPI carries as data, ``NAME.data/data/{bin,lib,...}``."""

import sys
import zipfile
from pathlib import Path, PurePosixPath


def main(wheel: str, target: str) -> None:
    """Write the tree; modes are those of the archive."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            parts = PurePosixPath(info.filename).parts
            if len(parts) < 3 or not parts[0].endswith(".data") or parts[1] != "data" or info.is_dir():
                continue
            path = Path(target, *parts[2:])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(info))
            path.chmod(info.external_attr >> 16 & 0o777 or 0o644)


if __name__ == "__main__":
    main(*sys.argv[1:])
