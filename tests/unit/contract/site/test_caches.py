"""The caches of a job: names of libraries, or places in the private HOME."""

import pytest

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.bundle.job import Job
from deployer.contract.site import caches

JOB = Job("train", ["true"], 1, 1, 1, "01:00:00", keep=["triton", "~/.cache/mine"])


def test_names_and_places_are_paths_in_home():
    assert caches.check(["numba", "~/own"]) == ["numba", "~/own"]
    assert caches.paths(["numba", "~/own/x"]) == [".cache/numba", "own/x"]
    assert caches.check(list(caches.KNOWN)) == list(caches.KNOWN)


@pytest.mark.parametrize(
    "entry", ["", "~", "~/", "/etc", "~/../x", "~/a//b", "~/./a", "own", "~/a\nb", "~root/x", "~/" + "x" * 2000]
)
def test_other_places_are_refused(entry):
    with pytest.raises(UsageError, match="invalid cache"):
        caches.check(["numba", entry])


def test_a_similar_name_is_suggested():
    with pytest.raises(UsageError, match="perhaps you meant 'triton'"):
        caches.check(["tritn"])


def test_a_job_carries_them_and_a_record_is_checked():
    record = JOB.record()
    assert record["keep"] == ["triton", "~/.cache/mine"]
    assert Job.read(Fields(record, "a job")) == JOB
    assert "keep" not in JOB._replace(keep=()).record()
    with pytest.raises(IntegrityError, match="field 'keep': keep: invalid cache: '/etc'"):
        Job.read(Fields(dict(record, keep=["/etc"]), "a job", IntegrityError))
