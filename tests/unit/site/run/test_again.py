"""A job that saved its state is continued by the next one: the same script under another name, linked both ways."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.contract.base import json_records
from deployer.contract.base.errors import JobFailed, Refused, TransferError, UsageError
from deployer.contract.bundle import sweep
from deployer.contract.proof.evidence import Launch
from deployer.site.jobs import groups, jobs, result
from deployer.site.run import again
from deployer.site.run.job_script import script
from tests.unit.site.run.job_script.test_script import CASES

ROOT = Path(__file__).resolve().parents[4]
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
    monkeypatch.setenv("PATH", "{}:{}".format(program.parent, os.environ["PATH"]))
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
    (made / "job.sh").write_text(f"#!/bin/bash\njob='{made}'\n# changed by a person: \u00e4\n", encoding="utf-8")
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
        assert stream.read() == f"#!/bin/bash\njob='{target}'\n# changed by a person: \u00e4\n"
    assert os.access(os.path.join(target, "job.sh"), os.X_OK)
    assert os.listdir(os.path.join(target, "checkpoint")) == ["epoch"]
    assert not (folder / "checkpoint").exists()
    assert jobs.job_id(target) == "8"
    assert jobs.following(str(folder)) == target
    assert sbatch.with_name("asked").read_text() == f"--parsable --dependency=afterany:7 {target}/job.sh\n"


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
    sbatch.write_text(f"#!/bin/sh\n{words}\n")
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


#: What follows the part of job.sh under test: it leaves evidence as the steps do.
STEPS = """
mkdir -p "$job/ranks"
echo "$$" >"$job/ranks/one"
echo "said by $which"
while [ ! -e "$go" ]; do sleep 0.05; done
echo "$which" >"$job/checkpoint/epoch"
"""
#: Starts of one script at the same time, by batch system: the variables of each.
STARTS = {
    "slurm": [{"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "8"}],
    "slurm-array": [
        {"SLURM_JOB_ID": str(number), "SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": str(number % 3)}
        for number in (9, 10, 11)
    ],
    "gridengine": [{"JOB_ID": "7", "SGE_TASK_ID": "undefined"}, {"JOB_ID": "8", "SGE_TASK_ID": "undefined"}],
    "gridengine-array": [{"JOB_ID": "7", "SGE_TASK_ID": task} for task in ("1", "2")],
    "lsf": [{"LSB_JOBID": "7", "LSB_JOBINDEX": "0"}, {"LSB_JOBID": "8", "LSB_JOBINDEX": "0"}],
    "lsf-array": [{"LSB_JOBID": "7", "LSB_JOBINDEX": task} for task in ("1", "2")],
    "pbs": [{"PBS_JOBID": "7.server"}, {"PBS_JOBID": "8.server"}],
    "pbs-array": [{"PBS_JOBID": f"7[{task}].server"} for task in ("1", "2")],
    "local": [{}, {}],
}


@pytest.fixture
def scripted(folder):
    """Return a function that writes the job's script for a batch system, and one that runs a start of it."""
    tool = folder.parent.parent / "tool.py"
    tool.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom deployer.cli.site.main import main\nmain()\n")
    for name in ("job_id", "result.json"):
        (folder / name).unlink()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent.parent)}

    def write(kind):
        case = CASES["again" if kind == "slurm" else kind]
        launch = result.launch(str(folder))._replace(scheduler=kind)
        (folder / "job.json").write_text(json_records.pretty(launch.record()))
        whole = script.render(case._replace(folder=str(folder), tool=str(tool), python=sys.executable))
        head = whole[: whole.index("\nexport USER")].replace("\nunset SLURM_EXPORT_ENV", "\nunset X")
        (folder / "job.sh").write_text(head + STEPS)
        return case.scheduler.opened.text

    def run(opened, which, variables, *words):
        given = dict(environment, which=which, go=str(folder.parent.parent / "go"), **variables)
        name = subprocess.check_output(["bash", "-c", "echo " + opened], env=given).decode().strip()
        log = str(folder / name) if name else str(folder.parent.parent / which)
        with open(log, "ab") as stream:
            return subprocess.Popen(
                ["bash", "-l", *(words or [str(folder / "job.sh")])], env=given, stdout=stream, stderr=stream
            )

    return write, run


