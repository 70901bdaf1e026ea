"""storm_node JSON: on one node, start ranks at once from an image, and print what they cost as a line of JSON.

A program of its own for `bench_storm.py`, which describes the keys of JSON in ``config``. Beside it are counted.py and,
to count requests, mfusepy.py. It needs no root: ``/dev/fuse`` and user namespaces, and the runtime that it measures.
"""

from __future__ import annotations

import ast
import collections
import glob
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Makes root a user as others are, who has root's files: Apptainer without setuid and rootless podman are not for root.
AS_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
#: Prints when the program has been loaded, and stays until all others have been.
_RANK = "import sys, time; {}; print(time.time(), flush=True); sys.stdin.read()"
_PATIENCE_S = 900
#: What a rank sees of the host beside its image.
_OF_THE_HOST = ("/proc/", "/dev/", "/sys/", "/tmp/")
#: Podman without root, ranges of numbers, control groups and an image store, in a folder of each rank ($0).
_PODMAN = """mkdir -p "$0" && cd "$0" && printf '[storage]\\ndriver="vfs"\\n' >storage.conf
export HOME=$0 XDG_RUNTIME_DIR=$0 CONTAINERS_STORAGE_CONF=$0/storage.conf
export _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID=$(id -u) _CONTAINERS_ROOTLESS_GID=$(id -g)
exec unshare --user --map-root-user --mount podman --log-level=error --root=$0/root --runroot=$0/runroot \
    --tmpdir=$0/tmp --cgroup-manager=cgroupfs --events-backend=none run --rm --interactive --pull=never --read-only \
    --network=host --pid=host --log-driver=passthrough --no-hosts --dns=none \
    --security-opt=seccomp=unconfined --read-only-tmpfs=false --tmpfs=/run:notmpcopyup \
    --volume=/tmp:/tmp --rootfs "$@" """


def main(config: dict[str, Any]) -> None:
    """Stage the image if the way does so, start the ranks, and print the result.

    Keys of ``config``: ``shared``, the folder with ``image``, ``image.sqfs`` and ``image.tar``; ``memory``, this node's
    own; ``way``: see ``bench_storm.Way``; ``program``; ``ranks``; ``mode``: ``time``, ``requests`` or ``calls``.
    """
    memory = Path(config["memory"])
    shutil.rmtree(memory, ignore_errors=True)
    memory.mkdir(parents=True)
    try:
        with ExitStack() as stack:
            result: dict[str, Any] = {}
            if config["mode"] == "requests":
                config["shared"] = str(
                    stack.enter_context(_counting(Path(config["shared"]), memory / "shared", result))
                )
            begun = time.time(), _processor_seconds()
            place = _stage(config, memory)
            result["staging"] = time.time() - begun[0], _processor_seconds() - begun[1]
            measure = _calls if config["mode"] == "calls" else _storm
            result.update(measure(config, place, memory))
        print(json.dumps(result), flush=True)
    finally:
        shutil.rmtree(memory, ignore_errors=True)


def _stage(config: dict[str, Any], memory: Path) -> Path:
    """Return the path of the image. If the way stages it, copy it to memory or unpack it there first."""
    way, shared = config["way"], Path(config["shared"])
    name = "image.sqfs" if way["packed"] else "image"
    if way["staged"] and way["packed"]:
        shutil.copy(shared / name, memory / name)
    elif way["staged"]:
        (memory / name).mkdir()
        subprocess.run(["tar", "-C", memory / name, "-xf", shared / "image.tar"], check=True)
    return (memory if way["staged"] else shared) / name


