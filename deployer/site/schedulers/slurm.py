"""Slurm: sbatch, squeue and scancel. Accounting (sacct) may be off, so nothing here needs it."""

from typing import List, Optional

from deployer.contract.errors import DeployerError, Refused, TransferError
from deployer.site.schedulers.interface import JobState, Scheduler

#: States that can still change; all others are final. COMPLETING is on its way out, but its log is not complete yet.
_ACTIVE = frozenset(
    (
        "PENDING",
        "CONFIGURING",
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
    )
)
#: What Slurm's commands say when slurmctld or munge does not answer; asking again later may help.
_SILENT = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Connection timed out",
    "Munge",
    "authentication",
    "Zero Bytes were transmitted",
    "Transport endpoint",
)
_FORGOTTEN = "Invalid job id specified"


class Slurm(Scheduler):
    """Slurm 17 and later: only options that are as old as that."""

    def submit(self, script: str) -> List[str]:
        return ["sbatch", "--parsable", script]

    def parse_submit(self, code: int, out: str, err: str) -> str:
        if code != 0:
            raise _error("Slurm did not take the job", err)
        # "ID" or "ID;CLUSTER", perhaps after lines of a site's submit plugin
        job_id = (out.strip().splitlines() or [""])[-1].split(";")[0]
        if not job_id.isdigit():
            raise Refused("sbatch gave no job id: %r" % out.strip(), "try: sbatch --parsable --test-only job.sh")
        return job_id

    def state(self, job_id: str) -> List[str]:
        # With --states=all it also tells how a job ended, until slurmctld forgets it (MinJobAge, 300 s by default).
        return ["squeue", "--noheader", "--states=all", "--jobs=" + job_id, "--format=%T|%M|%N|%r"]

    def parse_state(self, code: int, out: str, err: str) -> Optional[JobState]:
        if code != 0:
            if _FORGOTTEN in err:
                return None
            raise _error("squeue failed", err)
        lines = out.strip().splitlines()
        if not lines:
            return None
        word, elapsed, nodes, reason = [*lines[0].split("|", 3), "", "", ""][:4]
        return JobState(word, "" if reason == "None" else reason, elapsed, nodes, word in _ACTIVE)

    def cancel(self, job_id: str) -> List[str]:
        return ["scancel", job_id]

    def parse_cancel(self, code: int, out: str, err: str) -> None:
        del out
        # A job that is over already is no failure; scancel says nothing of it, or that the id is invalid.
        if code != 0 and _FORGOTTEN not in err:
            raise _error("scancel failed", err)


def _error(what: str, err: str) -> DeployerError:
    words = " / ".join(err.strip().splitlines()[-3:]) or "it said nothing"
    if any(silent in err for silent in _SILENT):
        return TransferError("%s: %s" % (what, words), "is Slurm up? try: sinfo")
    return Refused("%s: %s" % (what, words), "see `sinfo`, and partition, account and limits in the site's profile")
