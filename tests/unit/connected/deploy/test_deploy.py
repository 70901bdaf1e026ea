"""deploy, with the fake ssh of test_remote between real sides; tests/integration has a real job."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from deployer.cli.laptop import deploy as command
from deployer.cli.laptop.main import main
from deployer.cli.site import common
from deployer.connected.bundle import pack
from deployer.connected.check.check import check_carried
from deployer.connected.deploy import last_deploy
from deployer.connected.deploy.deploy import Deploy, Deployed
from deployer.connected.deploy.last_deploy import LastDeploy
from deployer.connected.deploy.packing import DeployRequest, DeployStage, PackedBundle
from deployer.connected.ground import xdg
from deployer.connected.image.init import init
from deployer.connected.transfer import push
from deployer.connected.transfer.push import DamagedBundle, Pushed, PushOptions
from deployer.connected.transfer.remote import Remote
from deployer.connected.transfer.submission import Submission
from deployer.contract.base import dialogue
from deployer.contract.base.errors import (
    DeployerError,
    IntegrityError,
    JobFailed,
    Refused,
    SpaceError,
    TransferError,
    UsageError,
)
from deployer.contract.base.json_records import Fields
from deployer.contract.bundle.job import Job
from deployer.contract.rules.verdict import judged
from deployer.system.trust.verify import begin, opened
from tests import bundles, running
from tests.checked_records import JOB
from tests.unit.connected.transfer.test_remote import far

__all__ = ["far"]

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "one").write_text("1")
    (folder / "bundle.yaml").write_text("name: digits\nversion: 1.0.0\ndata: {digits: {folder: data}}\n")
    return folder


def stages(text: str) -> dict[str, str]:
    return {stage["name"]: stage["state"] for stage in json.loads(text)["stages"]}


@pytest.mark.thorough
def test_only_changed_stages_are_done_again(far: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", str(data), "lab", "--json"]
    assert main([*words, "--dry-run"]) == 0
    assert stages(capsys.readouterr().out) == {"build": "unchanged", "pack": "would", "check": "would", "push": "would"}
    assert list(far.iterdir()) == []
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["job"], first["status"], Path(first["folder"]).is_dir()) == ("", None, True)
    assert main(words) == 0
    again = capsys.readouterr().out
    assert stages(again) == {"build": "unchanged", "pack": "unchanged", "push": "unchanged"}
    assert json.loads(again)["digest"] == first["digest"]
    (data / "data" / "one").write_text("2")
    assert main([*words, "--dry-run"]) == 0
    assert stages(capsys.readouterr().out)["pack"] == "would"
    assert main(words[:-1]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said] == [["build", "unchanged"], ["pack", "done"], ["push", "done"]]


def test_a_refusal_ends_it_with_its_code_and_remedy(
    tmp_path: Path, far: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = init("model", "none", tmp_path).folder
    with (definition / "Dockerfile").open("a") as stream:
        stream.write("ENV HTTPS_PROXY=http://me:Vq7x2Lm9@proxy1:80\n")
    assert main(["deploy", str(definition), "lab"]) == Refused.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    assert "deployer: error: " in said.err
    assert "hint: " in said.err
    assert list(far.iterdir()) == []


def test_the_options_of_the_job_reach_the_site() -> None:
    parser = common.Parser(prog="deployer")
    command.add_parsers(parser.add_subparsers())
    words = [
        "deploy",
        "DEF",
        "lab",
        "train",
        "--nodes",
        "2",
        "--directive=--qos=test",
        "--directive",
        "x",
        "--user-site",
    ]
    args = parser.parse_args([*words, "--env", "A=b c", "--gpus", "4"])
    assert (args.site, args.job) == ("lab", "train")
    wanted = ["--nodes=2", "--gpus=4", "--directive=--qos=test", "--directive=x", "--env=A=b c", "--user-site"]
    assert command._request(args).words == wanted
    assert command._request(parser.parse_args(["deploy", "DEF"])).words == []


def answered(record: Any) -> Fields:
    return Fields(record, "the answer of login1", TransferError)


class _FakeRemote:
    """A connection whose site answers with what is given: a record, or an error to raise."""

    host = "login1"

    def __init__(
        self, answer: Any = None, statuses: Sequence[int] = (), jobs: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self._answer, self._statuses, self._jobs = answer, list(statuses), jobs or {}
        self.asked: list[str] = []

    def site(self, words: Sequence[str], *_: object, **__: object) -> Any:
        self.asked.append(" ".join(words) if self._jobs else words[0])
        if self._jobs:
            return answered(self._jobs[words[1]])
        if isinstance(self._answer, BaseException):
            raise self._answer
        return answered(self._answer)

    def attach(self, words: Sequence[str], caller: Sequence[str]) -> Any:
        self.asked.append(" ".join(words) if self._jobs else words[0])
        return SimpleNamespace(status=self._statuses.pop(0))


def of_the_site(exit_code: int) -> DeployerError:
    """Return an error of the site's program as ``Remote`` raises it."""
    error = DeployerError("login1: it failed", "see there")
    error.exit_code = exit_code
    return error


