"""The user's request for a job, and what follows from only the request, the job and the plan. Pure.

The site evaluates it before it creates a job; a laptop does so before it builds or sends anything.
"""

from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.base import variables
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle import limits
from deployer.contract.bundle.job import TORCHRUN, Job, check_stdin, check_time, find, seconds
from deployer.contract.bundle.sweep import TaskGroup
from deployer.contract.rules import hostfiles
from deployer.contract.site import layout as layouts
from deployer.contract.site.choose import StagingNeed, choose
from deployer.contract.site.plan import NATIVE, Plan
from deployer.site.container.container import Home
from deployer.site.jobs import schedulers
from deployer.site.jobs.schedulers.interface import JobRequest
from deployer.site.proof.rank_record import SAVED, WARN
from deployer.site.run import gpus, inside_out
from deployer.site.run.job_script.submission import SubmissionOptions, ask
from deployer.site.run.prepare import placeholders
from deployer.site.storage.site_plans import SitePlans

#: A chain of more jobs is likely a mistake.
_MOST_AGAIN = 1000


class RunRequest(NamedTuple):
    """The user's request; None selects the value of the job or bundle.

    Attributes:
        image: NAME[:VERSION][@DIGEST].
        job: the job's name.
        nodes: number of nodes.
        ranks_per_node: ranks per node.
        threads: threads per rank.
        time: the time limit.
        memory_mb: MiB per rank.
        binds: extra binds, as the user wrote them.
        plan: the site of the plan.
        extra: words to append to the job's command; the complete command if the bundle has no job.
        force: run even if `check` refused the job on the laptop.
        options: options for the batch system.
        staging: the user's choice of staging.
        runtime: the user's choice of runtime.
        home: the user's choices for the home.
        stdin: a file in the container that each rank reads.
        env: variables of the ranks, as the user wrote them: NAME=VALUE.
        again: how many jobs may continue this one; None: it is a single job, and its ranks get no warning.
        warn: how many seconds before the time limit to warn the ranks.
        gpus_per_rank: GPUs that each rank sees.
        launch: how ranks start, one of ``plan.LAUNCHES``.
        just_checked: the caller has just checked that the image has all its files.
        token: the suffix of the new job's name, as in ``dialogue.TOKEN``; None: a new one.
        accept: codes of ``findings.ACCEPTABLE`` that do not stop the job.
        tasks: the tasks of a group; None: a single job.
    """

    image: str
    job: Optional[str] = None
    nodes: Optional[int] = None
    ranks_per_node: Optional[int] = None
    threads: Optional[int] = None
    time: Optional[str] = None
    memory_mb: Optional[int] = None
    binds: Sequence[str] = ()
    plan: Optional[str] = None
    extra: Sequence[str] = ()
    force: bool = False
    options: SubmissionOptions = SubmissionOptions()
    staging: Optional[str] = None
    runtime: Optional[str] = None
    home: Home = Home()
    stdin: Optional[str] = None
    env: Sequence[str] = ()
    again: Optional[int] = None
    warn: int = WARN
    gpus_per_rank: Optional[int] = None
    launch: Optional[str] = None
    just_checked: bool = False
    token: Optional[str] = None
    accept: Sequence[str] = ()
    tasks: Optional[TaskGroup] = None


class Settled(NamedTuple):
    """A job as it will run.

    Attributes:
        plan: the plan.
        job: the job with the user's options.
        layout: its layout.
        asked: the request to the batch system, besides the layout.
        environment: the user's variables.
        warn: how many seconds before the time limit to warn the ranks; None: never.
    """

    plan: Plan
    job: Job
    layout: layouts.Layout
    asked: JobRequest
    environment: Dict[str, str]
    warn: Optional[int]


