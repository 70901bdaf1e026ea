"""Makes the bytecode that ``tool_bytecode`` uses, and removes the oldest."""

import io
import logging
import marshal
import os
import warnings
import zipfile
from typing import Dict, Tuple

from deployer.contract.base.errors import DeployerError
from deployer.system import files
from deployer.system.tool import tool_bytecode

_log = logging.getLogger("deployer.bytecode")

#: Files that are kept, each of one .pyz for one Python: at most 2 MB each.
_KEPT = 4
_PACKAGE, _SUFFIX = "/__init__.py", ".py"


def keep(archive: str) -> bool:
    """Compile the modules of the .pyz and keep their bytecode, if possible; return whether it was written.

    A full disk, a read-only home and a folder that other users can write to are not errors: then each start compiles.
    PYTHONDONTWRITEBYTECODE prevents writing beside sources. This function does not do that, so it ignores the variable.
    """
    place = tool_bytecode.folder()
    if place is None:
        return False
    try:
        if not _make_safe(place):
            _log.debug("no bytecode is kept: %s is not this user's own folder", place)
            return False
        content = files.read_bytes(archive)
        key = tool_bytecode.key_of(content)
        path = os.path.join(place, key)
        files.reap_parts(path)
        files.write_bytes(path, tool_bytecode.written(key, compiled(content, archive)), 0o600)
        _drop_oldest(place, key)
    except (OSError, DeployerError, zipfile.BadZipFile, KeyboardInterrupt) as error:
        _log.debug("no bytecode is kept: %r", error)
        return False
    return True


def compiled(content: bytes, archive: str) -> Dict[str, Tuple[bool, bytes]]:
    """Return the bytecode of each module of a .pyz by its name, with whether it is a package."""
    codes = {}
    with zipfile.ZipFile(io.BytesIO(content)) as zipped, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in zipped.namelist():
            if not name.endswith(_SUFFIX) or name == "__main__.py":
                continue
            try:
                code = compile(zipped.read(name), os.path.join(archive, name), "exec", dont_inherit=True, optimize=0)
            except (SyntaxError, ValueError):
                continue  # not for this Python: an import of it fails as it does without bytecode
            module = name[: -len(_PACKAGE if name.endswith(_PACKAGE) else _SUFFIX)].replace("/", ".")
            codes[module] = (name.endswith(_PACKAGE), marshal.dumps(code))
    return codes


def _make_safe(place: str) -> bool:
    """Make the folder for bytecode unless it exists; return whether only this user can write to it."""
    top = os.path.dirname(os.path.dirname(place))
    if not files.is_folder(os.path.dirname(top)):
        return False  # no home on this node
    for path in (top, os.path.dirname(place), place):
        if not files.lexists(path):
            os.mkdir(path, 0o700)
    return tool_bytecode.is_safe(os.lstat(place))


def _drop_oldest(place: str, key: str) -> None:
    """Remove files beyond the limit, the oldest first, but never ``key``: clocks may be wrong.

    Files of killed writers count too. A living writer whose file is removed keeps none, which is no error.
    """
    others = [os.path.join(place, name) for name in files.names(place) if name != key]
    others.sort(key=lambda path: os.lstat(path).st_mtime)
    for path in others[: max(0, len(others) + 1 - _KEPT)]:
        os.unlink(path)