def connected(deploy: Deploy, remote: _FakeRemote) -> None:
    deploy._connection = Future()
    deploy._connection.set_result(remote)  # type: ignore[arg-type]


@pytest.fixture
def deploy(data: Path, tmp_path: Path) -> Iterator[Deploy]:
    request = DeployRequest(data, "lab", output=tmp_path / "b.tar")
    with Deploy(request, lambda _: None, lambda _: None) as made:
        connected(made, _FakeRemote())
        yield made


DONE = Deployed(None, job="x-1", job_id="7")


@pytest.mark.parametrize(
    ("statuses", "ended"),
    [((0, 0), True), ((5, 0), True), ((0, 1), True), ((0, 5), False), ((5, 5), False), ((0, 130), False)],
)
def test_a_job_is_done_with_only_if_its_end_was_seen(
    deploy: Deploy, data: Path, tmp_path: Path, statuses: tuple[int, int], ended: bool
) -> None:
    bundle = tmp_path / "b.tar"
    last_deploy.write(bundle, LastDeploy("i", [1], "d", "x-1", ["w"]))
    remote = _FakeRemote(statuses=statuses)
    connected(deploy, remote)
    args = SimpleNamespace(site="lab", ssh_config=None, again=None, array=None, sweep=None)
    assert command._follow(args, deploy, DONE)[0] == statuses[1]  # type: ignore[arg-type]
    assert remote.asked == ["logs", "status"]
    assert last_deploy.recorded(bundle).job == ("" if ended else "x-1")


CHAIN = {
    "x-1": {**JOB, "job": "x-1", "job_id": "7", "active": False, "state": "COMPLETED", "continued_by": "x-2"},
    "x-2": {**JOB, "job": "x-2", "job_id": "8", "active": True, "state": "RUNNING", "continued_by": None},
}


