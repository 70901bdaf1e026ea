"""Schedulers, by the names that plans use."""

from typing import Dict

from deployer.site.schedulers.interface import Scheduler
from deployer.site.schedulers.local import Local
from deployer.site.schedulers.slurm import Slurm

SCHEDULERS: Dict[str, Scheduler] = {"slurm": Slurm(), "local": Local()}
