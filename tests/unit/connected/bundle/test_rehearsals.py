"""The outcome of a rehearsal is appended to a bundle: every byte before it stays, and a site can require it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployer.connected.bundle import rehearsals
from deployer.connected.check import rehearsed
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.sealed_file import payload
from deployer.contract.rehearsal.observation import Observation, Observed
from deployer.contract.rehearsal.rehearsal import DONE, FAILED, LIMIT, STOPPED, JobEnding, Rehearsal, judge
from deployer.system.trust.verify import begin, opened, verify
from tests import bundles

JOB = Job("train", ["python3", "train.py"], 1, 1, 1, "00:10:00")
HOST = Observation("host", "a\x1b[2J.example", 1.0, process="n1-1")
REQUIRES: Any = SimpleNamespace(name="strict", policy=SimpleNamespace(rehearsal=True))
FREE: Any = SimpleNamespace(name="free", policy=SimpleNamespace(rehearsal=None))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundles.write(tmp_path / "tiny.tar", jobs=[JOB])


def outcome(path: Path, how: str = DONE, **changes: Any) -> Rehearsal:
    with opened(str(path)) as stream:
        manifest = begin(stream, str(path)).manifest
    ending = JobEnding(how, 0 if how == DONE else 1)
    image = manifest.image.layer_digest
    watched = ("network", "files")
    made = Rehearsal("tiny:1.0", image, "train", "", 1, "0", 2, 2, watched, ending, command=tuple(JOB.command))
    return made._replace(findings=judge(Observed(), ending), payload=payload(manifest), **changes)


def required(path: Path, profile: Any = REQUIRES) -> list[str]:
    with opened(str(path)) as stream:
        return [item.message for item in rehearsed.required(begin(stream, str(path)), profile)]


def carried(path: Path) -> list[Rehearsal]:
    with opened(str(path)) as stream:
        verify(stream, str(path))
        return rehearsed.of(begin(stream, str(path)))


def test_an_outcome_is_appended_and_all_before_it_stays(bundle: Path) -> None:
    before = bundle.read_bytes()
    with opened(str(bundle)) as stream:
        old = begin(stream, str(bundle)).manifest
    assert rehearsals.record(bundle, outcome(bundle)) is False
    with opened(str(bundle)) as stream:
        new = begin(stream, str(bundle)).manifest
    assert new.segments[: len(old.segments)] == old.segments
    end = max(segment.offset + segment.size for segment in old.segments)
    assert bundle.read_bytes()[:end] == before[:end]
    assert carried(bundle) == [outcome(bundle)]


def test_a_new_outcome_replaces_that_of_the_same_job_and_site(bundle: Path) -> None:
    for each in (outcome(bundle, FAILED), outcome(bundle, site="there"), outcome(bundle, job="other")):
        rehearsals.record(bundle, each)
    rehearsals.record(bundle, outcome(bundle))
    assert carried(bundle) == [outcome(bundle, job="other"), outcome(bundle), outcome(bundle, site="there")]


def test_the_outcome_of_another_payload_does_not_count(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same image with another app, or another environment of the job, was not rehearsed."""
    others = {
        "app": {"extra": [("deployer/app/train.py", b"pass")]},
        "job": {"jobs": [JOB._replace(workdir="/deployer/job")]},
    }
    for name, changes in others.items():
        other = bundles.write(tmp_path / f"{name}.tar", **{"jobs": [JOB], **changes})
        before = other.read_bytes()
        with pytest.raises(UsageError, match="not the bundle that was rehearsed"):
            rehearsals.record(other, outcome(bundle))
        assert other.read_bytes() == before
        with monkeypatch.context() as forged:
            forged.setattr(rehearsals, "payload", lambda _: outcome(bundle).payload)
            rehearsals.record(other, outcome(bundle))
        assert carried(other) == []


def test_a_site_can_require_one_without_errors_of_the_jobs_own_command(bundle: Path) -> None:
    assert required(bundle) == ["strict requires a rehearsal, and the bundle has none of job train"]
    assert required(bundle, FREE) == []
    for wrong in (
        outcome(bundle, FAILED),
        outcome(bundle, FAILED, accepted=("rehearse.ended",)),
        outcome(bundle, STOPPED),
        outcome(bundle, watched=("python",)),
        outcome(bundle, command=("python3", "train.py", "--short")),
    ):
        rehearsals.record(bundle, wrong)
        assert "found errors, was not watched by the kernel, or was of another command" in required(bundle)[0]
    for right in (outcome(bundle), outcome(bundle, LIMIT)):
        rehearsals.record(bundle, right)
        assert required(bundle) == []


def test_no_words_of_a_job_make_the_bundle_unreadable(bundle: Path) -> None:
    """A note about an observation has the job's text as its subject; what could not be read again is not written."""
    made = outcome(bundle)._replace(findings=judge(Observed((HOST,)), JobEnding(DONE, 0)))
    assert [item.finding.subject for item in made.findings] == ["a\\x1b[2J.example"]
    rehearsals.record(bundle, made)
    assert carried(bundle) == [made]
    before = bundle.read_bytes()
    with pytest.raises(UsageError, match="control character"):
        rehearsals.record(bundle, outcome(bundle)._replace(ending=JobEnding(FAILED, 1, "a\x1b[2J")))
    assert bundle.read_bytes() == before


def test_a_damaged_outcome_is_an_error(tmp_path: Path) -> None:
    path = bundles.write(tmp_path / "damaged.tar", jobs=[JOB], extra=[("deployer/rehearsals/train.json", b"{}")])
    with pytest.raises(IntegrityError, match=r"rehearsals/train\.json"):
        carried(path)
