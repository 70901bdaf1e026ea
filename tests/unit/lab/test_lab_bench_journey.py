"""The table of `scripts/bench journey`: medians of the totals, and the ratio of each round's own pair."""

import json
from pathlib import Path

import pytest

from tests.lab import bench_journey


def a_round(published: float, ours: float) -> dict[str, dict[str, bench_journey.Stages]]:
    ways = {"published": {"scp": published - 1, "start": 1.0}, "deployer": {"push": ours - 1, "start": 1.0}}
    return {"first shipment": ways, "one changed line": ways}


@pytest.fixture
def figures() -> dict[str, object]:
    # As one reads them again: JSON has no tuples, and rates are texts.
    rounds = [a_round(100, 50), a_round(120, 20), a_round(400, 40)]
    measured = {"commit": "abc", "date": "2026-11-23", "load": 0.4, "rounds": rounds}
    found: dict[str, object] = json.loads(json.dumps({"1000": measured, "100": measured}))
    return found


def test_the_table_has_medians_and_promises(figures: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    bench_journey._table(figures)
    rows = capsys.readouterr().out.strip().splitlines()[2:]
    assert rows == [
        "| 100 | first shipment | 120.0 | 40.0 | **6.0** | at least 4 | 3 | abc, 0.4 |",
        "| 100 | one changed line | 120.0 | 40.0 | **6.0** | at least 50 | 3 | abc, 0.4 |",
        "| 1000 | first shipment | 120.0 | 40.0 | **6.0** |  | 3 | abc, 0.4 |",
        "| 1000 | one changed line | 120.0 | 40.0 | **6.0** |  | 3 | abc, 0.4 |",
    ]


@pytest.mark.thorough  # matplotlib takes a second
def test_it_is_drawn(figures: dict[str, object], tmp_path: Path) -> None:
    bench_journey._draw(tmp_path / "journey.svg", figures)
    drawn = (tmp_path / "journey.svg").read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("first shipment", "one changed line", "published", "120.0"))


def test_a_rank_that_did_not_start_ends_the_measurement() -> None:
    assert bench_journey._first_rank("x\nstarted 17.5\nstarted 12.25\n") == 12.25
    with pytest.raises(SystemExit, match="1 ranks started, not 2"):
        bench_journey._first_rank("started 17.5\n")


def test_rates_of_another_definition_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_journey, "FIGURES", tmp_path / "figures.json")
    assert bench_journey._earlier("a") == {}
    known = {"10": {"definition": "a"}, "100": {"definition": "b"}}
    (tmp_path / "figures.json").write_text(json.dumps(known))
    assert bench_journey._earlier("a") == {"10": {"definition": "a"}}
