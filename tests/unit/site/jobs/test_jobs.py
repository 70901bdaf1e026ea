"""Several jobs at once: jobs, cancel without a name, gc --jobs; and images that NAME@DIGEST means."""

import json
import os
import time

import pytest

from deployer.cli.site import common, main
from deployer.contract.base.errors import EXIT_DONE, MissingTool, Refused, TransferError, UsageError
from deployer.contract.proof.evidence import Launch
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.storage.store import Receipt, Store
from tests import running

#: `scontrol --oneliner show job` of Slurm 22.05, shortened by fields between those that matter.
SCONTROL = (
    "JobId=12 JobName=hello UserId=alice(1000) JobState=PENDING Reason=Resources Requeue=0 WorkDir=/home/alice "
    "StdErr=/r/jobs/a/output.log StdIn=/dev/null StdOut=/r/jobs/a/output.log Power= \n"
    "JobId=13 JobName=x JobState=COMPLETED Reason=None StdIn=/dev/null StdOut=/r/jobs/b/output.log Power= \n"
    "JobId=14 JobName=x JobState=RUNNING Reason=None StdIn=/dev/null StdOut=/r/my jobs/c%%/output.log\n"
)


@pytest.fixture
def store(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    running.program(folder, "scontrol", "exit 0")
    return Store(str(tmp_path / "root"))


def call(store, *words):
    return main.main([words[0], "--root", store.root, *words[1:]])


def job(store, name, number=None, days=0, exit_code=None, made=()):
    """Leave the folder of a job that was made so many days ago."""
    folder = os.path.join(store.jobs, name)
    os.makedirs(os.path.join(folder, "ranks"))
    created = int(time.time()) - days * 86400
    fields = (name, "tiny", "1.0", "sha256:0", "lab", "v", "", "charliecloud", 2, 1, 1, "1:00", ["true"], None, None)
    running.write(os.path.join(folder, "job.json"), Launch(*fields, created=created).record())
    if number:
        with open(os.path.join(folder, "job_id"), "w") as stream:
            stream.write(number + "\n")
    if exit_code is not None:
        record = {"schema": "deployer.result", "format": 1, "min_reader": 1, "exit_code": exit_code, "findings": []}
        running.write(os.path.join(folder, "result.json"), record)
    for each in ("output.log", "job.sh", ".spare", *made):
        with open(os.path.join(folder, each), "w") as stream:
            stream.write("x")
    for each in [*os.listdir(folder), "."]:
        os.utime(os.path.join(folder, each), (created, created))
    return folder


def squeue(store, *states):
    """Put a squeue that knows these jobs."""
    lines = "".join("{}|{}|0:01|cn1|None\\n".format(*pair) for pair in states)
    running.program(os.path.join(os.path.dirname(store.root), "bin"), "squeue", f'printf "{lines}"')


# --- images by their digest


@pytest.fixture
def images(store):
    """Return a store with three images: two of one version, and another name."""
    digests = ("aaaaaaa1" * 8, "aaaaaaa2" * 8, "bbbbbbb1" * 8)
    for number, (name, digest) in enumerate(zip(("tiny", "tiny", "other"), digests)):
        folder = store.image_folder("sha256:" + digest)
        os.makedirs(folder)
        receipt = Receipt(name, "1.0", "sha256:" + digest, 1000 + number, 1, 12345678)
        running.write(os.path.join(folder, "receipt.json"), receipt.record())
    return store


@pytest.mark.parametrize(
    ("reference", "digest"),
    [
        ("tiny", "aaaaaaa2"),
        ("tiny:1.0", "aaaaaaa2"),
        ("tiny@aaaaaaa1", "aaaaaaa1"),
        ("tiny@sha256:aaaaaaa1aaaa", "aaaaaaa1"),
        ("tiny:1.0@AAAAAAA2", "aaaaaaa2"),
        ("other@" + "bbbbbbb1" * 8, "bbbbbbb1"),
    ],
)
def test_an_image_is_meant_by_name_version_and_digest(images, reference, digest):
    assert images.find(reference).receipt.digest == "sha256:" + digest * 8


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("tiny@aaaaaaa", "tiny@aaaaaaa matches 2 images: sha256:aaaaaaa2"),
        ("tiny@aaaaaa", "'aaaaaa' is not the beginning of a digest"),
        ("tiny@", "'' is not the beginning of a digest"),
        ("tiny@sha512:aaaaaaa1", "is not the beginning of a digest"),
        ("tiny@aaaaaaa1\n", "is not the beginning of a digest"),
        ("tiny@bbbbbbb1", "no image tiny@bbbbbbb1 is installed"),
        ("tiny:2.0@aaaaaaa1", "no image tiny:2.0@aaaaaaa1 is installed"),
    ],
)
def test_a_digest_that_means_no_image_or_several(images, reference, message):
    with pytest.raises(UsageError) as error:
        images.find(reference)
    assert message in error.value.message
    assert error.value.hint


