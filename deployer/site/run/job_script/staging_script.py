"""The parts of job.sh for a staged image: the container in the node's own folder, and the step that holds it. Pure.

The folder's name contains the job's id, so the container's words refer to the script variable ``STAGE``.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import shell
from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Code, Program, Text, Variable, Word, code
from deployer.contract.rules import hostfiles
from deployer.contract.site import plan as plans
from deployer.contract.site.layout import Layout
from deployer.site.container.container import OWN, needs_home
from deployer.site.container.runtimes.interface import Container, Mount, Runtime, Staged
from deployer.site.install import squash
from deployer.site.run.templates import fill
from deployer.site.storage.store import ENGINE

#: The staged folder, whose path is in ``name``.
STAGE = Word(Variable("stage"))
#: In the staged folder: the image, the evidence of the ranks, stubs and the tool if they are outside the image, and
#: udocker's temporary files (``runtimes/udocker_start.py``).
ROOTFS, EVIDENCE, STUBS, TOOL, TEMPORARY = "rootfs", "evidence", "host", "deployer.pyz", "tmp"
#: A link to what ranks start: the SquashFS or SIF file, or the folder at which it is mounted for all ranks.
STARTED = "image"

#: The name of a private folder in a staging place: this prefix, the user's id, a hyphen, and random characters.
BEGIN = "deployer-stage-"
#: Paths that are inside the staged image and so need no bind.
_INSIDE = (plans.APP, plans.WHEELS, plans.VARIANT, plans.TOOL)

#: Starts the holder (``$@``). If it ends without an answer, this shell answers, so that job.sh does not wait for it.
#: Signals for the holder also reach this shell. It exits with 0, because srun would otherwise kill the other holders
#: before they clean up.
_KEPT = Program(
    'trap : TERM INT HUP USR1 USR2; "$@" || { code=$?; echo "staged $code $(uname -n) ended with exit code $code"; }'
)

#: What a node does, in the script's words.
_DOES: Dict[str, str] = {
    plans.MEMORY: "unpacks the bundle into its memory",
    plans.DISK: "unpacks the bundle onto its local disk",
    plans.SQUASHFS: "copies the SquashFS image into its memory",
    plans.MOUNTED: "uses the SquashFS image where it is installed",
}


class StagedImage(NamedTuple):
    """How nodes get the image.

    Attributes:
        kind: one of ``plan.STAGINGS``.
        place: the folder on the node in which it is staged.
        image: the installed image's folder.
        source: the file to stage.
        size_mb: MiB that it takes on the node.
        abi: the MPI family of the Horovod variant, or None.
        relay: whether the nodes send the file on to each other; otherwise each reads it.
        kit: the name of the runtime from the bundle's kit, which each node also gets; empty: the site's runtime.
        mounts: mount points that the bundle does not list.
        held: whether the holder mounts the SquashFS file once for all ranks; otherwise each rank's runtime mounts it.
    """

    kind: str
    place: str
    image: str
    source: str
    size_mb: int
    abi: Optional[str]
    relay: bool = False
    kit: str = ""
    mounts: Sequence[str] = ()
    held: bool = False

    @property
    def packed(self) -> bool:
        """Return whether nodes get the image as one file without unpacking it."""
        return self.kind in plans.PACKED


def moved(staging: StagedImage, container: Container) -> Container:
    """Return the container for a staged image.

    Unless the holder makes the binds, the job's folder is not bound: only the payload needs it, and each bind of a rank
    causes a lookup on the shared file system.
    """
    own = Staged(_staged(STUBS), hostfiles.FOLDER, "placeholders for single files of the host")
    binds: List[Mount] = [
        own if bind.target == own.target else bind for bind in container.binds if bind.target not in _INSIDE
    ]
    binds.append(Staged(_staged(EVIDENCE), plans.NODE, "local to the node: the evidence of its ranks"))
    environment = container.environment
    if staging.packed:
        binds.append(Staged(_staged(TOOL), plans.TOOL, "this tool"))
        if staging.abi:  # the image contains the variants of all families
            here, there = plans.VARIANT + "/", squash.variant(staging.abi) + "/"
            environment = {
                name: shell.changed(value, lambda text: text.replace(here, there))
                for name, value in environment.items()
            }
    if not staging.held:
        binds = [bind for bind in binds if bind.target != plans.JOB]
    engine = _staged(ENGINE) if staging.kit else container.engine
    rootfs = _staged(STARTED if staging.packed and not staging.held else ROOTFS)
    return container._replace(rootfs=rootfs, binds=binds, environment=environment, engine=engine)


def late(staging: StagedImage, container: Container) -> List[Mount]:
    """Return the binds of ``container`` that only the payload gets."""
    return [] if staging.held else [bind for bind in container.binds if bind.target == plans.JOB]


def arrays(staging: StagedImage, runtime: Runtime, container: Container) -> List[Tuple[str, List[Text]]]:
    """Return the arrays of the script, by name: how to create the container, and how a rank enters it."""
    if not staging.held:
        return [("container", runtime.options(container))]
    mount = runtime.mount(container, _staged(squash.IMAGE))
    return [("mount", mount), ("container", runtime.into_mounted(container, STAGE))]


def tool(staging: StagedImage) -> Word:
    """Return the host path of the node's own copy of this tool."""
    return _staged(TOOL) if staging.packed else _staged(ROOTFS) + plans.TOOL


