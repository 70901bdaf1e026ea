"""A group of tasks: one array, a folder per task, and an array of the tasks that failed or never ran."""

import json
import os

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import EXIT_DONE, Refused, UsageError
from deployer.contract.bundle import sweep
from deployer.contract.bundle.sweep import GroupTask, TaskArray, TaskGroup
from deployer.site.jobs import groups, jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.run import again, run
from deployer.site.run.prepare.request import RunRequest
from deployer.system import files
from tests import running as made

SWEEP = {"grid": {"lr": [0.1, 0.01], "mode": ["it's", "$x"]}, "at_once": 2}
RECORD = {"schema": "deployer.result", "format": 1, "min_reader": 1, "findings": [], "seconds": 3}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("ch-run", "squeue", "python3"):
        made.program(folder, name, "exit 0")
    made.program(folder, "sbatch", f'echo "$@" >>{tmp_path}/asked; echo 7$(wc -l <{tmp_path}/asked)')
    made.program(folder, "scancel", f'echo "$@" >>{tmp_path}/cancelled')
    return folder


@pytest.fixture
def store(tmp_path, programs):
    return made.store(tmp_path / "root")


@pytest.fixture
def group(store):
    """Return the folder of a group that was submitted as 71."""
    folder = run.prepare(store, RunRequest("hello", tasks=sweep.of_sweep(SWEEP, "a sweep")))
    assert run.submit(folder) == "71"
    return folder


def start(group, number, array="1", **record):
    """Start a task as the batch system does, and end it with a result if there is one."""
    folder = again.start(group, os.path.join(group, result.SCRIPT), number, array)
    if record:
        made.write(os.path.join(folder, result.RESULT_FILE), dict(RECORD, **record))
    return folder


def words(array):
    return [(task.job_id, task.state, task.active, task.exit_code) for task in array.values()]


def test_a_task_has_a_folder_with_its_own_script_and_parameters(group, tmp_path):
    assert (tmp_path / "asked").read_text() == f"--parsable --array=0-3%2 {group}/job.sh\n"
    text = run.show_script(group)
    assert "# To submit this script by hand: sbatch --array=0-3%2 job.sh." in text
    assert run.by_hand(group) == f"sbatch --array=0-3%2 {group}/job.sh"
    assert "--set-env=DEPLOYER_TASK=" in text
    assert "--set-env=DEPLOYER_TASKS=4" in text
    folder = start(group, "71_2")
    assert folder == os.path.join(group, "2")
    own = run.show_script(folder)
    assert f"\njob={folder}\n" in own
    assert "\ntask=2\nparameters=(--lr=0.01 '--mode=it'\"'\"'s')\n" in own
    assert "\narray=" not in own
    assert f"--bind={folder}:/deployer/job" in own
    launch, name = result.launch(folder), os.path.basename(group)
    assert (launch.job, launch.task, launch.parameters) == (f"{name}.2", 2, {"lr": 0.01, "mode": "it's"})
    assert launch.command == ["python3", "/deployer/app/train.py", "--lr=0.01", "--mode=it's"]
    assert json.loads(files.read_text(os.path.join(folder, "parameters.json"))) == {"lr": 0.01, "mode": "it's"}
    assert jobs.job_id(folder) == "71_2"
    assert jobs.job_id(group) == "71"


@pytest.mark.parametrize(("number", "array"), [("71_4", "1"), ("71", "1"), ("71_2", "2"), ("71_2", "0")])
def test_another_start_is_not_a_task(group, number, array):
    with pytest.raises(UsageError, match="is not a task of"):
        start(group, number, array)
    assert not os.path.exists(os.path.join(group, "2"))


