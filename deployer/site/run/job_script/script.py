"""The batch script of a job, which a user can read, keep, and submit manually with the same result. Pure.

All text goes through ``contract.base.shell``: no record, image or profile can put code into the script.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence

from deployer import __version__
from deployer.contract.base import first_bytes, shell
from deployer.contract.base.shell import Code, Program, Text, Value, Variable, Word, code
from deployer.contract.base.text import counted
from deployer.contract.bundle.command import SHELL
from deployer.contract.bundle.image_launcher import ImageLauncher
from deployer.contract.bundle.job import seconds
from deployer.contract.bundle.sweep import TaskGroup
from deployer.contract.proof.evidence import Launch
from deployer.contract.proof.measurements import ITEX
from deployer.contract.site import memory_copies
from deployer.contract.site import plan as plans
from deployer.contract.site.layout import Layout
from deployer.contract.site.plan import Plan, StartOption
from deployer.site.container import home
from deployer.site.container.container import OWN, needs_home
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.inside import folder, node
from deployer.site.jobs import schedulers
from deployer.site.jobs.result import LOG, RANKS_FOLDER
from deployer.site.jobs.schedulers.interface import AGENT, ALONE, STEPS, JobRequest, Scheduler
from deployer.site.proof.rank_record import SAVED
from deployer.site.proof.result import HOSTS, NETWORK, PROBED
from deployer.site.run.job_script import agent_script, staging_script
from deployer.site.run.job_script.staging_script import StagedImage
from deployer.site.run.launchers import LAUNCHERS
from deployer.site.run.launchers.interface import AGENT as AGENT_PROGRAM
from deployer.site.run.launchers.interface import MACHINES, Launcher, LaunchRequest
from deployer.site.run.pinning import pin
from deployer.site.run.templates import fill


class Inputs(NamedTuple):
    """All inputs of a script.

    Attributes:
        launch: the job.
        layout: its layout.
        plan: its plan.
        start_option: the chosen start option.
        runtime: its runtime.
        launcher: its launcher.
        container: the container of the ranks.
        folder: the job's folder.
        tool: the .pyz.
        python: the Python that runs the .pyz on the host.
        image_python: the Python of the ranks, in the image; None: there is none, so ranks are observed from outside.
        asked: the request to the batch system, besides the layout.
        staging: how nodes get the image; None: ranks read it from where it is installed.
        reader: a command in the image that prints its canary; empty if there is none.
        workdir: the folder in which the payload starts; None: the container's, as in the other steps.
        stdin: a file in the container that each rank of the payload reads; None: nothing.
        gpus: the GPUs of each rank, for `rank` (``gpus.word``); empty: all.
        own_launcher: the image's launcher, if it starts the ranks.
        tasks: the tasks of a group; None: the job is not one.
        keep: the beginning of the image's archives and the paths in the home that are kept there; empty: none.
    """

    launch: Launch
    layout: Layout
    plan: Plan
    start_option: StartOption
    runtime: Runtime
    launcher: Launcher
    container: Container
    folder: str
    tool: str
    python: str
    image_python: Optional[str]
    asked: JobRequest
    staging: Optional[StagedImage] = None
    reader: Sequence[str] = ()
    workdir: Optional[str] = None
    stdin: Optional[str] = None
    gpus: str = ""
    own_launcher: Optional[ImageLauncher] = None
    tasks: Optional[TaskGroup] = None
    keep: Sequence[str] = ()

    @property
    def scheduler(self) -> Scheduler:
        """The plan's scheduler."""
        return schedulers.known(self.plan.scheduler)

    @property
    def asked_by(self) -> str:
        """The signal with which job.sh asks the launcher to end. The hub accepts SIGTERM for every launcher."""
        return "TERM" if self.own_launcher else self.launcher.asked_by


#: Seconds to wait for the evaluation. If the file system is too slow, a second one starts without a limit, which only
#: costs time.
_JUDGE_SECONDS = 300

SRUN = "srun"
_RANKS = plans.JOB + "/" + RANKS_FOLDER
#: The script's names for the words that start a rank without or with a container.
_WAYS = ("native", "container")


#: Lets a command (``$@``) read a file (``$0``) in the container, with the shell of an image without Python.
_READ = Program('exec "$@" <"$0"')


