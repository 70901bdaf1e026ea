"""The parts of job.sh for a staged image: the container in the node's own folder, and the step that holds it. Pure.

The folder's name contains the job's number, so words of the container refer to a variable of the script, ``STAGE``.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract import hostfiles, shell
from deployer.contract import plan as plans
from deployer.contract.errors import UsageError
from deployer.contract.layout import Layout
from deployer.contract.shell import Code, Program, Text, Variable, Word, code
from deployer.site.container.container import OWN, needs_home
from deployer.site.container.runtimes.interface import Container, Mount, Runtime, Staged
from deployer.site.install import squash
from deployer.site.storage.store import ENGINE

#: The staged folder, which ``name`` names.
STAGE = Word(Variable("stage"))
#: Below the staged folder: the image, the evidence of the ranks, stubs and the tool if they are not inside the image,
#: and udocker's temporary files (``runtimes/udocker_start.py``).
ROOTFS, EVIDENCE, STUBS, TOOL, TEMPORARY = "rootfs", "evidence", "host", "deployer.pyz", "tmp"

#: The name of a private folder in a place for staging: this, the user's number, a hyphen, and random characters.
BEGIN = "deployer-stage-"
#: Paths inside the staged image, so that nothing is bound there.
_INSIDE = (plans.APP, plans.WHEELS, plans.VARIANT, plans.TOOL)

#: Starts the holder (``$@``). If it ends without an answer, this gives one, and job.sh does not wait for it. Signals
#: for the holder reach this shell too. It ends with 0, so that srun does not kill the other holders: they clean up.
_KEPT = Program(
    'trap : TERM INT HUP USR1 USR2; "$@" || { code=$?; echo "staged $code $(uname -n) ended with exit code $code"; }'
)

#: What a step does before it stages, in words of the script.
_FIRST = """\
Hosts and stage: each node writes its facts into hosts/, from outside the container, prints a line, and waits for
#    SIGUSR1, which this script sends if all nodes are right.
#    Then """
_DOES: Dict[str, str] = {
    plans.MEMORY: "unpacks the bundle into its memory",
    plans.DISK: "unpacks the bundle onto its local disk",
    plans.SQUASHFS: "copies the SquashFS image into its memory",
}


class StagedImage(NamedTuple):
    """How nodes get the image.

    Attributes:
        kind: one of ``plan.STAGINGS``.
        place: the node's own folder in which it is staged.
        image: the installed image's folder.
        source: the file that is staged.
        size_mb: MiB that it takes on the node.
        abi: the MPI family of the Horovod variant, or None.
        broadcast: the scheduler sends the file to the nodes; otherwise they read it where it is.
        kit: the runtime comes from the bundle's kit, and each node gets it too: its name; empty: it is the site's.
        mounts: mount points that the bundle does not list.
        held: the holder mounts the SquashFS file once, and ranks join it; otherwise each rank's runtime mounts it.
    """

    kind: str
    place: str
    image: str
    source: str
    size_mb: int
    abi: Optional[str]
    broadcast: bool = False
    kit: str = ""
    mounts: Sequence[str] = ()
    held: bool = False

    @property
    def packed(self) -> bool:
        """Return whether nodes have the image as one file, not unpacked."""
        return self.kind == plans.SQUASHFS


def moved(staging: StagedImage, container: Container) -> Container:
    """Return the container for a staged image.

    Unless the holder makes the binds, there is none of the job's folder: only the payload needs it, and each bind of a
    rank is looked up on the shared file system.
    """
    own = Staged(_staged(STUBS), hostfiles.FOLDER, "placeholders for single files of the host")
    binds: List[Mount] = [
        own if bind.target == own.target else bind for bind in container.binds if bind.target not in _INSIDE
    ]
    binds.append(Staged(_staged(EVIDENCE), plans.NODE, "local to the node: the evidence of its ranks"))
    environment = container.environment
    if staging.packed:
        binds.append(Staged(_staged(TOOL), plans.TOOL, "this tool"))
        if staging.abi:  # the image has the variants of all families
            here, there = plans.VARIANT + "/", squash.variant(staging.abi) + "/"
            environment = {
                name: shell.changed(value, lambda text: text.replace(here, there))
                for name, value in environment.items()
            }
    if not staging.held:
        binds = [bind for bind in binds if bind.target != plans.JOB]
    engine = _staged(ENGINE) if staging.kit else container.engine
    rootfs = _staged(squash.IMAGE if staging.packed and not staging.held else ROOTFS)
    return container._replace(rootfs=rootfs, binds=binds, environment=environment, engine=engine)


