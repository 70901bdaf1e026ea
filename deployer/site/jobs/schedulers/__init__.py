"""Schedulers by the names that plans use."""

from typing import Dict

from deployer.site.jobs.schedulers.interface import Scheduler
from deployer.site.jobs.schedulers.local import Local
from deployer.site.jobs.schedulers.slurm import Slurm

SCHEDULERS: Dict[str, Scheduler] = {"slurm": Slurm(), "local": Local()}
