"""run: create a job folder with a batch script from an installed image, a plan and a job, and submit the script."""

import hashlib
import os
import re
import shlex
import time
from contextlib import suppress
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.base.shell import Value, plain
from deployer.contract.bundle.image_launcher import ImageLauncher
from deployer.contract.bundle.job import TORCHRUN, Job, seconds, started
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.proof.evidence import Launch
from deployer.contract.rules import findings, hostfiles
from deployer.contract.rules.verdict import REFUSE
from deployer.contract.site import layout as layouts
from deployer.contract.site import links as linked
from deployer.contract.site import memory_copies
from deployer.contract.site import plan as plans
from deployer.contract.site.choose import Obstacle, choose
from deployer.contract.site.plan import Bind, Plan, StartOption
from deployer.site.container import container, links, runtime_check
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.install import mount_points, squash
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import NotTaken
from deployer.site.rank import rendezvous
from deployer.site.rank.devices import NAMES as GPU_NAMES
from deployer.site.run import command, gpus, inside_out, jobfolder, stage
from deployer.site.run.job_script import script
from deployer.site.run.job_script.staging_script import StagedImage
from deployer.site.run.job_script.submission import BatchRequest
from deployer.site.run.jobfolder import JobFolder
from deployer.site.run.launchers import LAUNCHERS
from deployer.site.run.launchers.interface import Launcher
from deployer.site.run.pinning import pin
from deployer.site.run.request import RunRequest, settle
from deployer.site.storage import data, inventory, packages, pythons, unfinished
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import elf, files, terminal

_SHOWN = 10  # maximum number of `check` findings to print
#: The runtime whose process outside the container forwards SIGUSR1, regardless of whether the payload handles it.
_PASSES_ON = "podman"
#: Seconds to wait for the id of a job that another process is submitting, and between two checks. The wait starts when
#: the job folder is created: 60 s for the batch system, 10 s for the shared file system, and 5 s in reserve.
_NUMBER_SECONDS, _NUMBER_PAUSE = 75.0, 2.0


class EarlierJob(NamedTuple):
    """A job with the name in a request.

    Attributes:
        folder: its folder.
        number: its id in the batch system; empty: see ``problem``.
        problem: why it is not this request's job, or why it may not have been submitted.
    """

    folder: str
    number: str = ""
    problem: str = ""


class _Resolved(NamedTuple):
    """The user's request, with its data from the store and the plan."""

    store: Store
    request: RunRequest
    installed: InstalledImage
    manifest: Manifest
    #: The installed bundles with the data that this one needs.
    data: List[data.InstalledData]
    job: Job
    #: Whether the job is the caller's instead of the bundle's, so that its command is not checked.
    own: bool
    plan: Plan
    layout: layouts.Layout
    #: The request to the batch system, besides the layout.
    asked: BatchRequest
    #: The user's variables.
    environment: Dict[str, str]
    #: How many seconds before the time limit to warn the ranks; None: never.
    warn: Optional[int]
    #: Mount points that the bundle does not list.
    mounts: Sequence[str]


class _Chosen(NamedTuple):
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


def earlier(store: Store, request: RunRequest, tell: Callable[[str], None]) -> Optional[EarlierJob]:
    """Return the job that the same request has already created; None if there is none.

    A laptop that got no answer repeats its request with the same suffix of the job's name. Another process
    may be submitting the job at that moment. If so, wait for the job's id; ``tell`` then receives a line.

    Raises:
        DeployerError: the files of that job cannot be read, or the batch system does not answer.
    """
    if request.token is None:
        return None
    receipt = store.find(request.image).receipt
    folder = os.path.join(store.jobs, f"{receipt.name}-{request.token}")
    state = files.status(folder, follow=False)
    if state is None:
        return None
    try:
        found = _made_before(folder, receipt.digest, state.st_mtime, tell)
    except DeployerError:
        if files.lexists(folder):
            raise
        return None
    # If the batch system has refused the job, another process removes the folder at once. Then there is no job.
    return found if found.number or files.lexists(folder) else None


