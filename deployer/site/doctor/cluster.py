"""The rungs that require a job: MPI on one node and on two nodes, the fabric between them, Horovod.

They use two short jobs of ``run``, created like any other job of this image; result.json contains the proof. A job
that does not end in time is cancelled. The folder of a successful job is removed.
"""

import os
import re
import shutil
import time
from contextlib import suppress
from typing import Collection, Optional, Tuple

from deployer.contract.base.errors import DeployerError, JobFailed, Refused, TransferError, Unknown
from deployer.contract.base.json_records import Fields, Record
from deployer.contract.base.text import counted
from deployer.contract.bundle.job import Job
from deployer.contract.rules.findings import errors
from deployer.contract.site.plan import NATIVE, NO_MPI, Plan
from deployer.contract.site.speed import Speed
from deployer.site.doctor import payload
from deployer.site.doctor.climb import Ground, Skipped
from deployer.site.jobs import jobs, result
from deployer.site.jobs.schedulers.interface import JobState
from deployer.site.run import run
from deployer.site.run.prepare.request import RunRequest
from deployer.site.storage import packages, speeds
from deployer.site.storage.store import InstalledImage

#: A job's own time limit; most of it is for importing TensorFlow from a cold file system.
_TIME = "00:10:00"
#: Initial and maximum number of seconds between two queries of the scheduler.
_FIRST, _LAST = 1.0, 10.0
#: The codes of findings that belong to rungs above the MPI rung.
_FABRIC = ("mpi.provider", "limits.memlock", "network.slow")
#: Lines of a job's log from the launcher or deployer.
_NOT_THE_PAYLOAD = re.compile(r"\s*$|(srun|slurmstepd|deployer|hint): ")
_TRAINING = ("payload.failed", "payload.result", "itex.inactive", "gpu.unusable")


def one_node(ground: Ground) -> str:
    """Start MPI on one node, with two ranks if it has the cores: they communicate through memory."""
    _, plan = _known(ground)
    ranks = min(2, plan.node.cores)
    fields = ground.results[1] = _job(ground, 1, ranks)
    return _world(fields, ranks)


def two_nodes(ground: Ground) -> str:
    """Start MPI on two nodes, with one rank each: they communicate through the network."""
    _known(ground)
    if _most(ground) < 2:
        raise Skipped("the partition has one node")
    fields = ground.results[2] = _job(ground, 2, 1)
    return _world(fields, 2)


def fabric(ground: Ground) -> str:
    """Report which network the two nodes used, and its speed, which is kept for later jobs if no container was used."""
    _, plan = _known(ground)
    fields = _result(ground, _FABRIC)
    ranks = fields.items("ranks")
    used = ranks[0].maybe_text("provider") if ranks else None
    if used:
        what = used + (", as the plan asks" if plan.environment.get("FI_PROVIDER") else "; the plan asks for none")
    else:
        what = "%s does not say which network it uses" % (plan.mpi.family if plan.mpi else "the image's MPI")
    return f"{what}; {_speed(fields)}{_without_container(ground, plan)}"


def _without_container(ground: Ground, plan: Plan) -> str:
    """Measure and keep the speed between two nodes without a container; return it in words."""
    native = any(option.runtime == NATIVE for option in plan.start_options)
    if _most(ground) < 2 or (plan.abi != NO_MPI and not (native and plan.mpi)):
        return ""
    way, fields = "tcp", ground.results[2]  # jobs without MPI measure it on the hosts
    if plan.abi != NO_MPI:
        way, fields = "mpi", _job(ground, 2, 1, NATIVE)
    network = fields.record.get("network") or {}
    if not network:
        return "; without a container, no speed was measured"
    measured = {key: network[key] for key in Speed._fields}
    path = speeds.write(ground.store, plan.site, plan.partition, way, measured)
    shown = "{latency_us:g} us, {bandwidth_mb_s:g} MB/s".format(**measured)
    return f"; without a container: {shown}; kept in {path}, which later jobs are compared with"


def horovod(ground: Ground) -> str:
    """Check that Horovod starts with the image's framework and computes a correct sum over the nodes."""
    installed, plan = _known(ground)
    if packages.folder(installed, "horovod", plan.abi) is None:
        raise Skipped("the image has no Horovod")
    figures: Record = _result(ground, _TRAINING).record.get("payload") or {}
    shown = map(figures.get, ("horovod", "framework", "size"))
    return "Horovod {} with {}: allreduce over {} ranks is right".format(*shown)


def _known(ground: Ground) -> Tuple[InstalledImage, Plan]:
    if ground.installed is None or ground.plan is None:
        raise Skipped("the bundle was packed for no site, so there is no plan to run a job by")
    return ground.installed, ground.plan


def _most(ground: Ground) -> int:
    """Return the number of nodes of the larger job: two, if the partition has them."""
    return min(2, ground.nodes or 2)


def _result(ground: Ground, codes: Collection[str]) -> Fields:
    """Return the result of the larger of the two jobs; raise its first error with one of ``codes``."""
    fields = ground.results.get(_most(ground))
    if fields is None:
        raise Skipped("no job was run")
    _stop_at(fields, codes)
    return fields


# --- the jobs ---


