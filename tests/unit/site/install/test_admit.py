"""install and verify under a site's policies."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import IntegrityError, Refused, SpaceError, UsageError
from deployer.site.install import install as installing
from deployer.site.storage.store import Store
from deployer.system import files
from deployer.system.trust import policy
from tests import bundles
from tests.signing import TestKey, signed

KEY, OTHER = TestKey(seed=1), TestKey("ecdsa-sha2-nistp256", seed=2)


@pytest.fixture(autouse=True)
def _no_policy_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "SYSTEM_FILE", str(tmp_path / "etc" / "policy.json"))
    monkeypatch.delenv("DEPLOYER_ROOT", raising=False)


def write(folder, data, name="b.tar"):
    path = folder / name
    path.write_bytes(data)
    return str(path)


@pytest.fixture
def signers(tmp_path):
    path = tmp_path / "signers"
    path.write_text(KEY.allowed("stager@lab"))
    return str(path)


def nothing_installed(store):
    return not os.path.isdir(store.images) or os.listdir(store.images) == []


def test_an_unsigned_bundle_says_its_digest(tmp_path, store):
    outcome = installing.install(write(tmp_path, bundles.build()), store)
    (warning,) = outcome.warnings
    assert warning.startswith(f"not signed: compare {outcome.image.receipt.digest} with the digest that `pack` printed")


def test_a_key_that_nobody_knows_is_said(tmp_path, store):
    (warning,) = installing.install(write(tmp_path, signed(bundles.build(), KEY)), store).warnings
    assert KEY.key.fingerprint in warning
    assert "no policy here knows" in warning


@pytest.mark.parametrize("name", ["authorized_keys", "id_ed25519.pub"])
def test_the_own_key_is_no_warning(tmp_path, store, monkeypatch, capsys, name):
    """On the laptop it is beside the private key; at the site the user may log in with it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / name).write_text(f"ssh-ed25519 AAAA other\n{KEY.key.line} me@laptop\n")
    path = write(tmp_path, signed(bundles.build(), KEY))
    said = f"signed by {KEY.key.fingerprint}, one of your own keys (~/.ssh)\n"
    for words in (["verify", path], ["install", path, "--root", store.root]):
        code, _, err = run(capsys, *words)
        assert code == 0
        assert "warning:" not in err
        assert said in err


def test_trust_on_first_use(tmp_path, store, signers):
    outcome = installing.install(write(tmp_path, signed(bundles.build(), KEY)), store, signers_file=signers)
    assert outcome.warnings == (
        "from now on {} requires one of these signers for every bundle".format(os.path.join(store.root, "policy.json")),
    )
    for data in (bundles.build(version="2"), signed(bundles.build(version="2"), OTHER)):
        with pytest.raises(Refused, match=r"b\.tar: .*policy\.json"):
            installing.install(write(tmp_path, data), store)
    assert [image.receipt.version for image in store.installed()] == ["1.0"]
    installing.install(write(tmp_path, signed(bundles.build(version="2"), OTHER, KEY)), store)
    Path(signers).write_text(OTHER.allowed())  # a later --signers tightens, and changes nothing of what was pinned
    with pytest.raises(Refused, match="--signers"):
        installing.install(write(tmp_path, signed(bundles.build(version="3"), KEY)), store, signers_file=signers)
    assert policy.load(store.root)[0].allowed[0].who == "stager@lab"


