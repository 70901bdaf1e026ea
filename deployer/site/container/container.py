"""Combine an installed image and a plan into a Container, with binds and environment, for ``run`` and ``exec``."""

import hashlib
import os
from contextlib import suppress
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.base import json_records, shell
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.base.shell import Value, Variable, Word
from deployer.contract.bundle.command import DEFAULT_PATH
from deployer.contract.bundle.manifest import BIN, LIB, Image
from deployer.contract.rules import hostfiles
from deployer.contract.site import layout as layouts
from deployer.contract.site import plan as plans
from deployer.contract.site.mount_points import OF_THE_NODE
from deployer.contract.site.plan import Bind, Plan
from deployer.site.container import home as homes
from deployer.site.container import targets
from deployer.site.container.runtimes import native
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.storage.store import InstalledImage
from deployer.system import files
from deployer.system.observe import observations

#: The private folder of the job or process on each node (see ``home``), known when the job or process starts.
OWN = Variable("home")
#: The folder for TensorFlow plug-ins among packages, such as Intel's extension, and the variable for more such folders.
_PLUGINS, _PLUGIN_PATH = "tensorflow-plugins", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
#: Prevents Python from using packages below the user's home.
_NO_USER_SITE = "PYTHONNOUSERSITE"
_PROOT = "PROOT_"


class Home(NamedTuple):
    """The user's choices for the home folder.

    Attributes:
        chosen: a folder that replaces the private one of the job or process, or None.
        user_site: whether Python uses the packages that users install in their homes.
    """

    chosen: Optional[str] = None
    user_site: bool = False


def make(
    installed: InstalledImage,
    image: Image,
    plan: Optional[Plan],
    runtime: Runtime,
    binds: Sequence[Bind],
    environment: Mapping[str, str],
    variant: Optional[str] = None,
    own: Home = Home(),  # noqa: B008 (an immutable record)
    users: Mapping[str, str] = {},
) -> Container:
    """Return the container of ``installed`` at a site.

    Args:
        plan: None for a bundle that was not packed for a site: nothing from the host is passed or bound.
        runtime: without a container, the host's environment replaces the image's, and the home is the user's own unless
            another one is chosen.
        binds: further binds, after the plan's.
        environment: variables that override the image's; the plan's override both.
        variant: the folder of the Horovod variant to use, if the bundle has any.
        own: the user's choices for the home.
        users: the user's variables, which override all others.
    """
    contained = runtime.contained
    whole = environment_of(image) if contained else {}
    if contained and own.user_site:
        del whole[_NO_USER_SITE]
    searched = hostfiles.library_path(plan.environment if plan else {}, whole)
    given = {**environment, **(plan.environment if plan else {}), **users}
    whole.update(given)
    layouts.one_way_to_bind(whole, given)
    if searched:
        whole["LD_LIBRARY_PATH"] = searched
    bound = []
    if plan:
        # Without a container, a bind gives a host path another name. The host has every spare library.
        bound = _of_plan(installed, plan, whole, runtime.makes_targets) if contained else [*plan.binds]
        single = [] if contained else hostfiles.for_image(plan.host, lambda _: True)
        bound += [Bind(item.source, item.target, item.why) for item in single if item.kind != hostfiles.LINK]
    if files.is_folder(installed.app):
        bound.append(Bind(installed.app, plans.APP, "the bundle's app folder"))
    bound += _overlays(installed, variant, whole)
    hook = plan.environment.get(observations.HOOK_VARIABLE) if plan else None
    if hook:  # a rehearsal: a sitecustomize in the bundle's packages would hide the hook's
        del whole[observations.HOOK_VARIABLE]
        whole["PYTHONPATH"] = observations.before(hook, whole.get("PYTHONPATH", ""))
    if own.chosen is not None:
        bound.append(_chosen_home(own.chosen, installed.rootfs if contained else None))
        whole["HOME"] = plans.HOME
    lists = native.LISTS if not contained else ()
    values: Dict[str, Value] = {"HOME": Word(OWN), "TMPDIR": Word(OWN)} if contained else {}
    values.update((name, native.inherited(value, name) if name in lists else value) for name, value in whole.items())
    return Container(
        rootfs=installed.rootfs,
        binds=bound + list(binds),
        environment=values,
        passed=list(plan.pass_environment) if plan else [],
        workdir=image.workdir or "/",
        engine=installed.engine,
        private=Word(OWN) if contained else "",
    )