def _made_before(folder: str, digest: str, created: float, tell: Callable[[str], None]) -> EarlierJob:
    """Return the job in ``folder``; wait for its id. The result is invalid if the folder is removed during the wait.

    Raises:
        DeployerError: its files cannot be read, or the batch system does not answer.
    """
    if not files.is_own(folder):
        return EarlierJob(folder, problem="is another user's")
    if result.launch(folder).digest != digest:
        return EarlierJob(folder, problem="is of another bundle")
    until = min(time.time(), created) + _NUMBER_SECONDS
    number = jobs.number(folder)
    if not number and time.time() <= until:
        tell(f"waiting for the number of job {os.path.basename(folder)}")
    while not number:
        if time.time() > until or not files.lexists(folder):
            return EarlierJob(folder, problem="has no number, so perhaps it was not submitted")
        time.sleep(_NUMBER_PAUSE)
        number = jobs.number(folder)
    return EarlierJob(folder, number)


def renamed(request: RunRequest) -> RunRequest:
    """Return the request with another suffix of the job's name. It is always the same, so it can be repeated too."""
    stamp, _, digits = (request.token or "").rpartition("-")
    return request._replace(token=f"{stamp}-{hashlib.sha256(digits.encode()).hexdigest()[: len(digits)]}")


def prepare(store: Store, request: RunRequest, own: Optional[Job] = None) -> str:
    """Create the job's folder with job.sh and job.json, and return its path; submit nothing.

    Args:
        own: a job that replaces the bundle's jobs.

    Raises:
        UsageError: an image, plan, job or path does not exist.
        Refused: `check` refused it, the layout does not fit the nodes, no start option can be used, or a job of this
            name exists.
    """
    resolved = _resolve(store, request, own)
    return jobfolder.make(store.jobs, _render(resolved, _choose(resolved)))


def _resolve(store: Store, request: RunRequest, own: Optional[Job]) -> _Resolved:
    """Find the image, plan and job of ``request``, and compute the layout."""
    installed = store.find(request.image)
    if not request.just_checked:
        inventory.check(store, installed)
    manifest = installed.manifest()
    found = data.resolve(store, manifest)
    settled = settle(installed.plans(request.plan), manifest.name, manifest.jobs, request, os.environ, own)
    plan = settled.plan
    check_verdict(plan, request.force)
    mount_points.make_if_permitted(installed.rootfs, plan.mounts)
    binds = [] if request.runtime == plans.NATIVE else request.binds  # the host has its own folders
    return _Resolved(
        store=store,
        request=request,
        installed=installed,
        manifest=manifest,
        data=found,
        own=own is not None,
        **settled._asdict(),
        mounts=[*plan.mounts, *_others_mount_points(installed, manifest, binds)],
    )


def _others_mount_points(installed: InstalledImage, manifest: Manifest, options: Sequence[str]) -> List[str]:
    """Return ``--bind`` targets that only other images have as mount points; nodes that unpack the image lack them."""
    targets = [plain(bind.target) for bind in container.parse_binds(options, None)]
    return mount_points.others(installed, manifest.mount_points, targets)


def _choose(resolved: _Resolved) -> _Chosen:
    """Choose among the plan's start options, and refuse what cannot start on this site now."""
    store, request, installed = resolved.store, resolved.request, resolved.installed
    plan, layout = resolved.plan, resolved.layout
    need = stage.need(store, installed, resolved.manifest, layout.ranks_per_node * (layout.memory_mb or 0))
    if resolved.mounts:
        reason = "its mount points for {} cannot be made in it".format(", ".join(resolved.mounts))
        objection = Obstacle(reason, "pack it again with --mount-point for each")
        need = need._replace(objections={plans.SQUASHFS: objection, **need.objections})
    choice = choose(plan, layout.nodes, vetoes(plan, installed), need, request.staging, request.runtime)
    check_drift(plan)
    if not files.is_file(store.tool):
        raise UsageError(f"there is no {store.tool}", "the job needs it on the nodes: copy deployer.pyz there")
    return _Chosen(
        start_option=choice.start_option,
        reason=choice.reason,
        runtime=RUNTIMES[choice.start_option.runtime],
        launcher=LAUNCHERS[choice.start_option.launcher],
        staging=_staging(resolved, choice.start_option, need.size(choice.start_option.staging)),
        own=inside_out.find(plan, choice.start_option, installed, resolved.manifest.image),
    )


