"""The documents that travel with the program, for ``explain``."""

import os
import pkgutil
from typing import Any, Dict, List

import deployer
from deployer.contract.base import pages
from deployer.contract.base.errors import MissingTool
from deployer.system import files

#: Their path in deployer.pyz, below the package. bzip2 gives the same bytes everywhere; zlib's versions differ.
PACKED = "documents.bz2"
#: What separates names and texts there.
_END = "\0"


def by_name() -> Dict[str, str]:
    """Return the documents by name: from deployer.pyz, the installed package or the checkout."""
    loader: Any = deployer.__spec__.loader
    if hasattr(loader, "archive"):
        parts = _bz2().decompress(pkgutil.get_data("deployer", PACKED) or b"").decode().split(_END)
        return dict(zip(parts[::2], parts[1::2]))
    package = os.path.dirname(os.path.abspath(deployer.__file__))
    installed = os.path.join(package, "docs")
    folder = installed if files.is_folder(installed) else os.path.join(os.path.dirname(package), "docs")
    return {name: files.read_text(os.path.join(folder, name)) for name in pages.DOCUMENTS}


def every_page() -> List[pages.Page]:
    """Return the pages of all codes."""
    return pages.pages(by_name())


def topic(text: str, exit_code: int) -> str:
    """Return the topic that explains an error: the code of the first finding in its text, or its exit code."""
    try:
        return pages.mentioned(every_page(), text) or str(exit_code)
    except Exception:  # noqa: BLE001  the error itself is what matters
        return str(exit_code)


def joined() -> bytes:
    """Return the names and texts of the documents as one text."""
    return _END.join(part for item in sorted(by_name().items()) for part in item).encode()


def packed(text: bytes) -> bytes:
    """Return the ``joined`` documents as deployer.pyz carries them."""
    data: bytes = _bz2().compress(text)
    return data


def _bz2() -> Any:
    try:
        import bz2
    except ImportError as error:  # a Python that was compiled without libbz2
        hint = "see the project's docs folder"
        raise MissingTool("this Python has no module bz2, which reads the pages", hint) from error
    return bz2
