"""The rungs on this machine: kernel, Python, image, runtime, scheduler. They take seconds and require no job."""

import os
import shutil
import sys
from typing import Dict

from deployer.contract.base.errors import IntegrityError, MissingTool, Refused, Unknown, UsageError
from deployer.contract.base.shell import argv
from deployer.contract.base.text import counted
from deployer.contract.rules.batch_words import words
from deployer.contract.site import plan as plans
from deployer.contract.site.runtime_table import CARRIED
from deployer.site.capture import machine
from deployer.site.capture.tools import Tools
from deployer.site.container import container, home, runtime_check
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.doctor.climb import Ground, Skipped
from deployer.site.jobs import jobs, schedulers
from deployer.site.run import exec as execs
from deployer.site.run.prepare.start_option import vetoes
from deployer.site.storage import data, inventory
from deployer.site.storage.store import InstalledImage
from deployer.system import files, process

#: The runtime used to check a machine if no plan names one.
_RUNTIME = "charliecloud"
#: Seconds for a container to start and print; a cold shared file system makes it slower.
_PATIENCE = 60.0

#: Prints the device and inode of a path as a process in the container sees them.
_ROOT = "import os, sys; found = os.stat(sys.argv[1]); print('root', found.st_dev, found.st_ino)"


def kernel(ground: Ground) -> str:
    """Test the kernel features that containers need. Raises Refused if no runtime of the plan works without them."""
    tools = Tools()
    name = f"Linux {os.uname().release}, {os.uname().machine}"
    if machine.user_namespaces(tools):
        return name + ", user namespaces work"
    reason = tools.notes[0].partition(": ")[2] if tools.notes else "not tried"
    names = {option.runtime for option in ground.plan.containers} if ground.plan else set()
    if any(not runtime_check.needs_namespaces(RUNTIMES[name]) for name in names & set(RUNTIMES)):
        return f"{name}, no user namespaces ({reason}), which a runtime of the plan does without"
    if ground.plan and ground.plan.namespaces:
        return f"{name}, no user namespaces here ({reason}); the nodes have them, as the plan knows"
    on_node = words(ground.plan.scheduler if ground.plan else None).on_node % "python3 deployer.pyz doctor"
    raise Refused(
        f"user namespaces cannot be made here: {reason}",
        "ask the site for them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone), or allow udocker "
        f"in its profile; where compute nodes have them, run doctor there: {on_node}",
    )


def python(_: Ground) -> str:
    """Check the Python that runs this, and the library for unpacking bundles."""
    version = f"{sys.version.split()[0]}, {sys.executable}"
    libzstd = machine.libzstd()
    if libzstd:
        return f"{version}; libzstd {libzstd}"
    if sys.version_info >= (3, 14):
        return f"{version}; its own zstd"
    return f"{version}; no libzstd: only bundles that were packed with --codec gzip can be installed"


def runtime(ground: Ground) -> str:
    """Look for the runtimes in the plan's start options, best first."""
    name = _RUNTIME
    objections: Dict[str, str] = {}
    if ground.plan:
        ground.installed = ground.installed or find(ground)
        objections = vetoes(ground.plan, ground.installed)
        usable = [option.runtime for option in ground.plan.containers if option.runtime not in objections]
        name = (usable or [option.runtime for option in ground.plan.containers] or [_RUNTIME])[0]
    if ground.plan and name in CARRIED and name not in objections:
        return f"{name}, of the bundle's kit"
    program = RUNTIMES[name].program if name in RUNTIMES else name
    path = None if name in objections else shutil.which(program)
    if path is None:
        if ground.plan and name not in objections:
            modules = ", ".join(ground.plan.modules_of(name))
            raise Skipped(f"{program} is not in PATH here; a job gets it with {modules}")
        hint = f"see `module avail {name}`, and name the module in the site's profile"
        raise MissingTool(objections.get(name) or f"no {program} in PATH", hint)
    return "{} {}, {}".format(program, machine.version(Tools(), name) or "(version unknown)", path)


