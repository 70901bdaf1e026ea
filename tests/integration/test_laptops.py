"""The laptop's half without what only Linux has: no /proc, a home without case, paths of macOS; and as a plain user.

The bundles must be those that the same definition gives on Linux, byte for byte.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deployer.connected.ground import engine as engines
from deployer.connected.image.bases import base as bases
from deployer.connected.image.definition.definition import Base
from deployer.connected.image.definition.settings import BuildSettings
from tests import running, tars

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration

#: Mounts the home: ext4 that folds case or, on a kernel without it, FUSE. Hides what the kernel shows of itself.
HOLD = """
mount --make-rprivate / && cd "$1"
truncate -s 256M disk && mkfs.ext4 -q -O casefold -E encoding=utf8 disk && mkdir -p store "$2"
if mount -o loop disk "$2" 2>/dev/null; then
    mkdir "$2/Library" && chattr +F "$2/Library" && kind=ext4
else
    "$3" -m tests.integration.caseless "$1/store" "$2" & server=$! kind=fuse
    for _ in $(seq 100); do grep -q " $4 " /proc/mounts && break; sleep 0.05; done
    mkdir "$2/Library"
fi
mount -t tmpfs none /proc && mount -t tmpfs none /sys
echo $kind; read -r _
[ -z "$server" ] || kill -KILL $server # the mounts end with this namespace
"""
#: Two files, and two folders, of an image whose names differ only in case.
IMAGE = [
    ("bin/tool", b"\x7fELF"),
    ("opt/Makefile", b"one"),
    ("opt/makefile", b"two"),
    ("opt/Lib/a", b"a"),
    ("opt/lib/a", b"b" * 300_000),
]
BUNDLE = """
name: solver
version: "1"
base: {archive: ../root.tar}
data: {digits: {folder: data}}
jobs: {run: {command: [/bin/tool, /deployer/app/Train.py]}}
"""
ROOTED = ("--name", "rooted", "--version", "1")
SSH = """#!/bin/sh
case " $* " in
  *" -G "*) ;;
  *"-O check"*) test -e "$FAR/master" ;;
  *" -N "*) touch "$FAR/master"; exec sleep 30 ;;
  *) for last; do :; done
     export HOME="$FAR/home"
     exec unshare --mount sh -c 'mount -t proc proc /proc; exec sh -c "$1"' sh "$last" ;;
esac
"""
#: Runs a command as a user who may make no user namespaces.
PLAIN = [
    *("unshare", "--user", "--map-user=1000", "--map-group=1000", "--keep-caps", "sh", "-c"),
    'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --ambient-caps=-all --inh-caps=-all "$@"',
    "sh",
]


class Mac(NamedTuple):
    """Calls ``deployer`` as on macOS, in its Library, a folder without case."""

    holder: int
    library: Path
    environment: dict[str, str]

    def __call__(self, *words: object, code: int = 0) -> str:
        argv = ["nsenter", f"--target={self.holder}", "--mount", f"--wd={ROOT}", sys.executable, "-m"]
        return _called([*argv, "tests.integration.not_linux", "none", *map(str, words)], self.environment, code)

    def sh(self, script: str, *words: object) -> str:
        """Run a shell script beside the command line."""
        argv = ["nsenter", f"--target={self.holder}", "--mount", "sh", "-ec", script, "sh", *map(str, words)]
        return _called(argv, self.environment, 0)


def _called(argv: list[str], environment: dict[str, str], code: int) -> str:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=250, check=False, cwd=ROOT)
    assert done.returncode == code, f"{argv}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def define(folder: Path) -> Path:
    """Write a definition without a Dockerfile, and its base."""
    definition = folder / "solver"
    for name in ("app", "data"):
        (definition / name).mkdir(parents=True)
    (folder / "root.tar").write_bytes(tars.layer(IMAGE))
    (definition / "bundle.yaml").write_text(BUNDLE)
    (definition / "app/Train.py").write_text("print(1)\n")
    (definition / "data/Digits.csv").write_text("1,2\n" * 1000)
    (folder / "root/bin").mkdir(parents=True)
    (folder / "root/bin/tool").write_text("#!/bin/sh\n")
    return definition


@pytest.fixture(scope="module")
def mac(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mac]:
    """Yield a laptop with macOS, and the definition of ``define`` in its Library."""
    top = tmp_path_factory.mktemp("mac")
    home, temporary = top / "Users/Jane Doe", top / "var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"
    temporary.mkdir(parents=True)
    define(top / "made")
    (top / "far/home").mkdir(parents=True)
    (top / "bin").mkdir()
    running.program(top / "bin", "ssh", SSH.replace("$FAR", str(top / "far")))
    shown = str(home).replace(" ", "\\040")
    argv = ["unshare", "--mount", "sh", "-c", HOLD, "sh", str(top), str(home), sys.executable, shown]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() in ("ext4", "fuse")
        environment = {
            "HOME": str(home / "Library"),
            "TMPDIR": str(temporary),
            "LANG": "en_US.UTF-8",
            "USER": "jane",
            "PATH": f"{top / 'bin'}:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{top}/docker.sock",
        }
        laptop = Mac(holder.pid, home / "Library", environment)
        laptop.sh('cp -R "$1"/* "$HOME"', top / "made")
        yield laptop
        holder.communicate("\n", timeout=30)


@pytest.fixture(scope="module")
def linux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of the same definition, packed on Linux."""
    top = tmp_path_factory.mktemp("linux")
    definition = define(top)
    environment = {**os.environ, "XDG_CACHE_HOME": str(top / "cache"), "XDG_STATE_HOME": str(top / "state")}
    rooted = ["pack", "--rootfs", top / "root", *ROOTED, "-o", top / "rooted.tar"]
    for words in (["build", definition], ["pack", definition, "-o", top / "solver.tar"], rooted):
        _called([str(ROOT / ".venv/bin/deployer"), *map(str, words)], environment, 0)
    return top / "solver.tar"


