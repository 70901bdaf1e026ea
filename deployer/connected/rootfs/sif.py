"""Images in SquashFS: SIF files of Apptainer and SingularityCE, and SquashFS files.

sqfs2tar (squashfs-tools-ng) converts SquashFS to tar, so that hostile contents can write nowhere. Variables, labels and
the runscript come from ``/.singularity.d``, whose scripts are not run: assignments of plain values are understood.
"""

import functools
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from deployer.connected.ground.scratch import Scratch
from deployer.connected.rootfs import tarreader
from deployer.connected.rootfs.entries import FileContent
from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, JobFailed, SpaceError, UsageError
from deployer.contract.base.tarformat import FILE
from deployer.contract.base.text import printable
from deployer.contract.bundle import sif
from deployer.contract.bundle.command import DEFAULT_PATH
from deployer.system import files, process, terminal

#: The start of a SquashFS file.
SQUASHFS = b"hsqs"
_TIMEOUT = 4 * 3600
_META = b".singularity.d/"
_RUNSCRIPT, _LABELS = _META + b"runscript", _META + b"labels.json"
#: Scripts with the image's own variables, in the order in which they are run. Others are the runtime's.
_SCRIPTS = [_META + b"env/%s.sh" % name for name in (b"10-docker2singularity", b"90-environment", b"91-environment")]
_MAX_TEXT = 1024 * 1024
#: The user's settings for the folder of known keys.
_KEYS = ("APPTAINER_CONFIGDIR", "APPTAINER_KEYSDIR", "SINGULARITY_CONFIGDIR", "SINGULARITY_KEYSDIR")
_FULL = "No space left on device"

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=([^\0]*)")
#: What docker2singularity.sh has for a variable that the user may override: "${NAME:-"VALUE"}".
_DEFAULT = re.compile(r'"\$\{\w+:-(".*")\}"')
#: A piece of a word: in single quotes, in double quotes, or bare.
_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\`]|\\.)*)"|((?:[^\s"'\\`;&|<>()#*?\[~]|\\.)+)""")
#: In it: a character that loses its backslash, another one, a variable, or a "$" with another meaning.
_IN_PIECE = re.compile(r"""\\([$`"\\])|\\(.)|\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})|(\$)""")
#: A variable's name in a value.
REFERENCE = re.compile("\0(\\w+)\0")


def is_sif(start: bytes) -> bool:
    """Return whether a file is a SIF file, from its first 64 bytes."""
    return start[sif.MAGIC_AT :].startswith(sif.MAGIC)


def unpacked(stream: IO[bytes], scratch: Scratch) -> tuple[dict[str, Any], IO[bytes]]:
    """Return the configuration of the image in a SIF or SquashFS file, and its root filesystem as a tar.

    The signature of a SIF file is reported, and verified if apptainer or singularity is installed.

    Raises:
        UsageError: deployer cannot use the file.
        IntegrityError: the file is not what was signed.
        MissingTool: sqfs2tar is not installed.
    """
    descriptor = stream.fileno()
    size = os.fstat(descriptor).st_size
    config: dict[str, Any] = {"os": "linux"}
    if is_sif(os.pread(descriptor, 64, 0)):
        place = sif.find(lambda start, length: os.pread(descriptor, length, start), size)
        terminal.tell(f"deployer: {stream.name}: {_signature(Path(stream.name), place.signers)}")
        config["architecture"] = place.architecture
        partition = scratch.temporary()
        shutil.copyfileobj(files.Window(descriptor, place.offset, place.size), partition, files.CHUNK)
        descriptor = partition.fileno()
    tar = scratch.temporary()
    hint = "install squashfs-tools-ng: apt-get install squashfs-tools-ng"
    try:
        process.run(["sqfs2tar", f"/proc/{os.getpid()}/fd/{descriptor}"], _TIMEOUT, stdout=tar, hint=hint)
    except JobFailed as error:
        if _FULL in error.message:
            raise SpaceError(f"cannot unpack the image: {_FULL}", "set TMPDIR to a larger disk") from error
        raise UsageError(f"its SquashFS cannot be read: {error.message.rpartition(': ')[2]}") from error
    entries = tarreader.entries_of(tarreader.Slice(tar))
    config["config"] = _settings({each.path: each.data for each in entries if each.kind == FILE})
    tar.seek(0)
    config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{files.sha256(tar)}"]}
    return config, tar


def _signature(path: Path, signers: list[str]) -> str:
    """Return what is known of the signature of a SIF file."""
    if not signers:
        return "not signed"
    named = f"signed with {', '.join(signers)}"
    tool = shutil.which("apptainer") or shutil.which("singularity")
    if tool is None:
        return f"{named}, not verified: neither apptainer nor singularity is here"
    environment = process.base_environment(*_KEYS)
    done = process.run([tool, "verify", "--local", str(path)], 600, environment, check=False)
    reason = printable(done.last_words(1).rpartition("FATAL:")[2].strip())
    if "integrity compromised" in reason:
        raise IntegrityError(f"it is not what was {named}: {reason}")
    names = ", ".join(sorted({printable(name) for name in re.findall(r"Signing entity: (.*)", done.stdout)}))
    return f"{named}, not verified: {reason}" if done.returncode or not names else f"{named}, verified: {names}"


def _settings(found: Mapping[bytes, FileContent | None]) -> dict[str, Any]:
    """Return the settings of an image from its files in ``/.singularity.d``, with their names in OCI."""
    env, lost = {"PATH": DEFAULT_PATH}, list[str]()
    for name in _SCRIPTS:
        pairs, others = assignments(_text(found.get(name)))
        env.update((key, REFERENCE.sub(lambda match: env.get(match[1], ""), value)) for key, value in pairs)
        lost += others
    if lost:
        terminal.tell(f"deployer: not taken over from its environment: {printable(' / '.join(lost))[:300]}")
    labels = json_records.parse(_text(found.get(_LABELS)).encode() or b"{}", "its labels.json")
    entrypoint = ["/" + _RUNSCRIPT.decode()] if _RUNSCRIPT in found else []
    return {"Env": [f"{name}={value}" for name, value in env.items()], "Entrypoint": entrypoint, "Labels": labels}


def _text(content: FileContent | None) -> str:
    return content.read(0, _MAX_TEXT).decode("utf-8", "replace") if content else ""


def assignments(script: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the variables that lines of a shell script assign plain values to, and all other lines with code.

    In a value, ``REFERENCE`` finds the variables of which the value consists in part.
    """
    pairs, others = list[tuple[str, str]](), list[str]()
    for line in map(str.strip, script.splitlines()):
        found = _ASSIGNMENT.fullmatch(line)
        value = _value(_DEFAULT.sub(r"\1", found[2])) if found else None
        if found and value is not None:
            pairs.append((found[1], value))
        elif line and not line.startswith("#"):
            others.append(line)
    return pairs, others


def _value(word: str) -> str | None:
    """Return the value of a word, as the shell reads it, or None if this is more than variables and quotes."""
    value, at = "", 0
    while at < len(word):
        piece = _PIECE.match(word, at)
        text = (piece[2] or piece[3] or "") if piece else ""
        if piece is None or any(found[5] for found in _IN_PIECE.finditer(text)):
            return None
        kept = "" if piece[3] else "\\"  # in double quotes, a backslash stays before most characters
        value += piece[1] or _IN_PIECE.sub(functools.partial(_literal, kept), text)
        at = piece.end()
    return value


def _literal(kept: str, found: re.Match[str]) -> str:
    name = found[3] or found[4]
    return f"\0{name}\0" if name else found[1] or kept + found[2]
