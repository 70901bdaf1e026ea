"""where: an installed image and its plan in a container runtime's own words, for workflow managers that start it."""

from typing import Dict, List, NamedTuple

from deployer.contract.base import shell
from deployer.contract.base.errors import UsageError
from deployer.contract.base.json_records import Record
from deployer.site.container.runtimes.charliecloud import assignment
from deployer.site.run import exec as execs
from deployer.site.storage.store import Store

#: The option of each runtime that sets a variable in the container.
_SETS = {"apptainer": "--env=", "singularity": "--env=", "charliecloud": "--set-env=", "podman": "--env="}
#: They read a word with two = as a line of CSV, and otherwise remove quotes at its ends (pflag's stringToString).
_OF_APPTAINER = ("apptainer", "singularity")


class ImagePlace(NamedTuple):
    """Where an image is.

    Attributes:
        image: the folder with its root filesystem.
        options: the runtime's words for binds and variables.
        binds: host paths, by path in the container.
        environment: the variables to set, without those of a private home.
    """

    image: str
    options: List[str]
    binds: Dict[str, str]
    environment: Dict[str, str]

    def record(self) -> Record:
        return dict(self._asdict())


def find(store: Store, request: execs.ExecRequest) -> ImagePlace:
    """Return the words that give a container the same binds and variables as ``exec``; ``runtime`` is the format.

    Raises:
        UsageError, Refused, MissingTool: as in ``exec``; or a value cannot be a word of this runtime.
    """
    runtime, settings, _ = execs.prepare(store, request, "where")
    name = runtime.known.policy_name
    if name not in _SETS:
        raise UsageError(f"`where` has no words for {name}", "use --format {}; or `exec`".format(", ".join(_SETS)))
    binds = [shell.plain(word) for word in runtime.binds(settings.binds)]
    fixed = {variable: value for variable, value in settings.environment.items() if not shell.variables([value])}
    environment = {variable: shell.plain(value) for variable, value in fixed.items()}
    words = [*binds, *(_setting(name, *pair) for pair in sorted(environment.items()))]
    there = {shell.plain(each.target): shell.plain(each.source) for each in settings.binds}
    return ImagePlace(shell.plain(settings.rootfs), [*words, *settings.arguments], there, environment)


def _setting(runtime: str, name: str, value: str) -> str:
    word, several = f"{name}={value}", "=" in value
    if "\n" in word or (runtime in _OF_APPTAINER and value.endswith('"') and not several):
        raise UsageError(f"the variable {name} has a value that no option can have", "start programs with `exec`")
    if runtime == "charliecloud":
        word = shell.plain(assignment(name, value))
    elif runtime in _OF_APPTAINER and several:
        word = '"{}"'.format(word.replace('"', '""'))
    return _SETS[runtime] + word
