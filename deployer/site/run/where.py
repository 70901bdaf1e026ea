"""where: an installed image and its plan in other programs' own words, for workflow managers and sites that start it.

Sources: CSCS documentation 0bb69f37, "EDF Reference"; sarus-suite/raster 20f75bd3, common.rs and edf.json; NVIDIA/pyxis
0619349c, args.c.
"""

import re
from typing import Dict, List, NamedTuple, Optional, Sequence

from deployer.contract.base import shell
from deployer.contract.base.errors import UsageError
from deployer.site.container.runtimes.charliecloud import assignment
from deployer.site.install import squash
from deployer.site.run import exec as execs
from deployer.site.storage.store import Store

#: Formats of programs that deployer does not start. They start the SquashFS file.
EDF, PYXIS = "edf", "pyxis"
_EXPANDED = re.compile('[$"`;\\\\\\x00-\\x1f\\x7f]')
#: The option of each runtime that sets a variable in the container.
_SETS = {"apptainer": "--env=", "singularity": "--env=", "charliecloud": "--set-env=", "podman": "--env="}
#: They read a word with two = as a line of CSV, and otherwise remove quotes at its ends (pflag's stringToString).
_OF_APPTAINER = ("apptainer", "singularity")


class ImagePlace(NamedTuple):
    """Where an image is.

    Attributes:
        image: the folder with its root filesystem, or a file with it.
        options: the runtime's words for binds and variables; pyxis: all words of srun; EDF: the lines of the file.
        binds: host paths, by path in the container.
        environment: the variables to set, without those of a private home.
    """

    image: str
    options: List[str]
    binds: Dict[str, str]
    environment: Dict[str, str]


def find(
    store: Store, request: execs.ExecRequest, form: Optional[str] = None, made: Optional[str] = None
) -> ImagePlace:
    """Return the words that give a container the same binds and variables as ``exec``.

    Args:
        form: EDF, PYXIS or a runtime; None: the plan's runtime.
        made: write the image to this SIF file, and return it as the image.

    Raises:
        UsageError, Refused, MissingTool: as in ``exec``; or a value cannot be expressed in this format.
    """
    other = form in (EDF, PYXIS)
    runtime, settings, _ = execs.prepare(store, request._replace(runtime=None if other else form), "where")
    name = str(form) if other else runtime.known.policy_name
    if made and name not in _OF_APPTAINER:
        raise UsageError(f"{name} starts no SIF file", "use --format apptainer, if the site's policy allows it")
    fixed = {variable: value for variable, value in settings.environment.items() if not shell.variables([value])}
    environment = {variable: shell.plain(fixed[variable]) for variable in sorted(fixed)}
    there = {shell.plain(each.target): shell.plain(each.source) for each in settings.binds}
    installed, image = store.find(request.image), shell.plain(settings.rootfs)
    if other or made:
        image = squash.existing(installed)
    place = ImagePlace(made or image, [], there, environment)
    if other:
        workdir = "/" if shell.variables([settings.workdir]) else shell.plain(settings.workdir)
        return place._replace(options=(_edf if form == EDF else _pyxis)(place, workdir, settings.devices))
    if name not in _SETS:
        raise UsageError(f"`where` has no words for {name}", "use --format {}; or `exec`".format(", ".join(_SETS)))
    words = [shell.plain(word) for word in runtime.binds(settings.binds)]
    words += [_setting(name, *pair) for pair in environment.items()]
    if made:
        squash.write_sif(installed, made)
    return place._replace(options=[*words, *settings.arguments])


def _edf(place: ImagePlace, workdir: str, devices: Sequence[str]) -> List[str]:
    """Return the lines of an Environment Definition File, for CSCS's Container Engine and the Sarus Suite."""
    empty = next((name for name, value in place.environment.items() if not value), None)
    if empty:
        raise UsageError(f"the variable {empty} is empty, which an EDF cannot express", "set it with --env")
    heads = [f"image = {_toml(place.image)}", f"workdir = {_toml(workdir)}", "entrypoint = false", "writable = false"]
    heads += [
        f"{key} = [{', '.join(map(_toml, texts))}]"
        for key, texts in (("devices", devices), ("mounts", _mounts(place, ":")))
    ]
    variables = [f"{name} = {_toml(value)}" for name, value in place.environment.items()]
    # CSCS's own hook would bind other network libraries.
    return [*heads, "[env]", *variables, "[annotations]", 'com.hooks.cxi.enabled = "false"']


def _toml(text: str) -> str:
    """Return a text as a TOML string. Engines expand texts, each by other rules, so what they change is refused."""
    if _EXPANDED.search(text):
        raise UsageError(f"an EDF cannot express {text!r}: the engine would change it", "start programs with `exec`")
    return f'"{text}"'


def _pyxis(place: ImagePlace, workdir: str, devices: Sequence[str]) -> List[str]:
    """Return the words of srun, up to the command."""
    if devices:
        raise UsageError(f"pyxis has no word for the device {devices[0]}", "start programs with `run` or `exec`")
    mounts = ",".join(_mounts(place, ":,"))
    words = [f"--container-image={place.image}", *([f"--container-mounts={mounts}"] if mounts else [])]
    words += [f"--container-workdir={workdir}", "--no-container-mount-home", "--no-container-entrypoint"]
    # In the container, by env: variables of srun itself would change srun.
    return [*words, "--container-readonly", "env", *(f"{name}={value}" for name, value in place.environment.items())]


def _mounts(place: ImagePlace, separators: str) -> List[str]:
    for path in (*place.binds, *place.binds.values(), place.image):
        if any(mark in path for mark in separators + " \t\n"):
            raise UsageError(f"{path!r} cannot be mounted: its name has a separator of this format", "rename it")
    return [f"{source}:{target}" for target, source in place.binds.items()]


def _setting(runtime: str, name: str, value: str) -> str:
    word, several = f"{name}={value}", "=" in value
    if "\n" in word or (runtime in _OF_APPTAINER and value.endswith('"') and not several):
        raise UsageError(f"the variable {name} has a value that no option can have", "start programs with `exec`")
    if runtime == "charliecloud":
        word = shell.plain(assignment(name, value))
    elif runtime in _OF_APPTAINER and several:
        word = '"{}"'.format(word.replace('"', '""'))
    return _SETS[runtime] + word
