"""How a job starts a program: itself, or behind what people put before it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from deployer.contract.site.plan import APP

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


def _after(*lines: str, shell: str = "#!/bin/bash") -> Callable[[Sequence[str]], Started]:
    """Return a script in app/ with some lines before the program."""

    def script(argv: Sequence[str]) -> Started:
        return Started([f"{APP}/job.sh"], {"job.sh": "\n".join([shell, *lines, shlex.join(argv)]) + "\n"})

    return script


def _with_returns(argv: Sequence[str]) -> Started:
    """Return a script whose lines end as those of Windows do, behind sh."""
    return Started(["sh", f"{APP}/dos.sh"], {"dos.sh": f"set -e\r\n{shlex.join(argv)}\r\n"})


#: What people write before their program, by name.
HABITS: Mapping[str, Callable[[Sequence[str]], Started]] = {
    "nvidia-smi": _after("nvidia-smi"),
    "nvidia-smi or true": _after("set -e", "nvidia-smi || true"),
    "if nvidia-smi": _after("if nvidia-smi >/dev/null 2>&1; then", "  export ON_GPU=1", "fi"),
    "module load": _after("module load gcc 2>/dev/null"),
    "set -e module": _after("set -e", "module load gcc"),
    "small tools": _after("hostname", "date", "free -m", "lscpu | head -n 3",
                          'scontrol show hostnames "$SLURM_NODELIST"'),
    "substituted": _after("set -u", 'host=$(hostname)', 'export MASTER=${host:-none} STARTED="$(date +%s)"'),
    "returns": _with_returns,
    "unset loop": _after("for name in $(env | grep -oE '^(SLURM|PMI|PMIX|OMPI)[^=]*'); do", '  unset "$name"', "done"),
    "env -i": _words("env -i PATH=/usr/local/bin:/usr/bin:/bin"),
}  # fmt: skip
#: Variables that people set for their MPI; most mean nothing to the others.
VARIABLES = (
    "I_MPI_FABRICS=shm", "I_MPI_FABRICS=shm:ofi", "I_MPI_DEBUG=5", "I_MPI_PIN=0", "FI_PROVIDER=tcp",
    "FI_PROVIDER=psm2", "OMPI_MCA_btl=self,vader", "OMPI_MCA_btl=self,tcp", "OMPI_MCA_btl=^openib",
    "OMPI_MCA_pml=ucx", "OMPI_MCA_pml=ob1", "OMPI_MCA_mtl=psm2", "OMPI_MCA_btl_base_verbose=10",
    "UCX_TLS=tcp,self", "UCX_TLS=sm,self", "MPIR_CVAR_CH4_NETMOD=ucx", "MPIR_CVAR_NOLOCAL=1",
)  # fmt: skip
_OF_VARIABLES: Mapping[str, Callable[[Sequence[str]], Started]] = {
    **{f"env {variable}": _words(f"env {variable}") for variable in VARIABLES},
    **{f"export {variable}": _after(f"export {variable}", shell="#!/bin/sh") for variable in VARIABLES},
}
#: What people put before a program to start it, by name.
STARTERS: Mapping[str, Callable[[Sequence[str]], Started]] = {
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
#: All of them, by name.
WRAPPERS: Mapping[str, Callable[[Sequence[str]], Started]] = {**STARTERS, **HABITS, **_OF_VARIABLES}
#: How often each kind is drawn; their names.
KINDS: Sequence[tuple[float, Sequence[str]]] = (
    (0.55, [name for name in STARTERS if name != DIRECT]),
    (0.25, list(HABITS)),
    (0.20, list(_OF_VARIABLES)),
)
