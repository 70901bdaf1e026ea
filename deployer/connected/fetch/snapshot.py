"""Download the repositories that a definition's ``data`` names, at a revision, from the Hugging Face hub.

The hub's list of a revision has a digest for each file, and each downloaded file must have it: SHA-256 for large files,
Git's object name for others. Files that an earlier revision has too are not downloaded again, and an interrupted
download continues.
"""

import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import requests

from deployer.connected.fetch import hub
from deployer.connected.fetch.recorder import TIMEOUT, TRIES, new_session, status_in_words
from deployer.connected.ground import progress
from deployer.connected.image.definition import fetched
from deployer.connected.image.definition.definition import DataFolder, Definition
from deployer.contract.base.errors import IntegrityError, Refused, TransferError
from deployer.system import files

_CHUNK = 1024 * 1024
#: Weights that run code when they are loaded, or are for other libraries. They are left out beside safetensors.
_OTHER_WEIGHTS = re.compile(r"\.(bin|pt|pth|ckpt|pkl|h5|msgpack|onnx|ot)$")


class HubFile(NamedTuple):
    """A file of a repository.

    Attributes:
        path: its path there.
        size: bytes.
        oid: the SHA-256 of a large file, or Git's SHA-1 of another one, in hexadecimal.
    """

    path: str
    size: int
    oid: str

    def hash(self) -> Any:
        """Return the hash object for its content."""
        if len(self.oid) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


class HubSnapshot(NamedTuple):
    """A downloaded repository.

    Attributes:
        name: the name of the data.
        files: number of files.
        size: bytes of all files.
        received: bytes that came over the network.
        left: files that are left out, because the repository has the same weights as safetensors.
        licence: on its card.
        running: files that run code when they are loaded.
    """

    name: str
    files: int
    size: int
    received: int
    left: Sequence[str]
    licence: str
    running: Sequence[str]


def download(
    definition: Definition, locked: bool, ca_bundle: str | None, say: Callable[[str], None]
) -> list[HubSnapshot]:
    """Download all repositories of a definition into ``fetched-data`` beside it, and write their files into the lock.

    Raises:
        Refused: a repository or revision cannot be had, or with ``locked``, the lock does not have it.
        IntegrityError: a file does not have the hub's digest, or that of the lock.
        TransferError: the hub cannot be reached.
        SpaceError: the disk is full.
    """
    lock = fetched.read_data(definition.folder)
    session = new_session(ca_bundle)
    made = []
    for name, data in definition.hub_data.items():
        if locked and data.pin not in lock:
            raise Refused(f"{fetched.FILE} has no {data.pin}", "fetch it once without --locked")
        say(f"fetch: {data.pin}")
        known = lock.setdefault(data.pin, {})
        made.append(_Repository(data, session).bring(name, definition.folder / fetched.DATA, known))
    pins = {data.pin: lock[data.pin] for data in definition.hub_data.values()}
    fetched.write(definition.folder, definition.fetched, pins)
    return made


