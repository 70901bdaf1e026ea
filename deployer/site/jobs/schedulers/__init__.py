"""Schedulers by the names that plans use.

A new scheduler requires a module here, an entry below and in ``contract/rules/batch_words.py``, a fake, a golden
script, tests, and a section in docs/batch.md.
"""

from typing import Dict

from deployer.contract.base.errors import UsageError
from deployer.site.jobs.schedulers.gridengine import GridEngine
from deployer.site.jobs.schedulers.hosts import Hosts
from deployer.site.jobs.schedulers.interface import Scheduler
from deployer.site.jobs.schedulers.local import Local
from deployer.site.jobs.schedulers.lsf import Lsf
from deployer.site.jobs.schedulers.pbs import Pbs
from deployer.site.jobs.schedulers.slurm import Slurm

SCHEDULERS: Dict[str, Scheduler] = {
    "slurm": Slurm(),
    "gridengine": GridEngine(),
    "pbs": Pbs(),
    "lsf": Lsf(),
    "local": Local(),
    "hosts": Hosts(),
}


def known(name: str) -> Scheduler:
    """Return the scheduler of a plan. Raises UsageError."""
    if name not in SCHEDULERS:
        hint = "install a newer deployer, or see scheduler.kind in the site's profile; known: " + ", ".join(SCHEDULERS)
        raise UsageError(f"this deployer knows no batch system {name!r}", hint)
    return SCHEDULERS[name]