@contextmanager
def _words(config: dict[str, Any], place: Path, memory: Path) -> Iterator[list[str]]:
    """Yield the words of a rank, with the node's mount if it has one for all."""
    runtime, how = config["way"]["runtime"], config["way"]["how"]
    user = list(AS_USER) if os.getuid() == 0 else []
    # Two that start at once may both make it, and the second one then fails (0.31).
    os.makedirs(f"/var/tmp/{_environment()['USER']}.ch", mode=0o700, exist_ok=True)
    charliecloud = ["ch-run", "--unset-env=*", "--set-env=PATH=/usr/bin:/bin"]
    apptainer = [*user, "apptainer", "--silent", "exec", "--cleanenv", "--contain", "--no-home"]
    if runtime == "apptainer" and how == "mounted":
        folder = memory / "mounted"
        folder.mkdir()
        with subprocess.Popen([_squashfuse(), "-f", place, folder]) as server:
            while not folder.is_mount() and server.poll() is None:
                time.sleep(0.01)
            yield [*apptainer, str(folder)]
            server.terminate()
    elif runtime == "apptainer":
        yield [*apptainer, str(place)]
    elif runtime == "podman":
        yield [*user, "sh", "-c", _PODMAN, "{private}", str(place)]
    elif how == "joined":
        tag = ["--join-ct={}".format(config["ranks"]), f"--join-tag=storm-{os.getpid()}"]
        yield [charliecloud[0], *tag, *charliecloud[1:], str(place), "--"]
    elif how == "mounted":
        command = [*charliecloud, str(place), "--", "sh", "-c", "echo $$; exec sleep 3600"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment()) as holder:
            pid = holder.stdout.readline().strip() if holder.stdout else ""
            yield [charliecloud[0], f"--join-pid={pid}", *charliecloud[1:], str(memory), "--"]
            os.kill(int(pid), signal.SIGTERM)
    else:
        yield [*charliecloud, str(place), "--"]


def _squashfuse() -> str:
    """Return the program that mounts a file: Apptainer's own, or that in PATH."""
    prefix = os.path.dirname(os.path.dirname(shutil.which("apptainer") or ""))
    places = [f"{prefix}/{folder}/apptainer/bin/squashfuse_ll" for folder in ("libexec", "lib", "lib/*")]
    own = (path for place in places for path in glob.glob(place))
    return next(own, "squashfuse_ll")


def _storm(config: dict[str, Any], place: Path, memory: Path) -> dict[str, Any]:
    """Start ranks at once: seconds to the first and last line, of processors and of the servers of mounts; MiB."""
    program = ["python3", "-I", "-c", _RANK.format(config["program"])]
    before, pipe = _processor_seconds(), subprocess.PIPE
    with _words(config, place, memory) as words, ExitStack() as stack:
        begun = time.time()
        started = []
        for number in range(config["ranks"]):
            own = [word.replace("{private}", str(memory / f"rank{number}")) for word in words]
            started.append(subprocess.Popen([*own, *program], stdin=pipe, stdout=pipe, env=_environment()))
            stack.callback(started[-1].kill)
        lines = [process.stdout.readline() for process in started if process.stdout]
        if not all(lines):
            raise SystemExit(f"bench: error: a rank printed nothing: {words}")
        times = sorted(float(line) - begun for line in lines)
        mib, mounts = _memory()
        for process in started:
            process.communicate(timeout=_PATIENCE_S)
    used = _processor_seconds() - before
    return {"first": times[0], "last": times[-1], "used": used, "mib": mib, "mounts": mounts}


