"""A job that saved its state is continued by the next one: the same script under another name, linked both ways."""

import json
import os

import pytest

from deployer.contract import json_records
from deployer.contract.errors import JobFailed, Refused, TransferError, UsageError
from deployer.contract.evidence import Launch
from deployer.site.jobs import jobs, result
from deployer.site.run import again

NAME = "hello-20261122T150000-0a1b"
SBATCH = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/asked"
test -d "$(dirname "${*##* }")/checkpoint" || exit 9
echo 8
"""


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Return the path of a program that takes jobs in Slurm's place, and expects the saved state in their folders."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (program.parent, os.environ["PATH"]))
    return program


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a job that saved its state and may be continued twice."""
    made = tmp_path / "jobs" / NAME
    (made / "checkpoint").mkdir(parents=True)
    (made / "checkpoint" / "epoch").write_text("3")
    launch = Launch(
        NAME, "hello", "1", "sha256:0", "lab", "v", "first", "charliecloud", 2, 1, 1, "00:30:00", ["x"], None, None, 0,
        warn=300, again=2,
    )  # fmt: skip
    (made / "job.json").write_text(json_records.pretty(launch.record()))
    (made / "job.sh").write_text("#!/bin/bash\njob='%s'\n# changed by a person: \u00e4\n" % made, encoding="utf-8")
    (made / "job_id").write_text("7\n")
    record = {"schema": "deployer.result", "format": 1, "min_reader": 1, "exit_code": 85, "findings": []}
    (made / "result.json").write_text(json.dumps(record))
    return made


def test_the_next_job_has_the_script_the_state_and_one_try_less(folder, sbatch):
    target = again.continue_job(str(folder))
    name = os.path.basename(target)
    assert name != NAME
    assert name.startswith("hello-2")
    launch = result.launch(target)
    assert (launch.job, launch.again, launch.warn, launch.previous) == (name, 1, 300, NAME)
    with open(os.path.join(target, "job.sh"), encoding="utf-8") as stream:
        assert stream.read() == "#!/bin/bash\njob='%s'\n# changed by a person: \u00e4\n" % target
    assert os.access(os.path.join(target, "job.sh"), os.X_OK)
    assert os.listdir(os.path.join(target, "checkpoint")) == ["epoch"]
    assert not (folder / "checkpoint").exists()
    assert jobs.job_id(target) == "8"
    assert jobs.following(str(folder)) == target
    assert sbatch.with_name("asked").read_text() == "--parsable --dependency=afterany:7 %s/job.sh\n" % target


def test_the_last_one_is_not_continued(folder, sbatch):
    launch = result.launch(str(folder))._replace(again=0)
    (folder / "job.json").write_text(json_records.pretty(launch.record()))
    with pytest.raises(JobFailed, match="no job is left to continue it") as error:
        again.continue_job(str(folder))
    assert str(folder / "checkpoint") in error.value.hint
    assert (folder / "checkpoint" / "epoch").exists()
    assert not sbatch.with_name("asked").exists()


def test_a_job_that_is_not_taken_leaves_the_state_where_it_was(folder, sbatch):
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: Invalid account' >&2\nexit 1\n")
    with pytest.raises(Refused, match="Invalid account"):
        again.continue_job(str(folder))
    assert os.listdir(str(folder.parent)) == [NAME]
    assert (folder / "checkpoint" / "epoch").read_text() == "3"
    assert jobs.following(str(folder)) == ""


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1", TransferError),
        ("exec sleep 60", JobFailed),
    ],
)
def test_a_job_that_may_have_been_taken_keeps_its_folder_and_the_state(folder, sbatch, monkeypatch, words, kind):
    monkeypatch.setattr(jobs, "_PATIENCE", 0.5)
    sbatch.write_text("#!/bin/sh\n%s\n" % words)
    with pytest.raises(kind) as error:
        again.continue_job(str(folder))
    (target,) = [name for name in os.listdir(str(folder.parent)) if name != NAME]
    assert error.value.message.endswith(str(folder.parent / target))
    assert os.listdir(str(folder.parent / target / "checkpoint")) == ["epoch"]


def test_a_job_without_a_warning_is_not_continued(folder):
    launch = result.launch(str(folder))._replace(warn=None)
    (folder / "job.json").write_text(json_records.pretty(launch.record()))
    with pytest.raises(UsageError, match="cannot be continued"):
        again.continue_job(str(folder))
