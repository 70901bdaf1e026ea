"""What a job starts is there, is not, or is not known; only what is certain is refused."""

import pytest

from deployer.contract.bundle import command
from deployer.contract.bundle.command import FILE, FOLDER, LINK, CommandSearch, PathInfo
from deployer.contract.bundle.job import Job

ELF, TEXT = PathInfo(FILE), PathInfo(FILE, line="")
PLAIN = PathInfo(FILE, executable=False)


def script(line):
    return PathInfo(FILE, line=line)


IMAGE = {
    "/usr": PathInfo(FOLDER),
    "/usr/bin": PathInfo(FOLDER),
    "/usr/sbin": PathInfo(FOLDER),
    "/bin": PathInfo(LINK, "usr/bin"),  # usr-merge
    "/usr/bin/python3": PathInfo(LINK, "python3.11"),
    "/usr/bin/python3.11": ELF,
    "/usr/bin/sh": PathInfo(LINK, "dash"),
    "/usr/bin/dash": ELF,
    "/usr/bin/env": ELF,
    "/usr/bin/java": PathInfo(LINK, "/etc/alternatives/java"),
    "/etc": PathInfo(FOLDER),
    "/etc/alternatives": PathInfo(FOLDER),
    "/etc/alternatives/java": PathInfo(LINK, "/usr/lib/gone"),
    "/usr/bin/loop": PathInfo(LINK, "loop"),
    "/usr/bin/plain": PLAIN,
    "/usr/sbin/plain": ELF,
    "/usr/bin/wrapped": script("/bin/sh"),
    "/usr/bin/circular": script("/usr/bin/circular"),
    "/opt": PathInfo(FOLDER),
    "/opt/tool": ELF,
    "/data": PathInfo(FOLDER),
    "/deployer": PathInfo(FOLDER),
    "/deployer/app": PathInfo(FOLDER),
    "/deployer/app/train.py": PLAIN,
    "/deployer/app/run.sh": script("/bin/sh -e"),
    "/deployer/app/bash.sh": script("/bin/bash"),
    "/deployer/app/env.py": script("/usr/bin/env python3"),
    "/deployer/app/python.py": script("/usr/bin/env python"),
    "/deployer/app/two.py": script("/usr/bin/env python3 -u"),
    "/deployer/app/split.py": script("/usr/bin/env -S PYTHONUNBUFFERED=1 python3 -u"),
    "/deployer/app/windows.sh": script("/bin/sh\r"),
    "/deployer/app/text": TEXT,
    "/tmp": PathInfo(FOLDER),
    "/tmp/tool": ELF,
}


def place(**changes):
    found = CommandSearch(
        IMAGE.get, "/usr/bin:/usr/sbin:/bin", ("horovodrun", "nvidia-smi"), "/", ("/opt/intel", "/lrz/sys/mpi")
    )
    return found._replace(**changes)


@pytest.mark.parametrize(
    ("words", "reason", "remedy"),
    [
        (["python", "/deployer/app/train.py"], "no python in its PATH, /usr/bin:/usr/sbin", "the image has python3"),
        (["python3.12"], "no python3.12", "the image has python3"),
        (["bash", "-c", "x"], "no bash", "the image has sh"),
        (["perl"], "no perl", "install it in the Dockerfile"),
        (["/entrypoint.sh"], "there is no /entrypoint.sh", "correct the job's command"),
        (["./train.py"], "there is no ./train.py, a path that starts from /,", "/deployer/app"),
        (["java"], "no java", "install it"),
        (["/usr/bin/loop"], "there is no /usr/bin/loop", "correct"),
        (["/opt/tool/x"], "there is no /opt/tool/x", "correct"),
        (["/deployer/app"], "/deployer/app is a folder", "name a program"),
        (["/deployer/app/train.py"], "train.py has no execute permission", "chmod +x"),
        (["/deployer/app/text"], "has no #! line", "begin it with"),
        (["/deployer/app/bash.sh"], "begins with #!/bin/bash, and there is no /bin/bash", "correct"),
        (["/deployer/app/python.py"], "the image has no python in its PATH", "the image has python3"),
        (["/deployer/app/two.py"], "no python3 -u in its PATH", "install"),
        (["/deployer/app/windows.sh"], "ends with a carriage return", "Unix line ends"),
        (["env", "X=1", "python", "x"], "no python in", "the image has python3"),
        (["python3", "/deployer/app/trian.py"], "there is no /deployer/app/trian.py", "files of app/"),
        (["python3", "-u", "-W", "ignore", "/deployer/app/gone.py"], "there is no /deployer/app", "files of app/"),
        (["python3", "-m", "mpi4py", "/deployer/app/gone.py"], "there is no /deployer/app/gone.py", "files of app/"),
        (["sh", "/deployer/app/gone.sh"], "there is no /deployer/app/gone.sh", "files of app/"),
        (["sh", "/deployer/app/windows.sh"], "ends with a carriage return", "Unix line ends"),
        (["env", "A=1", "dash", "-e", "/deployer/app/windows.sh"], "ends with a carriage return", "Unix line ends"),
        (["/tmp/tool"], "jobs do not see /tmp/tool of the image: /tmp is the node's own", "another folder"),
        (["python3", "/tmp/tool"], "jobs do not see /tmp/tool of the image", "another folder"),
    ],
)  # fmt: skip
def test_what_cannot_start(words, reason, remedy):
    found = command.missing(words, place())
    assert reason in found.reason
    assert remedy in found.remedy


