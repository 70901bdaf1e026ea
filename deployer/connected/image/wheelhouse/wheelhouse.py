"""The wheelhouse of a definition: keep its lock up to date, and its wheels in a cache.

The cache is ``wheels/SHA256/NAME.whl``, published with a rename. A wheel is hashed again before each use. It is added
to the cache only after it has passed all checks that `pack` will make.
"""

import functools
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import caches, progress
from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.wheelhouse import lock as locks
from deployer.connected.image.wheelhouse import resolve
from deployer.connected.image.wheelhouse.indexes import Indexes
from deployer.connected.image.wheelhouse.lock import Lock, Pin
from deployer.connected.image.wheelhouse.target import Target
from deployer.connected.rootfs import wheels
from deployer.contract.base.errors import (
    DeployerError,
    IntegrityError,
    MissingTool,
    Refused,
    SpaceError,
    TransferError,
    UsageError,
)
from deployer.system import files, process

_log = logging.getLogger("deployer.wheelhouse")

_FETCH_TIMEOUT = 3600
_BUILD = "run deployer build"


class Mode(NamedTuple):
    """What a build may do with the lock and the network.

    Attributes:
        locked: fail if the lock is not up to date.
        offline: download nothing.
        upgrade: write a new lock, ignoring the old one.
    """

    locked: bool = False
    offline: bool = False
    upgrade: bool = False


class Wheelhouse(NamedTuple):
    """The wheels of a definition.

    Attributes:
        wheels: files in the cache.
        relocked: a new lock was written.
    """

    wheels: tuple[Path, ...] = ()
    relocked: bool = False


def prepare(
    definition: Definition, target: Target, sources: Indexes, mode: Mode, say: Callable[[str], None]
) -> Wheelhouse:
    """Return the wheelhouse for the image's Python, from the lock if it fits, otherwise from a new lock.

    Raises:
        Refused: the lock does not fit and must not change.
        UsageError: the requirements have no solution.
        TransferError: no index responds.
        IntegrityError: a wheel does not match the lock.
    """
    asked = requirements(definition)
    if asked is None:
        return Wheelhouse()
    lock, relocked = _lock(definition, asked, target, sources, mode, say)
    for pin in lock.pins:
        target.check(pin.wheel)
    missing = [pin for pin in lock.pins if not _is_cached(pin, mode.offline)]
    if missing and mode.offline:
        raise UsageError(f"offline, and {missing[0].wheel} is not in the cache", f"{_BUILD} once without --offline")
    if missing:
        say(f"wheels: fetch {', '.join(pin.wheel for pin in missing)}")
        _fetch(missing, target, sources)
    paths = tuple(map(path, lock.pins))
    for _ in wheels.added(paths):  # they fit together
        pass
    return Wheelhouse(paths, relocked)


def check_early(definition: Definition, mode: Mode) -> None:
    """Raise the errors of ``prepare`` that are already known before the image is built."""
    asked = requirements(definition)
    if asked is None:
        return
    file = locks.place(definition)
    digest = locks.requirements_digest(asked)
    lock = locks.read_lock(file)
    if lock is None or lock.requirements != digest:
        _refuse_drift(file, "the requirements changed" if lock else "there is none", mode)


def ready(definition: Definition) -> tuple[Path, ...]:
    """Return the wheels that ``build`` prepared, sorted by name; empty if the definition has no requirements.

    Raises:
        UsageError: the definition must be built first.
        IntegrityError: a cached wheel does not match the lock.
    """
    asked = requirements(definition)
    if asked is None:
        return ()
    lock = locks.read_lock(locks.place(definition))
    if lock is None or lock.requirements != locks.requirements_digest(asked):
        raise UsageError(f"{definition.name}: {locks.place(definition).name} does not match the requirements", _BUILD)
    for pin in lock.pins:
        if not _is_cached(pin, strict=True):
            raise UsageError(f"{pin.wheel} is not in the cache of wheels", _BUILD)
    return tuple(sorted(map(path, lock.pins), key=lambda file: file.name))


def requirements(definition: Definition) -> Path | None:
    """Return the definition's requirements file, or None if it has none."""
    return definition.folder / definition.python.requirements if definition.python else None


def path(pin: Pin) -> Path:
    """Return the path of a wheel in the cache."""
    return caches.WHEELS.folder / pin.sha256 / pin.wheel


# ------------------------------------------------------------------------------------------------ the lock


def _lock(
    definition: Definition, asked: Path, target: Target, sources: Indexes, mode: Mode, say: Callable[[str], None]
) -> tuple[Lock, bool]:
    """Return the lock to use, and whether it is new."""
    file = locks.place(definition)
    digest = locks.requirements_digest(asked)
    lock = locks.read_lock(file)
    drift = lock.drift(target, digest) if lock else "there is none"
    if mode.upgrade:
        drift = drift or "newer releases are requested"
    if lock and not drift:
        return lock, False
    _refuse_drift(file, drift, mode)
    say(f"wheels: resolve {asked.name} for {target}: {drift if lock else 'there is no lock yet'}")
    kept = lock.pins if lock and not mode.upgrade else ()
    fresh = resolve.resolve(asked, digest, target, sources, kept)
    files.write_text(str(file), fresh.text())
    before = {pin.name: pin for pin in lock.pins} if lock else {}
    after = {pin.name: pin for pin in fresh.pins}
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was != now:
            say(f"wheels: {name} {was.version if was else 'absent'} -> {now.version if now else 'absent'}")
    return fresh, fresh != lock


