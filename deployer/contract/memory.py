"""Whether a payload was ended for want of memory: by the kernel, which counts it, or by Slurm, which says so. Pure."""

import re
import signal as signals
from typing import Dict, List, NamedTuple, Optional, Sequence

from deployer.contract.findings import Finding, finding
from deployer.contract.payload import PayloadRecord

CODE = "payload.out-of-memory"
_KILLED = 128 + signals.SIGKILL  # the exit code of a shell whose child was killed

#: Slurm's words, since version 17: of slurmstepd for a control group's limit and for its own polling, and of srun.
_SLURM = re.compile(
    r"^(slurmstepd|srun): error: .*"
    r"(oom[-_ ]kill|out.of.memory|exceeded (job |step )?(virtual )?memory limit|memory limit at some point)",
    re.IGNORECASE,
)


def slurms_words(lines: Sequence[str]) -> Optional[str]:
    """Return the first line of a job's log in which Slurm says that memory was the reason, None if there is none."""
    return next((line.strip() for line in lines if _SLURM.search(line.strip())), None)


class _Node(NamedTuple):
    """What the kernel counted on a node while its ranks ran, as far as they could see it."""

    group: Optional[int]
    node: Optional[int]


def explain(
    payloads: Sequence[PayloadRecord], first: Optional[PayloadRecord], said: Optional[str], subject: str
) -> List[Finding]:
    """Return the findings about a payload that failed and was not cancelled: one for each node that the kernel ended
    a process on; else one by Slurm's word; else, if the first rank to fail was killed and nobody knows why, a guess.

    ``first`` is the rank that failed first, ``said`` what ``slurms_words`` found, and ``subject`` is the job.
    """
    nodes: Dict[str, _Node] = {}
    for item in payloads:
        if item.exit_code or item.signal:
            before = nodes.get(item.host, _Node(None, None))
            # The count of a node includes other jobs' processes: it is used only without one of the group.
            node = item.oom_node if item.oom_group is None and _was_killed(item) else None
            nodes[item.host] = _Node(_most(before.group, item.oom_group), _most(before.node, node))
    found = []
    for host, counted in sorted(nodes.items()):
        if counted.group or counted.node:
            where = "in the job's control group" if counted.group else "on this node"
            count = counted.group or counted.node or 0
            how = "the kernel killed %d process%s %s for lack of memory" % (count, "" if count == 1 else "es", where)
            found.append(finding(CODE, host, how=how))
    if not found and said is not None:
        found.append(finding(CODE, subject, how="Slurm ended it for lack of memory: " + said))
    if not found and first is not None and _was_killed(first) and first.oom_node is None and first.oom_group is None:
        how = "rank %d was killed (SIGKILL), and nobody cancelled the job: probably by the kernel, for lack of memory"
        found.append(finding(CODE, first.host, how=how % first.task))
    return found


def _was_killed(item: PayloadRecord) -> bool:
    return item.signal == signals.SIGKILL or item.exit_code == _KILLED


def _most(one: Optional[int], other: Optional[int]) -> Optional[int]:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
