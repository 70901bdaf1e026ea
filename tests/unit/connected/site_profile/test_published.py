"""Published profiles: what a file of the site may decide, and what another signer does."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop import pack
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
    assert published.pin_path("there").read_text() == KEY.key.line + "\n"
    assert f"signed by {KEY.key.fingerprint}, pinned from now on" in str(kept)
    assert profiles.load("there") == kept.profile  # its name leads to it, after all other folders
    assert search.label(search.find("there")) == "published by the site"
    again = published.keep(publication(**of("2026-11-11")))
    assert (again.first, str(again.profile.source.date)) == (False, "2026-11-11")


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
        (publication(OTHER, name="there2"), Refused, "is called there2, but login1 published there before"),
        (publication(OTHER, name="there2", host="me@Login1"), Refused, "is called there2, but"),
    ],
)
def test_what_is_refused_leaves_the_kept_one_and_the_pin(
    found: Publication, error: type[DeployerError], said: str
) -> None:
    kept = published.keep(publication())
    with pytest.raises(error, match=said):
        published.keep(found)
    assert profiles.load("there") == kept.profile
    assert published.pin_path("there").read_text() == KEY.key.line + "\n"
    assert [path.name for path in search.published_folder().iterdir()] == ["there"]


def test_a_signature_of_a_bundle_is_none_and_nothing_invalid_is_pinned() -> None:
    found = publication()
    blob = sshsig.armored(KEY.sign(found.profile)).encode()
    for wrong in (found._replace(signature=blob), publication(nonsense=1)):
        with pytest.raises(DeployerError):
            published.keep(wrong)
        assert not published.pin_path("there").exists()
        assert search.published_names() == []


def test_equal_bytes_are_known_only_of_the_same_host_and_a_pinned_signer() -> None:
    found = publication()
    published.keep(found)
    assert published.unchanged("login1", found.profile) == profiles.load("there")
    assert published.unchanged("login2", found.profile) is None
    assert published.unchanged("login1", found.profile + b" ") is None
    published.pin_path("there").write_text(OTHER.key.line + "\n")
    assert published.unchanged("login1", found.profile) is None
    published.pin_path("there").unlink()
    assert published.unchanged("login1", found.profile) is None
    published.keep(found)
    (published.place("there") / published.FACTS).write_text("damaged")
    assert published.unchanged("login1", found.profile) is None


def test_what_is_kept_has_a_pin_and_survives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(new: Path, folder: Path, old: Path) -> None:
        assert published.pin_path("there").exists()
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(published, "_exchange", fails)
        with pytest.raises(OSError, match="no space"):
            published.keep(publication())
    assert search.published_names() == []
    kept = published.keep(publication())
    folder = kept.path.parent
    with pytest.raises(FileNotFoundError):
        published._exchange(folder.parent / ".missing", folder, folder.parent / ".old")
    assert profiles.load("there") == kept.profile


def test_a_damaged_one_is_replaced_and_stops_nobody_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    own = published.keep(publication()).profile
    (published.place("there") / published.FACTS).write_text("damaged")
    assert published.newest(own) is own
    assert "is not used: " in capsys.readouterr().err
    assert published.keep(publication()).profile == own
    assert "is replaced, since it is damaged: " in capsys.readouterr().err


def test_a_new_key_is_accepted_once_the_user_has_written_it() -> None:
    published.keep(publication())
    with published.pin_path("there").open("a") as stream:
        stream.write(OTHER.key.line + " the new admin\n")
    assert published.keep(publication(OTHER)).key == OTHER.key
    published.pin_path("there").write_text("nonsense\n")
    with pytest.raises(UsageError, match="publishers/there: "):
        published.keep(publication())


def test_a_newer_one_of_the_same_host_is_used_with_the_user_s_own_workspace(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {**PROFILE, "login": {"host": "login1", "transfer": "data1"}, "workspace": "~/mine", "facts": None}
    (places / "site_profiles" / "there.json").write_text(json.dumps(own))
    mine = profiles.load("there")
    assert published.newest(mine) is mine  # nothing was fetched
    published.keep(publication(glibc="2.39"))
    assert published.newest(mine) is mine  # of the same day
    published.keep(publication(glibc="2.39", host="login2", **of("2026-11-12")))
    found = published.newest(mine)  # the host is another login node of the site: the same key signed both
    assert (found.glibc, found.workspace) == ("2.39", "~/mine")
    assert (found.login.host, found.login.transfer) == ("login1", "data1")
    said = capsys.readouterr().err
    assert "the profile that there publishes is used: it is of 2026-11-12, the one here of 2026-11-10" in said
    assert "glibc" in said


def test_a_site_s_hosts_are_all_remembered(places: Path) -> None:
    own = {**PROFILE, "login": {"host": "login1"}, "facts": None}
    (places / "site_profiles" / "there.json").write_text(json.dumps(own))
    mine = profiles.load("there")
    found = publication(host="login2", **of("2026-11-12"))
    published.keep(found)
    assert published.newest(mine) is mine  # login1 published none: another site may have chosen the same name
    published.keep(found._replace(host="login3"))
    for host in ("login2", "login3"):
        known = published.unchanged(host, found.profile)
        assert known is not None
        assert known.login.host == host
        with pytest.raises(Refused, match=f"is called other, but {host} published there before"):
            published.keep(publication(OTHER, name="other", host=host))
    assert published.unchanged("login1", found.profile) is None


@pytest.mark.parametrize(
    ("own_host", "date", "shown", "glibc"),
    [
        ("login1", "2026-11-12", {"there": "published"}, "2.39"),  # the same site: the newer one counts
        ("login1", "2026-11-09", {"there": "own", "ssh:login1": "published"}, "2.17"),
        ("other", "2026-11-12", {"there": "own", "ssh:login1": "published"}, "2.17"),
        (None, "2026-11-12", {"there": "published"}, "2.39"),  # there is no other one
    ],
)
def test_list_and_show_have_the_profile_that_commands_use(
    places: Path,
    own_host: str | None,
    date: str,
    shown: dict[str, str],
    glibc: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = places / "site_profiles" / "there.json"
    published.keep(publication(glibc="2.39", **of(date)))
    files = {"published": published.place("there") / "there.yaml"}
    if own_host:
        own = {**PROFILE, "login": {"host": own_host}, "facts": None, "glibc": "2.17", "workspace": "~/mine"}
        path.write_text(json.dumps(own))
        files["own"] = Path("site_profiles/there.json")
    assert main(["profile", "list", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)["about"]
    found = {site: each["file"] for site, each in about.items() if each["file"] in map(str, files.values())}
    assert found == {site: str(files[which]) for site, which in shown.items()}
    for site, which in shown.items():
        assert main(["profile", "show", site]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(f"# {os.path.relpath(files[which])}: ")
        assert f'glibc: "{glibc if site == "there" else "2.39"}"' in said.out
        assert ("ssh:login1 publishes" in said.err) == (which == "own")
    used = published.used("there", lambda _: None)
    assert (used.profile.glibc, used.paths[0]) == (glibc, files[shown["there"]])
    if own_host:
        assert (used.profile.login.host, used.profile.workspace) == (own_host, "~/mine")
        assert used.layers.at(("workspace",))[0] == Path("site_profiles/there.json")
    with pytest.raises(UsageError, match="no profile of nobody was fetched"):
        published.used("ssh:nobody")


def test_plans_are_made_of_the_newer_one(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {**PROFILE, "login": {"host": "login1"}, "facts": None}
    (places / "site_profiles" / "there.json").write_text(json.dumps(own))
    published.keep(publication(glibc="2.39", **of("2026-11-12")))
    used = "the profile that there publishes is used"
    assert pack._profiles(["there"], None, None)[0].glibc == "2.39"
    assert used in capsys.readouterr().err
    for words in (["plan", "missing.tar", "--site", "there", "-o", "x"], ["push", "--plan", "missing", "there"]):
        assert main(words) == UsageError.exit_code
        assert used in capsys.readouterr().err


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
