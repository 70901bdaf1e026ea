"""No text of any record gets out of its place in job.sh: each is filled with hostile ones, and the script is run.

The fields are found by themselves: one that is added tomorrow is filled as well, and has to have a value in ``full``.
"""

import re
import shlex
import subprocess
import typing

import pytest

from deployer.contract.base.errors import DeployerError
from deployer.contract.proof import evidence
from deployer.contract.rules import hostfiles
from deployer.contract.rules.findings import ERROR, Finding
from deployer.contract.rules.verdict import judged
from deployer.contract.site import layout
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import Bind
from deployer.contract.site.speed import ExpectedNetwork, Speed
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container
from deployer.site.jobs.schedulers.interface import JobRequest
from deployer.site.run import run
from deployer.site.run.job_script import script
from deployer.site.run.job_script.staging_script import StagedImage
from deployer.site.run.job_script.submission import SubmissionOptions, ask
from deployer.site.run.launchers import LAUNCHERS
from deployer.site.run.prepare.request import RunRequest
from tests import running

#: Each would make the file that stands for %s if it were shell.
HOSTILE = [
    "[$(>%s)]`>%s`<(>%s)",
    "x\n>%s\n#SBATCH --wrap=x\n)\n>%s\r\n\t\x1b[2J\u2028\x85(",
    "';>%s;'&>%s",
    '";>%s;"$(>%s)',
    "\\';>%s;'\n\\",
    "\0(>%s)\0stage\0",
    "x}; >%s; # {x} {0} %%s {{",
    "\ud800$(>%s)",
    "\udce9$(>%s)",
]

#: All that the script calls; a missing program and an exit do not end it, so that each of its lines is reached.
PRELUDE = """\
exit() { return 0; }
exec() { return 0; }
command_not_found_handle() { return 0; }
for each in shopt srun ch-run \\
    module mpiexec.hydra mpirun env bash python3 rm mkdir grep date id uname mktemp sleep; do
    eval "$each() { return 0; }"
done
mkfifo() { echo >"$2"; }
mktemp() { echo "$PIPE"; }
"""


def full():
    """Return inputs with a value in every field that can hold text."""
    option = running.START_OPTION._replace(join=True, program="/opt/run", place="/dev/shm", max_nodes=9, broadcast=1)
    option = option._replace(modules=("runtime/1",), arguments=("--no-x",))
    checked = judged([Finding("a", ERROR, "b", "c", "d", "train")], ["e"])
    plan = running.PLAN._replace(
        abi="mpich-abi",
        node=running.PLAN.node._replace(domain_cpus=("0",)),
        checked=checked,
        host=(hostfiles.HostFile("lib/libx.so", hostfiles.FILE, "/lib/libx.so", "why"),),
        account="abc",
        directives=["--exclusive"],
        against={"udocker": "why"},
        limits=plans.Limits(4, "01:00:00", True),
        mpi=running.PLAN.mpi._replace(identity="sha256:0", libraries={"/opt/mpi/lib/x.so": "sha256:1"}),
        start_options=[option],
        batch=plans.Batch(
            "normal", "long", "one", "cpu", "-gpu", ("a",), plans.GpuRequest("gres", 4, "v100"), "mpi", ("cn1", "cn2")
        ),
        scripts=("/etc/site.sh",),
        module_paths=("/opt/modules",),
        mounts=("/scratch/a",),
        devices=("/dev/kfd",),
        without={"fat": "why"},
        gpu_order="CUDA_VISIBLE_DEVICES",
        network=ExpectedNetwork(Speed(2.0, 9000.0), None, 0.5, "the profile", "omni-path"),
    )
    shape = layout.lay_out(2, 2, 1, plan.node, 1000)
    launch = evidence.Launch(
        "hello-1", "hello", "1", "sha256:0", "lab", "v", "first", "charliecloud", 2, 2, 1, "00:30:00",
        ["python3", "x y"], plan.mpi, "tcp", 0, ["sha256:1"], ["gpu"], checked, True, ["/a"], "straddles", "slurm",
        300, 2, "hello-0", "ib0", fast="InfiniBand (verbs)", links={".x/y": "/deployer/app/y"},
        folder_links={"data": "/deployer/app/y"}, workdir="run", network=plan.network, accept=("network.slow",),
        task=1, parameters={"lr": "0.1"},
    )  # fmt: skip
    binds = [
        Bind("/opt/mpi", "/opt/mpi", "why"),
        Bind("/jobs/hello-1", plans.JOB, "the job's folder"),
        Bind("/images/a/host/1", hostfiles.FOLDER, "stubs"),
    ]
    environment = {"I_MPI_FABRICS": "ofi", "OMPI_MCA_btl": "tcp", "LD_LIBRARY_PATH": "/opt/mpi/lib"}
    plan = plan._replace(environment=environment)
    container = Container("/images/a/rootfs", binds, environment, ["SLURM_*"], "/work", "/images/a/engine", "/tmp/own")
    container = container._replace(arguments=["--no-x"], devices=["nvidia.com/gpu=all"])
    staging = StagedImage(
        plans.MEMORY, "/dev/shm", "/images/a", "/bundles/a.tar", 100, "mpich-abi", relay=True, kit="it's"
    )
    staging = staging._replace(mounts=("/scratch/a",))
    return script.Inputs(
        launch, shape, plan, option, RUNTIMES["charliecloud"], LAUNCHERS["srun"], container, "/jobs/hello-1",
        "/deployer.pyz", "/usr/bin/python3", "/usr/bin/python3",
        JobRequest(
            "hello",
            "/j",
            "/j/output.log",
            time="1",
            queue="batch",
            account="abc",
            constraints=("fast",),
            reservation="r1",
            qos="long",
            cluster="one",
            storage=("a",),
            gpus=plan.batch.gpus,
            parallel_environment="mpi",
            directives=("--x",),
        ),
        staging,
        reader=["/bin/cat", "/x"], workdir="/work", stdin="/deployer/app/in", gpus="1:CUDA_VISIBLE_DEVICES",
        keep=["/root/caches/a-1", "own"],
    )  # fmt: skip


