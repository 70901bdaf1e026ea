"""Jobs seen from the laptop and from a user's own allocation, and what goes wrong while they run.

Each fault ends with one clear line and the documented exit code. Those that have to wait for Slurm's own patience
(a node that no longer answers) are marked slow: ``scripts/test --all``.
"""

import fnmatch
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deployer.site.rank import rendezvous
from tests.integration.conftest import (
    FILES,
    ROOT,
    SENSITIVE,
    WORKSPACE,
    Cli,
    Site,
    image_folder,
    nothing_left,
    plan_record,
    stranger,
)
from tests.lab import Lab
from tests.lab.disks import disk

Fault = Callable[..., None]

PYTHON = "$(ls /opt/python/3.6/bin/python3.6 2>/dev/null || echo python3)"
TOOL = f"{PYTHON} {WORKSPACE}/deployer.pyz"
#: A stand-in for CUDA's driver library.
CUDA_C = """
int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *n) { *n = %DEVICES%; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "stand-in error"; return 0; }
"""
#: As rank 0, fills a disk to its last block and ends as it is told to; large writes alone leave some to small ones.
FILL = """
import os, sys
if os.environ.get("SLURM_PROCID", "0") == "0":
    with open(sys.argv[1], "wb", 0) as stream:
        for size in (1 << 20, 512):
            try:
                while stream.write(b"x" * size):
                    os.fsync(stream)
            except OSError:
                pass
    sys.exit(int(sys.argv[2]))
"""
#: A payload that tells when it has begun, and then trains for as long as it may.
ENDLESS = ("python3", "-u", "-c", "'import time; print(\"begun\"); time.sleep(600)'")

#: What a rank sees before MPI starts.
SURROUNDINGS = (
    'import json, os; home = os.environ["HOME"]; '
    'seen = {"names": sorted(os.environ), "home": home, "writable": os.access(home, os.W_OK), "folder": os.getcwd()}; '
    "from mpi4py import MPI; "
    'MPI.COMM_WORLD.rank == 0 and json.dump(seen, open(os.environ["DEPLOYER_RESULT"], "w"))'
)