def _render(resolved: _Resolved, chosen: _Chosen) -> JobFolder:
    """Return job.sh and job.json of a new job, without writing them."""
    store, installed, plan = resolved.store, resolved.installed, resolved.plan
    contained, image = chosen.runtime.contained, resolved.manifest.image
    name = f"{installed.receipt.name}-{resolved.request.token or jobfolder.new_token()}"
    folder = os.path.join(store.jobs, name)
    launch = _launch(resolved, chosen, name)
    users = users_binds(installed, plan, chosen.runtime, resolved.request.binds)
    made = _container(resolved, chosen, folder, users)
    if resolved.request.again is not None and chosen.start_option.runtime == _PASSES_ON and image.python is None:
        raise Refused(
            f"--again: the image has no Python, so {_PASSES_ON} would send the warning of the time limit to a payload "
            "that may not handle it, and end it",
            "choose another runtime with --runtime, or put a Python into the image",
        )
    if contained and not resolved.own and not resolved.request.force:
        command.refuse(installed, image, plan, resolved.job, made.binds)
    interface = made.environment.get("GLOO_SOCKET_IFNAME")
    in_home, in_job = _links(resolved)
    workdir = resolved.job.workdir or ""
    launch = launch._replace(
        links=in_home,
        folder_links=in_job,
        workdir=workdir[len(plans.JOB) + 1 :] if workdir.startswith(plans.JOB + "/") else "",
        bound=_bound(plan, users, made),
        provider=_provider(made.environment),
        interface=interface if isinstance(interface, str) else None,
        fast=_fast(made.environment, plan),
    )
    python = pythons.choose(plan.python)
    inputs = script.Inputs(
        launch=launch,
        layout=resolved.layout,
        plan=plan,
        start_option=chosen.start_option,
        runtime=chosen.runtime,
        launcher=chosen.launcher,
        container=made,
        folder=folder,
        tool=store.tool,
        python=python,
        image_python=image.python if contained else python,
        asked=resolved.asked,
        staging=chosen.staging,
        reader=canary_reader(installed.rootfs, image.python) if contained else (),
        workdir=resolved.job.workdir or (None if container.has_workdir(image) else plans.JOB),
        stdin=resolved.job.stdin,
        gpus=_gpus_of_each(resolved, chosen.start_option),
        own_launcher=chosen.own,
    )
    return JobFolder(launch, script.render(inputs), script.agent(inputs))


def _links(resolved: _Resolved) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return the links in the private HOME and the links in the job's folder. Raises UsageError, Refused."""
    in_home, in_job = linked.split(links.resolve(resolved.installed, resolved.data, resolved.job.links))
    # A node reads them from the job's record by the same rule.
    return linked.check_made(in_home), linked.check_made(in_job)


def _gpus_of_each(resolved: _Resolved, option: StartOption) -> str:
    """Return the word that specifies the GPUs of each rank for `rank`; empty: all."""
    each = resolved.job.gpus
    return "" if each is None else gpus.word(each, resolved.plan, _near_gpus(resolved, option))


def _launch(resolved: _Resolved, chosen: _Chosen, name: str) -> Launch:
    """Return the record of the job ``name``, without the binds and provider, which depend on its container."""
    receipt, plan, layout = resolved.installed.receipt, resolved.plan, resolved.layout
    return Launch(
        job=name,
        bundle=receipt.name,
        version=receipt.version,
        digest=receipt.digest,
        site=plan.site,
        start_option=chosen.start_option.name,
        reason=chosen.reason,
        runtime=chosen.start_option.runtime,
        nodes=layout.nodes,
        ranks_per_node=layout.ranks_per_node,
        threads=layout.threads,
        time=resolved.job.time,
        command=started(resolved.job),
        mpi=plan.mpi,
        provider=None,
        created=int(time.time()),
        data=tuple(item.carrier.receipt.digest for item in resolved.data),
        expects=packages.expects(resolved.installed, plan) if chosen.runtime.contained else (),
        checked=plan.checked,
        forced=resolved.request.force and plan.checked is not None and plan.checked.verdict == REFUSE,
        straddling=pin(layout).straddling,
        scheduler=plan.scheduler,
        warn=resolved.warn,
        again=resolved.request.again or 0,
        without_mpi=plan.abi == plans.NO_MPI and chosen.runtime.contained,
        workers=layout.workers if resolved.job.launch == TORCHRUN else 1,
    )


