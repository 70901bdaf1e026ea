"""Fetch the published scripts, with their SHA-256, into the cache.

scikit-learn's come from this machine's mirror of Debian. Those on GitHub are read from clones that are there:
``DEPLOYER_CORPUS_GIT`` names a folder with a clone ``OWNER+NAME`` of each (a git folder, or one that contains it).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from deployer.connected.bundle.kit import fetch as kit
from deployer.connected.ground import xdg
from deployer.connected.image.definition import settings
from deployer.contract.base.shell import quoted
from deployer.system import process
from tests.corpus.scripts import Script, Source

#: Names the folder with the clones.
CLONES = "DEPLOYER_CORPUS_GIT"
_SUITE = "bookworm"
_TIMEOUT = 600


def fetched(script: Script, app: Path) -> None:
    """Put the files of a script into ``app/NAME``, from the cache if they are there.

    Raises:
        ValueError: a file has another SHA-256.
        LookupError: there is no clone of its repository.
    """
    for path, sha256 in script.files:
        kept = xdg.cache_folder("corpus") / sha256
        if not kept.is_file() or _sha256(kept.read_bytes()) != sha256:
            content = packaged(script.source, path) if script.source.package else committed(script.source, path)
            if (found := _sha256(content)) != sha256:
                raise ValueError(f"{script.name}: {path} has the SHA-256 {found}, not the pinned {sha256}")
            part = kept.with_suffix(f".{os.getpid()}")
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            part.replace(kept)
        target = app / script.name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(kept.read_bytes())


def available(script: Script) -> bool:
    """Return whether a script is in the cache or can be fetched."""
    kept = all((xdg.cache_folder("corpus") / sha256).is_file() for _, sha256 in script.files)
    return kept or bool(script.source.package) or _clone(script.source) is not None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def packaged(source: Source, path: str) -> bytes:
    """Return a file of a Debian package, which stays in the cache: its other scripts are wanted next."""
    folder = xdg.cache_folder("corpus")
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / f"{source.package}_{source.revision}_all.deb"
    if not package.is_file() or _sha256(package.read_bytes()) != source.sha256:
        host = settings.from_host(None, None, os.environ)
        argv = kit.command([], folder, host, [{"package": source.package, "suite": _SUITE}])
        hook = '--customize-hook=cd "$1"/tmp && export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG && apt-get --quiet=2 download '
        hook += f"{source.package} && cp *.deb {quoted([str(folder)])}"
        argv = [hook if word.startswith("--customize-hook=") else word for word in argv]
        process.run(argv, _TIMEOUT, {**process.base_environment(), **host.proxies})
        if (found := _sha256(package.read_bytes())) != source.sha256:
            raise ValueError(f"{package.name} has the SHA-256 {found}, not the pinned {source.sha256}")
    unpack = ["dpkg-deb", "--fsys-tarfile", str(package)]
    extract = ["tar", "--extract", "--to-stdout", f"./{source.folder}/{path}"]
    with subprocess.Popen(unpack, stdout=subprocess.PIPE) as opened:
        return subprocess.run(extract, stdin=opened.stdout, capture_output=True, check=True, timeout=_TIMEOUT).stdout


def committed(source: Source, path: str) -> bytes:
    clone = _clone(source)
    if clone is None:
        raise LookupError(f"no clone of {source.repository}: {CLONES} names the folder with {_name(source)}")
    what = f"{source.revision}:{source.folder}/{path}" if source.folder else f"{source.revision}:{path}"
    argv = ["git", f"--git-dir={clone}", "show", what]
    return subprocess.run(argv, check=True, capture_output=True, timeout=_TIMEOUT).stdout


def _name(source: Source) -> str:
    return source.repository.replace("/", "+")


def _clone(source: Source) -> Path | None:
    """Return the git folder of a source, or None."""
    top = Path(os.environ.get(CLONES, "/nonexistent")) / _name(source)
    places = [top, top / ".git", top / "repo", top / "repo" / ".git"]
    return next((place for place in places if (place / "objects").is_dir()), None)