def render(inputs: Inputs) -> str:
    """Return the text of job.sh. Raises UsageError for text that a script cannot contain."""
    parts = [_head(inputs), _ground(inputs), _container(inputs), _ranks(inputs)]
    network = [fill("job.sh", "network", one_a_node=_one_a_node(inputs))] if _meets(inputs) else []
    if inputs.staging:
        facts = (inputs.staging, inputs.layout, inputs.runtime, inputs.container, inputs.reader, bool(inputs.keep))
        library = inputs.plan.mpi.library if inputs.plan.mpi else None
        parts.append(staging_script.step(*facts, library, shell.together(network)))
    else:
        parts += [_hosts(inputs), *network]
    if inputs.image_python:
        parts.append(_probe(inputs))
    parts.append(_payload(inputs))
    return shell.script(*parts)


def _head(inputs: Inputs) -> Code:
    launch, layout, scheduler = inputs.launch, inputs.layout, inputs.scheduler
    lines = scheduler.directives(_request(inputs)) if scheduler.prefix else []
    return fill(
        "job.sh",
        "head",
        job=launch.job,
        bundle=launch.bundle,
        version=launch.version,
        site=launch.site,
        deployer=__version__,
        nodes=counted(layout.nodes, "node"),
        ranks=counted(layout.ranks_per_node, "rank"),
        threads=counted(layout.threads, "thread"),
        variant=launch.start_option,  # the former name of start options, which job.sh keeps
        reason=launch.reason,
        by_hand=scheduler.submitting(inputs.tasks),
        directives=shell.together([shell.directive(scheduler.prefix, line) for line in lines]),
    )


def _request(inputs: Inputs) -> JobRequest:
    """Return the job's request to the batch system."""
    launch, layout = inputs.launch, inputs.layout
    return inputs.asked._replace(
        name=launch.bundle,
        folder=inputs.folder,
        nodes=layout.nodes,
        ranks_per_node=layout.ranks_per_node,
        cpus_per_rank=layout.asked_cpus,
        time=launch.time,
        seconds=seconds(launch.time),
        memory_mb=_memory(inputs),
        threads=layout.threads,
        hyperthreads=layout.hyperthreads,
    )


def _memory(inputs: Inputs) -> Optional[int]:
    """Return the MiB per node to request: what the ranks need, or else their share if the default is too small."""
    layout, asked, shape = inputs.layout, inputs.asked, inputs.layout.shape
    if layout.memory_mb is not None:
        image_mb = inputs.staging.size_mb if inputs.staging and inputs.staging.kind != plans.DISK else 0
        return layout.ranks_per_node * layout.memory_mb + image_mb
    if not inputs.plan.batch.request_memory or any(line.startswith("--mem") for line in asked.directives):
        return None
    cpus, there = layout.ranks_per_node * layout.asked_cpus, shape.cpus or shape.cores * shape.threads_per_core
    # Do not use --mem=0 for all memory: Slurm refuses it if a partition has MaxMemPerNode (22.05).
    return shape.memory_mb if asked.exclusive else shape.memory_mb * cpus // there


def _ground(inputs: Inputs) -> Code:
    scheduler, launch = inputs.scheduler, inputs.launch
    launcher = inputs.launcher if inputs.own_launcher is None else Launcher()
    steps = launcher.one_a_node(start(inputs.plan, inputs.start_option, inputs.layout, launcher))
    agent, hosts = scheduler.way == AGENT, inputs.plan.batch.hosts
    return fill(
        "job.sh",
        "ground",
        login_shell=agent and bool(scheduler.prefix),
        folder=inputs.folder,
        python=inputs.python,
        tool=inputs.tool,
        group=inputs.tasks is not None,
        id=scheduler.identified,
        cluster=bool(inputs.asked.cluster),
        agent=agent,
        trap=agent_script.trap(scheduler, inputs.asked_by),
        who=scheduler.title,
        patience=_JUDGE_SECONDS,
        batch=bool(scheduler.prefix),
        opened=scheduler.opened,
        own_log=scheduler.own_log,
        log=LOG,
        steps=scheduler.way == STEPS,  # Slurm starts no more steps when a job must end, so ranks remove it
        until=PROBED if inputs.image_python else NETWORK if _meets(inputs) else HOSTS,
        ground=agent_script.ground(scheduler, hosts, inputs.layout.nodes, steps) if agent else code(""),
        modules=shell.together(_environment_of_the_site(inputs)),
        warn=launch.warn is not None,
        ahead=seconds(launch.time) - (launch.warn or 0),
        home=home.BEGIN if needs_home(inputs.container) else "",
        keep=[f"--keep={path}" for path in inputs.keep],  # one word each: a path may look like an option
        one_a_node=_one_a_node(inputs),
    )


