"""The batch script is compared whole with the golden ones. To renew them: DEPLOYER_GOLDEN=write, and read the diff."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deployer.contract.base import first_bytes
from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Word, argv
from deployer.contract.bundle import sweep
from deployer.contract.bundle.command import SHELL
from deployer.contract.bundle.image_launcher import ImageLauncher
from deployer.contract.proof.evidence import Launch
from deployer.contract.site import layout, plan
from deployer.contract.site.plan import Bind
from deployer.contract.site.runtime_table import TABLE
from deployer.site.container.container import OWN
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container
from deployer.site.container.runtimes.native import inherited
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import JobRequest
from deployer.site.run.job_script import agent_script, script
from deployer.site.run.job_script.staging_script import StagedImage
from deployer.site.run.job_script.submission import SubmissionOptions, ask
from deployer.site.run.launchers import LAUNCHERS
from deployer.site.run.prepare import placeholders
from tests import running as made

GOLDEN = Path(__file__).resolve().parents[4] / "golden"
FOLDER = "/home/alice/deployer/jobs/hello-1"


def inputs(nodes=2, ranks=1, threads=2, shown=made.PLAN, **values):
    laid_out = layout.lay_out(nodes, ranks, threads, shown.node, values.pop("memory_mb", None))
    command = ["python3", "train.py", "--name", "a b"]
    launch = Launch(
        "hello-1",
        "hello",
        "1",
        "sha256:0",
        "lab",
        "charliecloud-folder",
        "first in the plan",
        "charliecloud",
        nodes,
        ranks,
        threads,
        "00:30:00",
        command,
        shown.mpi,
        "tcp",
        0,
    )
    launcher = LAUNCHERS[shown.start_options[0].launcher]
    environment = layout.environment(laid_out)
    environment.update(launcher.environment(script.start(shown, shown.start_options[0], laid_out, launcher)))
    environment.update(shown.environment)
    environment.update(GREETING="it's $5: cheap", HOME=Word(OWN), TMPDIR=Word(OWN))
    binds = [*shown.binds, Bind(FOLDER, plan.JOB, "the job's folder")]
    rootfs = "/home/alice/deployer/images/aaaa/rootfs"
    container = Container(rootfs, binds, environment, shown.pass_environment, "/work", private=Word(OWN))
    return script.Inputs(
        launch,
        laid_out,
        shown,
        shown.start_options[0],
        RUNTIMES["charliecloud"],
        launcher,
        container,
        FOLDER,
        "/home/alice/deployer/deployer.pyz",
        "/opt/python/3.6/bin/python3",
        "/usr/bin/python3",
        JobRequest(queue="batch") if shown.partition else JobRequest(account="a b"),
        None,
        ["/bin/cat", plan.CANARY],
    )._replace(**values)


BARE = made.PLAN._replace(
    mpi=None,
    binds=[],
    modules=[],
    environment={},
    partition="",
    start_options=[made.START_OPTION._replace(join=True, pmi="pmix")],
)
STAGING = StagedImage(
    plan.MEMORY, "/dev/shm", "/home/alice/images/aaaa", "/home/alice/bundles/it's-1.tar", 2000, "mpich-abi"
)

PACKED = STAGING._replace(kind=plan.SQUASHFS, source="/home/alice/images/aaaa/image.sqfs")


def native(made):
    """Return the inputs as they are without a container."""
    app = Bind("/home/alice/deployer/images/aaaa/app", plan.APP, "the bundle's app folder")
    tool = Bind(made.tool, plan.TOOL, "this tool")
    environment = dict(made.container.environment, DEPLOYER_RESULT="/deployer/job/payload.json")
    for name in ("HOME", "TMPDIR"):
        del environment[name]
    environment["LD_LIBRARY_PATH"] = inherited(environment["LD_LIBRARY_PATH"], "LD_LIBRARY_PATH")
    return made._replace(
        launch=made.launch._replace(start_option="native-folder", command=["python3", "/deployer/app/train.py", "a b"]),
        runtime=RUNTIMES["native"],
        container=made.container._replace(
            binds=[*made.container.binds, app, tool], environment=environment, private=""
        ),
        image_python=made.python,
        reader=(),
    )


def gpu_partition():
    """Return the inputs for a partition with a queue, QoS, cluster, constraint, GPUs, setup, and a runtime's module."""
    batch = plan.Batch("normal", "long", "one", "gpu&nvme", "-gpu", (), plan.GpuRequest("gres", 4, "v100"))
    option = made.START_OPTION._replace(modules=("charliecloud/0.38",), arguments=("--no-passwd",))
    shown = made.PLAN._replace(
        account="$PROJECT",
        batch=batch,
        scripts=("/etc/profile.d/it's site.sh",),
        module_paths=("/opt/my modules",),
        mounts=("/scratch/$PROJECT",),
        devices=("/dev/kfd",),
        start_options=[option],
    )
    shown = placeholders.expanded(shown, {"PROJECT": "ab12"})
    found = inputs(ranks=2, shown=shown, asked=ask(shown, SubmissionOptions(gpus=2), 2, "00:30:00", {}))
    staging = STAGING._replace(mounts=shown.mounts)
    return found._replace(container=found.container._replace(arguments=option.arguments), staging=staging)


