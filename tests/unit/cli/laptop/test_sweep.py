"""--sweep on the laptop: a YAML file becomes one word of the site's command line, which expands it in the same way."""

import argparse
from pathlib import Path

import pytest

from deployer.cli.laptop import foresight
from deployer.cli.site import jobs
from deployer.contract.base.errors import UsageError


def read(path: Path, text: str) -> argparse.Namespace:
    path.write_text(text)
    args = argparse.Namespace(array=None, sweep=str(path))
    foresight.read_sweep(args)
    return args


def test_a_yaml_file_is_sent_as_json_and_expanded_at_the_site(tmp_path: Path) -> None:
    args = read(tmp_path / "s.yaml", "at_once: 2\ngrid:\n  lr: [0.1, 1e-4]\n  mode: [a b, yes]\n")
    assert args.sweep == '{"at_once": 2, "grid": {"lr": [0.1, "1e-4"], "mode": ["a b", true]}}'
    foresight.read_sweep(args)
    assert args.sweep.startswith("{")
    group = jobs._tasks(args)
    assert group is not None
    assert group.tasks[3].words == ["--lr=1e-4", "--mode=true"]
    (tmp_path / "s.json").write_text(args.sweep)
    assert jobs._tasks(argparse.Namespace(array=None, sweep=str(tmp_path / "s.json"))) == group


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grid: [", "s.yaml"),
        ("- 1\n", "it has no keys"),
        ("grid: {a: [1], a: [2]}", "is given twice"),
        ("grid: {a: [2026-01-01]}", "not a text in one line, a number, true or false"),
        ("grid: {a: [.nan]}", "not JSON compliant"),
        (f"grid: {{a: [{'x' * 99_000}]}}", r"s\.yaml is too long to be sent: 96 KiB as JSON"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        read(tmp_path / "s.yaml", text)
    assert "\n" not in error.value.message


@pytest.mark.parametrize("text", ["{", "[1]", '{"grid": {"a": [1]}, "grid": {}}', '{"grid": {"a": [NaN]}}'])
def test_a_bad_word_at_the_site_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"s\.json"):
        jobs._tasks(argparse.Namespace(array=None, sweep=str(path)))
