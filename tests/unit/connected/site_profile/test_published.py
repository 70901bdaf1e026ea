"""Published profiles: what a file of the site may decide, and what is kept of it."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile import published, search
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, UsageError
from deployer.contract.site import facts

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


class Publication(NamedTuple):
    """What a host publishes: the arguments of ``published.keep``."""

    host: str
    profile: bytes
    facts: bytes | None


def publication(trees: bytes | None = FACTS, host: str = "login1", **fields: Any) -> Publication:
    record = {each: value for each, value in {**PROFILE, **fields}.items() if value is not None}
    return Publication(host, json.dumps(record).encode(), trees)


def of(date: str) -> dict[str, Any]:
    return {"source": {**SOURCE, "date": date}}


def test_the_host_is_the_one_that_the_user_named() -> None:
    kept = published.keep(*publication())
    assert (kept.profile.login.host, kept.profile.login.transfer) == ("login1", None)
    assert published.used("ssh:login1").profile == kept.profile
    assert published.sites() == ["ssh:login1"]
    assert search.label(kept.paths[0]) == "published by the site"
    assert str(published.keep(*publication(**of("2026-11-11"))).profile.source.date) == "2026-11-11"


@pytest.mark.parametrize(
    ("found", "error", "said"),
    [
        (publication()._replace(profile=b"{}"), UsageError, "no valid name: None"),
        (publication(trees=FACTS + b" "), IntegrityError, "do not belong together"),
        (publication(trees=None), IntegrityError, "do not belong together"),
        (publication(facts={"file": "../../x", "sha256": "0" * 64}), IntegrityError, "do not belong together"),
        (publication(extends="/etc/passwd"), UsageError, "extends another profile"),
        (publication(name="../x"), UsageError, "no valid name: '../x'"),
        (publication(nonsense=1), UsageError, "nonsense"),
        (publication(source=["x"]), UsageError, "source"),
    ],
)
def test_what_is_refused_leaves_the_kept_one(found: Publication, error: type[DeployerError], said: str) -> None:
    kept = published.keep(*publication())
    with pytest.raises(error, match=said):
        published.keep(*found)
    assert profiles.load(str(kept.paths[0])) == kept.profile
    assert [path.name for path in kept.paths[0].parents[1].iterdir()] == ["login1"]


def test_equal_bytes_are_known_only_of_the_same_host() -> None:
    found = publication()
    published.keep(*found)
    assert published.unchanged("login1", found.profile) == profiles.load(str(published.place("login1") / published.OWN))
    assert published.unchanged("login2", found.profile) is None
    assert published.unchanged("login1", found.profile + b" ") is None
    (published.place("login1") / published.FACTS).write_text("damaged")
    assert published.unchanged("login1", found.profile) is None


def test_list_and_show_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    kept = published.keep(*publication(glibc="2.39"))
    assert main(["profile", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["about"]["ssh:login1"]["file"] == str(kept.paths[0])
    assert main(["profile", "show", "ssh:login1"]) == 0
    assert 'glibc: "2.39"' in capsys.readouterr().out
    assert main(["profile", "show", "ssh:nobody"]) == UsageError.exit_code
    assert "no profile of nobody was fetched" in capsys.readouterr().err


def test_hosts_are_separate_and_their_names_are_no_paths() -> None:
    published.keep(*publication())
    published.keep(*publication(host="you@../login2"))
    assert sorted(published.sites()) == ["ssh:../login2", "ssh:login1"]
    assert published.place("you@../login2").parent == published.place("login1").parent
    known = published.unchanged("me@login1", publication().profile)
    assert known is not None
    assert known.login.host == "me@login1"


def test_what_publish_writes_can_be_kept(places: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (places / "site_profiles" / "own.yaml").write_text("format: 1\nextends: lab\nname: own\n")
    assert main(["profile", "publish", "own", "-o", str(places / "out")]) == 0
    assert "as root: install" in capsys.readouterr().out
    data = [(places / "out" / name).read_bytes() for name in (published.PROFILE, published.FACTS)]
    kept = published.keep("login9", *data)
    assert kept.profile.model_copy(update={"facts": None, "extends": None}).mpi == profiles.load("own").mpi
    assert (kept.profile.name, kept.profile.login.host) == ("own", "login9")
