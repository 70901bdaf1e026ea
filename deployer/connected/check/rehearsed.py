"""The rehearsal outcomes that a bundle carries, and whether a site that requires outcomes can accept the bundle."""

from typing import TYPE_CHECKING

from deployer.connected.site_profile.profile import Profile
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.manifest import REHEARSALS_PREFIX
from deployer.contract.bundle.sealed_file import member_segments, payload
from deployer.contract.rehearsal import rehearsal
from deployer.contract.rehearsal.rehearsal import Rehearsal
from deployer.contract.rules.findings import ERROR, Finding

if TYPE_CHECKING:  # slow, and only for its type
    from deployer.connected.linker.index import Bundle

#: The code of the finding about a missing outcome.
CODE = "rehearse.none"
_HINT = "rehearse it again: deployer rehearse --record"


def of(bundle: "Bundle") -> list[Rehearsal]:
    """Return the outcomes that a bundle carries for its own payload.

    Raises:
        IntegrityError: an outcome is damaged.
    """
    outcomes = []
    own = payload(bundle.manifest)
    for member in bundle.manifest.members:
        if member.name.startswith(REHEARSALS_PREFIX):
            if member.size > rehearsal.MAX_SIZE:
                raise IntegrityError(f"{member.name} has {member.size} bytes", _HINT)
            data = b"".join(map(bundle.read, member_segments(bundle.manifest, member.name)))
            try:
                outcome = rehearsal.read(data, member.name)
            except UsageError as error:
                raise IntegrityError(error.message, _HINT) from error
            if outcome.payload == own:
                outcomes.append(outcome)
    return outcomes


def required(bundle: "Bundle", profile: Profile) -> list[Finding]:
    """Return a finding for each job without an outcome, if the site's policy requires outcomes."""
    if profile.policy is None or not profile.policy.rehearsal or bundle.manifest.is_data:
        return []
    outcomes = of(bundle)
    clean = {(outcome.job, outcome.command) for outcome in outcomes if outcome.is_clean}
    known = {outcome.job for outcome in outcomes}
    findings = []
    for job in bundle.manifest.jobs:
        if (job.name, tuple(job.command)) not in clean:
            text = f"{profile.name} requires a rehearsal, and the bundle has none of job {job.name}"
            if job.name in known:
                text = f"{profile.name} requires a rehearsal, and that of job {job.name} found errors, "
                text += "was not watched by the kernel, or was of another command"
            findings.append(Finding(CODE, ERROR, job.name, text, f"deployer rehearse B.tar {job.name} --record"))
    return findings
