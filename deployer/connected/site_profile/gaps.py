"""All facts that a site profile lacks for a plan, with YAML lines to paste.

The plan is made repeatedly. After each attempt, an example replaces the missing fact, so this module needs no list of
required facts.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel, TypeAdapter

from deployer.connected.ground.yaml_model import KeyPath
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Lacking, Profile, known
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, Unknown
from deployer.contract.bundle.image_launcher import MPIRUN
from deployer.contract.rules.batch_words import WORDS, BatchWords, words
from deployer.contract.site.plan import MPICH_ABI, NO_REQUEST, OPENMPI

_NODE = {"sockets": 2, "cores": 48, "threads_per_core": 2, "memory_mb": 90000}

#: An example of each fact that a plan can lack, by the last key of its place. It has the type of the fact.
EXAMPLES: dict[str, Any] = {
    **_NODE,
    "host": "login.example.org",
    "launchers": ["mpiexec.hydra"],
    "node": _NODE,
    "partitions": {"NAME": {"node": _NODE}},
    "pmi": "pmi2",
    "runtimes": {"charliecloud": {"version": "0.38.0"}},
    "gpu_request": NO_REQUEST,
    "scheduler": {"kind": "slurm", "pmi": ["pmi2"]},
    "workspace": "~/deployer",
}
#: A policy must allow runtimes, and the site must have them.
_POLICY = ("policy", "runtimes")
#: How to find the value of each fact.
_SOURCES = {
    "cores": "physical cores per node: lscpu",
    "gpu_request": "how jobs request GPUs: " + ", ".join(each.gpu_source for each in WORDS.values() if each.gpu_source),
    "host": "the host name for ssh",
    "launchers": "programs of the site that start ranks: mpiexec.hydra, mpirun",
    "kind": ", ".join(name for name, each in WORDS.items() if each.programs)
    + "; without a batch system hosts (ssh) or local",
    "version": "ch-run --version",
    "memory_mb": "MiB that a job may use: {batch.memory}",
    "NAME": "the name of a partition: {batch.partitions}",
    "pmi": "srun --mpi=list",
    "runtimes": "what the site allows, such as apptainer or podman",
    "sockets": "lscpu",
    "threads_per_core": "lscpu",
    "workspace": "a folder with space, which all nodes see",
}


class Gap(NamedTuple):
    """A fact that a plan lacks.

    Attributes:
        place: its place in the profile, empty if no YAML line would help.
        message: the reason.
        hint: the next step.
        example: a value to paste.
    """

    place: KeyPath
    message: str
    hint: str
    example: Any = None

    def record(self) -> json_records.Record:
        return {**self._asdict(), "place": ".".join(self.place)}


def find(profile: Profile) -> list[Gap]:
    """Return all facts that plans for a profile's partitions and `push` lack; empty if it is complete."""
    found: list[Gap] = []
    try:
        known(profile.login.host, profile, "login", "host")
    except Lacking as error:
        found.append(_gap(profile, error))
    if not profile.partitions:
        profile = _fill(profile, found, lambda current: current.partition())
    for name in profile.partitions:
        own = profile.partition(name)[1]
        # The image's MPI is not a fact of the profile, so any family with a launcher can serve as an example.
        abis = () if own.mpi else (OPENMPI if set(own.launchers) == {MPIRUN} else MPICH_ABI,)
        profile = _fill(profile, found, lambda current, name=name, abis=abis: make_plan(current, "x:1", abis, name))
    if not runtimes(profile) and any(gap.place == _POLICY[:1] for gap in found):
        message = f"the profile of {profile.name} lacks runtimes"
        found.append(Gap(("runtimes",), message, "list those of the site", EXAMPLES["runtimes"]))
    return found


def lines(profile: Profile, found: list[Gap], extends: str) -> list[str]:
    """Return the lines of a profile that extends ``extends`` with an example of each missing fact."""
    record: dict[str, Any] = {"format": 1, "name": profile.name, "extends": extends}
    for gap in found:
        inner = record
        for word in gap.place[:-1]:
            inner = inner.setdefault(word, {})
        inner.update({word: copy.deepcopy(gap.example) for word in gap.place[-1:]})  # there may be more gaps below it
    kind = profile.scheduler.kind if profile.scheduler else EXAMPLES["scheduler"]["kind"]
    return list(_yaml(record, "", words(kind)))


def _fill(profile: Profile, found: list[Gap], attempt: Any) -> Profile:
    """Add the facts that ``attempt`` lacks to ``found``. Return the profile with examples in their place."""
    while True:
        try:
            attempt(profile)
        except Lacking as error:
            gap = _gap(profile, error)
            found.append(gap)
            profile = _with(profile, list(gap.place), gap.example)
            continue
        except Unknown as error:
            found.append(Gap((), error.message, error.hint))
        except DeployerError:
            pass  # a rule refused it; no fact is missing
        return profile


def _gap(profile: Profile, error: Lacking) -> Gap:
    place = error.place
    if place != _POLICY:
        return Gap(place, error.message, error.hint, EXAMPLES[place[-1]])
    return Gap(place[:1], error.message, error.hint, {"runtimes": runtimes(profile) or list(EXAMPLES["runtimes"])})


def runtimes(profile: Profile) -> list[str]:
    """Return the site's runtimes listed in its profile."""
    return sorted({*profile.runtimes, *(name for each in profile.partitions.values() for name in each.runtimes)})


def _with(model: Any, place: list[str], value: Any) -> Any:
    """Return a model or mapping with a new value at a place."""
    head, *rest = place
    if isinstance(model, BaseModel):
        kind: Any = type(model).model_fields[head].annotation
        new = _with(getattr(model, head), rest, value) if rest else TypeAdapter(kind).validate_python(value)
        return model.model_copy(update={head: new})
    return {**model, head: _with(model[head], rest, value)}


def _yaml(record: dict[str, Any], indent: str, batch: BatchWords) -> Iterator[str]:
    for key, value in record.items():
        comment = f"  # {_SOURCES[key].format(batch=batch)}" if key in _SOURCES else ""
        if isinstance(value, dict):
            yield f"{indent}{key}:{comment}"
            yield from _yaml(value, indent + "  ", batch)
        else:
            text = f"[{', '.join(value)}]" if isinstance(value, list) else value
            yield f"{indent}{key}: {text}{comment}"
