import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployer.cli.laptop import main
from deployer.connected.bundle.pyz import MAX_SIZE, make_pyz, vendored
from deployer.connected.ground import sign as signing
from deployer.contract.base.errors import IntegrityError, MissingTool, UsageError
from deployer.contract.bundle import plan_update, sealed_file
from deployer.contract.bundle.plan_update import PlanUpdate
from deployer.system.trust import policy
from deployer.system.trust.signature import check as check_signature
from deployer.system.trust.verify import VerifiedBundle, opened, verify
from tests import bundles, running
from tests.signing import TestKey, manifest_of, signed

pytestmark = pytest.mark.needs("ssh-keygen")


def make_key(folder: Path, name: str, *options: str) -> Path:
    path = folder / name
    words = ["ssh-keygen", "-q", "-f", str(path), "-C", "test", *(options or ("-t", "ed25519", "-N", ""))]
    subprocess.run(words, check=True, timeout=30, stdin=subprocess.DEVNULL)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path, "key")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundles.write(tmp_path / "b.tar")


def check(bundle: Path, signers: Path | None = None) -> VerifiedBundle:
    with opened(str(bundle)) as stream:
        return verify(stream, str(bundle), policies=policy.load(None, str(signers) if signers else None))


def test_only_the_tail_changes_and_the_digest_does_not(bundle: Path, key: Path, tmp_path: Path) -> None:
    before, inode, digest = bundle.read_bytes(), bundle.stat().st_ino, check(bundle).digest
    done = signing.sign(bundle, key)
    after = bundle.read_bytes()
    assert len(after) == len(before)
    assert after[: -sealed_file.TAIL] == before[: -sealed_file.TAIL]
    assert (done.digest, bundle.stat().st_ino) == (digest, inode)
    signers = tmp_path / "signers"
    signers.write_text(f"stager@lab {done.key.line}\n")
    assert check(bundle, signers).trust.signers == [f"stager@lab ({done.key.fingerprint})"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "key", "key.pub", "signers"]
    signing.sign(bundle, key)
    assert bundle.read_bytes() == after  # ed25519 says the same again


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [("ecdsa", "256"), ("ecdsa", "521"), ("rsa", "2048")], ids=" ".join)
def test_keys_of_other_kinds(bundle: Path, tmp_path: Path, kind: tuple[str, str]) -> None:
    path = make_key(tmp_path, "other", "-t", kind[0], "-b", kind[1], "-N", "")
    done = signing.sign(bundle, path)
    assert check(bundle).trust.keys == [done.key]
    assert len(signing.sign(bundle, path).keys) == 1  # replaced, although ecdsa never says the same twice


@pytest.mark.thorough
def test_several_signatures(bundle: Path, key: Path, tmp_path: Path) -> None:
    signing.sign(bundle, key)
    second = make_key(tmp_path, "second")
    done = signing.sign(bundle, second)
    assert len(done.keys) == len(check(bundle).trust.keys) == 2
    signers = tmp_path / "signers"
    signers.write_text("second " + second.with_suffix(".pub").read_text())
    assert [name.split()[0] for name in check(bundle, signers).trust.signers] == ["second"]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    socket = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    while not socket.exists():
        assert process.poll() is None
    yield
    process.terminate()
    process.wait(10)


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("agent")
def test_a_key_that_an_agent_holds(bundle: Path, key: Path) -> None:
    subprocess.run(["ssh-add", "-q", key], check=True, timeout=30, stderr=subprocess.DEVNULL)
    key.unlink()
    assert check(bundle).trust.keys == []
    assert signing.sign(bundle, key.with_suffix(".pub")).keys == [check(bundle).trust.keys[0].fingerprint]