def again(made):
    """Return the inputs of a job that others continue."""
    return made._replace(launch=made.launch._replace(warn=300, again=2))


def by_agent(scheduler, launcher, **facts):
    """Return the inputs of a job whose batch system reaches nodes by an agent, with all that a job can ask for."""
    option = made.START_OPTION._replace(launcher=launcher, pmi="", join=True)
    shown = made.PLAN._replace(scheduler=scheduler, start_options=[option], batch=plan.Batch(**facts))
    gpus = plan.GpuRequest({"pbs": "ngpus"}.get(scheduler, "gpu"), 4, None if scheduler == "gridengine" else "v100")
    constraint = "cpu_type=haswell" if scheduler == "pbs" else "haswell"
    asked = JobRequest(queue="fast", account="physics", constraints=[constraint], reservation="course", gpus=gpus)
    asked = asked._replace(parallel_environment="mpi", directives=["-l scratch=1"])
    return inputs(ranks=2, shown=shown, memory_mb=1000, asked=asked)


def inside(shown, own, launcher="mpiexec.hydra", **values):
    """Return the inputs of a job that the image's own launcher starts."""
    option = made.START_OPTION._replace(launcher=launcher, pmi="")
    shown = shown._replace(start_options=[option], mpi=None, binds=[], modules=[], pass_environment=[], launch="inside")
    found = inputs(ranks=2, shown=shown, start_option=option, own_launcher=own, **values)
    settings = script.inside_environment(option, found.layout, own)
    environment = {**found.container.environment, **settings}
    return found._replace(container=found.container._replace(environment=environment))


MPICH = ImageLauncher("/usr/bin/mpiexec.hydra", "mpich", "")
OPEN_MPI = ImageLauncher("/usr/bin/mpirun.openmpi", "openmpi", "4")

KEEP = ["/home/alice/deployer/caches-2001/aaaa", ".triton/cache", "-my cache's"]

