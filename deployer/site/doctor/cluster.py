"""The rungs that require a job: MPI on one node and on two nodes, the fabric between them, Horovod.

They use two short jobs of ``run``, created like any other job of this image; result.json contains the proof. A job
that does not end in time is cancelled. The folder of a successful job is removed.
"""

import os
import re
import shutil
import time
from contextlib import suppress
from typing import List, Optional, Sequence, Tuple

from deployer.contract.base import records
from deployer.contract.base.errors import DeployerError, JobFailed, Refused, TransferError, Unknown
from deployer.contract.base.json_records import Fields, Record
from deployer.contract.bundle.job import Job
from deployer.contract.rules.findings import Finding, errors
from deployer.contract.site.plan import Plan
from deployer.site.doctor import payload
from deployer.site.doctor.climb import Ground, Skipped
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers.interface import JobState
from deployer.site.run import run
from deployer.site.run.prepare.request import RunRequest
from deployer.site.storage import packages
from deployer.site.storage.store import InstalledImage

#: A job's own time limit; most of it is for importing TensorFlow from a cold file system.
_TIME = "00:10:00"
#: Initial and maximum number of seconds between two queries of the scheduler.
_FIRST, _LAST = 1.0, 10.0
#: The codes of findings that belong to rungs above the MPI rung.
_FABRIC = ("mpi.provider", "limits.memlock")
_NOT_THE_PAYLOAD = re.compile(r"\s*$|(srun|slurmstepd|deployer|hint): ")
_TRAINING = ("payload.failed", "payload.result", "itex.inactive", "gpu.unusable")


def one_node(ground: Ground) -> str:
    """Start MPI on one node, with two ranks if it has the cores: they communicate through memory."""
    _, plan = _known(ground)
    ranks = min(2, plan.node.cores)
    return _world(_job(ground, 1, ranks), ranks)


def two_nodes(ground: Ground) -> str:
    """Start MPI on two nodes, with one rank each: they communicate through the network."""
    _known(ground)
    if _most(ground) < 2:
        raise Skipped("the partition has one node")
    return _world(_job(ground, 2, 1), 2)


def fabric(ground: Ground) -> str:
    """Report which network the two nodes used, and its speed."""
    _, plan = _known(ground)
    found = _result(ground)
    _stop_at(found, _FABRIC)
    ranks = found.items("ranks")
    used = ranks[0].maybe_text("provider") if ranks else None
    asked = plan.environment.get("FI_PROVIDER")
    if asked and used:
        what = f"{used}, as the plan asks"
    elif used:
        what = f"{used}; the plan asks for none"
    else:
        what = "%s does not say which network it uses" % (plan.mpi.family if plan.mpi else "the image's MPI")
    return f"{what}; {_speed(found)}"


def horovod(ground: Ground) -> str:
    """Check that Horovod starts with the image's framework and computes a correct sum over the nodes."""
    installed, plan = _known(ground)
    if _horovod(installed, plan) is None:
        raise Skipped("the image has no Horovod")
    found = _result(ground)
    _stop_at(found, _TRAINING)
    said: Record = found.record.get("payload") or {}
    return "{} {} with {}: allreduce over {} ranks is right".format(
        "Horovod",
        said.get("horovod"),
        said.get("framework"),
        said.get("size"),
    )


def _known(ground: Ground) -> Tuple[InstalledImage, Plan]:
    if ground.installed is None or ground.plan is None:
        raise Skipped("the bundle was packed for no site, so there is no plan to run a job by")
    return ground.installed, ground.plan


def _horovod(installed: InstalledImage, plan: Plan) -> Optional[str]:
    return packages.folder(installed, "horovod", plan.abi)


def _most(ground: Ground) -> int:
    """Return the number of nodes of the larger job: two, if the partition has them."""
    return min(2, ground.nodes or 2)


def _result(ground: Ground) -> Fields:
    """Return the result of the larger of the two jobs."""
    if _most(ground) not in ground.results:
        raise Skipped("no job was run")
    return ground.results[_most(ground)]


# --- the jobs ---