def test_the_states_of_a_group_and_its_tasks(group, store, programs, capfd):
    name = os.path.basename(group)
    start(group, "71_0", exit_code=0, payload={"loss": 0.5, "curve": [1], "ok": True})
    start(group, "71_1", exit_code=1)
    start(group, "71_2")
    made.program(programs, "squeue", 'echo "71_2|RUNNING|0:01|cn1|None"; echo "71_3|PENDING|0:00||JobArrayTaskLimit"')
    status = jobs.status(group)
    assert (status.state, status.reason) == ("RUNNING", "1 done, 1 failed, 1 running, 1 waiting")
    assert (status.active, status.exit_code, status.remedy) == (True, None, "")
    assert words(jobs.tasks(group)) == [
        ("71_0", "COMPLETED", False, 0),
        ("71_1", "FAILED", False, 1),
        ("71_2", "RUNNING", True, None),
        ("71_3", "PENDING", True, None),
    ]
    for reference in (f"{name}.3", "71_3"):
        assert jobs.status(jobs.find(store, reference)).state == "PENDING"
    assert jobs.find(store, "71") == jobs.find(store, name) == group
    made.program(programs, "squeue", "exit 0")
    status = jobs.status(group)
    assert (status.state, status.reason, status.exit_code) == ("FAILED", "1 done, 2 failed, 1 not run", 1)
    assert (status.problem, status.remedy) == ("3 tasks have not ended well", f"retry {name}")
    root = ["--root", store.root]
    assert main.main(["jobs", *root]) == EXIT_DONE
    assert f"{name}: 1 done, 2 failed, 1 not run" in " ".join(capfd.readouterr().out.split())
    assert main.main(["jobs", *root, name]) == EXIT_DONE
    rows = capfd.readouterr().out.splitlines()
    assert rows[0].split() == ["task", "state", "exit_code", "seconds", "lr", "mode", "loss"]
    assert [row.split() for row in rows[1:3]] == [
        ["0", "COMPLETED", "0", "3", "0.1", "it's", "0.5"],
        ["1", "FAILED", "1", "3", "0.1", "$x", "-"],
    ]
    assert main.main(["report", *root, name, "--csv"]) == EXIT_DONE
    assert capfd.readouterr().out.splitlines()[4] == "3,NEW,-,-,0.01,$x,-"
    assert main.main(["status", *root, f"{name}.0", "--json"]) == EXIT_DONE
    shown = json.loads(capfd.readouterr().out)
    assert (shown["task"], shown["parameters"], shown["figures"]) == (0, {"lr": 0.1, "mode": "it's"}, {"loss": 0.5})
    assert main.main(["logs", *root, name]) == UsageError.exit_code
    assert f"hint: logs {name}.0" in capfd.readouterr().err


def test_a_repeat_obeys_a_scan_or_a_group_s_store_that_is_no_longer_accepted(group, tmp_path, monkeypatch):
    def refuse(*_):
        raise Refused("no scan")

    start(group, "71_1", exit_code=1)
    before = (tmp_path / "asked").read_text()
    monkeypatch.setattr(run.scans, "check_installed", refuse)
    with pytest.raises(Refused, match="no scan"):
        run.repeat(group)
    assert (tmp_path / "asked").read_text() == before