def settle(
    site_plans: SitePlans,
    name: str,
    jobs: Sequence[Job],
    request: RunRequest,
    environment: Optional[Mapping[str, str]],
    own: Optional[Job] = None,
) -> Settled:
    """Return the job for a request.

    Args:
        site_plans: the plans of the bundle for the site.
        name: the bundle's name.
        jobs: its jobs.
        environment: the user's variables at the site; None: unknown here.
        own: a job that replaces the bundle's jobs.

    Raises:
        UsageError: the job does not exist, or options are impossible or exclude each other.
        Refused: the plan or its nodes do not permit it.
    """
    job = own or with_options(find(name, jobs, request.job, request.extra, f"run {name}"), request)
    plan = inside_out.chosen(_plan(site_plans, request), request.launch, request.runtime)
    if environment is not None:
        plan = placeholders.expanded(plan, environment)
    options = request.options
    if options.partition == plan.partition:
        options = options._replace(partition=None)  # the plan contains its queue
    layout = layouts.lay_out(job.nodes, job.ranks_per_node, job.threads, plan.node, job.memory)
    waived = limits.CODES if request.force else plan.checked.accepted if plan.checked else ()
    if plan.checked:  # from this job, whose numbers are checked here
        judged_here = (*limits.CODES, *(gpus.ABOUT_REQUESTED if options.gpus == 0 else ()))
        plan = plan._replace(checked=plan.checked.of_job(job.name).without(judged_here))
    if request.runtime == NATIVE:
        plan = plan._replace(checked=None)  # it is about the image
        if job.links:
            raise Refused(
                f"the job {job.name} has links to data, which only a container has", "run it without --runtime native"
            )
    needed = job.gpus and job.gpus * job.ranks_per_node
    asked = ask(plan, options, job.nodes, job.time, environment, needed, waived)
    other = limits.GPUS in waived or options.partition is not None  # only the plan's own partition is known
    gpus.check(job, asked.gpus, options.gpus == 0, None if other else plan.node.gpus)
    if job.whole_nodes:
        layout = layouts.gathered(layout)
    if request.tasks and request.again is not None:
        raise UsageError("--again cannot be used with --array and --sweep", "repeat tasks that failed with: retry JOB")
    schedulers.known(plan.scheduler).submitting(request.tasks)  # or it has no arrays
    return Settled(plan, job, layout, asked, users_environment(plan, request.env), _warn(request, job))


def foresee(site_plans: SitePlans, name: str, jobs: Sequence[Job], request: RunRequest) -> None:
    """Raise any error that the site would raise about a request, as far as the laptop's information allows."""
    settled = settle(site_plans, name, jobs, request, None)
    layout = settled.layout
    need = StagingNeed({}, layout.ranks_per_node * (layout.memory_mb or 0))
    choose(settled.plan, layout.nodes, {}, need, request.staging, request.runtime)


def _plan(site_plans: SitePlans, request: RunRequest) -> Plan:
    """Return the plan for the user's partition. An unknown partition uses the first plan.

    Raises:
        Refused: the partition can have no plan.
    """
    chosen = request.options.partition
    plan, reason = site_plans.find(chosen), site_plans.reason(chosen)
    if reason is not None and not request.force:
        raise Refused(
            f"{plan.bundle} has no plan for partition {chosen or plan.partition} of {plan.site}: {reason}",
            "choose another partition, or correct the profile and make a new plan",
        )
    return plan


def with_options(job: Job, request: RunRequest) -> Job:
    """Return the job with the user's numbers and words."""

    def given(value: Optional[int], default: int) -> int:
        return default if value is None else value

    own_gpus = None if request.options.gpus == 0 else job.gpus
    return job._replace(
        command=[*job.command, *request.extra],
        nodes=given(request.nodes, job.nodes),
        ranks_per_node=given(request.ranks_per_node, job.ranks_per_node),
        threads=given(request.threads, job.threads),
        time=job.time if request.time is None else check_time(request.time),
        stdin=job.stdin if request.stdin is None else check_stdin(request.stdin),
        memory=job.memory if request.memory_mb is None else request.memory_mb,
        gpus=own_gpus if request.gpus_per_rank is None else request.gpus_per_rank,
    )


def users_environment(plan: Optional[Plan], words: Sequence[str]) -> Dict[str, str]:
    """Return the variables of ``--env``. Raises UsageError if one of them cannot be set."""
    given = variables.parse(words)
    if plan:
        folders = [hostfiles.FOLDER, *(bind.target for bind in plan.binds)]
        variables.check_plan(given, plan.environment, folders)
    return given


def _warn(request: RunRequest, job: Job) -> Optional[int]:
    """Return how many seconds before the time limit to warn the ranks. Raises UsageError."""
    if request.again is None:
        return None
    if not 1 <= request.again <= _MOST_AGAIN:
        raise UsageError("--again %d: not a number of jobs" % request.again, "1 to %d" % _MOST_AGAIN)
    if job.launch == TORCHRUN:
        raise UsageError(
            "--again: job %s starts through torchrun, which ends with 1 instead of the ranks' exit code %d"
            % (job.name, SAVED),
            "write `launch: ranks` in the definition",
        )
    limit = seconds(job.time)
    if not 1 <= request.warn < limit:
        raise UsageError(
            "--warn %d: ranks cannot be warned that many seconds before a limit of %s" % (request.warn, job.time),
            "give fewer seconds than the %d of the limit, or --time" % limit,
        )
    return request.warn
