import fcntl
import os
import time
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.ground import caches
from deployer.contract.base.errors import Refused, UsageError

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "deployer"


def put(path: Path, size: int, days: float) -> Path:
    """Make an entry that was last used ``days`` ago: a file, or a folder with one."""
    file = path / "x.whl" if path.parent.name == "wheels" else path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def held(name: str) -> tuple[int, int]:
    found = {item.cache.name: item for item in map(caches.usage, caches.CACHES)}[name]
    return found.entries, found.bytes


def test_what_the_caches_hold(top: Path) -> None:
    put(top / "wheels" / "aa", 100, 1)
    put(top / "wheels" / "bb", 50, 2)
    put(top / "frames" / "zstd-3" / "f", 7, 1)
    put(top / "engine" / "deep" / "layer", 9, 1)
    os.link(top / "engine" / "deep" / "layer", top / "engine" / "again")
    assert (held("wheels"), held("frames"), held("bases")) == ((2, 150), (1, 7), (0, 0))
    assert held("engine") == (1, 9)  # bytes that two names share are there once


def test_what_was_not_used_for_long_goes(top: Path) -> None:
    old, new = put(top / "wheels" / "aa", 100, 31), put(top / "wheels" / "bb", 50, 29)
    assert [done for done in caches.prune([], dry_run=True) if done.entries] == [caches.Pruned("wheels", 1, 100)]
    assert old.exists()
    assert [done for done in caches.prune([]) if done.entries] == [caches.Pruned("wheels", 1, 100)]
    assert not old.exists()
    assert new.exists()


def test_beyond_the_cap_the_oldest_go(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "CACHES", [caches.Cache("wheels", "", cap=120)])
    for name, days in (("aa", 3.0), ("bb", 2.0), ("cc", 1.0)):
        put(top / "wheels" / name, 60, days)
    caches.prune([])
    assert sorted(path.name for path in (top / "wheels").iterdir()) == ["bb", "cc"]


def test_an_index_and_its_bundle_are_one_entry(top: Path) -> None:
    put(top / "frames" / "zstd-3" / "aa.tar", 100, 99)
    put(top / "frames" / "zstd-3" / "aa.json", 1, 1)  # used yesterday
    old = [put(top / "frames" / "zstd-3" / f"bb.{suffix}", 10, 99) for suffix in ("tar", "json")]
    assert held("frames") == (2, 121)
    assert caches.prune(["frames"]) == [caches.Pruned("frames", 1, 20)]
    assert not any(path.exists() for path in old)
    assert held("frames") == (1, 101)


def test_what_a_kill_left_goes_and_what_is_in_work_stays(top: Path) -> None:
    dead, alive = put(top / "wheels" / ".part-a", 1, 1 / 12), put(top / "wheels" / ".part-b", 1, 0)
    base = put(top / "bases" / ".bookworm.tar.abc.part", 1, 1 / 12)
    caches.prune([])
    assert (dead.exists(), alive.exists(), base.exists()) == (False, True, False)


def test_all_of_one_cache(top: Path) -> None:
    put(top / "wheels" / "aa", 1, 0)
    put(top / "bases" / "b.tar", 1, 0)
    caches.prune(["wheels"], everything=True)
    assert (held("wheels")[0], held("bases")[0]) == (0, 1)


def test_nothing_goes_while_a_build_or_pack_runs(top: Path) -> None:
    put(top / "wheels" / "aa", 1, 99)
    with caches.in_use(), caches.in_use():
        with pytest.raises(Refused, match="a build or pack uses the caches"):
            caches.prune([])
        assert caches.prune(["wheels"], dry_run=True)[0].entries == 1
    assert caches.prune(["wheels"])[0].entries == 1


def test_a_file_system_without_locks_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with caches.in_use():
        caches.prune([])


def test_caches_of_others_are_theirs_to_prune() -> None:
    with pytest.raises(UsageError, match="deployer does not prune the cache engine"):
        caches.prune(["engine"])
    with pytest.raises(UsageError, match="no cache wheel") as caught:
        caches.prune(["wheel"])
    assert "wheels" in caught.value.hint


def test_the_commands(top: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    put(top / "wheels" / "aa", 2000, 99)
    assert main(["cache", "list"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert found[0].split() == ["CACHE", "ENTRIES", "SIZE", "LAST", "USED", "CONTENTS"]
    (line,) = [line for line in found if line.startswith("wheels ")]
    assert line.split()[1:4] == ["1", "2.0", "kB"]
    assert line.endswith("; limit: 10.7 GB")
    assert main(["cache", "prune", "--dry-run"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert found[0].split() == ["CACHE", "WOULD", "REMOVE", "SIZE"]
    assert ["wheels", "1", "2.0", "kB"] in [line.split() for line in found]
    assert main(["cache", "prune", "--json"]) == 0
    assert '{"cache": "wheels", "entries": 1, "bytes": 2000}' in capsys.readouterr().out
    assert main(["cache", "prune", "--days", "-1"]) == 2
    assert main(["cache", "prune", "nothing"]) == 2
