"""Options of container runtimes as users write them (``--bind /data``), read as facts."""

import shlex

from deployer.connected.ground.yaml_model import KeyPath
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.connected.site_profile.importers.values import is_known

_BINDS = ("-B", "--bind", "-v", "--volume", "-b")
#: What deployer does by itself for each start: nothing has to be said about it.
_ALWAYS = frozenset(
    {"--nv", "--rocm", "--cleanenv", "-e", "--contain", "-c", "--containall", "-C", "--no-home", "-p", "--pid"}
)
#: Options with a value, beside binds.
_VALUED = ("--scratch", "-S", "--home", "-H", "--workdir", "-W", "--no-mount", "--env", "--overlay", "--gpus", "-u")
#: Options that a profile can have as arguments of these runtimes.
_ARGUMENTS = ("--no-mount", "--scratch", "--writable-tmpfs")
_WITH_ARGUMENTS = ("apptainer", "singularity")
#: Variables that a job has, and the login shell has not.
_OF_JOBS = ("TMPDIR", "SNIC_TMP", "SLURM_", "PBS_", "LSB_", "JOB_ID", "PWD", "LOCAL_SCRATCH")


def read(draft: Draft, text: str, origin: FileLine, partition: str | None = None, runtime: str | None = None) -> None:
    """Write what the options of a runtime say to the draft.

    Args:
        partition: the partition that they are about; None: all.
        runtime: the runtime's name; None: the options are not those of all its containers.
    """
    place: KeyPath = ("partitions", partition, "mounts") if partition else ("mounts",)
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    at = 0
    while at < len(words):
        option, sign, value = words[at].partition("=")
        at += 1
        if option in (*_BINDS, *_VALUED) and not sign and at < len(words):
            value, at = words[at], at + 1
        elif option[:2] in _BINDS and len(option) > 2 and not option.startswith("--"):
            option, value = option[:2], option[2:]
        if option in _BINDS:
            for bind in _split(value):
                _bind(draft, bind, place, origin)
        elif runtime in _WITH_ARGUMENTS and option in _ARGUMENTS and is_known(value) and "$" not in value:
            draft.add(("runtimes", runtime, "arguments"), [f"{option}={value}" if value else option], origin)
        elif option not in _ALWAYS:
            draft.note("an option of the container runtime", f"{option} {value}".strip(), origin)


def _split(value: str) -> list[str]:
    return [each for each in value.split(",") if each and each not in ("ro", "rw")]


def _bind(draft: Draft, bind: str, place: KeyPath, origin: FileLine) -> None:
    source, _, target = bind.rstrip("/").partition(":")
    source, target = source.rstrip("/"), target.partition(":")[0].rstrip("/")
    if not is_known(bind):
        draft.note("a mount that is computed", bind, origin)
    elif any(f"${name}" in source for name in _OF_JOBS):
        draft.note("a mount of a folder of the job", bind, origin)
    elif target and target != source and target not in ("ro", "rw"):
        draft.note("a mount on another path", bind, origin)
    else:
        draft.add(place, [source or "/"], origin)