def is_record(value):
    return isinstance(value, tuple) and hasattr(value, "_fields")


def inner(value):
    """Yield the key and the value of each part."""
    if is_record(value):
        yield from value._asdict().items()
    elif isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


def leaves(value, path=()):
    """Yield the path of each text, and of each key of a mapping."""
    if isinstance(value, str):
        yield path
    for key, part in inner(value):
        if isinstance(value, dict):
            yield (*path, key, "key")
        yield from leaves(part, (*path, key))


def filled(value, paths, text):
    """Return ``value`` with ``text`` behind each text of ``paths``."""
    if () in paths:
        return value + text
    below = {}
    for path in paths:
        below.setdefault(path[0], set()).add(path[1:])
    if not below:
        return value
    parts = {
        key: filled(part, {path for path in below.get(key, ()) if path != ("key",)}, text) for key, part in inner(value)
    }
    if is_record(value):
        return value._replace(**parts)
    if isinstance(value, dict):
        return {key + text if ("key",) in below.get(key, ()) else key: part for key, part in parts.items()}
    return type(value)(parts.values())


def configured():
    """Yield a name and the inputs of each way to run a job."""
    whole = full()
    charliecloud, udocker, native = (RUNTIMES[name] for name in ("charliecloud", "udocker", "native"))
    ways = {
        "folder": (charliecloud, None),
        "memory": (charliecloud, whole.staging._replace(kit=False)),
        "squashfs": (charliecloud, whole.staging._replace(kind=plans.SQUASHFS, kit=False, held=True)),
        "udocker": (udocker, whole.staging._replace(kind=plans.DISK, relay=False)),
        "native": (native, None),
    }
    for launcher in sorted(LAUNCHERS):
        plan = whole.plan._replace(scheduler="slurm")
        for name in sorted(ways) if launcher == "srun" else ("folder", "memory"):
            runtime, staging = ways[name]
            yield (
                launcher + "-" + name,
                whole._replace(plan=plan, launcher=LAUNCHERS[launcher], runtime=runtime, staging=staging),
            )
    bare = whole._replace(launcher=LAUNCHERS["mpiexec.hydra"], image_python=None, staging=None)
    yield "no-python", bare
    for kind in ("gridengine", "hosts", "lsf", "pbs"):
        launcher = LAUNCHERS["mpirun" if kind == "lsf" else "mpiexec.hydra"]
        asked = whole.asked._replace(constraints=("cpu_type=fast",))
        plan = whole.plan._replace(scheduler=kind)
        yield kind, whole._replace(plan=plan, launcher=launcher, asked=asked, staging=None)
    yield "local", whole._replace(plan=whole.plan._replace(scheduler="local"), staging=None)


CASES = dict(configured())

#: Most lines of the script are in one of these; the other ways are run with the thorough tests.
OFTEN = ("srun-native", "srun-squashfs")


def rendered(case, paths, text):
    """Return the script, None where it is refused."""
    try:
        return script.render(filled(case, paths, text))
    except DeployerError:
        return None


def tried(case, paths, text):
    """Return the paths where ``text`` is accepted; what is accepted together is not tried one by one."""
    if not paths or rendered(case, set(paths), text) is not None:
        return set(paths)
    middle = len(paths) // 2
    return tried(case, paths[:middle], text) | tried(case, paths[middle:], text) if middle else set()


#: Where a text of HOSTILE was refused before: likely it is again.
REFUSED = {}


def accepted(case, paths, text, known=""):
    """Return the script with ``text`` wherever it is accepted, and those places."""
    taken = paths - REFUSED.get(known, set())
    whole = rendered(case, taken, text)
    if whole is not None:
        return whole, taken
    taken = tried(case, [path for path in leaves(case) if path in paths], text)
    whole = rendered(case, taken, text)
    if whole is None:  # in one place it hid another, where it is refused
        taken = {path for path in paths if rendered(case, {path}, text) is not None}
        whole = rendered(case, taken, text)
    REFUSED[known] = paths - taken
    if whole is None:  # a name of a variable is only read where the plan has it too
        taken = {path for path in taken if path[-1] != "key"}
        whole = rendered(case, taken, text)
    assert whole is not None
    return whole, taken


