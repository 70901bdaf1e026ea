"""The container of a job's ranks, or of a process of ``exec``: its binds, environment and devices."""

from typing import Dict, List, Optional, Sequence

from deployer.contract.base.shell import Variable, Word, joined
from deployer.contract.site import caches, memory_copies
from deployer.contract.site import layout as layouts
from deployer.contract.site.plan import JOB, SIF, TOOL, Bind, Plan, StartOption, requests_gpus
from deployer.site.container import container
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container, Runtime
from deployer.site.install import squash
from deployer.site.jobs import result
from deployer.site.rank import rendezvous
from deployer.site.rank.devices import NAMES as GPU_NAMES
from deployer.site.run import gpus
from deployer.site.run.job_script import script
from deployer.site.run.launchers import LAUNCHERS
from deployer.site.run.prepare.resolve import ResolvedRun
from deployer.site.run.prepare.start_option import Chosen
from deployer.site.storage import data
from deployer.site.storage.store import InstalledImage


def ranks_container(resolved: ResolvedRun, chosen: Chosen, folder: str, users: Sequence[Bind]) -> Container:
    """Return the container of the ranks of a job in ``folder``; ``users`` are the user's binds."""
    installed, settled, option = resolved.installed, resolved.settled, chosen.start_option
    plan, job, layout = settled.plan, settled.job, settled.layout
    near = near_gpus(resolved, option)
    how = script.start_inside(layout, chosen.own) if chosen.own else script.start(plan, option, layout, chosen.launcher)
    own = {
        **layouts.environment(layout),
        **copies(plan, option),
        **chosen.launcher.environment(how),
        "DEPLOYER_RESULT": f"{JOB}/{result.PAYLOAD_FILE}",
    }
    if resolved.request.again is not None:
        own["DEPLOYER_CHECKPOINT"] = f"{JOB}/{result.CHECKPOINT}"
    if resolved.request.tasks:
        own["DEPLOYER_TASKS"] = str(len(resolved.request.tasks.tasks))
        own["DEPLOYER_PARAMETERS"] = f"{JOB}/{result.PARAMETERS_FILE}"
    own.update({name: value for name, value in near.items() if not job.gpus or name != plan.gpu_order})
    ranks = container.make(
        installed,
        resolved.manifest.image,
        plan,
        chosen.runtime,
        binds=[
            Bind(resolved.store.tool, TOOL, "this tool"),
            Bind(folder, JOB, "the job's folder"),
            *data.binds(installed, resolved.data),
            *users,
        ],
        environment={**own, **job.environment},
        variant=installed.variant(plan.abi) if plan.abi else None,
        own=resolved.request.home,
        users=settled.environment,
    )
    ranks = with_option(ranks, option, plan, installed)
    environment, passed = dict(ranks.environment), list(ranks.passed)
    if resolved.request.tasks:
        environment["DEPLOYER_TASK"] = Word(Variable("task"))  # which the script of each task sets
    if chosen.own:  # overrides the rest: without these settings it would not find the nodes
        environment.update(script.inside_environment(option, layout, chosen.own))
    if chosen.runtime.contained:
        # `rank` sets the variables of a rendezvous: an image's own values would point to another machine. Outside the
        # container, it sets the host's variables.
        given = {*plan.environment, *job.environment, *settled.environment}
        rendezvous_names = [name for name in rendezvous.NAMES if name not in given]
        environment = {name: value for name, value in environment.items() if name not in rendezvous_names}
        for path, name in (caches.KNOWN[entry] for entry in job.keep if entry in caches.KNOWN):
            if name not in given:  # an image cannot know the home, which every job has anew
                environment[name] = joined([environment["HOME"], "/" + path])
        if resolved.manifest.image.python is None:
            passed += [*rendezvous_names, *(GPU_NAMES if job.gpus else ())]
    return ranks._replace(environment=environment, passed=passed)


def near_gpus(resolved: ResolvedRun, option: StartOption) -> Dict[str, str]:
    """Return the variables that give each rank the GPUs near its CPUs, if the job has all GPUs of its nodes."""
    settled, plan, options = resolved.settled, resolved.settled.plan, resolved.request.options
    whole = settled.asked.gpus == plan.batch.gpus and options.gpus != 0 and not options.directives
    filling = option.launcher in LAUNCHERS and LAUNCHERS[option.launcher].fills_domains
    if not whole or any(map(requests_gpus, plan.directives)) or not (filling or option.launcher == script.SRUN):
        return {}
    return gpus.order(settled.layout, plan, settled.job.gpus, filling)


def users_binds(
    installed: InstalledImage, plan: Optional[Plan], runtime: Runtime, options: Sequence[str]
) -> List[Bind]:
    """Return the binds of ``--bind``. Raises UsageError if ``runtime`` does not support one of them."""
    names = dict.fromkeys(option.runtime for option in plan.containers) if plan else {}
    others = [name for name in names if name in RUNTIMES and RUNTIMES[name].makes_targets]
    rootfs = installed.rootfs if runtime.contained else None
    return container.parse_binds(options, rootfs, runtime.makes_targets, others)


def copies(plan: Plan, option: StartOption) -> Dict[str, str]:
    """Return the variables for copies between ranks' memories, if the plan uses them and the runtime prevents them."""
    return memory_copies.switched_off(plan.abi or "") if memory_copies.prevented(option) else {}


def with_option(
    settings: Container, option: Optional[StartOption], plan: Optional[Plan], installed: InstalledImage
) -> Container:
    """Return a container with the words of its start option, and the devices of its plan that CDI names.

    Raises:
        Refused: the option needs a SIF file, and the image has none.
    """
    names = [name for name in plan.devices if not name.startswith("/")] if plan else []
    settings = settings._replace(arguments=option.arguments if option else (), devices=names)
    return settings._replace(rootfs=squash.existing(installed, SIF)) if option and option.sif else settings
