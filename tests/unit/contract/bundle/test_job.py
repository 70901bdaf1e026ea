import pytest

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.bundle import job
from deployer.contract.bundle.job import Job, seconds, started


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("00:30:00", 1800),
        ("100:00:01", 360001),
        ("2-00:00:00", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("30", 1800),
        ("30:15", 1815),
    ],
)
def test_time_limits_as_slurm_writes_them(limit, expected):
    assert seconds(limit) == expected


@pytest.mark.parametrize("limit", ["", "infinite", "1:2:3:4", "-1:00", "x-1", "1-"])
def test_what_is_no_time_limit(limit):
    with pytest.raises(UsageError, match="invalid time limit"):
        seconds(limit)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("00:30:00", "00:30:00"),
        ("100:00:00", "100:00:00"),
        ("1-12:00:00", "1-12:00:00"),
        ("90s", "00:01:30"),
        ("90m", "01:30:00"),
        ("24h", "1-00:00:00"),
        ("36h", "1-12:00:00"),
        ("2d", "2-00:00:00"),
        ("9999d", "9999-00:00:00"),
    ],
)
def test_usual_forms_of_a_time_limit_are_understood(text, limit):
    assert job.check_time(text) == limit
    assert job.Job.read(Fields(dict(Job("train", ["true"], 1, 1, 1, text).record()), "it")).time == limit


@pytest.mark.parametrize(
    "text", ["", "30", "1:30", "24", "24H", "1.5h", "h", "-1h", "1h30m", "10000d", "24 h", "24h\n"]
)
def test_forms_that_mean_different_things_are_refused_with_those_that_are_understood(text):
    with pytest.raises(UsageError, match="and not a number with s, m, h or d") as error:
        job.check_time(text)
    assert error.value.hint == "for instance 00:30:00, 90m, 24h or 2-00:00:00"


@pytest.mark.parametrize("text", ["0s", "0d", "00:00:00"])
def test_no_time_is_not_a_time_limit(text):
    with pytest.raises(UsageError, match="zero means no limit"):
        job.check_time(text)


def test_paths_are_left_out_of_records_that_have_none():
    """Bundles without them are as they were, and those of before can be read."""
    made = job.Job("train", ["true"], 1, 1, 1, "1:00:00")
    assert not {"workdir", "stdin", "memory", "environment"} & set(made.record())
    assert job.Job.read(Fields(made.record(), "it")) == made
    there = made._replace(workdir="/data/run", stdin="/data/run/in", memory=5, environment={"A": "b\nc"})
    assert job.Job.read(Fields(there.record(), "it")) == there


@pytest.mark.parametrize("path", ["work", "", "/a/../b", "/a\nb", "/a\0b", 5])
def test_a_working_folder_is_an_absolute_path(path):
    record = dict(job.Job("train", ["true"], 1, 1, 1, "1:00:00").record(), workdir=path)
    with pytest.raises(IntegrityError, match="it: field 'workdir'"):
        job.Job.read(Fields(record, "it", IntegrityError))


@pytest.mark.parametrize("path", ["in.txt", "", "/a/../b", "/a/", "/a\nb", "/a\0b", "/\x1b[2J", 5, ["/a"]])
def test_standard_input_is_an_absolute_path_of_a_file(path):
    record = dict(job.Job("train", ["true"], 1, 1, 1, "1:00:00").record(), stdin=path)
    with pytest.raises(IntegrityError, match="it: field 'stdin'"):
        job.Job.read(Fields(record, "it", IntegrityError))


@pytest.mark.parametrize("name", ["A-B", "LD_LIBRARY_PATH", "PROOT_NO_SECCOMP", "PMI_RANK"])
def test_a_bundle_sets_no_variable_that_a_definition_may_not(name):
    record = dict(job.Job("train", ["true"], 1, 1, 1, "1:00:00").record(), environment={name: "1"})
    with pytest.raises(IntegrityError, match="it: field 'environment': "):
        job.Job.read(Fields(record, "it", IntegrityError))


@pytest.mark.parametrize(
    ("launch", "command", "words"),
    [
        ("ranks", ["python3", "x.py"], []),
        ("node", ["python3", "x.py"], []),
        ("torchrun", ["python3", "x.py"], ["python3"]),
        ("torchrun", ["/opt/venv/bin/python3.11", "x.py"], ["/opt/venv/bin/python3.11"]),
        ("torchrun", ["./train", "x"], ["python3"]),
    ],
)
def test_torchrun_starts_the_command_with_its_own_python(launch, command, words):
    more = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=4", "--rdzv_backend=static", "--no_python"]
    job = Job("train", command, 2, 4, 1, "01:00:00", launch=launch)
    assert started(job) == [*words, *(more if words else []), *command]
    assert Job.read(Fields(job.record(), "a job")) == job


def test_an_unknown_way_to_launch_is_not_guessed():
    record = Job("train", ["x"], 1, 1, 1, "01:00:00").record()
    assert "launch" not in record
    with pytest.raises(UsageError, match="'torchx' is not one of ranks, torchrun, node"):
        Job.read(Fields({**record, "launch": "torchx"}, "a job"))


@pytest.mark.parametrize("gpus", [1025, 10**15])
def test_gpus_of_a_manifest_are_what_a_node_may_have(gpus):
    record = dict(job.Job("train", ["true"], 1, 1, 1, "1:00:00").record(), gpus=gpus)
    with pytest.raises(IntegrityError, match="field 'gpus': %d is not a number from 0 to 1024" % gpus):
        Job.read(Fields(record, "it", IntegrityError))


@pytest.mark.parametrize("name", ["--bind=/home", "-n", "../up", "a\n  links: {}", "Two", "a b", "a\n", "x" * 101, ""])
def test_the_name_of_a_job_is_no_option_and_no_path(name):
    record = dict(Job("train", ["true"], 1, 1, 1, "1:00:00").record(), name=name)
    with pytest.raises(IntegrityError, match="field 'name'"):
        Job.read(Fields(record, "it", IntegrityError))