def needs_home(container: Container) -> bool:
    """Return whether the job or process needs a private folder; without a container, it uses the user's home."""
    return OWN in shell.variables([container.private, *container.environment.values()])


def has_workdir(image: Image) -> bool:
    """Return whether an image has a working folder. The root does not count because it is read-only."""
    return image.workdir.strip("/") != ""


def environment_of(image: Image) -> Dict[str, str]:
    """Return the environment of an image, without its home, which does not exist or is read-only.

    Proot's variables are left out too, because proot runs outside the container with the payload's environment. (proot
    is static, so LD_* and similar variables have no effect on it.)
    """
    variables = {"PATH": DEFAULT_PATH}
    variables.update(entry.partition("=")[::2] for entry in image.env if "=" in entry and not entry.startswith(_PROOT))
    for name in ("HOME", "TMPDIR"):
        variables.pop(name, None)
    variables[_NO_USER_SITE] = "1"
    return variables


def _of_plan(installed: InstalledImage, plan: Plan, environment: Dict[str, str], makes: bool) -> List[Bind]:
    """Return the plan's binds. Raises Refused if the image lacks a target: it was not packed for this site."""
    for bind in plan.binds:
        problem = targets.objection(installed.rootfs, bind.target, makes)
        if problem:
            raise Refused(
                f"{bind.source} cannot be bound into {installed.receipt.label}: {problem}",
                f"pack it with --site {plan.site}, which makes the target; if it was packed so, install it again",
            )
    single = host_binds(installed, plan)
    if any(bind.target.startswith(hostfiles.PROGRAMS + "/") for bind in single):
        environment["PATH"] = "{}:{}".format(environment["PATH"], hostfiles.PROGRAMS)
    return list(plan.binds) + single


def host_binds(installed: InstalledImage, plan: Plan) -> List[Bind]:
    """Return the binds of the plan's host files for this image, in the required order, and make their stubs.

    Raises:
        Refused: the image was flattened with a deployer version that made no target for them.
    """
    wanted = hostfiles.for_image(plan.host, lambda path: files.lexists(installed.rootfs + path))
    if not wanted:
        return []
    if not files.is_folder(installed.rootfs + hostfiles.FOLDER):
        raise Refused(
            f"the image of {installed.receipt.label} has no {hostfiles.FOLDER}, where the plan for "
            f"{plan.site} puts the host's libraries",
            "pack it again with this deployer",
        )
    bound = [Bind(_stubs(installed.folder, wanted), hostfiles.FOLDER, "placeholders for single files of the host")]
    bound += [Bind(item.source, item.target, item.why) for item in wanted if item.kind != hostfiles.LINK]
    return bound


def _stubs(home: str, wanted: List[hostfiles.HostFile]) -> str:
    """Return the folder of stubs, whose name depends on its content, so that concurrent processes make the same.

    It is made again if the site's purge has removed it.
    """
    text = json_records.dumps([[item.name, item.kind, item.source * (item.kind == hostfiles.LINK)] for item in wanted])
    folder = os.path.join(home, "host", hashlib.sha256(text).hexdigest()[:16])
    with files.errors_named("make " + folder):
        for item in wanted:
            path = os.path.join(folder, item.name)
            os.makedirs(path if item.kind == hostfiles.DIRECTORY else os.path.dirname(path), exist_ok=True)
            if item.kind == hostfiles.LINK and not files.is_link(path):
                with suppress(FileExistsError):  # another run was first
                    os.symlink(item.source, path)
            elif item.kind == hostfiles.FILE:
                os.close(os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o644))
    return folder


def _overlays(installed: InstalledImage, variant: Optional[str], environment: Dict[str, str]) -> List[Bind]:
    """Return the binds of the bundle's Python packages, and put them before the image's packages in ``environment``.

    The variant is first, because it was compiled for this site's MPI.
    """
    places = (
        Bind(variant or "", plans.VARIANT, "Horovod for this site's MPI"),
        Bind(installed.wheels, plans.WHEELS, "the bundle's wheelhouse"),
    )
    overlays = [bind for bind in places if files.is_folder(bind.source)]
    for name, folder in (("PYTHONPATH", LIB), ("PATH", BIN)):
        having = [bind for bind in overlays if files.is_folder(os.path.join(bind.source, folder))]
        searched = [f"{bind.target}/{folder}" for bind in having]
        if environment.get(name):  # an empty entry would mean the current folder
            searched.append(environment[name])
        if searched:
            environment[name] = ":".join(searched)
    for bind in overlays:
        if files.is_folder(os.path.join(bind.source, LIB, _PLUGINS)):
            # TensorFlow searches for plug-ins only in folders named site-packages, without an error if it finds none.
            environment.setdefault(_PLUGIN_PATH, f"{bind.target}/{LIB}/{_PLUGINS}")
    return overlays


