"""What a site would refuse about a job is reported before anything is built, sent, connected or simulated."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deployer.cli.laptop import foresight
from deployer.cli.laptop.main import main
from deployer.connected.check import check as checking
from deployer.connected.deploy.deploy import Deploy
from deployer.connected.image.init import init
from deployer.connected.rehearse.ask import ways
from deployer.connected.site_profile.profile import load
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, Refused, UsageError
from deployer.contract.bundle import limits
from deployer.contract.bundle.job import Job
from deployer.contract.rules.findings import WARNING
from deployer.site.run.prepare import request, resolve
from deployer.system.trust.verify import begin, opened
from tests import bundles, running

PROFILE = """
format: 1
name: near
source: {kind: document, where: a test, date: 2026-11-20}
login: {host: login1, python: [python3]}
workspace: ~/deployer
user_namespaces: true
scheduler: {kind: slurm, version: "22.05", pmi: [pmi2, none], gpu_request: gres}
policy: {runtimes: [charliecloud], account: true}
runtimes: {charliecloud: {version: "0.38"}, apptainer: {version: "1.3.0"}}
partitions:
  batch:
    nodes: 4
    max_time: "1-00:00:00"
    launcher: srun
    pmi: pmi2
    node: {sockets: 1, cores: 4, threads_per_core: 1, memory_mb: 8000, gpus: {count: 2}}
"""
LARGE = """  large:
    nodes: 64
    launcher: srun
    pmi: pmi2
    node: {sockets: 2, cores: 64, threads_per_core: 1, memory_mb: 256000}
"""
#: Options of a job, the exit code, and what is said: all of it is certain without the bundle.
CERTAIN: list[tuple[list[str], type[Any], str]] = [
    (["--time", "24x"], UsageError, "time limit '24x' is not [D-]HH:MM:SS, and not a number with s, m, h or d"),
    (["--time", "30"], UsageError, "for instance 00:30:00, 90m, 24h or 2-00:00:00"),
    (
        ["--time", "25h"],
        Refused,
        "1-01:00:00 is asked for, but a job in batch of near may have 1-00:00:00",
    ),
    (["--nodes", "5"], Refused, "5 nodes are asked for, but a job in batch of near may have 4 (queue.nodes)"),
    (["--nodes", "0"], UsageError, "nodes must be at least 1, not 0"),
    (["--ranks-per-node", "5"], Refused, "5 ranks per node x 1 thread = 5, but a node has 4 cores"),
    (["--ranks-per-node", "2", "--threads", "3"], Refused, "= 4 CPUs (job.layout)"),
    (["--memory", "9000"], Refused, "a job may use 8000 MiB per node (job.memory)"),
    (["--runtime", "apptainer"], Refused, "which the site's policy must allow"),
    (["--runtime", "charliecloud", "--staging", "squashfs"], Refused, "the plan has no start option with charliecloud"),
    (["--runtime", "native", "--launch", "inside"], Refused, "--runtime native has no container"),
    (["--gpus", "3"], Refused, "3 GPUs per node are asked for, but a node of batch of near has 2"),
    (["--gpus", "1", "--directive=--gres=gpu:1"], UsageError, "the directive --gres=gpu:1 requests GPUs already"),
    (["--gpus", "0", "--gpus-per-rank", "1"], UsageError, "--gpus 0: each rank of job train needs 1 of its own"),
    (["--gpus-per-rank", "3"], Refused, "1 rank per node x 3 GPUs = 3, but a node has 2 GPUs"),
    (["--directive=--nodes=9"], UsageError, "the script sets this itself"),
    (["--env", "PATH=/x"], UsageError, "--env PATH: this variable cannot be set"),
    (["--stdin", "in.txt"], UsageError, "invalid file for standard input"),
    (["--again", "0"], UsageError, "--again 0: not a number of jobs"),
    (["--again", "2", "--time", "1m", "--warn", "60"], UsageError, "--warn 60: ranks cannot be warned"),
]


class _Calls(NamedTuple):
    """What would build or connect: fakes of programs, which write their words to a file, and Docker's socket."""

    log: Path
    engine: socket.socket

    def check(self) -> None:
        """Fail if any was called."""
        assert not self.log.exists(), self.log.read_text()
        with pytest.raises(BlockingIOError):
            self.engine.accept()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folders: None) -> Iterator[_Calls]:
    programs, log = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    for name in ("ssh", "sftp", "scp", "docker", "mmdebstrap", "unshare", "pip"):
        running.program(programs, name, f'echo {name} "$@" >>{log}\nexit 255\n')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(ways, "rehearsed", lambda *_: pytest.fail("a site was simulated"))
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind("engine.sock")
        engine.listen()
        engine.setblocking(False)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
        yield _Calls(log, engine)


@pytest.fixture
def site(tmp_path: Path) -> str:
    (tmp_path / "near.yaml").write_text(PROFILE)
    return str(tmp_path / "near.yaml")


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    folder = init("model", "none", tmp_path).folder
    (folder / "bundle.yaml").write_text(
        "name: model\nversion: 1.0.0\nbase: {debian: bookworm}\ndockerfile: Dockerfile\nmpi: [mpich-abi]\n"
        "jobs: {train: {command: [/bin/true]}, evaluate: {command: [/bin/true], nodes: 9}}\n"
    )
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(("options", "error", "said"), CERTAIN)
@pytest.mark.parametrize("command", ["deploy", "run"])
def test_what_is_certain_is_said_before_anything_else(
    calls: _Calls,
    site: str,
    definition: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    options: list[str],
    error: type[Any],
    said: str,
) -> None:
    words = ["deploy", str(definition), site, "train"] if command == "deploy" else ["run", "model", "train"]
    assert main([*words, *options, *(["--site", site] if command == "run" else [])]) == error.exit_code
    shown = capsys.readouterr()
    assert said in shown.err
    assert "hint: " in shown.err
    assert shown.out == ""
    calls.check()


