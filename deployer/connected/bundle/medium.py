"""What is on media beside the parts of a bundle, above all README.txt for the person at the site (docs/adr/0072)."""

import logging
from collections.abc import Sequence
from pathlib import Path

from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.bundle.shipment import ENCRYPTED_FILE, SUMS, Shipment, on_disk, split
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.elf.machines import X86_64, kernel_name
from deployer.system import age, process

_log = logging.getLogger("deployer.media")

_TEXT, _ENCRYPTED_TEXT = (Path(__file__).with_name(name) for name in ("medium.txt", "encrypted-medium.txt"))
#: Bytes on each medium for README.txt, SHA256SUMS and the file system itself.
_SPARE = 2 * 1024 * 1024
#: Bytes on disk for each file beyond its size: half a 4 KiB block on average, as in `receive`.
_HALF_BLOCK = 2048
_RUN = """Run a job{others}.
     cd ROOT && python3 deployer.pyz run {label} --wait{command}"""


def readme(
    manifest: Manifest, digest: str, plans: Sequence[str], partial: bool, shipment: Shipment, mark: str = ""
) -> str:
    """Return the text of README.txt.

    Args:
        plans: the sites for which the bundle has plans.
        partial: the folder lacks the parts that the site already has.
        mark: which of several media it is. Their parts and the bundle need space at the same time.
    """
    label, jobs = f"{manifest.name}:{manifest.version}", [job.name for job in manifest.jobs]
    others = f"; its name follows {label} (default: {jobs[0]}; others: {', '.join(jobs[1:])})" if jobs[1:] else ""
    command = "" if jobs else " -- COMMAND"
    if len(plans) > 1:
        others += f"; SITE is one of {', '.join(plans)}"
        command = f" --plan SITE{command}"
    run = _RUN.format(label=label, others=others, command=command)
    end = shipment.ending.end
    space = end + (max(end, manifest.unpacked) if mark else manifest.unpacked) + manifest.image.entries * _HALF_BLOCK
    return _TEXT.read_text().format(
        label=label,
        parts=f"{counted(len(shipment.parts), 'part')}, {shipment.size / 1e6:.1f} MB",
        digest=digest,
        which=_which(mark),
        sums=SUMS,
        root="the folder that has the earlier bundles" if partial else "a folder that all nodes share",
        space=f"{space / 1e6:.1f}",
        use="Run bundles that need this data." if manifest.is_data else run,
    )


def encrypted_readme(mark: str, has_age: bool) -> str:
    """Return the text of README.txt on an encrypted medium, which may have age too. It does not name the bundle."""
    words = ("", "\n     chmod u+x age", " --age ./age") if has_age else (" and the program age", "", "")
    needs, before, program = words
    return _ENCRYPTED_TEXT.read_text().format(which=_which(mark), sums=SUMS, needs=needs, before=before, age=program)


def age_itself(architecture: str) -> dict[str, bytes]:
    """Return the kit's program age for a processor, by its OCI name, and its README. Raises as ``kit.members``."""
    from deployer.connected.bundle import kit  # slow to import

    made = kit.members("age", kernel_name(architecture) or X86_64.kernel, _log.info)
    return {path.name.replace("README.age", "age.txt"): path.read_bytes() for path in made.values()}


def _which(mark: str) -> str:
    return f"\nThis is {mark.replace('-', ' ')}. `receive` takes the media in any order.\n" if mark else ""


def cut(shipment: Shipment, size: int) -> list[Shipment]:
    """Return what each medium of ``size`` bytes gets. Raises UsageError if one is too small for the largest part."""
    # Each encrypted file repeats the bundle's ending.
    own = _SPARE + len(make_pyz()) + len(shipment.data) * (size // ENCRYPTED_FILE + 1)
    least = own + max(map(on_disk, shipment.parts), default=0)
    if size < least:
        raise UsageError(f"media of {size / 1e6:.1f} MB are too small", f"the least is {least / 1e6 + 0.1:.1f}MB")
    return split(shipment, size - own)


def encryption(keys: Sequence[str]) -> Sequence[str]:
    """Return the command that encrypts to these public keys, or to those in these files.

    Raises:
        UsageError: age refuses a key, or warns that it leaves one out.
        MissingTool: age is not installed.
    """
    argv = ["age", "--encrypt"]
    for key in keys:
        argv += ["-r" if key.startswith(("ssh-", "age1")) else "-R", key]
    tried = process.run(argv, age.SECONDS, check=False)
    if tried.returncode or tried.stderr:
        hint = "give --encrypt-to a public key of type ssh-ed25519 or ssh-rsa without options, or a file with such keys"
        raise UsageError(age.problem(tried.stderr), hint)
    return argv
