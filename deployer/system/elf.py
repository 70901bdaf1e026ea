"""The identity of a library file, independent of its path: its GNU build-id, else the SHA-256 of its content."""

import os

from deployer.contract import elf
from deployer.system import files


def identity(path: str) -> str:
    """Return ``build-id:HEX`` or ``sha256:HEX`` of the file at ``path``. Raises DeployerError if it cannot be read."""
    with files.errors_named("read " + path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = elf.build_id(files.reader(descriptor))
        finally:
            os.close(descriptor)
    return "build-id:" + found if found else "sha256:" + files.sha256_file(path)
