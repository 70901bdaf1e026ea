"""Charliecloud's ch-run, from the site or the bundle's kit, on an unpacked image.

Versions 0.31, 0.38 and 0.45.2 accept the same options, but 0.45.2 ignores the environment options for a process that
joins a container.

ch-run passes the host's whole environment, and does not apply the image's ENV and WORKDIR: this module corrects that.
"""

import os
from typing import List, Optional

from deployer.contract.base.shell import Text, Value
from deployer.contract.site import plan as plans
from deployer.site.container.runtimes import starter
from deployer.site.container.runtimes.interface import Container, Here, Runtime, globs
from deployer.system import files

#: Called with the folder and ch-run's words. Signals reach the payload, as they do outside the process that mounts.
#: ``bare`` is set if the holder found that ch-run ignores the environment options when it joins. The options are then
#: passed to the image's ``env``, which must exist. No variable of the container is set outside, where PATH or
#: LD_PRELOAD would apply to ch-run. USER is kept, as with other runtimes. The host's LD_PRELOAD is removed, because
#: ``env`` would report its libraries as missing. -p: no BASH_ENV, no functions from the host.
_JOIN = starter.program("charliecloud.sh")
OBEYED, BARE = "obeyed", "bare"


class Charliecloud(Runtime):
    """The container is read-only; binds are writable; /tmp, /dev, /proc and /sys are the host's."""

    def options(self, container: Container) -> List[Text]:
        return [
            self.starter(container.engine),
            "--unset-env=" + all_but(container.passed),
            # Without this option, a "$" at the start of a value or after a colon would refer to a host variable. It
            # applies only to the options after it.
            "--env-no-expand",
            *("--set-env=" + assignment(name, value) for name, value in sorted(container.environment.items())),
            *self.binds(container.binds),
            "--cd=" + container.workdir,
            *container.arguments,
        ]

    def mount(self, container: Container, image: Value) -> List[Text]:
        # ch-run's own process serves the mount while the process that it started lives.
        return [*self.options(container), image, "--"]

    def into_mounted(self, container: Container, folder: Value) -> List[Text]:
        return ["bash", "-p", "-c", _JOIN, folder, *self.options(container._replace(binds=[]))]

    def join_options(self, ranks: int, tag: Value) -> List[Text]:
        # ch-run's default tag is only the step's number, so two jobs on a node would join each other.
        return ["--join-ct=%d" % ranks, "--join-tag=" + tag]


class CarriedCharliecloud(Charliecloud):
    """The kit's ch-run, with its own loader and libraries beside it (``deployer.connected.bundle.kit``)."""

    def starter(self, engine: Value) -> Value:
        return engine + "/" + plans.CHARLIECLOUD_FOLDER + "/" + plans.CHARLIECLOUD_START

    def veto(self, here: Here) -> Optional[str]:
        if not files.is_file(os.path.join(here.engine, plans.CHARLIECLOUD_FOLDER, plans.CHARLIECLOUD_START)):
            return "the bundle was packed without Charliecloud's kit"
        return None


def ask_joined(program: str, pid: str, image: str) -> List[str]:
    """Return the argv that prints ``OBEYED`` if ch-run applies the environment options when it joins."""
    words = [program, "--join-pid=" + pid, "--set-env=DEPLOYER_ASKS=" + OBEYED, image]
    return [*words, "--", "/bin/sh", "-c", 'echo "$DEPLOYER_ASKS"']


def all_but(names: List[str]) -> str:
    """Return the glob (fnmatch with FNM_EXTMATCH) for all variables that match none of ``names``."""
    return "!({})".format("|".join(globs(names))) if names else "*"


def assignment(name: str, value: Value) -> Value:
    """Return NAME=VALUE for ch-run, which removes one pair of single quotes around a value."""
    if isinstance(value, str) and len(value) >= 2 and value[0] == value[-1] == "'":
        value = f"'{value}'"
    return name + "=" + value
