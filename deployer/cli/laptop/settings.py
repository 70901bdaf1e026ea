"""Options that several commands share, the user's settings in commands, and ``deployer config`` to show them."""

import argparse
from typing import Any

from deployer.cli.site import common
from deployer.connected.ground import user_settings
from deployer.contract.elf.machines import SUPPORTED
from deployer.system import terminal

#: The help of an argument for a site.
SITE = "a profile's name or path, or ssh:HOST for what that site publishes (default: that of the settings)"
#: Build options that have a setting with the same name.
_OF_BUILD = ("ca_bundle", "pip_conf", "apt_sources")


def add_parsers(subparsers: Any) -> None:
    """Register ``config``."""
    command = common.add_command(subparsers, "config", _config)
    settings = ", ".join(f"{name} ({variable})" for name, variable in user_settings.VARIABLES.items())
    command.epilog = f"Settings and their variables: {settings}. An option overrides a variable, a variable overrides "
    command.epilog += "the file. Paths in the file are relative to its folder."


def add_architecture(command: argparse.ArgumentParser, verb: str) -> None:
    """Add the option that chooses the processors."""
    text = f"{verb} for this processor, {' or '.join(SUPPORTED)}; may be repeated (default: of the nodes "
    text += "of --site, else those of the definition, else an archive's or image's own, and x86_64 for Debian)"
    common.repeated(command, "--architecture", "MACHINE", text, choices=SUPPORTED)


def fill(args: argparse.Namespace, site: bool = True, how: str = "--site SITE") -> None:
    """Apply the settings to a command's options that the user left out.

    Args:
        site: the command needs a site.
        how: how to specify a site for the command.
    """
    if site:
        args.site = user_settings.site(args.site, how)
    args.ssh_config = user_settings.path("ssh_config", args.ssh_config)


def site_for_hint(site: str | None = None) -> str:
    """Return the site for a suggested command: the user's, the one in the settings, or the word SITE."""
    return site or user_settings.in_effect()["site"].value or "SITE"


def build_files(args: argparse.Namespace | None = None) -> dict[str, Any]:
    """Return the files with settings of a build: of the options, else of the user's settings."""
    return {name: user_settings.path(name, getattr(args, name, None)) for name in _OF_BUILD}


def _config(args: argparse.Namespace) -> None:
    path, in_effect = user_settings.config_file(), user_settings.in_effect()
    record = {name: {"value": setting.value, "from": setting.origin or None} for name, setting in in_effect.items()}
    if common.as_json(args, {"file": str(path), "settings": record}):
        return
    terminal.show(f"settings file: {path}{'' if path.exists() else ' (there is none)'}")
    rows = [[name, setting.value or "-", setting.origin or "not set"] for name, setting in in_effect.items()]
    terminal.show(*common.table(("SETTING", "VALUE", "FROM"), rows))
