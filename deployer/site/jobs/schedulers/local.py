"""No batch system: the script runs on this machine in its own session, which continues after logout.

A job's id is PID.START.HOST of that session's first process. START, in kernel clock ticks, distinguishes it from a
later process with the same PID. Other hosts cannot query it.
"""

import re
from typing import Dict, List, Optional, Sequence

from deployer.contract.base.errors import JobFailed, MissingTool
from deployer.site.jobs.schedulers.interface import ALONE, JobRequest, JobState, Queue, Scheduler

#: Seconds between SIGTERM, at the time limit, and SIGKILL; the same as Slurm's KillWait.
PATIENCE = 30

#: $1: the script, $2: its time limit. A shell without job control does not make a background process a group leader. So
#: setsid becomes the session's leader without a fork, and "timeout" leads the group that it ends.
_START = (
    """\
cd "${1%%/*}" && command -v setsid timeout >/dev/null || exit 127
setsid timeout --kill-after=%d "$2" bash -l "$1" >output.log 2>&1 </dev/null &
echo "$!.$(cut -d' ' -f22 "/proc/$!/stat").$(uname -n)"
"""
    % PATIENCE
)
#: $1: PID, $2: START, $3: HOST; true if the job is still running here.
_LIVES = """{ [ "$(uname -n)" = "$3" ] && [ "$(cut -d' ' -f22 "/proc/$1/stat" 2>/dev/null)" = "$2" ] &&
! grep -q '^State:.Z' "/proc/$1/status"; }"""


class Local(Scheduler):
    """One machine that starts jobs immediately, without a queue or allocation."""

    title = "deployer"  # without a batch system, this tool asks a job to end
    way = ALONE
    job_id = re.compile(r"^(\d+)\.(\d+)\.(\S+)$")

    def directives(self, request: JobRequest) -> List[str]:
        del request
        return []

    def submit(self, script: str, after: Optional[str] = None, array: Sequence[str] = ()) -> List[str]:
        del after, array  # job.sh starts the next job as its last action
        return ["sh", "-c", _START, "sh", script]  # the time limit follows

    def parse_submit(self, code: int, out: str, err: str) -> str:
        if code == 127:
            raise MissingTool("a job here needs setsid and timeout", "they come with util-linux and coreutils")
        if code != 0 or not self.owns(out.strip()):
            raise JobFailed("the job did not start: %s" % (err.strip() or out.strip()))
        return out.strip()

    def queue(self, partition: str) -> List[str]:
        del partition
        return ["uname", "-n"]

    def parse_queue(self, code: int, out: str, err: str) -> Optional[Queue]:
        del code, err
        return Queue(True, 1, 1, f"{out.strip()}, which has no batch system")

    def states(self, job_ids: Sequence[str]) -> List[str]:
        script = f"while [ $# -gt 0 ]; do {_LIVES} &&"
        script += ' echo "$1.$2.$3|$(ps -o etime= -p "$1")"; shift 3; done; true'
        return ["sh", "-c", script, "sh", *(part for number in job_ids for part in _parts(number))]

    def parse_states(self, code: int, out: str, err: str) -> Dict[str, JobState]:
        del err
        rows = [line.partition("|") for line in out.splitlines()] if code == 0 else []
        return {number: JobState("RUNNING", elapsed=elapsed.strip(), active=True) for number, _, elapsed in rows}

    def elsewhere(self, job_id: str, here: str) -> Optional[str]:
        host = _parts(job_id)[2]
        return host if host != here else None

    def cancel(self, job_id: str) -> List[str]:
        # timeout forwards the signal to its process group, and kills the remaining processes later. With "hosts",
        # job.sh ends the launcher, which is not in that group.
        return ["sh", "-c", _LIVES + ' || exit 0; kill -TERM "$1"', "sh", *_parts(job_id)]

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        del out
        if code != 0:
            raise JobFailed(f"the job could not be ended: {err.strip()}")


def _parts(job_id: str) -> List[str]:
    return job_id.split(".", 2)
