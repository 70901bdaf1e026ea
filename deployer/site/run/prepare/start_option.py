"""Choose among the start options of a plan, and refuse what cannot start on this site now."""

import os
from typing import Dict, NamedTuple, Optional

from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.bundle.image_launcher import ImageLauncher
from deployer.contract.rules import findings, hostfiles
from deployer.contract.site.choose import Obstacle, choose
from deployer.contract.site.plan import MEMORY, NOT_STAGED, PACKED, SIF, Plan, StartOption
from deployer.site.container import runtime_check
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Runtime
from deployer.site.install import squash
from deployer.site.run import inside_out, stage
from deployer.site.run.job_script.staging_script import StagedImage
from deployer.site.run.launchers import LAUNCHERS
from deployer.site.run.launchers.interface import Launcher
from deployer.site.run.prepare.resolve import ResolvedRun
from deployer.site.storage.store import InstalledImage
from deployer.system import elf, files, terminal, workers


class Chosen(NamedTuple):
    """The chosen start option of the plan."""

    start_option: StartOption
    #: The reason for the choice, in words.
    reason: str
    runtime: Runtime
    launcher: Launcher
    #: How nodes get the image; None: ranks read it where it was installed.
    staging: Optional[StagedImage]
    #: The image's launcher, if it starts the ranks.
    own: Optional[ImageLauncher] = None


def choose_option(resolved: ResolvedRun) -> Chosen:
    """Choose among the plan's start options, and refuse what cannot start on this site now.

    If only a SquashFS file of the image is missing, it is made.
    """
    store, request, installed = resolved.store, resolved.request, resolved.installed
    plan, layout = resolved.settled.plan, resolved.settled.layout
    need = stage.need(installed, resolved.manifest, layout.ranks_per_node * (layout.memory_mb or 0))
    if resolved.mounts:
        reason = "its mount points for {} cannot be made in it".format(", ".join(resolved.mounts))
        objection = Obstacle(reason, "pack it again with --mount-point for each")
        need = need._replace(objections={**dict.fromkeys(squash.NAMES, objection), **need.objections})
    against = vetoes(plan, installed)
    try:
        choice = choose(plan, layout.nodes, against, need, request.staging, request.runtime, layout.ranks)
    except Refused as refused:
        if request.staging or resolved.mounts or files.is_file(squash.path(installed.folder)):
            raise
        others = {form: each for form, each in need.objections.items() if form not in PACKED}
        try:
            choose(plan, layout.nodes, against, need._replace(objections=others), None, request.runtime)
            terminal.tell("no other way to stage the image fits: making its SquashFS file")
            squash.make(installed, min(workers.cores(), workers.MOST))
        except DeployerError:
            raise refused from None
        return choose_option(resolved)
    _check_drift(plan)
    if not files.is_file(store.tool):
        raise UsageError(f"there is no {store.tool}", "the job needs it on the nodes: copy deployer.pyz there")
    return Chosen(
        start_option=choice.start_option,
        reason=choice.reason,
        runtime=RUNTIMES[choice.start_option.runtime],
        launcher=LAUNCHERS[choice.start_option.launcher],
        staging=_staging(resolved, choice.start_option, need.sizes.get(choice.start_option.form, 0)),
        own=inside_out.find(plan, choice.start_option, installed, resolved.manifest.image),
    )


def _staging(resolved: ResolvedRun, option: StartOption, size_mb: int) -> Optional[StagedImage]:
    """Return how nodes get the image, which takes ``size_mb`` MiB; None if ranks read it from where it is installed."""
    if option.staging == NOT_STAGED or option.place is None:
        return None
    installed, layout = resolved.installed, resolved.settled.layout
    packed = option.staging in PACKED
    source = squash.path(installed.folder, option.form) if packed else installed.bundle
    runtime = RUNTIMES[option.runtime]
    # What other nodes send is in memory beside the unpacked image until the ranks start.
    second_mb = os.path.getsize(source) >> 20 if option.staging == MEMORY and layout.memory_mb else 0
    has_room = second_mb <= layout.ranks_per_node * (layout.memory_mb or 0)
    return StagedImage(
        kind=option.staging,
        place=option.place,
        image=installed.folder,
        source=source,
        size_mb=size_mb,
        abi=resolved.settled.plan.abi,
        mounts=resolved.mounts,
        relay=option.broadcast is not None and layout.nodes >= option.broadcast and has_room,
        kit=option.runtime if runtime.known.carried else "",
        held=packed and not runtime.known.mounts,
    )


def vetoes(plan: Plan, installed: InstalledImage, here: bool = False) -> Dict[str, str]:
    """Return by name why runtimes, launchers and start options of the plan cannot be used; others can be used.

    Args:
        here: whether the process will run on this host, so that user namespaces are tested here. For a job they are
            tested here only if the plan does not know whether its nodes have them. If it does, it omits runtimes.
    """
    reasons = {
        option.launcher: f"this deployer has no launcher {option.launcher}"
        for option in plan.start_options
        if option.launcher not in LAUNCHERS
    }
    for name in {option.runtime for option in plan.start_options}:
        if name not in RUNTIMES:
            reasons[name] = f"this deployer has no runtime {name}"
            continue
        modules = plan.modules_of(name)
        objection = runtime_check.objection(RUNTIMES[name], modules, installed.engine, here or plan.namespaces is None)
        if objection:
            reasons[name] = objection
    as_sif = squash.path(installed.folder, SIF)
    refusals = {option.name: runtime_check.refusal(option, installed.rootfs, as_sif) for option in plan.start_options}
    return {**{name: refusal for name, refusal in refusals.items() if refusal}, **reasons}


def _check_drift(plan: Plan) -> None:
    """Raise Refused if a library of the plan's MPI was replaced since the plan was made; the job checks the nodes.

    This is cheap: it reads a few hundred bytes of each file, or all of it if it has no build id. A missing file on
    a login node proves nothing, and the system libraries there may differ from those of the nodes.
    """
    if plan.mpi is None or plan.mpi.identity is None or not files.is_file(plan.mpi.library):
        return
    here = elf.identity(plan.mpi.library)
    if here != plan.mpi.identity:
        drift = findings.finding(
            "mpi.host-drift", "this host", library=plan.mpi.library, identity=here, expected=plan.mpi.identity
        )
        raise Refused(str(drift), drift.remedy)
    own = {path: known for path, known in plan.mpi.libraries.items() if not hostfiles.of_system(path)}
    for path, here in elf.changed(own).items():
        if here != elf.MISSING:
            drift = findings.drifted("this host", path, here, own[path])
            raise Refused(str(drift), drift.remedy)
