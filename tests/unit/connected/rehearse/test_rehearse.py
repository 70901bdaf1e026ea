"""What a rehearsal refuses before it starts anything."""

import json
from pathlib import Path

import pytest

from deployer.connected.rehearse import machine, rehearse
from deployer.connected.rehearse.rehearse import SiteTools
from deployer.connected.rehearse.request import RehearsalRequest
from deployer.connected.rehearse.simulated_plan import RehearsedLayout
from deployer.contract.errors import Refused
from deployer.contract.job import Job
from deployer.system import process
from tests import bundles
from tests.unit.connected.rehearse.test_simulated_plan import MANIFEST

TOOLS = SiteTools(b"", Path("/tmp/kit/bin/ch-run"))


@pytest.mark.parametrize("shared", machine.OWN_FOLDERS)
def test_a_cache_that_jobs_could_change_is_refused(shared, tmp_path, monkeypatch):
    bundle = tmp_path / "b.tar"
    bundle.write_bytes(bundles.build(jobs=[Job("main", ["true"], 1, 1, 1, "00:01:00")]))
    monkeypatch.setenv("XDG_CACHE_HOME", f"{shared}/cache-of-nobody")
    with pytest.raises(Refused, match="a job could change it"):
        rehearse.rehearse(RehearsalRequest(str(bundle), None, None, None, 10), TOOLS, print)


@pytest.mark.parametrize("name", ["command", "train"])
def test_a_job_of_any_name_is_rehearsed_by_its_name(name, tmp_path, monkeypatch):
    asked = []
    site = object.__new__(rehearse._Site)
    monkeypatch.setattr(site, "_ask", lambda words, timeout: asked.append(words) or {"folder": str(tmp_path)})
    job = Job(name, ["true"], 1, 1, 1, "00:01:00")
    request = RehearsalRequest("b.tar", None, None, None, 10)
    site.prepare(request, RehearsedLayout(1, 1, 1, 1), MANIFEST._replace(jobs=[job]), job, "sha256:0")
    assert asked[0][-3:] == [f"{MANIFEST.name}@0", name, "--"]


def test_a_result_that_the_job_made_a_link_is_not_read(tmp_path):
    (tmp_path / "secret").write_text('{"findings": []}')
    (tmp_path / "result.json").symlink_to(tmp_path / "secret")
    assert rehearse._result(tmp_path) is None
    assert rehearse._result(tmp_path / "nowhere") is None
    (tmp_path / "result.json").unlink()
    (tmp_path / "secret").rename(tmp_path / "result.json")
    assert rehearse._result(tmp_path) == {"findings": []}


def test_what_job_sh_starts_outside_of_the_container_cannot_be_changed(tmp_path, monkeypatch):
    """The order for the simulated site names these files; a program of this deployer below /tmp is one of them."""
    for name in ("job.sh", "agent", "job.json", "deployer.pyz", "output.log"):
        (tmp_path / name).touch()
    orders = []

    def answer(argv, timeout, own, stdin, check):
        orders.append(json.loads(stdin))
        return process.Completed(argv, 0, json.dumps({"exit_code": 0}), "")

    monkeypatch.setattr(process, "run", answer)
    request = RehearsalRequest("b.tar", None, None, None, 10)
    rehearse._run(request, RehearsedLayout(1, 1, 1, 1), tmp_path, tmp_path, tmp_path, None, TOOLS)
    there = {str(tmp_path / name) for name in ("job.sh", "agent", "job.json", "deployer.pyz")}
    assert {*there, "/tmp/kit/bin"} <= set(orders[0]["fixed"])
    assert str(tmp_path / "output.log") not in orders[0]["fixed"]
