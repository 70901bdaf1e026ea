"""The identity of a library file, independent of its path: its GNU build-id, else the SHA-256 of its content."""

from deployer.system import file_identity, files


def identity(path: str) -> str:
    """Return ``build-id:HEX`` or ``sha256:HEX`` of the file at ``path``. Raises DeployerError if it cannot be read."""
    with files.errors_named("read " + path):
        return file_identity.identity(path)