def _container(resolved: _Resolved, chosen: _Chosen, folder: str, users: Sequence[Bind]) -> Container:
    """Return the container of the ranks; ``users`` are the user's binds."""
    installed, plan = resolved.installed, resolved.plan
    near = _near_gpus(resolved, chosen.start_option)
    made = container.make(
        installed,
        resolved.manifest.image,
        plan,
        binds=[
            Bind(resolved.store.tool, plans.TOOL, "this tool"),
            Bind(folder, plans.JOB, "the job's folder"),
            *data.binds(installed, resolved.data),
            *users,
        ],
        environment={
            **_environment(resolved.layout, plan, chosen.start_option, resolved.request.again is not None, chosen.own),
            **{name: value for name, value in near.items() if resolved.job.gpus is None or name != plan.gpu_order},
            **resolved.job.environment,
        },
        variant=installed.variant(plan.abi) if plan.abi else None,
        contained=chosen.runtime.contained,
        own=resolved.request.home,
        makes_targets=chosen.runtime.makes_targets,
        users=resolved.environment,
    )._replace(arguments=chosen.start_option.arguments, devices=cdi_names(plan))
    if chosen.own:  # overrides the rest: without these settings it would not find the nodes
        settings = script.inside_environment(chosen.start_option, resolved.layout, chosen.own)
        made = made._replace(environment={**made.environment, **settings})
    return _of_each_rank(made, resolved) if chosen.runtime.contained else made


def _of_each_rank(made: Container, resolved: _Resolved) -> Container:
    """Return a container in which `rank` can set the variables of a rendezvous.

    An image's own values would point to another machine. Outside the container, `rank` sets the host's variables.
    """
    given = {*resolved.plan.environment, *resolved.job.environment, *resolved.environment}
    names = [name for name in rendezvous.NAMES if name not in given]
    devices = GPU_NAMES if resolved.job.gpus is not None else ()
    environment = {name: value for name, value in made.environment.items() if name not in names}
    outside = [*names, *devices] if resolved.manifest.image.python is None else []
    return made._replace(environment=environment, passed=[*made.passed, *outside])


def users_binds(
    installed: InstalledImage, plan: Optional[Plan], runtime: Runtime, options: Sequence[str]
) -> List[Bind]:
    """Return the binds of ``--bind``. Raises UsageError if ``runtime`` does not support one of them."""
    names = dict.fromkeys(option.runtime for option in plan.containers) if plan else {}
    others = [name for name in names if name in RUNTIMES and RUNTIMES[name].makes_targets]
    rootfs = installed.rootfs if runtime.contained else None
    return container.parse_binds(options, rootfs, runtime.makes_targets, others)


def _bound(plan: Plan, users: Sequence[Bind], made: Container) -> List[str]:
    """Return the host paths that the job binds or uses, which must exist on each node."""
    single = [bind for bind in made.binds if bind.target.startswith(hostfiles.FOLDER + "/")]
    chosen = [bind for bind in made.binds if bind.target == plans.HOME]
    devices = [path for path in plan.devices if path.startswith("/")]
    return sorted({*devices, *(plain(bind.source) for bind in [*plan.binds, *single, *users, *chosen])})


def cdi_names(plan: Optional[Plan]) -> List[str]:
    """Return the plan's devices that are names in the Container Device Interface."""
    return [name for name in plan.devices if not name.startswith("/")] if plan else []


