"""What a rehearsal concludes: what stopped the job is first, each with its place in the program and its remedy."""

import itertools

import pytest

from deployer.contract.base import json_records
from deployer.contract.base.errors import UsageError
from deployer.contract.rehearsal import rehearsal
from deployer.contract.rehearsal.observation import CodeFrame, Observation, Observed
from deployer.contract.rehearsal.rehearsal import Bounds, JobEnding, Rehearsal, Used
from deployer.contract.rules.findings import ERROR, NOTE, WARNING
from deployer.contract.rules.verdict import MISSING_FACTS

MAIN = CodeFrame("/deployer/app/train.py", 3, "<module>")
LOAD = CodeFrame("/usr/lib/python3/dist-packages/lib/data.py", 9, "load_data")
OPEN = CodeFrame("/usr/lib/python3.11/urllib/request.py", 216, "urlopen")
FAILED = JobEnding(rehearsal.FAILED, 1, "last words", 3.0)
DONE = JobEnding(rehearsal.DONE, 0, None, 3.0)
HOME = "/tmp/deployer-home-1-x"


def seen(kind, what, time=1.0, stack=(OPEN, LOAD, MAIN), process="n1-1", **about):
    return Observation(kind, what, time, stack, about, process)


def judge(*observations, ending=FAILED, **others):
    return rehearsal.judge(Observed(observations), ending, **others)


def brief(found):
    return [(item.finding.code, item.finding.severity, item.finding.subject, item.stopped) for item in found]


def test_a_download_that_stopped_the_job_is_first_and_has_the_users_line():
    found = judge(
        seen("program", "nvidia-smi", 0.5, (OPEN, MAIN)),
        seen("url", "https://data.example/mnist.npz", 1.0),
        seen("host", "data.example", 1.1),
        seen("uncaught", "Exception: URL fetch failure on https://data.example/mnist.npz", 2.0, (LOAD, MAIN)),
    )
    assert brief(found) == [
        ("rehearse.network", ERROR, "data.example", True),
        ("rehearse.program", WARNING, "nvidia-smi", False),
    ]
    assert rehearsal.user_frame(found[0].stack) == MAIN
    assert found[0].record()["line"] == 3
    assert found[0].prepare == tuple(FETCH)


def test_a_library_that_raises_an_error_of_its_own_is_understood():
    # torchvision: the last mirror failed, and RuntimeError has no cause.
    found = judge(
        seen("url", "https://data.example/x.gz", 1.0),
        seen("uncaught", "RuntimeError: Error downloading x.gz", 2.0, (LOAD, MAIN)),
    )
    assert brief(found) == [("rehearse.network", ERROR, "data.example", True)]


def test_an_unrelated_error_after_a_download_that_was_caught():
    found = judge(
        seen("url", "https://data.example/x.gz", 1.0),
        seen(
            "uncaught", "ValueError: shapes do not match", 2.0, (CodeFrame("/deployer/app/train.py", 50, "fit"), MAIN)
        ),
    )
    assert brief(found) == [
        ("rehearse.ended", ERROR, "train.py", True),
        ("rehearse.network", WARNING, "data.example", False),
    ]
    assert "ValueError: shapes do not match" in found[0].finding.message


@pytest.mark.parametrize(
    ("ending", "more", "expected"),
    [
        (FAILED, [], ("rehearse.ended", MISSING_FACTS, "the job", True)),
        (
            FAILED,
            [("uncaught", "CalledProcessError: died with SIGSYS")],
            ("rehearse.ended", MISSING_FACTS, "x.py", True),
        ),
        (FAILED, [("url", "https://a.b/c"), ("uncaught", "URLError")], ("rehearse.network", ERROR, "a.b", True)),
        (DONE, [], ("rehearse.blind", MISSING_FACTS, "sh", False)),
    ],
)
def test_a_job_with_a_32_bit_program_which_only_a_rehearsal_ends_is_not_refused_for_that(ending, more, expected):
    """It may run at the site. What it fetched in vain is certain all the same."""
    blind = seen("blind", "a 32-bit program, which a rehearsal ends: /old", stack=(), program="sh", ended="yes")
    stack = (CodeFrame("/deployer/app/x.py", 3, "f"),)
    found = judge(blind, *(seen(kind, what, 2.0, stack) for kind, what in more), ending=ending)
    assert brief(found)[0] == expected
    assert ("rehearse.blind", MISSING_FACTS, "sh", False) in brief(found)


def test_a_job_that_did_without_has_warnings_only():
    found = judge(seen("url", "https://data.example/x.gz"), seen("write", "/opt/cache"), ending=DONE)
    assert brief(found) == [
        ("rehearse.network", WARNING, "data.example", False),
        ("rehearse.readonly", WARNING, "/opt/cache", False),
    ]