def _processor_seconds() -> float:
    """Return the seconds of all ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory() -> tuple[float, int]:
    """Return the MiB of all processes that this one started, and how many of them serve a mount."""
    parents: dict[int, list[int]] = collections.defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            parents[int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])].append(int(name))
    pids, kib, mounts = list(parents[os.getpid()]), 0, 0
    for pid in pids:
        pids += parents[pid]
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
            mounts += "/dev/fuse" in links
    return kib / 1024, mounts


def _calls(config: dict[str, Any], place: Path, memory: Path) -> dict[str, Any]:
    """Return how many calls on the shared file system the first of two ranks makes, and the second."""
    program = ["python3", "-I", "-c", config["program"]]
    traces = [memory / "trace.0", memory / "trace.1"]
    with _words({**config, "ranks": 2}, place, memory) as words:
        count = [sys.executable, "-I", "-S", str(HERE / "counted.py")]
        own = [[word.replace("{private}", f"{trace}.d") for word in words] for trace in traces]
        started = [
            subprocess.Popen([*count, trace, *rank, *program], env=_environment())
            for trace, rank in zip(traces, own, strict=True)
        ]
        if sum([process.wait(_PATIENCE_S) for process in started]):
            return {"calls": None}
    shared = config["shared"] + "/"
    found = sorted(sum(_is_shared(line, place, shared) for line in open(trace)) for trace in traces)
    return {"calls": [found[1], found[0]]}


def _is_shared(line: str, place: Path, shared: str) -> bool:
    """Return whether a call of a trace is one on the shared file system."""
    _, inside, text = line.split(" ", 2)
    path: str = ast.literal_eval(text)
    if inside == "0" or path.startswith(shared):
        return path.startswith(shared)
    return place.is_dir() and str(place).startswith(shared) and not f"{path}/".startswith(_OF_THE_HOST)


# --- the file system that counts ---


@contextmanager
def _counting(shared: Path, at: Path, result: dict[str, Any]) -> Iterator[Path]:
    """Mount ``shared`` at ``at``, as a node of its own sees it, and put the number of requests and bytes in ``result``.

    Names, attributes and content are kept as clients of shared file systems do: what this node has is not asked again.
    """
    at.mkdir()
    reading, writing = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(reading)
        _serve(str(shared), str(at), writing)
        os._exit(0)
    os.close(writing)
    while not at.is_mount():
        if os.waitpid(server, os.WNOHANG)[0]:
            raise SystemExit(f"bench: error: {at} was not mounted: may users open /dev/fuse?")
        time.sleep(0.01)
    yield at
    subprocess.run(["umount", "-l", at], check=True)
    with open(reading) as stream:
        result.update(json.loads(stream.read()))
    os.waitpid(server, 0)


def _serve(shared: str, at: str, out: int) -> None:
    sys.path.insert(0, str(HERE))
    import mfusepy  # type: ignore[import-untyped]

    counts: collections.Counter[str] = collections.Counter()
    lock = threading.Lock()

    def count(name: str, number: int = 1) -> None:
        with lock:
            counts[name] += number

    class Files(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            count("requests")
            found = os.lstat(shared + path)
            return {name: getattr(found, name) for name in dir(found) if name.startswith("st_")} | {
                f"st_{name}time": getattr(found, f"st_{name}time_ns") for name in "amc"
            }

        def readlink(self, path: str) -> str:
            count("requests")
            return os.readlink(shared + path)

        def readdir(self, path: str, fh: int) -> list[str]:
            count("requests")
            return [".", "..", *os.listdir(shared + path)]

        def open(self, path: str, flags: int) -> int:
            count("requests")
            return os.open(shared + path, os.O_RDONLY)

        def read(self, path: str, length: int, at: int, fh: int) -> bytes:
            data = os.pread(fh, length, at)
            count("requests")
            count("bytes", len(data))
            return data

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

    options = {"kernel_cache": True, "attr_timeout": 60, "entry_timeout": 60, "negative_timeout": 60}
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it warns of a default of its own
    mfusepy.FUSE(Files(), at, foreground=True, ro=True, **options)
    os.write(out, json.dumps({"requests": counts["requests"], "bytes": counts["bytes"]}).encode())


def _environment() -> dict[str, str]:
    return {"USER": "root", **os.environ}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["mode"] == "requests" and not os.environ.get("STORM_APART"):
        apart = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.getuid() else [])]
        os.environ["STORM_APART"] = "1"
        os.execvp(apart[0], [*apart, sys.executable, *sys.argv])
    main(given)