def logs(folder):
    return sorted(path.read_text() for path in folder.parent.glob("*/output.log"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(STARTS))
def test_starts_at_the_same_time_share_nothing(folder, scripted, name):
    """Neither the second submission of a script nor a task of an array touches what another start has."""
    write, run = scripted
    kind = name.partition("-")[0]
    opened = write(kind)
    names = ["start%d" % number for number, _ in enumerate(STARTS[name])]
    starts = [run(opened, which, variables) for which, variables in zip(names, STARTS[name])]
    while len(list(folder.parent.glob("*/ranks/one"))) < len(starts):
        assert all(start.poll() is None for start in starts), logs(folder)
    (folder.parent.parent / "go").touch()
    assert [start.wait() for start in starts] == [0] * len(starts)
    own = sorted(folder.parent.iterdir())
    assert len(own) == len(starts)
    assert sorted((each / "ranks/one").read_text().strip() for each in own) == sorted(str(each.pid) for each in starts)
    assert sorted((each / "checkpoint/epoch").read_text().strip() for each in own) == names
    assert [result.launch(str(each)).job for each in own] == [each.name for each in own]
    if kind == "local":  # the batch system of none is this tool, whose start of a job writes log and id
        return
    assert logs(folder) == [f"said by {which}\n" for which in names]
    assert len({jobs.job_id(str(each)) for each in own}) == len(starts)
    assert None not in {jobs.job_id(str(each)) for each in own}


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(name for name in STARTS if name.endswith("-array")))
def test_the_tasks_of_a_group_start_at_the_same_time_in_their_folders(folder, scripted, name):
    """No task takes the group's folder, and a task that is repeated continues in its own."""
    write, run = scripted
    kind, starts = name.partition("-")[0], STARTS[name]
    opened = write(kind)
    script = (folder / "job.sh").read_text()
    script = script.replace("\nstarted=", "\narray=1 task='' parameters=()\nstarted=", 1)
    script = script.replace('--id "$id")', '--id "$id" ${array:+--array "$array"})', 1)
    (folder / "job.sh").write_text(script + 'echo "$task" "${parameters[@]}" >"$job/own"\n')
    tasks = sweep.of_sweep({"grid": {"lr": [0.1, 0.2, 0.3][: len(starts)]}}, "a sweep")
    groups.write(str(folder), tasks)
    (folder / "job_id").write_text("group\n")
    (folder.parent.parent / "go").touch()
    started = [run(opened, "start%d" % number, variables) for number, variables in enumerate(starts)]
    assert [start.wait() for start in started] == [0] * len(starts), logs(folder / "x")
    assert (
        sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "checkpoint")
        == ["0", "1", "2"][: len(starts)]
    )
    assert list(folder.parent.iterdir()) == [folder]
    for number in range(len(starts)):
        own = folder / str(number)
        assert (own / "own").read_text() == f"{number} --lr=0.{number + 1}\n"
        assert result.launch(str(own)).task == number
        assert (own / "output.log").read_text().startswith("said by start")
    assert groups.read(str(folder)).arrays[0].job_id in ("11", "7", "7[].server")
    assert run(opened, "again", starts[0]).wait() == 0
    (repeated,) = folder.glob("*/earlier-attempt-1/output.log")
    assert (repeated.parent.parent / "output.log").read_text() == "said by again\n"


def test_a_start_waits_for_the_job_that_the_folder_was_made_for(folder, scripted):
    """A person submits the script again before the first job has begun: the folder stays the first one's."""
    write, run = scripted
    opened = write("slurm")
    (folder / "job_id").write_text("7\n")
    (folder.parent.parent / "go").touch()
    assert run(opened, "second", {"SLURM_JOB_ID": "8"}).wait() == 0
    assert jobs.job_id(str(folder)) == "7"
    assert not (folder / "hosts").exists()
    assert run(opened, "first", {"SLURM_JOB_ID": "7"}).wait() == 0
    assert (folder / "output.log").read_text() == "said by first\n"