@pytest.mark.parametrize(
    ("kind", "what", "error", "code"),
    [
        ("write", "/opt/x/model.h5", "OSError: [Errno 30] Read-only file system: '/opt/x/model.h5'", "readonly"),
        ("write", "/opt/x/model.h5", "PermissionError: [Errno 13] Permission denied: '/opt/x/model.h5'", "readonly"),
        ("program", "ffmpeg", "FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'", "program"),
        ("missing", "/data/x.csv", "FileNotFoundError: [Errno 2] No such file or directory: '/data/x.csv'", "missing"),
        ("library", "libx.so", "OSError: libx.so: cannot open shared object file: No such file", "missing"),
        ("host", "a.example", "gaierror: [Errno -2] Name or service not known", "network"),
        ("daemon", "/run/x.sock", "ConnectionRefusedError: [Errno 111] Connection refused", "daemon"),
    ],
)
def test_the_exception_leads_to_what_was_reached_for(kind, what, error, code):
    found = judge(seen(kind, what), seen("uncaught", error, 2.0, (LOAD, MAIN)))
    assert brief(found)[0] == ("rehearse." + code, ERROR, what, True)


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        ("scontrol", "$WORLD_SIZE and $MASTER_ADDR"),
        ("/usr/bin/sbatch", "run --again"),
        ("module", "leave this line out"),
        ("nvidia-smi", "for a job with `gpus`"),
        ("mpirun", "deployer starts its ranks"),
        ("apptainer", "a job is a container already"),
        ("wget", "nodes have no internet"),
        ("ffmpeg", "install it in the image"),
    ],
)
def test_a_program_of_the_host_is_not_to_be_installed(program, remedy):
    (found,) = judge(seen("program", program), ending=DONE)
    assert remedy in found.finding.remedy


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("EOFError: EOF when reading a line", "`stdin: /deployer/app/answers.txt`"),
        ("OSError: [E050] Can't find model 'en_core_web_sm'.", "a model of spaCy is a Python package"),
        ("EOFError: Ran out of input", "read its output"),
    ],
)
def test_an_exception_with_a_known_remedy(error, remedy):
    (found,) = judge(seen("uncaught", error, 2.0, (LOAD, MAIN)))
    assert remedy in found.finding.remedy
    assert found.finding.code == "rehearse.ended"


@pytest.mark.parametrize(("stack", "severity"), [((OPEN, MAIN), WARNING), ((), WARNING), ((OPEN, LOAD, MAIN), NOTE)])
def test_a_library_that_does_without_a_program_is_noted(stack, severity):
    (found,) = judge(seen("program", "fc-list", 1.0, stack), ending=DONE)
    assert (found.finding.code, found.finding.severity) == ("rehearse.program", severity)


def test_a_question_that_nobody_answers_is_warned_of():
    # mpi4py's cpi-cco.py catches the EOFError, and computes nothing.
    (found,) = judge(seen("missing", "standard input", 1.0, (MAIN,)), ending=DONE)
    assert (found.finding.severity, found.finding.message.split(",")[0]) == (
        WARNING,
        "it looked for an answer on standard input",
    )
    assert "`stdin: " in found.finding.remedy


@pytest.mark.parametrize("path", ["configurator.py", "/deployer/job/configurator.py"])
def test_a_file_beside_the_program_is_not_where_jobs_start(path):
    # nanoGPT: observers saw the whole path, the exception has the relative one.
    error = "FileNotFoundError: [Errno 2] No such file or directory: 'configurator.py'"
    found = judge(seen("missing", path), seen("uncaught", error, 2.0, (MAIN,)))
    assert found[0].finding.remedy.startswith("jobs start in /deployer/job")


def test_the_hooks_own_frames_are_not_the_programs():
    # Python's own excepthook, which looks for sources that are not there, is called by ours.
    hook = CodeFrame("/deployer/job/rehearsal-hook/sitecustomize.py", 201, "ended")
    lines = CodeFrame("/usr/lib/python3.11/linecache.py", 100, "updatecache")
    assert judge(seen("missing", "/deployer/app/Comm.pyx", 1.0, (lines, hook)), ending=DONE) == ()


def test_ranks_that_meet_at_localhost_are_told_where_to_meet():
    # A published example: jax.distributed.initialize("localhost:10000", ...). Each node has a localhost of its own.
    (found,) = judge(seen("daemon", "127.0.0.1 port 10000"), ending=DONE)
    assert found.finding.message == "it contacted 127.0.0.1 port 10000"
    assert "$MASTER_ADDR and $MASTER_PORT" in found.finding.remedy
    for path in ("/run/x.sock", "/run/my port 5", "@my port 5"):
        (found,) = judge(seen("daemon", path), ending=DONE)
        assert found.finding.message == "it contacted the socket " + path
        assert "bind its socket" in found.finding.remedy


def test_jax_without_the_variables_of_slurm_has_a_remedy_of_its_own():
    found = judge(seen("uncaught", "ValueError: Number of processes must be defined.", 2.0, (MAIN,)))
    assert brief(found) == [("rehearse.ended", ERROR, "train.py", True)]
    assert "if --site names a site with Slurm" in found[0].finding.remedy
    assert 'process_id=int(os.environ["RANK"])' in found[0].finding.remedy


