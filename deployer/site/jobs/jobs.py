"""status, logs, cancel, and following a job to its end."""

import io
import os
import select
import shutil
import sys
import time
from contextlib import suppress
from typing import IO, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from deployer.contract.base.errors import DeployerError, JobFailed, MissingTool, Refused, TransferError, UsageError
from deployer.contract.base.grouping import grouped
from deployer.contract.base.json_records import Record
from deployer.contract.base.text import printable
from deployer.contract.proof.evidence import Launch
from deployer.contract.rules.findings import Finding, coded, errors, finding
from deployer.site.jobs import groups, result
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.site.jobs.schedulers.interface import JobState, NotTaken, Scheduler
from deployer.site.proof import causes, memory
from deployer.site.storage.store import Store
from deployer.system import files, process

#: Time limit for a scheduler command, in seconds; a busy controller is slow.
_PATIENCE = 60.0
#: Initial and maximum seconds between two queries of the scheduler, which may have a thousand users.
_FIRST, _LAST = 1.0, 15.0
_GROWTH = 1.2
#: While following a job, repeat queries for this many seconds if the scheduler does not answer.
_SILENCE = 300.0
#: Seconds until a shared file system shows this node what another node has written.
_LAG = 10.0
_TAIL = 30
#: Jobs per query: their ids form one argument of a command, which is limited to 128 KiB.
_AT_ONCE = 2000
#: States that only mean that a job was asked to end: a finished job's result.json contains at least as much.
_ASKED = ("CANCELLED", "TIMEOUT")
#: The exit code of a job that received a signal: its batch system may start it again.
_STOPPED = 143
#: Codes of findings that explain the scheduler's state in more detail.
_EXPLAINED = ("job.ended", memory.CODE)


#: The state of a job without a result that the scheduler no longer knows.
UNKNOWN = "UNKNOWN"


class Status(NamedTuple):
    """A job that deployer made.

    Attributes:
        launch: the job as it was submitted.
        folder: its folder.
        job_id: the scheduler's id; None if it was never submitted.
        state: the scheduler's state. If the scheduler has forgotten the job: COMPLETED or FAILED from result.json. NEW:
            never submitted, as far as is known. UNKNOWN: neither source has a state.
        reason: the scheduler's reason for the state, or empty.
        elapsed: the time since the start according to the scheduler, or empty.
        nodes: the scheduler's list of nodes, or empty.
        active: whether the state can still change.
        exit_code: from result.json, or None.
        problem: why it failed, from the scheduler's reason or the first error in result.json; or empty. For a NEW job,
            also why the scheduler could not report whether it was submitted.
        remedy: what to do about it, or empty.
        seconds: how long the job took, if it has ended.
        figures: the numbers at the top of the payload's own result.
        tasks: the statuses of a group's tasks.
    """

    launch: Launch
    folder: str
    job_id: Optional[str]
    state: str
    reason: str
    elapsed: str
    nodes: str
    active: bool
    exit_code: Optional[int]
    problem: str
    seconds: Optional[int] = None
    remedy: str = ""
    figures: Mapping[str, float] = {}
    tasks: Sequence["Status"] = ()

    def record(self) -> Record:
        """Return the status as a JSON object."""
        of_launch = {name: getattr(self.launch, name) for name in ("job", "bundle", "version", "site")}
        own = {name: value for name, value in self._asdict().items() if name not in ("launch", "figures", "tasks")}
        if self.launch.task is not None:
            own.update(task=self.launch.task, parameters=dict(self.launch.parameters), figures=self.figures)
        if self.tasks:
            own["tasks"] = [task.record() for task in self.tasks]
        return dict(of_launch, **own, log=os.path.join(self.folder, result.LOG))

    def line(self) -> str:
        """Return the status in one line, followed by lines about problems."""
        words = [self.launch.job, self.job_id or "-", self.state]
        words += [word for word in (self.elapsed, self.nodes, self.reason) if word]
        if not self.active and self.exit_code is not None:
            words.append("exit %d" % self.exit_code)
        more = [self.problem, "remedy: " + self.remedy if self.remedy else ""]
        return "\n  ".join(["  ".join(words), *filter(None, more)])