def test_an_older_image_is_removed_by_its_digest(images, capsys):
    squeue(images)
    assert call(images, "remove", "--force", "tiny@aaaaaaa1") == EXIT_DONE
    assert [image.receipt.digest[7:15] for image in images.installed()] == ["bbbbbbb1", "aaaaaaa2"]
    assert call(images, "remove", "tiny@aaaaaaa1") == UsageError.exit_code
    assert "hint: installed: tiny@aaaaaaa2aaaa\n" in capsys.readouterr().err


def test_list_has_a_header_and_marks_the_current_images(images, capsys):
    assert call(images, "list") == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["DIGEST", "SIZE", "INSTALLED", "IMAGE"]
    shown = [(line[0], line.split()[-1], digest) for line in lines[1:4] for digest in line.split() if len(digest) == 12]
    expected = [
        ("*", "other:1.0", "bbbbbbb1bbbb"),
        ("*", "tiny:1.0", "aaaaaaa2aaaa"),
        (" ", "tiny:1.0", "aaaaaaa1aaaa"),
    ]
    assert shown == expected
    assert "NAME@DIGEST" in lines[4]
    assert max(map(len, lines)) <= 80
    assert call(images, "list", "--json") == EXIT_DONE
    assert [each["current"] for each in json.loads(capsys.readouterr().out)["images"]] == [True, True, False]


def test_a_table_that_is_too_wide_has_its_last_column_wrapped_or_below(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert common.table(("A", "B"), [["1", "x" * 99]]) == ["A  B", "1  " + "x" * 99]  # no terminal
    monkeypatch.setenv("COLUMNS", "80")
    assert common.table(("A", "B"), [["1", "word " * 16]]) == ["A  B", "1  " + "word " * 14 + "word", "   word"]
    wide = common.table(("A", "B"), [["1", "x" * 79], ["22", "y"]], ("A",))
    assert wide == [" A", "    B", " 1", "    " + "x" * 79, "22", "    y"]
    assert common.table(("A", "B"), [["1", "x"], ["22", "y"]], ("A",)) == [" A  B", " 1  x", "22  y"]


# --- jobs and cancel


def test_jobs_are_listed_with_one_question_to_slurm(store, capsys):
    job(store, "tiny-20261101T000000-0001", "11", days=3, exit_code=0)
    job(store, "tiny-20261102T000000-0002", "12", days=2)
    job(store, "tiny-20261103T000000-0003", days=1)
    squeue(store, ("12", "RUNNING"))
    broken = os.path.join(store.jobs, "broken")
    os.mkdir(broken)
    with open(os.path.join(broken, "job.json"), "w") as stream:
        stream.write("{")
    os.rename(job(store, "half"), os.path.join(store.jobs, ".removing-x"))
    assert call(store, "jobs") == EXIT_DONE
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].split() == ["NUMBER", "STATE", "CREATED", "NODES", "VERSION", "JOB"]
    assert [(line.split()[0], line.split()[1], line.split()[-1][-4:]) for line in lines[1:]] == [
        ("-", "NEW", "0003"),
        ("12", "RUNNING", "0002"),
        ("11", "COMPLETED", "0001"),  # Slurm has forgotten it
    ]
    assert max(map(len, lines)) <= 80
    assert "warning: broken: " in said.err
    assert call(store, "jobs", "--json") == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert [(each["job_id"], each["active"]) for each in found["jobs"]] == [(None, False), ("12", True), ("11", False)]
    assert found["jobs"][0]["bundle"] == "tiny"
    assert found["unreadable"] == [broken]


def test_no_jobs(store, capsys):
    assert call(store, "jobs") == EXIT_DONE
    assert "there are no jobs under" in capsys.readouterr().err


