"""Remedies for programs that belong to the host, and for exceptions whose text states the cause. Pure."""

import re
from typing import Optional

from deployer.contract.rules.batch_words import WORDS

_IN_IMAGE = "install it in the image, or call it by a path that exists in the container"
_RANKS = "name the program itself in `command`: deployer starts its ranks (`nodes`, `ranks_per_node`)"
_BATCH = (
    "the batch system's commands stay outside: every rank has $RANK, $WORLD_SIZE and $MASTER_ADDR; submit further jobs "
    "from the login node, or with `run --again`"
)
_MODULES = "the site's modules stay outside: install the software in the image, and leave this line out"
_DRIVER = "it comes from the driver of a node with GPUs, for a job with `gpus`; an image has none"
_CONTAINERS = "a job is a container already: call the program itself, from an image that has it"
_FETCHER = "it downloads, and nodes have no internet: put the file in the bundle (`data:` in its definition)"
_PROGRAMS = {
    _RANKS: "mpirun mpiexec mpiexec.hydra orterun srun jsrun aprun prun ibrun",
    _BATCH: " ".join(words.programs for words in WORDS.values()),
    _MODULES: "module ml modulecmd lmod",
    _DRIVER: "nvidia-smi rocm-smi amd-smi xpu-smi",
    _CONTAINERS: "docker podman singularity apptainer ch-run enroot",
    _FETCHER: "curl wget aria2c",
}

_JAX = (
    "jax.distributed.initialize() takes the numbers from Slurm's variables. A rehearsal has them if --site names a "
    "site with Slurm and the bundle has `mpi: []`. For every site, give it "
    'num_processes=int(os.environ["WORLD_SIZE"]) and process_id=int(os.environ["RANK"])'
)
NO_ANSWERS = (
    "nobody answers a job: use the program's option for batch jobs, or give it the answers in a file, `stdin: "
    "/deployer/app/answers.txt` of the job (or run --stdin)"
)
_SPACY = "a model of spaCy is a Python package: install it in the image, or add it to the wheels of the definition"
_EXCEPTIONS = {
    r"ValueError: (coordinator_address should|Number of processes must|The process id of the current process must) "
    r"be defined": _JAX,
    r"EOFError: EOF when reading a line": NO_ANSWERS,
    r"OSError: \[E050\]": _SPACY,
}


def of_program(program: str) -> str:
    """Return what to do about a missing program that the job tried to start."""
    name = program.rpartition("/")[2]
    return next((remedy for remedy, names in _PROGRAMS.items() if name in names.split()), _IN_IMAGE)


def of_exception(text: str) -> Optional[str]:
    """Return what to do about the exception that ended a program; None if its text does not show the cause."""
    return next((remedy for pattern, remedy in _EXCEPTIONS.items() if re.match(pattern, text)), None)
