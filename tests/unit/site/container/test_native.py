"""Without a container: paths are undone by name, the host's environment stays, and nobody gets it without asking."""

import json
import os
import subprocess
import sys

import pytest

from deployer.cli.site.main import main
from deployer.contract.base import first_bytes, shell
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.rules import verdict
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.rules.hostfiles import DIRECTORY, FILE, LINK, HostFile
from deployer.contract.site import plan as plans
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import Bind
from deployer.site.container import container
from deployer.site.container.runtimes import RUNTIMES, native
from deployer.site.container.runtimes.interface import Container, Here
from deployer.site.jobs import result
from deployer.site.run import run
from deployer.site.run.prepare.request import RunRequest
from tests import forked
from tests import running as made

runtime = RUNTIMES["native"]
BINDS = [
    Bind("/opt/mpi", "/opt/mpi", "on the same path"),
    Bind("/i/app", "/deployer/app", "app"),
    Bind("/i/wheels", "/deployer/wheels", "wheels"),
    Bind("/lib64/libpsm2.so.2.1", "/deployer/host/lib/libpsm2.so.2", "one file"),
    Bind("/my data", "/data", "--bind"),
    Bind("/set-7", "/data/set", "--bind"),
]
START_OPTION = made.START_OPTION._replace(name="native-folder", runtime="native")
PLAN = made.PLAN._replace(start_options=[made.START_OPTION, START_OPTION])
REQUEST = RunRequest("hello")
ASKED = REQUEST._replace(runtime="native")


def box(binds=BINDS, **environment):
    return Container("/i/rootfs", binds, environment, ["PMI_*"], "/work")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store whose plan allows it, on a host with a Python of its own first in PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    os.symlink(sys.executable, str(programs / "python3"))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return made.store(tmp_path / "root", plan=PLAN)


def replan(store, plan):
    made.write(os.path.join(store.find("hello").folder, "plans", "lab.json"), plan.record())


def test_the_names_are_the_contract_s():
    assert set(RUNTIMES) == set(runtime_table.SUPPORTED)
    assert {name: RUNTIMES[name].program for name in RUNTIMES} == {
        name: runtime_table.RUNTIMES[name].program for name in RUNTIMES
    }
    assert [name for name in RUNTIMES if not RUNTIMES[name].contained] == [plans.NATIVE]


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("/deployer/app/train.py", "/i/app/train.py"),
        ("/deployer/app", "/i/app"),
        ("--data=/data/set/1", "--data=/set-7/1"),
        ("--data=/data/sets", "--data=/my data/sets"),
        ("a:/deployer/wheels/lib:/opt/mpi/lib", "a:/i/wheels/lib:/opt/mpi/lib"),
        ("open('/deployer/app/x').read()", "open('/i/app/x').read()"),
        ("cd /deployer/app && ls >/data/o", "cd /i/app && ls >/my data/o"),
        ('{"to": ["/deployer/app"]}', '{"to": ["/i/app"]}'),
        # Others' paths, in which it is but a part.
        ("/mnt/data/x", "/mnt/data/x"),
        ("https://host/data", "https://host/data"),
        ("../data $HOME/data ${X}/data */data ~/data", "../data $HOME/data ${X}/data */data ~/data"),
        ("/deployer/application", "/deployer/application"),
        ("/data.tar /data-1 /data_2", "/data.tar /data-1 /data_2"),
        ("/deployer/job", "/deployer/job"),
        ("", ""),
    ],
)
def test_a_container_s_path_is_undone_where_it_is_one(word, there):
    assert runtime.given(box(), [word]) == [there]
    assert runtime.given(box([]), [word]) == [word]


def test_the_argv_is_the_host_s_program_in_the_plan_s_environment():
    made = box(
        OMP_NUM_THREADS="2",
        DEPLOYER_RESULT="/data/set/r.json",
        LD_LIBRARY_PATH="/opt/mpi/lib:/deployer/host/lib",
        FI_PROVIDER_PATH="/deployer/host/lib/prov",
        PYTHONPATH="/deployer/wheels/lib",
    )
    assert runtime.argv(made, ["python3", "/deployer/app/a b.py"], ["never"]) == [
        "env",
        "DEPLOYER_RESULT=/set-7/r.json",
        "LD_LIBRARY_PATH=/opt/mpi/lib",
        "OMP_NUM_THREADS=2",
        "PYTHONPATH=/i/wheels/lib",
        "python3",
        "/i/app/a b.py",
    ]
    assert runtime.argv(box(), ["true"]) == ["env", "true"]
    assert runtime.join_options(8, "tag") == []
    assert runtime.veto(Here(None, [], "")) is None


def test_lists_are_put_before_the_host_s_own_by_script_and_exec_alike(tmp_path):
    made = box(
        PATH=native.inherited("/i/bin", "PATH"),
        LD_LIBRARY_PATH=native.inherited("/deployer/host/lib", "LD_LIBRARY_PATH"),
        PYTHONPATH=native.inherited("/deployer/wheels/lib", "PYTHONPATH"),
        ODD="it's $5",
    )
    host = {"PATH": "/usr/bin:/bin:/data/tools", "LD_LIBRARY_PATH": "/site/lib"}
    argv = shell.argv(runtime.argv(made, ["env"]), host)
    words = shell.code("{words}", words=runtime.argv(made, ["env"])).text
    seen = []
    for command in (argv, ["bash", "-c", "words=(" + words + ')\nexec "${words[@]}"']):
        lines = subprocess.check_output(command, env=host).decode().splitlines()
        found = dict(line.split("=", 1) for line in lines)
        seen.append({name: found[name] for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "ODD")})
    assert seen[0] == seen[1]
    assert seen[0] == {
        "PATH": "/i/bin:/usr/bin:/bin:/data/tools",  # the host's own part is not undone
        "LD_LIBRARY_PATH": "/site/lib",
        "PYTHONPATH": "/i/wheels/lib",
        "ODD": "it's $5",
    }