def test_each_module_of_the_laptop_is_imported_on_macos() -> None:
    argv = [sys.executable, "-m", "tests.integration.not_linux", "none", "imports"]
    assert _called(argv, dict(os.environ), 0) == ""


@pytest.mark.needs("root", "caseless")
def test_a_laptop_without_linux_packs_the_same_bytes(mac: Mac, linux: Path) -> None:
    """From lint to diff: also of an image with names that its own disk could not hold side by side."""
    solver, bundle = mac.library / "solver", mac.library / "solver.tar"
    assert mac.sh('cat "$HOME/SOLVER/App/train.PY"; ls -A /proc /sys') == "print(1)\n/proc:\n\n/sys:\n"
    mac("lint", solver)
    assert "without Docker" in mac("build", solver)
    mac("pack", solver, "-o", bundle)
    mac("pack", "--rootfs", mac.library / "root", *ROOTED, "-o", mac.library / "rooted.tar")
    for name in ("solver.tar", "rooted.tar"):
        same = hashlib.sha256(linux.with_name(name).read_bytes()).hexdigest()
        assert mac.sh('sha256sum "$1"', mac.library / name).split()[0] == same
    mac("pack", mac.library / "Solver", "-o", mac.library / "again.tar")  # another spelling of the folder, known frames
    mac.sh('cmp "$1" "$2"', bundle, mac.library / "again.tar")
    listed = mac("inspect", "--files", bundle)
    assert all(name in listed for name in ("/opt/Makefile", "/opt/makefile", "/opt/Lib/a", "/opt/lib/a"))
    assert "error link.program: " in mac("check", bundle, "--site", "lab", code=3)  # it read the programs
    mac.sh('echo "print(2)" >"$HOME/solver/app/Train.py"')
    mac("pack", solver, "-o", mac.library / "changed.tar")
    assert "app/Train.py" in mac("diff", bundle, mac.library / "changed.tar")
    assert "bases" in mac("cache", "list")
    mac("cache", "prune", "--all")


@pytest.mark.needs("root", "caseless")
def test_a_laptop_without_linux_pushes(mac: Mac, linux: Path) -> None:
    shutil.copy(linux, mac.library.parents[2] / "sent.tar")
    sent = mac.library.parents[2] / "sent.tar"
    assert "verified and installed" in mac("push", sent, "lab", "--without-plan")
    receipt = json.loads(next((mac.library.parents[2] / "far/home/deployer/images").glob("*/receipt.json")).read_text())
    assert (receipt["name"], receipt["version"]) == ("solver", "1")
    assert "already" in mac("push", sent, "lab", "--without-plan")


