"""The GPUs that each rank of a job can use, and their order. Pure.

By default, each rank sees all GPUs that its job has on the node, and the framework selects one by local rank. With a
number of GPUs per rank, `rank` shows each rank only its own GPUs (``site.rank.devices``).
"""

from typing import Dict, Optional

from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.base.text import counted
from deployer.contract.bundle.job import MOST_GPUS, Job
from deployer.contract.site.layout import Layout
from deployer.contract.site.plan import GpuRequest, Plan
from deployer.site.rank.devices import NAMES
from deployer.site.run.pinning import gpu_order

#: The codes of `check` to ignore for a job without GPUs.
ABOUT_REQUESTED = ("gpu.count", "gpu.none", "gpu.vendor")


def check(job: Job, asked: Optional[GpuRequest], none: bool = False, there: Optional[int] = None) -> None:
    """Check the number of GPUs per rank.

    Args:
        asked: deployer's GPU request to the batch system, if any.
        none: the user wants no GPUs (--gpus 0).
        there: the number of GPUs per node; None: unknown, or not to be checked.

    Raises:
        UsageError: the number is not a valid number of GPUs, or a single process starts the ranks of a node.
        Refused: the job has too few GPUs per node.
    """
    if not job.gpus:
        return
    if not 1 <= job.gpus <= MOST_GPUS:
        raise UsageError("--gpus-per-rank %d: not a number of GPUs" % job.gpus, "1 or more; leave it out for all")
    if job.whole_nodes:
        raise UsageError(
            "--gpus-per-rank %d: job %s starts one process per node (launch: %s), which sees all GPUs"
            % (job.gpus, job.name, job.launch),
            "leave it out",
        )
    if none:
        hint = "request GPUs, or leave out --gpus-per-rank"
        raise UsageError("--gpus 0: each rank of job %s needs %d of its own" % (job.name, job.gpus), hint)
    lacking = job.lacks_gpus(there)
    if lacking:
        raise Refused(
            f"job {job.name}: {lacking}",
            "choose a partition with GPUs (--partition), --gpus 0 to run without, or --force if the plan is outdated",
        )
    wanted = job.ranks_per_node * job.gpus
    if asked is not None and wanted > asked.per_node:
        raise Refused(
            "%s per node x %s = %d, but the job has %s per node"
            % (counted(job.ranks_per_node, "rank"), counted(job.gpus, "GPU"), wanted, counted(asked.per_node, "GPU")),
            "use fewer ranks per node, fewer GPUs per rank, or request more (--gpus)",
        )


def order(layout: Layout, plan: Plan, per_rank: Optional[int], filling: bool = False) -> Dict[str, str]:
    """Return the variables that give ranks the GPUs near their CPUs, if the job has all GPUs of its nodes.

    Args:
        per_rank: GPUs per rank; None or 0: each rank sees all of them.
        filling: as for ``gpu_order``.
    """
    numbers = gpu_order(layout, plan.gpu_places, per_rank or None, filling)
    if numbers is None:
        return {}
    # By default, CUDA numbers the fastest GPU first.
    counted = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if plan.gpu_order.startswith("CUDA") else {}
    return {plan.gpu_order: ",".join(map(str, numbers)), **counted}


def word(per_rank: int, plan: Plan, environment: Dict[str, str]) -> str:
    """Return the value for ``rank --gpus``: N:NAME, the GPUs per rank and the variable that selects them.

    Args:
        environment: the variables of ``order``; if present, the value is N:NAME=0,1,...
    """
    names = [name for name in (plan.gpu_order, *plan.pass_environment) if name in NAMES]
    name = names[0] if names else NAMES[0]
    return "%d:%s%s" % (per_rank, name, "=" + environment[name] if name in environment else "")