def image(ground: Ground) -> str:
    """Check that the image and the data it needs are complete, and that its container starts here.

    The container must see the image's root directory, not the host's.
    """
    installed = ground.installed = ground.installed or find(ground)
    name = installed.receipt.label
    whole = inventory.check(installed)
    manifest = installed.manifest()
    data.resolve(ground.store, manifest)
    saw = "%s, %d files and folders, none missing" % (name, whole.entries)
    if ground.plan is None and installed.sites():
        ground.plan = installed.plan(ground.site)  # which reports the available plans
    if manifest.image.python is None:
        return saw + "; no Python in it, so no container was started"
    try:
        request = execs.ExecRequest(name, ground.plan.site if ground.plan else None)
        chosen, settings, _ = execs.prepare(ground.store, request)
    except Refused as refused:
        if ground.plan and ground.plan.namespaces:
            return f"{saw}; no container was started here: {refused.message}"
        raise
    if not chosen.known.carried and shutil.which(chosen.program) is None:
        return saw + f"; no {chosen.program} here to start it"
    seen = plans.CANARY if chosen.overlays and files.is_file(installed.rootfs + plans.CANARY) else "/"
    command = [manifest.image.python, "-I", "-S", "-c", _ROOT, seen]
    environment = container.user_environment()
    with home.temporary() as own:
        start = argv(chosen.argv(settings, command), {**environment, container.OWN.name: own})
        done = process.run(start, _PATIENCE, environment, check=False, hint="is the file system slow?")
    if done.returncode:
        hint = f"try: python3 deployer.pyz exec {name} -- {manifest.image.python} --version"
        raise IntegrityError(f"a container of {name} does not start: {done.last_words()}", hint)
    here = os.stat(installed.rootfs + seen)
    answer = done.stdout.split()
    if chosen.overlays and len(answer) > 1:
        answer[1] = str(here.st_dev)  # an overlay reports its own device number
        if settings.rootfs != installed.rootfs:  # a SIF file has its own numbers; only the image has the path
            answer[2:] = [str(here.st_ino)]
    if answer != ["root", str(here.st_dev), str(here.st_ino)]:
        raise IntegrityError(
            f"the container of {name} sees another root than its image's ({done.stdout.strip()[:100]})",
            f"{chosen.program} does not confine it: do not use it; see the profile's runtimes",
        )
    return saw + "; its container sees its own root"


def find(ground: Ground) -> InstalledImage:
    """Return the named image, or else the most recently installed one. Raises UsageError."""
    if ground.image is not None:
        return ground.store.find(ground.image)
    images = ground.store.installed()
    if not images:
        raise UsageError(f"no image is installed under {ground.store.root}", "install BUNDLE.tar, or push one")
    # a bundle with only data has nothing to start
    return next((each for each in images if each.manifest().image.entries), images[0])


def scheduler(ground: Ground) -> str:
    """Check that the scheduler answers, and what it reports about the plan's partition."""
    known = schedulers.known(ground.plan.scheduler if ground.plan else "slurm")
    name = ground.plan.queue if ground.plan else ""
    queue = known.parse_queue(*jobs.ask(known.queue(name)))
    where = f"partition {name}" if name else "the default partition"
    if queue is None:
        hint = f"see `{known.lists}`; correct the profile's partitions and make a new plan"
        raise Refused(f"{known.title} has no {where}", hint)
    if not queue.open:
        raise Refused(f"{where} takes no jobs: {queue.says}", "ask the site, or use another partition")
    if not queue.usable:
        raise Unknown(f"{where} has no node that is up: {queue.says}", f"see `{known.explains}`; try again later")
    ground.nodes = queue.nodes
    return "%s is up, %d of %s usable (%s)" % (where, queue.usable, counted(queue.nodes, "node"), queue.says)