@pytest.mark.needs("root", "caseless")
@pytest.mark.parametrize(
    ("words", "code", "said", "remedy"),
    [
        (
            ["build", "debian"],
            7,
            "mmdebstrap needs Linux, and a helper container needs an engine",
            "make the base on Linux",
        ),
        (["rehearse", "solver"], 3, "namespaces need Linux; no Docker engine answers", "start Docker"),
        (
            ["pack", "solver", "-o", "no.tar", "--kit", "udocker"],
            7,
            "the kit's udocker can only be made on Linux",
            "pack on Linux",
        ),
        (["build", "spelled"], 2, "'data' is spelled 'Data'", ""),
    ],
)
def test_what_a_laptop_without_linux_lacks_is_one_line(
    mac: Mac, words: list[str], code: int, said: str, remedy: str
) -> None:
    for name in ("debian", "spelled"):
        mac.sh('cp -R "$HOME/solver" "$HOME/$1"', name)
    mac.sh('sed -i "s/base: .*/base: {debian: bookworm}/" "$HOME/debian/bundle.yaml"')
    mac.sh('mv "$HOME/spelled/data" "$HOME/spelled/x" && mv "$HOME/spelled/x" "$HOME/spelled/Data"')
    mac("build", mac.library / "solver")
    answer = mac(words[0], mac.library / words[1], *words[2:], code=code)
    assert answer.count("deployer: error: ") == 1
    assert said in answer
    assert remedy in answer


@pytest.mark.needs("user-namespaces")
def test_a_user_without_user_namespaces_packs_the_same_bytes(tmp_path: Path, linux: Path) -> None:
    """As on Ubuntu 24.04; what needs them names the setting or the engine."""
    definition, bundle = define(tmp_path), tmp_path / "solver.tar"
    deployer = [*PLAIN, str(ROOT / ".venv/bin/deployer")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    _called([*deployer, "build", str(definition)], environment, 0)
    _called([*deployer, "pack", str(definition), "-o", str(bundle)], environment, 0)
    assert bundle.read_bytes() == linux.read_bytes()
    text = (definition / "bundle.yaml").read_text()
    (definition / "bundle.yaml").write_text(text.replace("archive: ../root.tar", "debian: bookworm"))
    said = _called([*deployer, "build", str(definition)], environment, 7)
    assert "mmdebstrap lacks user namespaces: E: unshare" in said
    assert "and a helper container needs an engine: no Docker engine answers" in said
    assert "user/max_user_namespaces is 0" in _called([*deployer, "rehearse", str(bundle)], environment, 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.needs("mmdebstrap")
def test_a_base_is_made_in_a_helper_container(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    """Its files are those of a base that mmdebstrap makes as root of this machine."""
    own = {**environment, "DOCKER_HOST": engine.docker_host}
    monkeypatch.setenv("DOCKER_HOST", engine.docker_host)
    wanted = Base(debian="bookworm", include=["python3-minimal"])
    here = bases.debian_tarball(wanted, BuildSettings(), print)
    with contextlib.closing(engines.connect()) as client:
        image = bases.debian(client, Base(debian="bookworm"), BuildSettings(), print)
    (tmp_path / "bundle.yaml").write_text(
        "name: helped\nversion: '1'\njobs: {run: {command: [/bin/true]}}\n"
        "base: {debian: bookworm, include: [python3-minimal]}\n"
    )
    own["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    words = [sys.executable, "-m", "tests.integration.not_linux", image]
    said = _called([*words, "build", str(tmp_path)], own, 0)
    assert "in a helper container, because mmdebstrap needs Linux" in said
    (made,) = (tmp_path / "cache/deployer/bases").glob("*.tar")
    assert _contents(made) == _contents(here)
    _called([*words, "pack", str(tmp_path), "-o", str(tmp_path / "helped.tar")], own, 0)


def _contents(path: Path) -> dict[str, tuple[object, ...]]:
    with tarfile.open(path) as tar:
        return {
            each.name: (each.type, each.mode, each.uid, each.gid, each.linkname, each.size)
            for each in tar
            if not each.name.startswith(("./dev", "./var/cache", "./var/log", "./var/lib/apt/lists"))
        }
