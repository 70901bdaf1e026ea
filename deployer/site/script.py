"""The batch script of a job, for a person to read, keep, and submit by hand with the same result. Pure."""

import shlex
from typing import List, NamedTuple, Optional, Sequence

from deployer import __version__
from deployer.contract import plan as plans
from deployer.contract.evidence import Launch
from deployer.contract.layout import Layout
from deployer.contract.measures import ITEX
from deployer.contract.pinning import pin
from deployer.contract.plan import Plan, Variant
from deployer.site import staged
from deployer.site.launchers.interface import Launcher, Start
from deployer.site.runtimes.interface import Container, Runtime
from deployer.site.staged import Staging


class Inputs(NamedTuple):
    """All that a script is made of: ``folder`` is the job's, ``tool`` the .pyz and ``python`` the Python that runs it
    on the host, ``image_python`` the one that ranks have, in the image (None: there is none, so nothing can be proven);
    ``directives`` are the words for sbatch that do not follow from the layout; ``staging`` is None where ranks read the
    image as it was installed; ``image_shell``: the image has /bin/sh; ``reader`` is a command of the image that prints
    its canary, empty where it has none."""

    launch: Launch
    layout: Layout
    plan: Plan
    variant: Variant
    runtime: Runtime
    launcher: Launcher
    container: Container
    folder: str
    tool: str
    python: str
    image_python: Optional[str]
    directives: List[str]
    staging: Optional[Staging] = None
    image_shell: bool = False
    reader: Sequence[str] = ()


SLURM, SRUN = "slurm", "srun"
#: What ranks say of themselves, and see of each other.
_RANKS = plans.JOB + "/ranks"

#: What only a job of Slurm's needs.
_SLURM_GROUND = """\
# With --export=NONE Slurm would start the steps with an empty environment.
unset SLURM_EXPORT_ENV
grep -qsx "$SLURM_JOB_ID" "$job/job_id" || echo "$SLURM_JOB_ID" >"$job/job_id"
"""


def render(inputs: Inputs) -> str:
    """Return the whole text of job.sh."""
    parts = [_head(inputs), _ground(inputs), _container(inputs), _ranks(inputs), _hosts(inputs)]
    if inputs.staging:
        parts.append(staged.step(inputs.staging, inputs.layout, inputs.runtime, inputs.container, 2))
    if inputs.reader:
        parts.append(_root(inputs))
    if inputs.image_python:
        parts.append(_probe(inputs))
    parts.append(_payload(inputs))
    return "\n".join(parts)


def _head(inputs: Inputs) -> str:
    launch, layout = inputs.launch, inputs.layout
    directives = [
        "--job-name=" + launch.bundle,
        "--output=%s/output.log" % inputs.folder.replace("%", "%%"),
        "--nodes=%d" % layout.nodes,
        "--ntasks-per-node=%d" % layout.ranks_per_node,
        "--cpus-per-task=%d" % layout.asked_cpus,
        "--time=" + launch.time,
        "--no-requeue",  # a training that begins anew over what it wrote is worse than one that failed
    ]
    if layout.memory_mb is not None:
        image_mb = inputs.staging.size_mb if inputs.staging and inputs.staging.kind != plans.DISK else 0
        directives.append("--mem=%dM" % (layout.ranks_per_node * layout.memory_mb + image_mb))
    lines = [
        "#!/bin/bash -l",
        "# Job %s: bundle %s:%s on %s, written by deployer %s."
        % (launch.job, launch.bundle, launch.version, launch.site, __version__),
        "# %d node%s x %d rank%s x %d thread%s; variant %s: %s."
        % (
            layout.nodes,
            _s(layout.nodes),
            layout.ranks_per_node,
            _s(layout.ranks_per_node),
            layout.threads,
            _s(layout.threads),
            launch.variant,
            launch.reason,
        ),
    ]
    if inputs.plan.scheduler == SLURM:
        lines.append("# To submit it by hand: sbatch job.sh (it may be edited, and submitted again).")
        lines += ["#SBATCH " + shlex.quote(word) for word in directives + inputs.directives]
    else:
        lines.append("# To start it by hand: ./job.sh (it may be edited, and started again).")
    return "\n".join(lines) + "\n"


