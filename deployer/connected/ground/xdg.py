"""Folders of the connected side for caches, records and settings, by the XDG base directory specification."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder of one cache. It is safe to delete: its content is made again if needed."""
    top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(top) / "deployer" / name


def state_folder(name: str) -> Path:
    """Return the folder of one kind of record: logs, build records."""
    top = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(top) / "deployer" / name


def config_folder(name: str) -> Path:
    """Return the folder of one kind of settings, which only people write."""
    top = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(top) / "deployer" / name
