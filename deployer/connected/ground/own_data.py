"""YAML data files of the package, beside the modules that read them."""

from pathlib import Path
from typing import Any

import yaml

#: libyaml's loader takes a tenth of the time, which delays the start of commands. PyYAML may be built without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(path: Path) -> Any:
    """Return the content of a data file."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506  # both are safe loaders
