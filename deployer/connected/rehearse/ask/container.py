"""A rehearsal in a Docker container, for machines that cannot make the namespaces of a simulated site themselves.

One container hosts the whole simulated site. The same modules run in it as on Linux, as the user, without a network and
without capabilities. The engine may be on another machine. Bundles are copied into a volume, which keeps the installed
images for the next rehearsal. Only the outcome, the log and result.json come back.
"""

import contextlib
import getpass
import hashlib
import io
import json
import os
import re
import shutil
import socket
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import docker
from docker.errors import APIError, NotFound
from docker.types import LogConfig, Mount
from docker.utils.socket import STDOUT, frames_iter

import deployer
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.ground import caches, engine, progress
from deployer.connected.rehearse.ask import container_image, crossing
from deployer.connected.rehearse.ask.judged import DOCKER, Judged
from deployer.connected.rehearse.ask.request import RehearsalRequest, job_of
from deployer.connected.rehearse.world import own_paths
from deployer.connected.rehearse.world.namespaces import SYSCTL
from deployer.contract.base import dialogue, json_records
from deployer.contract.base.errors import BY_EXIT_CODE, DeployerError, Refused, UsageError
from deployer.contract.base.tarformat import padding
from deployer.contract.base.text import printable
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.rehearsal import rehearsal
from deployer.system import files, terminal
from deployer.system.trust.verify import begin, opened, size_of

#: The modules that a simulated site needs.
_PARTS = ("__init__.py", "contract", "system", "connected/__init__.py", "connected/ground", "connected/rehearse")
#: The label of rehearsal containers. Its value identifies the cache.
_OWNER = "deployer.rehearsal"
#: The user in the container if root rehearses. Jobs on a site never run as root, and without a user namespace of its
#: own, root in the container would be root on the engine's machine.
_ORDINARY = 1000
_MOST_PROCESSES = 16384
#: The share of the memory of the engine's machine that a rehearsal may use.
_SHARE_OF_MEMORY = 0.9
#: AppArmor profiles: none, or Ubuntu's profile for ch-run where only listed programs may use namespaces.
_UNCONFINED, _CH_RUN = "unconfined", "ch-run"
#: The folder in the cache for the returned files, and the number of rehearsals to keep there.
KEPT = "docker"
_MOST_KEPT = 5
_HOME = f"{crossing.STATE}/home"
_PROGRAM = ["python3", "-S", "-m", "deployer.connected.rehearse.ask.in_container"]
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ALLOW = f"allow user namespaces on the engine's machine ({SYSCTL})"
_VOLUME_PREFIX = "deployer-rehearsal-"
_VOLUME = re.compile(_VOLUME_PREFIX + r"[0-9a-f]{12}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")


def rehearse(request: RehearsalRequest, accepted: Sequence[str], tell: Callable[[str], None]) -> Judged:
    """Run a job on a simulated site in a container to its end or its time limit.

    Args:
        tell: receives progress messages.

    Raises:
        MissingTool: no engine responds.
        Refused: the engine's machine cannot simulate a site.
        DeployerError: an error of the rehearsal itself.
    """
    with contextlib.closing(engine.connect()) as client:
        return _Host(client, request, accepted, tell).rehearse()


class _Bundle(NamedTuple):
    path: str
    place: str
    size: int
    manifest: Manifest


