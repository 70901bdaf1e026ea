"""pyz: the site half of deployer as one file for Python 3.6, with a library that verifies signatures.

The library is for sites whose OpenSSH is too old. The same sources always give the same bytes: names are sorted,
times constant, and nothing depends on this machine.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import io
import os
import sys
import tokenize
import zipfile
from collections.abc import Mapping
from pathlib import Path

import deployer
from deployer.connected.ground import caches
from deployer.contract.base import first_bytes
from deployer.contract.base.errors import DeployerError
from deployer.system import files
from deployer.system.tool import documents

#: The parts of the package that a site needs. The others import libraries that sites lack.
_PARTS = ("__init__.py", "contract", "system", "site", "cli/__init__.py", "cli/site")
#: Included libraries: pure Python, from the environment pinned in requirements/connected.txt.
_VENDORED = ("ecdsa", "six")
#: The modules that start a rank and its probe. They are at the beginning of the file, and the first one is run
#: (ADR 40).
_OF_RANKS = tuple(f"deployer/{name}.py" for name in (
    "site/rank/first_module", "__init__", "site/__init__", "site/proof/__init__", "site/proof/rank_record",
    "site/rank/__init__", "site/rank/observed/__init__", "site/rank/devices", "site/rank/launched",
    "site/rank/observed/mapped_mpi", "site/rank/node_records", "site/rank/observed/oom",
    "site/rank/payload_monitor", "site/rank/rank", "site/rank/rendezvous", "system/__init__", "system/payload",
    "contract/__init__", "contract/elf/__init__", "contract/elf/elf_notes", "system/file_identity", "site/rank/mpi",
    "site/rank/probe", "site/rank/speed",
))  # fmt: skip
#: Further modules that processes of each rank load. As of the first ones, words are left out.
_BESIDE_RANKS = ("deployer/site/rank/", "deployer/site/container/replay", "deployer/contract/site/replay")
#: The module that Python runs first.
_MAIN = "cli/site/__main__.py"
_EPOCH = (1980, 1, 1, 0, 0, 0)

#: The size limit in bytes, which keeps the file small enough to mail and to review.
MAX_SIZE = 1_950_000


def make_pyz() -> bytes:
    """Return the bytes of deployer.pyz. Raises DeployerError if it is too large or a library is incomplete.

    Files are kept in the cache by the digest of their sources, because leaving words out takes 0.2 s.
    """
    sources = _modules()
    pages = documents.joined()
    sources["deployer/" + documents.PACKED] = pages
    libraries = [_distribution(name) for name in _VENDORED]
    for library in libraries:
        sources.update(library)
    key = _digest_of(sources)
    archive = _kept(key)
    if archive:
        return archive
    sources["deployer/" + documents.PACKED] = documents.packed(pages)
    twice = {*_OF_RANKS[1:], *(name for name in sources if name.startswith(_BESIDE_RANKS))}
    for name in [*twice, *(name for library in libraries for name in library if name.endswith(".py"))]:
        sources[name] = without_words(sources[name])
    archive = _joined(sources)
    _keep(key, archive)
    return archive


def _modules() -> dict[str, bytes]:
    """Return the files that a site needs, by path in the .pyz. ``Path`` would take most of the time."""
    package = os.path.dirname(os.path.abspath(deployer.__file__))
    paths = [part for part in _PARTS if part.endswith(".py")]
    for part in _PARTS:
        for folder, _, names in os.walk(os.path.join(package, part)):
            below = os.path.relpath(folder, package)
            paths += [f"{below}/{name}" for name in names if name.endswith((".py", ".sh"))]
    sources = {}
    for path in paths:
        with open(f"{package}/{path}", "rb") as stream:
            sources["deployer/" + path] = stream.read()
    sources["__main__.py"] = sources.pop("deployer/" + _MAIN)
    return sources


def _joined(sources: Mapping[str, bytes]) -> bytes:
    """Return the .pyz file with these sources."""
    head = first_bytes.joined({name: sources[name] for name in _OF_RANKS})
    if len(head) > first_bytes.SIZE:
        raise DeployerError(f"the modules of a rank have {len(head)} bytes, more than the {first_bytes.SIZE} promised")
    buffer = io.BytesIO(head)
    buffer.seek(0, io.SEEK_END)
    # Stored, not deflated: zlib versions produce different bytes, and imports are faster.
    with zipfile.ZipFile(buffer, "a") as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            archive.writestr(info, sources[name])
    if buffer.tell() > MAX_SIZE:
        raise DeployerError(f"deployer.pyz has {buffer.tell()} bytes, more than the {MAX_SIZE} promised")
    return buffer.getvalue()


def _digest_of(sources: Mapping[str, bytes]) -> str:
    """Return a digest of the sources and of the code that builds the file."""
    state = hashlib.sha256(sys.version.encode() + Path(__file__).read_bytes())
    for name in sorted(sources):
        state.update(f"\0{name}\0{len(sources[name])}\0".encode() + sources[name])
    return state.hexdigest()


def _kept(key: str) -> bytes:
    """Return the cached file for this digest of the sources; empty if it is missing or damaged."""
    try:
        data = (caches.TOOL.folder / key).read_bytes()
    except OSError:
        return b""
    return data[64:] if hashlib.sha256(data[64:]).hexdigest().encode() == data[:64] else b""


def _keep(key: str, archive: bytes) -> None:
    """Cache the file."""
    path = str(caches.TOOL.folder / key)
    with contextlib.suppress(DeployerError), files.published(path, flushed=False) as stream:
        stream.write(hashlib.sha256(archive).hexdigest().encode() + archive)
    caches.TOOL.trim()


def without_words(source: bytes) -> bytes:
    """Return the source of a module without comments and docstrings; line numbers stay the same."""
    lines = source.splitlines(keepends=True)
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            kept = lines[row - 1].decode()[:column].rstrip()
            lines[row - 1] = kept.encode() + b"\n"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            words = node.body[0]
            # An empty docstring: `from __future__` may follow nothing else, and a function needs a statement.
            lines[words.lineno - 1] = b" " * words.col_offset + b'""\n'
            for row in range(words.lineno, words.end_lineno or words.lineno):
                lines[row] = b"\n"
    return b"".join(lines)


def vendored() -> dict[str, str]:
    """Return the versions of the included libraries. The bytes of the .pyz depend on them."""
    return {name: importlib.metadata.version(name) for name in _VENDORED}


def _distribution(name: str) -> dict[str, bytes]:
    """Return a library's modules and licence, by path in the .pyz. Tests are left out."""
    modules = {}
    for path in importlib.metadata.files(name) or []:
        is_module = path.suffix == ".py" and not path.name.startswith("test_")
        if is_module or path.name == "LICENSE":
            modules[path.as_posix()] = path.read_binary()
    if not any(path.endswith(".py") for path in modules) or not any(path.endswith("LICENSE") for path in modules):
        raise DeployerError(f"the library {name} is incomplete in this environment", "run scripts/setup")
    return modules
