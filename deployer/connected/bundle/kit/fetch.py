"""Download the kit's inputs with this machine's settings: wheels with pip, sources and packages with apt.

Each file must match its pinned SHA-256 before it is used.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deployer.connected.bundle.kit.recipe import PinRecord, Recipe
from deployer.connected.image.definition.settings import BuildSettings
from deployer.connected.image.wheelhouse.indexes import indexes
from deployer.contract.base.errors import IntegrityError, TransferError
from deployer.contract.base.shell import quoted
from deployer.contract.elf.machines import BY_KERNEL
from deployer.system import files, process

_log = logging.getLogger("deployer.kit")

_TIMEOUT = 1800


def wheel(recipe: Recipe, name: str, work: Path, host: BuildSettings) -> Path:
    """Download the pinned wheel ``name`` with pip into ``work``. Raises TransferError, IntegrityError."""
    pin = recipe.pins()[name]
    asked = work / "asked.txt"
    asked.write_text(f"{name}=={pin['version']} --hash=sha256:{pin['sha256']}\n")
    with indexes(host) as sources:
        argv = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--quiet",
            "--no-input", "--no-cache-dir", "--disable-pip-version-check", *sources.pip_options,
            f"--dest={work}", f"--requirement={asked}",
        ]  # fmt: skip
        done = process.run(argv, _TIMEOUT, {**sources.pip_environment, "TMPDIR": str(work)}, check=False)
    if done.returncode != 0:
        raise TransferError(f"pip cannot download {name} for the kit: {done.last_words(1)}", recipe.leave_out)
    return checked(recipe, work / pin["file"], pin["sha256"])


def debian(
    recipe: Recipe, sources: Sequence[str], work: Path, host: BuildSettings, libraries: Sequence[str], machine: str
) -> list[Path]:
    """Download Debian sources and packages with apt, in a temporary root made by mmdebstrap.

    Args:
        sources: pin names of upstream sources.
        work: the folder for the files.
        libraries: pin names of packages with libraries or programs.
        machine: the processor that these are for.

    Returns:
        The files, sources first.

    Raises:
        MissingTool: mmdebstrap not found.
        TransferError: a download failed.
        IntegrityError: a file does not match its pin.
    """
    pins = recipe.pins()
    wanted: list[Mapping[str, str]] = [pins[name] for name in sources]
    wanted += [pins[name]["files"][machine] for name in libraries]
    argv = command([pins[name] for name in sources], work, host, [pins[name] for name in libraries], machine)
    environment = {**process.base_environment(), **host.proxies}
    done = process.run(argv, _TIMEOUT, environment, check=False, hint=f"apt-get install mmdebstrap, {recipe.leave_out}")
    if done.returncode != 0:
        _log.debug("%s", done.stderr)
        lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("E: ")]
        packages = ", ".join(f"{pins[name]['package']} ({pins[name]['suite']})" for name in [*libraries, *sources])
        problem = " / ".join(lines[:2]) or done.last_words()
        raise TransferError(
            f"apt cannot download what the kit's {recipe.name} is made of: {problem}",
            f"check that Debian's mirror answers and has {packages}, {recipe.leave_out}",
        )
    return [checked(recipe, work / pin["file"], pin["sha256"]) for pin in wanted]


def command(
    sources: Sequence[PinRecord], work: Path, host: BuildSettings, libraries: Sequence[PinRecord], machine: str
) -> list[str]:
    """Return an mmdebstrap command that makes no root; apt downloads sources and packages into ``work``."""
    suite = [*libraries, *sources][0]["suite"]
    argv = ["mmdebstrap", "--variant=custom", "--format=null", '--aptopt=Acquire::Check-Valid-Until "false"']
    # Nothing of the packages is run, so a foreign architecture needs no emulation.
    argv += [f"--architectures={BY_KERNEL[machine].oci}", "--skip=check/qemu"]
    argv += [f'--aptopt={name} "{value}"' for name, value in sorted(host.apt.items())]
    if host.sources:
        argv.append(f"--setup-hook=cat >\"$1\"/etc/apt/sources.list <<'END'\n{host.sources.rstrip()}\nEND")
    # Use the Debian mirror from mmdebstrap or this machine's settings.
    suites = [("deb", suite), *(("deb-src", pin["suite"]) for pin in sources)]
    lines = [f'echo "{kind} $mirror {suite} main"' for kind, suite in dict.fromkeys(suites)]
    argv.append(
        '--setup-hook=cd "$1"/etc/apt'
        ' && mirror=$(sed -n "s/^deb //p" sources.list | grep -oE "[a-z+]+:/[^ ]+" | head -n 1)'
        f" && {{ {'; '.join(lines)}; }} >sources.list"
    )
    fetch, target = [], quoted([str(work)])
    if sources:
        fetch += [f"apt-get --quiet=2 source --download-only --tar-only {_packages(sources)}", f"cp *.tar.* {target}"]
    if libraries:
        fetch += [f"apt-get --quiet=2 download {_packages(libraries)}", f"cp *.deb {target}"]
    argv.append('--customize-hook=cd "$1"/tmp && export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG && ' + " && ".join(fetch))
    return [*argv, suite]


def _packages(pins: Sequence[PinRecord]) -> str:
    return quoted([pin["package"] for pin in pins])


def checked(recipe: Recipe, path: Path, sha256: str) -> Path:
    """Return ``path`` if it matches its pin.

    Raises:
        TransferError: the file was not downloaded.
        IntegrityError: its SHA-256 differs.
    """
    if not path.is_file():
        raise TransferError(f"the download for the kit has another version than {path.name}", recipe.leave_out)
    actual = files.sha256_file(str(path))
    if actual != sha256:
        raise IntegrityError(f"{path.name} has the SHA-256 {actual}, not the pinned {sha256}", recipe.leave_out)
    return path