@pytest.mark.parametrize(
    ("error", "code", "subject"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'", "missing", "data/x.csv"),
        ("ModuleNotFoundError: No module named 'torch'", "missing", "torch"),
        ("OSError: [Errno 30] Read-only file system: '/x'", "readonly", "/x"),
        ("MemoryError: ", "memory", "train.py"),
        ("URLError: <urlopen error [Errno 111] Connection refused>", "network", "train.py"),
        ("KeyError: 'x'", "ended", "train.py"),
    ],
)
def test_an_exception_alone_is_enough(error, code, subject):
    # Python 3.6 and 3.7 have no audit hooks.
    found = judge(seen("uncaught", error, 2.0, (LOAD, MAIN)))
    assert brief(found) == [("rehearse." + code, ERROR, subject, True)]


def test_a_job_without_any_observation_ends_for_its_last_words():
    (found,) = judge()
    assert brief([found]) == [("rehearse.ended", ERROR, "the job", True)]
    assert found.finding.message == "it failed with exit code 1; last line: last words"


def test_a_program_that_exits_by_itself_after_a_failed_download():
    ending = JobEnding(rehearsal.FAILED, 1, "could not download the data, giving up", 3.0)
    found = judge(seen("host", "data.example"), ending=ending)
    assert brief(found) == [("rehearse.network", ERROR, "data.example", True)]


def test_the_last_line_names_what_a_native_program_wanted():
    ending = JobEnding(rehearsal.FAILED, 1, "wget: bad address 'data.example'", 3.0)
    found = judge(
        seen("host", "data.example", 1.0, (), process="n1.network", program="wget"),
        seen("host", "other.example", 2.0, (), process="n1.network", program="curl"),
        ending=ending,
    )
    assert brief(found)[0] == ("rehearse.network", ERROR, "data.example", True)


def test_a_service_of_a_library_asks_in_its_place():
    # wandb: the service is another process, whose exception is none of the program's.
    end = 'CommError: Post "https://api.example/graphql": dial tcp: lookup api.example'
    stack = library("wandb/sdk/wandb_init.py")
    found = judge(seen("host", "api.example", 3.0, stack, "n1-2"), seen("uncaught", end, 2.0, stack))
    assert brief(found) == [("rehearse.network", ERROR, "api.example", True)]
    (alone,) = judge(seen("uncaught", end, 2.0, stack))
    assert alone.definition[-1] == '    environment: {WANDB_MODE: "offline"}'


def test_files_that_others_do_without_are_not_noted():
    native = seen("missing", "/deployer/job/own.conf", 1.0, (), program="x")
    library = seen("missing", "/x/HEAD", 1.0, (OPEN, LOAD, MAIN))
    own = seen("missing", "/x/best.pt", 1.0, (OPEN, MAIN, LOAD))
    assert [item.finding.subject for item in judge(native, library, own, ending=DONE)] == ["/x/best.pt"]
    assert "/deployer/job/own.conf" in [item.finding.subject for item in judge(native)]


def test_the_first_process_that_fails_is_the_reason():
    found = judge(
        seen("uncaught", "KeyError: 'x'", 8.0, (MAIN,), process="n1-1"),
        seen("uncaught", "ConnectionResetError: [Errno 104] Connection reset by peer", 9.0, process="n2-1"),
    )
    assert brief(found) == [("rehearse.ended", ERROR, "train.py", True)]
    assert "KeyError" in found[0].finding.message


def test_an_exception_of_a_thread_is_not_the_end_if_the_process_has_one():
    found = judge(
        seen("uncaught", "KeyError: 'x'", 8.0, (MAIN,), thread="yes"),
        seen("uncaught", "ValueError: y", 9.0, (MAIN,)),
    )
    assert ["ValueError" in item.finding.message for item in found] == [True]


def test_the_own_nodes_are_no_network():
    found = judge(
        seen("address", "127.0.0.1 port 29500"),
        seen("host", "localhost"),
        seen("host", "node2"),
        seen("address", "10.77.0.12 port 1234"),
        ending=DONE,
        own=("node2", "10.77.0.12"),
    )
    assert found == ()


def test_what_several_processes_and_observers_saw_is_one_finding():
    found = judge(
        seen("url", "https://data.example/x.gz", 1.0, process="n1-1"),
        seen("host", "data.example", 1.1, process="n1-1"),
        seen("address", "1.2.3.4 port 443", 1.2, process="n1-1"),
        seen("url", "https://data.example/x.gz", 1.3, process="n2-1"),
        seen("host", "data.example", 1.4, (), process="n1.network", program="python3"),
        ending=DONE,
    )
    assert brief(found) == [("rehearse.network", WARNING, "data.example", False)]
    assert found[0].processes == 2


def test_a_native_program_is_named():
    (found,) = judge(seen("host", "a.example", stack=(), process="n1.network", program="curl"), ending=DONE)
    assert found.finding.message == "curl asked for a.example"
    assert found.record()["file"] is None


def test_usual_files_are_not_reported():
    found = judge(
        seen("missing", "/etc/matplotlibrc", 1.0, (MAIN,)),
        seen("missing", HOME + "/.config/x", 1.0, (MAIN,)),
        seen("missing", "/data/y", 1.0, (MAIN,)),
        ending=DONE,
    )
    assert brief(found) == [("rehearse.missing", NOTE, "/data/y", False)]