def _ground(inputs: Inputs) -> str:
    text = """\
job={folder}
tool=({python} {tool})
started=$(date +%s)
stopped=

# {who} asks for an end with SIGTERM (time limit, cancel), to the ranks and to this script alike. The script lives on
# for as long as it may, to write what happened into result.json.
trap 'stopped=TERM' TERM

# result STEP EXIT: judge what the steps so far have proven and write result.json; true if the job may go on.
result() {{
    "${{tool[@]}}" result "$job" --step "$1" --exit "$2" --started "$started" --signal "$stopped" "${{@:3}}"
}}

{batch}export USER=${{USER:-$(id -un)}}  # ch-run does not start without it

rm -rf "$job/hosts" "$job/ranks" "$job/result.json" "$job/payload.json"
mkdir "$job/hosts" "$job/ranks" || {{ result hosts 6; exit; }}
""".format(
        folder=shlex.quote(inputs.folder),
        python=shlex.quote(inputs.python),
        tool=shlex.quote(inputs.tool),
        who="Slurm" if inputs.plan.scheduler == SLURM else "deployer",
        batch=_SLURM_GROUND if inputs.plan.scheduler == SLURM else "",
    )
    for module in inputs.plan.modules:
        quoted = shlex.quote(module)
        text += "\nmodule load %s || { result hosts 1 --module %s; exit 1; }\n" % (quoted, quoted)
    return text


def _container(inputs: Inputs) -> str:
    container, arrays = inputs.container, [(_way(inputs), inputs.runtime.options(inputs.container))]
    if inputs.staging:
        container = staged.moved(inputs.staging, container)
        arrays = staged.arrays(inputs.staging, inputs.runtime, container)
    lines = [staged.name(inputs.staging)] if inputs.staging else []
    if inputs.runtime.contained:
        lines.append("# The container: read-only, nothing of the host's environment but what the plan passes. Binds:")
        lines += ["#   %s: %s" % (bind.target, bind.why) for bind in container.binds]
    else:
        lines.append("# No container: the host's programs, in its environment. What a container would see stands here:")
        lines += ["#   %s for %s: %s" % (bind.source, bind.target, bind.why) for bind in container.binds]
    for name, words in arrays:
        lines.append("%s=(%s" % (name, staged.word(words[0])))
        lines += ["    " + staged.word(word) for word in words[1:]]
        lines.append(")")
    if inputs.runtime.contained:
        lines.append("image=" + staged.word(container.rootfs))
    return "\n".join(lines) + "\n"


def start(plan: Plan, variant: Variant, layout: Layout, launcher: Launcher, tool: Sequence[str] = ()) -> Start:
    """Return what ``launcher`` is told of a job."""
    family, version = (plan.mpi.family, plan.mpi.version) if plan.mpi else ("", "")
    program = variant.program or launcher.program
    return Start(layout, variant.pmi, program, family, version, plan.scheduler == SLURM, tool)


def _ranks(inputs: Inputs) -> str:
    """Return how the ranks of a step are started and pinned."""
    layout = inputs.layout
    how = start(inputs.plan, inputs.variant, layout, inputs.launcher, (inputs.python, inputs.tool))
    pinning = pin(layout)
    lines = [
        "# The ranks: %s starts them, %d on each node, with %d %s%s each."
        % (
            inputs.variant.launcher,
            layout.ranks_per_node,
            pinning.units,
            "core" if pinning.by_core else "hardware thread",
            _s(pinning.units),
        )
    ]
    if pinning.straddling:
        lines.append("# Note: %s." % pinning.straddling)
    if how.program != SRUN:
        program = shlex.quote(how.program)
        lines.append("type -P %s >/dev/null || { result hosts 127 --launcher %s; exit 1; }" % (program, program))
    exports = inputs.launcher.exports(how, inputs.container.environment)
    lines += ["export %s=%s" % (name, shlex.quote(value)) for name, value in sorted(exports.items())]
    lines += ["launch=(" + _folded(inputs.launcher.words(how)), ")"]
    return "\n".join(lines) + "\n"


def _folded(words: List[str]) -> str:
    """Return words for bash, in lines of at most 110 characters where they allow it."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1] and len(lines[-1]) + len(word) > 105:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n    ".join(lines)


def _hosts(inputs: Inputs) -> str:
    library = " --library " + shlex.quote(inputs.plan.mpi.library) if inputs.plan.mpi else ""
    nodes = inputs.layout.nodes
    if inputs.plan.scheduler != SLURM:
        return """\
# 1. Hosts: this machine writes what it has, outside the container, into hosts/.
"${{tool[@]}}" probe --host --out "$job/hosts"{library} </dev/null
result hosts $? || exit
""".format(library=library)
    return """\
# 1. Hosts: each node writes what it has, outside the container, into hosts/.
srun --mpi=none --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task=1 \\
    "${{tool[@]}}" probe --host --out "$job/hosts"{library} </dev/null
result hosts $? || exit
""".format(nodes=nodes, library=library)


def _root(inputs: Inputs) -> str:
    nodes = inputs.layout.nodes
    reader = " ".join(shlex.quote(word) for word in inputs.reader)
    if inputs.plan.scheduler != SLURM:
        return """\