def _chosen_home(folder: str, rootfs: Optional[str]) -> Bind:
    """Return the bind of the home that the user chose.

    Raises:
        UsageError: other users can write to the folder.
        Refused: the image in ``rootfs`` has no target for it.
    """
    path = homes.check_chosen(folder)
    if rootfs is not None and targets.objection(rootfs, plans.HOME):
        why = f"the image has no {plans.HOME}"
        raise Refused(f"--home {folder}: {why}", "pack it again, or leave --home out")
    return Bind(path, plans.HOME, "the home that was chosen")


def parse_binds(
    options: Sequence[str], rootfs: Optional[str], makes_targets: bool = False, others: Sequence[str] = ()
) -> List[Bind]:
    """Return the user's ``SRC[:DST]`` words as binds; DST defaults to SRC.

    Args:
        rootfs: the unpacked image; None without a container, where a target is only another name.
        makes_targets: as in ``Runtime``.
        others: other runtimes in the plan that make targets.

    Raises:
        UsageError: the source does not exist, or nothing can be bound to the target.
    """
    binds = []
    for option in options:
        source, _, target = option.partition(":")
        if not source:
            raise UsageError(f"--bind {option!r} names no source", "for instance --bind $HOME/data:/data")
        source = os.path.abspath(os.path.expanduser(source))
        target = target or source
        if not files.exists(source):
            raise UsageError(f"--bind {option}: there is no {source}")
        if not target.startswith("/") or ".." in target.split("/") or not target.strip("/."):
            raise UsageError(f"--bind {option}: the target must be an absolute path without .., and not /")
        if ":" in target:
            # Apptainer would make a path with the colon, and the program would not find the path that it expects.
            raise UsageError(
                f"--bind {option}: the target has a colon", "binds have no options: leave out what follows"
            )
        target = "/" + "/".join(part for part in target.split("/") if part not in ("", "."))
        if rootfs is not None:
            _check_target(option, target, files.is_folder(source), rootfs, makes_targets, others)
        binds.append(Bind(source, target, "--bind"))
    return binds


def _check_target(option: str, target: str, folder: bool, rootfs: str, makes: bool, others: Sequence[str]) -> None:
    shared = next((name for name in OF_THE_NODE if (target + "/").startswith(name + "/")), None)
    if shared is not None:
        raise UsageError(
            "--bind {}: {} in the container is the node's own, which all its users share, so nothing can be bound "
            "{} it".format(option, shared, "over" if target.rstrip("/") == shared else "below"),
            "to have {} in the program's home, use a home that contains it: --home DIR; or bind it to /data and set "
            "the program's path to it".format(os.path.basename(target.rstrip("/"))),
        )
    problem = targets.objection(rootfs, target, makes)
    if problem:
        raise UsageError(f"--bind {option}: {problem}", _offers(target, rootfs, others))
    if files.exists(rootfs + target) and files.is_folder(rootfs + target) != folder:
        raise UsageError(
            f"--bind {option}: a folder can only be bound to a folder, a file to a file",
            _offers(target, rootfs, others),
        )


def _offers(target: str, rootfs: str, others: Sequence[str]) -> str:
    """Return a hint that lists the ways to make a bind possible."""
    there = [
        name for name in plans.MOUNT_FOLDERS if not name.startswith("/deployer/") and files.is_folder(rootfs + name)
    ]
    offers = ["bind it to a path that this image offers: %s" % (", ".join(there) or "none")]
    if targets.lacks(rootfs, target):
        offers.append(f"pack it again with --mount-point {target}")
        offers += [f"start it with --runtime {name}, which makes the path" for name in others]
    return "; or ".join(offers)


def user_environment() -> Dict[str, str]:
    """Return this process's environment for the runtime itself; ch-run refuses to start without USER."""
    environment = dict(os.environ)
    if not environment.get("USER"):
        import pwd

        try:
            environment["USER"] = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # the account is missing in the node's passwd
            environment["USER"] = str(os.getuid())
    return environment