def test_only_tasks_that_failed_or_never_ran_are_repeated_in_their_folders(group, store, programs, tmp_path, capfd):
    name = os.path.basename(group)
    start(group, "71_0", exit_code=0)
    folder = start(group, "71_1", exit_code=1)
    start(group, "71_2", exit_code=0)
    assert run.repeat(group) == ("72", [1, 3], 0)
    assert (tmp_path / "asked").read_text().splitlines()[1] == f"--parsable --array=1,3%2 {group}/job.sh"
    assert "\narray=2 task='' parameters=()\n" in run.show_script(group)
    made.program(programs, "squeue", 'echo "72_1|PENDING|0:00||None"; echo "72_3|PENDING|0:00||None"')
    assert words(jobs.tasks(group))[1] == ("72_1", "PENDING", True, None)
    assert run.repeat(group) == ("", [], 2)
    assert start(group, "72_1", "2", exit_code=0) == folder
    assert jobs.job_id(folder) == "72_1"
    assert json.loads(files.read_text(os.path.join(folder, "earlier-attempt-1", "result.json")))["exit_code"] == 1
    start(group, "72_3", "2", exit_code=3)
    made.program(programs, "squeue", "exit 0")
    policy = os.path.join(store.root, "policy.json")
    record = {"schema": "deployer.policy", "format": 1, "min_reader": 1, "scan": {"days": 30}}
    files.write_text(policy, json.dumps(record))
    assert main.main(["retry", "--root", store.root, f"{name}.3"]) == Refused.exit_code
    assert "policy.json demands a scan of the bundle, and none is here" in capfd.readouterr().err
    os.unlink(policy)
    assert main.main(["retry", "--root", store.root, f"{name}.3"]) == EXIT_DONE
    assert capfd.readouterr().out == f"tasks of {name}.3: 3; submitted as 73; 0 are active\n"
    start(group, "73_3", "3", exit_code=0)
    assert (jobs.status(group).state, jobs.status(group).exit_code) == ("COMPLETED", 0)
    assert main.main(["retry", "--root", store.root, name]) == EXIT_DONE
    assert "none to repeat" in capfd.readouterr().out


def test_a_group_or_one_of_its_tasks_is_cancelled(group, store, programs, tmp_path):
    assert jobs.cancel(group) is False
    made.program(programs, "squeue", 'echo "71_2|RUNNING|0:01|cn1|None"; echo "71_3|PENDING|0:00||None"')
    assert jobs.cancel(jobs.find(store, os.path.basename(group) + ".3")) is True
    assert jobs.cancel(group) is True
    assert (tmp_path / "cancelled").read_text() == "71_3\n71\n"


def test_an_array_that_is_not_taken_leaves_nothing(store, programs, group):
    refusal = "echo 'sbatch: error: Batch job submission failed: Invalid job array specification' >&2; exit 1"
    made.program(programs, "sbatch", refusal)
    with pytest.raises(Refused, match=r"Invalid job array.*queue\.policy") as error:
        run.repeat(group)
    assert "MaxArraySize" in error.value.hint
    assert len(groups.read(group).arrays) == 1
    folder = run.prepare(store, RunRequest("hello", tasks=sweep.of_array("0-9")))
    with pytest.raises(Refused, match="Invalid job array"):
        run.submit(folder)
    assert not os.path.exists(folder)


