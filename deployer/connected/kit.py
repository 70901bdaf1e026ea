"""The kit: what a site may lack to run a bundle, carried in it. Today udocker and its engine for mode P1, proot.

udocker is a wheel, fetched by pip; proot is compiled here, statically, from the source that Debian has, because each
of the builds that Debian offers fails with udocker, one of them silently: it shows the host's root. So the new one has
to pass a test of its root before it is kept. Versions and digests are pinned in ``recipes/udocker/pins.yaml``; the
result is kept as ``kit/KEY/``, published by rename, under a key of all that it depends on.
"""

import functools
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from deployer.connected import xdg
from deployer.connected.builders import settings
from deployer.connected.builders.settings import Settings
from deployer.connected.indexes import indexes
from deployer.connected.members import Data
from deployer.connected.packages import GENERIC, Package
from deployer.contract.errors import DeployerError, IntegrityError, JobFailed, MissingTool, TransferError
from deployer.contract.manifest import KIT_PREFIX
from deployer.system import files, process

_log = logging.getLogger("deployer.kit")

_RECIPE = Path(__file__).with_name("recipes") / "udocker"
_PART = ".part-"
_TIMEOUT = 1800
#: Raise it when this module makes something else of the same pins.
_VERSION = 1
_LEAVE_OUT = "or leave udocker out of policy.runtimes in the site's profile"
_COMPILER = f"apt-get install gcc make patch libc6-dev, {_LEAVE_OUT}"
_APT_FILE = "deployer-apt.conf"

_PROOT = "proot"
_PATCH = "proot.patch"
_README = "README"


@functools.cache
def pins() -> Mapping[str, Any]:
    """Return the pins of what the kit is made of, by name."""
    found: Mapping[str, Any] = yaml.safe_load((_RECIPE / "pins.yaml").read_text())
    return found


def members(say: Callable[[str], None]) -> dict[str, Path]:
    """Return the kit of udocker as a bundle carries it, members to files of the cache; it is made where it is missing.

    Raises MissingTool without compiler, mmdebstrap or pip, TransferError where the sources cannot be had,
    IntegrityError for one that is not what is pinned, JobFailed where proot does not compile or shows the host's root.
    """
    folder = xdg.cache_folder("kit") / _key()
    if not folder.is_dir():
        host = settings.from_host(None, None, os.environ)
        with files.errors_named(f"write {folder.parent}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=_PART, dir=folder.parent) as name:
                made = Path(name) / "kit"
                _make(made, Path(name), host, say)
                _publish(made, folder)
    os.utime(folder)  # its last use, for `cache prune`
    return {KIT_PREFIX + path.name: path for path in sorted(folder.iterdir())}


def packages(contents: Mapping[str, Data]) -> list[Package]:
    """Return the packages among a bundle's members that no metadata of their own tell of: proot."""
    member = KIT_PREFIX + _PROOT
    content = contents.get(member)
    if content is None:
        return []
    digest, pin = hashlib.sha256(content.read(0, content.size)).hexdigest(), pins()["proot"]
    return [Package(GENERIC, _PROOT, pin["version"], member, os.uname().machine, (pin["licence"],), digest)]


def _make(made: Path, work: Path, host: Settings, say: Callable[[str], None]) -> None:
    made.mkdir(mode=0o755)
    say(f"kit: fetch udocker {pins()['udocker']['version']}")
    wheel = _fetch_wheel(work, host)
    say(f"kit: fetch the source of proot {pins()['proot']['version']}")
    source, talloc = _fetch_sources(work, host)
    say(f"kit: compile proot {pins()['proot']['version']}")
    command = _compile(work, source, talloc)
    check_root(work / _PROOT, work)
    for path in (wheel, source, _RECIPE / _PATCH):
        shutil.copyfile(path, made / path.name)
    shutil.copyfile(work / _PROOT, made / _PROOT)
    (made / _PROOT).chmod(0o755)
    (made / _README).write_text(_readme(command))


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another pack was faster, with the same
            raise


def _key() -> str:
    """Return a short digest of all that the kit depends on."""
    recipe = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(_RECIPE.iterdir())}
    said = process.run(["gcc", "--version"], 30, hint=_COMPILER).stdout.partition("\n")[0]
    words = [_VERSION, recipe, said, _libc(), os.uname().machine]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]


def _libc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"


def _readme(command: str) -> str:
    values = {f"{name}_{key}": value for name, pin in pins().items() for key, value in pin.items()}
    text = (_RECIPE / "README.txt").read_text()
    return text.format(machine=os.uname().machine, libc=_libc(), command=command, **values)


# ------------------------------------------------------------------------------------------------ fetching


def _fetch_wheel(work: Path, host: Settings) -> Path:
    """Let pip, as this machine has set it up, fetch udocker's wheel."""
    pin = pins()["udocker"]
    asked = work / "asked.txt"
    asked.write_text(f"udocker=={pin['version']} --hash=sha256:{pin['sha256']}\n")
    with indexes(host) as sources:
        argv = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--quiet",
            "--no-input", "--no-cache-dir", "--disable-pip-version-check", *sources.pip_options,
            f"--dest={work}", f"--requirement={asked}",
        ]  # fmt: skip
        done = process.run(argv, _TIMEOUT, {**sources.pip_environment, "TMPDIR": str(work)}, check=False)
    if done.returncode != 0:
        raise TransferError(f"the kit needs udocker, and pip cannot fetch it: {done.last_words(1)}", _LEAVE_OUT)
    return _checked(work / pin["file"], pin["sha256"])