def _meets(inputs: Inputs) -> bool:
    """Return whether the nodes use the rendezvous without MPI."""
    return inputs.launch.without_mpi and inputs.layout.nodes > 1


def _environment_of_the_site(inputs: Inputs) -> List[Code]:
    """Return the lines that read the site's scripts and load its modules, with the runtime's modules last.

    A script's status comes from its last command and is often not 0, so the only check is that the file is readable.
    """
    plan, modules = inputs.plan, inputs.plan.modules_of(inputs.start_option.runtime)
    source = "\n[ -r {path} ] || {{ result hosts 1 --setup {command}; exit 1; }}\nsource {path}\n"
    use = "\nmodule use {path} || {{ result hosts 1 --setup {command}; exit 1; }}\n"
    load = "\nmodule load {name} || {{ result hosts 1 --module {name}; exit 1; }}\n"
    return [
        *(code(source, path=path, command="source " + path) for path in plan.scripts),
        *(code(use, path=path, command="module use " + path) for path in plan.module_paths),
        *(code(load, name=name) for name in modules),
    ]


def _container(inputs: Inputs) -> Code:
    staging, contained = inputs.staging, inputs.runtime.contained
    container, arrays = inputs.container, [(_WAYS[contained], inputs.runtime.options(inputs.container))]
    if staging:
        container = staging_script.moved(staging, container)
        arrays = staging_script.arrays(staging, inputs.runtime, container)
    copies = contained and memory_copies.prevented(inputs.start_option)
    line = "#   {target}: {why}\n" if contained else "#   {source} for {target}: {why}\n"
    return fill(
        "job.sh",
        "container",
        staging=f"{staging.place}/{staging_script.BEGIN}" if staging else "",
        contained=contained,
        binds=shell.together(
            [code(line, source=bind.source, target=bind.target, why=bind.why) for bind in container.binds]
        ),
        note=memory_copies.reason(inputs.start_option.runtime) if copies else "",
        arrays=shell.together([shell.array(name, words) for name, words in arrays]),
        rootfs=container.rootfs,
    )


def agent(inputs: Inputs) -> Optional[str]:
    """Return the text of the agent program; None if the batch system starts processes itself."""
    return agent_script.agent(inputs.scheduler, inputs.folder) if inputs.scheduler.way == AGENT else None


def start(
    plan: Plan, option: StartOption, layout: Layout, launcher: Launcher, tool: Sequence[str] = ()
) -> LaunchRequest:
    """Return the facts about a job for ``launcher``."""
    family, version = (plan.mpi.family, plan.mpi.version) if plan.mpi else ("", "")
    program = option.program or launcher.program
    way = schedulers.known(plan.scheduler).way
    return LaunchRequest(
        layout, option.pmi, program, family, version, batch=way == STEPS, tool=tool, agent=way == AGENT
    )


def start_inside(layout: Layout, own: ImageLauncher) -> LaunchRequest:
    """Return the facts about a job for the image's launcher, which starts its ranks."""
    return LaunchRequest(layout, "", own.program, own.family, own.version, batch=False, inside=True)


def _ranks(inputs: Inputs) -> Code:
    """Return the lines that define how ranks start and are pinned."""
    layout = inputs.layout
    if inputs.own_launcher:
        return _ranks_inside(inputs, inputs.own_launcher)
    how = start(inputs.plan, inputs.start_option, layout, inputs.launcher, (inputs.python, inputs.tool))
    pinning = pin(layout)
    # The launcher runs on the host, where the image's variables could make it start another program.
    of_the_site = {*inputs.plan.environment, *inputs.launcher.environment(how)}
    safe = {name: value for name, value in inputs.container.environment.items() if name in of_the_site}
    exports = inputs.launcher.exports(how, safe)
    pieces = [shell.export(name, value) for name, value in sorted(exports.items())]
    if how.agent:
        pieces.append(agent_script.environment(inputs.scheduler, inputs.launcher.slots(how)))
    return fill(
        "job.sh",
        "ranks",
        launcher=inputs.start_option.launcher,
        ranks=layout.ranks_per_node,
        units=counted(pinning.units, "core" if pinning.by_core else "hardware thread"),
        note=pinning.straddling,
        look=how.program if how.program != SRUN else "",
        exports=shell.together(pieces),
        words=shell.folded(inputs.launcher.words(how), 105),
    )