def test_memory_and_threads():
    found = judge(ending=DONE, used=Used(peak_memory=90_000, threads=9), bounds=Bounds(64_000, 4))
    assert brief(found) == [
        ("rehearse.memory", ERROR, "the job", False),
        ("rehearse.threads", WARNING, "the job", False),
    ]
    assert judge(ending=DONE, used=Used(peak_memory=1, threads=5), bounds=Bounds(64_000, 4)) == ()
    assert brief(judge(ending=JobEnding(rehearsal.MEMORY))) == [("rehearse.memory", ERROR, "the job", True)]


def test_what_a_rehearsal_cannot_see_is_said():
    found = rehearsal.judge(Observed((seen("blind", "Python 3.6.15 has no audit hooks", stack=()),), 3, True), DONE)
    assert [item.finding.message for item in found] == [
        "it did more than a rehearsal keeps, so some observations are missing",
        "3 lines of its observations could not be read",
        "Python 3.6.15 has no audit hooks",
    ]
    assert [item.finding.severity for item in found] == [MISSING_FACTS, MISSING_FACTS, NOTE]


IMPORT = CodeFrame("<frozen importlib._bootstrap_external>", 1, "path_hook")


@pytest.mark.parametrize(
    ("path", "stack", "had_input", "expected"),
    [
        ("/lustre/project/data", (MAIN,), False, WARNING),
        ("/lustre/project/data", (MAIN,), True, NOTE),
        ("/lustre/project/data", (OPEN, MAIN), False, WARNING),  # through Python's own glob
        ("/deployer/data/train", (MAIN,), False, WARNING),
        ("/lustre/project/data", (), False, WARNING),  # a program that is not Python
        ("/deployer/job/last.ckpt", (MAIN,), False, NOTE),
        ("/etc/machine", (MAIN,), False, None),
        ("/build/openmpi/share/x.txt", (), False, None),
        ("/home/conda/feedstock_root/x", (), False, None),
        ("/lustre/project/data", (LOAD, MAIN), False, None),  # a library looked
        ("/lustre/project/data", (IMPORT, LOAD), False, None),
    ],
)
def test_a_program_that_did_not_find_its_data(path, stack, had_input, expected):
    about = {} if stack else {"exit_code": "0"}
    found = judge(seen("missing", path, 1.0, stack, **about), ending=DONE, had_input=had_input)
    assert [item.finding.severity for item in found] == ([expected] if expected else [])
    assert [("it opened no other data" in item.finding.message) for item in found] == [expected == WARNING] * len(found)
    silent = "It reached for nothing that the site lacks." in RECORD._replace(findings=found, ending=DONE).lines()
    assert silent == (expected is None)


@pytest.mark.parametrize(
    ("path", "had_input", "expected"),
    [
        ("/lustre/project/data", False, WARNING),
        ("/lustre/project/data", True, NOTE),
        ("/deployer/data/train", True, NOTE),
        ("/deployer/job/last.ckpt", False, None),  # what a program has yet to make
        ("/kaggle/input", False, None),  # which service it runs on
    ],
)
def test_a_program_that_asked_for_data_that_are_not_there(path, had_input, expected):
    found = judge(seen("asked", path, 1.0, (MAIN,)), ending=DONE, had_input=had_input)
    assert brief(found) == ([("rehearse.missing", expected, path, False)] if expected else [])
    opened = judge(seen("asked", path, 1.0, (MAIN,)), seen("missing", path, 2.0, (MAIN,)), ending=DONE)
    assert [item.finding.code for item in opened] == ["rehearse.missing"]


@pytest.mark.parametrize(("line", "named"), [(3, True), (4, True), (30, False), (2, False)])
def test_an_exception_just_after_a_question_for_a_file_names_the_file(line, named):
    """As `assert os.path.exists(path)`."""
    end = seen("uncaught", "AssertionError: ", 2.0, (CodeFrame(MAIN.file, line, "<module>"),))
    found = judge(seen("asked", "/deployer/job/data.txt", 1.0, (MAIN,)), end)
    code, subject = ("rehearse.missing", "/deployer/job/data.txt") if named else ("rehearse.ended", "train.py")
    assert brief(found) == [(code, ERROR, subject, True)]


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/deployer/app/train.py", False),
        ("/usr/lib/python3/dist-packages/x/y.json", False),
        ("/opt/conda/lib/python3.12/z.txt", False),
        ("/deployer/job/out.log", False),
        ("/deployer/app/libx.so.3", False),
        ("/deployer/data/train.npz", True),
        ("/deployer/app/config.yaml", True),
        ("/opt/digits/digits.npz", True),
        ("/scratch/me/a", True),
    ],
)
def test_which_files_may_be_data(path, data):
    assert rehearsal.is_input(path) == data


def test_settings_that_libraries_do_without_are_not_reported():
    missing = seen("missing", "/deployer/job/ucx.conf", 1.0, ())
    clock = seen("write", "/var/lib/libuuid/clock.txt", 1.0, ())
    assert judge(missing, clock, ending=DONE) == ()
    assert [item.finding.code for item in judge(missing, clock)] == ["rehearse.ended"]


