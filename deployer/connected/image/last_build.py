"""The results of a definition's last build on this machine: its image and its variants of Horovod."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import xdg
from deployer.connected.image.definition.definition import Definition
from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused


class LastBuild(NamedTuple):
    """The result of a definition's last build.

    Attributes:
        image: the image's id.
        variants: wheels of Horovod by MPI family.
    """

    image: str
    variants: dict[str, Path]


def last_build(definition: Definition, families: Sequence[str] | None = None) -> LastBuild:
    """Return the result of a definition's last build on this machine.

    Without a build record, the image is the definition's tag. ``inputs.current`` tests whether it was built from the
    current definition.

    Args:
        families: the MPI families that must have a variant of Horovod; None: all of the definition's.

    Raises:
        Refused: the definition has Horovod, and the cache lacks the variant for one of its MPI families.
    """
    again = f"build it: {definition.again}"
    last = last_record(definition)
    try:
        made = LastBuild(str(last["image"]), {item["abi"]: Path(item["wheel"]) for item in last["variants"]})
    except (KeyError, TypeError) as error:
        if definition.horovod is None:
            return LastBuild(definition.tag, {})
        raise Refused(f"{definition.tag} was not built here with its variants of Horovod", again) from error
    possible = (definition.families or []) if definition.horovod else []
    there = {abi: made.variants[abi] for abi in possible if abi in made.variants and made.variants[abi].is_file()}
    missing = [abi for abi in (possible if families is None else families) if abi in possible and abi not in there]
    if missing:
        raise Refused(f"{definition.tag} has no Horovod for {', '.join(missing)}", again)
    return LastBuild(made.image, there)


def last_record(definition: Definition) -> json_records.Record:
    """Return the record of a definition's last build, empty if there is none."""
    try:
        record = json.loads(record_of(definition).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def record_of(definition: Definition) -> Path:
    """Return the path of the record of a definition's last build. The log is next to it."""
    return xdg.state_folder("builds") / f"{definition.name}-{definition.version}{definition.suffix}.json"