def evidence() -> Word:
    """Return the host path of the node's own folder for its ranks' evidence."""
    return _staged(EVIDENCE)


def _staged(name: str) -> Word:
    return STAGE + "/" + name


def step(
    staging: StagedImage,
    layout: Layout,
    runtime: Runtime,
    container: Container,
    reader: Sequence[str],
    keep: bool,
    library: Optional[str],
    network: Code,
) -> Code:
    """Return the part of the script that stages the image and can end the staging step.

    Args:
        reader: a command in the image that prints its canary; empty: the step does not read it.
        keep: whether caches are kept.
        library: the plan's MPI on the host, or None.
        network: the lines for the nodes' rendezvous; may be empty.
    """
    if staging.kind not in _DOES:
        raise UsageError(f"an image cannot be staged as {staging.kind!r}", "known: " + ", ".join(_DOES))
    inside = moved(staging, container)
    words = runtime.into_mounted(inside, STAGE) if staging.held else runtime.options(inside)
    what: List[Tuple[Text, ...]] = [("--image", staging.image), ("--source", staging.source)]
    what += [("--abi", staging.abi)] if staging.abi else []
    what += [("--kit", staging.kit)] if staging.kit else []
    what += [("--once", runtime.program)] if staging.packed and not staging.held else []
    what += [("--in-place",)] if staging.kind == plans.MOUNTED else []
    what += [("--mount-point", path) for path in staging.mounts]
    what += [("--home", Word(OWN))] if needs_home(container) else []
    what += [("--stubs", bind.source) for bind in container.binds if bind.target == hostfiles.FOLDER]
    return fill(
        "staging.sh",
        "step",
        kept=_KEPT,
        size=staging.size_mb,
        does=_DOES[staging.kind] + (" and mounts it" if staging.held else ""),
        library=library,
        network=network,
        reader=list(reader),
        relay=staging.relay,
        held=staging.held,
        keep=keep,
        at=words.index(runtime.starter(inside.engine)),  # the runtime's program in a rank's words
        options=[
            "--nodes=%d" % layout.nodes,
            "--ntasks=%d" % layout.nodes,
            "--ntasks-per-node=1",
            "--cpus-per-task=%d" % (layout.ranks_per_node * layout.asked_cpus),
            "--kill-on-bad-exit=1",  # otherwise nothing answers if that shell is killed, for example for memory
        ],
        what=shell.together([code(" \\\n    {words}", words=pair) for pair in what]),
        nodes=layout.nodes,
    )