def _refuse_drift(file: Path, drift: str, mode: Mode) -> None:
    """Raise an error if an outdated lock must not be rewritten."""
    if mode.locked:
        hint = "run deployer build without --locked, and check in the new one"
        raise Refused(f"{file} is not up to date: {drift}", hint)
    if mode.offline:
        raise UsageError(f"offline, and {file} is not up to date: {drift}", f"{_BUILD} once without --offline")


# ------------------------------------------------------------------------------------------------ the cache


def _is_cached(pin: Pin, strict: bool) -> bool:
    """Return whether the cache has a wheel. A damaged wheel is removed or, with ``strict``, an error."""
    file = path(pin)
    if not file.is_file():
        return False
    if files.sha256_file(str(file)) != pin.sha256:
        if strict:
            hint = f"{_BUILD}, with the network, to fetch it again"
            raise IntegrityError(f"{file} does not have the digest of the lock", hint)
        _log.debug("%s does not have its digest", file)
        file.unlink()
        return False
    os.utime(file.parent)  # its last use, for `cache prune`
    return True


def _keep(file: Path, pin: Pin) -> None:
    """Move a downloaded wheel to its place in the cache.

    Raises:
        IntegrityError: it does not match the lock.
        DeployerError: a site would refuse it.
    """
    if files.sha256_file(str(file)) != pin.sha256:
        raise IntegrityError(f"{file.name} does not have the digest of the lock")
    try:
        with wheels.opened(file) as wheel:
            wheel.validate_record()
    except IntegrityError as error:
        hint = "this wheel cannot be packed: pin another release, or install it in the Dockerfile"
        raise IntegrityError(error.message, hint) from error
    with caches.WHEELS.new_entry(pin.sha256) as new:
        os.replace(file, new / pin.wheel)


# ------------------------------------------------------------------------------------------------ pip


def _fetch(pins: Sequence[Pin], target: Target, sources: Indexes) -> None:
    """Download wheels into the cache. Raises TransferError, IntegrityError, UsageError, SpaceError."""
    with files.errors_named(f"write {caches.WHEELS.folder}"):
        caches.WHEELS.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=caches.UNFINISHED, dir=caches.WHEELS.folder) as name:
            place, fetched = Path(name), Path(name, "fetched")
            asked = place / "asked.txt"
            asked.write_text("".join(f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256}\n" for pin in pins))
            argv = [
                sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:",
                "--no-input", "--quiet", "--no-cache-dir", "--disable-pip-version-check", "--implementation=cp",
                f"--python-version={target.python[0]}.{target.python[1]}", *(f"--abi={abi}" for abi in target.abis()),
                *(f"--platform={platform}" for platform in [*target.platforms(), "any"]),
                *sources.pip_options, f"--dest={fetched}", f"--requirement={asked}",
            ]  # fmt: skip
            environment = {**sources.pip_environment, "TMPDIR": name}
            pip = functools.partial(process.run, argv, _FETCH_TIMEOUT, environment, check=False)
            done = progress.of_folder("fetch wheels", place, None, pip)
            if done.returncode != 0:
                raise _failed(done)
            for pin in pins:
                if not (fetched / pin.wheel).is_file():
                    others = ", ".join(sorted(file.name for file in fetched.glob("*")))
                    raise TransferError(f"pip did not download {pin.wheel}, only {others}")
                _keep(fetched / pin.wheel, pin)


def _failed(done: process.Completed) -> DeployerError:
    """Return the error that matches pip's output."""
    lines = [line.removeprefix("ERROR: ").strip() for line in done.stderr.splitlines() if line.startswith("ERROR")]
    reason = " ".join(lines) or done.last_words()
    if "No module named pip" in done.stderr:
        return MissingTool("fetching wheels needs pip in the environment of deployer", f"{sys.executable} -m ensurepip")
    if "No space left on device" in done.stderr:
        return SpaceError(f"cannot write {caches.WHEELS.folder}: no space left on device", "deployer cache prune")
    if "DO NOT MATCH THE HASHES" in done.stderr:
        return IntegrityError("a wheel does not match the lock: " + " ".join(done.stderr.split())[-400:])
    if re.search(r"No matching distribution|Could not find a version", done.stderr):
        hint = "if the index no longer has it, name its folder with --find-links, or remove python.lock and build again"
        if "connection broken" in done.stderr or "SSLError" in done.stderr:
            hint = "check that the index is reachable and the CA bundle is right: pip config list, --ca-bundle"
            return TransferError(f"cannot fetch wheels: {reason}", hint)
        return UsageError(f"cannot fetch wheels: {reason}", hint)
    hint = "check that the index is reachable, then build again: complete downloads are kept"
    return TransferError(f"cannot fetch wheels: {reason}", hint)
