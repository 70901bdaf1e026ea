"""Rewrite the end of a file in deployer's own cache while its beginning stays as it is.

As with ``files.published``, the file gets its name only when complete. Until then it has a temporary name, which
``files.reap_parts`` removes if this process is killed.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from deployer.connected.ground.locked_folder import lock
from deployer.contract.base.errors import UsageError
from deployer.system import files


@contextlib.contextmanager
def renewed(path: Path, size: int) -> Iterator[IO[bytes]]:
    """Yield the file ``path``, cut to its first ``size`` bytes, for reading and writing. An error removes it.

    Raises:
        UsageError: another process is writing it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with files.errors_named(f"write {path}"):
        stream = open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "r+b")
    with stream:
        try:
            lock(stream)
        except BlockingIOError:
            raise UsageError(f"another process writes {path}", "wait until it has ended") from None
        try:
            with files.errors_named(f"write {path}"):
                os.rename(path, temporary)
                stream.truncate(size)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