def late(staging: StagedImage, container: Container) -> List[Mount]:
    """Return the binds of ``container`` that only the payload gets."""
    return [] if staging.held else [bind for bind in container.binds if bind.target == plans.JOB]


def arrays(staging: StagedImage, runtime: Runtime, container: Container) -> List[Tuple[str, List[Text]]]:
    """Return the arrays of the script, by name: how the container is made, and how a rank enters it."""
    if not staging.held:
        return [("container", runtime.options(container))]
    mount = runtime.mount(container, _staged(squash.IMAGE))
    return [("mount", mount), ("container", runtime.into_mounted(container, STAGE))]


def tool(staging: StagedImage) -> Word:
    """Return the host's path of the node's own copy of this tool."""
    return _staged(TOOL) if staging.packed else _staged(ROOTFS) + plans.TOOL


def evidence() -> Word:
    """Return the host's path of the node's own folder for evidence of its ranks."""
    return _staged(EVIDENCE)


def _staged(name: str) -> Word:
    return STAGE + "/" + name


def name(staging: StagedImage) -> Code:
    """Return the lines that name the staged folder, inside a private folder with an unpredictable name."""
    return code(
        """\
# The image is staged: each node has its own copy here.
stage={begin}$UID-$unique/image

""",
        begin="%s/%s" % (staging.place, BEGIN),
    )


def step(
    staging: StagedImage,
    layout: Layout,
    runtime: Runtime,
    container: Container,
    reader: Sequence[str],
    library: Optional[str],
    judged: Code,
) -> Code:
    """Return the part of the script that stages the image and can end it.

    Args:
        reader: a command of the image that prints its canary; empty: the step does not read it.
        library: the plan's MPI on the host, or None.
        judged: the lines that judge the nodes, whose facts the step records before it stages.
    """
    if staging.kind not in _DOES:
        raise UsageError("an image cannot be staged as %r" % staging.kind, "known: " + ", ".join(_DOES))
    return code(
        """\
# 1. {what_first}each node {does} ({size} MiB).
#    The step runs beside the other steps and removes the image at the end. It prints a line when the image is ready,
#    and one when it has collected the evidence of its ranks (SIGUSR1); SIGUSR2 ends it. If a node fails, the job ends
#    here.
{root}{before}overlap=$(srun --help | grep -o -m 1 -e --overlap)  # needed to share since Slurm 20.11
pipe=$(mktemp -d)/answers && mkfifo "$pipe" || exit 6
cd /  # becomes the ranks' working folder; on a shared file system, each rank would look it up
srun --mpi=none $overlap {options} \\
    sh -c {kept} \\
    sh "${{tool[@]}}" stage{what}{hosts} \\
    --tool "${{tool[2]}}" --into "$stage"{sent} --out "$job/ranks"{words} </dev/null >"$pipe" &
holder=$!
exec 3<"$pipe"
rm -r "${{pipe%/*}}"

# answers: wait for a line from each node; false if one failed, with its exit code in $worst and its reason in $reason.
answers() {{
    local count=0 who status words
    worst=0 reason=
    while ((count < {nodes})); do
        read -r who status words <&3 || {{ ((worst)) || {{ worst=1 reason="the step ended early"; }}; break; }}
        [ "$who" = staged ] || continue
        count=$((count + 1))
        if ((status > worst)); then worst=$status reason=$words; fi
    done
    ((worst == 0))
}}

collect() {{
    worst=1 reason="the step ended early"
    kill -USR1 "$holder" 2>/dev/null && answers
}}

unstage() {{
    [ -n "$holder" ] || return
    kill -USR2 "$holder" 2>/dev/null
    while kill -0 "$holder" 2>/dev/null; do wait "$holder"; done
    holder=
}}
trap unstage EXIT

{judged}{after}collect || {{ result stage "$worst" --reason "$reason"; exit; }}
container[{at}]=$(type -P "${{container[{at}]}}" || echo "${{container[{at}]}}")  # looked up once, not per rank
""",
        kept=_KEPT,
        size=staging.size_mb,
        does=_DOES[staging.kind] + (" and mounts it" if staging.held else ""),
        what_first=code(_FIRST),
        before=_names(staging),
        hosts=_hosts(library),
        judged=judged,
        after=_broadcast(staging),
        sent=_sent(staging),
        root=_root(reader),
        words=_words(staging, reader),
        at=_place_of_starter(staging, runtime, container),
        options=[
            "--nodes=%d" % layout.nodes,
            "--ntasks=%d" % layout.nodes,
            "--ntasks-per-node=1",
            "--cpus-per-task=%d" % (layout.ranks_per_node * layout.asked_cpus),
            "--kill-on-bad-exit=1",  # if that shell is killed, for instance for memory, nobody answers
        ],
        what=_what(staging, container),
        nodes=layout.nodes,
    )


