"""The command ``deployer`` as another machine would run it: its builds see another clock and another time zone.

libfaketime is loaded into mmdebstrap, into all that it starts, and into each RUN step of a Dockerfile. It changes what
programs read, not what the kernel writes: files of two builds have different times anyway.
"""

import os
import sys
from collections.abc import Collection
from typing import Any

from deployer.cli.laptop.main import main
from deployer.connected.image.bases import base
from deployer.connected.image.builders import rewritten
from deployer.connected.image.definition.settings import FOLDER, BuildSettings
from deployer.system import process

LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
#: A file name below the folder of build settings.
NAME = "libfaketime.so.1"
#: 30 hours: another day, and within the time for which Debian's indexes are valid.
CLOCK = {
    "FAKETIME": "+30h",
    "FAKETIME_DISABLE_SHM": "1",
    "NO_FAKE_STAT": "1",
    "DONT_FAKE_MONOTONIC": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}
ZONE = {"TZ": "XYZ-5:45"}  # in POSIX's form, which needs no time zone database


def _patch() -> None:
    contents, environment, command = BuildSettings.contents, BuildSettings.environment, base.command
    clean, options = process.base_environment, rewritten.mount_options

    def with_library(self: BuildSettings, *folder: str) -> dict[str, bytes]:
        with open(LIBRARY, "rb") as stream:
            return {**contents(self, *folder), NAME: stream.read()}

    def with_clock(self: BuildSettings, *folder: str) -> dict[str, str]:
        return {**environment(self, *folder), **CLOCK, **ZONE}

    def with_preload(names: Collection[str]) -> str:
        # A secret cannot be executed, a cache can; /mnt is there already, so no new folder stays in the image.
        load = f"cp {FOLDER}/{NAME} /mnt/ && export LD_PRELOAD=/mnt/{NAME} &&"
        return f"{options(names)} --mount=type=cache,id=clock,sharing=private,target=/mnt {load}"

    def with_hooks(*arguments: Any) -> list[str]:
        argv = command(*arguments)
        hooks = [
            f'--setup-hook=install -D {LIBRARY} "$1"{LIBRARY}',
            f'--customize-hook=rm -r "$1"{os.path.dirname(LIBRARY)}',
        ]
        return [argv[0], *hooks, *argv[1:]]

    def shifted(*names: str) -> dict[str, str]:
        return {**clean(*names), **CLOCK, **ZONE, "LD_PRELOAD": LIBRARY}

    for owner, name, changed in (
        (BuildSettings, "contents", with_library),
        (BuildSettings, "environment", with_clock),
        (rewritten, "mount_options", with_preload),
        (base, "command", with_hooks),
        (base, "process", _Process(shifted)),
    ):
        setattr(owner, name, changed)


class _Process:
    """The module ``process`` with another environment for mmdebstrap."""

    def __init__(self, environment: Any) -> None:
        self.base_environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(process, name)


if __name__ == "__main__":
    _patch()
    sys.exit(main(sys.argv[1:]))
