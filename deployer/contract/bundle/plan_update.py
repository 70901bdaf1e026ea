"""Plan updates: new plans for an installed bundle, for instance after a maintenance day at the site.

A plan update is a text file: a JSON record, followed by any number of signatures in OpenSSH's armor. A signature covers
the bytes of the record. It uses the namespace of bundles, because the same keys may sign both: a policy that accepts a
bundle accepts its plans. The record's ``schema`` distinguishes the two.
"""

import re
import zlib
from typing import List, NamedTuple, Tuple

from deployer.contract.base import json_records, records
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import sshsig
from deployer.contract.site import plan as plans
from deployer.contract.site.plan import Plan

SCHEMA = "plan_update"
#: The most bytes of a file. A plan that binds an MPI file by file has about 50 kB.
MAX_SIZE = 4 * 1024 * 1024

#: A site's name becomes the name of a file.
_SITE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_AGAIN = "make it again on the laptop: deployer plan BUNDLE.tar --site SITE -o FILE"


class PlanUpdate(NamedTuple):
    """New plans for one bundle at one site.

    Attributes:
        digest: the bundle's digest.
        bundle: NAME:VERSION.
        made: seconds since the epoch. A site with ``refuse_rollback`` refuses an older update.
        plans: the plans, all for the same site and each for another partition.
    """

    digest: str
    bundle: str
    made: int
    plans: List[Plan]

    @property
    def site(self) -> str:
        return self.plans[0].site

    def text(self) -> str:
        """Return the file's text, without signatures."""
        return json_records.pretty(json_records.stamped(SCHEMA, records.plain(self)))


def packed(data: bytes) -> bytes:
    """Return a file's content in the form that ``push`` sends."""
    return zlib.compress(data, 9)


def unpacked(data: bytes, what: str) -> bytes:
    """Return the content of a file that ``push`` sent. Raises UsageError if it is incomplete or exceeds MAX_SIZE."""
    whole = zlib.decompressobj()
    try:
        content = whole.decompress(data, MAX_SIZE + 1)
    except zlib.error as error:
        raise UsageError(f"{what} is damaged: {error}", "send it again") from error
    if len(content) > MAX_SIZE:
        raise UsageError("%s has more than the %d bytes allowed" % (what, MAX_SIZE))
    if not whole.eof or whole.unused_data:
        raise UsageError(f"{what} is incomplete", "send it again")
    return content


def split(data: bytes) -> Tuple[bytes, List[bytes]]:
    """Return a file's signed bytes and the blobs of its signatures. Raises IntegrityError."""
    begin = data.find(sshsig.BEGIN.encode())
    if begin < 0:
        return data, []
    return data[:begin], sshsig.unarmored_all(data[begin:].decode("utf-8", "replace"))


def read(data: bytes, what: str) -> PlanUpdate:
    """Parse a plan update; ``what`` names it in errors. Its signatures are not checked.

    Raises:
        UsageError: it is not a plan update, or its plans do not belong together.
    """
    message, _ = split(data)
    fields = json_records.loads(message, SCHEMA, what)
    update = records.read(
        PlanUpdate,
        fields,
        plans=[plans.read(json_records.dumps(item.record), item.what) for item in fields.items("plans")],
    )
    if not update.plans:
        raise UsageError(f"{what} has no plan", _AGAIN)
    if not _SITE.match(update.site):
        raise UsageError(f"{what}: invalid name of a site: {update.site!r}", "use letters, digits, '.', '_' and '-'")
    foreign = [plan for plan in update.plans if (plan.site, plan.bundle) != (update.site, update.bundle)]
    if foreign or len({plan.partition for plan in update.plans}) < len(update.plans):
        raise UsageError(f"{what}: its plans are not for one bundle, one site and different partitions", _AGAIN)
    return update