def test_a_submission_without_an_answer_is_not_repeated_until_its_array_is_known(store, programs):
    made.program(programs, "sbatch", "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    folder = run.prepare(store, RunRequest("hello", tasks=sweep.of_array("0-2")))
    with pytest.raises(Exception, match="Socket timed out"):
        run.submit(folder)
    with pytest.raises(Refused, match="had no answer"):
        run.repeat(folder)
    made.program(
        programs, "squeue", f'case "$*" in *%o*) echo "80_0|{folder}/job.sh" ;; *) echo "80_0|RUNNING" ;; esac'
    )
    assert jobs.status(folder).active
    assert jobs.job_id(folder) == "80"
    unknown = run.prepare(store, RunRequest("hello", tasks=sweep.of_array("0-2")))
    start(unknown, "81_1")
    assert jobs.job_id(unknown) == "81"


def test_an_id_in_another_users_file_is_not_an_option_of_a_command(group):
    groups.write(group, TaskGroup([GroupTask(0)], None, [TaskArray("0", "-u alice")]))
    assert jobs.job_ids(group) == []
    assert jobs.elements(group) == {0: ""}


@pytest.mark.parametrize("text", ["{}", "x", '{"arrays": [{"tasks": "0-99999"}]}'])
def test_a_malformed_group_of_another_user_hides_no_other_job(group, store, capfd, text):
    own = run.prepare(store, RunRequest("hello"))
    stamp = '{"schema": "deployer.tasks", "format": 1, "min_reader": 1, "tasks": [], '
    files.write_text(os.path.join(group, "tasks.json"), text.replace("{", stamp, 1) if "arrays" in text else text)
    assert main.main(["jobs", "--root", store.root]) == EXIT_DONE
    said = capfd.readouterr()
    assert os.path.basename(own) in said.out
    assert f"warning: {os.path.basename(group)}" in said.err
    assert jobs.find(store, os.path.basename(own)) == own


@pytest.mark.parametrize(
    ("kind", "both", "single", "job_id", "element"),
    [
        ("slurm", ["--array=3,5%2"], ["--array=5%2"], "7", "7_5"),
        ("slurm", ["--array=3,5%2"], ["--array=5%2"], "7;c1", "7_5;c1"),
        ("gridengine", ["-t", "1-2", "-tc", "2"], ["-t", "1-1", "-tc", "2"], "7", "7.2"),
        ("pbs", ["-r", "y", "-J", "1-2%2"], [], "7[].server", "7[2].server"),
        ("lsf", ["-J", "deployer[1-2]%2"], ["-J", "deployer[1-1]%2"], "7", "7[2]"),
    ],
)
def test_the_words_and_ids_of_each_batch_system(tmp_path, kind, both, single, job_id, element):
    known = SCHEDULERS[kind]
    group = TaskGroup([GroupTask(3), GroupTask(5)], 2).submitting("3,5")
    assert known.array(group) == both
    assert known.array(group.submitting("5")) == single
    assert both[0] in " ".join(known.submit("/j/job.sh", None, both))
    index = {task: index for index, task in group.arrays[0].by_index(known.own_numbers).items()}
    assert known.element(job_id, index[5]) == element
    assert known.owns(job_id)
    assert known.owns(element)
    assert groups.array_id(element) == job_id
    groups.write(str(tmp_path), group)
    assert groups.began(str(tmp_path), 1, element, known.own_numbers).number == 5
    assert groups.read(str(tmp_path)).arrays[0].job_id == job_id


def test_a_single_task_of_pbs_is_a_job_without_an_array(tmp_path):
    pbs, group = SCHEDULERS["pbs"], TaskGroup([GroupTask(3), GroupTask(5)]).submitting("5")
    groups.write(str(tmp_path), group)
    assert groups.began(str(tmp_path), 1, "7.server", pbs.own_numbers).number == 5
    assert groups.read(str(tmp_path)).arrays[0].job_id == pbs.element("7.server", 1) == "7.server"


@pytest.mark.parametrize("kind", ["local", "hosts"])
def test_a_site_without_arrays(kind):
    with pytest.raises(Refused, match="need a batch system with arrays"):
        SCHEDULERS[kind].submitting(sweep.of_array("0-3"))


def test_arrays_of_grid_engine():
    known = SCHEDULERS["gridengine"]
    assert known.parse_submit(0, "7.1-10:1\n", "") == "7"
    row = "<job_list state='x'><JB_job_number>7</JB_job_number><state>{}</state><tasks>{}</tasks></job_list>"
    out = "<job_info>{}{}</job_info>".format(row.format("r", "1"), row.format("qw", "2-4:1"))
    assert sorted(known.parse_states(0, out, "")) == ["7.1", "7.2", "7.3", "7.4"]
    assert known.parse_states(0, out, "")["7.3"].word == "PENDING"


@pytest.mark.parametrize(("changed", "text"), [({"again": 2}, "--again cannot be used"), ({"again": None}, "")])
def test_tasks_are_not_continued(store, changed, text):
    request = RunRequest("hello", tasks=sweep.of_array("0-3"))._replace(**changed)
    if text:
        with pytest.raises(UsageError, match=text):
            run.prepare(store, request)
    else:
        assert groups.is_group(run.prepare(store, request))
