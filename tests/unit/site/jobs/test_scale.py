"""What the judge asks of the shared file system: files per node, none per rank."""

import pytest

from deployer.site.jobs import result
from deployer.site.proof.result import StepOutcome
from deployer.system import files
from tests import evidence

#: Files that the judge opens in a job of any size: job.json, and the ends of its steps.
CONSTANT = 2


def opened(folder, monkeypatch):
    """Judge the job in a folder, and return how many files were opened for that, and the result."""
    count = []
    original = files.open_regular
    monkeypatch.setattr(files, "open_regular", lambda *args, **named: count.append(args) or original(*args, **named))
    verdict = result.write_result(str(folder), StepOutcome("payload", 0, None, "7", 1000, 1010))
    monkeypatch.undo()
    assert (verdict["exit_code"], verdict["findings"]) == (0, [])
    return len(count), verdict


@pytest.mark.parametrize("collected", [True, False])
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(2, 1), (2, 8), (16, 8), (64, 1)])
def test_a_job_of_any_ranks_has_three_files_per_node(tmp_path, monkeypatch, nodes, ranks_per_node, collected):
    """From a staged image (collected) and from the installed folder."""
    evidence.leave(str(tmp_path / "job"), nodes, ranks_per_node, collected)
    count, record = opened(tmp_path / "job", monkeypatch)
    assert count == CONSTANT + 3 * nodes
    assert (record["world_size"], len(record["ranks"])) == (nodes * ranks_per_node, nodes * ranks_per_node)


def _judged(folder, nodes, spoil):
    """Judge a job of many nodes whose evidence is spoilt; return what a user reads of its findings, and its result."""
    evidence.leave(str(folder), nodes, 2, collected=True)
    spoil(folder)
    result.write_result(str(folder), StepOutcome("payload", 0, None, "7", 1000, 1010))
    texts = [str(item) + item.remedy for item in result.findings(result.read(str(folder)))]
    return texts, result.read(str(folder)).record


def _without_every_other(folder):
    for path in sorted((folder / "hosts").glob("*.json"))[1::2]:
        for each in folder.glob(f"*/*{path.stem}*"):
            each.unlink()


@pytest.mark.parametrize("spoil", [lambda folder: evidence.differ(str(folder)), _without_every_other])
def test_what_a_user_reads_does_not_grow_with_the_nodes(tmp_path, spoil):
    """Every other node has another MPI library, each its own, or left nothing."""
    few, _ = _judged(tmp_path / "few", 80, spoil)
    many, record = _judged(tmp_path / "many", 320, spoil)
    assert len(many) == len(few)
    assert sum(map(len, many)) <= sum(map(len, few)) + 20 * len(few)  # numbers have more digits
    assert any("160" in text or "156 nodes" in text for text in many)
    assert record["exit_code"] == 3


def test_a_result_is_read_without_its_ranks(tmp_path):
    """As `jobs` does, for all other fields."""
    _, whole = _judged(tmp_path / "job", 3, lambda _: None)
    assert len(whole["ranks"]) == 6
    assert result.read(str(tmp_path / "job"), ranks=False).record == {**whole, "ranks": []}