CASES = {
    "inside": inside(made.PLAN, MPICH),
    "inside-staged": inside(made.PLAN, OPEN_MPI._replace(version="5"), "mpirun", staging=STAGING),
    "inside-gridengine": inside(
        made.PLAN._replace(scheduler="gridengine"),
        OPEN_MPI,
        "mpirun",
        asked=JobRequest(queue="fast", parallel_environment="mpi"),
    ),
    "inside-pbs": inside(made.PLAN._replace(scheduler="pbs"), MPICH),
    "inside-local": inside(made.PLAN._replace(scheduler="local"), MPICH._replace(family="intel"), nodes=1),
    "staged": inputs(ranks=2, staging=STAGING, memory_mb=1000),
    "staged-squashfs": inputs(
        staging=PACKED._replace(relay=True, held=True), start_option=made.START_OPTION._replace(join=True), ranks=2
    ),
    "staged-no-python": inputs(
        nodes=1, image_python=None, staging=STAGING._replace(kind=plan.DISK, place="/local disk", abi=None)
    ),
    "staged-udocker": inputs(
        runtime=RUNTIMES["udocker"],
        start_option=made.START_OPTION._replace(runtime="udocker"),
        staging=STAGING._replace(kit="udocker"),
    ),
    "staged-carried": inputs(
        runtime=RUNTIMES["charliecloud-kit"],
        start_option=made.START_OPTION._replace(runtime="charliecloud-kit", join=True),
        staging=PACKED._replace(kit="charliecloud-kit", held=True),
        ranks=2,
    ),
    "staged-apptainer": inputs(
        runtime=RUNTIMES["apptainer"],
        start_option=made.START_OPTION._replace(runtime="apptainer", join=True),
        staging=STAGING,
        ranks=2,
    ),
    "staged-apptainer-squashfs": inputs(
        runtime=RUNTIMES["apptainer"],
        start_option=made.START_OPTION._replace(runtime="apptainer", join=True),
        staging=PACKED,
        ranks=2,
    ),
    "podman": inputs(
        ranks=2,
        runtime=RUNTIMES["podman"],
        start_option=made.START_OPTION._replace(name="podman-folder", runtime="podman", join=True),
    ),
    "enroot": inputs(
        ranks=2,
        runtime=RUNTIMES["enroot"],
        start_option=made.START_OPTION._replace(name="enroot-folder", runtime="enroot", join=True),
    ),
    "host-mpi": inputs(),
    "joined": inputs(nodes=1, ranks=4, threads=1, shown=BARE, memory_mb=1000),
    "no-python": inputs(nodes=1, image_python=None, reader=[]),
    "stdin-no-python": inputs(
        nodes=1, image_python=None, staging=STAGING._replace(kind=plan.DISK, abi=None), stdin="/deployer/app/in put"
    ),
    "stdin": inputs(nodes=1, ranks=2, stdin="/deployer/app/in put"),
    "keep": inputs(keep=KEEP),
    "keep-pbs": by_agent("pbs", "mpiexec.hydra")._replace(keep=KEEP),
    "keep-staged": inputs(keep=KEEP, staging=STAGING),
    "local": inputs(
        nodes=1,
        ranks=2,
        shown=made.PLAN._replace(
            scheduler="local",
            partition="",
            start_options=[made.START_OPTION._replace(launcher="mpiexec.hydra", pmi="", join=True)],
        ),
    ),
    "gpu-partition": gpu_partition(),
    "again": again(inputs()),
    "group": inputs(nodes=1, tasks=sweep.of_array("0-5%2")),
    "group-gridengine": by_agent("gridengine", "mpiexec.hydra")._replace(tasks=sweep.of_array("0,3,7%2")),
    "group-pbs": by_agent("pbs", "mpiexec.hydra")._replace(tasks=sweep.of_array("0,3,7%2")),
    "group-lsf": by_agent("lsf", "mpirun")._replace(tasks=sweep.of_array("0,3,7%2")),
    "native": native(inputs(ranks=2)),
    "gridengine": by_agent("gridengine", "mpiexec.hydra"),
    "pbs": by_agent("pbs", "mpiexec.hydra"),
    "lsf": by_agent("lsf", "mpirun"),
    "hosts": by_agent("hosts", "mpirun", hosts=("cn1", "cn2", "cn3")),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_script_is_the_golden_one(name, monkeypatch):
    monkeypatch.setattr(script, "__version__", "VERSION")
    text = script.render(CASES[name])
    path = GOLDEN / (f"job-{name}.sh")
    if os.environ.get("DEPLOYER_GOLDEN") == "write":
        path.write_text(text)
    assert path.exists(), "no golden script: run with DEPLOYER_GOLDEN=write and read it"
    assert text == path.read_text()


def test_the_probe_of_a_job_without_mpi_starts_none():
    without = inputs(shown=BARE._replace(abi=plan.NO_MPI))
    (line,) = [line for line in script.render(without).splitlines() if "--without-mpi" in line]
    assert "--library" not in line
    assert "--without-mpi" not in script.render(inputs(shown=BARE))


def test_nodes_without_mpi_meet_before_the_ranks_start():
    given = inputs(shown=BARE._replace(abi=plan.NO_MPI))
    text = script.render(given._replace(launch=given.launch._replace(without_mpi=True)))
    assert '"${tool[@]}" probe --network --out "$job/hosts" </dev/null\nresult network $? || exit\n' in text
    assert text.index("result hosts") < text.index("result network") < text.index("result probe")
    text = script.render(given._replace(launch=given.launch._replace(without_mpi=True), staging=STAGING))
    assert (
        text.index("result hosts") < text.index("result network") < text.index("collect || {")
    )  # only then it unpacks
    one = inputs(nodes=1, shown=BARE._replace(abi=plan.NO_MPI))
    assert "--network" not in script.render(one._replace(launch=one.launch._replace(without_mpi=True)))
    assert "--network" not in script.render(inputs(shown=BARE))


AGENTS = [name for name in sorted(CASES) if script.agent(CASES[name]) is not None]


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_is_the_golden_one(name):
    text = script.agent(CASES[name]._replace(folder="/home/alice/it's here/hello-1"))
    path = GOLDEN / (f"agent-{name}.sh")
    if os.environ.get("DEPLOYER_GOLDEN") == "write":
        path.write_text(text)
    assert path.exists(), "no golden agent: run with DEPLOYER_GOLDEN=write and read it"
    assert text == path.read_text()


def test_the_agent_gives_a_command_the_environment_and_folder_of_the_job(tmp_path):
    """Its text arrives as it is, whatever the options before the node and the shell at the other end."""
    folder = tmp_path / "it's here"
    folder.mkdir()
    (folder / "agent").write_text(script.agent(CASES["hosts"]._replace(folder=str(folder))))
    (folder / "environment").write_text(f"export WORD='a  b'\ncd -- {shlex.quote(str(folder))}\n")
    made.program(tmp_path, "ssh", 'while [ "$1" != cn7 ]; do shift; done\nshift\nexec sh -c "$*"\n')
    words = ["bash", str(folder / "agent"), "-x", "-q", "cn7", "printf '<%s>' \"$WORD\" \"$PWD\" 'x\ty!'; exit 7"]
    environment = {"PATH": "{}:{}".format(tmp_path, os.environ["PATH"])}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout.decode()) == (7, f"<a  b><{folder}><x\ty!>")


