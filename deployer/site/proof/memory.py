"""Determine if a payload ended for lack of memory: the kernel counts such kills, and Slurm reports them. Pure."""

from typing import Dict, List, Optional, Sequence, Tuple

from deployer.contract.proof.payload import PayloadRecord
from deployer.contract.rules.findings import Finding, finding

CODE = "payload.out-of-memory"
#: Linux's number of the signal, and the exit code of a shell whose child it killed.
_SIGKILL = 9
_KILLED = 128 + _SIGKILL


def explain(
    payloads: Sequence[PayloadRecord], first: Optional[PayloadRecord], said: Optional[str], subject: str
) -> List[Finding]:
    """Return the findings about a payload that failed and was not cancelled.

    Each node on which the kernel killed a process of the job has one finding. Without such a node, Slurm's message is
    used. Without a message, if the first rank to fail was killed for no known reason, the finding is a guess.

    Args:
        first: the rank that failed first.
        said: Slurm's own message, or None.
        subject: the job.
    """
    failed = [item for item in payloads if item.exit_code or item.signal]
    in_group = _counted([(item.host, item.oom_group) for item in failed], "in the job's control group")
    # A node's count includes processes of other jobs: it is used only for a rank that was killed.
    on_node = _counted([(item.host, item.oom_node) for item in failed if _was_killed(item)], "on this node")
    if in_group or on_node:
        return in_group or on_node
    if said is not None:
        return [finding(CODE, subject, how="Slurm ended it for lack of memory: " + said)]
    if first is None or not _was_killed(first) or (first.oom_node, first.oom_group) != (None, None):
        return []
    how = "rank %d was killed (SIGKILL) without a cancel: probably by the kernel, for lack of memory"
    return [finding(CODE, first.host, how=how % first.task)]


def _counted(counts: Sequence[Tuple[str, Optional[int]]], where: str) -> List[Finding]:
    """Return a finding per host on which the kernel killed a process, which several of its ranks may have counted."""
    most: Dict[str, int] = {}
    for host, count in counts:
        most[host] = max(most.get(host, 0), count or 0)
    how = "the kernel killed %d process%s %s for lack of memory"
    return [
        finding(CODE, host, how=how % (count, "" if count == 1 else "es", where))
        for host, count in sorted(most.items())
        if count
    ]


def _was_killed(item: PayloadRecord) -> bool:
    return item.signal == _SIGKILL or item.exit_code == _KILLED
