"""One draft of a profile from the files of a Slurm cluster."""

import re
from collections.abc import Sequence
from pathlib import Path

from deployer.connected.site_profile.importers import slurm_conf
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import printable
from deployer.system import files

#: The size limit in bytes. The largest real file found has 120 kB.
_MAX_BYTES = 1024 * 1024
_HINT = "give slurm.conf, gres.conf, or a file that slurm.conf includes"


def draft(paths: Sequence[Path], name: str | None = None) -> Draft:
    """Return the draft of a profile from files that describe one cluster.

    Args:
        name: the profile's name. None: the cluster's name in slurm.conf, or the first file's name.

    Raises:
        UsageError: a file cannot be read, or is not a Slurm file.
    """
    if name is not None and name != _site_name(name):
        hint = f"write --name {_site_name(name)}"
        raise UsageError(f"--name {printable(name[:60])} is not a name of a profile", hint)
    texts = dict(_read(path, [each.name for each in paths]) for path in paths)
    result = Draft()
    first = FileLine(next(iter(texts)))
    result.set(("format",), 1, first)
    configuration = slurm_conf.SlurmConf(result, texts)
    configuration.facts()
    result.set(("name",), name or _site_name(configuration.cluster() or paths[0].stem), first)
    result.set(("source",), {"kind": "document", "where": ", ".join(texts)}, first)
    result.finish()
    return result


def _read(path: Path, names: Sequence[str]) -> tuple[str, str]:
    """Return the name of a file for messages, and its text."""
    # Two files with the same name are distinguished by path.
    name = printable(path.name if names.count(path.name) == 1 else str(path))
    text = files.read_text(str(path), _HINT, _MAX_BYTES)
    if "\0" in text:
        raise UsageError(f"{path} is not a text file", _HINT)
    if not slurm_conf.is_configuration(text):
        raise UsageError(f"{name} is not a configuration file of Slurm", _HINT)
    return name, text


def _site_name(text: str) -> str:
    """Convert a text to a valid profile name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "site"