def test_cancel_without_a_name(store, tmp_path, capsys, monkeypatch):
    running.program(tmp_path / "bin", "scancel", f'echo "$1" >>{tmp_path}/cancelled')
    for number in ("11", "12", "13"):
        job(store, "j" + number, number, days=20 - int(number))
    squeue(store, ("11", "RUNNING"), ("12", "PENDING"), ("13", "COMPLETED"))
    assert call(store, "cancel") == UsageError.exit_code
    said = capsys.readouterr().err
    assert "error: 2 jobs are active: j12 (12), j11 (11)\nhint: select one: cancel JOB" in said
    assert not (tmp_path / "cancelled").exists()
    squeue(store, ("11", "RUNNING"))
    assert call(store, "cancel") == EXIT_DONE  # the only active one, though it is not the last
    assert (tmp_path / "cancelled").read_text() == "11\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a folder to another user")
def test_only_its_user_can_cancel_a_job(store, tmp_path, capsys):
    running.program(
        tmp_path / "bin", "scancel", "echo 'Kill job error on job id 11: Access/permission denied' >&2; exit 1"
    )
    folder = job(store, "j11", "11")
    squeue(store, ("11", "RUNNING"))
    assert call(store, "cancel", "j11") == Refused.exit_code
    assert "another user" not in capsys.readouterr().err
    os.chown(folder, 12345, -1)
    assert call(store, "cancel", "j11") == Refused.exit_code
    assert "denied\nhint: the job is another user's: let them cancel it\n" in capsys.readouterr().err


def test_states_of_many_jobs():
    slurm, local = SCHEDULERS["slurm"], SCHEDULERS["local"]
    assert slurm.states(["7", "8"])[4:] == ["--jobs=7,8", "--format=%i|%T|%M|%N|%r"]
    found = slurm.parse_states(0, "7|RUNNING|0:04|cn[1-2]|None\n8|PENDING|0:00||(a|b)\n", "")
    assert found["7"] == ("RUNNING", "", "0:04", "cn[1-2]", True)
    assert found["8"].reason == "(a|b)"
    assert slurm.parse_states(1, "", "slurm_load_jobs error: Invalid job id specified") == {}
    with pytest.raises(TransferError):
        slurm.parse_states(1, "", "Unable to contact slurm controller")
    assert local.parse_states(0, "7.1.host|   00:12\n", "")["7.1.host"].elapsed == "00:12"
    assert local.elsewhere("7.1.host.domain", "host") == "host.domain"
    assert local.elsewhere("7.1.host", "host") is slurm.elsewhere("7", "host") is None


def test_outputs_of_jobs_that_wait_or_run():
    slurm = SCHEDULERS["slurm"]
    assert slurm.parse_outputs(0, SCONTROL, "") == {"/r/jobs/a/output.log", "/r/my jobs/c%%/output.log"}
    assert slurm.parse_outputs(0, "No jobs in the system\n", "") == set()
    with pytest.raises(TransferError):
        slurm.parse_outputs(1, "", "Unable to contact slurm controller")


# --- gc --jobs


@pytest.fixture
def folders(store):
    """Return folders of jobs, by what is to be seen of them."""
    squeue(store, ("12", "RUNNING"))
    return {
        "running": job(store, "running", "12", days=90),
        "dry": job(store, "dry", days=90),
        "young": job(store, "young", days=10),
        "trained": job(store, "trained", "11", days=90, exit_code=0, made=("model.h5",)),
        "lost": job(store, "lost", "10", days=90),
    }


def left(store):
    return sorted(os.listdir(store.jobs))


def test_gc_removes_no_result_without_asking(store, folders, capsys):
    assert call(store, "gc", "--jobs", "--dry-run") == EXIT_DONE
    said = capsys.readouterr().out.splitlines()
    assert left(store) == sorted(folders)
    assert call(store, "gc", "--jobs") == EXIT_DONE
    assert [line.replace("removed", "would remove") for line in capsys.readouterr().out.splitlines()] == said
    assert sorted(said) == sorted(
        [
            "would remove {}: unchanged for 90 days".format(folders["dry"]),
            "kept {}: contains an unknown end; --yes removes it".format(folders["lost"]),
            "kept {}: the job is active: RUNNING".format(folders["running"]),
            "kept {}: contains model.h5, result.json; --yes removes it".format(folders["trained"]),
        ]
    )
    assert left(store) == ["lost", "running", "trained", "young"]


def test_gc_removes_results_with_the_users_word(store, folders, capsys):
    assert call(store, "gc", "--jobs", "--yes") == EXIT_DONE
    assert left(store) == ["running", "young"]
    assert call(store, "gc", "--jobs", "--yes", "--older-than", "0d", "--json") == EXIT_DONE
    assert left(store) == ["running"]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["job_folders"]
    assert sorted(each["removed"] for each in found) == [False, True]


