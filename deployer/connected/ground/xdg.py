"""Folders for caches, records and settings of the connected side, by the XDG base directory specification."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder of one cache. Deleting it is safe, because its content is recreated if needed."""
    top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(top) / "deployer" / name


def state_folder(name: str) -> Path:
    """Return the folder of one kind of record, such as logs or build records."""
    top = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(top) / "deployer" / name


def config_folder(name: str) -> Path:
    """Return the folder of one kind of settings, which only people write."""
    top = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(top) / "deployer" / name