def signalled(scheduler, launcher, number, before=":", asked_by="TERM"):
    """Return what a script prints and its exit code; it gets a signal while it waits for its ``launcher``."""
    functions = agent_script.ground(scheduler, ["cn1"], 1).text
    ranks = functions[functions.index("# ranks") :]
    text = (
        agent_script.trap(scheduler, asked_by).text
        + ranks
        + before
        + '\nranks bash -c "$1"\necho "${stopped:-on} $code"\n'
    )
    script = subprocess.Popen(["bash", "-c", text, "bash", launcher], stdout=subprocess.PIPE)
    assert script.stdout.readline() == b"ready\n"
    script.send_signal(number)
    return script.communicate()[0].decode(), script.returncode


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pbs", "hosts"])
def test_a_launcher_that_does_not_end_is_killed_before_the_batch_system_kills_the_script(name, monkeypatch):
    """The launcher's session is not that of the script, by which the batch system ends a job."""
    scheduler = SCHEDULERS[name]
    assert scheduler.patience in (8, 25)
    monkeypatch.setattr(scheduler, "patience", 1)
    assert signalled(scheduler, "trap '' TERM; echo ready; sleep 60; sleep 60", signal.SIGTERM) == ("TERM 137\n", 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("judge", "codes"),
    [
        ('while read -r step code signal; do echo "$code"; done', "5 0 4"),  # it answers until the payload
        ("exit 1", "4 4 4"),  # it cannot start: each step starts one
        ("exec <&-; sleep 2", "4 4 4"),  # it lives, and a line for it is a broken pipe
        ('read -r step code signal; echo "$code"', "5 4 4"),  # it ends too early
        ('read -r step code signal; [ "$signal" = - ] && kill -TERM $$; echo "$code"', "5 4 4"),  # the job's end
        ('read -r step code signal; kill -USR1 $$; kill -USR2 $$; echo "$code"', "5 4 4"),  # to all of the node
        ("exec sleep 60", "4 4 4"),  # it hangs
        ('read -r step code signal; sleep 1.5; echo "$code"; exec sleep 60', "4 4 4"),  # its answer comes too late
    ],
)
def test_steps_ask_the_judge_that_has_started_before_or_another_one(tmp_path, monkeypatch, judge, codes):
    monkeypatch.setattr(script, "_JUDGE_SECONDS", 1)
    began = time.monotonic()
    steps = "for step in 'hosts 5' 'probe 0' 'payload 0'; do result $step; echo -n \"$? \"; sleep 0.1; done"
    assert asked(tmp_path, judge, steps) == codes
    assert "coproc judge" not in (tmp_path / "log").read_text()
    assert time.monotonic() - began < 20  # a judge that hangs is asked once


