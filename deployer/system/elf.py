"""The identity of a library file, independent of its path: its GNU build-id, else the SHA-256 of its content."""

from typing import Dict, Mapping

from deployer.contract.base.errors import DeployerError
from deployer.system import file_identity, files

#: In place of the identity of a missing file.
MISSING = "missing"


def identity(path: str) -> str:
    """Return ``build-id:HEX`` or ``sha256:HEX`` of the file at ``path``. Raises DeployerError if it cannot be read."""
    with files.errors_named("read " + path):
        return file_identity.identity(path)


def changed(expected: Mapping[str, str]) -> Dict[str, str]:
    """Return the identity, or MISSING, of each file that differs, by path; it usually reads a few hundred bytes."""
    others = {}
    for path, known in expected.items():
        try:
            here = identity(path)
        except DeployerError:
            here = MISSING
        if here != known:
            others[path] = here
    return others