def _hosts(library: Optional[str]) -> Code:
    """Return the options for the facts of a node."""
    return code(
        ' \\\n    --hosts "$job/hosts"{library}',
        library=code(" --library {library}", library=library) if library else code(""),
    )


def _root(reader: Sequence[str]) -> Code:
    if not reader:
        return code("")
    return code(
        """\
#    Before it prints that the image is ready, a container reads the image's marker file, which the host's root does
#    not have.
root=("${{container[@]}}" "$image" -- {words})
""",
        words=reader,
    )


def _words(staging: StagedImage, reader: Sequence[str]) -> Code:
    """Return the words of commands that the nodes run: what reads the canary, and what mounts the image."""
    mount = code(' "${{mount[@]}}"' if staging.held else "")
    if reader:
        return code(' --reader "${{#root[@]}}" -- "${{root[@]}}"{mount}', mount=mount)
    return code(" --{mount}", mount=mount) if staging.held else mount


def _place_of_starter(staging: StagedImage, runtime: Runtime, container: Container) -> int:
    """Return the place of the runtime's program in the words of a rank."""
    inside = moved(staging, container)
    words = runtime.into_mounted(inside, STAGE) if staging.held else runtime.options(inside)
    return words.index(runtime.starter(inside.engine))


def _broadcast(staging: StagedImage) -> Code:
    """Return the line that sends the file to the nodes, into the private folder of each, which the nodes always remove.

    If it does not arrive, the nodes read the file where it is.
    """
    return code('sbcast --force {source} "$sent"\n', source=staging.source) if staging.broadcast else code("")


def _names(staging: StagedImage) -> Code:
    """Return the lines that name the copy of the file that is sent."""
    if not staging.broadcast:
        return code("")
    digest = code("digest=$(sha256sum <{source})\n", source=staging.source) if staging.packed else code("")
    return code("sent=${{stage%/*}}/sent\n{digest}", digest=digest)


def _sent(staging: StagedImage) -> Code:
    if not staging.broadcast:
        return code("")
    # The nodes verify a bundle by its own digests.
    return code(' --sent "$sent" --sha256 "${{digest%% *}}"') if staging.packed else code(' --sent "$sent"')


def _what(staging: StagedImage, container: Container) -> Code:
    """Return the options that define what is staged, one per line."""
    found: List[Tuple[str, Text]] = [("--image", staging.image), ("--source", staging.source)]
    found += [("--abi", staging.abi)] if staging.abi else []
    lines = [code(" \\\n    {words}", words=pair) for pair in found]
    lines += [code(" \\\n    --kit {name}", name=staging.kit)] if staging.kit else []
    lines += [code(" \\\n    --mount-point {path}", path=path) for path in staging.mounts]
    lines += [code(" \\\n    --home {home}", home=Word(OWN))] if needs_home(container) else []
    stubs = [bind.source for bind in container.binds if bind.target == hostfiles.FOLDER]
    return shell.together([*lines, *(code(" \\\n    --stubs {path}", path=path) for path in stubs)])