def asked(tmp_path, judge, steps):
    """Return what the steps of a script print, with this judge, while other judges say 4."""
    text = script.render(CASES["local"])
    asks = text[text.index("result() {") : text.index("}\n", text.index("result() {")) + 2]
    start = text[text.index("coproc judge") : text.index("\n}\n", text.index("coproc judge")) + 2]
    (tmp_path / "tool").write_text(f'case "$*" in *--until*) {judge} ;; *) exit 4 ;; esac\n')
    lines = ["tool=(bash tool)", "job=x id= started=9 stopped=", asks, start, "sleep 0.1", steps]
    with open(str(tmp_path / "log"), "wb") as log:
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)], cwd=str(tmp_path), stdout=subprocess.PIPE, stderr=log, check=False
        )
    return done.stdout.decode().strip()


def test_the_judge_hears_why_a_step_failed(tmp_path):
    """No other one has to start for that. It is still asked about a module that cannot be loaded."""
    judge = 'read -r step code signal reason; echo "$step $code $signal: $reason" >heard; echo 6'
    steps = """result hosts 3 --reason 'cn2 has "no" \\room'; echo -n "$? "; result hosts 1 --module x; echo $?"""
    assert asked(tmp_path, judge, steps) == "6 4"
    assert (tmp_path / "heard").read_text() == 'hosts 3 -: cn2 has "no" \\room\n'


#: Starts a step on two nodes; as srun does, it ends when the last of them does.
SRUN = """\
srun() {
    [ "$1" != --help ] || return
    while [ "$1" != sh ]; do shift; done
    NODE=1 "$@" &
    NODE=2 "$@" &
    wait
}
"""


@pytest.mark.parametrize(
    ("first", "second", "worst"),
    [
        ("echo 'staged 0 cn1 '", "exec /nothing/python", "127 cn2 ended with exit code 127"),
        ("echo 'staged 0 cn1 '", "kill -KILL $$", "137 cn2 ended with exit code 137"),
        ("echo 'staged 0 cn1 '", "echo 'staged 6 cn2 no room'; exit 0", "6 cn2 no room"),
        (":", "echo 'staged 6 cn2 no room'; exit 0", "6 cn2 no room"),
        ("sleep 0.5; echo 'staged 7 cn1 no kit'", "echo 'staged 6 cn2 no room'; exit 0", "7 cn1 no kit"),
    ],
)
def test_a_node_that_fails_ends_the_wait_for_the_others(tmp_path, first, second, worst):
    """The first node waits for a signal: without a line of the second, nothing would end. Or it has not answered yet,
    and another line is only waited for if it comes soon.
    """
    text = script.render(CASES["staged"])
    step = text[text.index("overlap=") : text.index("trap unstage EXIT")]
    (tmp_path / "tool").write_text(f"[ $NODE = 1 ] || {{ {second}; }}\necho $$ >first; {first}; exec sleep 60\n")
    made.program(tmp_path, "uname", "echo cn2\n")
    lines = [SRUN, "tool=(bash tool x)", "PATH=$PWD:$PATH", step.replace("cd /  #", "#")]
    lines += ["answers", 'echo "$worst $reason"', "kill $(cat first)"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=str(tmp_path), stdout=subprocess.PIPE, timeout=20, check=False
    )
    assert done.stdout.decode().strip() == worst


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["lsf", "gridengine"])
def test_a_signal_that_comes_before_the_launcher_ends_it_too(name):
    assert signalled(SCHEDULERS[name], "sleep 60", signal.SIGTERM, "echo ready; sleep 0.5") == ("TERM 143\n", 0)


def test_a_signal_that_bash_loses_until_the_launcher_has_its_session_is_sent_then():
    """Seen in 3 of 1000 under load: bash itself sends it, and the new process has not begun to obey."""
    loses = """kill() { [ "$1" = -TERM ] && ! builtin kill -0 -- -"$child" && return; builtin kill "$@"; }"""
    before = loses + "; echo ready; sleep 0.2"
    assert signalled(SCHEDULERS["lsf"], "sleep 20", signal.SIGTERM, before) == ("TERM 143\n", 0)


