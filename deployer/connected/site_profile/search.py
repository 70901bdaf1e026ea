"""Search for profiles: ``./site_profiles``, the user's folder, ``$DEPLOYER_PROFILES``, and the curated profiles.

A carelessly typed name must not select another user's profile, because a profile decides which host receives a bundle.
So a file that is found by name, and its folder, must belong to the user or the system and not be writable by everyone.
A path is a deliberate choice, so it is not checked.
"""

import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import xdg
from deployer.contract.base.errors import UsageError
from deployer.contract.base.guess import guess
from deployer.system import files, terminal

_PACKAGE = Path(__file__).resolve().parents[2]
#: The folder of curated profiles: in the package if it was installed from a wheel, otherwise beside the package.
CURATED = next(filter(Path.is_dir, [_PACKAGE / "site_profiles"]), _PACKAGE.parent / "site_profiles")
#: The variable with the folders of a group or a site, separated by colons.
VARIABLE = "DEPLOYER_PROFILES"

SUFFIXES = (".yaml", ".yml", ".json")
#: Suffixes of names that are not profiles: facts of libraries, and captures, which a profile extends.
_PARTS = (".facts", "-captured")


class ProfileFolder(NamedTuple):
    """A folder of profiles.

    Attributes:
        path: its path.
        label: its name for people.
        chosen: the user selected this folder, so anybody may own it.
    """

    path: Path
    label: str
    chosen: bool = False


def folders() -> list[ProfileFolder]:
    """Return the distinct folders in search order, whether they exist or not."""
    named = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    found = [
        ProfileFolder(Path("site_profiles"), "./site_profiles"),
        ProfileFolder(xdg.config_folder("profiles"), "the user's profiles"),
        *(ProfileFolder(Path(path), f"${VARIABLE}", True) for path in named),
    ]
    own = [each for each in found if each.path.resolve() != CURATED.resolve()]
    return [*own, ProfileFolder(CURATED, "came with deployer", True)]


def names(skip_own: bool = False) -> dict[str, Path]:
    """Return the files by profile name; with ``skip_own`` only the curated ones."""
    searched = [folder.path for folder in folders() if folder.path == CURATED or not skip_own]
    paths = [path for folder in searched for path in sorted(folder / name for name in files.names(str(folder)))]
    first = {path.stem: path for path in reversed(paths) if path.suffix in SUFFIXES and _is_profile(path.stem)}
    return dict(sorted(first.items()))


def find(name: str, beside: Path | None = None, skip: Collection[Path] = ()) -> Path:
    """Return the file of the profile ``name``.

    Args:
        name: a name, or the path of a file.
        beside: the file whose ``extends`` is ``name``. Relative paths start there. Names in a curated profile refer
            only to other curated profiles.
        skip: files to ignore because they extend the profile: ``lab`` may extend the ``lab`` in a later folder.

    Raises:
        UsageError: the profile does not exist, or other users could have modified it.
    """
    if "/" in name or name.endswith(SUFFIXES):
        return beside.parent / name if beside else Path(name)
    curated = beside is not None and is_curated(beside)
    searched = [folder for folder in folders() if _is_profile(name) and (folder.path == CURATED or not curated)]
    places = ((folder, folder.path / f"{name}{suffix}") for folder in searched for suffix in SUFFIXES)
    skipped = {each.resolve() for each in skip}
    there = [each for each in places if files.lexists(str(each[1])) and each[1].resolve() not in skipped]
    if not there:
        here = next((f"{name}{suffix}" for suffix in SUFFIXES if Path(f"{name}{suffix}").is_file()), None)
        if here and beside is None:
            raise UsageError(f"no site profile is called {name!r}, but here is a file {here}", f"give its path: {here}")
        known = names(curated)
        existing = ", ".join(str(each.path) for each in folders() if each.path.is_dir())
        hint = f"profiles: {', '.join(known) or 'none'} (in {existing}); or give a file's path; commands that take "
        hint += "--site also accept ssh:HOST, if that site publishes its profile"
        raise UsageError(f"no site profile is called {name!r}{guess(name, known)}", hint)
    folder, path = there[0]
    if not folder.chosen:
        _check_owner(path)
    if len(there) > 1 and not skip:
        terminal.tell(f"deployer: profile {name}: {path} is used, not {there[1][1]}")
    return path


def is_name(text: str) -> bool:
    """Return whether a text is a valid name of a site."""
    return re.fullmatch(r"[a-z0-9][a-z0-9._-]*", text) is not None and not text.endswith(SUFFIXES)


def is_curated(path: Path) -> bool:
    """Return whether a profile is included with deployer."""
    return CURATED.resolve() in path.resolve().parents


def label(path: Path) -> str:
    """Return the origin of a profile, for display."""
    parent = path.resolve().parent
    if parent.parent == xdg.state_folder("published").resolve():
        return "published by the site"
    return next((each.label for each in folders() if each.path.resolve() == parent), "given by its path")


def _is_profile(stem: str) -> bool:
    return stem != "schema" and not stem.endswith(_PARTS)


def _check_owner(path: Path) -> None:
    """Raise UsageError if another user could have modified a profile or placed it in its folder."""
    for each in (path.parent, path):
        with files.errors_named(f"read {each}"):
            state = each.stat()
        foreign = state.st_uid not in (os.geteuid(), 0)
        if foreign or state.st_mode & stat.S_IWOTH:
            problem = f"belongs to another user (uid {state.st_uid})" if foreign else "can be written by everyone"
            place = path if path.is_absolute() else f"its path: ./{path}"
            text = f"the profile {path} is not used by its name: {each} {problem}"
            raise UsageError(text, f"if you trust it, give {place}")
