"""Which importer reads a file, and one draft from all files."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground.yaml_model import Document
from deployer.connected.site_profile.importers import nextflow, python_literals, reframe, slurm_conf, spack
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.connected.site_profile.importers.values import LocatedValue, from_document
from deployer.contract.errors import UsageError
from deployer.contract.text import printable
from deployer.system import files

#: Bytes. The largest real file seen has 120 kB.
_MAX_BYTES = 1024 * 1024
_NEXTFLOW, _REFRAME, _SPACK, _SLURM = "nf-core configuration", "ReFrame configuration", "Spack packages", "Slurm"
#: What a file must be, for messages.
FORMATS = (
    "an nf-core configuration (.config), a ReFrame configuration (.py, .yaml, .json), Spack's packages.yaml, "
    "slurm.conf or gres.conf"
)
_LOOKS_NEXTFLOW = re.compile(
    r"^[ \t]*(process|params|executor|singularity|apptainer|profiles)\s*(\{|\.\w+\s*=)", re.MULTILINE
)
_YAML = (".yaml", ".yml", ".json")


class _File(NamedTuple):
    """A file with its format.

    Attributes:
        name: its name for messages.
        format: the words for its format.
        text: its content.
        content: its value if the format has one.
    """

    name: str
    format: str
    text: str
    content: LocatedValue | None = None


def draft(paths: Sequence[Path], name: str | None = None, system: str | None = None) -> Draft:
    """Return the draft of a profile from files, which all describe one site.

    Args:
        name: the name of the profile. None: the cluster's name in slurm.conf, or the name of the first file.
        system: a system of a ReFrame configuration, or a profile of an nf-core configuration.

    Raises:
        UsageError: a file cannot be read, or has none of the known formats.
    """
    if name is not None and name != _site_name(name):
        raise UsageError(
            f"--name {printable(name[:60])} is not a name of a profile", f"write --name {_site_name(name)}"
        )
    found = [_read(path, [each.name for each in paths]) for path in paths]
    result = Draft()
    first = FileLine(found[0].name)
    result.set(("format",), 1, first)
    selectable = [each for each in found if each.format in (_NEXTFLOW, _REFRAME)]
    if system is not None and not selectable:
        raise UsageError("--system selects a part of a ReFrame or nf-core configuration, and none is given")
    cluster = None
    slurm = {each.name: each.text for each in found if each.format == _SLURM}
    if slurm:
        configuration = slurm_conf.SlurmConf(result, slurm)
        configuration.facts()
        cluster = configuration.cluster()
    lines = [nextflow.load(result, each.text, each.name, system) for each in found if each.format == _NEXTFLOW]
    nextflow.add_default_partition(result, lines)
    for each in found:
        if each.format == _REFRAME and each.content is not None:
            reframe.load(result, each.content, each.name, system)
        elif each.format == _SPACK and each.content is not None:
            spack.load(result, each.content, each.name)
    result.set(("name",), name or _site_name(cluster or system or paths[0].stem), first)
    where = ", ".join(f"{each.name} ({each.format})" for each in found)
    result.set(("source",), {"kind": "document", "where": where}, first)
    result.finish()
    return result


def systems(path: Path) -> list[str]:
    """Return the names that ``system`` can have for a file: those of its systems or profiles."""
    found = _read(path, [path.name])
    if found.format == _REFRAME and found.content is not None:
        return reframe.systems(found.content)
    return nextflow.systems(found.text, found.name) if found.format == _NEXTFLOW else []


def _read(path: Path, names: Sequence[str]) -> _File:
    # Two files of one name are told apart by their paths.
    name = printable(path.name if names.count(path.name) == 1 else str(path))
    text = files.read_text(str(path), f"give {FORMATS}", _MAX_BYTES)
    if "\0" in text:
        raise UsageError(f"{path} is not a text file", f"give {FORMATS}")
    return next(_formats(path, name, text))


def _formats(path: Path, name: str, text: str) -> Iterator[_File]:
    """Yield the file with each format that it can have, the likeliest first."""
    if path.suffix == ".py":
        content = python_literals.read(text, name, "site_configuration")
        if content is None or not isinstance(content.value, dict):
            raise UsageError(f"{name} does not bind a mapping to `site_configuration` as ReFrame's settings do")
        yield _File(name, _REFRAME, text, content)
    if path.suffix in _YAML:
        content = from_document(Document(path, "a configuration"))
        if spack.is_configuration(content):
            yield _File(name, _SPACK, text, content)
        held = content.get("site_configuration") or content
        if held.get("systems"):
            yield _File(name, _REFRAME, text, held)
    elif path.suffix == ".config" or (path.suffix != ".conf" and _LOOKS_NEXTFLOW.search(text)):
        yield _File(name, _NEXTFLOW, text)
    elif slurm_conf.is_slurm_conf(text) or slurm_conf.is_gres_conf(text):
        yield _File(name, _SLURM, text)
    raise UsageError(f"{name} has none of the formats that can be imported", f"give {FORMATS}")


def _site_name(text: str) -> str:
    """Return a text as the name of a profile."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "site"