@pytest.mark.thorough
def test_what_cannot_be_signed(bundle: Path, key: Path, tmp_path: Path) -> None:
    before = bundle.read_bytes()
    with pytest.raises(UsageError, match="there is no key"):
        signing.sign(bundle, tmp_path / "none")
    with pytest.raises(UsageError, match="cannot write"):
        signing.sign(tmp_path / "none.tar", key)
    with pytest.raises(UsageError, match="ssh-keygen cannot sign"):
        signing.sign(bundle, bundle)
    with pytest.raises(UsageError, match="ssh-keygen cannot sign"):
        signing.sign(bundle, make_key(tmp_path, "locked", "-t", "ed25519", "-N", "secret"))
    broken = tmp_path / "broken.tar"
    broken.write_bytes(before[:3000] + b"!" + before[3001:])
    with pytest.raises(IntegrityError):
        signing.sign(broken, key)
    assert bundle.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_an_ssh_keygen_that_is_too_old(
    bundle: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = running.program(tmp_path, "old", 'echo "unknown option -- Y" >&2; exit 1')
    monkeypatch.setattr(signing, "SSH_KEYGEN", old)
    with pytest.raises(MissingTool, match="cannot sign files"):
        signing.sign(bundle, key)
    monkeypatch.setattr(signing, "SSH_KEYGEN", str(tmp_path / "none"))
    with pytest.raises(MissingTool) as caught:
        signing.sign(bundle, key)
    assert "8.1" in caught.value.hint


class PowerCut(BaseException):
    pass


@pytest.mark.thorough
@pytest.mark.parametrize("written", [0, 512, 700, 5000, sealed_file.TAIL])
def test_a_sign_that_was_cut_off_is_finished_by_the_next(
    bundle: Path, key: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    def cut_off(stream: io.BufferedRandom, tail: bytes) -> None:
        stream.seek(-sealed_file.TAIL, os.SEEK_END)
        stream.write(tail[:written])
        stream.flush()
        raise PowerCut

    before = bundle.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(signing, "_write_tail", cut_off)
        with pytest.raises(PowerCut):
            signing.sign(bundle, key)
    other = make_key(bundle.parent, "other")
    assert len(signing.sign(bundle, other).keys) == 2  # what was begun, and the new one
    assert len(check(bundle).trust.keys) == 2
    assert bundle.read_bytes()[: -sealed_file.TAIL] == before[: -sealed_file.TAIL]
    assert not list(bundle.parent.glob(".*"))


def test_what_was_begun_for_another_bundle_is_left_alone(bundle: Path, key: Path) -> None:
    other = signed(bundles.build(version="9"), TestKey())
    journal = bundle.with_name(".b.tar.tail")
    for stray in (other[-sealed_file.TAIL :], b"half a ta"):
        journal.write_bytes(stray)
        assert len(signing.sign(bundle, key).keys) == 1
        assert not journal.exists()


@pytest.mark.thorough
def test_killed_while_it_signs(bundle: Path, key: Path, tmp_path: Path) -> None:
    """A real process, killed where it waits for ssh-keygen: the bundle is as it was."""
    before = bundle.read_bytes()
    tools = tmp_path / "bin"
    tools.mkdir()
    running.program(tools, "ssh-keygen", f'touch "{tmp_path}/asked"; exec sleep 60')
    code = "import sys; from deployer.cli.laptop.main import main; sys.exit(main(sys.argv[1:]))"
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path)}
    words = [sys.executable, "-c", code, "sign", str(bundle), "--key", str(key)]
    child = subprocess.Popen(words, env=env, start_new_session=True)
    while not (tmp_path / "asked").exists():
        assert child.poll() is None
    os.killpg(child.pid, signal.SIGKILL)
    child.wait(10)
    assert bundle.read_bytes() == before