def test_signers_may_come_from_a_pipe_which_can_be_read_once(tmp_path, store, signers):
    """As bash makes one of ``--signers <(...)``. Files that a policy names are none of the user's own."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    writer = threading.Thread(target=fill, args=(pipe, KEY.allowed("stager@lab")), daemon=True)
    writer.start()
    installing.install(write(tmp_path, signed(bundles.build(), KEY)), store, signers_file=pipe)
    writer.join()
    assert policy.load(store.root)[0].allowed[0].who == "stager@lab"
    os.remove(os.path.join(store.root, policy.SIGNERS_FILE))
    os.mkfifo(os.path.join(store.root, policy.SIGNERS_FILE))
    with pytest.raises(UsageError, match="not a regular file"):
        policy.load(store.root)


def fill(path, text):
    Path(path).write_text(text)


def test_what_is_refused_pins_nothing(tmp_path, store, signers):
    for data, error in ((bundles.build(), Refused), (signed(bundles.build(), OTHER), Refused)):
        with pytest.raises(error):
            installing.install(write(tmp_path, data), store, signers_file=signers)
    assert not os.path.exists(store.root)


def test_signers_are_asked_of_an_installed_image_too(tmp_path, store, signers):
    path = write(tmp_path, signed(bundles.build(), OTHER))
    installing.install(path, store)
    with pytest.raises(Refused):
        installing.install(path, store, signers_file=signers)
    assert installing.install(write(tmp_path, signed(bundles.build(), KEY)), store, signers_file=signers).known


def test_an_older_version_is_a_warning_and_a_policy_refuses(tmp_path, store):
    installing.install(write(tmp_path, bundles.build(version="1.10")), store)
    outcome = installing.install(write(tmp_path, bundles.build(version="1.9")), store)
    assert outcome.warnings[1:] == (
        "tiny:1.9 is older than the installed tiny:1.10; from now on tiny means the older one",
    )
    installing.install(write(tmp_path, bundles.build(name="other", version="1.0")), store)
    shutil.rmtree(store.find("tiny:1.9").folder)
    record = {"schema": "deployer.policy", "format": 1, "min_reader": 1, "refuse_rollback": True}
    Path(store.root, "policy.json").write_text(json.dumps(record))
    with pytest.raises(Refused, match="forbids downgrades"):
        installing.install(write(tmp_path, bundles.build(version="1.9")), store)
    installing.install(write(tmp_path, bundles.build(version="1.11")), store)


def test_another_bundle_of_the_same_name_is_said(tmp_path, store):
    before = installing.install(write(tmp_path, bundles.build()), store).image.receipt.digest
    outcome = installing.install(write(tmp_path, bundles.build(extra=[("deployer/app/x", b"x")])), store)
    shown = before.partition(":")[2][:12]
    assert f"another bundle is installed as tiny:1.0 ({shown}); from now on" in outcome.warnings[1]


def test_a_policy_judges_before_anything_is_parsed(tmp_path, store, signers, monkeypatch):
    def parsed(data, what):
        raise AssertionError("parsed")

    monkeypatch.setattr("deployer.contract.bundle.manifest.read", parsed)
    for data in (bundles.build(), signed(bundles.build(), OTHER)):
        with pytest.raises(Refused):
            installing.install(write(tmp_path, data), store, signers_file=signers)


def run(capsys, *words):
    code = main.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_line(tmp_path, store, signers, capsys):
    plain, good = write(tmp_path, bundles.build(), "plain.tar"), write(tmp_path, signed(bundles.build(), KEY))
    code, out, err = run(capsys, "verify", plain)
    assert code == 0
    assert "digest sha256:" in out
    assert "by phone or on paper" in err
    code, out, err = run(capsys, "verify", good, "--signers", signers)
    assert (code, err) == (0, f"next: python3 deployer.pyz install {good}\n")
    assert f"signed by stager@lab ({KEY.key.fingerprint})" in out
    code, out, err = run(capsys, "verify", good, "--signers", signers, "--json")
    assert json.loads(out)["signers"] == [f"stager@lab ({KEY.key.fingerprint})"]
    assert run(capsys, "verify", plain, "--signers", signers)[0] == Refused.exit_code
    broken = signed(bundles.build(), KEY).replace(b'"name":"tiny"', b'"name":"tina"')
    assert run(capsys, "verify", write(tmp_path, broken, "broken.tar"))[0] == IntegrityError.exit_code
    code, out, err = run(capsys, "install", good, "--root", store.root, "--signers", signers, "--json")
    assert code == 0
    assert "from now on" in json.loads(out)["warnings"][0]
    code, out, err = run(capsys, "install", plain, "--root", store.root)  # the same digest: it is here already
    assert (code, "already installed" in out) == (0, True)
    other = write(tmp_path, bundles.build(version="2"))
    code, out, err = run(capsys, "install", other, "--root", store.root)
    assert code == Refused.exit_code
    assert err.startswith("deployer: error: ")
    assert "hint: on the laptop, `deployer sign` signs the bundle" in err
    assert len(store.installed()) == 1


def test_verify_obeys_the_root_folders_policy(tmp_path, store, signers, capsys, monkeypatch):
    os.makedirs(store.root)
    policy.pin_policy(store.root, files.read_text(signers))
    path = write(tmp_path, bundles.build())
    assert run(capsys, "verify", path)[0] == 0
    monkeypatch.setenv("DEPLOYER_ROOT", store.root)
    assert run(capsys, "verify", path)[0] == Refused.exit_code


def test_verify_obeys_the_admins_policy(tmp_path, capsys, signers):
    path = write(tmp_path, bundles.build())
    os.mkdir(str(tmp_path / "etc"))
    policy.pin_policy(str(tmp_path / "etc"), files.read_text(signers))
    assert run(capsys, "verify", path)[0] == Refused.exit_code
    assert run(capsys, "verify", write(tmp_path, signed(bundles.build(), KEY), "signed.tar"))[0] == 0
    with pytest.raises(Refused):
        installing.install(path, Store(str(tmp_path / "root")))
    assert nothing_installed(Store(str(tmp_path / "root")))


def test_an_install_that_fails_pins_nothing(tmp_path, store, signers, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.mkdir", full)
    with pytest.raises(SpaceError):
        installing.install(write(tmp_path, signed(bundles.build(), KEY)), store, signers_file=signers)
    assert not os.path.exists(os.path.join(store.root, "policy.json"))