def _staging(resolved: _Resolved, option: StartOption, size_mb: int) -> Optional[StagedImage]:
    """Return how nodes get the image, which takes ``size_mb`` MiB; None if ranks read it from where it is installed."""
    if option.staging == plans.NOT_STAGED or option.place is None:
        return None
    installed = resolved.installed
    packed = option.staging == plans.SQUASHFS
    runtime = RUNTIMES[option.runtime]
    return StagedImage(
        kind=option.staging,
        place=option.place,
        image=installed.folder,
        source=squash.path(installed.folder) if packed else resolved.store.bundle(installed.receipt),
        size_mb=size_mb,
        abi=resolved.plan.abi,
        mounts=resolved.mounts,
        broadcast=option.broadcast is not None and resolved.layout.nodes >= option.broadcast,
        kit=option.runtime if runtime.known.carried else "",
        held=packed and not runtime.known.mounts,
    )


def submit(folder: str) -> str:
    """Submit the script of a prepared job and return the scheduler's id. Raises Refused, TransferError.

    If the batch system has certainly not accepted the job, its folder is removed. After any other error, the batch
    system may have the job.
    """
    launch = result.launch(folder)
    scheduler = SCHEDULERS[launch.scheduler]
    path = os.path.join(folder, result.SCRIPT)
    argv = scheduler.submit(path, seconds(launch.time))
    try:
        job_id = jobs.submit(scheduler, argv, path)
    except NotTaken:
        with suppress(OSError, DeployerError):  # gc removes the remaining files
            unfinished.discard(folder)
        raise
    try:
        files.write_text(os.path.join(folder, result.JOB_ID), job_id + "\n")
    except DeployerError as error:  # job.sh writes the id too
        terminal.warn(f"job {job_id} was submitted, but: {error.message}")
    return job_id


def warnings(folder: str) -> List[str]:
    """Return warnings for a prepared job: one line per finding of ``check``, and one for ranks across NUMA domains."""
    launch = result.launch(folder)
    lines = [launch.straddling] if launch.straddling else []
    checked = launch.checked
    if checked is None or not checked.findings:
        return lines
    meaning = f": {checked.meaning}" if checked.meaning else ""
    lines += [
        f"check said {checked.verdict} on the laptop{checked.by}{meaning}",
        *map(str, checked.findings[:_SHOWN]),
    ]
    more = len(checked.findings) - _SHOWN
    return [*lines, "and %d more: see the plan" % more] if more > 0 else lines


def vetoes(plan: Plan, installed: InstalledImage, here: bool = False) -> Dict[str, str]:
    """Return by name why runtimes and launchers of the plan cannot be used; those not listed can be used.

    Args:
        here: whether the process will run on this host, so that user namespaces are tested here. For a job they are
            tested here only if the plan does not know whether its nodes have them.
    """
    found = {
        option.launcher: f"this deployer has no launcher {option.launcher}"
        for option in plan.start_options
        if option.launcher not in LAUNCHERS
    }
    for name in {option.runtime for option in plan.start_options}:
        if name not in RUNTIMES:
            found[name] = f"this deployer has no runtime {name}"
            continue
        modules = plan.modules_of(name)
        objection = runtime_check.objection(RUNTIMES[name], modules, installed.engine, here or not plan.namespaces)
        if objection:
            found[name] = objection
    return found


def check_verdict(plan: Plan, force: bool = False) -> None:
    """Raise Refused if ``check`` refused the bundle on the laptop, unless forced."""
    if plan.checked is None or plan.checked.verdict != REFUSE or force:
        return
    against = plan.checked.against
    codes = ", ".join(sorted({item.code for item in against}))
    first = against[0] if against else None
    found = findings.finding(
        "check.refused",
        plan.site,
        by=plan.checked.by,
        codes=codes or "no finding",
        first=f"{first.subject}: {first.message}" if first else "see the plan",
        remedy=first.remedy if first else "make a new plan",
    )
    raise Refused(f"{found.subject}: {found.message}", found.remedy)


