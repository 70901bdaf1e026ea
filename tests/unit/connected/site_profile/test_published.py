"""Published profiles: what a file of the site may decide, and what another signer does."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile import published, search
from deployer.connected.site_profile.published import Publication
from deployer.contract.base import facts, json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.contract.bundle import sshsig
from tests.signing import TestKey
from tests.unit.connected.ground.test_sign import make_key

KEY, OTHER = TestKey(seed=1), TestKey(seed=2)
SOURCE = {"kind": "captured", "where": "login1"}
FACTS = json_records.dumps(facts.record(None, {}, {}))
PROFILE: dict[str, Any] = {
    "format": 1,
    "name": "there",
    "source": {**SOURCE, "date": "2026-11-10"},
    "facts": {"file": published.FACTS, "sha256": hashlib.sha256(FACTS).hexdigest()},
    "login": {"host": "evil.example.org", "transfer": "evil2.example.org"},
    "workspace": "/project/of/all",
}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "site_profiles").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    return tmp_path


def publication(
    key: TestKey | None = KEY, trees: bytes | None = FACTS, host: str = "login1", **fields: Any
) -> Publication:
    record = {each: value for each, value in {**PROFILE, **fields}.items() if value is not None}
    data = json.dumps(record).encode()
    blob = sshsig.armored(key.sign(data, sshsig.PROFILE_NAMESPACE)).encode() if key else None
    return Publication(host, data, trees, blob)


def of(date: str) -> dict[str, Any]:
    return {"source": {**SOURCE, "date": date}}


def test_the_host_is_the_one_that_the_user_named_and_the_first_signer_is_pinned(places: Path) -> None:
    kept = published.keep(publication())
    assert (kept.first, kept.key) == (True, KEY.key)
    assert (kept.profile.login.host, kept.profile.login.transfer) == ("login1", None)
    assert published.pin_path("login1").read_text() == KEY.key.line + "\n"
    assert f"signed by {KEY.key.fingerprint}, pinned from now on" in str(kept)
    assert published.used("ssh:login1").profile == kept.profile
    assert published.sites() == ["ssh:login1"]
    assert search.label(kept.path) == "published by the site"
    again = published.keep(publication(**of("2026-11-11")))
    assert (again.first, str(again.profile.source.date)) == (False, "2026-11-11")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("found", "error", "said"),
    [
        (publication(None), Refused, "is not signed"),
        (publication(OTHER), Refused, f"signed by {OTHER.key.fingerprint}, not by the pinned {KEY.key.fingerprint}"),
        (publication()._replace(profile=b"{}"), IntegrityError, "the signature by .* is wrong"),
        (publication(trees=FACTS + b" "), IntegrityError, "do not belong together"),
        (publication(trees=None), IntegrityError, "do not belong together"),
        (publication(facts={"file": "../../x", "sha256": "0" * 64}), IntegrityError, "do not belong together"),
        (publication(extends="/etc/passwd"), UsageError, "extends another profile"),
        (publication(name="../x"), UsageError, "no valid name: '../x'"),
        (publication(nonsense=1), UsageError, "nonsense"),
        (publication(**of("2026-11-09")), Refused, "is of 2026-11-09, older than the one kept here"),
        (publication(source=SOURCE), Refused, "is of no date, older"),
        (publication(source=["x"]), UsageError, "source"),
        (publication(OTHER, name="there2"), Refused, f"signed by {OTHER.key.fingerprint}, not by the pinned"),
        (publication(OTHER, host="me@Login1"), Refused, f"signed by {OTHER.key.fingerprint}, not by the pinned"),
    ],
)
def test_what_is_refused_leaves_the_kept_one_and_the_pin(
    found: Publication, error: type[DeployerError], said: str
) -> None:
    kept = published.keep(publication())
    with pytest.raises(error, match=said):
        published.keep(found)
    assert profiles.load(str(kept.path)) == kept.profile
    assert published.pin_path("login1").read_text() == KEY.key.line + "\n"
    assert [path.name for path in kept.path.parents[1].iterdir()] == ["login1"]


def test_a_signature_of_a_bundle_is_none_and_nothing_invalid_is_pinned() -> None:
    found = publication()
    blob = sshsig.armored(KEY.sign(found.profile)).encode()
    for wrong in (found._replace(signature=blob), publication(nonsense=1)):
        with pytest.raises(DeployerError):
            published.keep(wrong)
        assert not published.pin_path("login1").exists()
        assert published.sites() == []


@pytest.mark.thorough
def test_equal_bytes_are_known_only_of_the_same_host_and_a_pinned_signer() -> None:
    found = publication()
    published.keep(found)
    assert published.unchanged("login1", found.profile) == profiles.load(str(published.place("login1") / published.OWN))
    assert published.unchanged("login2", found.profile) is None
    assert published.unchanged("login1", found.profile + b" ") is None
    published.pin_path("login1").write_text(OTHER.key.line + "\n")
    assert published.unchanged("login1", found.profile) is None
    published.pin_path("login1").unlink()
    assert published.unchanged("login1", found.profile) is None
    published.keep(found)
    (published.place("login1") / published.FACTS).write_text("damaged")
    assert published.unchanged("login1", found.profile) is None


def test_what_is_kept_has_a_pin_and_survives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(new: Path, folder: Path, old: Path) -> None:
        assert published.pin_path("login1").exists()
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(published, "_exchange", fails)
        with pytest.raises(OSError, match="no space"):
            published.keep(publication())
    assert published.sites() == []
    kept = published.keep(publication())
    folder = kept.path.parent
    with pytest.raises(FileNotFoundError):
        published._exchange(folder.parent / ".missing", folder, folder.parent / ".old")
    assert profiles.load(str(kept.path)) == kept.profile


def test_a_damaged_one_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    own = published.keep(publication()).profile
    (published.place("login1") / published.FACTS).write_text("damaged")
    assert published.keep(publication()).profile == own
    assert "is replaced, since it is damaged: " in capsys.readouterr().err


def test_a_new_key_is_accepted_once_the_user_has_written_it() -> None:
    published.keep(publication())
    with published.pin_path("login1").open("a") as stream:
        stream.write(OTHER.key.line + " the new admin\n")
    assert published.keep(publication(OTHER)).key == OTHER.key
    published.pin_path("login1").write_text("nonsense\n")
    with pytest.raises(UsageError, match="publishers/login1: "):
        published.keep(publication())


def test_list_and_show_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    kept = published.keep(publication(glibc="2.39"))
    assert main(["profile", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["about"]["ssh:login1"]["file"] == str(kept.path)
    assert main(["profile", "show", "ssh:login1"]) == 0
    assert 'glibc: "2.39"' in capsys.readouterr().out
    assert main(["profile", "show", "ssh:nobody"]) == UsageError.exit_code
    assert "no profile of nobody was fetched" in capsys.readouterr().err


def test_hosts_are_separate_and_their_names_are_no_paths() -> None:
    published.keep(publication())
    published.keep(publication(OTHER, host="you@../login2"))
    assert sorted(published.sites()) == ["ssh:../login2", "ssh:login1"]
    assert published.place("you@../login2").parent == published.place("login1").parent
    known = published.unchanged("me@login1", publication().profile)
    assert known is not None
    assert known.login.host == "me@login1"


@pytest.mark.needs("ssh-keygen")
def test_what_publish_writes_can_be_kept(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = make_key(places, "key")
    (places / "site_profiles" / "own.yaml").write_text("format: 1\nextends: lab\nname: own\n")
    assert main(["profile", "publish", "own", "--key", str(key), "-o", str(places / "out")]) == 0
    assert "as root: install" in capsys.readouterr().out
    names = (published.PROFILE, published.FACTS, published.SIGNATURE)
    data = [(places / "out" / name).read_bytes() for name in names]
    kept = published.keep(Publication("login9", *data))
    assert kept.profile.model_copy(update={"facts": None, "extends": None}).mpi == profiles.load("own").mpi
    assert (kept.profile.name, kept.profile.login.host) == ("own", "login9")