def test_an_interrupted_follow_goes_on_with_the_job_that_continues_it(
    deploy: Deploy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "b.tar"
    last_deploy.write(bundle, LastDeploy("i", [1], "sha256:11", "x-1", ["sha256:11", "--"]))
    remote = _FakeRemote(statuses=[0, 130], jobs=CHAIN)
    connected(deploy, remote)
    args = SimpleNamespace(site="lab", ssh_config=None, again=3, array=None, sweep=None)
    assert command._follow(args, deploy, DONE) == (130, "x-2")  # type: ignore[arg-type]
    assert remote.asked == ["logs --follow x-1", "status x-1", "status x-2", "logs --follow x-2"]
    assert "interrupted: job x-2 (8) continues on the site" in capsys.readouterr().err
    # The same command: the job that continues it is active, so none is submitted.
    found = deploy._run(PackedBundle(bundle, "sha256:11"), Deployed(bundle))
    assert (found.job, found.job_id, deploy.stages[-1].state) == ("x-2", "8", "unchanged")
    assert last_deploy.recorded(bundle).job == "x-2"


def test_a_job_is_submitted_by_the_process_that_installs(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = PackedBundle(tmp_path / "b.tar", "sha256:11")
    monkeypatch.setattr(deploy, "definition", SimpleNamespace(is_data=False, jobs={}, name="digits"))
    monkeypatch.setattr(deploy, "_request", deploy._request._replace(words=["--nodes=2"], rest=["--epochs", "1"]))
    words = deploy._submission(bundle)
    assert dialogue.TOKEN.match(token := deploy._asked(bundle).token)
    assert words == [
        "run", "digits:1.0.0@11", "--nodes=2", "--plan", "lab", "--token", token, "--just-checked", "--json",
        "--", "--epochs", "1",
    ]  # fmt: skip
    status = answered({"job": "x-1", "job_id": "7"})
    outcome = Pushed("sha256:11", 9, 9, 1, "/r/images/x", 0.1, 0.1, "3.6")
    submitting = []

    def pushed(*words: Any) -> Any:
        words[3].installed(outcome)
        submitting.append(deploy.submitting)
        return outcome._replace(then=status)

    monkeypatch.setattr(push, "push", pushed)
    assert deploy._push(bundle, words) == outcome._replace(then=status)
    assert [(stage.name, stage.state) for stage in deploy.stages] == [("push", "done"), ("run", "done")]
    assert (submitting, deploy.submitting) == ([True], False)
    last = last_deploy.recorded(bundle.path)
    assert (last.job, last.pushed) == ("x-1", "sha256:11")
    assert deploy._submission(bundle) == []  # its job may be active
    assert deploy._submission(bundle._replace(digest="sha256:22"))


class _Slurm:
    """A site that submits jobs, and whose answers may get lost."""

    host = "login1"

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.is_cut = False
        self.refuses = 0

    def pushed(self, *words: Any) -> Pushed:
        """Play a push, and what the site runs after it."""
        options: PushOptions = words[3]
        done = Pushed(options.packed, 0, 9, 0, "/r/images/x", 0.1, 0.1, "3.6")
        if not options.then:
            return done
        assert options.handed_over
        assert options.installed
        options.handed_over()
        status = self.site(options.then)
        options.installed(done)
        return done._replace(then=status)

    def site(self, words: Sequence[str], *_: object, **__: object) -> Fields:
        if words[0] == "status":
            if words[1] not in self.jobs:
                raise of_the_site(UsageError.exit_code)
            return answered(self.jobs[words[1]])
        job = "digits-" + words[list(words).index("--token") + 1]
        repeated = job in self.jobs and bool(self.jobs[job]["active"])
        if not repeated:
            if self.refuses:
                raise of_the_site(self.refuses)
            job += "x" if job in self.jobs else ""  # it has ended
            number = str(7 + len(self.jobs))
            self.jobs[job] = {"job": job, "job_id": number, "active": True, "state": "RUNNING", "own": True}
        if self.is_cut:
            raise TransferError("login1: the login node does not answer")
        return answered({**self.jobs[job], "repeated": repeated})


def deployed(
    data: Path, tmp_path: Path, site: _Slurm, digest: str = "sha256:11", **request: Any
) -> tuple[Deployed, DeployStage, list[str]]:
    """Do what follows the check in a deploy of its own; return what came of it, its last stage, and its warnings."""
    said: list[str] = []
    asked = DeployRequest(data, "lab", output=tmp_path / "b.tar", **request)
    with Deploy(asked, lambda _: None, said.append) as made:
        connected(made, site)  # type: ignore[arg-type]
        made.definition = SimpleNamespace(is_data=False, jobs={}, name="digits")  # type: ignore[assignment]
        packed = PackedBundle(tmp_path / "b.tar", digest)
        shipped = made._push(packed, made._submission(packed))
        done = Deployed(packed.path, digest)
        done = made._with_job(done, shipped.then) if shipped.then else made._run(packed, done)
        return done, made.stages[-1], said


@pytest.fixture
def cut(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[_Slurm, str]:
    """A site whose line was cut after the last piece of a bundle, and the job that it submitted all the same."""
    site = _Slurm()
    monkeypatch.setattr(push, "push", site.pushed)
    site.is_cut = True
    with pytest.raises(TransferError):
        deployed(data, tmp_path, site)
    site.is_cut = False
    (job,) = site.jobs
    return site, job


@pytest.mark.parametrize("ended", [False, True])
def test_a_line_that_is_cut_leaves_one_job_of_the_same_command(
    data: Path, tmp_path: Path, cut: tuple[_Slurm, str], ended: bool
) -> None:
    site, job = cut
    if ended:
        site.jobs[job].update(active=False, state="COMPLETED")
    done, stage, said = deployed(data, tmp_path, site)
    assert said == []
    if ended:  # the user may have seen that, and wants another one
        assert (stage.state, stage.text) == ("done", f"{job}x submitted as 8")
    else:
        assert (stage.state, stage.text) == ("unchanged", f"{job} was submitted before as 7: RUNNING")
    # That was the answer: a third deploy does as usual.
    assert deployed(data, tmp_path, site)[0].job == done.job
    assert len(site.jobs) == 1 + ended
    assert list(xdg.state_folder("submissions").iterdir()) == []


@pytest.mark.parametrize("change", [{"words": ["--nodes=2"]}, {"rest": ["-v"]}, {"digest": "sha256:22"}])
def test_another_command_names_the_job_whose_submission_was_not_answered(
    data: Path, tmp_path: Path, cut: tuple[_Slurm, str], change: dict[str, Any]
) -> None:
    site, job = cut
    done, stage, said = deployed(data, tmp_path, site, **change)
    assert (len(site.jobs), done.job != job, stage.state) == (2, True, "done")
    assert said == [
        (
            f"warning: job {job} of an earlier deploy, which had no answer, is RUNNING as 7; "
            f"to end it: deployer cancel --site lab {job}"
        )
    ]
    assert deployed(data, tmp_path, site, **change)[2] == []


def test_a_submission_that_did_not_happen_is_made_under_its_name(
    data: Path, tmp_path: Path, cut: tuple[_Slurm, str]
) -> None:
    """Perhaps it happens at this moment, and at the site two jobs cannot have one name."""
    site, job = cut
    site.jobs.clear()
    done, stage, said = deployed(data, tmp_path, site)
    assert (done.job, [*site.jobs], stage.state, said) == (job, [job], "done", [])


@pytest.mark.parametrize(
    ("change", "warning"),
    [({"job_id": None, "state": "NEW"}, "which has no number"), ({"own": False}, "is another user's")],
)
def test_a_folder_that_is_no_job_of_ours_is_named_as_such(
    data: Path, tmp_path: Path, cut: tuple[_Slurm, str], change: dict[str, Any], warning: str
) -> None:
    site, job = cut
    site.jobs[job].update(change)
    done, _, said = deployed(data, tmp_path, site, rest=["-v"])
    assert (len(site.jobs), done.job != job) == (2, True)
    assert warning in said[-1]


def test_the_record_of_another_site_is_left_alone(data: Path, tmp_path: Path, cut: tuple[_Slurm, str]) -> None:
    """With -o the same file is deployed to several sites."""
    site, job = cut
    (record,) = xdg.state_folder("submissions").iterdir()
    record.write_text("other")
    done, _, said = deployed(data, tmp_path, site, rest=["-v"])
    assert done.job != job
    assert (said, [*xdg.state_folder("submissions").iterdir()]) == ([], [record])


def test_a_job_that_the_site_submits_only_later_is_named_then(
    data: Path, tmp_path: Path, cut: tuple[_Slurm, str]
) -> None:
    """The site was still installing when another command was given."""
    site, job = cut
    status = site.jobs.pop(job)
    hint = f"to end it: deployer cancel --site lab {job}"
    said = deployed(data, tmp_path, site, rest=["-v"])[2]
    assert said == [f"warning: the site may still start job {job} of an earlier deploy; if it does, {hint}"]
    site.jobs[job] = status
    for words in (["--nodes=2"], ["--nodes=3"]):
        said = deployed(data, tmp_path, site, words=words)[2]
        assert (len(said), f"job {job} of an earlier deploy, which had no answer, is" in "".join(said)) in (
            [(1, True)] if words == ["--nodes=2"] else [(0, False)]
        )


def test_a_job_that_never_came_is_forgotten(data: Path, tmp_path: Path, cut: tuple[_Slurm, str]) -> None:
    site, _ = cut
    site.jobs.clear()
    (record,) = xdg.state_folder("submissions").iterdir()
    os.utime(record, (0, 0))
    assert deployed(data, tmp_path, site, rest=["-v"])[2] == []
    assert not record.exists()


@pytest.mark.thorough
@pytest.mark.parametrize("code", [2, 3, 4, 6, 7])
def test_a_refusal_of_the_site_is_an_answer(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    site = _Slurm()
    monkeypatch.setattr(push, "push", site.pushed)
    site.refuses = code
    with pytest.raises(DeployerError):
        deployed(data, tmp_path, site)
    assert list(xdg.state_folder("submissions").iterdir()) == []
    site.refuses = 0
    assert deployed(data, tmp_path, site, rest=["-v"])[2] == []


@pytest.mark.parametrize("place", ["before", "sent", "installed"])
@pytest.mark.parametrize("submission", [["run", "x"], []])
def test_an_error_after_the_last_piece_may_have_left_a_job(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, submission: Sequence[str]
) -> None:
    """The site installs and submits what has arrived, whether or not this side hears of it."""

    def broken(*words: Any) -> Any:
        if place != "before":
            words[3].handed_over()
        if place == "installed":
            words[3].installed(Pushed("sha256:11", 9, 9, 1, "/r/images/x", 0.1, 0.1, "3.6"))
        raise TransferError("the connection broke")

    monkeypatch.setattr(push, "push", broken)
    with pytest.raises(TransferError):
        deploy._push(PackedBundle(tmp_path / "b.tar", "sha256:11"), submission)
    assert deploy.submitting is (place != "before" and bool(submission))
    assert [stage.name for stage in deploy.stages] == (["push"] if place == "installed" else [])


def test_a_full_disk_here_after_the_submission_is_a_warning(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pushed(*words: Any) -> Any:
        words[3].installed(shipped)
        return shipped._replace(then=answered({"job": "x-1", "job_id": "7"}))

    def full(*_: object) -> None:
        raise SpaceError("cannot write b.json: No space left on device")

    shipped, said, path = Pushed("sha256:11", 9, 9, 1, "/r/images/x", 0.1, 0.1, "3.6"), list[str](), tmp_path / "b.tar"
    monkeypatch.setattr(push, "push", pushed)
    monkeypatch.setattr(last_deploy, "write", full)
    monkeypatch.setattr(Submission, "record", full)
    with Deploy(DeployRequest(data, "lab", output=path), lambda _: None, said.append) as made:
        connected(made, _FakeRemote())
        assert made._push(PackedBundle(path, "sha256:11"), ["run", "x"]).then
        assert (made.stages[-1].text, made.submitting) == ("x-1 submitted as 7", False)
    assert len(said) == 3  # that it submits, what it installed, and the job
    assert said[-1].startswith("warning: not recorded, so the next deploy may do the same again: cannot write")


@pytest.mark.thorough
def test_a_full_disk_here_is_a_warning_wherever_something_is_recorded(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise SpaceError("cannot write b.json: No space left on device")

    said, path = list[str](), tmp_path / "b.tar"
    with Deploy(DeployRequest(data, "lab", output=path), lambda _: None, said.append) as made:
        last_deploy.write(path, LastDeploy("i", [1], "sha256:11", "x-1", ["sha256:11", "--"]))
        monkeypatch.setattr(last_deploy, "write", full)
        connected(made, _FakeRemote(jobs=CHAIN))
        assert made._run(PackedBundle(path, "sha256:11"), Deployed(path)).job == "x-2"  # it continues x-1
        made.followed("x-1")
        made._pack(made._contents())
        with pytest.raises(IntegrityError), made._forgotten_if_damaged(path):
            raise IntegrityError("damaged")
    assert [line.startswith("warning: not recorded, so the next deploy") for line in said if "record" in line] == [
        True
    ] * 4


def test_a_chain_of_jobs_that_ends_or_goes_round_is_not_active(deploy: Deploy) -> None:
    ended = {**CHAIN["x-2"], "active": False}
    connected(deploy, _FakeRemote(jobs={**CHAIN, "x-2": ended}))
    assert deploy._active("x-1") is None
    connected(deploy, _FakeRemote(jobs={**CHAIN, "x-2": {**ended, "continued_by": "x-1"}}))
    assert deploy._active("x-1") is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        ({}, True),
        (of_the_site(JobFailed.exit_code), True),
        (of_the_site(TransferError.exit_code), False),
        (TransferError("the connection broke"), False),
        (JobFailed("ssh did not end within 9 s"), False),
    ],
)
def test_the_same_with_json(deploy: Deploy, tmp_path: Path, answer: object, ended: bool) -> None:
    bundle = tmp_path / "b.tar"
    last_deploy.write(bundle, LastDeploy("i", [1], "d", "x-1", ["w"]))
    connected(deploy, _FakeRemote(answer))
    args: Any = SimpleNamespace(again=None, array=None, sweep=None)
    if ended:
        assert command._follow_silently(args, deploy, DONE) == (1 if answer else 0, "x-1")
    else:
        with pytest.raises(DeployerError):
            command._follow_silently(args, deploy, DONE)
    assert last_deploy.recorded(bundle).job == ("" if ended else "x-1")


def test_the_record_has_the_status_of_the_last_job(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(deploy: Deploy) -> Deployed:
        connected(deploy, _FakeRemote(jobs=CHAIN))
        deploy.stages.append(DeployStage("run", "done", 1, ""))
        return DONE

    monkeypatch.setattr(Deploy, "run", run)
    for options, wanted in (["--again", "3"], "x-2"), ([], "x-1"):
        assert main(["deploy", str(data), "lab", "--json", *options]) == 0
        assert json.loads(capsys.readouterr().out)["status"]["job"] == wanted


def test_the_end_of_a_job_leaves_a_newer_one_recorded(deploy: Deploy, tmp_path: Path) -> None:
    last_deploy.write(tmp_path / "b.tar", LastDeploy("i", [1], "d", "x-2", ["w"]))
    deploy.followed("x-1")
    assert last_deploy.recorded(tmp_path / "b.tar").job == "x-2"


def test_a_job_whose_folder_was_removed_is_not_active(deploy: Deploy) -> None:
    connected(deploy, _FakeRemote(of_the_site(UsageError.exit_code)))
    assert deploy._active("x-1") is None
    connected(deploy, _FakeRemote(of_the_site(TransferError.exit_code)))
    with pytest.raises(DeployerError, match="it failed"):
        deploy._active("x-1")


def test_a_deploy_beside_another_one_is_refused(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deploy, "_connect", lambda _: None)
    with last_deploy.alone(tmp_path / "b.tar"), pytest.raises(UsageError, match="another deploy"):
        deploy.run()
    assert [stage.name for stage in deploy.stages] == ["build"]


def test_another_bundle_than_the_packed_one_is_not_submitted(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundles.write(tmp_path / "b.tar")
    monkeypatch.setattr(push, "_push", lambda *_: pytest.fail("it was sent"))
    with pytest.raises(IntegrityError, match="was replaced during the deploy: packed sha256:11, found sha256:"):
        deploy._push(PackedBundle(path, "sha256:11"))


@pytest.mark.thorough
def test_a_damaged_bundle_is_packed_anew(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object) -> Any:
        raise DamagedBundle("the frame at byte 9 does not match its digest")

    monkeypatch.setattr(push, "push", damaged)
    with Deploy(DeployRequest(data, "lab"), lambda _: None, lambda _: None) as made:
        connected(made, _FakeRemote())
        packed = made._pack(made._contents())
        assert packed
        with pytest.raises(IntegrityError) as error:
            made._push(packed)
        assert error.value.hint == "deploy again: it is packed anew"
        assert not packed.path.exists()
        assert made._pack(made._contents()) == packed
    assert [stage.state for stage in made.stages] == ["done", "done"]


@pytest.mark.parametrize("finder", ["sign", "check"])
def test_a_bundle_that_is_damaged_elsewhere_is_packed_anew(
    deploy: Deploy, deployed_before: PackedBundle, monkeypatch: pytest.MonkeyPatch, finder: str
) -> None:
    """It is found by what reads all of it, and sending it again, as that advises, would not help."""

    def damaged(*_: object) -> Any:
        raise IntegrityError("the frame at byte 9 does not match its digest", "send it again")

    monkeypatch.setattr("deployer.connected.ground.sign.sign", damaged)
    monkeypatch.setattr(push, "check_for", damaged)
    own = deploy._request._replace(output=None, key=deployed_before.path if finder == "sign" else None)
    stage = {"sign": lambda: deploy._sign(deployed_before.path), "check": lambda: deploy._check(deployed_before)}
    for dry_run in True, False:
        monkeypatch.setattr(deploy, "_request", own._replace(dry_run=dry_run))
        with pytest.raises(IntegrityError) as error:
            stage[finder]()
        assert error.value.hint == ("send it again" if dry_run else "deploy again: it is packed anew")
        assert deployed_before.path.exists() is dry_run
        assert bool(last_deploy.recorded(deployed_before.path).inputs) is dry_run


def test_a_refused_definition_waits_for_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A login may take a minute, or ask for a password, even at a site that was reached before."""

    def hangs(_: object) -> Any:
        logins.append("begun")
        time.sleep(2)
        raise TransferError("no connection to login1 within 60 s")

    logins: list[str] = []
    monkeypatch.setattr("deployer.connected.transfer.remote.Remote.__enter__", hangs)
    definition = init("model", "none", tmp_path).folder
    with (definition / "Dockerfile").open("a") as stream:
        stream.write("ENV HTTPS_PROXY=http://me:Vq7x2Lm9@proxy1:80\n")
    with Deploy(DeployRequest(definition, "lab"), lambda _: None, lambda _: None) as made:
        last_deploy.write(made._bundle, LastDeploy(pushed="sha256:11"))
        with pytest.raises(Refused):
            made.run()
    assert logins == []


@pytest.mark.thorough
@pytest.mark.parametrize("hangs", ["*-N*", "*login1*", "*-O*", "*-G*"])
def test_an_error_ends_a_login_that_has_begun(
    far: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """Whatever ssh waits for: a password for the connection, or for a command where none can be shared, or a master."""
    program, begun = tmp_path / "bin" / "ssh", tmp_path / "begun"
    if hangs == "*login1*":  # each command logs in for itself
        monkeypatch.setenv("FAKE_MASTER", "ControlSocket too long")
        hangs = "*'login1 sh'*"
    wait = f'{hangs}) touch "$FAKE/begun"; exec sleep 60 ;;\n'
    program.write_text(program.read_text().replace('case "$*" in\n', f'case "$*" in\n{wait}'))

    def refuses(*_: object, **__: object) -> Any:
        while not begun.exists():
            time.sleep(0.01)
        raise Refused("no plan")

    monkeypatch.setattr(pack, "pack", refuses)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Deploy(DeployRequest(data, "lab"), lambda _: None, lambda _: None) as made:
        with pytest.raises(Refused):
            made.run()
        ended = time.monotonic()
    assert time.monotonic() - ended < 10
    assert not list(tmp_path.glob("deployer-ssh-*"))


def test_the_connection_is_closed_after_the_thread_that_uses_it(
    far: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a further ssh of that thread logs in anew, and may ask for a password."""
    began, order = Event(), list[str]()
    close = Remote._close

    def prepare(remote: Remote) -> None:
        began.set()
        while not remote._given_up and "closed" not in order:
            time.sleep(0.01)
        time.sleep(0.1)
        order.append("prepared")

    def closes(remote: Remote) -> None:
        order.append("closed")
        close(remote)

    def refuses(*_: object, **__: object) -> Any:
        began.wait(10)
        raise Refused("no plan")

    monkeypatch.setattr(Remote, "prepare", prepare)
    monkeypatch.setattr(Remote, "_close", closes)
    monkeypatch.setattr(pack, "pack", refuses)
    with Deploy(DeployRequest(data, "lab"), lambda _: None, lambda _: None) as made, pytest.raises(Refused):
        made.run()
    assert order == ["prepared", "closed"]


@pytest.mark.parametrize("refused", [False, True])
def test_the_check_shows_what_the_pack_found(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    option = running.START_OPTION._replace(pmi="cray_shasta") if refused else running.START_OPTION
    accepted = judged([], ["bind.place", "fabric.provider"])
    plan = running.PLAN._replace(start_options=[option], site="lab", checked=accepted)
    path = bundles.write(tmp_path / "b.tar", extra=[running.member(plan)])
    with opened(str(path)) as stream:
        bundle = begin(stream, str(path))
        (carried,) = check_carried(bundle, deploy.profile)
        plan = plan._replace(checked=carried.checked)
    found = []
    for plans in [], [plan]:
        try:
            found.append(deploy._check(PackedBundle(path, bundle.digest, plans)))
        except Refused as error:
            found.append(error.message)
        monkeypatch.setattr(push, "check_carried", lambda *_: pytest.fail("it was checked again"))
    assert isinstance(found[0], str) is refused
    assert [each if refused else each.checked for each in found] == [found[0] if refused else carried.checked] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("edited", [False, True])
def test_an_edit_during_a_pack_lets_the_next_deploy_pack_again(
    deploy: Deploy, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: bool
) -> None:
    packs = []
    packed = bundles.write(tmp_path / "packed.tar")
    with opened(str(packed)) as stream:
        manifest = begin(stream, str(packed)).manifest

    def packing(contents: object, sites: object, path: Path, **_: object) -> Any:
        packs.append(path)
        path.write_text("bundle")
        if edited:
            (data / "data" / "one").write_text("changed")
        return SimpleNamespace(digest="sha256:11", size=6, manifest=manifest, plans=())

    monkeypatch.setattr(pack, "pack", packing)
    deploy._pack(deploy._contents())
    assert bool(last_deploy.recorded(tmp_path / "b.tar").inputs) is not edited
    deploy._pack(deploy._contents())
    assert len(packs) == (2 if edited else 1)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            KeyboardInterrupt(),
            130,
            "deployer: interrupted before the site reported a job; it may have been submitted\n",
        ),
        (
            JobFailed("ssh did not end within 600 s"),
            1,
            "deployer: error: ssh did not end within 600 s; the job may have been submitted\n",
        ),
        (SpaceError("no space"), SpaceError.exit_code, "deployer: error: no space; the job may have been submitted\n"),
    ],
)
def test_an_interrupted_submission_may_have_left_a_job(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    def run(deploy: Deploy) -> Deployed:
        connected(deploy, _FakeRemote(error))
        return deploy._run(PackedBundle(tmp_path / "b.tar", "sha256:11"), Deployed(None))

    monkeypatch.setattr(Deploy, "run", run)
    assert main(["deploy", str(data), "lab"]) == code
    hint = "the same command again follows it if there is one; see: deployer jobs --site lab"
    assert capsys.readouterr().err.startswith(f"{said}hint: {hint}\n")


def test_texts_of_the_site_have_no_effect_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    command._show(DeployStage("push", "done", 1, "installed at \x1b[2Jx"))
    command.say("warning: \x1b[2Jx")
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "installed at \\x1b[2Jx" in said.out
    assert "warning: \\x1b[2Jx" in said.err


def test_only_a_bundle_that_this_command_pushed_is_replaced_without_a_warning(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    colleague, own = (f"{dialogue.replaces('digits:1.0.0', f'sha256:{n}')}; from now on ..." for n in (99, 11))

    def pushed(warning: str) -> Any:
        done = Pushed("sha256:11", 9, 9, 1, "/r/images/x", 0.1, 0.1, "3.6", (warning, "its data"))
        return lambda *_: done

    with Deploy(DeployRequest(data, "lab", output=tmp_path / "b.tar"), lambda _: None, said.append) as made:
        connected(made, _FakeRemote())
        for warning in colleague, own, colleague:
            monkeypatch.setattr(push, "push", pushed(warning))
            made._push(PackedBundle(tmp_path / "b.tar", "sha256:11"))
    assert [text.split(" ")[1] for text in said] == ["another", "its", "its", "another", "its"]


def test_a_deploy_does_not_ask_who_made_its_own_bundle(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with Deploy(DeployRequest(data, "lab", output=tmp_path / "b.tar"), lambda _: None, said.append) as made:
        connected(made, _FakeRemote())
        texts = ("not signed: compare it", "signed by a", "other")
        done = Pushed("sha256:1", 9, 9, 1, "/r/images/x", 0.1, 0.1, "3.6", texts)
        monkeypatch.setattr(push, "push", lambda *_: done)
        made._push(PackedBundle(tmp_path / "b.tar", "sha256:1"))
    assert said == ["warning: other"]


@pytest.fixture
def deployed_before(deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackedBundle:
    """A bundle with one job, which was deployed before."""
    path = bundles.write(tmp_path / "b.tar", jobs=[Job("train", ["python3", "train.py"], 1, 1, 1, "00:10:00")])
    monkeypatch.setattr(deploy, "definition", SimpleNamespace(is_data=False, jobs={}))
    last_deploy.write(path, LastDeploy("inputs", last_deploy.state_of(path), "sha256:11"))
    return PackedBundle(path, "sha256:11")
