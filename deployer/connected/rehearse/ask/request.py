"""The user's request for a rehearsal."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deployer.contract.base import json_records
from deployer.contract.bundle.job import Job, find
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.site import plan
from deployer.contract.site.plan import Plan


class RehearsalRequest(NamedTuple):
    """The user's request.

    Attributes:
        bundle: the path of the bundle.
        job: the name of the job; None: the first.
        site: the plan of the site; None: no site was named.
        ranks: the number of ranks; None: two, or one if the job has only one.
        seconds: the time limit.
        binds: folders of this machine, as in ``run --bind``.
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
        """Return the request as a JSON object for ``read``."""
        return {**self._asdict(), "site": json.dumps(self.site.record()) if self.site else None}


def read(record: Mapping[str, Any]) -> RehearsalRequest:
    """Return the request from a record that this version of deployer wrote."""
    site = record["site"]
    return RehearsalRequest(**{**record, "site": plan.read(site.encode(), "the site's plan") if site else None})


def job_of(manifest: Manifest, request: RehearsalRequest) -> Job:
    """Return the requested job, or the user's command if the bundle has no jobs. Raises UsageError."""
    label = f"{manifest.name}:{manifest.version}"
    return find(label, manifest.jobs, request.job, request.extra, f"deployer rehearse {request.bundle}")
