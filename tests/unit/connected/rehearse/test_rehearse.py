"""What a rehearsal refuses before it starts anything."""

import pytest

from deployer.connected.rehearse import machine, rehearse
from deployer.connected.rehearse.rehearse import RehearsalRequest
from deployer.contract.errors import Refused
from deployer.contract.job import Job
from tests import bundles


@pytest.mark.parametrize("shared", machine.OWN_FOLDERS)
def test_a_cache_that_jobs_could_change_is_refused(shared, tmp_path, monkeypatch):
    bundle = tmp_path / "b.tar"
    bundle.write_bytes(bundles.build(jobs=[Job("main", ["true"], 1, 1, 1, "00:01:00")]))
    monkeypatch.setenv("XDG_CACHE_HOME", f"{shared}/cache-of-nobody")
    with pytest.raises(Refused, match="a job could change it"):
        rehearse.rehearse(RehearsalRequest(str(bundle), None, None, None, 10), print)
