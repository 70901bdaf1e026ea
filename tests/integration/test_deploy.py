"""deploy and result with real Docker, ssh and Slurm: from a definition to the result, again after a changed line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ROOT, Cli
from tests.lab import Lab


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    """Return hello-mpi under a name of its own: other tests of the lab use that one."""
    folder = tmp_path / "hello-deploy"
    shutil.copytree(ROOT / "bundles" / "hello-mpi", folder)
    text = (folder / "bundle.yaml").read_text()
    (folder / "bundle.yaml").write_text(text.replace("name: hello-mpi\n", "name: hello-deploy\n"))
    return folder


STAGES = ("build", "pack", "check", "push", "run")


def states(record: dict[str, Any]) -> list[str]:
    return [f"{stage['name']} {stage['state']}" for stage in record["stages"]]


@pytest.mark.timeout(600)
def test_a_changed_line_is_deployed_and_its_result_fetched(
    built: Cli, lab: Lab, definition: Path, tmp_path: Path
) -> None:
    settings = {"DEPLOYER_SITE": "lab", "DEPLOYER_SSH_CONFIG": str(lab.ssh_config)}
    cli = Cli({**built.environment, **settings, "XDG_CONFIG_HOME": str(tmp_path)})
    words = ["deploy", definition, "lab", "hello", "--nodes", "2", "-o", tmp_path / "b.tar", "--json"]
    first = json.loads(cli(*words, "--no-follow").stdout)
    assert states(first)[1:] == ["pack done", "check done", "push done", "run done"]
    again = json.loads(cli(*words).stdout)  # as after an interrupt: the job is still there, or has just ended
    assert states(again)[:4] == ["build unchanged", "pack unchanged", "check done", "push unchanged"]
    assert again["status"]["exit_code"] == 0

    program = definition / "app" / "hello.py"
    program.write_text(program.read_text().replace("\nimport ", "\nprint('a changed line')\nimport ", 1))
    said = cli(*words[:-1]).stdout
    assert [line.split()[:2] for line in said.splitlines() if line.partition(" ")[0] in STAGES] == [
        ["build", "unchanged"],
        ["pack", "done"],
        ["check", "done"],
        ["push", "done"],
        ["run", "done"],
    ]
    assert said.count("a changed line") == 2  # of each rank, as it was followed
    assert "COMPLETED, exit 0" in said

    fetched = tmp_path / "fetched"
    shown = cli("result", again["job"], "-o", fetched).stdout
    assert f"job {again['job']} ({again['job_id']}): COMPLETED, exit 0" in shown
    assert '"world_size": 2' in shown
    assert json.loads((fetched / "result.json").read_text())["world_size"] == 2
    assert "rank 0 of 2" in (fetched / "output.log").read_text()
    cli("result", "-o", fetched, code=2)  # it exists


#: Plays a line that breaks once, when the site has all it needs: nothing of what it says afterwards arrives. Of `run`,
#: which needs nothing more, not even the name of the job.
_CUT = """#!/bin/sh
case "$*" in *--token*) if rm {cut} 2>/dev/null; then
  {ssh} "$@" | {{
    while IFS= read -r line; do
      case "$*$line" in *DEPLOYER_ANNOUNCE*deployer-answer:*) break ;; esac
      printf '%s\\n' "$line"
      case "$line" in deployer-answer:*) break ;; esac
    done
    cat >/dev/null
  }}
  echo "client_loop: send disconnect: Broken pipe" >&2
  exit 255
fi ;; esac
exec {ssh} "$@"
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_line_that_breaks_during_the_submission_leaves_one_job(
    built: Cli, lab: Lab, definition: Path, tmp_path: Path
) -> None:
    cut, programs = tmp_path / "cut", tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(_CUT.format(cut=cut, ssh=shutil.which("ssh")))
    (programs / "ssh").chmod(0o755)
    settings = {"DEPLOYER_SITE": "lab", "DEPLOYER_SSH_CONFIG": str(lab.ssh_config), "XDG_CONFIG_HOME": str(tmp_path)}
    cli = Cli({**built.environment, **settings, "PATH": f"{programs}:{built.environment['PATH']}"})
    words = ["deploy", definition, "lab", "hello", "-o", tmp_path / "b.tar"]

    def jobs() -> set[str]:
        return {job["job"] for job in json.loads(cli("jobs", "--json").stdout)["jobs"]}

    before = jobs()
    cut.touch()
    error = cli(*words, code=5).stderr
    assert "the job may have been submitted\nhint: the same command again follows it" in error
    (job,) = jobs() - before
    followed = json.loads(cli(*words, "--json").stdout)
    assert (followed["job"], followed["status"]["exit_code"]) == (job, 0)
    assert states(followed)[-1] == "run unchanged"
    assert jobs() - before == {job}

    cut.touch()
    cli(*words, code=5)
    (lost,) = jobs() - before - {job}
    other = cli(*words, "--nodes", "2", "--json", "--no-follow")
    assert f"warning: job {lost} of an earlier deploy" in other.stderr
    assert jobs() - before == {job, lost, json.loads(other.stdout)["job"]}

    before, words = jobs(), ["run", json.loads(other.stdout)["status"]["bundle"], "hello"]
    cut.touch()
    assert "hint: the job may have been submitted: the same command again follows it" in cli(*words, code=5).stderr
    (job,) = jobs() - before
    assert f"job {job} was submitted before as " in cli(*words).stdout
    assert jobs() - before == {job}
    assert "before" not in cli(*words).stdout
    assert len(jobs() - before) == 2


#: A program that saves its state when it is warned, and ends when another job has continued it.
_CONTINUED = """
import os, signal, sys, time
state = os.environ["DEPLOYER_CHECKPOINT"]
path = os.path.join(state, "seen")
if os.path.exists(path):
    print("continued", flush=True)
    time.sleep(20)
    sys.exit(0)
def save(*_):
    os.makedirs(state, exist_ok=True)
    open(path, "w").close()
    sys.exit(85)
signal.signal(signal.SIGUSR1, save)
print("started", flush=True)
while True:
    time.sleep(0.2)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_that_continue_are_followed(built: Cli, lab: Lab, definition: Path, tmp_path: Path) -> None:
    settings = {"DEPLOYER_SSH_CONFIG": str(lab.ssh_config), "XDG_CONFIG_HOME": str(tmp_path)}
    cli = Cli({**built.environment, **settings})
    (definition / "app" / "hello.py").write_text(_CONTINUED)
    limits = ["--time", "00:02:00", "--warn", "100", "--again", "1"]
    said = cli("deploy", definition, "lab", "hello", "-o", tmp_path / "c.tar", *limits).stdout
    assert said.index("started") < said.index("continued") < said.index("COMPLETED, exit 0")