def check_drift(plan: Plan) -> None:
    """Raise Refused if a library of the plan's MPI was replaced since the plan was made; the job checks the nodes.

    This is cheap: it reads a few hundred bytes of each file, or all of it if it has no build id. A missing file on
    a login node proves nothing, and the system libraries there may differ from those of the nodes.
    """
    if plan.mpi is None or plan.mpi.identity is None or not files.is_file(plan.mpi.library):
        return
    here = elf.identity(plan.mpi.library)
    if here != plan.mpi.identity:
        found = findings.finding(
            "mpi.host-drift", "this host", library=plan.mpi.library, identity=here, expected=plan.mpi.identity
        )
        raise Refused(str(found), found.remedy)
    own = {path: known for path, known in plan.mpi.libraries.items() if not hostfiles.of_system(path)}
    for path, here in elf.changed(own).items():
        if here != elf.MISSING:
            found = findings.drifted("this host", path, here, own[path])
            raise Refused(str(found), found.remedy)


def canary_reader(rootfs: str, python: Optional[str]) -> List[str]:
    """Return a command that prints the image's canary; empty if there is no canary or no program to read it."""
    if not files.is_file(rootfs + plans.CANARY):
        return []
    for program in ("/bin/cat", "/usr/bin/cat"):
        if files.lexists(rootfs + program):
            return [program, plans.CANARY]
    code = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
    return [python, "-I", "-S", "-c", code, plans.CANARY] if python else []


def _environment(
    layout: layouts.Layout,
    plan: Plan,
    option: StartOption,
    continues: bool = False,
    own: Optional[ImageLauncher] = None,
) -> Dict[str, str]:
    found = layouts.environment(layout)
    launcher = LAUNCHERS[option.launcher]
    found.update(copies(plan, option))
    how = script.start_inside(layout, own) if own else script.start(plan, option, layout, launcher)
    found.update(launcher.environment(how))
    found["DEPLOYER_RESULT"] = f"{plans.JOB}/{result.PAYLOAD_FILE}"
    if continues:
        found["DEPLOYER_CHECKPOINT"] = f"{plans.JOB}/{result.CHECKPOINT}"
    return found


def _near_gpus(resolved: _Resolved, option: StartOption) -> Dict[str, str]:
    """Return the variables that give each rank the GPUs near its CPUs, if the job has all GPUs of its nodes."""
    plan = resolved.plan
    whole = resolved.asked.gpus == plan.batch.gpus is not None and not resolved.request.options.directives
    return gpus.order(resolved.layout, plan, resolved.job.gpus) if whole and option.launcher == script.SRUN else {}


def copies(plan: Plan, option: StartOption) -> Dict[str, str]:
    """Return the variables for copies between ranks' memories, if the plan uses them and the runtime prevents them."""
    if not memory_copies.prevented(option):
        return {}
    return memory_copies.switched_off(plan.abi or "")


def _provider(environment: Mapping[str, Value]) -> Optional[str]:
    """Return libfabric's selected provider; None if the selection is a list or an exclusion ("^psm3")."""
    found = environment.get("FI_PROVIDER", "")
    return found if isinstance(found, str) and re.match(r"^[a-z0-9_;-]+\Z", found) else None


def _fast(environment: Mapping[str, Value], plan: Plan) -> Optional[str]:
    """Return a description of the fast network that the plan uses; None if it does not list one."""
    adapters = environment.get("NCCL_IB_HCA")
    if isinstance(adapters, str):
        return f"InfiniBand adapters (NCCL_IB_HCA{adapters})"
    interface = plan.environment.get("GLOO_SOCKET_IFNAME")  # from the site only if the fabric is fast
    return f"a fast fabric ({interface})" if interface else None


def show_script(folder: str) -> str:
    """Return the text of a job's script; bytes that are not UTF-8 are kept as ``files.write_text`` received them."""
    with open(os.path.join(folder, result.SCRIPT), encoding="utf-8", errors="surrogateescape") as stream:
        return stream.read()


def by_hand(folder: str) -> str:
    """Return the command to start a prepared job manually."""
    words = SCHEDULERS[result.launch(folder).scheduler].by_hand
    return words.replace("./" + result.SCRIPT, result.SCRIPT).replace(
        result.SCRIPT, shlex.quote(os.path.join(folder, result.SCRIPT))
    )