@pytest.mark.parametrize(
    "words",
    [
        ["python3", "/deployer/app/train.py"],
        ["/bin/python3"],
        ["plain"],  # the first of this name in PATH may not be executed, so the next is taken
        ["wrapped"],
        ["opt/tool"],  # from the working folder
        ["horovodrun", "-np", "2"],  # of a wheel
        ["nvidia-smi"],  # of the host
        ["/deployer/app/run.sh"],
        ["/deployer/app/env.py"],
        ["/deployer/app/split.py"],
        ["sh", "-c", "python /x"],
        ["env", "X=1", "python3"],
        ["env", "-i", "python"],
        ["env", "PATH=/opt", "tool"],
        ["python3", "-c", "x"],
        ["python3", "-m", "train"],
        ["python3", "-m", "mpi4py", "-m", "train"],
        ["python3", "train.py"],  # relative: lint's
        ["python3", "--unheard-of", "/nope"],
        ["/tmp/own"],  # what a user has put there on the node
        ["python3", "/deployer/app/windows.sh"],  # Python reads such lines
        ["/data/tool"],  # what a user binds there
        ["/opt/intel/bin/x"],
        ["/lrz/sys/mpi/bin/x"],  # bound, and the image has none of the folders above
        ["/deployer/job/x"],
        ["python3", "/data/train.py"],
        ["/usr/bin/circular"],
        [],
    ],
)
def test_what_can_start_or_is_not_known(words):
    assert command.missing(words, place()) is None


def test_a_path_of_which_a_part_is_bound_is_not_known():
    assert command.missing(["gone"], place(path="/usr/bin:/data/bin")) is None
    assert command.missing(["gone"], place(path="/usr/bin:", workdir=None)) is None
    assert command.missing(["./gone"], place(workdir=None)) is None
    assert command.missing(["./gone"], place(workdir="/scratch")) is None
    assert command.missing(["gone"], place(look=lambda path: PathInfo(command.UNKNOWN))) is None


def test_a_path_from_the_job_s_own_folder_leads_nowhere():
    found = command.missing(["./train.py"], place(workdir=command.workdir(None, "/")))
    assert "a path that starts from /deployer/job" in found.reason
    assert command.missing(["./train.py"], place(workdir=command.workdir("/scratch/me", "/"))) is None
    assert command.missing(["./tool"], place(workdir=command.workdir(None, "/opt"))) is None


def test_the_first_line():
    assert command.first_line(b"#!/bin/sh -e\nx") == "/bin/sh -e"
    assert command.first_line(b"\x7fELF") is None
    assert command.first_line(b"echo\n") is None
    assert command.first_line(b"echo\n", own=True) == ""
    assert command.first_line(b"\x7fELF\0", own=True) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/deployer/app/in", "there is no /deployer/app/in, which is the job's stdin"),
        ("/deployer/app", "stdin of the job, /deployer/app, is a folder"),
        ("/usr/bin/java", "there is no /usr/bin/java"),
        ("/deployer/job/in", "the folder of a new job is empty"),
    ],
)
def test_standard_input_that_is_not_there(path, reason):
    found = command.missing_input(path, place())
    assert reason in found.reason


def test_standard_input_that_is_there_or_not_known():
    for path in ("/deployer/app/train.py", "/usr/bin/sh", "/data/gone", "/dev/null"):
        assert command.missing_input(path, place()) is None


def test_standard_input_is_opened_by_python_or_a_shell():
    small = {name: IMAGE[name] for name in ("/opt", "/opt/tool", "/usr", "/usr/bin", "/bin")}
    found = command.missing_input("/opt/tool", place(look=small.get))
    assert "neither Python nor /bin/sh" in found.reason
    for more in ({"/usr/bin/sh": ELF}, {"/usr/bin/python3": ELF}):
        assert command.missing_input("/opt/tool", place(look={**small, **more}.get)) is None


@pytest.mark.parametrize(
    ("launch", "words", "reason"),
    [
        ("torchrun", ["/opt/tool"], None),
        ("torchrun", ["/opt/gone"], "/opt/gone"),
        ("torchrun", ["python3", "/deployer/app/gone.py"], "there is no /deployer/app/gone.py"),
    ],
)
def test_what_torchrun_starts_and_its_python_are_searched(launch, words, reason):
    job = Job("train", words, 1, 1, 1, "01:00:00", launch=launch)
    found = command.missing_of(job, place())
    assert found is None if reason is None else reason in found.reason
    without = {path: seen for path, seen in IMAGE.items() if "python" not in path}
    assert command.missing_of(job, place(look=without.get)) is not None
    assert command.missing_of(job._replace(command=["/opt/tool"], launch="ranks"), place(look=without.get)) is None