def _job(ground: Ground, nodes: int, ranks_per_node: int, runtime: Optional[str] = None) -> Fields:
    """Run a job and return its result.json. Raises Skipped if no job is submitted."""
    installed, plan = _known(ground)
    python = installed.manifest().image.python if runtime is None else plan.python[0]
    command = [python or "python3", "-c", "pass"]
    if runtime is None and nodes == _most(ground) and packages.folder(installed, "horovod", plan.abi):
        command = ["python3", "-c", payload.SOURCE]  # the Python that PATH finds, with its packages
    job = Job("doctor", command, nodes, ranks_per_node, threads=1, time=_TIME)
    folder = run.prepare(ground.store, RunRequest(installed.receipt.label, plan=plan.site, runtime=runtime), job)
    if python is None:  # prepare() has made the checks of `run`: the site's MPI may have been replaced
        shutil.rmtree(folder, ignore_errors=True)
        raise Skipped("the image has no Python, so its ranks can prove nothing; doctor NAME tests with another image")
    if not ground.submits:
        raise Skipped(f"not submitted; by hand: {run.by_hand(folder)}")
    job_id = run.submit(folder)
    try:
        state = _wait(folder, job_id, ground.patience)
    except BaseException:  # including Ctrl-C: leave no job behind
        with suppress(DeployerError):  # the first error is the one to report
            jobs.cancel(folder)
        raise
    fields = _read(folder, state)
    if not errors(result.findings(fields)):
        shutil.rmtree(folder, ignore_errors=True)
    return fields


def _wait(folder: str, job_id: str, patience: float) -> Optional[JobState]:
    """Wait for a job and return its last state. Raises Unknown if it does not end within ``patience`` seconds."""
    until = time.monotonic() + patience
    pause = _FIRST
    answer = "the scheduler does not answer"
    while True:
        try:
            state = jobs.state(job_id, result.launch(folder).scheduler)
            if state is None or not state.active:
                return state
            answer = f"{state.word} {state.reason}"
        except TransferError as error:
            answer = error.message
        if time.monotonic() > until:
            raise Unknown(
                "job %s did not end within %d s: %s" % (job_id, patience, answer.strip()),
                f"the queue may be long: give it more with --patience SECONDS; what it did so far: {folder}",
            )
        time.sleep(pause)
        pause = min(pause * 1.2, _LAST)


def _read(folder: str, state: Optional[JobState]) -> Fields:
    """Return the result of a job that has ended. Raises JobFailed if there is none."""
    if jobs.final_exit(folder) is None and not os.path.isfile(os.path.join(folder, result.RESULT_FILE)):
        word, last = state.word if state else "over", "".join(jobs.tail(folder, 1))
        raise JobFailed(
            f"the job is {word} and left no result: {last or 'its log is empty'}",
            f"see {folder}: the nodes may lack the shared folder, or the site's Python",
        )
    return result.read(folder)


# --- what a job proved ---


def _world(fields: Fields, ranks: int) -> str:
    """Return what a job proves about MPI; raise any error that does not belong to a higher rung."""
    codes = {finding.code for finding in errors(result.findings(fields))}
    _stop_at(fields, codes - {*_FABRIC, *_TRAINING})
    shown = fields.items("ranks")
    if fields.maybe_number("world_size") != ranks or not shown:
        raise JobFailed("the job left no proof of %d ranks" % ranks, f"see {fields.what}")
    hosts = sorted({rank.text("host") for rank in shown})
    library = shown[0].maybe_text("mpi_library") or "an MPI library that does not report its name"
    expected = shown[0].maybe_text("host_mpi_identity")
    whose = ", the site's own" if expected and expected == shown[0].maybe_text("mpi_identity") else ""
    speed = "; " + _speed(fields) if ranks > 1 else ""
    return "{} on {}: {}{}{}".format(counted(ranks, "rank"), ", ".join(hosts), library, whose, speed)


def _speed(fields: Fields) -> str:
    network = fields.record.get("network")
    if isinstance(network, dict):
        return "{latency_us:g} us and {bandwidth_mb_s:g} MB/s between the nodes".format(**network)
    figures = [rank.record.get("allreduce") for rank in fields.items("ranks")]
    known = [each for each in figures if isinstance(each, dict)]
    if len(known) < 2:  # a single rank is always fast
        return "no Allreduce between ranks was measured"
    latency = max(float(each["latency_us"]) for each in known)
    bandwidth = min(float(each["bandwidth_mb_s"]) for each in known)
    return f"Allreduce {latency:g} us, {bandwidth:g} MB/s"


def _stop_at(fields: Fields, codes: Collection[str]) -> None:
    """Raise the first error of a job with one of ``codes``, with its remedy."""
    for finding in errors(result.findings(fields)):
        if finding.code == "payload.failed" and finding.code in codes:
            folder = os.path.dirname(fields.what)
            lines = [line.strip() for line in jobs.tail(folder) if not _NOT_THE_PAYLOAD.match(line)]
            last_line = lines[-1] if lines else "it said nothing"
            raise JobFailed(f"{finding.message}: {last_line}", f"its log: {folder}/{result.LOG}")
        if finding.code in codes:
            raise Refused(f"{finding.code}: {finding.subject}: {finding.message}", finding.remedy)
