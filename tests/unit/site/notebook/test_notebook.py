"""A notebook's job and an interactive one, with a fake Slurm on PATH."""

import json
import os
import sys
from pathlib import Path

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import Refused
from deployer.site.jobs import result
from deployer.site.notebook import notebook
from deployer.site.run.prepare.request import RunRequest
from deployer.system import process
from tests import running as made

REQUEST = RunRequest("hello", time="00:20:00")
TOKEN = "5" * 48


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("ch-run", "squeue", "python3"):
        made.program(folder, name, "exit 0")
    return folder


@pytest.fixture
def store(tmp_path, programs):
    return made.store(tmp_path / "root")


def with_jupyter(store, *names):
    for name in names:
        program = Path(store.images, "aaaa", "rootfs", "usr", "bin", name)
        program.write_bytes(b"\x7fELF")
        program.chmod(0o755)


def test_an_image_without_jupyter_is_refused_before_there_is_a_job(store):
    with pytest.raises(Refused, match="hello:1 has no Jupyter") as caught:
        notebook.hold(store, REQUEST, 60, print)
    assert "pip install jupyterlab" in caught.value.hint
    assert not os.path.exists(store.jobs)


def test_the_laptop_is_told_where_it_listens_once_and_the_job_is_cancelled(store, programs, tmp_path, capsys):
    """The fake job runs until its file has been read."""
    with_jupyter(store, "jupyter-server", "jupyter-lab")
    record = json.dumps({"schema": "deployer.result", "format": 1, "min_reader": 1, "findings": [], "exit_code": 0})
    text = f"""d=$(dirname "$2"); echo "$d" >{tmp_path}/folder
ls -ld "$d/notebook" >{tmp_path}/mode; cat "$d/notebook/request.json" >{tmp_path}/request
printf '10.1.0.5 4711 lab {TOKEN}' >"$d/notebook/server"; echo '{record}' >"$d/result.json"; echo 77
"""
    made.program(programs, "sbatch", text)
    running = f'[ ! -e "$(cat {tmp_path}/folder)/notebook/server" ] || echo "77|RUNNING|0:01|cn1|None"'
    made.program(programs, "squeue", running)
    told = []
    notebook.hold(store, REQUEST, 60, told.append)
    folder = (tmp_path / "folder").read_text().strip()
    assert capsys.readouterr().out == f"deployer-answer:10.1.0.5 4711 lab {TOKEN}\n"
    assert told[0] == "job " + os.path.basename(folder)
    assert (tmp_path / "mode").read_text().startswith("drwx------")
    wanted = json.loads((tmp_path / "request").read_text())
    assert (wanted["program"], wanted["idle"]) == ("jupyter-lab", 60)
    launch = result.launch(folder)
    assert launch.command == ["/usr/bin/python3", "-I", "/deployer/deployer.pyz", "jupyter"]
    assert (launch.nodes, launch.ranks_per_node, launch.threads, launch.time) == (1, 1, 4, "00:20:00")
    for base, _, names in os.walk(folder):
        for name in names:
            assert TOKEN.encode() not in Path(base, name).read_bytes(), name


def test_the_job_ends_with_its_reader(store, programs, tmp_path, monkeypatch):
    with_jupyter(store, "jupyter-notebook")
    made.program(programs, "sbatch", "echo 77")
    made.program(programs, "squeue", 'echo "77|RUNNING|0:01|cn1|None"')
    made.program(programs, "scancel", f"echo $* >{tmp_path}/cancelled")
    monkeypatch.setattr("deployer.site.jobs.jobs._reader_is_gone", lambda _: True)
    with pytest.raises(BrokenPipeError):
        notebook.hold(store, REQUEST, 60, lambda _: None)
    assert "77" in (tmp_path / "cancelled").read_text()


class BecameError(BaseException):
    pass


@pytest.fixture
def became(monkeypatch):
    def replace(argv, env):
        raise BecameError(argv)

    monkeypatch.setattr(process, "replace", replace)


def test_a_shell_in_a_job_of_its_own(store, became, programs):
    words = [
        "shell",
        "--root",
        store.root,
        "hello",
        "--in-job",
        "--time",
        "20m",
        "--directive=--qos=test",
        "--env",
        "A=1",
    ]
    with pytest.raises(BecameError) as caught:
        main.main(words)
    argv = list(caught.value.args[0])
    at = argv.index("srun")
    assert argv[:2] == ["salloc", "--job-name=hello"]
    assert {"--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=4", "--time=00:20:00", "--qos=test"} <= {*argv[:at]}
    assert not [word for word in argv if word.startswith(("--output", "--no-requeue"))]
    assert argv[at : at + 5] == ["srun", "--pty", "--mpi=none", "--cpus-per-task=4", sys.executable]
    assert argv[at + 5 :] == [store.tool, *(word for word in words if word != "--in-job")]
    assert os.listdir(store.jobs) == []


def test_only_directives_of_the_head_are_requested(tmp_path, programs, became):
    """A variable of the image may have a line that looks like one."""
    image = made.IMAGE._replace(env=[*made.IMAGE.env, "EVIL=a\n#SBATCH --account=stolen"])
    with pytest.raises(BecameError) as caught:
        notebook.interactive(made.store(tmp_path / "root", image=image), REQUEST, ["true"])
    assert not [word for word in caught.value.args[0] if "stolen" in word]


def test_a_shell_in_a_job_needs_slurm(tmp_path, programs, became):
    plan = made.PLAN._replace(
        scheduler="pbs", start_options=[made.START_OPTION._replace(launcher="mpiexec.hydra", pmi="")]
    )
    with pytest.raises(Refused, match="in-job: not with"):
        notebook.interactive(made.store(tmp_path / "root", plan=plan), REQUEST, ["true"])