def _ranks_inside(inputs: Inputs, own: ImageLauncher) -> Code:
    """Return the lines that define the start of one container per node, with the image's launcher in the first one."""
    layout, way = inputs.layout, inputs.scheduler.way
    private = Word(Variable("job"), "/", folder.NAME)
    hub: List[Text] = [inputs.python, inputs.tool, "inside", "--serve", private, "--nodes", str(layout.nodes)]
    hub += ["--image-python", inputs.image_python or ""]
    starter: List[Text] = []
    if way == STEPS:
        cpus = layout.ranks_per_node * layout.asked_cpus
        starter += ["srun", "--mpi=none", "--nodes=%d" % layout.nodes, "--ntasks=%d" % layout.nodes]
        starter += ["--ntasks-per-node=1", "--cpus-per-task=%d" % cpus, "--cpu-bind=cores", "--kill-on-bad-exit=1"]
    else:
        hub.append("--passes-on")
    if way == AGENT:
        hub += ["--agent", AGENT_PROGRAM, "--machines", MACHINES]
    if way == ALONE:
        starter.append("setsid")  # a signal to this script's processes must not reach the ranks twice
    numbered: List[Text] = [] if way == STEPS else ["--number", node.NUMBER]
    node_words = [inputs.python, inputs.tool, "inside", "--node", "--hub", node.HUB, *numbered]
    node_words += ["--key", private + "/" + folder.KEY, "--"]
    slots = inputs.launcher.slots(LaunchRequest(layout, "", "", agent=True))
    launcher_words: List[Text] = [node.LAUNCHER, inputs.image_python or "", *_ISOLATED, plans.TOOL]
    launcher_words += ["inside", "--launch", "--hub", node.HUB, node.END]
    launcher_words += [*inputs.launcher.words(start_inside(layout, own)), node.RANKS]
    return fill(
        "job.sh",
        "ranks-inside",
        launcher=inputs.start_option.launcher,
        ranks=layout.ranks_per_node,
        units=counted(pin(layout).units, "core" if pin(layout).by_core else "hardware thread"),
        environment=agent_script.environment(inputs.scheduler, slots) if way == AGENT else code(""),
        hub=shell.folded(hub, 105),
        words=shell.folded([*starter, *node_words], 105),
        inside=shell.folded(launcher_words, 105),  # between a node's container and the command of each rank
    )


def inside_environment(option: StartOption, layout: Layout, own: ImageLauncher) -> Dict[str, Value]:
    """Return the container's variables that the image's launcher reads."""
    return LAUNCHERS[option.launcher].exports(start_inside(layout, own), {})


def _hosts(inputs: Inputs) -> Code:
    options: List[Text] = ["--library", inputs.plan.mpi.library] if inputs.plan.mpi else []
    options += ["--home", Word(OWN)] if needs_home(inputs.container) else []
    return fill(
        "job.sh",
        "hosts",
        alone=inputs.scheduler.way == ALONE,
        one_a_node=_one_a_node(inputs),
        options=_more(options),
        keep=bool(inputs.keep),
        reader=list(inputs.reader),
    )


def _one_a_node(inputs: Inputs) -> Code:
    """Return the words that start one process per node."""
    if inputs.scheduler.way == AGENT:
        return code("each")
    return code(
        "srun --mpi=none --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task=1",
        nodes=inputs.layout.nodes,
    )


def _probe(inputs: Inputs) -> Code:
    python, tool = inputs.image_python or "", _given(inputs, plans.TOOL)
    command = [*_at_once(python, tool), "probe", "--rank", "--out", *_evidence(inputs)]
    if inputs.plan.mpi:
        command += ["--library", inputs.plan.mpi.library.rsplit("/", 1)[-1]]
    if inputs.plan.abi == plans.NO_MPI:
        command += ["--without-mpi"]
    command += _leaving(inputs)
    good = inputs.launch.network and inputs.launch.network.good()
    command += ["--good", good] if good else []
    for expected in inputs.launch.expects:
        command += ["--expect", expected] if expected != ITEX else []
    return fill(
        "job.sh",
        "probe",
        contained=inputs.runtime.contained,
        step=_step(inputs, "probe", command),
        staged=inputs.staging is not None,
    )


