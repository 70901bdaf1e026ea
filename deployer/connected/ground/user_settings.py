"""The user's settings: ``~/.config/deployer/config.yaml`` and environment variables.

An option of a command overrides a variable, and a variable overrides the file.
"""

import os
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo

from deployer.connected.ground import xdg
from deployer.connected.ground.yaml_model import Document, Model, checked
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import fault
from deployer.system import files


def _file(path: str, info: ValidationInfo) -> str:
    """Require an existing file. A path is relative to the settings folder; ``~`` is the home folder."""
    if isinstance(info.context, Path):
        path = str(info.context / _expanded(path))
        if not files.is_file(path):
            raise ValueError(f"file not found: {path}")
    return path


def _expanded(path: str) -> Path:
    """Return a path with its ``~`` expanded. Raises ValueError if that refers to no user of this machine."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: this machine has no home folder {Path(path).parts[0]}") from error


_File = Annotated[str, AfterValidator(_file)]


class UserSettings(Model):
    """The settings of ``config.yaml``. Each may be left out.

    Attributes:
        site: the site of commands that are not given one
        ssh_config: the ssh configuration, instead of ~/.ssh/config
        key: the key with which ``deploy`` signs bundles, for ``sign`` as well
        ca_bundle: CA certificates for downloads of a build
        pip_conf: pip's settings for a build, instead of this host's
        apt_sources: deb lines of a Debian mirror, for the base and the build
    """

    site: str | None = Field(default=None, min_length=1)
    ssh_config: _File | None = None
    key: _File | None = None
    ca_bundle: _File | None = None
    pip_conf: _File | None = None
    apt_sources: _File | None = None


#: The variable for each setting.
VARIABLES = {name: f"DEPLOYER_{name.upper()}" for name in UserSettings.model_fields}


class UserSetting(NamedTuple):
    """A setting that is in effect.

    Attributes:
        value: its value; None: not set.
        origin: the variable, or FILE:LINE.
    """

    value: str | None
    origin: str


def config_file() -> Path:
    """Return the path of the settings file."""
    return xdg.config_folder("config.yaml")


def in_effect() -> dict[str, UserSetting]:
    """Return all settings by name.

    Raises:
        UsageError: the file has an unknown key, or the file or a variable has a wrong value.
    """
    path = config_file()
    settings = {name: UserSetting(value=None, origin="") for name in VARIABLES}
    if files.exists(str(path)):
        document = Document(path, "deployer's settings")
        read = checked(UserSettings, document.mapping() if document.value() is not None else {}, document, path)
        for name, value in read.model_dump(exclude_none=True).items():
            where, line = document.at((name,))
            settings[name] = UserSetting(value, f"{where}:{line}")
    for name, variable in VARIABLES.items():
        if value := os.environ.get(variable):
            settings[name] = UserSetting(_of_variable(name, variable, value), variable)
    return settings


def _of_variable(name: str, variable: str, value: str) -> str:
    problem = fault(value)
    if problem:
        raise UsageError(f"{variable}: {problem}")
    if name == "site":
        return value
    hint = f"correct it, or: unset {variable}"
    try:
        path = _expanded(value)
    except ValueError as error:
        raise UsageError(f"{variable}: {error}", hint) from error
    if not (path.is_file() or (name == "ca_bundle" and path.is_fifo())):  # certificates may come from a pipe
        raise UsageError(f"{variable}: file not found: {path}", hint)
    return str(path)


def setting(name: str) -> str | None:
    """Return the value of one setting; None: not set. Raises UsageError as ``in_effect`` does."""
    return in_effect()[name].value


def path(name: str, given: Path | None) -> Path | None:
    """Return the path given as an option, otherwise the path in a setting."""
    value = None if given else setting(name)
    return given or (Path(value) if value else None)


def site(given: str | None, how: str = "--site SITE") -> str:
    """Return the site given by the user, otherwise the one in the settings.

    Args:
        how: how to specify a site for the command, for the error message.

    Raises:
        UsageError: neither exists.
    """
    chosen = given or setting("site")
    if not chosen:
        hint = f"give it with {how}, or set `site:` in {config_file()}; sites: deployer profile list"
        raise UsageError("no site is given, and the settings have none", hint)
    return chosen