@pytest.fixture(scope="module")
def anything(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name of hello-mpi's image as a bundle without a job of its own: it runs what it is given."""
    path = tmp_path_factory.mktemp("anything") / "anything.tar"
    image = ["--image", "deployer/hello-mpi:1.0.0", "--name", "anything", "--version", "1"]
    site.cli("pack", *image, "--site", "lab", "-o", path)
    site.cli("push", path, "lab", "--ssh-config", site.lab.ssh_config)
    yield "anything"
    site.cli("remove", *site.options, "anything", "--force")


def until(found: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    """Return what ``found`` returns, when it is something; a machine with other work needs its time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.3)
    raise AssertionError(f"{what}: not within {seconds:g} s")


def record(said: str) -> dict[str, Any]:
    """Return the JSON object that a command printed before what it told on stderr."""
    found: dict[str, Any] = json.JSONDecoder().raw_decode(said)[0]
    return found


def begun(site: Site, image: str, *options: str) -> dict[str, Any]:
    """Submit a job that trains for ever, wait until it has begun, and return its status."""
    said = record(site.tool("run", image, "--json", *options, "--", *ENDLESS))
    until(lambda: "begun" in site.alice(f"cat {said['folder']}/output.log 2>/dev/null; true"), "the payload's start")
    return said


def start(site: Site, *words: object) -> "subprocess.Popen[str]":
    """Start the laptop's command line, as a shell does in a process group of its own, and return at once."""
    # Tests that run in the background ignore Ctrl-C, and so would what they start.
    argv = ["env", "--default-signal=INT", str(ROOT / ".venv" / "bin" / "deployer"), *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, cwd=ROOT, env=site.cli.environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


# --- watching, and a user's own allocation ---


def test_a_job_is_watched_and_ended_from_the_laptop(site: Site, anything: str) -> None:
    job = begun(site, anything)
    status = json.loads(site.cli("status", *site.options, "--json").stdout)
    assert (status["job_id"], status["state"], status["active"]) == (job["job_id"], "RUNNING", True)
    far = "pgrep -u alice -f '^[^ ]*python[0-9.]* .*deployer.pyz logs'"  # not the shell before it
    with (
        start(site, "logs", *site.options, "-f") as left,
        start(site, "logs", *site.options, "-f", job["job"]) as stays,
    ):
        assert left.stdout is not None
        assert left.stdout.readline() == "begun\n"
        until(lambda: len(site.lab.sh("login1", "alice", far).stdout.split()) >= 2, "both follow")
        left.kill()  # a laptop that goes to sleep: nothing of it may stay on the login node
        until(lambda: len(site.lab.sh("login1", "alice", far).stdout.split()) < 2, "the far end's end")
        assert job["job_id"] in site.cli("cancel", *site.options, job["job"]).stdout
        out, err = stays.communicate(timeout=120)
    assert (stays.returncode, out.splitlines()[0]) == (0, "begun"), err
    status = json.loads(site.cli("status", *site.options, job["job_id"], "--json").stdout)
    assert (status["state"], status["active"]) == ("CANCELLED", False)
    assert "had already ended" in site.cli("cancel", *site.options, job["job"]).stdout
    until(lambda: not site.lab.sh("cn1", "root", "pgrep -u alice").stdout, "the end of all processes")
    assert {finding["code"] for finding in site.result()["findings"]} == {"job.stopped"}


def test_two_active_jobs_are_listed_and_cancelled_by_name_and_their_folders_collected(
    site: Site, anything: str
) -> None:
    """The second waits: the first has the only two nodes of the lab."""
    first, second = begun(site, anything, "--nodes", "2"), record(site.tool("run", anything, "--json", "--", "true"))
    lines = site.cli("jobs", *site.options).stdout.splitlines()
    assert lines[0].split() == ["NUMBER", "STATE", "CREATED", "NODES", "VERSION", "JOB"]
    assert [line.split()[:2] for line in lines[1:3]] == [[second["job_id"], "PENDING"], [first["job_id"], "RUNNING"]]
    refused = site.cli("cancel", *site.options, code=2).stderr
    active = f"2 jobs are active: {second['job']} ({second['job_id']}), {first['job']} ({first['job_id']})"
    assert active in refused
    by_hand = record(site.tool("run", anything, "--json", "--dry-run", "--", "true"))
    number = site.alice(f"sbatch --parsable {by_hand['script']}").strip()
    said = site.cli("gc", *site.options, "--jobs", "--yes", "--older-than", "0d", "--dry-run").stdout
    assert f"kept {first['folder']}: the job is active: RUNNING" in said
    assert f"kept {by_hand['folder']}: its script was submitted by hand, and waits or runs" in said
    site.alice(f"scancel {number}")
    site.cli("cancel", *site.options, second["job"])
    until(lambda: "had already ended" not in site.cli("cancel", *site.options).stdout, "the first one's end")
    until(lambda: not record(site.tool("status", first["job"], "--json"))["active"], "the first one's end")
    said = site.cli("gc", *site.options, "--jobs", "--older-than", "0d").stdout
    assert f"removed {by_hand['folder']}: " in said
    assert f"kept {first['folder']}: contains result.json; --yes removes it" in said
    for each in (first, second):
        site.alice(f"rm -rf {each['folder']}")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_ctrl_c_on_the_laptop_ends_the_wait_and_not_the_job(site: Site, anything: str, more: tuple[str, ...]) -> None:
    words = ("run", *site.options, anything, "--wait", *more, "--", "python3", "-c", "import time; time.sleep(600)")
    before = site.alice("squeue -h -o %i").split()
    with start(site, *words) as run:
        number = until(lambda: set(site.alice("squeue -h -o %i").split()) - set(before), "the job").pop()
        until(lambda: "RUNNING" in site.alice(f"squeue -h -j {number} -o %T"), "its start")
        os.killpg(run.pid, signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    status = json.loads(site.cli("status", *site.options, number, "--json").stdout)
    assert status["active"]
    cancel = ["deployer", "cancel", *site.options, status["job"]]
    told = f"deployer: interrupted: job {status['job']} ({number}) continues on the site\nhint: to end it: "
    assert told + shlex.join(cancel) in err
    assert "cancelled" in site.cli(*cancel[1:]).stdout
    until(lambda: not record(site.tool("status", number, "--json"))["active"], "its end")


def test_a_wait_from_the_laptop_ends_with_the_payloads_own_result(site: Site) -> None:
    out = site.cli("run", *site.options, "hello-mpi", "--nodes", "2", "--wait").stdout.splitlines()
    folder = out[0].split(": ")[1]
    name, number = out[0].split()[1], out[0].split()[4].rstrip(":")
    assert re.fullmatch(rf"job {name} \({number}\): COMPLETED, exit 0, \d+ s", out[1])
    assert out[2:4] == [f"log: {folder}/output.log", f"result: {folder}/result.json"]
    assert "payload world_size: 2" in out


def test_an_older_image_of_the_same_version_runs(site: Site, anything: str) -> None:
    """What came first is the older one; both are version 1."""
    images = record(site.tool("list", "--json"))["images"]
    (digest,) = [each["digest"].split(":")[1] for each in images if each["name"] == anything]
    older = image_folder(site, anything)
    newer = older.with_name(("0" if digest[0] != "0" else "1") + older.name[1:])
    fresh = f"sha256:{newer.name}{digest[32:]}"
    site.alice(f"cp -r {WORKSPACE}/images/{older.name} {WORKSPACE}/images/{newer.name}")
    receipt = json.loads((newer / "receipt.json").read_text())
    (newer / "receipt.json").write_text(json.dumps({**receipt, "digest": fresh, "installed": receipt["installed"] + 9}))
    try:
        marked = site.cli("list", *site.options).stdout.splitlines()
        assert [line[0] for line in marked if line.endswith(f" {anything}:1")] == ["*", " "]
        job = record(site.cli("run", *site.options, f"{anything}@{digest[:12]}", "--json", "--", "true").stdout)
        launch = json.loads(site.alice(f"cat {job['folder']}/job.json"))
        assert launch["digest"] == f"sha256:{digest}"
        site.cli("cancel", *site.options, job["job"])
        assert "/deployer/app" in site.tool(
            "exec", f"{anything}@{digest[:7]}", "--", "sh", "-c", "'ls -d /deployer/app'"
        )
    finally:
        site.cli("remove", *site.options, f"{anything}@{newer.name[:9]}", "--force")
    assert older.exists()
    assert not newer.exists()


def test_each_command_from_the_laptop_is_one_connection(site: Site, counted: tuple[Path, Path]) -> None:
    config, log = counted
    options = ["--site", "lab", "--ssh-config", str(config)]
    said = site.cli("run", *options, "hello-mpi", "--nodes", "1", "--json").stdout
    job = record(said)["job"]
    for number, words in enumerate((["status", job], ["cancel", job], ["logs", job, "-f"]), 2):
        site.cli(words[0], *options, *words[1:])
        assert len(log.read_text()) == number


def test_a_script_submitted_by_hand_shows_the_ranks_what_the_plan_lists_and_nothing_else(
    site: Site, anything: str
) -> None:
    """The variables of the shell that submits it stay outside; HOME is there."""
    said = site.tool("run", anything, "--nodes", "2", "--dry-run", "--", "python3", "-c", f"'{SURROUNDINGS}'")
    names = set(re.findall(r"^    '?--set-env=(\w+)=", said, re.MULTILINE))
    (passed,) = re.findall(r"--unset-env=!\((.*)\)", said)
    script = said.split("not submitted; by hand: sbatch ")[1].strip()
    before = site.alice("squeue -h -o %i")
    number = site.alice(f"SECRET_TOKEN=1 sbatch --parsable {script}").strip()
    assert number not in before
    until(lambda: not site.alice(f"squeue -h -j {number} 2>/dev/null; true").strip(), "the job's end")
    result = json.loads(site.alice(f"cat {os.path.dirname(script)}/result.json"))
    assert (result["job_id"], result["world_size"], result["exit_code"], result["findings"]) == (number, 2, 0, [])
    seen = result["payload"]
    assert (seen["home"].startswith("/tmp/deployer-home-2001-"), seen["writable"]) == (True, True)
    assert seen["folder"] == "/deployer/job"
    assert "OMP_NUM_THREADS" in names & set(seen["names"])
    more = [name for name in seen["names"] if name not in names]
    assert "SLURM_JOB_ID" in more
    # `rank` sets the names of the rendezvous and the log of NCCL; ch-run says by the last one that it runs.
    known = [*passed.split("|"), *rendezvous.NAMES, "NCCL_DEBUG*", "CH_RUNNING"]
    assert [name for name in more if not any(fnmatch.fnmatchcase(name, glob) for glob in known)] == []


def test_exec_and_shell_in_a_users_own_allocation(site: Site) -> None:
    script = f"""salloc -Q -N2 --ntasks-per-node=1 bash -c '
        srun --mpi=pmi2 {TOOL} exec hello-mpi --plan lab -- python3 -m mpi4py /deployer/app/hello.py </dev/null
        srun -N1 -n1 -c1 {TOOL} exec hello-mpi --plan lab -- env </dev/null | grep _THREADS
        OMP_NUM_THREADS=3 srun -N1 -n1 -c1 {TOOL} exec hello-mpi --plan lab -- env </dev/null | grep OMP
        echo "hostname; exit 3" | srun -N1 -n1 {TOOL} shell hello-mpi --plan lab; echo ended with $?'"""
    said = site.alice(script)
    assert "rank 0 of 2 on cn1: sum 1" in said
    assert "rank 1 of 2 on cn2: sum 1" in said
    assert "\ncn1\n" in said
    assert "ended with 3" in said
    assert {"OMP_NUM_THREADS=1", "TF_NUM_INTRAOP_THREADS=1", "OMP_NUM_THREADS=3"} <= set(said.split())


def test_what_another_user_leaves_in_tmp_does_not_run(site: Site, anything: str) -> None:
    with stranger(site.lab), nothing_left(site.lab, FILES, ["login1", "cn1", "cn2"]):
        said = site.alice(f"{TOOL} exec hello-mpi --plan lab -- sh -c '{SENSITIVE}' 2>&1")
        site.run("--nodes", "2", "--", "sh", "-c", SENSITIVE, bundle=anything)
        log = site.tool("logs")
        # The home that the user names, with the packages that are installed there.
        named = site.alice(
            "mkdir -m 700 -p own && echo echo MINE >own/.bashrc && "
            f"{TOOL} exec hello-mpi --plan lab --home own -- sh -c '. $HOME/.bashrc; echo $HOME' 2>&1; rm -rf own"
        )
    for text, ranks in ((said, 1), (log, 2)):
        assert text.count("after") == ranks
        assert "STOLEN" not in text
        assert len(re.findall(r"HOME=(/tmp/deployer-home-2001-[-.0-9a-f]+), TMPDIR=\1, 700,2001", text)) == ranks
    assert named.endswith("MINE\n/deployer/home\n")


# --- several starts of one script, and what is left of one ---


#: A payload that tells whose it is, and ends when it finds a file in the job's folder.
WAITS = ("sh", "-c", "'echo begun by $SLURM_JOB_ID; umask >umask; until [ -e go ]; do sleep 0.2; done'")


def started(site: Site, count: int, first: str) -> dict[str, dict[str, Any]]:
    """Wait until this many jobs whose ids begin so have begun, and return their status by id."""

    def look() -> dict[str, dict[str, Any]]:
        found = {job["job_id"]: job for job in record(site.tool("jobs", "--json"))["jobs"]}
        mine = {key: job for key, job in found.items() if key and key.split("_")[0] == first}
        logs = [site.alice(f"cat {job['log']} 2>/dev/null; true") for job in mine.values()]
        return mine if len(mine) == count and all("begun by" in log for log in logs) else {}

    found: dict[str, dict[str, Any]] = until(look, f"{count} starts of {first}")
    return found


#: A task of a sweep: its result has what it was given. All tasks but the first wait for a file.
TASK = (
    "import json, os, sys, time; own = json.load(open(os.environ['DEPLOYER_PARAMETERS'])); "
    "number = int(os.environ['DEPLOYER_TASK']); print('task', number, 'of', os.environ['DEPLOYER_TASKS'], flush=True); "
    "[time.sleep(0.2) for _ in iter(lambda: number == 0 or os.path.exists('/mnt/go'), True)]; "
    "open('ended', 'a').write('x'); "
    "json.dump({'lr': own['lr'], 'loss': number / 8, 'words': sys.argv[1:]}, open(os.environ['DEPLOYER_RESULT'], 'w'))"
)


@pytest.mark.timeout(600)
def test_a_sweep_that_is_cancelled_and_repeated_ends_each_task_once(site: Site, anything: str, tmp_path: Path) -> None:
    """Two tasks run at a time; the first one has ended when the group is cancelled, and is not repeated."""
    sweep = tmp_path / "grid.yaml"
    sweep.write_text("at_once: 2\ngrid:\n  lr: [0.1, 0.2, 0.3]\n  mode: ['a b', $x]\n")
    site.alice("mkdir sweep")
    words = (
        "--nodes",
        "1",
        "--bind",
        "/home/alice/sweep:/mnt",
        "--sweep",
        sweep,
        "--json",
        "--",
        "python3",
        "-c",
        TASK,
    )
    group = record(site.cli("run", *site.options, anything, *words).stdout)
    name = group["job"]

    def kinds() -> list[str]:
        tasks = record(site.tool("jobs", name, "--json"))["tasks"]
        return ["done" if task["exit_code"] == 0 else task["state"] for task in tasks]

    until(lambda: kinds().count("done") == 1, "the end of the first task")
    rows = site.cli("jobs", *site.options).stdout
    assert f"{name}: 1 done" in rows
    assert f"{name}.1" not in rows
    site.cli("cancel", *site.options, f"{name}.5")
    assert f"{name} ({group['job_id']}) cancelled" in site.cli("cancel", *site.options, name).stdout
    until(lambda: not record(site.tool("status", name, "--json"))["active"], "the end of all")
    assert (kinds()[0], kinds().count("done")) == ("done", 1)
    assert site.cli("status", *site.options, name, "--wait", code=1).stderr.count(f"retry {name}") == 1

    site.alice("touch sweep/go")
    again = record(site.cli("retry", *site.options, name, "--json").stdout)
    assert again["tasks"] == [1, 2, 3, 4, 5]
    assert (
        site.cli("status", *site.options, name, "--wait").stdout
        == f"job {name} ({again['job_id']}): COMPLETED, 6 done\n"
    )
    assert record(site.cli("retry", *site.options, name, "--json").stdout)["tasks"] == []
    target = tmp_path / "fetched"
    site.cli("result", *site.options, name, "-o", target)
    modes = ["a b", "$x"] * 3
    for number, (lr, mode) in enumerate(zip([0.1, 0.1, 0.2, 0.2, 0.3, 0.3], modes, strict=True)):
        result = json.loads((target / str(number) / "result.json").read_text())
        assert (result["job"], result["task"], result["exit_code"]) == (f"{name}.{number}", number, 0)
        assert result["parameters"] == {"lr": lr, "mode": mode}
        assert result["payload"] == {"lr": lr, "loss": number / 8, "words": [f"--lr={lr}", f"--mode={mode}"]}
        assert [rank["exit_code"] for rank in result["ranks"]] == [0]
        assert (target / str(number) / "ended").read_text() == "x"
        assert (target / str(number) / "output.log").read_text() == f"task {number} of 6\n"
    table = site.cli("report", target).stdout.splitlines()
    assert table[0].split() == ["task", "state", "exit_code", "seconds", "lr", "mode", "lr", "loss"]
    assert table[6].split()[:3] == ["5", "COMPLETED", "0"]
    assert record(site.tool("report", name, "--json"))["tasks"][2]["figures"] == {"lr": 0.2, "loss": 0.25}
    assert f"{name}.3" in site.cli("status", *site.options, f"{again['job_id']}_3").stdout


def test_a_script_that_is_submitted_again_or_as_an_array_keeps_its_starts_apart(
    site: Site, anything: str, tmp_path: Path
) -> None:
    """Each has its own folder, log, evidence and id, by which all commands find it; two tasks run at the same time."""
    first = record(site.tool("run", anything, "--nodes", "1", "--json", "--", *WAITS))
    started(site, 1, first["job_id"])
    script = f"{first['folder']}/job.sh"
    again = site.alice(f"sbatch --parsable {script}").strip()
    (second,) = started(site, 1, again).values()
    assert second["folder"] != first["folder"]
    assert f"({again}) cancelled" in site.cli("cancel", *site.options, again).stdout
    status = json.loads(site.cli("status", *site.options, first["job"], "--json").stdout)
    assert (status["job_id"], status["state"]) == (first["job_id"], "RUNNING")
    assert site.alice(f"cat {first['log']}") == f"begun by {first['job_id']}\n"
    site.alice(f"touch {first['folder']}/go")
    until(lambda: not record(site.tool("status", first["job"], "--json"))["active"], "the end of the first start")
    array = site.alice(f"sbatch --parsable --array=0-1 {script}").strip()
    tasks = started(site, 2, array)
    assert sorted(tasks) == [f"{array}_0", f"{array}_1"]
    folders = {first["folder"], second["folder"], *(task["folder"] for task in tasks.values())}
    assert len(folders) == 4
    for task in tasks.values():
        site.alice(f"touch {task['folder']}/go")
    for number, task in tasks.items():
        until(lambda job=task: not record(site.tool("status", job["job"], "--json"))["active"], "a task's end")
        target = tmp_path / number
        site.cli("result", *site.options, number, "-o", target)
        result = json.loads((target / "result.json").read_text())
        assert (result["job"], result["job_id"], result["exit_code"]) == (task["job"], number, 0)
        assert re.fullmatch(r"begun by \d+\n", (target / "output.log").read_text())
        assert site.cli("logs", *site.options, number).stdout == (target / "output.log").read_text()
    results = {site.alice(f"cat {folder}/result.json") for folder in folders}
    assert {json.loads(each)["exit_code"] for each in results} == {0, 143}
    assert site.alice(f"ls {first['folder']}").split() == [
        "go", "hosts", "job.json", "job.sh", "job_id", "output.log", "ranks", "result.json", "umask"
    ]  # fmt: skip


def test_files_of_a_job_have_the_modes_of_the_users_login_files_however_it_is_submitted(
    site: Site, anything: str
) -> None:
    """ssh runs commands without the login files; umask 077 in one of them counts all the same."""
    words = ["--nodes", "2", "--wait", "--", "sh", "-c"]
    command = "umask >umask.$SLURM_PROCID; test $SLURM_PROCID = 1 || cat umask.0"
    names = ". job.json job.sh output.log result.json hosts umask.0 umask.1"
    modes = {}
    for umask in ("077", "022"):
        site.alice(f"echo umask {umask} >>.bash_profile")
        try:
            site.cli("run", *site.options, anything, *words, command)
            from_laptop = site.alice(
                f"cd {WORKSPACE}/jobs && cd $(ls -t | head -n 1) && cat umask.* && stat -c %a {names}"
            )
            site.tool("run", anything, *words, shlex.quote(command))
            here = site.alice(f"cd {WORKSPACE}/jobs && cd $(ls -t | head -n 1) && cat umask.* && stat -c %a {names}")
        finally:
            site.alice("sed -i '/^umask/d' .bash_profile")
        assert from_laptop == here
        modes[umask] = here.split()
    assert modes["077"] == ["0077", "0077", "700", "644", "755", "600", "600", "700", "600", "600"]
    assert modes["022"] == ["0022", "0022", "755", "644", "755", "644", "644", "755", "644", "644"]


@pytest.mark.parametrize("staging", ["folder", "memory"])
@pytest.mark.parametrize("how", ["cancel", "kill", pytest.param("limit", marks=pytest.mark.slow)])
def test_the_homes_of_a_job_that_is_ended_go_on_all_its_nodes(
    site: Site, anything: str, how: str, staging: str
) -> None:
    """Within seconds after a request; after SIGKILL when the next job of this user comes to the node."""
    fill = (
        'import os, time; open(os.environ["HOME"] + "/x", "wb").write(bytes(16 << 20)); print("begun"); time.sleep(600)'
    )
    with nothing_left(site.lab, FILES):
        options = ["--nodes", "2", "--staging", staging, "--time", "00:01:00"]
        job = record(site.tool("run", anything, "--json", *options, "--", "python3", "-u", "-c", shlex.quote(fill)))
        log = f"cat {job['folder']}/output.log 2>/dev/null; true"
        until(lambda: site.alice(log).count("begun") == 2, "the payload's start")
        homes = "ls -d /tmp/deployer-home-2001-*"
        assert all(site.lab.sh(node, "root", homes).stdout for node in ("cn1", "cn2"))
        if how != "limit":
            site.alice(f"scancel {'-f -s KILL ' if how == 'kill' else ''}{job['job_id']}")
        until(lambda: not record(site.tool("status", job["job"], "--json"))["active"], "the job's end")
        if how == "kill":
            site.run("--nodes", "2", "--", "true", bundle=anything)


# --- what goes wrong ---


@contextmanager
def memory_limit(megabytes: int) -> Iterator[Path]:
    """Yield a control group of this machine in which processes get no more memory than that, and no swap."""
    version1 = Path("/sys/fs/cgroup/memory")
    group = (version1 if version1.is_dir() else version1.parent) / f"deployer-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if version1.is_dir() else "memory.max")).write_text(f"{megabytes}M")
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "the end of the group's processes")
        group.rmdir()


@pytest.mark.needs("memory-limits")
@pytest.mark.parametrize("killer", ["kernel", "user"])
def test_a_rank_that_is_killed_for_its_memory_and_one_that_is_not(site: Site, anything: str, killer: str) -> None:
    """The kernel kills a process of the payload, in the middle of a training on two nodes."""
    token = f"hungry-{os.getpid()}-{killer}"
    code = (
        f"import os, time  # {token}\nprint('begun')\nwhile not os.path.exists('/deployer/job/go'): time.sleep(0.2)\n"
        "if os.environ['SLURM_PROCID'] == '1': food = bytearray(300 << 20)\ntime.sleep(600)\n"
    )
    words = ("run", anything, "--json", "--nodes", "2", "--", "python3", "-u", "-c", f'"{code}"')
    job = record(site.tool(*words))
    log = f"cat {job['folder']}/output.log 2>/dev/null; true"
    until(lambda: site.alice(log).count("begun") == 2, "the payload's start")
    marks = (f"# {token}".encode(), b"python3\0-u\0-c\0")
    lines = {path.parent: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.is_dir()}
    payloads = [int(path.name) for path, line in lines.items() if marks[0] in line and line.startswith(marks[1])]
    assert len(payloads) == 2
    with memory_limit(100) as group:
        if killer == "kernel":
            for each in payloads:
                (group / "cgroup.procs").write_text(str(each))
            site.alice(f"touch {job['folder']}/go")
        else:
            os.kill(payloads[0], signal.SIGKILL)
        until(lambda: not record(site.tool("status", job["job"], "--json"))["active"], "the job's end")
    found = json.loads(site.alice(f"cat {job['folder']}/result.json"))["findings"]
    told = [(each["subject"], each["message"]) for each in found if each["code"] == "payload.out-of-memory"]
    if killer == "kernel":
        assert told == [("cn2", "the kernel killed 1 process on this node for lack of memory")]
        problem = record(site.tool("status", job["job"], "--json"))["problem"]
        assert problem == f"cn2: {told[0][1]} (payload.out-of-memory)"
    else:
        assert told == []
        assert "was ended by SIGKILL" in str(found)


def test_a_module_that_is_not_there(site: Site, plan: Callable[..., str]) -> None:
    name = plan(modules=["intel-mpi/1999"])
    said = site.tool("run", "hello-mpi", "--plan", name, "--nodes", "1", "--wait", code=1)
    assert "ended as FAILED: job: `module load intel-mpi/1999` failed on the node (job.module)" in said


def test_a_launcher_that_is_not_there(site: Site, plan: Callable[..., str]) -> None:
    option = plan_record(site, "lab")["start_options"][0]
    hydra = {"launcher": "mpiexec.hydra", "pmi": "", "program": "/opt/none/bin/mpiexec.hydra"}
    name = plan(start_options=[{**option, "name": "x", "runtime": "charliecloud", "staging": "folder", **hydra}])
    said = site.tool("run", "hello-mpi", "--plan", name, "--nodes", "1", "--wait", code=1)
    assert "the node has no /opt/none/bin/mpiexec.hydra, which starts the ranks (job.launcher)" in said


def test_a_library_that_one_node_lacks(site: Site) -> None:
    folder = "/opt/intel/mpi/2021.15/lib"
    site.lab.sh("cn2", "root", f"mount -t tmpfs none {folder}").check("cover the library")
    try:
        said = site.tool("run", "hello-mpi", "--plan", "lab", "--nodes", "2", "--wait", code=1)
    finally:
        site.lab.sh("cn2", "root", f"umount -l {folder}").check("uncover the library")
    assert f"ended as FAILED: cn2: the node has no {folder}/libmpi.so.12 (mpi.host-missing)" in said
    assert site.result()["exit_code"] == 3


@pytest.mark.parametrize(("devices", "code"), [(0, 1), pytest.param(2, 0, marks=pytest.mark.slow)])
def test_gpus_are_asked_for_in_the_container(site: Site, plan: Callable[..., str], devices: int, code: int) -> None:
    """The driver is a stand-in, compiled here; the image is one with CUDA by its folder alone."""
    library = site.lab.home / "alice" / "stand-in" / "libcuda.so.1"
    library.parent.mkdir(exist_ok=True)
    text = CUDA_C.replace("%DEVICES%", str(devices))
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=text, text=True, check=True)
    record = plan_record(site, "lab")
    driver = {"name": "lib/libcuda.so.1", "kind": "file", "source": "/home/alice/stand-in/libcuda.so.1"}
    folders = record["environment"]["LD_LIBRARY_PATH"].split(":")
    folders += [] if "/deployer/host/lib" in folders else ["/deployer/host/lib"]
    environment = {**record["environment"], "LD_LIBRARY_PATH": ":".join(folders)}
    name = plan(host=[{**driver, "why": "a stand-in", "spare": False}], environment=environment)
    cuda = image_folder(site) / "rootfs" / "usr" / "local" / "cuda-12.4"
    cuda.mkdir(parents=True)
    try:
        said = site.tool("run", "hello-mpi", "--plan", name, "--nodes", "1", "--wait", code=code)
    finally:
        cuda.rmdir()
    gpu = site.result()["ranks"][0]["gpu"]
    assert (gpu["cuda"], gpu["devices"]) == ("12.4", devices)
    if code:
        assert "the GPUs cannot be used in the container: CUDA sees no device" in said
        assert "(gpu.unusable)" in said
    else:
        assert (gpu["reason"], site.result()["findings"]) == (None, [])


def test_two_runs_at_once(site: Site) -> None:
    words = ("run", "hello-mpi", "--plan", "lab", "--nodes", "1", "--wait", "--json")
    with ThreadPoolExecutor() as pool:
        ended = [record(said) for said in pool.map(lambda _: site.tool(*words), range(2))]
    assert [each["exit_code"] for each in ended] == [0, 0]
    assert len({each["job_id"] for each in ended}) == len({each["folder"] for each in ended}) == 2


def test_a_full_disk_under_the_jobs(site: Site, fault: Fault) -> None:
    root = "$HOME/scratch/full"
    site.alice(
        f"mkdir -p {root} && ln -s {WORKSPACE}/images {WORKSPACE}/layers {root}/ && cp {WORKSPACE}/deployer.pyz {root}/"
    )
    fault("disk-full")
    try:
        said = site.tool("run", "hello-mpi", "--plan", "lab", "--root", root, code=6)
    finally:
        fault("disk-free")
        site.alice(f"rm -rf {root}")
    assert "No space left on device" in said
    assert "hint: " in said


@pytest.fixture
def shared_disk(site: Site) -> Iterator[str]:
    """Yield a root on a small disk that login node and nodes share, with the images of the usual one."""
    place = "/home/alice/shared"
    with disk(site.lab, ["login1", "cn1", "cn2"], place, 8):
        site.alice(f"ln -s {WORKSPACE}/images {WORKSPACE}/layers {place}/ && cp {WORKSPACE}/deployer.pyz {place}/")
        (site.lab.home / "alice" / "fill.py").write_text(FILL)
        site.alice(f"cat fill.py >{place}/fill.py")
        yield place
    site.alice(f"rmdir {place}")


@pytest.mark.needs("loop")
@pytest.mark.parametrize(("ending", "code"), [("0", 6), pytest.param("9", 9, marks=pytest.mark.slow)])
def test_a_shared_disk_that_fills_up_in_training(
    site: Site, anything: str, shared_disk: str, ending: str, code: int
) -> None:
    """It is full of the payload's own files; evidence and log are written to it as well."""
    words = ("--root", shared_disk, "--nodes", "2", "--wait", "--bind", f"{shared_disk}:/mnt")
    words += ("--", "python3", "/mnt/fill.py", "/deployer/job/made", ending)
    said = site.tool("run", anything, *words, code=1)
    assert (
        "ended as FAILED: job: the disk with the job's folder is full, so evidence and log may be incomplete: " in said
    )
    assert "No space left on device (job.space)" in said
    folder = site.alice(f"ls -d {shared_disk}/jobs/*").strip()
    result = json.loads(site.alice(f"cat {folder}/result.json"))
    assert result["exit_code"] == code
    assert result["findings"][0]["code"] == "job.space"
    assert site.alice(f"ls -A {folder} | grep -c -e spare -e part; true").strip() == "0"


@pytest.mark.slow
@pytest.mark.needs("loop")
def test_a_shared_disk_that_is_full_when_the_job_starts(site: Site, anything: str, shared_disk: str) -> None:
    said = record(site.tool("run", anything, "--root", shared_disk, "--dry-run", "--json", "--", "true"))
    site.alice(f"python3 {shared_disk}/fill.py {shared_disk}/made 0")
    site.alice(f"id=$(sbatch --parsable {said['script']}) && while squeue -h -j $id | grep -q .; do sleep 0.3; done")
    result = json.loads(site.alice(f"cat {said['folder']}/result.json"))
    assert (result["exit_code"], result["findings"][0]["code"]) == (6, "job.space")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", ["kill-node", "kill-slurmd", "link-down"])
def test_a_node_that_dies_in_training(site: Site, anything: str, fault: Fault, broken: str) -> None:
    job = begun(site, anything, "--nodes", "2")
    fault(broken, "cn2")
    state = until(
        lambda: (found := record(site.tool("status", job["job"], "--json")))["active"] is False and found,
        "Slurm's word",
        300,
    )
    assert (state["state"], "a node of it died or does not answer properly" in state["problem"]) == ("NODE_FAIL", True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_line_of_the_laptop_is_cut(site: Site, anything: str, fault: Fault) -> None:
    with start(
        site, "run", *site.options, anything, "--wait", "--", "python3", "-c", "import time; time.sleep(600)"
    ) as run:
        assert run.stdout is not None
        name = run.stdout.readline().split()[1]
        fault("link-down", "laptop")
        _, err = run.communicate(timeout=200)
    assert run.returncode == 5
    assert "deployer: error: the connection to login1 broke" in err
    assert "hint: the job continues: the same command again follows it, and `status anything-" in err
    fault("link-up", "laptop")
    assert json.loads(site.cli("status", *site.options, name, "--json").stdout)["active"]
    site.cli("cancel", *site.options, name)
    until(lambda: not record(site.tool("status", name, "--json"))["active"], "its end")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_munge_is_down(site: Site, fault: Fault) -> None:
    """Slurm's commands try for most of a minute."""
    fault("stop-munge", "login1")
    for words in (("run", "hello-mpi", "--plan", "lab"), ("doctor", "hello-mpi", "--plan", "lab")):
        said = site.tool(*words, code=5)
        assert "munge, by which Slurm knows you, does not answer here" in said
        assert "hint: try another login node" in said


@pytest.mark.slow
def test_an_image_that_goes_away_under_a_job(site: Site, anything: str) -> None:
    """The library that the training imports late is no longer there."""
    code = "import os, time\nprint('begun')\nwhile os.path.exists('/bin/sh'): time.sleep(0.2)\nimport wave\n"
    words = ("run", anything, "--json", "--", "python3", "-u", "-c", f'"{code}"')
    job = record(site.tool(*words))
    until(lambda: "begun" in site.alice(f"cat {job['folder']}/output.log 2>/dev/null; true"), "the payload's start")
    assert "uses anything:1" in site.tool("remove", anything, code=3)
    bundle = f"{WORKSPACE}/bundles/anything-1.tar"
    images = record(site.tool("list", "--json"))["images"]
    folder = next(each["folder"] for each in images if each["name"] == anything)
    site.alice(f"rm -rf $(dirname $(realpath {folder}/rootfs)) {folder}")
    try:
        ended = until(
            lambda: (found := record(site.tool("status", job["job"], "--json")))["active"] is False and found,
            "the end",
        )
        assert ended["state"] == "FAILED"
        assert ended["problem"].startswith("job: the image was removed while the job used it: ")
    finally:
        site.tool("install", bundle)


def two_cores(site: Site) -> None:
    """Tell all plans that a node has two cores."""
    for path in (site.lab.home / "alice" / "deployer" / "images").glob("*/plans/lab.json"):
        lab = json.loads(path.read_text())
        lab["node"]["cores"] = 2
        path.write_text(json.dumps(lab))


@pytest.fixture
def small(bundle: Path, built: Cli) -> Iterator[Site]:
    """Yield a lab of one node, with two cores where the machine has them, whose shared memory is as good as full."""
    lab = Lab(f"pytest-{os.getpid()}-small")
    lab.up(nodes=1)
    try:
        built("push", bundle, "lab", "--ssh-config", lab.ssh_config)
        lab.sh("cn1", "root", "mount -t tmpfs -o size=100k,mode=1777 none /dev/shm").check("fill the shared memory")
        yield Site(built, lab)
    finally:
        lab.down(purge=True)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a node of two cores")
def test_shared_memory_is_full(small: Site) -> None:
    two_cores(small)
    said = small.tool("run", "hello-mpi", "--plan", "lab", "--nodes", "1", "--ranks-per-node", "2", "--wait", code=1)
    assert "/dev/shm of its node had 102400 bytes free" in said
    assert "(limits.shm)" in said
    assert small.result()["exit_code"] == 3


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a node of two cores")
def test_shared_memory_fills_up_in_training(small: Site, tmp_path: Path) -> None:
    """Past the probe, when the payload's own MPI starts."""
    small.lab.sh("cn1", "root", "mount -o remount,size=64m /dev/shm").check("make room")
    image = ["--image", "deployer/hello-mpi:1.0.0", "--name", "anything", "--version", "1"]
    small.cli("pack", *image, "--site", "lab", "-o", tmp_path / "b.tar")
    small.cli("push", tmp_path / "b.tar", "lab", "--ssh-config", small.lab.ssh_config)
    two_cores(small)
    script = "'cat /dev/zero >/dev/shm/fill-$SLURM_PROCID; exec python3 -c \"from mpi4py import MPI\"'"
    words = ("--nodes", "1", "--ranks-per-node", "2", "--wait", "--", "sh", "-c", script)
    said = small.tool("run", "anything", *words, code=1)
    assert "/dev/shm of its node had 0 bytes free; the node's 2 ranks send messages to each other through it" in said
    assert "(limits.shm)" in said