def scheduler(number: str = "", kind: str = "") -> Scheduler:
    """Return the scheduler named ``kind``, or else the first one to which the job id ``number`` can belong.

    Several batch systems use the same form of id. For an unknown id, it is Slurm.
    """
    known = [SCHEDULERS[kind]] if kind in SCHEDULERS else []
    return next((each for each in [*known, *SCHEDULERS.values()] if each.owns(number)), SCHEDULERS["slurm"])


#: A shell's exit code for a program that it does not find.
_NOT_FOUND = 127
#: Printed if the login shell does not find the program, which means that nothing was run.
_MISSING = "deployer: no such program"
#: Runs a command in a login shell. $1 is its program. The output is only the command's, without that of the login
#: files.
_IN_LOGIN_SHELL = f"""exec bash -lc 'type -P "$1" >/dev/null || {{ echo "{_MISSING}" >&3; exit 127; }}; shift; \
exec "$@" >&3 3>&-' bash "$@" 3>&1 >/dev/null"""


def ask(argv: Sequence[str], submits: str = "") -> Tuple[int, str, str]:
    """Run a scheduler's command and return (exit code, output, errors) for its parsers.

    The environment is deliberately small: sbatch passes it to the job, and its variables (``SBATCH_*``,
    ``SLURM_CLUSTERS``) take precedence over the directives of the script.

    Args:
        submits: the program that submits a job, if the command does. It never runs twice, even after a failure.
    """
    settings = tuple(prefix for each in SCHEDULERS.values() for prefix in each.settings)
    names = [name for name in os.environ if name.startswith(settings)]
    names += [] if submits else [each.selects for each in SCHEDULERS.values() if each.selects]
    environment = process.base_environment("LD_LIBRARY_PATH", *names)
    program = submits or argv[0]
    # over ssh, only a login shell may know the commands
    in_login_shell = ["sh", "-c", _IN_LOGIN_SHELL, "sh", program, *argv]
    in_path = shutil.which(program) is not None
    done = process.run(argv if in_path else in_login_shell, _PATIENCE, env=environment, check=False)
    if not in_path and done.returncode == _NOT_FOUND and done.stdout.startswith(_MISSING):
        hint = "this needs the batch system's commands: are you on a login node?"
        raise MissingTool(f"cannot start {program}: No such file or directory", hint)
    if in_path and done.returncode == _NOT_FOUND and not submits:  # one of deployer's own scripts
        done = process.run(in_login_shell, _PATIENCE, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr


def submit(known: Scheduler, script: str, seconds: int, after: Optional[str] = None, array: Sequence[str] = ()) -> str:
    """Submit a job and return its scheduler id.

    If there is no clear answer, for example after a timeout, the scheduler is asked whether it has the job anyway.

    Args:
        script: the path of the batch script.
        seconds: how long it may run.
        after: as in ``Scheduler.submit``.
        array: the same.

    Raises:
        NotTaken, MissingTool: the scheduler certainly does not have the job.
        Refused, TransferError, JobFailed: it may have the job.
    """
    last = [] if known.prefix else [str(seconds)]  # else the script contains it
    argv = [*known.submit(script, after, array), *last]
    try:
        return known.parse_submit(*ask(argv, submits=known.submits or argv[0]))
    except (NotTaken, MissingTool):
        raise
    except DeployerError:
        with suppress(DeployerError):
            number = None if array else _found(known, script)
            if number is not None:
                return number
        raise


def _found(known: Scheduler, script: str) -> Optional[str]:
    """Return the id of the job of ``script`` from the scheduler's list; None if the list does not contain it.

    Raises:
        UsageError: the script cannot be read.
        TransferError, Refused, MissingTool: the scheduler does not answer, its command failed, or there is none.
    """
    argv = known.own(files.read_bytes(script).decode("utf-8", "replace"))
    return known.parse_own(*ask(argv)).get(os.path.abspath(script)) if argv else None


def number(folder: str) -> Optional[str]:
    """Return the scheduler's id of a job, as ``job_id``.

    If no file contains the id, the scheduler is asked, because the submission may have had no answer. Its answer is
    saved in that file if possible.

    Raises:
        UsageError: the folder is not a job's, or cannot be accessed.
        TransferError, Refused: the scheduler does not answer, or its command failed.
    """
    known, group = job_id(folder), groups.read(folder) if groups.is_group(folder) else None
    kind = None if known or (group and len(group.arrays) > 1) else SCHEDULERS.get(result.launch(folder).scheduler)
    if kind is None or not files.is_own(folder):
        return known
    with suppress(MissingTool):  # then this host did not submit it
        known = _found(kind, os.path.join(folder, result.SCRIPT))
    if known and group:
        known = groups.array_id(known)
        groups.write(folder, group.submitted(known))
    elif known:
        with suppress(DeployerError):  # for example on a full disk: the scheduler can be asked again
            files.write_text(os.path.join(folder, result.JOB_ID), known + "\n")
    return known


def find(store: Store, reference: Optional[str]) -> str:
    """Return the folder of the job whose name or scheduler id is ``reference``.

    None selects the last job, preferably one that was submitted. Raises UsageError.
    """
    readable, _ = folders(store)
    if not readable:
        raise UsageError(f"there are no jobs under {store.jobs}", "start one: run NAME")
    if reference is None:
        return next((folder for folder in reversed(readable) if job_id(folder)), readable[-1])
    for folder in reversed(readable):
        ids = job_ids(folder)
        if reference in (os.path.basename(folder), *ids, *(number.partition(";")[0] for number in ids)):
            return folder
    for folder in filter(groups.is_group, reversed(readable) if reference else ()):
        for task, number in elements(folder).items():
            if reference in (f"{os.path.basename(folder)}.{task}", number, number.partition(";")[0]):
                return os.path.join(folder, str(task))
    last = ", ".join(os.path.basename(folder) for folder in readable[-5:])
    raise UsageError(f"no job {reference} under {store.jobs}", "the last ones: " + last)


def folders(store: Store) -> Tuple[List[str], List[str]]:
    """Return the folders of the jobs that this user may read, the oldest first, and of those that he may not.

    The latter are another user's in a shared root folder.
    """
    readable, hidden = [], []
    for name in files.names(store.jobs):
        if not name.startswith("."):  # else it is being created or removed
            folder = os.path.join(store.jobs, name)
            try:
                if groups.is_group(folder):
                    groups.read(folder)  # another user's could be malformed
                state = files.status(os.path.join(folder, result.LAUNCH_FILE))
                readable += [(state.st_mtime, folder)] if state else []
            except UsageError:
                hidden.append(folder)
    return [folder for _, folder in sorted(readable)], hidden


def job_id(folder: str) -> Optional[str]:
    """Return the scheduler's id of a job; None if it was never submitted. The script also writes the id."""
    ids = job_ids(folder)
    return ids[-1] if ids else None


def job_ids(folder: str) -> List[str]:
    """Return the scheduler's ids of a job, the oldest first: a group has one for each of its arrays."""
    try:
        if groups.is_group(folder):
            numbers = [array.job_id or "" for array in groups.read(folder).arrays]
        else:
            with files.open_regular(os.path.join(folder, result.JOB_ID)) as stream:
                numbers = [stream.read().decode("ascii").strip()]
    except (FileNotFoundError, UnicodeDecodeError):
        return []
    except OSError as error:  # do not return nothing: then the image of an active job could be removed
        files.refuse_unseen(os.path.join(folder, result.JOB_ID), error)
    return [number for number in numbers if any(each.owns(number) for each in SCHEDULERS.values())]


def elements(group: str) -> Dict[int, str]:
    """Return the id of each task of a group in the last array that has it; empty if it was never submitted."""
    known = scheduler(kind=result.launch(group).scheduler)
    last, ids = {task.number: "" for task in groups.read(group).tasks}, job_ids(group)
    for array in groups.read(group).arrays:
        for index, task in array.by_index(known.own_numbers).items() if array.job_id in ids else ():
            last[task] = known.element(array.job_id or "", index)
    return last


def tasks(group: str, known: Optional[Mapping[str, JobState]] = None) -> Dict[int, Status]:
    """Return the statuses of a group's tasks by number; ``known``: the scheduler's states (None: query them)."""
    launch, last, found = result.launch(group), elements(group), {}
    if known is None:
        known = states([(number, launch.scheduler) for number in job_ids(group)])
    for task in groups.read(group).tasks:
        folder, number = os.path.join(group, str(task.number)), last[task.number]
        of_task = launch._replace(job=f"{launch.job}.{task.number}", task=task.number, parameters=task.parameters)
        now, own = known.get(number), job_id(folder)
        if own and (own == number or not (now and now.active)):
            found[task.number] = describe(of_task, folder, own, known.get(own))
        else:
            found[task.number] = Status(of_task, folder, number or None, *(now or JobState("NEW")), None, "")
    return found


def _of_group(launch: Launch, folder: str, ids: Sequence[str], known: Mapping[str, JobState]) -> Status:
    """Return the status of a group, as ``described``."""
    every, kinds = list(tasks(folder, known).values()), {}  # type: List[Status], Dict[str, int]
    for task in every:
        kind = ("running" if task.nodes else "waiting") if task.active else "done" if task.exit_code == 0 else "failed"
        kind = "not run" if kind == "failed" and not files.lexists(task.folder) else kind
        kinds[kind] = kinds.get(kind, 0) + 1
    active = any(task.active for task in every)
    wrong = len(every) - kinds.get("done", 0) if ids and not active else 0
    word = "RUNNING" if "running" in kinds else "PENDING" if active else "FAILED" if wrong else "COMPLETED"
    shown = ", ".join("%d %s" % (count, kind) for kind, count in kinds.items())
    exit_code = int(wrong > 0) if ids and not active else None
    why, remedy = ("%d tasks have not ended well" % wrong, f"retry {launch.job}") if wrong else ("", "")
    now, last = JobState(word if ids else "NEW", shown, active=active), ids[-1] if ids else None
    return Status(launch, folder, last, *now, exit_code, why, None, remedy, tasks=every)


def status(folder: str) -> Status:
    """Return the status of a job, or a task, or a group, from the scheduler and result.json.

    A job without an id file is also NEW if the scheduler does not answer: most such jobs were only prepared.
    """
    group, task = groups.group_of(folder)
    if task is not None:
        return tasks(group)[task]
    launch, known = result.launch(folder), job_id(folder)
    try:
        known = known or number(folder)
    except DeployerError as error:
        new = describe(launch, folder, None, None)
        doubt = new._replace(problem="perhaps it was submitted: " + error.message, remedy=error.hint)
        return new if new.problem else doubt
    ids = job_ids(folder) or ([known] if known else [])
    return described(launch, folder, ids, states([(number, launch.scheduler) for number in ids]))


def described(launch: Launch, folder: str, ids: Sequence[str], known: Mapping[str, JobState]) -> Status:
    """Return the status of a job or a group with these ids; ``known`` are the scheduler's states."""
    if groups.is_group(folder):
        return _of_group(launch, folder, ids, known)
    return describe(launch, folder, ids[-1] if ids else None, known.get(ids[-1]) if ids else None)


def describe(launch: Launch, folder: str, number: Optional[str], known: Optional[JobState]) -> Status:
    """Return the status of a job; ``known`` is the scheduler's answer, None if it has forgotten the job."""
    outcome, known = _outcome(folder), known and _noticed(folder, known)
    exit_code, cause = outcome.exit_code, outcome.wrong
    if number is None or known is None:
        ended = UNKNOWN if exit_code is None else "FAILED" if exit_code else "COMPLETED"
        known = JobState(ended if number else "NEW")
    if number:  # until the job has ended, its result is "unfinished"
        early = known.active and not (exit_code and known.nodes)  # on nodes, else it may start again
        cause = None if early else _cause(folder, outcome, known.word)
    seconds = None if known.active or exit_code is None else outcome.seconds
    problem, remedy = outcome.unreadable, ""
    if cause:
        problem, remedy = coded(f"{cause.subject}: {cause.message}", cause.code), printable(cause.remedy)
    return Status(launch, folder, number, *known, exit_code, problem, seconds, remedy, outcome.figures)


def cancel(folder: str) -> bool:
    """Cancel a job, a task or a group; return False if it had already ended.

    Raises:
        UsageError: it was never submitted.
    """
    group, task = groups.group_of(folder)
    known = number(folder) if task is None else elements(group)[task]
    if not known:
        raise UsageError(f"{os.path.basename(folder)} was never submitted", "there is nothing to cancel")
    kind = result.launch(group).scheduler
    its, alone = scheduler(known, kind), task is None and not groups.is_group(folder)
    current: Union[JobState, Status, None] = state(known, kind) if alone else status(folder)
    if current is None or not current.active:
        return False
    try:
        for each in [known] if alone or task is not None else job_ids(folder):
            its.parse_cancel(*ask(its.cancel(each)))
    except (Refused, JobFailed) as error:
        if files.is_own(folder):
            raise
        raise Refused(error.message, "the job is another user's: let them cancel it") from error
    return True


def follow(folder: str, tell: Callable[[str], None]) -> None:
    """Wait for the end of a job; ``tell`` receives a line whenever its state changes.

    If the scheduler does not answer for a while, the job has not failed.

    Raises:
        JobFailed: the job failed.
    """
    submitted = number(folder)
    if submitted is None:
        raise UsageError(f"{os.path.basename(folder)} was never submitted")
    kind = result.launch(folder).scheduler
    before: Optional[Tuple[str, str]] = None
    pause = _FIRST
    known: Optional[JobState] = None
    answered = time.time()
    while True:
        try:
            known = _now(folder, submitted, kind)
            answered = time.time()
        except TransferError as error:
            if time.time() - answered > _SILENCE:
                raise
            tell(f"{error.message}; trying again")
        else:
            if known is None or not known.active:
                break
            if known.nodes and _has_lost_a_node(folder):  # Slurm may wait minutes for it
                known = known._replace(word="FAILED", active=False)
                break
            if _reader_is_gone(2):
                raise BrokenPipeError  # the laptop has disconnected, but the job continues
            if (known.word, known.reason) != before:
                before = (known.word, known.reason)
                tell("  ".join(word for word in (known.word, known.nodes, known.reason) if word))
                pause = _FIRST
        time.sleep(pause)
        pause = min(pause * _GROWTH, _LAST)
    ended = _ended(folder, submitted, known)
    tell("{}{}".format(ended.state, "" if ended.exit_code is None else ", exit %d" % ended.exit_code))
    if following(folder):
        return
    if ended.exit_code != 0 or ended.state != "COMPLETED":
        why = ended.problem or "it saved its state, and no job continues it"
        raise JobFailed(
            f"job {os.path.basename(folder)} ({submitted}) ended as {ended.state}: {why}",
            ended.remedy or f"its log: {os.path.join(folder, result.LOG)}",
        )


def _now(folder: str, number: str, kind: str) -> Optional[JobState]:
    """Return the state of a job with this id, or of a group."""
    if not groups.is_group(folder):
        known = state(number, kind)
        return known and _noticed(folder, known)
    seen = status(folder)
    return JobState(seen.state, seen.reason, active=seen.active)


def _noticed(folder: str, known: JobState) -> JobState:
    """Return the state of a job with what it tells of its nodes, if some have not answered."""
    with suppress(DeployerError):
        if known.active and known.nodes and not known.reason:
            return known._replace(reason=files.read_text(os.path.join(folder, result.NOTICE)))
    return known


def _ended(folder: str, number: str, known: Optional[JobState]) -> Status:
    """Return the status of a job or a group that has ended; wait until the shared file system shows its result."""
    if not groups.is_group(folder):
        final_exit(folder)
        return describe(result.launch(folder), folder, number, known)
    if any(task.exit_code is None for task in status(folder).tasks):
        time.sleep(_LAG)
    return status(folder)


def following(folder: str) -> str:
    """Return the folder of the job that continues this one; empty if none does."""
    try:
        name = result.read(folder, ranks=False).maybe_text(result.NEXT)
    except DeployerError:
        return ""
    return os.path.join(os.path.dirname(folder), name) if name else ""


def tail(folder: str, lines: int = _TAIL) -> List[str]:
    """Return the last lines of a job's log."""
    path, end = result.log(folder), io.BytesIO()
    state = files.status(path)
    _copy_from(path, max(0, (state.st_size if state else 0) - 256 * lines), end, b"")
    return end.getvalue().decode("utf-8", "replace").splitlines()[-lines:]


def show_log(folder: str, follow_it: bool, out: Optional[IO[bytes]] = None) -> None:
    """Copy a job's log to ``out`` (stdout), with ``follow_it`` until the job has ended. Raises UsageError."""
    if groups.is_group(folder):
        name = f"{os.path.basename(folder)}.{min(elements(folder))}"
        raise UsageError("a group has no log, but each of its tasks has one", f"logs {name}")
    target = out or sys.stdout.buffer  # noqa: TID251  what a job printed, with its own colours
    number = job_id(folder)
    if not files.exists(result.log(folder)) and not (follow_it and number):
        raise UsageError(f"{os.path.basename(folder)} has no log yet", "see: status")
    at, asked, ended, answered, pause, seen, last = 0, 0.0, False, time.time(), _FIRST, 0.0, b""
    while True:
        copied, last = _copy_from(result.log(folder), at, target, last)
        at += copied
        if ended or not follow_it or number is None:
            if ended and last not in (b"", b"\n"):  # the caller's next output starts on a new line
                target.write(b"\n")
                target.flush()
            return
        if out is None and _reader_is_gone(1):
            raise BrokenPipeError
        judged = getattr(files.status(os.path.join(folder, result.RESULT_FILE)), "st_mtime", 0.0)  # after each step
        pause, seen = (pause if judged == seen else _FIRST), judged
        if time.time() - asked > pause:
            try:
                now = state(number, result.launch(folder).scheduler)
            except TransferError:
                if time.time() - answered > _SILENCE:
                    raise
            else:
                answered = time.time()
                ended = now is None or not now.active  # one more round, for output written in the meantime
            asked, pause = time.time(), min(pause * _GROWTH, _LAST)
            if ended:
                continue
        time.sleep(_FIRST / 2)


def _reader_is_gone(descriptor: int) -> bool:
    """Return whether the reader of this process's pipe or socket has closed it, for example when ssh has ended."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _copy_from(path: str, offset: int, target: IO[bytes], last: bytes) -> Tuple[int, bytes]:
    """Copy ``path`` from ``offset`` on; return the number of bytes copied, and the last byte (``last`` if none)."""
    try:
        stream = files.open_regular(path)
    except FileNotFoundError:
        return 0, last
    except OSError as error:
        files.refuse_unseen(path, error)
    with stream:
        stream.seek(offset)
        copied = 0
        for chunk in iter(lambda: stream.read(65536), b""):
            target.write(chunk)
            copied += len(chunk)
            last = chunk[-1:]
    target.flush()
    return copied, last


def state(number: str, kind: str = "") -> Optional[JobState]:
    """Return the scheduler's state of the job with this id; None if it has forgotten it. ``kind`` is its scheduler."""
    return states([(number, kind)]).get(number)


def states(submitted: Sequence[Tuple[str, str]]) -> Dict[str, JobState]:
    """Return the states of jobs by id, many per query; forgotten jobs are left out.

    Args:
        submitted: the id of each job and the name of its scheduler.
    """
    owned = ((scheduler(number, kind), number) for number, kind in submitted)
    together = grouped(((owner, owner.place(number)), number) for owner, number in owned)
    known: Dict[str, JobState] = {}
    for (owner, _), numbers in together.items():
        for start in range(0, len(numbers), _AT_ONCE):
            known.update(owner.parse_states(*ask(owner.states(numbers[start : start + _AT_ONCE]))))
    return known


def _has_lost_a_node(folder: str) -> bool:
    """Return whether a job's script ended because a node died, and the job will not start again."""
    outcome = _outcome(folder)
    return outcome.wrong is not None and outcome.wrong.code == "job.ended" and outcome.exit_code != _STOPPED


class _Outcome(NamedTuple):
    """The content of a job's result.json (exit code, seconds, first error, figures), or why it cannot be read."""

    exit_code: Optional[int] = None
    seconds: Optional[int] = None
    wrong: Optional[Finding] = None
    unreadable: str = ""
    figures: Mapping[str, float] = {}


def _outcome(folder: str) -> _Outcome:
    """Return the content of result.json. If it is missing or unreadable, only the scheduler knows the job's state."""
    if not files.is_file(os.path.join(folder, result.RESULT_FILE)):
        return _Outcome()
    try:
        fields = result.read(folder, ranks=False)
        wrong = next(iter(errors(result.findings(fields))), None)
        payload = fields.record.get("payload")
        numbers = payload.items() if isinstance(payload, dict) else ()
        own = {name: value for name, value in numbers if type(value) in (int, float)}
        return _Outcome(fields.maybe_number("exit_code"), fields.maybe_number("seconds"), wrong, figures=own)
    except DeployerError as error:
        return _Outcome(unreadable=error.message)


def _cause(folder: str, outcome: _Outcome, word: str) -> Optional[Finding]:
    """Return why a job ended: the most specific cause in result.json, the scheduler's state, and the log."""
    wrong, unfinished = outcome.wrong, outcome.exit_code is None
    if word in causes.ENDS and (unfinished or (word not in _ASKED and (wrong is None or wrong.code not in _EXPLAINED))):
        return causes.ended("job", word, result.told(folder))
    if unfinished and word != "COMPLETED":
        why = result.told(folder).reason or _unwritten(folder)
        return finding("job.unfinished", "job", why=": " + why if why else "")
    return wrong


def _unwritten(folder: str) -> str:
    """Return why a job could not write to its folder, as far as this host can tell; empty if there is no reason."""
    import tempfile  # only here: this import takes longer than all others

    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"its folder cannot be written: {error.strerror}"
    if not any(name.endswith(".log") for name in files.names(folder)):
        return "there is no log either, so its first node could not write to its folder: is it mounted there?"
    return ""


def final_exit(folder: str) -> Optional[int]:
    """Return the exit code of a job that has ended; wait briefly until the shared file system shows it."""
    until = time.time() + _LAG
    while True:
        exit_code = _outcome(folder).exit_code
        if exit_code is not None or time.time() > until:
            return exit_code
        os.listdir(folder)  # makes an NFS client check again
        time.sleep(0.5)
