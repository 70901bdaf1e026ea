"""render: job.sh and job.json of a new job, as texts."""

import os
import re
import time
from typing import List, Mapping, Optional, Sequence

from deployer.contract.base.errors import Refused
from deployer.contract.base.shell import Value, plain
from deployer.contract.bundle.job import TORCHRUN, started
from deployer.contract.proof.evidence import Launch
from deployer.contract.rules import hostfiles
from deployer.contract.rules.verdict import REFUSE
from deployer.contract.site import links as linked
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import Bind, Plan
from deployer.contract.site.speed import ExpectedNetwork
from deployer.site.container import caches, container, links
from deployer.site.container.runtimes.interface import Container
from deployer.site.run import command, gpus, jobfolder
from deployer.site.run.job_script import script
from deployer.site.run.pinning import pin
from deployer.site.run.prepare.ranks import near_gpus, ranks_container, users_binds
from deployer.site.run.prepare.resolve import ResolvedRun
from deployer.site.run.prepare.start_option import Chosen
from deployer.site.storage import packages, pythons, speeds
from deployer.system import files

#: The runtime whose process outside the container forwards SIGUSR1, regardless of whether the payload handles it.
_PASSES_ON = "podman"


def render(resolved: ResolvedRun, chosen: Chosen) -> jobfolder.JobFolder:
    """Return job.sh and job.json of a new job, without writing them.

    Raises:
        UsageError: a bind, link or variable cannot be used.
        Refused: the command cannot start, or the warning of the time limit would end the payload.
    """
    store, installed, settled = resolved.store, resolved.installed, resolved.settled
    plan, job = settled.plan, settled.job
    contained, image = chosen.runtime.contained, resolved.manifest.image
    name = f"{installed.receipt.name}-{resolved.request.token or jobfolder.new_token()}"
    folder = os.path.join(store.jobs, name)
    users = users_binds(installed, plan, chosen.runtime, resolved.request.binds)
    ranks = ranks_container(resolved, chosen, folder, users)
    if resolved.request.again is not None and chosen.start_option.runtime == _PASSES_ON and image.python is None:
        raise Refused(
            f"--again: the image has no Python, so {_PASSES_ON} would send the warning of the time limit to a payload "
            "that may not handle it, and end it",
            "choose another runtime with --runtime, or put a Python into the image",
        )
    if contained and not resolved.own and not resolved.request.force:
        command.refuse(installed, image, plan, job, ranks.binds)
    python = pythons.choose(plan.python)
    near = near_gpus(resolved, chosen.start_option)
    private = contained and resolved.request.home.chosen is None  # a chosen home keeps everything itself
    inputs = script.Inputs(
        launch=_launch(resolved, chosen, name, ranks, users),
        layout=settled.layout,
        plan=plan,
        start_option=chosen.start_option,
        runtime=chosen.runtime,
        launcher=chosen.launcher,
        container=ranks,
        folder=folder,
        tool=store.tool,
        python=python,
        image_python=image.python if contained else python,
        asked=settled.asked,
        staging=chosen.staging,
        reader=_canary_reader(installed.rootfs, image.python) if contained else (),
        workdir=job.workdir or (None if container.has_workdir(image) else plans.JOB),
        stdin=job.stdin,
        gpus=gpus.word(job.gpus, plan, near) if job.gpus else "",
        own_launcher=chosen.own,
        tasks=resolved.request.tasks,
        keep=caches.words(store, installed, job.keep) if private else [],
    )
    return jobfolder.JobFolder(inputs.launch, script.render(inputs), script.agent(inputs), tasks=resolved.request.tasks)