def check(text, folder, given):
    """Run a script; nothing of it may be but ours."""
    canary, reached = folder / "canary", folder / "reached"
    lines = text.split("\n")
    words = [shlex.split(line[len("#SBATCH ") :]) for line in lines if line.startswith("#SBATCH")]
    prefixed = given.scheduler.directives(script._request(given)) if given.scheduler.prefix == "#SBATCH" else []
    assert words == [shlex.split(line) for line in prefixed]
    assert all(len(word) == 1 for word in words)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", text)
    (folder / "prelude").write_text(PRELUDE)
    whole = text.encode("utf-8", "surrogateescape") + b"\n>%s\n" % str(reached).encode()
    environment = {
        "PATH": "/nowhere",
        "BASH_ENV": str(folder / "prelude"),
        "PIPE": str(folder / "pipe"),
        "SLURM_JOB_ID": "7",
        "LC_ALL": "C.UTF-8",
    }
    (folder / "job.sh").write_bytes(whole)
    done = subprocess.run(
        ["/bin/bash", str(folder / "job.sh")],
        env=environment,
        cwd=str(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    assert not canary.exists()
    assert b"syntax error" not in done.stderr
    assert reached.exists(), done.stderr
    reached.unlink()


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.thorough) for name in sorted(CASES)]
)
def test_no_text_gets_out_of_its_place(name, tmp_path):
    case = CASES[name]
    # These words choose what the script has: another would hide the rest of it.
    choices = {path for path in leaves(case) if path[-1] in ("scheduler", "kind") and path[0] in ("plan", "staging")}
    paths = set(leaves(case)) - choices
    for hostile in HOSTILE:
        text = hostile.replace("%s", str(tmp_path / "canary"))
        whole, taken = accepted(case, paths, text, hostile)
        check(whole, tmp_path, filled(case, taken, text))
    for path in choices:
        for hostile in HOSTILE[:3]:
            rendered(case, {path}, hostile)


@pytest.mark.thorough
def test_what_a_word_holds_is_in_the_script():
    """The fields do reach it: the test is not empty."""
    case = CASES["srun-folder"]
    _, taken = accepted(case, set(leaves(case)), "$(>x)")
    without = script.render(case)
    unused = [path for path in taken if script.render(filled(case, {path}, "$(>x)")) == without]
    assert len(taken) - len(unused) > 30
    assert ("container", "workdir") in taken
    assert ("launch", "command", 1) not in unused
    assert ("stdin",) in taken
    assert ("stdin",) not in unused


def test_every_field_that_can_hold_text_has_one():
    seen = set()

    def look(value):
        if is_record(value):
            hints = typing.get_type_hints(type(value))
            for name, part in value._asdict().items():
                if re.search(r"\bstr\b", str(hints[name])):
                    assert part, f"{type(value).__name__}.{name}: give it a value in full()"
            seen.add(type(value).__name__)
        for _, part in inner(value):
            look(part)

    look(full())
    assert seen >= {
        "Inputs",
        "Launch",
        "Plan",
        "StartOption",
        "Bind",
        "HostMpi",
        "HostFile",
        "Container",
        "StagedImage",
        "Layout",
    }
    assert seen >= {"Limits", "NodeShape", "Checked", "Finding"}


@pytest.mark.parametrize(
    "field",
    [
        name if name == "directives" else pytest.param(name, marks=pytest.mark.thorough)
        for name in SubmissionOptions._fields
        if name != "gpus"  # a number
    ],
)
def test_what_the_user_adds_is_one_word(field, tmp_path):
    case = CASES["srun-folder"]
    plan = case.plan._replace(batch=case.plan.batch._replace(storage=(), parallel_environment=None))
    for hostile in HOSTILE:
        text = hostile.replace("%s", str(tmp_path / "canary"))
        options = SubmissionOptions()._replace(
            **{field: ["--comment=" + text] if field == "directives" else "x" + text}
        )
        try:
            given = case._replace(asked=ask(plan, options, 2, "00:30:00", {}))
            whole = script.render(given)
        except DeployerError:
            continue
        check(whole, tmp_path, given)


def test_an_image_s_own_words_arrive_in_the_job_as_they_are(tmp_path, monkeypatch):
    """From the installed image to job.sh: values may have several lines, and are never shell."""
    value = "a\n$(>%s)\n'b'" % (tmp_path / "canary")
    image = running.IMAGE._replace(env=["PATH=/usr/bin", "LINES=" + value])
    running.program(tmp_path, "ch-run", "exit 0\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    store = running.store(tmp_path / "root", image=image)
    request = RunRequest("hello", extra=["-c", value])
    text = run.show_script(run.prepare(store, request))
    array = text[text.index("container=(") : text.index("\nimage=")]
    shown = subprocess.check_output(["/bin/bash", "-c", array + "\nprintf '%s\\0' \"${container[@]}\""])
    assert "--set-env=LINES=" + value in shown.decode().split("\0")
    assert not (tmp_path / "canary").exists()
