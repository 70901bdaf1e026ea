"""exec and shell: one process in the container, with the plan's binds and environment, in the user's allocation.

This process becomes the runtime, which becomes the command. The command therefore keeps the pid, receives signals and
descriptors (including PMI's), and sets the exit code.
"""

import os
import re
from typing import List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Text, Value, argv, variables
from deployer.contract.base.shell import data as text_of
from deployer.contract.site import layout
from deployer.contract.site.choose import choose
from deployer.contract.site.plan import CHARLIECLOUD_FOLDER, CHARLIECLOUD_KIT, NOT_STAGED
from deployer.site.container import container, home, runtime_check
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container, Mount, Runtime
from deployer.site.install import mount_points
from deployer.site.run.prepare import placeholders, ranks
from deployer.site.run.prepare.request import users_environment
from deployer.site.run.prepare.start_option import vetoes
from deployer.site.storage import data, events, group
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files, payload, process

#: Used if a bundle has no plan because it was packed for no site: the site's runtime if usable, else the kit's.
_DEFAULT_RUNTIMES = ("charliecloud", CHARLIECLOUD_KIT)
#: Variables of mpirun, and of mpiexec from MPICH and Intel MPI, with the number of processes on the node.
_LOCAL_TASKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
#: Variables of the user's terminal that an interactive shell needs.
_TERMINAL = ("TERM", "COLORTERM", "LANG")


class ExecRequest(NamedTuple):
    """The user's request to ``exec`` or ``shell``.

    Attributes:
        image: the bundle's name, NAME:VERSION or digest.
        plan: the site of the plan; None selects the only one.
        binds: extra binds, as the user wrote them.
        runtime: the runtime; None uses the plan's choice.
        home: the home of the process.
        env: variables of the process, as the user wrote them: NAME=VALUE.
    """

    image: str
    plan: Optional[str] = None
    binds: Sequence[str] = ()
    runtime: Optional[str] = None
    home: container.Home = container.Home()
    env: Sequence[str] = ()


def execute(store: Store, request: ExecRequest, command: List[str]) -> NoReturn:
    """Replace this process with ``command`` in the container of an image.

    Raises:
        UsageError: there is no such image or plan, or no command.
        Refused: the plan or the site does not allow it.
        MissingTool: the runtime is missing.
    """
    if not command:
        raise UsageError("no command to run", f"exec {request.image} -- COMMAND [ARG...]")
    runtime, settings, joins = prepare(store, request, "exec")
    _become(runtime.argv(settings, command, _join(runtime, os.environ) if joins else []))


def shell(store: Store, request: ExecRequest) -> NoReturn:
    """Replace this process with an interactive shell in the container: bash if the image has it, else sh."""
    runtime, settings, _ = prepare(store, request, "shell")
    terminal = {name: os.environ[name] for name in _TERMINAL if name in os.environ}
    settings = settings._replace(environment={**terminal, **settings.environment})
    root = store.find(request.image).rootfs if runtime.contained else ""
    shells = [path for path in ("/bin/bash", "/usr/bin/bash") if files.exists(root + path)]
    _become(runtime.argv(settings, [shells[0] if shells else "/bin/sh"]))


def _become(words: Sequence[Text]) -> NoReturn:
    environment = container.user_environment()
    own = {container.OWN.name: home.for_process()} if container.OWN in variables(words) else {}
    command = argv(words, {**environment, **own})
    payload.restore_signals()
    process.replace(command, environment)


def prepare(store: Store, request: ExecRequest, action: str = "") -> Tuple[Runtime, Container, bool]:
    """Return the runtime and container for a process here, and whether a node's processes share one container.

    The container's home is the variable ``container.OWN``; it is created when the process starts.

    Args:
        action: the command, which is noted as an event; empty: nothing is noted.
    """
    installed = store.find(request.image)
    manifest = installed.manifest()
    carriers = data.resolve(store, manifest)
    plan, asked = None, request.runtime
    if request.plan is not None or installed.sites():
        plan = placeholders.expanded(installed.plan(request.plan), os.environ)
        mount_points.make_if_permitted(installed.rootfs, plan.mounts)
    against = vetoes(plan, installed, here=True) if plan else {}
    option = choose(plan, 1, against, staging=NOT_STAGED, runtime=asked).start_option if plan else None
    name = option.runtime if option else _default(installed)
    if asked not in (None, name):
        why = f"{request.image} was packed for no site, so no plan allows {asked}"
        raise UsageError(why, "pack it with --site SITE")
    abi = plan.abi if plan else next(iter(manifest.mpi), None)
    horovod = installed.variant(abi) if abi else None
    runtime = RUNTIMES[name]
    bound = data.binds(installed, carriers) + ranks.users_binds(installed, plan, runtime, request.binds)
    settings = container.make(
        installed,
        manifest.image,
        plan,
        runtime,
        bound,
        {**layout.own(os.environ), **(ranks.copies(plan, option) if plan and option else {})},
        horovod,
        request.home,
        users_environment(plan, request.env),
    )
    settings = ranks.with_option(settings, option, plan, installed)
    if not container.has_workdir(manifest.image):
        own = settings.environment.get("HOME", "/")
        settings = settings._replace(workdir=working_folder(settings.binds, own, _here()))
    if action and events.is_first():
        events.note(store.root, action, installed)
        group.mark([installed.folder, *(item.carrier.folder for item in carriers)])
    return runtime, settings, bool(option and option.join)


def _default(installed: InstalledImage) -> str:
    """Return the runtime if there is no plan. If none works, return the kit's, if any: its start reports the reason."""
    for name in _DEFAULT_RUNTIMES:
        if runtime_check.objection(RUNTIMES[name], (), installed.engine, here=False) is None:
            return name
    return _DEFAULT_RUNTIMES[files.is_folder(os.path.join(installed.engine, CHARLIECLOUD_FOLDER))]


def working_folder(binds: Sequence[Mount], own: Value, here: str) -> Value:
    """Return the folder in which a process starts if the image does not set one.

    It is the user's current folder, ``here``, if the container has it; otherwise the writable home, ``own``.
    """
    for bind in reversed(binds):
        source = os.path.realpath(text_of(bind.source)).rstrip("/")
        if (here + "/").startswith(source + "/"):
            return bind.target + here[len(source) :]
    return own


def _here() -> str:
    """Return the user's current folder with links resolved; empty if it no longer exists."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _join(runtime: Runtime, environment: Mapping[str, str]) -> List[Text]:
    """Return the words that let the tasks of a launcher's step share one container per node; empty outside a step."""
    tasks = tasks_here(environment)
    if tasks < 2:
        return []
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "PMIX_NAMESPACE")
    step = [environment.get(name, "0").replace("/", "_") for name in names]
    return runtime.join_options(tasks, "-".join([*step, "exec"]))


def tasks_here(environment: Mapping[str, str]) -> int:
    """Return the number of tasks of this step that the launcher started on this node; 1 without a launcher.

    For example, ``SLURM_STEP_TASKS_PER_NODE=2(x3),1`` means two tasks on each of the first three nodes and one on the
    next. Below mpirun and mpiexec, it counts their daemons.
    """
    for name in _LOCAL_TASKS:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    number = int(environment.get("SLURM_NODEID", "0"))
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        number -= int(times or 1)
        if number < 0:
            return int(count)
    return 1