def test_nothing_of_the_image_is_used(store):
    image = store.find("hello")
    os.makedirs(os.path.join(image.folder, "wheels", "lib"))
    host = (
        HostFile("lib/libpsm2.so.2", FILE, "/lib64/libpsm2.so.2.1", "the fabric's"),
        HostFile("lib/libnuma.so.1", FILE, "/lib64/libnuma.so.1", "needed", spare=True),
        HostFile("lib/prov", DIRECTORY, "/opt/prov", "providers"),
        HostFile("lib/libx.so", LINK, "libpsm2.so.2", "a name"),
    )
    plan = PLAN._replace(host=host, environment={"LD_LIBRARY_PATH": "/opt/mpi/lib", "A": "1"})
    found = container.make(image, made.IMAGE, plan, runtime, [], {"A": "0", "B": "2"})
    assert found.environment == {
        "A": "1",
        "B": "2",
        "LD_LIBRARY_PATH": native.inherited("/opt/mpi/lib", "LD_LIBRARY_PATH"),
        "PYTHONPATH": native.inherited("/deployer/wheels/lib", "PYTHONPATH"),
    }
    assert [(bind.source, bind.target) for bind in found.binds] == [
        (made.PREFIX, made.PREFIX),
        ("/lib64/libpsm2.so.2.1", "/deployer/host/lib/libpsm2.so.2"),
        ("/opt/prov", "/deployer/host/lib/prov"),
        (image.app, "/deployer/app"),
        (image.wheels, "/deployer/wheels"),
    ]
    assert not os.path.exists(os.path.join(image.folder, "host"))  # no stubs


def test_only_who_asks_gets_it(store, monkeypatch):
    monkeypatch.setenv("PATH", os.environ["PATH"].split(":")[0])  # without ch-run
    replan(store, PLAN._replace(modules=[]))
    with pytest.raises(Refused, match=r"charliecloud-folder \(no ch-run in PATH\)$"):
        run.prepare(store, REQUEST)
    launch = result.launch(run.prepare(store, ASKED))
    assert (launch.runtime, launch.start_option) == ("native", "native-folder")
    assert launch.reason == "--runtime native: first in the plan for 2 nodes that lab can use"
    replan(store, made.PLAN)
    with pytest.raises(Refused, match="no start option with native, which the site's policy must allow"):
        run.prepare(store, ASKED)
    with pytest.raises(Refused, match=r"native cannot use an image that is staged so; it can: folder"):
        run.prepare(store, ASKED._replace(staging="memory"))


def test_the_job_proves_the_same_without_an_image(store):
    folder = run.prepare(store, ASKED._replace(ranks_per_node=2, threads=1, extra=["--to", "/deployer/job/x"]))
    text = run.show_script(folder)
    image = store.find("hello").folder
    host_python = os.path.join(os.environ["PATH"].split(":")[0], "python3")
    assert "canary" not in text
    assert '"$image"' not in text
    assert f"native=(env\n    DEPLOYER_RESULT={folder}/payload.json\n" in text
    assert f'    LD_LIBRARY_PATH={made.PREFIX}/lib"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n' in text
    tool = f"{host_python} -I -S -c '{first_bytes.PROGRAM}' {store.tool} "
    start = '"${launch[@]}" "${native[@]}" \\\n    ' + tool
    assert start + f"probe --rank --out {folder}/ranks --library libmpi.so.12 </dev/null" in text
    command = f"python3 {image}/app/train.py --to {folder}/x"
    assert start + f'rank --out {folder}/ranks --meet "$meet" -- {command} </dev/null' in text
    assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0


def test_what_check_said_of_the_image_is_not_said_of_the_host(store):
    against = verdict.judged([Finding("link.missing", ERROR, "python3", "no libx.so.1", "add it")])
    replan(store, PLAN._replace(checked=against))
    with pytest.raises(Refused, match=r"link\.missing"):
        run.prepare(store, REQUEST)
    folder = run.prepare(store, ASKED)
    assert (result.launch(folder).checked, run.warnings(folder)) == (None, [])


@pytest.mark.thorough
def test_exec_becomes_the_host_s_program(store):
    words = ["exec", "hello", "--root", store.root, "--runtime", "native", "--"]
    ask = "import json, os, sys; print(json.dumps([sys.argv[1], os.getcwd(), dict(os.environ)]))"
    environment = dict(os.environ, MINE="mine", LD_LIBRARY_PATH="/mine")

    def ended(*more):
        with forked.start(lambda: main([*words, *more]), environment, stdout=subprocess.PIPE) as process:
            return process.communicate()[0], process.returncode

    word, folder, seen = json.loads(ended(sys.executable, "-c", ask, "/deployer/app/x")[0].decode())
    assert word == store.find("hello").folder + "/app/x"
    assert folder == os.getcwd()
    assert (seen["MINE"], seen["FI_PROVIDER"], seen["HOME"]) == ("mine", "tcp", os.environ["HOME"])
    assert "GREETING" not in seen  # the image's
    assert seen["LD_LIBRARY_PATH"] == made.PREFIX + "/lib:/mine"
    assert ended("sh", "-c", "exit 7") == (b"", 7)


def test_without_a_plan_nobody_allows_it(tmp_path, monkeypatch):
    from deployer.site.run import exec as execs

    store = made.store(tmp_path / "root", plan=None)
    with pytest.raises(UsageError, match="packed for no site, so no plan allows native"):
        execs.prepare(store, execs.ExecRequest("hello", runtime="native"))
    assert execs.prepare(store, execs.ExecRequest("hello", runtime="charliecloud"))[0].contained