def test_gc_spares_a_script_that_waits_though_it_was_submitted_by_hand(store, folders, tmp_path, capsys):
    line = "JobId=20 JobState=PENDING StdIn=/dev/null StdOut={}/output.log Power= ".format(folders["dry"])
    running.program(tmp_path / "bin", "scontrol", f"echo '{line}'")
    assert call(store, "gc", "--jobs", "--yes") == EXIT_DONE
    assert "kept {}: its script was submitted by hand".format(folders["dry"]) in capsys.readouterr().out
    assert left(store) == ["dry", "running", "young"]


def test_gc_spares_what_runs_on_another_host(store, capsys):
    job(store, "there", "1.1.elsewhere", days=90)
    assert call(store, "gc", "--jobs", "--yes") == EXIT_DONE
    assert "only elsewhere can tell whether it runs" in capsys.readouterr().out
    assert left(store) == ["there"]


@pytest.mark.parametrize("program", ["squeue", "scontrol"])
def test_gc_removes_nothing_when_slurm_does_not_answer(store, folders, tmp_path, program):
    running.program(tmp_path / "bin", program, "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert call(store, "gc", "--jobs", "--yes") == TransferError.exit_code
    assert left(store) == sorted(folders)


@pytest.mark.parametrize(
    "words", [("--yes",), ("--older-than", "1d"), ("--jobs", "--keep", "1"), ("--jobs", "--older-than", "1 week")]
)
def test_gc_wants_options_that_go_together(store, words):
    os.makedirs(store.root)
    assert call(store, "gc", *words) == UsageError.exit_code


@pytest.mark.parametrize("words", [("--jobs",), ()])
def test_what_a_killed_removal_left_is_no_job(store, folders, words):
    os.rename(folders["dry"], os.path.join(store.jobs, f".removing-{os.uname().nodename}-1-1-ab"))
    assert call(store, "gc", *words) == EXIT_DONE
    assert left(store) == ["lost", "running", "trained", "young"]
    assert result.launch(folders["lost"]).job == "lost"


@pytest.mark.thorough
def test_what_login_files_print_is_not_the_batch_systems_answer(tmp_path, monkeypatch):
    """Over ssh, perhaps only a login shell has the batch system's commands in its PATH."""
    running.program(tmp_path, "qlogin", 'echo "12 $1"\nexit 3')
    (tmp_path / ".bash_profile").write_text(f"echo 'Welcome to the cluster'\nPATH={tmp_path}:$PATH\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jobs.ask(["qlogin", "a  b"])[:2] == (3, "12 a  b\n")
    assert jobs.ask(["sh", "-c", 'exec qlogin "$@"', "sh", "a  b"])[:2] == (3, "12 a  b\n")


@pytest.mark.thorough
@pytest.mark.parametrize("line", ["qlogin() { echo 12; }", "shopt -s expand_aliases; alias qlogin='echo 12'"])
def test_a_function_or_alias_of_login_files_is_not_a_program(tmp_path, monkeypatch, line):
    (tmp_path / ".bash_profile").write_text(line + "\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(MissingTool, match="cannot start qlogin"):
        jobs.ask(["qlogin"], submits="qlogin")


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["path", "login shell"])
@pytest.mark.parametrize("kind", ["slurm", "lsf"])
def test_a_submission_is_never_repeated(tmp_path, monkeypatch, place, kind):
    """Not even if a wrapper of the site has submitted the job and then misses a program of its own."""
    scheduler = SCHEDULERS[kind]
    script = running.program(tmp_path, "job.sh", "true")
    program = scheduler.submits or "sbatch-of-the-site"  # this machine may have an sbatch
    if kind == "slurm":
        monkeypatch.setattr(scheduler, "submit", lambda *_: [program, script])
    with pytest.raises(MissingTool, match=f"cannot start {program}") as error:
        jobs.submit(scheduler, script, 60)
    assert "login node" in error.value.hint
    folder = tmp_path / "wrappers"
    folder.mkdir()
    running.program(folder, program, f"echo submitted >>{tmp_path}/submitted; exec no-such-program")
    if place == "path":
        monkeypatch.setenv("PATH", "{}:{}".format(folder, os.environ["PATH"]))
    else:
        (tmp_path / ".bash_profile").write_text(f"echo Welcome\nPATH={folder}:$PATH\n")
        monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Refused, match=r"did not take the job: .*no-such-program"):
        jobs.submit(scheduler, script, 60)
    assert (tmp_path / "submitted").read_text() == "submitted\n"