def _job(ground: Ground, nodes: int, ranks_per_node: int) -> Fields:
    """Run a job and return its result.json. Raises Skipped if no job is submitted."""
    installed, plan = _known(ground)
    python = installed.manifest().image.python
    command = [python or "python3", "-c", "pass"]
    if nodes == _most(ground) and _horovod(installed, plan):
        command = ["python3", "-c", payload.SOURCE]  # the Python that PATH finds, with its packages
    name = installed.receipt.label
    request = RunRequest(name, None, None, None, None, None, None, (), plan.site, ())
    folder = run.prepare(ground.store, request, Job("doctor", command, nodes, ranks_per_node, 1, _TIME))
    if python is None:  # prepare() has made the checks of `run`: the site's MPI may have been replaced
        shutil.rmtree(folder, ignore_errors=True)
        raise Skipped("the image has no Python, so its ranks can prove nothing; doctor NAME tests with another image")
    if not ground.submits:
        raise Skipped(f"not submitted; by hand: {run.by_hand(folder)}")
    job_id = run.submit(folder)
    try:
        state = _wait(folder, job_id, ground.patience)
    except BaseException:  # including Ctrl-C: leave no job behind
        _give_up(folder)
        raise
    found = _read(folder, state)
    ground.results[nodes] = found
    if not errors(_findings(found)):
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _wait(folder: str, job_id: str, patience: float) -> Optional[JobState]:
    """Wait for a job and return its last state. Raises Unknown if it does not end within ``patience`` seconds."""
    until = time.monotonic() + patience
    pause = _FIRST
    said = "the scheduler does not answer"
    while True:
        try:
            state = jobs.state(job_id, result.launch(folder).scheduler)
            if state is None or not state.active:
                return state
            said = f"{state.word} {state.reason}"
        except TransferError as error:
            said = error.message
        if time.monotonic() > until:
            raise Unknown(
                "job %s did not end within %d s: %s" % (job_id, patience, said.strip()),
                f"the queue may be long: give it more with --patience SECONDS; what it did so far: {folder}",
            )
        time.sleep(pause)
        pause = min(pause * 1.2, _LAST)


def _give_up(folder: str) -> None:
    with suppress(DeployerError):  # the first error is the one to report
        jobs.cancel(folder)


def _read(folder: str, state: Optional[JobState]) -> Fields:
    """Return the result of a job that has ended. Raises JobFailed if there is none."""
    word = state.word if state else "over"
    if jobs.final_exit(folder) is None and not os.path.isfile(os.path.join(folder, result.RESULT_FILE)):
        last = jobs.tail(folder, 1)
        raise JobFailed(
            "the job is {} and left no result: {}".format(word, last[0] if last else "its log is empty"),
            f"see {folder}: the nodes may lack the shared folder, or the site's Python",
        )
    return result.read(folder)


# --- what a job proved ---


def _world(found: Fields, ranks: int) -> str:
    """Return what a job proves about MPI; raise any error that does not belong to a higher rung."""
    above = _FABRIC + _TRAINING
    _stop_at(found, [each.code for each in errors(_findings(found)) if each.code not in above])
    shown = found.items("ranks")
    if found.maybe_number("world_size") != ranks or not shown:
        raise JobFailed("the job left no proof of %d ranks" % ranks, f"see {found.what}")
    hosts = sorted({rank.text("host") for rank in shown})
    library = shown[0].maybe_text("mpi_library") or "an MPI library that does not report its name"
    expected = shown[0].maybe_text("host_mpi_identity")
    whose = ", the site's own" if expected and expected == shown[0].maybe_text("mpi_identity") else ""
    speed = "; " + _speed(found) if ranks > 1 else ""
    return "%d rank%s on %s: %s%s%s" % (ranks, "" if ranks == 1 else "s", ", ".join(hosts), library, whose, speed)


def _speed(found: Fields) -> str:
    figures = [rank.record.get("allreduce") for rank in found.items("ranks")]
    known = [each for each in figures if isinstance(each, dict)]
    if len(known) < 2:  # a single rank is always fast
        return "no Allreduce between ranks was measured"
    latency = max(float(each["latency_us"]) for each in known)
    bandwidth = min(float(each["bandwidth_mb_s"]) for each in known)
    return f"Allreduce {latency:g} us, {bandwidth:g} MB/s"


def _findings(found: Fields) -> List[Finding]:
    return [records.read(Finding, item) for item in found.items("findings")]


def _stop_at(found: Fields, codes: Sequence[str]) -> None:
    """Raise the first error of a job with one of ``codes``, with its remedy."""
    for each in errors(_findings(found)):
        if each.code == "payload.failed" and each.code in codes:
            folder = os.path.dirname(found.what)
            raise JobFailed(f"{each.message}: {_last_words(folder)}", f"its log: {folder}/{result.LOG}")
        if each.code in codes:
            raise Refused(f"{each.code}: {each.subject}: {each.message}", each.remedy)


def _last_words(folder: str) -> str:
    """Return the last line of a job's log that came from neither the launcher nor deployer."""
    lines = [line.strip() for line in jobs.tail(folder) if not _NOT_THE_PAYLOAD.match(line)]
    return lines[-1] if lines else "it said nothing"
