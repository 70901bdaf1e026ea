"""Whether a payload was ended for want of memory: by the kernel, which counts it, or by Slurm, which says so. Pure."""

import re
from typing import Dict, List, Optional, Sequence, Tuple

from deployer.contract.findings import Finding, finding
from deployer.contract.payload import PayloadRecord

CODE = "payload.out-of-memory"
#: Linux's number of the signal, and the exit code of a shell whose child it ended.
_SIGKILL = 9
_KILLED = 128 + _SIGKILL

#: Slurm's words, since version 17: of slurmstepd for a control group's limit and for its own polling, and of srun.
_SLURM = re.compile(
    r"^(slurmstepd|srun): error: .*"
    r"(oom[-_ ]kill|out.of.memory|exceeded (job |step )?(virtual )?memory limit|memory limit at some point)",
    re.IGNORECASE,
)


def slurms_words(lines: Sequence[str]) -> Optional[str]:
    """Return the first line of a job's log in which Slurm says that memory was the reason, None if there is none."""
    return next((line.strip() for line in lines if _SLURM.search(line.strip())), None)


def explain(
    payloads: Sequence[PayloadRecord], first: Optional[PayloadRecord], said: Optional[str], subject: str
) -> List[Finding]:
    """Return the findings about a payload that failed and was not cancelled: one per node on which the kernel ended
    a process on; else one by Slurm's word; else, if the first rank to fail was killed and nobody knows why, a guess.

    ``first`` is the rank that failed first, ``said`` what ``slurms_words`` found, and ``subject`` is the job.
    """
    failed = [item for item in payloads if item.exit_code or item.signal]
    found = _counted([(item.host, item.oom_group) for item in failed], "in the job's control group")
    if not found:
        # The count of a node includes other jobs' processes: it speaks only for a rank that was killed.
        found = _counted([(item.host, item.oom_node) for item in failed if _was_killed(item)], "on this node")
    if not found and said is not None:
        found.append(finding(CODE, subject, how="Slurm ended it for lack of memory: " + said))
    if not found and first is not None and _was_killed(first) and first.oom_node is None and first.oom_group is None:
        how = "rank %d was killed (SIGKILL) without a cancel: probably by the kernel, for lack of memory"
        found.append(finding(CODE, first.host, how=how % first.task))
    return found


def _counted(counts: Sequence[Tuple[str, Optional[int]]], where: str) -> List[Finding]:
    """Return a finding for each host on which the kernel ended a process; each of its ranks may have seen it."""
    most: Dict[str, int] = {}
    for host, count in counts:
        most[host] = max(most.get(host, 0), count or 0)
    found = []
    for host, count in sorted(most.items()):
        if count:
            how = "the kernel killed %d process%s %s for lack of memory" % (count, "" if count == 1 else "es", where)
            found.append(finding(CODE, host, how=how))
    return found


def _was_killed(item: PayloadRecord) -> bool:
    return item.signal == _SIGKILL or item.exit_code == _KILLED