def test_a_file_that_pytorch_cannot_write_is_the_cause():
    for path in ("/deployer/app/model.pt", "model.pt"):
        found = judge(
            seen("write", "/deployer/app/model.pt", 1.0, (), "node1.network"),
            seen("uncaught", f"RuntimeError: File {path} cannot be opened.", 2.0, (LOAD, MAIN)),
        )
        assert brief(found) == [("rehearse.readonly", ERROR, "/deployer/app/model.pt", True)]


def test_a_flood_of_findings_is_limited():
    found = judge(*(seen("write", "/opt/%d" % number) for number in range(90)), ending=DONE)
    assert len(found) == 21
    assert found[-1].finding.message == "not shown: 70 findings of rehearse.readonly"


KERAS = (
    CodeFrame("/usr/lib/python3/dist-packages/keras/src/utils/file_utils.py", 300, "get_file"),
    CodeFrame("/usr/lib/python3/dist-packages/keras/src/datasets/mnist.py", 60, "load_data"),
    MAIN,
)
TORCHVISION = (
    CodeFrame("/usr/lib/python3/dist-packages/torchvision/datasets/utils.py", 100, "download_url"),
    CodeFrame("/usr/lib/python3/dist-packages/torchvision/datasets/mnist.py", 180, "download"),
    MAIN,
)
TORCH_HUB = (
    CodeFrame("/usr/lib/python3/dist-packages/torch/hub.py", 600, "download_url_to_file"),
    CodeFrame("/usr/lib/python3/dist-packages/torchvision/models/resnet.py", 30, "resnet18"),
    MAIN,
)


def library(path, function="load"):
    return (CodeFrame("/usr/lib/python3/dist-packages/" + path, 1, function), MAIN)


FETCH = ["deployer fetch DEF train"]


@pytest.mark.parametrize(
    ("stack", "host", "about", "what", "lines"),
    [
        (
            KERAS,
            "storage.googleapis.com",
            {"url": "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"},
            "keras: mnist.npz",
            FETCH,
        ),
        (TORCHVISION, "ossci-datasets.s3.amazonaws.com", {"class": "MNIST"}, "torchvision: MNIST", FETCH),
        (
            TORCH_HUB,
            "download.pytorch.org",
            {"url": "https://download.pytorch.org/models/resnet18-f37072fd.pth"},
            "torchvision: resnet18-f37072fd.pth",
            FETCH,
        ),
        (
            library("transformers/utils/hub.py"),
            "huggingface.co",
            {"repo_id": "google-bert/bert-base-uncased"},
            "transformers: google-bert/bert-base-uncased",
            FETCH,
        ),
        (library("tiktoken/load.py"), "openaipublic.blob.core.windows.net", {"port": "443"}, None, FETCH),
        (library("nltk/downloader.py"), "raw.githubusercontent.com", {"info_or_id": "punkt"}, "nltk: punkt", FETCH),
        (library("wandb/sdk/wandb_init.py"), "api.wandb.ai", {}, "Weights & Biases",
         ['    environment: {WANDB_MODE: "offline"}']),
        (library("mlflow/utils/rest_utils.py"), "mlflow.example", {}, "MLflow's tracking server",
         ['    environment: {MLFLOW_TRACKING_URI: "file:/deployer/job/mlruns", MLFLOW_ALLOW_FILE_STORE: "true"}']),
        (library("mlflow/telemetry/client.py"), "config.mlflow-telemetry.io", {}, "MLflow's statistics of use",
         ['    environment: {MLFLOW_DISABLE_TELEMETRY: "true"}']),
        ((), "flex.example", {"licence": "MLM_LICENSE_FILE"}, "a licence server (MLM_LICENSE_FILE)", []),
        ((), "flex.example", {"port": "27000"}, "a licence server (LM_LICENSE_FILE)", []),
    ],
)  # fmt: skip
def test_a_library_is_recognised_with_its_remedy(stack, host, about, what, lines):
    found = judge(seen("host", host, 1.0, stack, **about), ending=DONE)
    assert [item.finding.message for item in found] == [f"asked for {what or 'tiktoken: ' + host}"]
    assert set(lines) <= {*found[0].prepare, *found[0].definition}


URLLIB3 = CodeFrame("/usr/lib/python3/dist-packages/urllib3/connectionpool.py", 600, "urlopen")
#: What is asked, how, and what the remedy then is, for any library.
KINDS = [
    # A file: the program itself chose the URL, or a library that keeps what it downloads.
    ((URLLIB3, MAIN), "a.example", {"url": "https://a.example/x.csv", "method": "GET"}, "pass its path", "curl"),
    ((OPEN, MAIN), "a.example", {"url": "https://a.example/x.csv"}, "pass its path", "curl"),
    ((URLLIB3, *library("pandas/io/common.py")), "a.example", {"url": "https://a.example/x"}, "pass its path", "curl"),
    ((URLLIB3, *library("seaborn/utils.py")), "a.example", {"url": "https://a.example/x"}, "deployer fetch", FETCH[0]),
    ((URLLIB3, *library("medmnist.py")), "zenodo.example", {"port": "443"}, "deployer fetch", FETCH[0]),
    (library("kagglehub/clients.py"), "kaggle.example", {"port": "443"}, "deployer fetch", FETCH[0]),
    # No file: an upload, a clock, a parameter server, a licence, packages for pip.
    ((URLLIB3, MAIN), "a.example", {"url": "https://a.example/log", "method": "POST"}, "after `deployer result`", ""),
    ((MAIN,), "pool.ntp.org", {"port": "ntp"}, "a bundle cannot carry a service", ""),
    ((MAIN,), "ps0.example", {"port": "2222"}, "$MASTER_ADDR", ""),
    ((MAIN,), "flex.example", {"port": "1055"}, "compute nodes reach", ""),
    ((MAIN,), "unclear.example", {}, "if it wants a service: ", ""),
    ((), "a.example", {"program": "curl"}, "put the file in the bundle", ""),
    (library("pip/_internal/cli/main.py"), "index.example", {"port": "443"}, "add them to the image", ""),
    ((URLLIB3, *library("spacy/cli/download.py")), "raw.example", {"port": "443"}, "add them to the image", ""),
]


