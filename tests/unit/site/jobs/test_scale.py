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
