"""docs/how-to/ci.md: its script, by a fresh ordinary user with rootless podman and no Docker daemon."""

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.unit.connected.bundle.about.test_scan import GRYPE
from tests.unit.connected.ground.test_sign import make_key

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800),
    pytest.mark.needs("root", "podman", "ssh-keygen", "mmdebstrap"),
]  # fmt: skip

DEFINITION = """\
name: my-model
version: "1"
base: {debian: bookworm, include: [python3]}
mpi: []
jobs: {only: {command: [cat, /version]}}
"""
PAGE = (ROOT / "docs" / "how-to" / "ci.md").read_text()
NAME = f"ci{os.getpid()}"
As = Callable[..., "subprocess.CompletedProcess[str]"]


def blocks(language: str) -> list[str]:
    return [part.partition("```")[0] for part in PAGE.split(f"```{language}\n")[1:]]


@pytest.fixture
def as_user() -> Iterator[As]:
    """Make a user, with the numbers for containers that `useradd` gives, and yield what runs a script in its home."""
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", NAME], check=True)
    home = Path(pwd.getpwnam(NAME).pw_dir)

    def run(script: str, code: int = 0, **variables: str) -> "subprocess.CompletedProcess[str]":
        own = {
            "HOME": str(home),
            "PATH": f"{home}/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "XDG_RUNTIME_DIR": f"{home}/run",
        }
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "SSL_"))}
        words = ["setpriv", f"--reuid={NAME}", f"--regid={NAME}", "--init-groups", "sh", "-c", script]
        done = subprocess.run(
            words, cwd=home, env={**kept, **own, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    try:
        shutil.copytree(ROOT / "deployer", home / "src" / "deployer")
        shutil.copytree(ROOT / "docs", home / "src" / "docs")  # `explain` shows its pages
        (home / "my-model").mkdir()
        (home / "my-model" / "bundle.yaml").write_text(DEFINITION)
        (home / "my-model" / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN python3 --version >/version\n")
        shutil.copy(ROOT / "site_profiles" / "lab.yaml", home / "my-site.yaml")
        shutil.copy(ROOT / "requirements" / "connected.txt", home)
        (home / "bundle.sh").write_text(blocks("sh")[0])
        (home / "grype.json").write_text(json.dumps({**GRYPE, "matches": []}))
        subprocess.run(["chown", "-R", f"{NAME}:", home], check=True)
        run("mkdir -m 700 run; python3 -m venv venv; venv/bin/pip install -q --require-hashes -r connected.txt")
        start = (
            "import sys; sys.path.insert(0, '$HOME/src'); from deployer.cli.laptop.main import main; sys.exit(main())"
        )
        run(f'printf \'%s\\n\' "#!$HOME/venv/bin/python" "{start}" >venv/bin/deployer; chmod +x venv/bin/deployer')
        yield run
    finally:
        run("podman unshare rm -rf ~/.local/share/containers; podman system migrate")
        subprocess.run(["userdel", "--remove", NAME], check=True)


def test_the_files_of_both_services_start_the_script() -> None:
    github, gitlab = map(yaml.safe_load, blocks("yaml"))
    assert "sh bundle.sh" in [step.get("run") for step in github["jobs"]["bundle"]["steps"]]
    assert gitlab["bundle"]["script"][-1].endswith(" sh bundle.sh")


def test_the_script_makes_a_checked_scanned_and_signed_bundle(as_user: As, tmp_path: Path) -> None:
    key = make_key(tmp_path, "key")
    public = key.with_name("key.pub").read_text()
    as_user(f"echo 'ci@example.org {public}' >allowed_signers")
    script = "sed -i 's/deployer scan my-model.tar/& --report grype.json/' bundle.sh; sh bundle.sh"
    done = as_user(script, SIGNING_KEY=key.read_text())
    assert "builder: podman" in done.stdout + done.stderr
    assert "RUN: my-model:1 on lab" in done.stdout
    assert "ci@example.org" in done.stdout
    as_user("test ! -e key && deployer verify my-model.tar --signers allowed_signers && test -s my-model.tar.scan.json")
    # A profile for which the bundle is refused ends the script before it is signed.
    as_user(
        "sed -i 's/^mpi: .*/mpi: [openmpi]/' my-model/bundle.yaml; rm my-model.tar*; sh bundle.sh",
        code=3,
        SIGNING_KEY="x",
    )
    as_user("test ! -e key && test ! -e my-model.tar.scan.json")