def _fetch_sources(work: Path, host: Settings) -> tuple[Path, Path]:
    """Let apt, in a root of its own that mmdebstrap makes, fetch proot's source and talloc's static library."""
    proot, talloc = pins()["proot"], pins()["talloc"]
    machine = os.uname().machine
    if machine not in talloc["files"]:
        raise MissingTool(f"the kit has no pins for {machine}", _LEAVE_OUT)
    argv = fetch_command(proot, talloc, work, host)
    environment = {**process.base_environment(), **host.proxies}
    done = process.run(argv, _TIMEOUT, environment, check=False, hint="apt-get install mmdebstrap")
    if done.returncode != 0:
        _log.debug("%s", done.stderr)
        said = [line.strip() for line in done.stderr.splitlines() if line.startswith("E: ")]
        raise TransferError(
            f"the kit needs the source of proot, and apt cannot fetch it: {' / '.join(said[:2]) or done.last_words()}",
            f"does Debian's mirror answer, and has it {proot['package']} ({proot['suite']})? {_LEAVE_OUT}",
        )
    library = talloc["files"][machine]
    return _checked(work / proot["file"], proot["sha256"]), _checked(work / library["file"], library["sha256"])


def fetch_command(proot: Mapping[str, Any], talloc: Mapping[str, Any], work: Path, host: Settings) -> list[str]:
    """Return the mmdebstrap that makes no root, but has apt fetch both files into ``work``."""
    argv = ["mmdebstrap", "--variant=custom", "--format=null", '--aptopt=Acquire::Check-Valid-Until "false"']
    argv += [f'--aptopt={name} "{value}"' for name, value in sorted(host.apt.items())]
    if host.sources:
        argv.append(f"--setup-hook=cat >\"$1\"/etc/apt/sources.list <<'END'\n{host.sources.rstrip()}\nEND")
    # The mirror is whatever mmdebstrap, or this machine's settings, took for Debian's.
    lines = f"deb %s {talloc['suite']} main\\ndeb-src %s {proot['suite']} main\\n"
    argv.append(
        '--setup-hook=cd "$1"/etc/apt'
        ' && mirror=$(sed -n "s/^deb //p" sources.list | grep -oE "[a-z+]+:/[^ ]+" | head -n 1)'
        f' && printf "{lines}" "$mirror" "$mirror" >sources.list'
    )
    argv.append(
        '--customize-hook=cd "$1"/tmp && export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG'
        f" && apt-get --quiet=2 source --download-only --tar-only {proot['package']}"
        f" && apt-get --quiet=2 download {talloc['package']} && cp *.tar.* *.deb {process.quoted([str(work)])}"
    )
    return [*argv, talloc["suite"]]


def _checked(path: Path, sha256: str) -> Path:
    if not path.is_file():
        raise TransferError(f"the kit needs {path.name}, and what came is another version", _LEAVE_OUT)
    found = files.sha256_file(str(path))
    if found != sha256:
        raise IntegrityError(f"{path.name} has the SHA-256 {found}, and {sha256} is pinned", _LEAVE_OUT)
    return path


# ------------------------------------------------------------------------------------------------ proot


def _compile(work: Path, source: Path, talloc: Path) -> str:
    """Compile WORK/proot; return the command in the words of the README."""
    for argv in (["tar", "-xf", str(source), "-C", str(work)], ["dpkg-deb", "-x", str(talloc), str(work / "talloc")]):
        process.run(argv, 60)
    [top] = [path.parent for path in work.glob("*/src/GNUmakefile")]
    process.run(["patch", "--strip=1", f"--input={_RECIPE / _PATCH}"], 60, cwd=str(top.parent), hint=_COMPILER)
    [library] = (work / "talloc").rglob("libtalloc.a")
    words = {
        # Else make asks git, which may find a repository that this folder happens to be in.
        "VERSION": "",
        "CFLAGS": f"-O2 -I{work}/talloc/usr/include",
        "LDFLAGS": f"-L{library.parent} -ltalloc -static -Wl,-z,noexecstack",
    }
    argv = ["make", "-f", "GNUmakefile", *(f"{name}={value}" for name, value in words.items()), _PROOT]
    done = process.run(argv, _TIMEOUT, cwd=str(top), check=False, hint=_COMPILER)
    if done.returncode != 0:
        _log.debug("%s%s", done.stdout, done.stderr)
        errors = re.findall(r"^.*(?:error:|cannot find|No such file).*$", done.stderr, re.MULTILINE)
        said = " / ".join(errors[:2]) or done.last_words()
        raise JobFailed(f"the kit's proot does not compile: {said}", _COMPILER)
    process.run(["strip", "-o", str(work / _PROOT), str(top / _PROOT)], 60, hint=_COMPILER)
    return process.quoted(argv).replace(str(work), ".")


def check_root(proot: Path, work: Path) -> None:
    """Raise JobFailed unless what runs under ``proot`` sees the root that it is given, and not the host's."""
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    (root / "canary").write_text("own\n")
    process.run(["gcc", "-static", "-O1", "-o", str(root / "test"), str(_RECIPE / "own_root.c")], 60, hint=_COMPILER)
    argv = [str(proot), "-k", os.uname().release, "-r", str(root), "-w", "/", "/test", "/canary"]
    try:
        done = process.run(argv, 60, {**process.base_environment(), "PROOT_TMP_DIR": str(work)}, check=False)
    except DeployerError as error:
        raise JobFailed(f"the kit's proot cannot be tested: {error.message}", _LEAVE_OUT) from error
    if done.returncode != 0:
        said = done.last_words(1) or "it sees the host's root"
        raise JobFailed(f"the kit's proot fails the test of its root: {said}", f"may this user ptrace? {_LEAVE_OUT}")