class _Host:
    def __init__(
        self, client: docker.DockerClient, request: RehearsalRequest, accepted: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._client = client
        self._tell = tell
        self._folder = caches.REHEARSE.folder / KEPT
        self._uid, self._gid = (os.getuid(), os.getgid()) if os.getuid() else (_ORDINARY, _ORDINARY)
        self._owner = volume_name()
        self._bundles = [_bundle(path) for path in (request.bundle, *request.others)]
        job_of(self._bundles[0].manifest, request)  # refuse a wrong job name before anything is copied
        self._mounts, binds = _binds(request.binds)
        own_paths.check_binds(request.binds)
        self._shown = [(item.place, item.path) for item in self._bundles]
        self._shown += reversed([(mount["Target"], mount["Source"]) for mount in self._mounts])  # /binds/10, /binds/1
        first, *others = (item.place for item in self._bundles)
        inside = request._replace(bundle=first, others=others, binds=binds)
        self._order = json.dumps(
            {"request": inside.record(), "accepted": list(accepted), "progress": terminal.shows_progress()}
        ).encode()
        self._sources = _sources()
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self._sources.items()}
        self._programs = f"{crossing.PROGRAMS}/{caches.key(digests)}"

    def rehearse(self) -> Judged:
        image = container_image.ensure(self._client, self._tell)
        with engine.errors_named(self._client, "prepare a rehearsal"):
            reap(self._client, self._owner)
            known: dict[str, Any] = self._client.api.info()
        if known.get("Architecture") not in ("x86_64", "amd64"):
            self._tell(f"the engine's machine is {known.get('Architecture')}: all programs are emulated, and slow")
        apparmor = any("name=apparmor" in option for option in known.get("SecurityOptions") or [])
        forbidden = ""
        for profile in (_UNCONFINED, _CH_RUN) if apparmor else (_UNCONFINED,):
            answer = self._answer(image, profile, int(known["MemTotal"] * _SHARE_OF_MEMORY))
            if answer is None:  # the engine's machine lacks this profile
                break
            if crossing.ERROR not in answer:
                return self._kept(answer)
            error = json_records.parse(answer[crossing.ERROR], "the error of a rehearsal")
            if "forbidden" not in error:
                kind = BY_EXIT_CODE.get(error["code"], DeployerError)
                message, hint, *details = (
                    self._outside(str(text)) for text in (error["message"], error["hint"], *error["details"])
                )
                raise kind(message, hint, details)
            forbidden = str(error["forbidden"])
        raise Refused(f"the engine's machine cannot simulate a site: {forbidden}", _ALLOW)

    def _answer(self, image: str, profile: str, memory: int) -> dict[str, bytes] | None:
        """Run the rehearsal in a container and return its answer, or None if the engine's machine lacks the profile."""
        api = self._client.api
        with files.errors_named(f"write {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_text(str(volume_record()), self._owner)
        with engine.errors_named(self._client, "rehearse in a container"), contextlib.ExitStack() as cleanup:
            settings = api.create_host_config(
                network_mode="none", cap_drop=["ALL"], auto_remove=True, pids_limit=_MOST_PROCESSES, mem_limit=memory,
                memswap_limit=memory, log_config=LogConfig(type="none"),
                security_opt=["no-new-privileges", "seccomp=unconfined", f"apparmor={profile}"],
                mounts=[Mount(crossing.STATE, self._owner, "volume"), *self._mounts],
            )  # fmt: skip
            settings["MaskedPaths"] = settings["ReadonlyPaths"] = []  # needed to mount /proc for nodes
            container = api.create_container(
                image, _PROGRAM[1:], entrypoint=_PROGRAM[:1], user=f"{self._uid}:{self._gid}", hostname="laptop",
                stdin_open=True, working_dir="/", host_config=settings, platform=container_image.PLATFORM,
                labels={_OWNER: self._owner, **engine.labels()},
                environment={
                    "PATH": _PATH, "HOME": _HOME, "USER": _user(), "LANG": "C.UTF-8", "XDG_CACHE_HOME": crossing.STATE,
                    "PYTHONPATH": f"{self._programs}:{self._programs}/{crossing.PYZ}",
                },
            )["Id"]  # fmt: skip
            cleanup.callback(engine.remove, self._client, container)
            self._copy_in(container)
            params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            connection = api.attach_socket(container, params=params)
            try:
                api.start(container)
            except APIError as error:
                if profile != _UNCONFINED and "apparmor" in str(error.explanation).lower():
                    return None
                raise
            return self._read(connection)

    def _read(self, connection: Any) -> dict[str, bytes]:
        """Return the files of the answer, and report lines of progress."""
        last, partial = "", b""
        with tempfile.TemporaryFile() as spool, contextlib.ExitStack() as bars:
            hear = dialogue.listener(progress.late_far_bar("install", bars))
            for kind, data in frames_iter(connection, tty=False):  # type: ignore[no-untyped-call]
                if kind == STDOUT:
                    if spool.tell() + len(data) > 2 * sum(crossing.LIMITS.values()):
                        raise DeployerError("the answer of the rehearsal is too large")
                    spool.write(data)
                    continue
                *lines, partial = (partial + data).split(b"\n")
                for said in (line.decode("utf-8", "replace") for line in lines):
                    if hear and hear(said):
                        continue
                    bars.close()
                    last = self._outside(said)
                    self._tell(last)
            spool.seek(0)
            answer = _files(spool)
        if crossing.OUTCOME not in answer and crossing.ERROR not in answer:
            said = printable(last or partial.decode("utf-8", "replace")) or "it printed nothing"
            hint = "if the engine's machine lacks memory, give it more, or rehearse with --ranks 1"
            raise DeployerError(f"the container of the rehearsal ended without an answer: {said}", hint)
        return answer

    def _outside(self, text: str) -> str:
        """Return a text with container paths replaced with paths on this machine."""
        for inside, path in self._shown:
            text = text.replace(inside, path)
        return printable(text)

    def _copy_in(self, container: str) -> None:
        """Copy everything that the rehearsal needs into a container that has not started yet."""
        api, user = self._client.api, _user()
        own = {
            crossing.ORDER: self._order,
            "/etc/passwd": f"root:x:0:0::/root:/bin/sh\n{user}:x:{self._uid}:{self._gid}::{_HOME}:/bin/bash\n".encode(),
            "/etc/group": f"root:x:0:\n{user}:x:{self._gid}:\n".encode(),
        }
        api.put_archive(container, "/", self._tar(own, (crossing.STATE, crossing.BUNDLES, crossing.PROGRAMS, _HOME)))
        if not self._is_there(container, self._programs):
            programs = {f"{self._programs}/{name}": data for name, data in self._sources.items()}
            parents = sorted({str(parent) for name in programs for parent in Path(name).parents})
            programs[self._programs + crossing.WHOLE] = b"whole"
            folders = [folder for folder in parents if folder > crossing.PROGRAMS]
            api.put_archive(container, "/", self._tar(programs, folders))
        for item in self._bundles:
            if self._is_there(container, item.place):
                continue
            self._tell(f"copying {item.path} to the engine")
            with opened(item.path) as stream, progress.bar("copy", item.size) as advance:
                api.put_archive(container, "/", self._stream(stream, item, advance))

    def _is_there(self, container: str, path: str) -> bool:
        """Return whether the volume has a complete file or folder: the marker after it proves that."""
        with contextlib.suppress(NotFound):
            chunks, _ = self._client.api.get_archive(container, path + crossing.WHOLE)
            return bool(b"".join(chunks))
        return False

    def _stream(self, stream: IO[bytes], item: _Bundle, advance: Callable[[int], None]) -> Iterator[bytes]:
        """Yield a tar with a bundle, followed by the empty marker file that proves that the copy is complete."""
        yield self._entry(item.place, item.size).tobuf(tarfile.PAX_FORMAT)
        for chunk in iter(lambda: stream.read(files.CHUNK), b""):
            yield chunk
            advance(len(chunk))
        yield b"\0" * padding(item.size)
        yield self._entry(item.place + crossing.WHOLE, 0).tobuf(tarfile.PAX_FORMAT) + b"\0" * 1024

    def _tar(self, contents: Mapping[str, bytes], folders: Iterable[str]) -> bytes:
        """Return a tar of files and folders that the user owns."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for folder in folders:
                entry = self._entry(folder, 0)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(entry)
            for name, data in contents.items():
                archive.addfile(self._entry(name, len(data)), io.BytesIO(data))
        return buffer.getvalue()

    def _entry(self, name: str, size: int) -> tarfile.TarInfo:
        """Return the tar header for a file that the user owns."""
        entry = tarfile.TarInfo(name.lstrip("/"))
        entry.size, entry.uid, entry.gid, entry.mode, entry.mtime = size, self._uid, self._gid, 0o600, int(time.time())
        return entry

    def _kept(self, answer: dict[str, bytes]) -> Judged:
        """Keep the files of an answer in the cache, beside those of earlier rehearsals."""
        outcome = rehearsal.read(answer[crossing.OUTCOME], "the outcome of the rehearsal")
        with files.errors_named(f"write {self._folder}"):
            folder = Path(tempfile.mkdtemp(prefix=f"{outcome.job}-", dir=self._folder))
            for name in (crossing.LOG, crossing.RESULT):
                if name in answer:
                    (folder / name).write_bytes(answer[name])
            older = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in older[:-_MOST_KEPT]:
                shutil.rmtree(path, ignore_errors=True)
        return Judged(outcome, folder, DOCKER)


def reap(client: docker.DockerClient, owner: str) -> None:
    """Remove containers that were never started because their command was killed."""
    engine.reap(client, f"{_OWNER}={owner}")


def volume_record() -> Path:
    """Return the file with the name of the volume. The file exists once a rehearsal has used the volume."""
    return caches.REHEARSE.folder / "volume"


def volume_name() -> str:
    """Return the name of the volume with the installed images. It belongs to this user's cache on this machine.

    If this machine is renamed, an existing volume keeps its name.
    """
    with contextlib.suppress(OSError, ValueError):
        known = volume_record().read_text()
        if _VOLUME.match(known):
            return known
    return _VOLUME_PREFIX + caches.key(socket.gethostname(), os.getuid(), str(caches.REHEARSE.folder))[:12]


def _sources() -> dict[str, bytes]:
    """Return the programs of a simulated site: the modules of this package and the site's program."""
    package = Path(deployer.__file__).parent
    found = {crossing.PYZ: make_pyz()}
    for part in _PARTS:
        root = package / part
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            found[f"deployer/{path.relative_to(package).as_posix()}"] = path.read_bytes()
    return found


def _bundle(path: str) -> _Bundle:
    with opened(path) as stream:
        found = begin(stream, path)
        place = f"{crossing.BUNDLES}/{found.digest.rpartition(':')[2]}.tar"
        return _Bundle(path, place, size_of(stream), found.manifest)


def _binds(binds: Sequence[str]) -> tuple[list[Mount], list[str]]:
    """Return the container's mounts for ``--bind``, and the binds to use inside it. Raises UsageError."""
    if binds and not engine.address().startswith("unix://"):
        hint = "leave out --bind: a job must also run without it, or put the files into the bundle's data"
        raise UsageError(f"--bind {binds[0]}: the Docker engine at {engine.address()} does not see this folder", hint)
    mounts, inside = [], []
    for number, bind in enumerate(binds):
        source, _, target = bind.partition(":")
        path = os.path.abspath(os.path.expanduser(source))
        if not files.exists(path):
            raise UsageError(f"--bind {bind}: {path} does not exist", "--bind requires SRC or SRC:DST")
        mounts.append(Mount(f"{crossing.BINDS}/{number}", path, "bind"))
        inside.append(f"{crossing.BINDS}/{number}:{target or path}")
    return mounts, inside


def _files(stream: IO[bytes]) -> dict[str, bytes]:
    """Return the known files of an answer, without those that exceed their limits."""
    found: dict[str, bytes] = {}
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=stream) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name in crossing.LIMITS and member.isreg() else None
            if content is not None and member.size <= crossing.LIMITS[member.name]:
                found[member.name] = content.read()
    return found


def _user() -> str:
    """Return the user's name, for programs that need one."""
    name = ""
    with contextlib.suppress(KeyError, OSError):  # the password database lacks this user
        name = getpass.getuser() if os.getuid() else ""
    return name if _NAME.match(name) else "user"
