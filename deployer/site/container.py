"""An installed image and a plan as a Container: binds and environment, as ``run`` and ``exec`` have them in common."""

import os
from typing import Dict, List, Mapping, Optional, Sequence

from deployer.contract import hostfiles, wheel
from deployer.contract import layout as layouts
from deployer.contract import plan as plans
from deployer.contract.errors import Refused, UsageError
from deployer.contract.manifest import Image
from deployer.contract.plan import Bind, Plan
from deployer.site import hostfiles as site_hostfiles
from deployer.site.runtimes import native
from deployer.site.runtimes.interface import Container
from deployer.site.store import Installed
from deployer.system import files

#: HOME in the container: it exists in every image, is writable, and is the node's own.
HOME = "/tmp"  # noqa: S108
#: Where packages put TensorFlow's plug-ins, such as Intel's extension, and the variable that names more such folders.
_PLUGINS, _PLUGIN_PATH = "tensorflow-plugins", "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make(
    installed: Installed,
    image: Image,
    plan: Optional[Plan],
    binds: Sequence[Bind],
    environment: Mapping[str, str],
    variant: Optional[str] = None,
    contained: bool = True,
) -> Container:
    """Return the container of ``installed`` at a site.

    ``binds`` come after the plan's. ``environment`` stands over the image's own, and the plan's over both. Without a
    plan (a bundle that was packed for no site) nothing of the host is passed or bound. ``variant`` is the folder of the
    Horovod variant to use, of those that the bundle carries. Where nothing is ``contained`` the host's own environment
    is in the place of the image's.
    """
    whole = environment_of(image) if contained else {}
    searched = hostfiles.library_path(plan.environment if plan else {}, whole)
    whole.update(environment)
    whole.update(plan.environment if plan else {})
    layouts.one_way_to_bind(whole, {**environment, **(plan.environment if plan else {})})
    if searched:
        whole["LD_LIBRARY_PATH"] = searched
    bound = []
    if plan:
        bound = _of_plan(installed, plan, whole) if contained else _of_host(plan)
    if files.is_folder(installed.app):
        bound.append(Bind(installed.app, plans.APP, "the bundle's app folder"))
    bound += _overlays(installed, variant, whole)
    lists = native.LISTS if not contained else ()
    return Container(
        installed.rootfs,
        bound + list(binds),
        {name: native.inherited(value, name) if name in lists else value for name, value in whole.items()},
        list(plan.pass_environment) if plan else [],
        image.workdir or "/",
        installed.engine,
    )


def environment_of(image: Image) -> Dict[str, str]:
    """Return the environment that an image itself asks for, with a HOME that is there."""
    found = {"PATH": _DEFAULT_PATH}
    found.update(entry.partition("=")[::2] for entry in image.env if "=" in entry)
    found["HOME"] = HOME
    return found


def _of_plan(installed: Installed, plan: Plan, environment: Dict[str, str]) -> List[Bind]:
    """Return the plan's binds. Raises Refused where the image has no place for one: it was not packed for this site."""
    for bind in plan.binds:
        problem = _no_target(installed.rootfs, bind.target)
        if problem:
            raise Refused(
                "%s cannot be bound into %s:%s: %s"
                % (bind.source, installed.receipt.name, installed.receipt.version, problem),
                "pack it with --site %s, which makes a place for it" % plan.site,
            )
    single = site_hostfiles.binds(installed, plan)
    if any(bind.target.startswith(hostfiles.PROGRAMS + "/") for bind in single):
        environment["PATH"] = "%s:%s" % (environment["PATH"], hostfiles.PROGRAMS)
    return list(plan.binds) + single


def _of_host(plan: Plan) -> List[Bind]:
    """Return the plan's binds where they need no place: each is a path of the host by another name."""
    single = hostfiles.for_image(plan.host, lambda _: True)  # what is spare for an image the host has itself
    return list(plan.binds) + [
        Bind(item.source, item.target, item.why) for item in single if item.kind != hostfiles.LINK
    ]


def _overlays(installed: Installed, variant: Optional[str], environment: Dict[str, str]) -> List[Bind]:
    """Return the binds of the bundle's Python packages, and put them before the image's own in ``environment``.

    The variant comes first: it was compiled for this very site's MPI.
    """
    found = []
    for source, target, why in (
        (variant or "", plans.VARIANT, "Horovod for this site's MPI"),
        (installed.wheels, plans.WHEELS, "the bundle's wheelhouse"),
    ):
        if files.is_folder(source):
            found.append(Bind(source, target, why))
    for name, folder in (("PYTHONPATH", wheel.LIB), ("PATH", wheel.BIN)):
        having = [bind for bind in found if files.is_folder(os.path.join(bind.source, folder))]
        places = ["%s/%s" % (bind.target, folder) for bind in having]
        if environment.get(name):  # an empty part would be the current folder
            places.append(environment[name])
        if places:
            environment[name] = ":".join(places)
    for bind in found:
        if files.is_folder(os.path.join(bind.source, wheel.LIB, _PLUGINS)):
            # TensorFlow looks for them in folders that are called site-packages, and goes on without a word.
            environment.setdefault(_PLUGIN_PATH, "%s/%s/%s" % (bind.target, wheel.LIB, _PLUGINS))
    return found


def parse_binds(options: Sequence[str], rootfs: str) -> List[Bind]:
    """Return the user's ``SRC[:DST]`` words as binds; DST is the same path where it is left out.

    Raises UsageError where the source is not there, or the image has no such target: it is read-only, so none can be
    made.
    """
    found = []
    for option in options:
        source, _, target = option.partition(":")
        if not source:
            raise UsageError("--bind %r names no source" % option, "for instance --bind $HOME/data:/data")
        source = os.path.abspath(os.path.expanduser(source))
        target = target or source
        if not files.exists(source):
            raise UsageError("--bind %s: there is no %s" % (option, source))
        if not target.startswith("/") or ".." in target.split("/"):
            raise UsageError("--bind %s: the target must be an absolute path without .." % option)
        _check_target(option, target, files.is_folder(source), rootfs)
        found.append(Bind(source, target, "--bind"))
    return found


def _check_target(option: str, target: str, folder: bool, rootfs: str) -> None:
    offered = [
        name for name in plans.MOUNT_FOLDERS if not name.startswith("/deployer/") and files.is_folder(rootfs + name)
    ]
    hint = "targets that this image offers: %s; or make the folder in the image's Dockerfile" % (
        ", ".join(offered) or "none"
    )
    problem = _no_target(rootfs, target)
    if problem:
        raise UsageError("--bind %s: %s" % (option, problem), hint)
    if files.is_folder(rootfs + target) != folder:
        raise UsageError("--bind %s: a folder can only be bound to a folder, a file to a file" % option, hint)


def _no_target(rootfs: str, target: str) -> Optional[str]:
    """Return why a bind cannot have ``target``, None where it can."""
    path = rootfs
    for part in target.strip("/").split("/"):
        path = os.path.join(path, part)
        if files.is_link(path):
            return "%s is a link in the image" % path[len(rootfs) :]
        if not files.exists(path):
            return "the image is read-only and has no %s" % target
    return None


def user_environment() -> Dict[str, str]:
    """Return this process's environment for a runtime's own use; ch-run refuses to start without USER."""
    found = dict(os.environ)
    if not found.get("USER"):
        import pwd

        try:
            found["USER"] = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # an account without a line in the node's passwd
            found["USER"] = str(os.getuid())
    return found