@pytest.mark.thorough
def test_the_command_line(bundle: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main.main(["sign", str(bundle), "--key", str(key)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    (tmp_path / "signers").write_text(line.split(": ")[1] + "\n")
    assert main.main(["verify", str(bundle), "--signers", str(tmp_path / "signers"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signers"][0].startswith("WHO (SHA256:")
    assert main.main(["sign", str(bundle), "--key", str(key), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["keys"]) == 1


# --- what travels ---


def test_the_library_travels_without_its_tests_and_with_its_licence() -> None:
    data = make_pyz()
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {"six.py", "ecdsa/__init__.py", "ecdsa/eddsa.py"} < set(names)
    assert [name for name in names if name.endswith("LICENSE")] == [
        f"{name}-{version}.dist-info/LICENSE" for name, version in vendored().items()
    ]
    assert not [name for name in names if "test" in name]
    assert len(data) < MAX_SIZE
    assert make_pyz() == data


@pytest.mark.thorough
@pytest.mark.parametrize("python", [sys.executable, Path(__file__).parents[4] / ".venv36/bin/python"])
def test_the_pyz_verifies_alone_where_there_is_no_openssh(bundle: Path, tmp_path: Path, python: Path) -> None:
    if not Path(python).exists():
        pytest.skip("no Python 3.6: scripts/setup --tests")
    key = TestKey()
    (tmp_path / "deployer.pyz").write_bytes(make_pyz())
    (tmp_path / "signers").write_text(key.allowed("stager@lab"))
    (tmp_path / "bin").mkdir()
    for data, code in ((signed(bundle.read_bytes(), key), 0), (signed(bundle.read_bytes(), TestKey(seed=2)), 3)):
        bundle.write_bytes(data)
        words = ["-I", "-S", "deployer.pyz", "verify", bundle.name, "--signers", "signers"]  # none of our packages
        done = subprocess.run(
            [str(python), *words],
            cwd=tmp_path,
            env={"PATH": str(tmp_path / "bin")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("signed by stager@lab" in done.stdout) is (code == 0)


# --- by hand, as docs/trust.md says ---


def documented(heading: str) -> str:
    """Return the shell commands under a heading of docs/trust.md."""
    text = (Path(__file__).parents[4] / "docs/trust.md").read_text()
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))


def by_hand(folder: Path) -> subprocess.CompletedProcess[str]:
    script = "set -e\n" + documented("Verify by hand")
    return subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_verify_by_hand(bundle: Path, key: Path, tmp_path: Path) -> None:
    done = signing.sign(bundle, key)
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(bundle, site / "B.tar")
    (site / "allowed_signers").write_text(f"stager@laptop {done.key.line}\n")
    said = by_hand(site)
    assert said.returncode == 0, said.stderr
    assert 'Good "deployer-bundle" signature for stager@laptop' in said.stdout
    assert hashlib.sha256(manifest_of(bundle.read_bytes())).hexdigest() in said.stdout
    assert said.stdout.splitlines()[-1] == "deployer.pyz is the signed one"
    data = bundle.read_bytes()
    (site / "B.tar").write_bytes(data.replace(b"not really one", b"something else"))
    assert by_hand(site).returncode != 0
    (site / "B.tar").write_bytes(data.replace(b'"name":"tiny"', b'"name":"tina"'))
    said = by_hand(site)
    assert said.returncode != 0
    assert "Good" not in said.stdout


def test_the_documented_policy_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs/trust.md").read_text()
    (tmp_path / "policy.json").write_text(text.split("```json\n")[1].split("```")[0])
    signers = text.split("```\n# /etc/deployer/allowed_signers\n")[1].split("```")[0]
    (tmp_path / "allowed_signers").write_text(signers)
    found = policy.read_policy(str(tmp_path / "policy.json"))
    assert (found.require_signature, found.refuse_rollback) == (True, True)
    assert found.revoked_keys == str(tmp_path / "revoked_keys")
    assert found.allowed is not None
    assert len(found.allowed) == 2


@pytest.mark.thorough
def test_a_plan_is_signed_in_its_file_and_each_key_once(
    tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "new.plan", make_key(tmp_path, "other")
    path.write_text(PlanUpdate("sha256:0", "hello:1", 1, [running.PLAN]).text())
    before = path.read_bytes()
    for each, count in ((key, 1), (other, 2), (key, 2)):
        assert main.main(["sign", str(path), "--key", str(each), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        message, blobs = plan_update.split(path.read_bytes())
        assert (message, len(blobs), len(said["keys"]), said["digest"]) == (before, count, count, "sha256:0")
    assert len({check_signature(blob, before) for blob in blobs}) == 2
    path.write_bytes(path.read_bytes().replace(b"hello", b"jello"))
    with pytest.raises(IntegrityError, match="is wrong"):
        signing.sign_update(path, key)