@pytest.mark.parametrize(("stack", "host", "about", "remedy", "command"), KINDS)
def test_what_was_asked_decides_the_remedy_of_any_library(stack, host, about, remedy, command):
    (found,) = judge(seen("host", host, 1.0, stack, **about), ending=DONE)
    assert remedy in found.finding.remedy
    assert [line[: len(command)] for line in found.prepare[:1]] == ([command] if command else [])


def test_a_library_that_downloads_in_a_thread_is_shown_at_the_users_line():
    thread = (OPEN, LOAD, CodeFrame("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"))
    (found,) = judge(seen("host", "a.example", 1.0, thread), seen("uncaught", "gaierror: x", 2.0, (LOAD, MAIN)))
    assert rehearsal.user_frame(found.stack) == MAIN
    (found,) = judge(seen("host", "a.example", 1.0, thread), ending=DONE)
    assert rehearsal.user_frame(found.stack) == LOAD


def test_a_licence_server_that_a_library_asked_for_is_what_stopped_the_job():
    """MOSEK's Python package, whose FlexLM client is native: the name server saw the host, Python the exception."""
    found = judge(
        Observation("process", "6 python3", 0.0, (), {"pid": "6"}, "n1-6"),
        seen("host", "flex.example", 1.0, (), "node1.network", licence="MOSEKLM_LICENSE_FILE", pid="6"),
        seen("uncaught", "Error: cannot connect to the license server.", 2.0, (LOAD, MAIN), "n1-6"),
    )
    assert brief(found) == [("rehearse.network", ERROR, "flex.example", True)]
    assert "licence server (MOSEKLM_LICENSE_FILE)" in found[0].finding.message
    assert rehearsal.user_frame(found[0].stack) == MAIN


def test_a_job_that_may_still_wait_for_its_data_does_not_pass():
    """TensorFlow Datasets tries again for longer than a rehearsal takes."""
    asked = seen("host", "a.example", 1.0, library("tensorflow_datasets/core/load.py"), name="mnist")
    ending = JobEnding(rehearsal.LIMIT, None, None, 120.0)
    found, still = judge(asked, ending=ending)
    assert (still.finding.code, still.finding.severity) == ("rehearse.time", MISSING_FACTS)
    assert (found.finding.severity, found.stopped) == (ERROR, False)
    assert "it had made no step when the time was over" in found.finding.message
    _, found = judge(asked, ending=ending, used=Used(seconds_to_first_step=3.0))
    assert found.finding.severity == WARNING


@pytest.mark.parametrize(
    ("ending", "used", "last", "severity"),
    [
        (rehearsal.LIMIT, Used(), {"still": "yes"}, ERROR),
        (rehearsal.LIMIT, Used(seconds_to_first_step=3.0), {"still": "yes"}, WARNING),
        (rehearsal.LIMIT, Used(), {}, WARNING),
        (rehearsal.DONE, Used(), {"still": "yes"}, WARNING),
    ],
)
def test_a_program_that_hangs_on_its_server_is_refused(ending, used, last, severity):
    asked = seen("host", "server.example", 1.0, (MAIN,), port="4000")
    again = seen("host", "server.example", 110.0, (), "node1.network", **last)
    findings = judge(asked, again, ending=JobEnding(ending, None, None, 120.0), used=used)
    (found,) = [item for item in findings if item.finding.code != "rehearse.time"]
    assert (found.finding.code, found.finding.severity) == ("rehearse.network", severity)
    assert ("it still asked for that" in found.finding.message) == (severity == ERROR)


def test_a_path_with_dots_in_the_error_is_the_one_that_observers_saw():
    found = judge(
        seen("write", "/deployer/data/MNIST", 1.0),
        seen("write", "/deployer/data/MNIST", 1.1, (), "node1.network"),
        seen("uncaught", "OSError: [Errno 30] Read-only file system: '../data/MNIST'", 2.0, (LOAD, MAIN)),
    )
    assert brief(found) == [("rehearse.readonly", ERROR, "/deployer/data/MNIST", True)]


def test_a_path_of_an_observation_is_not_changed():
    # /scratch can be a link: only who looked knows what is above it.
    found = judge(seen("write", "/scratch/../x", 1.0, (), "node1.network"), ending=DONE)
    assert brief(found) == [("rehearse.readonly", WARNING, "/scratch/../x", False)]


