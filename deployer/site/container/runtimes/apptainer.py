"""Apptainer and Singularity: ``exec`` of an unpacked image or a SquashFS file, with exactly the container's binds.

One command works with all versions since SingularityCE 3.8 and Apptainer 1.0, because an option that older versions
lack is given as a variable, which they ignore. Differences (from the sources of each version):

    =================================  ==============================  =====================================
    feature                            Apptainer                       SingularityCE, Singularity 3
    =================================  ==============================  =====================================
    variables of the container         APPTAINERENV_, SINGULARITYENV_  SINGULARITYENV_
    values are shell text              before 1.1; since: --no-eval    before 3.10; since: --no-eval
    --no-mount=bind-paths              1.2                             3.11; before: a warning
    --mount (paths with : or ,)        1.0                             3.9
    --no-nv, --no-rocm                 1.0                             3.8
    --no-oci                           no such mode                    4.0
    SquashFS compressed with zstd      1.4                             no version, up to 4.5.1
    =================================  ==============================  =====================================

The runtime reads ``APPTAINER_*`` and ``SINGULARITY_*`` as options, passes ``APPTAINERENV_*`` and
``SINGULARITYENV_*`` into the container, and passes TERM and the proxies regardless of its options. All these are unset
before it starts, so only the variables that the plan lists reach the container. The administrator's settings ``bind
path``, ``mount home``, ``mount hostfs``, ``always use nv`` and ``oci mode`` are switched off. The runtime prints only
errors (--silent): a warning, such as older versions' about bind-paths, would appear in the output of each rank and of
the canary. The container also has the runtime's own variables (``APPTAINER_NAME``, ``PS1``, ``LANG=C``), and
/.singularity.d/libs at the end of LD_LIBRARY_PATH. /etc/resolv.conf, and the user's lines in /etc/passwd and
/etc/group, are the host's.
"""

from typing import List, Sequence

from deployer.contract.base import shell
from deployer.contract.base.shell import Text, Value
from deployer.contract.base.text import is_name
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Mount, Runtime

#: Called with the program, the words of ``starter``, the program's options, the image, "--", and the command. Options
#: in the user's environment are removed.
_START = starter.program("apptainer.sh")
#: Host mounts from the administrator's configuration. /dev, /proc and /sys stay; deployer binds /tmp itself.
_NOT_MOUNTED = "home,cwd,tmp,hostfs,bind-paths"
_TMP = "/tmp"  # noqa: S108  the host's, as with the other runtimes
#: Names that have another meaning for the runtime, or that its shell cannot set.
_IMPOSSIBLE = ("HOME", "PREPEND_PATH", "APPEND_PATH", "UID", "EUID", "GID", "PPID")


class Apptainer(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's."""

    makes_targets = True
    overlays = True

    def options(self, container: Container) -> List[Text]:
        own = container.environment
        settable = {name: own[name] for name in own if is_name(name) and name not in _IMPOSSIBLE}
        return [
            *starter.words(_START, self.program, container, settable),
            "--cleanenv",
            "--no-home",
            "--no-mount=" + _NOT_MOUNTED,
            # The only way to set HOME. Nothing is mounted there.
            *(["--home=" + own["HOME"]] if "HOME" in own else []),
            f"--bind={_TMP}:{_TMP}",
            *self.binds(container.binds),
            "--pwd=" + container.workdir,
            *container.arguments,
        ]

    def binds(self, binds: Sequence[Mount]) -> List[Text]:
        return [_bind(bind) for bind in binds]

    def starting_in(self, folder: str) -> List[Text]:
        return ["--pwd=" + folder]


def _bind(bind: Mount) -> Text:
    """Return the word for a bind. A path with a separator needs --mount, whose value is a line of CSV."""
    if not any(mark in shell.data(path) for path in (bind.source, bind.target) for mark in ":,\\"):
        return "--bind=" + bind.source + ":" + bind.target
    fields: List[Value] = ["source=" + bind.source, "destination=" + bind.target]
    quoted = ['"' + shell.changed(field, lambda text: text.replace('"', '""')) + '"' for field in fields]
    return "--mount=" + shell.joined(["type=bind", *quoted], ",")
