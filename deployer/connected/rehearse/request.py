"""What the user asks a rehearsal for."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deployer.contract import json_records, plan
from deployer.contract.errors import UsageError
from deployer.contract.job import Job
from deployer.contract.manifest import Manifest
from deployer.contract.plan import Plan


class RehearsalRequest(NamedTuple):
    """What the user asks for.

    Attributes:
        bundle: the path of the bundle.
        job: the name of the job; None: the first.
        site: the plan of the site; None: no site was named.
        ranks: the number of ranks; None: two, if the job has as many.
        seconds: the time limit.
        binds: folders of this machine, as ``run --bind``.
        extra: words for the end of the job's command.
        others: bundles whose data the job needs.
    """

    bundle: str
    job: str | None
    site: Plan | None
    ranks: int | None
    seconds: int
    binds: Sequence[str] = ()
    extra: Sequence[str] = ()
    others: Sequence[str] = ()

    def record(self) -> json_records.Record:
        """Return it as a JSON object, which ``read`` reads."""
        return {**self._asdict(), "site": json.dumps(self.site.record()) if self.site else None}


def read(record: Mapping[str, Any]) -> RehearsalRequest:
    """Return the request of a record that this deployer made."""
    site = record["site"]
    return RehearsalRequest(**{**record, "site": plan.read(site.encode(), "the site's plan") if site else None})


def job_of(manifest: Manifest, request: RehearsalRequest) -> Job:
    """Return the job, or the user's command if the bundle has none. Raises UsageError."""
    job = manifest.job(request.job)
    if job is None and not manifest.jobs and request.job is None and request.extra:
        return Job("command", [], 1, 1, 1, "01:00:00")
    if job is None:
        label = f"{manifest.name}:{manifest.version}"
        known = ", ".join(item.name for item in manifest.jobs)
        raise UsageError(
            f"{label} has no job {request.job or ''}".rstrip(),
            f"its jobs: {known}" if known else f"give the command: deployer rehearse {request.bundle} -- COMMAND",
        )
    return job