def test_mirrors_are_one_finding():
    found = judge(
        seen("host", "yann.example", 1.0, TORCHVISION, **{"class": "MNIST"}),
        seen("host", "mirror.example", 2.0, TORCHVISION, **{"class": "MNIST"}),
        seen("uncaught", "RuntimeError: Error downloading x.gz", 3.0, TORCHVISION[1:]),
    )
    assert brief(found) == [("rehearse.network", ERROR, "mirror.example", True)]
    assert found[0].finding.message == "asked for torchvision: MNIST (also at yann.example)"


def test_a_library_that_finds_no_files_gets_the_same_remedy():
    end = "RuntimeError: Dataset not found. You can use download=True to download it"
    (found,) = judge(seen("uncaught", end, 2.0, TORCHVISION[1:], **{"class": "FashionMNIST"}))
    assert brief([found]) == [("rehearse.missing", ERROR, "train.py", True)]
    assert "`fetch:` in the definition" in found.finding.remedy


def test_a_program_that_wants_a_terminal():
    (found,) = judge(seen("missing", "/dev/tty", 1.0, (), program="dialog"), ending=DONE)
    assert found.finding.message == "it looked for a terminal, which does not exist"


def test_caches_that_programs_renew_are_not_reported():
    font = seen("write", "/var/cache/fontconfig/4c.cache-8", 1.0, (), program="python3")
    assert judge(font, seen("write", "/opt/x/__pycache__"), ending=DONE) == ()
    assert brief(
        judge(seen("write", "/var/cache/x"), seen("uncaught", "PermissionError: '/var/cache/x'", 2.0, (MAIN,)))
    )


def test_a_relative_path_of_the_exception_is_what_another_observer_saw():
    end = "FileNotFoundError: [Errno 2] No such file or directory: 'results/x.png'"
    library_of_torch = seen("library", "/usr/lib/libtorch_global_deps.so", 1.0)
    native = seen("missing", "/deployer/job/here/results/x.png", 2.0, (), process="n1.network", program="python3")
    found = judge(library_of_torch, native, seen("uncaught", end, 3.0, (LOAD, MAIN)))
    assert brief(found)[0] == ("rehearse.missing", ERROR, "/deployer/job/here/results/x.png", True)
    alone = judge(library_of_torch, seen("uncaught", end, 3.0, (LOAD, MAIN)))
    assert brief(alone) == [("rehearse.missing", ERROR, "results/x.png", True)]


def test_ranks_that_want_different_files_have_a_finding_each():
    begun = [Observation("process", "1", 0.0, (), {}, process) for process in ("n1-1", "n2-1")]
    asked = []
    for rank, process in enumerate(("n1-1", "n2-1")):
        url = "https://storage.example/mnist-%d.npz" % rank
        about = {"origin": url}
        asked.append(Observation("url", url, 1.0 + rank, KERAS, about, process))
        asked.append(Observation("host", "storage.example", 1.1 + rank, KERAS, about, process))
    found = judge(*begun, *asked, ending=DONE)
    assert [item.finding.message for item in found] == ["asked for keras: mnist-0.npz", "asked for keras: mnist-1.npz"]


def test_two_observers_of_one_missing_file_are_one_finding():
    found = judge(
        seen("missing", "/data/x", 1.0, (OPEN, MAIN)),
        seen("missing", "/data/x", 1.0, (), process="n1.network", program="x"),
        ending=DONE,
    )
    assert brief(found) == [("rehearse.missing", NOTE, "/data/x", False)]


@pytest.mark.parametrize(
    "path", ["keras/utils.py", "nltk/x.py", "torch/hub.py", "huggingface_hub/x.py", "sklearn/datasets/x.py", "own.py"]
)
def test_no_text_of_the_payload_becomes_a_command(path):
    keys = ("fname", "repo_id", "repo_or_dir", "name", "info_or_id", "origin", "url")
    for name in ("x; rm -rf ~", "../../x", "$(x)", "`x`", "x\ny", "a'b", "x" * 400, "https://h.example/$(x)"):
        for key in keys:
            (found,) = judge(seen("host", "h.example", 1.0, library(path), **{key: name}), ending=DONE)
            assert not [line for line in (*found.prepare, *found.definition) if name in line or "\n" in line]


RECORD = Rehearsal(
    bundle="tiny:1",
    image="sha256:0",
    job="train",
    site="lab",
    date=1,
    deployer="0.1",
    nodes=2,
    ranks=4,
    watched=(rehearsal.PYTHON, rehearsal.NETWORK, rehearsal.FILES),
    ending=FAILED,
    used=Used(1.5, 3),
    findings=judge(seen("host", "a.example"), seen("uncaught", "gaierror: x", 2.0, (LOAD, MAIN))),
    command=("python3", "train.py"),
    requested=("a.example",),
)


def test_a_record_is_read_as_it_was_written():
    assert rehearsal.read(json_records.dumps(RECORD.record()), "it") == RECORD
    assert (RECORD.checked.verdict, RECORD.exit_code) == ("REFUSE", 3)
    assert RECORD._replace(accepted=("rehearse.network",)).exit_code == 0