@pytest.mark.parametrize(("written", "has_result"), [("", True), ("7\n", False)])
def test_a_first_start_on_a_full_disk_has_a_result_and_a_later_one_leaves_that_of_the_first(
    folder, scripted, written, has_result
):
    """On a full disk, the file of the id is made and stays empty, and no further folder can be made."""
    write, run = scripted
    opened = write("slurm")
    tool = folder.parent.parent / "tool.py"
    tool.write_text(tool.read_text().replace("main()\n", "sys.exit(6) if sys.argv[1] == 'start' else main()\n"))
    (folder / "job_id").write_text(written)
    assert run(opened, "second", {"SLURM_JOB_ID": "8"}).wait() == 6
    assert (folder / "result.json").exists() is has_result


@pytest.mark.thorough
def test_a_job_that_its_batch_system_starts_again_keeps_its_folder_and_all_that_was_there(folder, scripted):
    write, run = scripted
    opened = write("slurm")
    (folder.parent.parent / "go").touch()
    for which in ("first", "second", "third"):
        assert run(opened, which, {"SLURM_JOB_ID": "7"}).wait() == 0
    assert os.listdir(str(folder.parent)) == [NAME]
    said = [(folder / part / "output.log").read_text() for part in ("earlier-attempt-1", "earlier-attempt-2", "")]
    assert said == ["said by first\n", "said by second\n", "said by third\n"]
    assert (folder / "earlier-attempt-1/ranks/one").exists()
    assert (folder / "checkpoint/epoch").read_text() == "third\n"


@pytest.mark.parametrize(
    ("state", "code", "taken"),
    [("FAILED", 1, True), ("TIMEOUT", None, True), ("RUNNING", None, False), ("COMPLETED", 0, False)],
)
def test_a_further_start_takes_the_state_of_one_that_ended_and_failed(folder, sbatch, state, code, taken):
    """The script that runs is the one that is kept: a person may have changed a copy of it."""
    record = {"schema": "deployer.result", "format": 1, "min_reader": 1, "exit_code": code, "findings": []}
    (folder / "result.json").write_text(json.dumps(record))
    program = sbatch.with_name("squeue")
    program.write_text(f"#!/bin/sh\nprintf '7|{state}|1:00|cn1|None\\n8|{state}|1:00|cn1|None\\n'\n")
    program.chmod(0o755)
    changed = folder.parent.parent / "changed.sh"
    changed.write_text(f"job={folder}\n# mine\n")
    target = again.start(str(folder), str(changed), "8")
    assert Path(target, "job.sh").read_text() == f"job={target}\n# mine\n"
    assert os.listdir(os.path.join(target, "checkpoint")) == (["epoch"] if taken else [])
    assert (folder / "checkpoint").exists() is not taken
    assert (result.launch(target).previous, jobs.following(str(folder))) == ((NAME, target) if taken else (None, ""))
    if taken:  # and the one after it continues from there
        third = again.start(str(folder), str(changed), "9")
        assert os.listdir(os.path.join(third, "checkpoint")) == ["epoch"]
        assert result.launch(third).previous == os.path.basename(target)


def test_a_script_of_another_job_starts_nothing(folder, sbatch):
    other = folder.parent.parent / "other.sh"
    other.write_text("job=/elsewhere\n")
    with pytest.raises(UsageError, match="not the folder of the job"):
        again.start(str(folder), str(other), "8")
    assert os.listdir(str(folder.parent)) == [NAME]


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_a_new_folder_is_private_and_what_is_in_it_has_the_same_modes_whatever_the_umask(folder, sbatch, umask):
    before = os.umask(umask)
    try:
        target = again.continue_job(str(folder))
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert [oct(os.stat(os.path.join(target, name)).st_mode & 0o777) for name in (".", "job.json", "job.sh")] == [
        "0o700",
        "0o644",
        "0o755",
    ]