def _launch(resolved: ResolvedRun, chosen: Chosen, name: str, ranks: Container, users: Sequence[Bind]) -> Launch:
    """Return the record of the job ``name``, whose ranks run in the container ``ranks`` with the user's binds."""
    receipt, settled = resolved.installed.receipt, resolved.settled
    plan, job, layout = settled.plan, settled.job, settled.layout
    in_home, in_job = linked.split(links.resolve(resolved.installed, resolved.data, job.links))
    workdir = job.workdir or ""
    interface = ranks.environment.get("GLOO_SOCKET_IFNAME")
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
        time=job.time,
        command=started(job),
        mpi=plan.mpi,
        provider=_provider(ranks.environment),
        created=int(time.time()),
        data=tuple(item.carrier.receipt.digest for item in resolved.data),
        expects=packages.expects(resolved.installed, plan) if chosen.runtime.contained else (),
        checked=plan.checked,
        forced=resolved.request.force and plan.checked is not None and plan.checked.verdict == REFUSE,
        bound=_bound(plan, users, ranks),
        straddling=pin(layout).straddling,
        scheduler=plan.scheduler,
        warn=settled.warn,
        again=resolved.request.again or 0,
        interface=interface if isinstance(interface, str) else None,
        without_mpi=plan.abi == plans.NO_MPI and chosen.runtime.contained,
        fast=_fast(ranks.environment, plan),
        links=linked.check_made(in_home),  # a node reads them from the job's record by the same rule
        folder_links=linked.check_made(in_job),
        workdir=workdir[len(plans.JOB) + 1 :] if workdir.startswith(plans.JOB + "/") else "",
        workers=layout.workers if job.launch == TORCHRUN else 1,
        network=_expected(resolved),
        accept=tuple(resolved.request.accept),
    )


def _expected(resolved: ResolvedRun) -> Optional[ExpectedNetwork]:
    """Return the expected speed between the job's nodes, from the profile or from `doctor`; None if it is unknown."""
    plan = resolved.settled.plan
    if resolved.settled.layout.nodes == 1 or plan.launch == plans.INSIDE:
        return None  # inside-out, the ranks use the image's MPI
    known = plan.network or speeds.read(resolved.store, plan.partition)
    return known if known is None or plan.mpi else known._replace(mpi=None)


def _bound(plan: Plan, users: Sequence[Bind], ranks: Container) -> List[str]:
    """Return the host paths that the job binds or uses, which must exist on each node."""
    single = [bind for bind in ranks.binds if bind.target.startswith(hostfiles.FOLDER + "/")]
    chosen = [bind for bind in ranks.binds if bind.target == plans.HOME]
    devices = [path for path in plan.devices if path.startswith("/")]
    return sorted({*devices, *(plain(bind.source) for bind in [*plan.binds, *single, *users, *chosen])})


def _provider(environment: Mapping[str, Value]) -> Optional[str]:
    """Return libfabric's selected provider; None if the selection is a list or an exclusion ("^psm3")."""
    provider = environment.get("FI_PROVIDER", "")
    return provider if isinstance(provider, str) and re.match(r"^[a-z0-9_;-]+\Z", provider) else None


def _fast(environment: Mapping[str, Value], plan: Plan) -> Optional[str]:
    """Return a description of the fast network that the plan uses; None if it does not list one."""
    adapters = environment.get("NCCL_IB_HCA")
    if isinstance(adapters, str):
        return f"InfiniBand adapters (NCCL_IB_HCA{adapters})"
    interface = plan.environment.get("GLOO_SOCKET_IFNAME")  # from the site only if the fabric is fast
    return f"a fast fabric ({interface})" if interface else None


def _canary_reader(rootfs: str, python: Optional[str]) -> List[str]:
    """Return a command that prints the image's canary; empty if there is no canary or no program to read it."""
    if not files.is_file(rootfs + plans.CANARY):
        return []
    for program in ("/bin/cat", "/usr/bin/cat"):
        if files.lexists(rootfs + program):
            return [program, plans.CANARY]
    code = "import sys; sys.stdout.write(open(sys.argv[1]).read())"
    return [python, "-I", "-S", "-c", code, plans.CANARY] if python else []