@pytest.mark.parametrize(
    "change",
    [{"used": {"peak_memory": "x"}}, {"ending": {}}, {"findings": [{}]}, {"nodes": -1}, {"date": 10**18}],
)
def test_a_damaged_record_is_an_error(change):
    with pytest.raises(UsageError):
        rehearsal.read(json_records.dumps(dict(RECORD.record(), **change)), "it")


FINDING = RECORD.record()["findings"][0]


@pytest.mark.parametrize(
    "stack", [5, None, "x", [5], [["f", 1]], [["f", "x", "g"]], [[1, 1, "g"]], [["f", True, "g"]], [["f", -1, "g"]]]
)
def test_a_hostile_stack_is_an_error(stack):
    record = dict(RECORD.record(), findings=[dict(FINDING, stack=stack)])
    with pytest.raises(UsageError, match="'stack' is not a list"):
        rehearsal.read(json_records.dumps(record), "it")


def test_temporary_files_that_may_not_fit_into_memory_are_a_warning():
    (found,) = judge(ending=DONE, used=Used(node_memory=2500), bounds=Bounds(2000))
    assert (found.finding.code, found.finding.severity) == ("rehearse.memory", WARNING)
    assert "a node needed 2500 MiB" in found.finding.message
    killed = judge(ending=JobEnding(rehearsal.MEMORY, 137), used=Used(node_memory=2500), bounds=Bounds(2000))
    assert [item.finding.severity for item in killed] == [ERROR]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN"])
def test_a_hostile_number_is_an_error(number):
    data = json_records.dumps(RECORD.record())
    for old, new in (
        (b',3,"<module>"]', b',%s,"<module>"]'),
        (b'"seconds":3.0', b'"seconds":%s'),
        (b'"date":1', b'"date":%s'),
    ):
        assert old in data
        with pytest.raises(UsageError):
            rehearsal.read(data.replace(old, new % number.encode()), "it")


def test_a_date_that_no_calendar_has_is_an_error():
    with pytest.raises(UsageError, match="'date' is not a time before the year 3000"):
        rehearsal.read(json_records.dumps(dict(RECORD.record(), date=10**18)), "it")


def test_the_report_has_first_what_stopped_the_job():
    shown = RECORD.lines()
    assert shown[0] == "tiny:1, job train for lab: it failed after 3.0 s"
    assert shown[2:5] == [
        "What stopped the job:",
        "error rehearse.network: a.example: asked for lib: a.example",
        "  at: /deployer/app/train.py:3 in <module>",
    ]
    assert "    /usr/lib/python3.11/urllib/request.py:216 in urlopen" in shown
    assert "used: first step after 1.5 s, peak memory per rank 3 MiB" in shown
    assert shown[-1] == "verdict: REFUSE"
    clean = RECORD._replace(findings=(), ending=DONE, requested=())
    assert "It reached for nothing that the site lacks." in clean.lines()


@pytest.mark.parametrize("how", [rehearsal.DONE, rehearsal.LIMIT])
@pytest.mark.parametrize(
    "watched",
    [
        watched
        for count in range(4)
        for watched in itertools.combinations((rehearsal.PYTHON, rehearsal.NETWORK, rehearsal.FILES), count)
    ],
)
def test_run_means_watched_to_the_end(watched, how):
    """Whoever makes the record, and whatever findings it has."""
    made = RECORD._replace(watched=watched, ending=JobEnding(how, 0, None, 120.0), findings=())
    kernel = {rehearsal.NETWORK, rehearsal.FILES} <= set(watched)
    assert made.checked.verdict == ("RUN" if kernel and how == rehearsal.DONE else "UNKNOWN")
    assert ("the kernel's account of a node is missing" in made.lines()[-1]) is not kernel
    assert ("it still ran when the rehearsal's time was over, after 120 s" in made.lines()[-1]) == (how != "done")


def test_the_word_of_the_verdict_has_the_reason_once():
    told = rehearsal.unseen(rehearsal.NOT_WHOLE % "node1")
    made = RECORD._replace(watched=(), ending=DONE, findings=(told,))
    assert made.lines()[-1] == "verdict: UNKNOWN: " + rehearsal.NOT_WHOLE % "node1"
    assert made._replace(accepted=("rehearse.blind",)).lines()[-1] == "verdict: WARN"


@pytest.mark.parametrize(
    ("how", "seconds", "expected"),
    [
        (rehearsal.DONE, 19.0, []),
        (rehearsal.DONE, 40.0, [WARNING]),
        (rehearsal.LIMIT, 40.0, [MISSING_FACTS, WARNING]),
        (rehearsal.MEMORY, 40.0, []),
    ],
)
def test_the_time_of_the_job_is_compared_with_its_limit(how, seconds, expected):
    found = judge(ending=JobEnding(how, None, None, seconds), bounds=Bounds(seconds=20))
    assert [item.finding.severity for item in found if item.finding.code == "rehearse.time"] == expected


def test_what_is_shown_has_no_effect_on_a_terminal():
    (found,) = judge(seen("write", "/opt/\x1b[31m\nx", 1.0, (CodeFrame("/a\x1b.py", 1, "f"),)), ending=DONE)
    assert all(line.isprintable() for line in found.lines(stack=True))