#: A launcher that does not handle SIGUSR2 at first, and that a second SIGTERM would reach.
LAUNCHER = f"""{sys.executable} -c 'import signal, sys, time
print("ready", flush=True)
time.sleep(0.5)
signal.signal(signal.%s, lambda *_: (time.sleep(0.5), sys.exit(7)))
time.sleep(60)'
"""


@pytest.mark.thorough
def test_a_launcher_that_passes_on_a_signal_gets_it_until_it_ends(monkeypatch):
    launcher = LAUNCHER % "SIGUSR2"
    monkeypatch.setattr(SCHEDULERS["hosts"], "patience", 5)  # what would kill it keeps the output open
    assert signalled(SCHEDULERS["hosts"], launcher, signal.SIGTERM, asked_by="USR2") == ("TERM 7\n", 0)


def test_the_hub_is_asked_by_sigterm_whatever_the_images_launcher_takes():
    """It passes SIGTERM on to the ranks; job.sh starts it with SIGUSR2 ignored."""
    text = script.render(CASES["inside-gridengine"])
    assert 'kill -TERM "$child"' in text
    assert "kill -USR2" not in text


def test_grid_engines_signal_to_all_processes_of_a_node_does_not_end_the_launcher():
    """It comes twice: a launcher that is asked twice to end kills the ranks at once."""
    functions = agent_script.ground(SCHEDULERS["gridengine"], [], 1).text
    text = agent_script.trap(SCHEDULERS["gridengine"], "TERM").text + functions[functions.index("# ranks") :]
    text += f"\nranks {sys.executable} -c '{ASKED}'\necho $code"
    with subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE) as batch:
        launcher = int(batch.stdout.readline())
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(launcher, number)
        for _ in range(2):
            batch.send_signal(signal.SIGUSR2)
        assert batch.stdout.read() == b"asked 1 times\n0\n"


ASKED = """import os, signal, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print(os.getpid(), flush=True)
while not asked: time.sleep(0.05)
time.sleep(0.5)
print("asked", len(asked), "times")"""


@pytest.mark.thorough
def test_grid_engine_suspends_a_job_and_it_lives_on():
    launcher = "echo ready; sleep 1; exit 7"
    assert signalled(SCHEDULERS["gridengine"], launcher, signal.SIGUSR1) == ("on 7\n", 0)


@pytest.mark.parametrize("name", AGENTS)
def test_only_grid_engines_agent_leaves_the_session_by_which_a_job_is_ended(name):
    assert ("setsid" in script.agent(CASES[name])) == name.endswith("gridengine")


