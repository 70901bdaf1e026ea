"""The settings that a bundle keeps from an image's configuration. They are untrusted text, which no shell runs."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import fault, is_name, printable

_Kind = TypeVar("_Kind")
_HINT = "make the image again with docker build; docker image inspect shows its configuration"


class ImageConfig(NamedTuple):
    """The settings that a bundle keeps.

    Attributes:
        env: the environment, as ``NAME=VALUE``.
        workdir: the working folder, empty if none is set.
        entrypoint: the words of the entrypoint.
        cmd: the words of the default command.
        labels: the labels.
        dropped: environment names that are invalid shell variables (``my.name``) or have no value.
    """

    env: list[str]
    workdir: str
    entrypoint: list[str]
    cmd: list[str]
    labels: dict[str, str]
    dropped: list[str]

    def kept(self) -> dict[str, Any]:
        """Return the settings with their names in OCI, for the configuration of the bundle's image."""
        whole = {
            "Env": self.env, "WorkingDir": self.workdir, "Entrypoint": self.entrypoint, "Cmd": self.cmd,
            "Labels": self.labels,
        }  # fmt: skip
        return {key: value for key, value in whole.items() if value}


def checked(config: Mapping[str, Any]) -> ImageConfig:
    """Return the settings of an image's configuration.

    Words of commands and values of variables may contain several lines.

    Raises:
        UsageError: a value could be packed but never run, because of a wrong type, a NUL or control characters.
    """
    labels = _typed("Labels", config.get("Labels") or {}, dict, "names and texts")
    entries = _words(config, "Env")
    env = [entry for entry in entries if "=" in entry and is_name(entry.partition("=")[0])]
    return ImageConfig(
        env,
        _text("WorkingDir", config.get("WorkingDir") or ""),
        _words(config, "Entrypoint"),
        _words(config, "Cmd"),
        {_text("Labels", key): _text("Labels", value, lines=True) for key, value in labels.items()},
        [printable(entry.partition("=")[0]) for entry in entries if entry not in env],
    )


def _words(config: Mapping[str, Any], name: str) -> list[str]:
    return [_text(name, word, lines=True) for word in _typed(name, config.get(name) or [], list, "a list of texts")]


def _text(name: str, value: Any, lines: bool = False) -> str:
    text = _typed(name, value, str, "text")
    problem = fault(text, lines)
    if problem:
        raise UsageError(f"the image's configuration cannot be packed: {name}: {problem}", _HINT)
    return text


def _typed(name: str, value: Any, kind: type[_Kind], words: str) -> _Kind:
    if not isinstance(value, kind):
        shown = printable(repr(value))[:60]
        raise UsageError(f"the image's configuration cannot be packed: {name} must be {words}, not {shown}", _HINT)
    return value
