"""exec --rehearse with a ch-run that starts the host's own Python: hook, network and report are the real ones."""

import json
import sys

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.site.plan import StartOption
from deployer.site.run import rehearse
from deployer.site.run.exec import ExecRequest
from tests import running as made

#: Takes ch-run's place: it sets the variables and starts the command, with the bound folder in place of the job's.
CH_RUN = """
for word; do
  shift
  case $word in
    --bind=*:/deployer/job) job=${word#--bind=}; job=${job%%:*} ;;
    --set-env=*) export "${word#--set-env=}" ;;
    --) break ;;
  esac
done
[ -n "$job" ] || exit 0
export PYTHONPATH="$job/rehearsal-hook" DEPLOYER_REHEARSAL="$job/rehearsal"
exec "$@"
"""
ASKS = "import urllib.request as r; print('hello'); r.urlopen('http://data.invalid/mnist.npz')"


@pytest.fixture
def store(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    made.program(folder, "ch-run", CH_RUN)
    return made.store(tmp_path / "root")


AUDITED = pytest.mark.skipif(sys.version_info < (3, 8), reason="no audit hooks")


@AUDITED
def test_the_report_names_what_the_command_asked_for(store, capfd):
    words = ["exec", "--root", store.root, "--rehearse", "--json", "hello", "--", sys.executable, "-c", ASKS]
    assert main.main(words) == 3
    out, err = capfd.readouterr()
    record = json.loads(out)  # the command's own output is not in it
    assert "hello" in err
    first = record["findings"][0]
    assert (first["code"], first["subject"], first["stopped"]) == ("rehearse.network", "data.invalid", True)
    assert first["file"] == "<string>"
    assert record["ending"]["how"] == "failed"
    assert (record["bundle"], record["verdict"], record["watched"]) == ("hello:1", "REFUSE", ["python"])
    assert "only Python was observed" in str(record["findings"])


@AUDITED
@pytest.mark.thorough
def test_without_user_namespaces_the_report_says_that_the_network_was_there(store, monkeypatch):
    monkeypatch.setattr(rehearse, "_refusal", lambda _: "user namespaces are not allowed: Operation not permitted")
    done = rehearse.rehearse(store, ExecRequest("hello"), [sys.executable, "-c", "pass"])
    assert done.exit_code == 0
    assert [item.finding.message for item in done.findings] == [
        "only Python was observed: `deployer rehearse` on the laptop sees other programs too",
        "the network was as it is on this machine: user namespaces are not allowed: Operation not permitted",
    ]


@pytest.mark.parametrize("status", [129, 130, 143])
def test_a_command_that_was_stopped_did_not_pass(store, monkeypatch, status):
    monkeypatch.setattr(rehearse, "_refusal", lambda _: None)
    monkeypatch.setattr(rehearse.process, "attach", lambda *_: status)
    done = rehearse.rehearse(store, ExecRequest("hello"), ["true"])
    assert (done.ending.how, done.exit_code) == ("stopped", 3)
    assert done.findings[0].finding.message == "it was stopped with exit code %d" % status


def test_a_rehearsal_needs_a_container_and_a_command(tmp_path, store):
    with pytest.raises(UsageError, match="no command to rehearse"):
        rehearse.rehearse(store, ExecRequest("hello"), [])
    with pytest.raises(UsageError, match="no rule of a rehearsal"):
        rehearse.rehearse(store, ExecRequest("hello"), ["true"], ("rehearse.x",))
    native = StartOption("native-folder", "native", "folder", "srun", "pmi2", None)
    bare = made.store(tmp_path / "other", made.PLAN._replace(start_options=[native]))
    with pytest.raises(Refused, match="a rehearsal needs a container"):
        rehearse.rehearse(bare, ExecRequest("hello", runtime="native"), ["true"])


def test_options_of_a_rehearsal_alone_are_refused(store, capsys):
    assert main.main(["exec", "--root", store.root, "--json", "hello", "--", "true"]) == 2
    assert "only with --rehearse" in capsys.readouterr().err
