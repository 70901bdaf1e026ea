"""deploy: build, pack, check, push and submit, each stage only if something changed; then follow the job.


A stage that fails ends the deploy with its own error and exit code. The next deploy continues from there: a build and
a pack from their caches, a push with the parts that have arrived. A job that nobody followed to its end is followed,
even if the site could not report its submission, because the laptop has chosen the job's name.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from deployer.connected.bundle.contents import Contents
from deployer.connected.deploy import last_deploy, packing
from deployer.connected.deploy.packing import DeployRequest, DeployStage, PackedBundle, Packing, megabytes
from deployer.connected.ground import caches
from deployer.connected.image.definition.definition import load
from deployer.connected.transfer.ahead import Ahead
from deployer.connected.transfer.published import profile_of
from deployer.connected.transfer.remote import Remote
from deployer.connected.transfer.submission import Submission, status_of
from deployer.contract.base import dialogue, json_records, records
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.json_records import Fields
from deployer.system.trust.verify import begin, opened

if TYPE_CHECKING:  # stages import these while the connection is made, which takes as long
    from deployer.connected.check.check import Verdict
    from deployer.connected.transfer.push import Pushed, PushOptions

#: Digits of the digest that selects an image.
_DIGITS = 32
#: Seconds for the submission: a busy batch system answers slowly.
_SUBMIT_SECONDS = 600


class Deployed(NamedTuple):
    """The result of a deploy.

    Attributes:
        bundle: the file; None after a dry run that would pack.
        digest: the bundle's digest; empty after such a dry run.
        verdict: the verdict of ``check``; None after such a dry run, or for a data-only bundle.
        folder: the installed image on the site; None after a dry run.
        job: the name of the job; empty if none was submitted.
        job_id: the scheduler's job number.
        seconds: the time from the start to the submission.
    """

    bundle: Path | None
    digest: str = ""
    verdict: "Verdict | None" = None
    folder: str | None = None
    job: str = ""
    job_id: str = ""
    seconds: float = 0.0

    def record(self) -> json_records.Record:
        return {
            **self._asdict(),
            "bundle": str(self.bundle) if self.bundle else None,
            "verdict": records.plain(self.verdict),
            "seconds": round(self.seconds, 3),
        }


class Deploy(Packing):
    """One deploy, over one connection that lasts until the block ends.

    Attributes:
        profile: the site's profile.
        remote: the connection, opened by the first stage that needs it.
        submitting: the site can submit the job without further data from here, and has not reported one.
    """

    def __init__(self, request: DeployRequest, show: Callable[[DeployStage], None], say: Callable[[str], None]) -> None:
        definition = load(request.definition)
        self.profile = profile_of(request.site, request.ssh_config).selected([], request.mpi, request.launch)
        super().__init__(definition, self.profile, request, show, say)
        self._began = time.monotonic()
        self._cleanup = ExitStack()
        self._connection: Future[Remote] | None = None
        self.submitting = False
        self._asking: Submission | None = None
        self._ahead: Ahead | None = None
        self._label = f"{self.definition.name}:{self.definition.version}"

    def __enter__(self) -> "Deploy":
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def remote(self) -> Remote:
        """The connection to the site. Raises TransferError and the other errors of ``Remote``."""
        if self._connection is None:
            self._connect()
        return cast("Future[Remote]", self._connection).result()

    def _connect(self) -> None:
        """Begin to connect. The login takes a fraction of a second, during which other stages work."""
        remote = Remote(self.profile, self._request.ssh_config)

        def connected() -> Remote:
            remote.__enter__()
            remote.prepare()
            return remote

        def end_login() -> None:
            """Show another stage's error immediately: a login may take a minute or wait for a password."""
            if not connection.done():
                remote.give_up()

        if not self.profile.login.inbox:
            self._ahead = Ahead(lambda: self.remote)
            self._follow = self._ahead.follow
            self._cleanup.callback(self._ahead.stop)
        # Reverse order at the end: end_login, then the worker ends, then the connection is closed, then what is ahead.
        self._cleanup.push(remote)
        worker = self._cleanup.enter_context(ThreadPoolExecutor(1, "connect"))
        self._connection = connection = worker.submit(connected)
        self._cleanup.callback(end_login)

    def run(self) -> Deployed:
        """Run all stages. Each raises its own errors.

        Raises:
            Refused: ``lint`` or ``check`` refused; others as in ``build``, ``pack``, ``push`` and the site's ``run``.
        """
        contents = self._build()
        if contents and not self._request.dry_run and self._connection is None:
            # Connect only now: if lint refuses, nobody must type a password; and a build takes long.
            self._connect()
        with nullcontext() if self._request.dry_run else last_deploy.alone(self._bundle):
            return self._deliver(contents)

    def _deliver(self, contents: Contents | None) -> Deployed:
        """Run the stages after the build."""
        packed = self._pack(contents) if contents else None
        if packed is None:
            for name in [packing.CHECK, packing.PUSH] + ([] if self.definition.is_data else [packing.RUN]):
                self._begin(name)(packing.WOULD, "depends on the stages before it")
            return Deployed(None)
        verdict = None if self.definition.is_data else self._check(packed)
        pushed = self._push(packed, self._submission(packed))
        done = Deployed(packed.path, packed.digest, verdict, pushed.folder)
        if self.definition.is_data:
            return done
        return self._with_job(done, pushed.then) if pushed.then else self._run(packed, done)

    def followed(self, job: str) -> None:
        """Record that the job's end was observed."""
        last = last_deploy.recorded(self._bundle)
        if last.job == job:  # another deploy may have submitted one since
            self._record(self._bundle, last._replace(job="", words=()))

    # --- the stages ---

    def _check(self, packed: PackedBundle) -> "Verdict":
        from deployer.connected.check.check import verdict_of
        from deployer.connected.transfer import push as pushing

        end = self._begin(packing.CHECK)
        with self._forgotten_if_damaged(packed.path):
            verdicts = [verdict for verdict in map(verdict_of, packed.plans) if verdict]
            if verdicts:  # `pack` has just made the same check
                verdict: Verdict | None = pushing.chosen(verdicts, self.profile, self._request.force, self._jobs)
            else:
                with opened(str(packed.path)) as stream:
                    verdict = pushing.check_for(begin(stream, str(packed.path)), self.profile, self._push_options())
            if verdict is None:
                raise AssertionError("a bundle without a plan is refused")
            end(packing.DONE, f"{verdict.checked.verdict}: {verdict.way}")
            return verdict

    def _push_options(self) -> "PushOptions":
        from deployer.connected.transfer.push import PushOptions

        force, facts, job = self._request.force, caches.LINK.folder, next(iter(self._jobs), None)
        return PushOptions(dry_run=self._request.dry_run, force=force, facts=facts, judged=True, job=job)

    @property
    def _jobs(self) -> list[str]:
        """The job to run; empty if the definition has none."""
        return [self._request.job] if self._request.job else [*self.definition.jobs][:1]

    def _push(self, packed: PackedBundle, submission: Sequence[str] = ()) -> "Pushed":
        """Send and install the bundle.

        Args:
            submission: a site command that submits the job in the process that installs the bundle; empty: the job is
                not submitted now.
        """
        from deployer.connected.transfer import push as pushing

        end = self._begin(packing.PUSH)
        remote = self.remote
        if not (self.definition.is_data or self._request.dry_run):
            self._name_others(packed)

        def handed_over() -> None:
            if submission and not self.submitting:
                self._submits(packed)

        def installed(pushed: "Pushed") -> None:
            """End this stage and begin the next."""
            nonlocal end
            handed_over()  # another push may have been faster
            self._installed(packed, pushed, end)
            end = self._begin(packing.RUN)

        options = self._push_options()._replace(
            ahead=self._ahead.finish() if self._ahead else "",
            packed=packed.digest,
            then=submission,
            handed_over=handed_over,
            installed=installed,
            hear=self._say,
        )
        with self._forgotten_if_refused(packed), self._forgotten_if_damaged(packed.path, pushing.DamagedBundle):
            pushed = pushing.push(packed.path, self.profile, self._request.ssh_config, options, remote)
        if pushed.then is None:
            self._installed(packed, pushed, end)
        else:
            self._submitted_as(packed, pushed.then, end)
        return pushed

    def _installed(self, packed: PackedBundle, pushed: "Pushed", end: Callable[[str, str], None]) -> None:
        """Report and record the outcome of a push."""
        last = last_deploy.recorded(packed.path)
        # The user already knows what this command made and pushed earlier.
        known = (*dialogue.ORIGINS, *([dialogue.replaces(self._label, last.pushed)] if last.pushed else []))
        for warning in pushed.warnings:
            if not warning.startswith(known):
                self._say(f"warning: {warning}")
        if pushed.folder and last.pushed != packed.digest:
            self._record(packed.path, last._replace(pushed=packed.digest))
        if pushed.sent == 0:
            end(packing.UNCHANGED, f"installed at {self.remote.host}: {pushed.folder}")
        elif pushed.folder is None:
            end(packing.WOULD, f"send {megabytes(pushed.sent)} to {self.remote.host}")
        else:
            end(packing.DONE, f"{megabytes(pushed.sent)} sent, installed at {self.remote.host}: {pushed.folder}")

    def _run(self, packed: PackedBundle, done: Deployed) -> Deployed:
        request = self._request
        end = self._begin(packing.RUN)
        if request.dry_run:
            end(packing.WOULD, " ".join(["submit", self._label, *self._words()]))
            return done
        last = last_deploy.recorded(packed.path)
        if last.job and list(last.words) == self._signature(packed):
            status = self._active(last.job)
            if status:
                end(packing.UNCHANGED, f"{status.text('job')} is {status.text('state')} as {_number(status)}")
                self._record(packed.path, last._replace(job=status.text("job")))
                return self._with_job(done, status)
        self._submits(packed)
        with self._forgotten_if_refused(packed):
            command = self._run_command(packed)
            status = self.remote.site(command, _SUBMIT_SECONDS, rest=request.rest, hear=self._say)
        self._submitted_as(packed, status, end)
        return self._with_job(done, status)

    def _words(self) -> list[str]:
        """Return the words of the submission: the job and its options."""
        request = self._request
        return [*([request.job] if request.job else []), *request.words, *(["--force"] if request.force else [])]

    def _run_command(self, packed: PackedBundle) -> list[str]:
        image = f"{self._label}@{packed.digest.rpartition(':')[2][:_DIGITS]}"
        return ["run", image, *self._words(), "--plan", self.profile.name, "--token", self._asked(packed).token]

    def _asked(self, packed: PackedBundle) -> Submission:
        """Return the submission of this deploy, or an earlier one that the site has not answered."""
        if self._asking is None:
            scope, words = str(last_deploy.record_of(packed.path)), self._signature(packed)
            self._asking = Submission(scope, self.definition.name, self.profile.name, words)
            self._cleanup.callback(self._asking.close)
        return self._asking

    @property
    def finds_job(self) -> bool:
        """Whether repeating the deploy finds the job that this one may have submitted."""
        return self._asking is not None and self._asking.recorded

    @contextmanager
    def _forgotten_if_refused(self, packed: PackedBundle) -> Iterator[None]:
        """Remove the record of the submission if an error of the site's program excludes a job."""
        try:
            yield
        except DeployerError as error:
            if self.submitting and type(error) is DeployerError:  # our own errors have the class of their exit code
                self._asked(packed).ended(error.exit_code, self.remote)
            raise

    def _submits(self, packed: PackedBundle) -> None:
        """Record that the site may submit the job from now on, until it reports the job."""
        self.submitting = True
        with self._warned_if_full():
            self._asked(packed).record()

    def _name_others(self, packed: PackedBundle) -> None:
        """List unanswered jobs that other deploys of this bundle's file submitted to this site."""
        for unanswered in self._asked(packed).others():
            job = unanswered.job
            status = status_of(self.remote, job)
            hint = f"to end it: {shlex.join(['deployer', 'cancel', '--site', self._request.site, job])}"
            if status is None:
                if unanswered.is_late:
                    unanswered.forget()
                else:  # the next deploy lists it too
                    self._say(f"warning: the site may still start job {job} of an earlier deploy; if it does, {hint}")
                continue
            if not status.flag("own"):
                self._say(f"warning: job {job} is another user's, so it is not followed")
            elif not status.maybe_text("job_id"):
                self._say(f"warning: an earlier deploy prepared job {job}, which has no number; if it starts, {hint}")
            else:
                state = f"{status.text('state')} as {_number(status)}"
                self._say(f"warning: job {job} of an earlier deploy, which had no answer, is {state}; {hint}")
            unanswered.forget()

    def _signature(self, packed: PackedBundle) -> list[str]:
        """Return the recorded words of a submission. The same words are not submitted again while the job is active."""
        return [packed.digest, *self._words(), "--", *self._request.rest]

    def _submission(self, packed: PackedBundle) -> list[str]:
        """Return the command that submits the job; empty if it is not submitted, or might not be."""
        last = last_deploy.recorded(packed.path)
        again = last.job and list(last.words) == self._signature(packed)
        if self.definition.is_data or self._request.dry_run or again:
            return []
        rest = ["--", *self._request.rest] if self._request.rest else []
        return [*self._run_command(packed), "--just-checked", "--json", *rest]

    def _submitted_as(self, packed: PackedBundle, status: Fields, end: Callable[[str, str], None]) -> None:
        """Report and record that the job was submitted."""
        self.submitting = False
        job, number = status.text("job"), _number(status)
        last = last_deploy.recorded(packed.path)
        self._record(packed.path, last._replace(job=job, words=self._signature(packed)))
        self._asked(packed).answered()
        if status.maybe_flag("repeated"):
            end(packing.UNCHANGED, f"{job} was submitted before as {number}: {status.text('state')}")
        else:
            end(packing.DONE, f"{job} submitted as {number}")

    def _with_job(self, done: Deployed, status: Fields) -> Deployed:
        seconds = time.monotonic() - self._began
        return done._replace(job=status.text("job"), job_id=_number(status), seconds=seconds)

    def _active(self, job: str) -> Fields | None:
        """Return the status of a job that was not followed to its end, or of the job that continues it.

        None: the job has ended or was removed.
        """
        seen: set[str] = set()
        while job and job not in seen:
            seen.add(job)
            status = status_of(self.remote, job)
            if status is None or status.flag("active"):
                return status
            job = status.maybe_text("continued_by") or ""
        return None

    def continuation(self, job: str) -> Fields | None:
        """Return the status of the job that continues an ended job; None: there is none."""
        name = self.remote.site(["status", job]).maybe_text("continued_by")
        return self.remote.site(["status", name]) if name else None


def _number(status: Fields) -> str:
    """Return the scheduler's job number."""
    return status.maybe_text("job_id") or "-"