class _Repository:
    """A repository at a revision."""

    def __init__(self, data: DataFolder, session: requests.Session) -> None:
        self._data, self._session, self.received = data, session, 0
        whole = str(data.hub)
        self._name = whole.removeprefix("datasets/")
        kind = "models" if whole == self._name else "datasets"
        self._files = f"https://{hub.HOST}/{whole}/resolve/{data.revision}/"
        self._api = f"https://{hub.HOST}/api/{kind}/{self._name}"

    def bring(self, name: str, top: Path, known: dict[str, str]) -> HubSnapshot:
        """Download the files into a folder ``top``/``name``, compare them with the known digests, and add new ones."""
        wanted, left = self._chosen(self._listed())
        if not wanted:
            raise Refused(f"{self._data.pin} has no such files", "correct `include` in bundle.yaml")
        key = hashlib.sha256(self._data.choice.encode()).hexdigest()[:12]  # what a killed fetch left is continued
        place, part, old = top / name, top / f".{name}.{key}.part", top / f".{name}.old"
        total = sum(each.size for each in wanted)

        def bring_all() -> None:
            for each in wanted:
                sha256 = self._bring(each, place / each.path, part / each.path)
                if known.setdefault(each.path, sha256) != sha256:
                    raise IntegrityError(f"{self._data.pin}: {each.path} is not the file in {fetched.FILE}")

        with files.errors_named(f"write {place}"):
            top.mkdir(exist_ok=True)
            fetched.ignore(top)
            part.mkdir(exist_ok=True)
            progress.of_size("fetch", lambda: self.received, total, bring_all)
            files.remove_tree(str(old))
            if files.is_folder(str(place)):
                place.rename(old)
            part.rename(place)
            fetched.mark_data(top, name, self._data.choice)
            for path in (old, *top.glob(f".{name}.*.part")):
                files.remove_tree(str(path))
        running = [each.path for each in wanted if _OTHER_WEIGHTS.search(each.path) or each.path.endswith(".py")]
        licence = hub.licences([self._files + wanted[0].path], self._session)[self._name]
        return HubSnapshot(name, len(wanted), total, self.received, left, licence, running)

    def _listed(self) -> list[HubFile]:
        found: list[HubFile] = []
        url: str | None = f"{self._api}/tree/{self._data.revision}?recursive=true"
        while url:
            response = self._ask(url, {})
            try:
                for entry in response.json():
                    path, lfs = str(entry["path"]), entry.get("lfs") or {}
                    if entry["type"] == "file" and path.isprintable() and not {"", "..", "."} & {*path.split("/")}:
                        found.append(HubFile(path, int(entry["size"]), str(lfs.get("oid") or entry["oid"])))
            except (AttributeError, KeyError, TypeError, ValueError):
                raise TransferError(
                    f"{hub.HOST} does not answer with its list of files", "open it in a browser"
                ) from None
            url = response.links.get("next", {}).get("url")
        return found

    def _chosen(self, listed: Sequence[HubFile]) -> tuple[list[HubFile], list[str]]:
        """Return the files to download, and the paths of weights that are left out beside safetensors."""
        chosen = self._data.include
        if chosen:
            return [each for each in listed if any(fnmatch.fnmatch(each.path, pattern) for pattern in chosen)], []
        safe = any(each.path.endswith(".safetensors") for each in listed)
        left = {each.path for each in listed if safe and _OTHER_WEIGHTS.search(each.path)}
        return [each for each in listed if each.path not in left], sorted(left)

    def _ask(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        login = hub.login(hub.HOST)
        own = {"Authorization": login} if login else {}
        try:
            response = self._session.get(
                url, headers={**own, "Accept-Encoding": "identity", **headers}, stream=True, timeout=TIMEOUT
            )
        except OSError as error:
            raise TransferError(f"{hub.HOST} cannot be reached: {error}", "check the network, and the proxy") from error
        if response.status_code >= 400:
            raise Refused(
                f"{self._data.pin}: {status_in_words(response.status_code, response.headers)}",
                "check name, revision and login in bundle.yaml",
            )
        return response

    def _bring(self, file: HubFile, last: Path, place: Path) -> str:
        """Download a file, or take the last copy of it. Return its SHA-256."""
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists() and files.is_file(str(last)) and last.stat().st_size == file.size:
            own, sha256 = _hashes(last, file)
            if own == file.oid:
                os.link(last, place)
                return sha256
        for _ in range(TRIES):
            done = place.stat().st_size if place.exists() else 0
            if 0 < file.size <= done:
                break
            response = self._ask(self._files + file.path, {"Range": f"bytes={done}-"} if done else {})
            continues = response.status_code == 206
            try:
                with open(place, "ab" if continues else "wb") as stream:
                    for chunk in response.iter_content(_CHUNK):
                        self.received += len(chunk)
                        stream.write(chunk)
                break
            except requests.exceptions.RequestException:
                continue
        else:
            raise TransferError(f"{self._data.pin}: {file.path} was cut {TRIES} times", "fetch again: it continues")
        own, sha256 = _hashes(place, file)
        if own != file.oid:
            place.unlink()
            raise IntegrityError(
                f"{self._data.pin}: {file.path} arrived with other content than the hub lists", "try again"
            )
        return sha256


def _hashes(path: Path, file: HubFile) -> tuple[str, str]:
    """Return the hub's digest and the SHA-256 of a local file."""
    hub_hash, sha256 = file.hash(), hashlib.sha256()
    with files.open_regular(str(path)) as stream:
        while chunk := stream.read(_CHUNK):
            hub_hash.update(chunk)
            sha256.update(chunk)
    return hub_hash.hexdigest(), sha256.hexdigest()
