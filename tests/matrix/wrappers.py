"""How a job starts a program: itself, or behind what people put before it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from deployer.contract.plan import APP

DIRECT = "direct"
#: Where an image has a script of its own.
IMAGE_SCRIPT = "/usr/local/bin/start"


class Started(NamedTuple):
    """A job's command, and the scripts that it needs: of the bundle's app folder by name, and one of the image."""

    command: list[str]
    app: Mapping[str, str] = {}
    image: str = ""


def _words(text: str) -> Callable[[Sequence[str]], Started]:
    return lambda argv: Started([*shlex.split(text), *argv])


def _shell(text: str) -> Callable[[Sequence[str]], Started]:
    return lambda argv: Started([*shlex.split(text), shlex.join(argv)])


def _script(argv: Sequence[str]) -> Started:
    """Return a script of several lines in app/, as a batch script's author writes it."""
    text = f'#!/bin/sh\nset -eu\nexport OMP_NUM_THREADS=1\necho "starting on $(hostname)"\n{shlex.join(argv)}\n'
    return Started([f"{APP}/run.sh"], {"run.sh": text})


def _arguments(argv: Sequence[str]) -> Started:
    """Return a script that is given the program's arguments, and knows the program by a variable."""
    text = f'#!/bin/bash\nset -euo pipefail\nPROGRAM={shlex.quote(argv[0])}\nexec "$PROGRAM" "$@"\n'
    return Started(["bash", f"{APP}/start.sh", *argv[1:]], {"start.sh": text})


def _nested(argv: Sequence[str]) -> Started:
    """Return a script that calls another one."""
    inner = '#!/bin/sh\nexec "$@"\n'
    outer = f"#!/bin/sh\nset -e\nsh {APP}/inner.sh {shlex.join(argv)}\n"
    return Started(["sh", f"{APP}/outer.sh"], {"inner.sh": inner, "outer.sh": outer})


def _in_image(argv: Sequence[str]) -> Started:
    return Started(
        [IMAGE_SCRIPT], image=f"#!/bin/sh\nulimit -s unlimited 2>/dev/null || true\nexec {shlex.join(argv)}\n"
    )


def _evaluated(argv: Sequence[str]) -> Started:
    """Return a script that only running it tells what it starts."""
    text = f'#!/bin/bash\nwhat={shlex.quote(shlex.join(argv))}\neval "$what"\n'
    return Started(["bash", f"{APP}/what.sh"], {"what.sh": text})


#: By name. Each as often as it is to be drawn.
WRAPPERS: Mapping[str, Callable[[Sequence[str]], Started]] = {
    DIRECT: lambda argv: Started(list(argv)),
    "sh -c": _shell("sh -c"),
    "bash -lc": _shell("bash -lc"),
    "exec": lambda argv: Started(["bash", "-c", f"exec {shlex.join(argv)}"]),
    "env": _words("env OMP_NUM_THREADS=1"),
    "env -u": _words("/usr/bin/env -u DISPLAY nice -n 5"),
    "timeout": _words("timeout 110"),
    "script in app": _script,
    "arguments": _arguments,
    "nested": _nested,
    "script in image": _in_image,
    "eval": _evaluated,
}