# Root: a container reads the image's canary. One that shows the host's root ends the job here.
"${{container[@]}}" "$image" -- {reader} >"$job/hosts/$(uname -n).root" 2>&1 </dev/null
result root $? || exit
""".format(reader=reader)
    return """\
# Root: on each node a container reads the image's canary. One that shows the host's root ends the job here.
srun --mpi=none --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task=1 \\
    --output={output} \\
    "${{container[@]}}" "$image" -- {reader} </dev/null
result root $? || exit
""".format(
        nodes=nodes,
        output=shlex.quote("%s/hosts/%%N.root" % inputs.folder.replace("%", "%%")),
        reader=reader,
    )


def _probe(inputs: Inputs) -> str:
    names = ""
    if inputs.plan.mpi:
        names = " --library " + shlex.quote(inputs.plan.mpi.library.rsplit("/", 1)[-1])
    names += "".join(" --expect " + word for word in inputs.launch.expects if word != ITEX)
    command = "%s probe --rank --out %s%s" % (_inner_tool(inputs), _evidence(inputs), names)
    number = 3 if inputs.staging else 2
    return """\
# %d. Probe: each rank proves which MPI library, network and CPUs it gets%s, into ranks/. A mismatch ends
#    the job here, before the payload.
%s
%s
""" % (
        number,
        " in the container" if inputs.runtime.contained else "",
        _step(inputs, "probe", command),
        "code=$?\ncollect\nresult probe $code || exit" if inputs.staging else "result probe $? || exit",
    )


def _payload(inputs: Inputs) -> str:
    command = _given(inputs, *inputs.launch.command)
    if inputs.image_python:
        more = " --shared " + _given(inputs, _RANKS) if inputs.staging else ""
        more += "" if inputs.launcher.ends_on_exit else " --abort"
        more += " --itex" if ITEX in inputs.launch.expects else ""
        command = "%s rank --out %s%s -- %s" % (_inner_tool(inputs), _evidence(inputs), more, command)
        what = "each rank, while `rank` notes which MPI library its processes use and how it ends."
    else:
        what = "the image has no Python, so the ranks prove nothing."
        if inputs.image_shell and not inputs.launcher.ends_on_exit:
            # A rank that has only exited would leave the others waiting.
            command = "/bin/sh -c '\"$@\" || kill -ABRT $$' sh " + command
    binds = staged.late(inputs.staging, inputs.container) if inputs.staging else []
    return """\
# {number}. Payload: {what}
{step}
{end}
exit
""".format(
        number=2 + bool(inputs.staging) + bool(inputs.image_python),
        what=what,
        step=_step(inputs, "payload", command, inputs.runtime.binds(binds) if binds else ()),
        end="code=$?\nunstage\nresult payload $code" if inputs.staging else "result payload $?",
    )


def _evidence(inputs: Inputs) -> str:
    """Return the folder, as the ranks see it, that they write their evidence to."""
    return _given(inputs, plans.NODE if inputs.staging else _RANKS)


def _step(inputs: Inputs, name: str, command: str, more: Sequence[str] = ()) -> str:
    """Return one step in the container, with ``more`` words of the runtime's; without stdin, which the launcher would
    eat from this script."""
    join = ""
    shared = inputs.staging is not None and inputs.staging.mounted  # one container a node as it is
    if inputs.variant.join and not shared and inputs.layout.ranks_per_node > 1:
        batch = inputs.plan.scheduler == SLURM
        tag = ('"$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-%s"' if batch else '"$$-%s"') % name
        join = " " + " ".join(inputs.runtime.join_options(inputs.layout.ranks_per_node, tag))
    options = "".join(" " + shlex.quote(word) for word in more) + join
    options += ' "$image" --' if inputs.runtime.contained else ""
    return """\
"${{launch[@]}}" "${{{way}[@]}}"{options} \\
    {command} </dev/null""".format(way=_way(inputs), options=options, command=command)


def _way(inputs: Inputs) -> str:
    """Return how the script calls the words by which a rank starts."""
    return "container" if inputs.runtime.contained else "native"


def _inner_tool(inputs: Inputs) -> str:
    # -I: nothing of the environment or the user's own packages; -S: no site packages, whose hooks cost a start.
    return "%s -I -S %s" % (shlex.quote(inputs.image_python or ""), _given(inputs, plans.TOOL))


def _given(inputs: Inputs, *words: str) -> str:
    """Return words for bash, with the paths of a container as the ranks are to be given them."""
    return " ".join(map(shlex.quote, inputs.runtime.given(inputs.container, words)))


def _s(count: int) -> str:
    return "" if count == 1 else "s"