@pytest.mark.parametrize("name", sorted(CASES))
def test_bash_can_read_the_script(name):
    text = script.render(CASES[name]).encode()
    done = subprocess.run(["bash", "-n"], input=text, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


STAGED = [(known.name, staging) for known in TABLE if not known.refusal for staging in known.stagings[1:]]


@pytest.mark.parametrize(("name", "staging"), STAGED)
def test_each_runtime_renders_the_stagings_of_its_row(name, staging):
    option = made.START_OPTION._replace(runtime=name, staging=staging)
    runtime = RUNTIMES[name]
    held = staging in plan.PACKED and not runtime.known.mounts
    text = script.render(
        inputs(runtime=runtime, start_option=option, staging=STAGING._replace(kind=staging, held=held))
    )
    [(place, program)] = re.findall(r"^container\[(\d+)\]=\$\(type -P \"\$\{container\[(\d+)\]\}\"", text, re.MULTILINE)
    assert place == program


def test_every_word_reaches_the_container_as_it_was_given(tmp_path):
    """The array of the script, as bash reads it, is the argv that exec would use."""
    case = CASES["host-mpi"]
    array = script._container(case).text
    shown = subprocess.check_output(
        ["bash", "-c", array + '\nprintf "%s\\0" "${container[@]}" "$image"'], env={"home": "/tmp/a b"}
    )
    words = shown.decode().split("\0")[:-1]
    assert [*words, "--", "true"] == argv(case.runtime.argv(case.container, ["true"]), {"home": "/tmp/a b"})


def test_a_staged_container_is_the_nodes_own_and_binds_nothing_that_is_inside():
    container = CASES["staged"].container
    inside = [Bind("/x", target, "why") for target in (plan.APP, plan.WHEELS, plan.VARIANT, plan.TOOL)]
    inside.append(Bind("/home/alice/images/aaaa/host/1", "/deployer/host", "stubs"))
    case = CASES["staged"]._replace(container=container._replace(binds=[*container.binds, *inside]))
    assert "    --stubs /home/alice/images/aaaa/host/1 \\\n" in script.render(case)
    shown = subprocess.check_output(
        ["bash", "-c", script._container(case).text + '\nprintf "%s\\0" "${container[@]}" "$image"'],
        env={"unique": "77", "PATH": "/usr/bin:/bin"},
    )
    words = shown.decode().split("\0")[:-1]
    place = "/dev/shm/deployer-stage-%d-77/image" % os.getuid()
    assert words[-1] == place + "/rootfs"
    assert [word for word in words if word.startswith("--bind=")] == [
        f"--bind={made.PREFIX}:{made.PREFIX}",
        f"--bind={place}/host:/deployer/host",
        f"--bind={place}/evidence:/deployer/node",
    ]


def test_the_jobs_folder_is_bound_for_the_payload_alone():
    """Each bind of a rank is looked up on the shared file system."""
    text = script.render(CASES["staged"])
    bound = [line for line in text.splitlines() if f"--bind={FOLDER}:/deployer/job" in line]
    assert len(bound) == 1
    assert text.index("# 3. Payload") < text.index(bound[0])


def test_the_payload_alone_starts_in_its_working_folder():
    """The other steps stay off the shared file system. Without a container it starts where the user is."""
    for name in ("host-mpi", "no-python", "staged", "staged-udocker", "staged-squashfs"):
        text = script.render(CASES[name]._replace(workdir="/deployer/job/a b"))
        (at,) = [
            place for place in range(len(text)) if text.startswith("'--cd=/deployer/job/a b' \"$image\" -- ", place)
        ]
        assert text.index(". Payload: ") < at
        assert text.index("    --cd=/work\n") < at
    assert "--cd" not in script.render(CASES["native"]._replace(workdir="/deployer/job"))


def test_the_payload_alone_reads_the_job_s_file():
    for name in ("host-mpi", "staged-udocker", "staged-squashfs"):
        text = script.render(CASES[name]._replace(stdin="/x y"))
        assert text.count(" --stdin '/x y' ") == 1
        assert text.index(". Payload: ") < text.index(" --stdin '/x y' ") < text.index(" -- python3 train.py")
    assert " --stdin /home/alice/deployer/images/aaaa/app/in " in script.render(
        CASES["native"]._replace(stdin="/deployer/app/in")
    )


def test_a_shell_opens_the_file_in_an_image_without_python(tmp_path):
    file = tmp_path / "a $(b) 'c'"
    file.write_text("it")
    words = [SHELL, "-c", script._READ.own, str(file), "sh", "-c", 'echo "$1"; cat', "x", "a b"]
    assert subprocess.check_output(words, stdin=subprocess.DEVNULL) == b"a b\nit"


def test_memory_for_the_image_is_asked_for_besides_the_ranks():
    assert "#SBATCH --mem=4000M\n" in script.render(CASES["staged"])
    on_disk = CASES["staged"]._replace(staging=STAGING._replace(kind=plan.DISK))
    assert "#SBATCH --mem=2000M\n" in script.render(on_disk)


def test_a_percent_sign_in_the_folder_is_not_slurm_s():
    text = script.render(CASES["host-mpi"]._replace(folder="/scratch/50%j/hello"))
    assert "#SBATCH --output=/scratch/50%%j/hello/batch-system-%j.log\n" in text


def test_what_is_to_be_proven_is_asked_of_the_probe():
    given = inputs()
    text = script.render(given._replace(launch=given.launch._replace(expects=("gpu", "itex"))))
    asked = ' --library libmpi.so.12 --home "$home" --expect gpu </dev/null'
    assert [line.endswith(asked) for line in text.splitlines() if " probe --rank " in line] == [True]
    assert ' /deployer/deployer.pyz rank --out /deployer/job/ranks --itex --home "$home" --meet "$meet" -- ' in text


def test_without_python_ranks_are_watched_on_the_host():
    """The container starts below the watcher, in every staging; a launcher that wants a signal gets one."""
    option = made.START_OPTION._replace(launcher="mpiexec.hydra", pmi="")
    library = made.PLAN.mpi.library
    python = ["/opt/python/3.6/bin/python3", "-I", "-S", "-c", first_bytes.PROGRAM]

    def watch(**values):
        text = script.render(inputs(image_python=None, **values))
        assert '"${launch[@]}" "${watch[@]}" "${container[@]}"' in text
        array = text[text.index("watch=(") : text.index('\n"${launch[@]}" "${watch[@]}"')]
        shown = subprocess.check_output(
            ["bash", "-c", f'stage=/s home=/h meet=2,1,a,1,e\n{array}\nprintf "%s\\0" "${{watch[@]}}"']
        )
        return shown.decode().split("\0")[:-1]

    tool = "/home/alice/deployer/deployer.pyz"
    whole = [*python, tool, "rank", "--out", FOLDER + "/ranks", "--outside", library]
    meet = ["--meet", "2,1,a,1,e"]
    home = ["--home", "/h"]
    assert watch() == [*whole, *home, *meet, "--"]
    assert watch(shown=made.PLAN._replace(start_options=[option])) == [*whole, "--abort", *home, *meet, "--"]
    for kind, tool in ((plan.SQUASHFS, "/s/deployer.pyz"), (plan.MEMORY, "/s/rootfs/deployer/deployer.pyz")):
        folders = ["--out", "/s/evidence", "--shared", FOLDER + "/ranks"]
        expected = [*python, tool, "rank", *folders, "--outside", library, *meet, "--"]
        assert watch(staging=STAGING._replace(kind=kind, held=kind == plan.SQUASHFS)) == expected


def test_the_image_tells_the_launcher_nothing():
    """It runs on the host: a variable of the image could make it run another program there."""
    case = CASES["local"]
    bad = {"I_MPI_HYDRA_BOOTSTRAP_EXEC": "/tmp/x", "I_MPI_X[$(touch x)]": "1"}
    ours = {"I_MPI_FABRICS": "ofi"}
    case = case._replace(
        container=case.container._replace(environment={**case.container.environment, **bad, **ours}),
        plan=case.plan._replace(environment={**case.plan.environment, **ours}),
    )
    exported = [line for line in script.render(case).splitlines() if line.startswith("export I_MPI")]
    assert exported == ["export I_MPI_FABRICS=ofi", "export I_MPI_PIN_DOMAIN=2:compact"]


@pytest.mark.parametrize(("launcher", "name"), [("mpiexec.hydra", "I_MPI_X[$(x)]"), ("mpirun", "OMPI_MCA_x; cmd; y")])
def test_a_strange_name_is_no_variable_of_the_launcher(launcher, name):
    shown = made.PLAN._replace(
        environment={name: "1"}, start_options=[made.START_OPTION._replace(launcher=launcher)], modules=[]
    )
    with pytest.raises(UsageError, match="is not a name for an environment variable"):
        script.render(inputs(shown=shown))


def test_names_on_nodes_cannot_be_known_beforehand():
    """Two starts of a script have different names, which only the kernel's randomness tells."""
    text = script.render(CASES["staged"])
    (line,) = [line for line in text.splitlines() if line.startswith("unique=")]
    shown = [subprocess.check_output(["bash", "-c", line + '\necho "$unique"']).decode() for _ in range(2)]
    assert len(set(shown)) == 2
    assert all(len(each.strip()) == 36 for each in shown)
    for name in ("home", "stage"):
        (line,) = [line for line in text.splitlines() if line.startswith(name + "=")]
        assert "-$UID-$unique" in line


def test_memory_is_requested_where_the_site_gives_too_little():
    def asked(ranks, threads, directives=(), memory_mb=None, scheduler="slurm", **batch):
        shown = made.PLAN._replace(batch=plan.Batch(**batch), scheduler=scheduler)
        request = JobRequest(queue="batch", exclusive=batch.get("exclusive", False), directives=directives)
        return script._memory(inputs(1, ranks, threads, shown, asked=request, memory_mb=memory_mb))

    assert asked(4, 1) is None  # the site's default
    assert asked(4, 1, request_memory=True) == 4000  # all of a node's
    assert asked(1, 1, request_memory=True) == 1000  # a quarter of its 4 cores
    assert asked(1, 1, request_memory=True, exclusive=True) == 4000
    assert asked(4, 1, request_memory=True, memory_mb=700) == 2800
    assert asked(4, 1, request_memory=True, directives=["--mem-per-cpu=1G"]) is None
    assert asked(4, 1, request_memory=True, scheduler="pbs") == 4000
