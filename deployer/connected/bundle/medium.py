"""README.txt on a medium: its contents, and the commands for the person at the site."""

from collections.abc import Sequence

from deployer.connected.bundle.shipment import SUMS, Shipment
from deployer.contract.base.text import counted
from deployer.contract.bundle.manifest import Manifest

_TEXT = """\
{label}, a bundle of deployer in {parts}
digest {digest}

Copy this folder to a login node of the site, which needs Python 3.6 or later. In the copy:

  1. Check that the copy is complete: each line ends with OK.
     sha256sum -c {sums}
  2. Install the bundle. ROOT is {root}; {space} MB must be free there.
     python3 deployer.pyz receive . --root ROOT
  3. {use}

To see what is in it: python3 deployer.pyz inspect .
If another person made it, compare the digest by phone or on paper: `receive` prints it again.
"""
#: Bytes on disk for each file beyond its size: half a 4 KiB block on average, as in `receive`.
_HALF_BLOCK = 2048
_RUN = """Run a job{others}.
     cd ROOT && python3 deployer.pyz run {label} --wait{command}"""


def readme(manifest: Manifest, digest: str, shipment: Shipment, plans: Sequence[str], partial: bool) -> str:
    """Return the text of README.txt.

    Args:
        plans: the sites for which the bundle has plans.
        partial: the folder lacks the parts that the site already has.
    """
    label, jobs = f"{manifest.name}:{manifest.version}", [job.name for job in manifest.jobs]
    others = f"; its name follows {label} (default: {jobs[0]}; others: {', '.join(jobs[1:])})" if jobs[1:] else ""
    command = "" if jobs else " -- COMMAND"
    if len(plans) > 1:
        others += f"; SITE is one of {', '.join(plans)}"
        command = f" --plan SITE{command}"
    run = _RUN.format(label=label, others=others, command=command)
    space = shipment.ending.end + manifest.unpacked + manifest.image.entries * _HALF_BLOCK
    return _TEXT.format(
        label=label,
        parts=f"{counted(len(shipment.parts), 'part')}, {shipment.size / 1e6:.1f} MB",
        digest=digest,
        sums=SUMS,
        root="the folder that has the earlier bundles" if partial else "a folder that all nodes share",
        space=f"{space / 1e6:.1f}",
        use="Run bundles that need this data." if manifest.is_data else run,
    )