def _payload(inputs: Inputs) -> Code:
    command = _given(inputs, *inputs.launch.command)
    if inputs.image_python:
        options: List[Text] = ["--shared", *_given(inputs, _RANKS)] if inputs.staging else []
        options += ["--itex"] if ITEX in inputs.launch.expects else []
        options += _options(inputs)
        options += ["--stdin", *_given(inputs, inputs.stdin)] if inputs.stdin else []
        start = _at_once(inputs.image_python, _given(inputs, plans.TOOL))
        command = [*start, "rank", "--out", *_evidence(inputs), *options, "--", *command]
    else:
        command = [SHELL, "-c", _READ, inputs.stdin, *command] if inputs.stdin else command
    more = inputs.runtime.starting_in(inputs.workdir) if inputs.workdir else []
    return fill(
        "job.sh",
        "payload",
        image_python=inputs.image_python,
        watch=shell.folded(_outside(inputs), 105),
        step=_step(inputs, "payload", command, more, not inputs.image_python),
        staged=inputs.staging is not None,
        warn=inputs.launch.warn is not None,
        saved=SAVED,
    )


def _options(inputs: Inputs) -> List[Text]:
    """Return the options that `rank` always gets.

    ``--abort``: the launcher ends the other ranks only after a signal. ``--end``: job.sh sends SIGUSR2 to the launcher.
    """
    words: List[Text] = [] if inputs.launcher.ends_on_exit else ["--abort"]
    words += ["--warn", Word(Variable("warn"))] if inputs.launch.warn is not None else []
    words += ["--end"] if inputs.scheduler.way == AGENT and inputs.launcher.asked_by == "USR2" else []
    words += [*_leaving(inputs), "--meet", Word(Variable("meet"))]
    return words + (["--gpus", inputs.gpus] if inputs.gpus else [])


def _leaving(inputs: Inputs) -> List[Text]:
    """Return the words that make ranks remove the home on their node when the job must end.

    At that point Slurm starts no more steps that could do it. With a staged image, the step that holds it does.
    """
    alone = inputs.scheduler.way != STEPS or inputs.staging or not needs_home(inputs.container)
    return [] if alone else ["--home", Word(OWN)]


def _outside(inputs: Inputs) -> List[Text]:
    """Return the words that start the container of a rank and observe it from the host."""
    ranks = inputs.folder + "/" + RANKS_FOLDER
    tool: Value = inputs.tool
    out: List[Text] = ["--out", ranks]
    if inputs.staging:
        tool, evidence = staging_script.tool(inputs.staging), staging_script.evidence()
        out = ["--out", evidence, "--shared", ranks]
    library = inputs.plan.mpi.library if inputs.plan.mpi else ""
    return [*_at_once(inputs.python, [tool]), "rank", *out, "--outside", library, *_options(inputs), "--"]


def _evidence(inputs: Inputs) -> List[Text]:
    """Return the path of the folder for the ranks' evidence, as ranks see it."""
    return _given(inputs, plans.NODE if inputs.staging else _RANKS)


def _step(inputs: Inputs, name: str, command: Sequence[Text], more: Sequence[Text] = (), watched: bool = False) -> Code:
    """Return one step in the container.

    Its stdin is closed, because otherwise the launcher would read the rest of this script.

    Args:
        more: additional words for the runtime.
        watched: whether the step is observed from outside the container.
    """
    options = list(more)
    if inputs.staging and (name == "payload" or inputs.own_launcher):  # the job's folder has what launchers call
        options = [*inputs.runtime.binds(staging_script.late(inputs.staging, inputs.container)), *options]
    shared = inputs.staging is not None and inputs.staging.held  # one container per node anyway
    if inputs.start_option.join and not shared and inputs.layout.ranks_per_node > 1:
        options += inputs.runtime.join_options(inputs.layout.ranks_per_node, Word(Variable("unique"), "-", name))
    return fill(
        "job.sh",
        "step",
        agent=inputs.scheduler.way == AGENT,
        watched=watched,
        contained=inputs.runtime.contained,
        options=_more(options),
        inside=inputs.own_launcher is not None,
        command=command,
        parameters=inputs.tasks is not None and name == "payload",
    )


# -I: without the environment and the user's own packages; -S: without site packages, whose hooks slow down a start.
_ISOLATED = ("-I", "-S")


def _at_once(python: str, tool: Sequence[Text]) -> List[Text]:
    """Return the words that start this tool for a rank, up to the name of the command."""
    return [python, *_ISOLATED, "-c", first_bytes.PROGRAM, *tool]


def _given(inputs: Inputs, *words: str) -> List[Text]:
    """Return words with paths of the container, in the form that the ranks' runtime requires."""
    return inputs.runtime.given(inputs.container, words)


def _more(words: Sequence[Text]) -> Code:
    """Return words as text to append to other words."""
    return code(" {words}", words=words) if words else code("")