@pytest.mark.parametrize("option", [[], ["--dry-run"], ["--json"]])
def test_the_numbers_of_the_job_that_is_deployed_count(
    calls: _Calls, site: str, definition: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    assert main(["deploy", str(definition), site, "evaluate", *option]) == Refused.exit_code
    assert "9 nodes are asked for, but a job in batch of near may have 4 (queue.nodes)" in capsys.readouterr().err
    calls.check()


@pytest.mark.parametrize(
    "words",
    [["train"], ["evaluate", "--nodes", "2"], ["evaluate", "--force"], ["evaluate", "--accept", "queue.nodes"]],
)
def test_a_job_that_fits_is_deployed(
    site: str, definition: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Deploy, "run", lambda _: 1 / 0)
    assert main(["deploy", str(definition), site, *words]) == DeployerError.exit_code
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_an_unknown_job_is_named_with_those_that_there_are(
    calls: _Calls, site: str, definition: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", str(definition), site, "trian"]) == UsageError.exit_code
    shown = capsys.readouterr().err
    assert "model has no job trian, perhaps you meant 'train'" in shown
    assert "hint: its jobs: train, evaluate" in shown
    bundle = bundles.write(tmp_path / "b.tar", jobs=[bundles.JOB])
    for more in ([], ["--site", site]):
        assert main(["rehearse", str(bundle), "helo", *more]) == UsageError.exit_code
        assert "has no job helo, perhaps you meant 'hello'" in capsys.readouterr().err
    calls.check()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [["--nodes", "5"], ["--ranks-per-node", "5"], ["--memory", "9000"]])
def test_run_refuses_only_what_no_partition_permits(calls: _Calls, site: str, options: list[str]) -> None:
    """The first partition of the bundle's plans is known at the site alone."""
    Path(site).write_text(PROFILE + LARGE)
    words = ["run", "model", "--site", site, *options]
    main(words)
    assert "login1" in calls.log.read_text()
    calls.log.unlink()
    assert main([*words, "--partition", "batch"]) == Refused.exit_code
    calls.check()
    for more in (["--force"], ["--plan", "other"]):
        main([*words, "--partition", "batch", *more])
        assert "login1" in calls.log.read_text()
        calls.log.unlink()


def test_a_rehearsal_for_a_site_judges_the_jobs_own_numbers(
    calls: _Calls, site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundles.write(tmp_path / "b.tar", jobs=[Job("wide", ["/bin/true"], 9, 1, 1, "00:10:00")])
    assert main(["rehearse", str(bundle), "--site", site]) == Refused.exit_code
    assert "9 nodes are asked for, but a job in batch of near may have 4 (queue.nodes)" in capsys.readouterr().err
    calls.check()
    monkeypatch.setattr("deployer.cli.laptop.rehearse.rehearsed", lambda *_: 1 / 0)
    for words in ([], ["--site", site, "--accept", "queue.nodes"]):
        assert main(["rehearse", str(bundle), *words]) == 1
        assert "ZeroDivisionError" in capsys.readouterr().err


def test_check_judges_each_job_and_push_sends_what_options_can_change(
    site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = Job("train", ["/bin/true"], 1, 1, 1, "00:10:00")
    wide = train._replace(name="wide", nodes=5, time="25:00:00", threads=5, memory=9000)
    bundle = bundles.write(tmp_path / "b.tar", jobs=[train, wide, wide._replace(name="heavy", threads=1)])
    assert main(["check", str(bundle), "--site", site, "--json", "--no-cache"]) == Refused.exit_code
    found = json.loads(capsys.readouterr().out)["findings"]
    own = [(each["code"], each["severity"], each["job"]) for each in found if each["code"] in limits.CODES]
    assert sorted(own) == [
        ("job.layout", "error", "wide"),
        ("job.memory", "error", "heavy"),
        ("queue.nodes", "error", "heavy"),
        ("queue.nodes", "error", "wide"),
        ("queue.time", "error", "heavy"),
        ("queue.time", "error", "wide"),
    ]
    (plan,) = checking.all_plans(str(bundle), load(site))
    assert {each.code for each in plan.checked.findings} >= {"queue.nodes", "job.layout"}
    packed = checking.verdict_of(plan)
    assert not {each.code for each in packed.checked.findings} & {*limits.CODES}
    record = json_records.dumps(plan.record())
    bundle.write_bytes(bundles.build(jobs=[wide], extra=[("deployer/plans/near.json", record)]))
    with opened(str(bundle)) as stream:
        (carried,) = checking.check_carried(begin(stream, str(bundle)), load(site))
    assert carried.plan.checked
    for each in (carried.checked, carried.plan.checked):
        assert {item.severity for item in each.findings if item.code in limits.CODES} == {WARNING}


def test_the_two_command_lines_settle_with_one_function() -> None:
    """A refusal that only one of them knows is said too late, or twice."""
    assert foresight.foresee is request.foresee
    assert resolve.settle is request.settle
