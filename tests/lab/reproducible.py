"""Do definitions give the same layer on two machines? Build and pack each twice, and compare.

The second build differs as on another machine: another engine and caches, another user with another umask and home,
another folder of the definition, another time zone, and a clock that is 30 hours ahead (``tests.lab.elsewhere``). The
user must exist, with subordinate ids for mmdebstrap: ``useradd --create-home NAME``.

    .venv/bin/python -m tests.lab.reproducible --user NAME hello-mpi netpipe

Variants of Horovod are not compiled: they are not in the layer.
"""

import argparse
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from tests.lab.engine import OwnEngine, take_engine

ROOT = Path(__file__).parents[2]
#: The system's Python, because other users cannot read root's.
PYTHON = "/usr/bin/python3"
_KEPT = ("SSL_CERT_FILE", "PIP_CERT", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_HOROVOD = re.compile(r"^(framework:.*|horovod:|  version:.*|  stage:.*)\n", re.MULTILINE)


def _copied(name: str, folder: Path) -> Path:
    """Copy a definition with what it refers to, and leave its Horovod out."""
    shutil.copytree(ROOT / "bundles", folder, ignore=shutil.ignore_patterns("templates"))
    text = (folder / name / "bundle.yaml").read_text()
    if "\nhorovod:" in text:
        (folder / name / "bundle.yaml").write_text(_HOROVOD.sub("", text))
    return folder / name


def _here(host: str, words: list[str]) -> str:
    code = "import sys; from deployer.cli.laptop.main import main; sys.exit(main())"
    env = {**os.environ, "DOCKER_HOST": host, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _elsewhere(host: str, user: pwd.struct_passwd, words: list[str]) -> None:
    path = f"{ROOT}:{sysconfig.get_path('purelib')}"
    kept = [f"{name}={os.environ[name]}" for name in _KEPT if name in os.environ]
    own = [f"HOME={user.pw_dir}", f"DOCKER_HOST={host}", "TZ=XYZ-5:45", "LC_ALL=C", "PYTHONDONTWRITEBYTECODE=1"]
    env = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", f"PYTHONPATH={path}", *own, *kept]
    script = 'umask 077; exec "$@"'
    argv = [*env, "sh", "-c", script, "-", PYTHON, "-m", "tests.lab.elsewhere", *words]
    # libfaketime's names in /dev/shm are numbers of processes, which occur twice with mmdebstrap's own namespace.
    own_memory = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm; exec "$@"', "-"]
    subprocess.run([*own_memory, "runuser", "-u", user.pw_name, "--", *argv], cwd=user.pw_dir, check=True)


def compare(name: str, here: str, there: str, user: pwd.struct_passwd, work: Path) -> dict[str, Any]:
    """Return what ``diff`` says about two builds of a definition."""
    own, other = work / "here", Path(user.pw_dir) / "elsewhere"
    definition, bundle = _copied(name, own / "bundles"), own / f"{name}.tar"
    _here(here, ["build", str(definition)])
    _here(here, ["pack", str(definition), "-o", str(bundle)])
    try:
        copy = _copied(name, other / "src")
        for path in (other, *other.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
            path.chmod(path.stat().st_mode & 0o700)
        _elsewhere(there, user, ["build", str(copy)])
        _elsewhere(there, user, ["pack", str(copy), "--no-cache", "-o", str(other / "other.tar")])
        return dict(json.loads(_here(here, ["diff", str(bundle), str(other / "other.tar"), "--json"])))
    finally:
        shutil.rmtree(other, ignore_errors=True)
        shutil.rmtree(own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--user", required=True)
    parser.add_argument(
        "--engine", type=Path, default=Path("/var/tmp/deployer-elsewhere"), help="of the second machine"
    )
    parser.add_argument("definitions", nargs="+")
    args = parser.parse_args()
    engine = OwnEngine(args.engine)
    engine.folder.mkdir(parents=True, exist_ok=True)
    engine.start()
    engine.socket.chmod(0o666)
    try:
        with take_engine() as usual, tempfile.TemporaryDirectory(dir="/var/tmp") as work:
            for name in args.definitions:
                made = compare(name, usual.docker_host, engine.docker_host, pwd.getpwnam(args.user), Path(work))
                differing = [path for kind in ("added", "removed", "changed") for path in made[kind] if path[0] == "/"]
                print(f"{name}: {'the same layer' if not differing else ' '.join(differing)}", flush=True)
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
