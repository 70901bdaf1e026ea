"""A wheel as its metadata describes it: where each file of the archive goes, and with what digest.

Pure: names and texts in, places out; ``deployer.system.wheel`` reads archives. The result is an overlay, a folder like
a Python's prefix with site-packages at ``lib``::

    lib/        purelib and platlib: the entry in PYTHONPATH
    bin/        scripts and console scripts: the entry in PATH
    include/    headers, by distribution
    ...         data, as in the wheel

Format: PyPA, "Binary distribution format" (wheels), "Recording installed projects" (RECORD), "Entry points". The rules
are stricter than in installers where leniency has no use: each file must be in RECORD, with SHA-256 or better, and
occur once.
"""

import base64
import configparser
import csv
import re
from typing import Dict, Iterable, List, NamedTuple, Sequence, Tuple

from deployer.contract.base import tarformat
from deployer.contract.base.errors import IntegrityError

LIB, BIN, INCLUDE = "lib", "bin", "include"
RECORD, WHEEL, ENTRY_POINTS, INSTALLER = "RECORD", "WHEEL", "entry_points.txt", "INSTALLER"

#: RECORD cannot contain its own digest, and its signatures cover a RECORD that is not the installed one.
_NOT_RECORDED = (RECORD, RECORD + ".jws", RECORD + ".p7s")
#: The algorithms that RECORD may use ("sha256 or better"), all in hashlib.
ALGORITHMS = ("sha256", "sha384", "sha512")

#: NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl
_FILE_NAME = re.compile(r"(?P<name>[^-\s/]+)-(?P<version>[^-\s/]+)(?:-\d[^-\s/]*)?(?:-[^-\s/]+){3}\.whl\Z")
#: MODULE:ATTRIBUTE [EXTRAS]; the extras do not matter to an installer.
_ENTRY_POINT = re.compile(r"(?P<module>\w+(\.\w+)*)\s*:\s*(?P<attribute>\w+(\.\w+)*)\s*(\[.*\])?\Z")
_SCRIPT_NAME = re.compile(r"[\w.+-]*\w[\w.+-]*\Z")
#: The file type of a mode if the archive was made on Unix: regular, folder, or unspecified.
_TYPE, _PLAIN_TYPES = 0o170000, (0, 0o100000)

_SCRIPT = """\
#!{python}
import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({attribute}())
"""


class WheelEntry(NamedTuple):
    """A file of the archive.

    Attributes:
        name: its name in the archive.
        size: bytes.
        mode: its Unix mode with the file type; 0: unspecified.
    """

    name: str
    size: int
    mode: int


class Digest(NamedTuple):
    """A file's digest in RECORD.

    Attributes:
        algorithm: one of ALGORITHMS.
        value: the raw bytes.
    """

    algorithm: str
    value: bytes


class WheelFile(NamedTuple):
    """A file to install.

    Attributes:
        name: its name in the archive.
        path: its path in the overlay.
        size: bytes.
        digest: the digest that its content must have.
        executable: whether it gets execute permissions.
        script: whether its first line names an interpreter and must be rewritten.
    """

    name: str
    path: str
    size: int
    digest: Digest
    executable: bool
    script: bool


def distribution(file_name: str) -> Tuple[str, str]:
    """Return name and version from a wheel's file name. Raises IntegrityError if it is not such a name."""
    found = _FILE_NAME.match(file_name)
    if not found:
        raise IntegrityError(f"{file_name!r} is not the file name of a wheel")
    return found.group("name"), found.group("version")


def normalized(name: str) -> str:
    """Return the normalized form of a distribution's name, which is equal for all its spellings."""
    return re.sub(r"[-_.]+", "-", name).lower()


def dist_info(file_name: str, names: Iterable[str]) -> str:
    """Return the name of the only folder with the wheel's metadata. Raises IntegrityError."""
    folders = {name.partition("/")[0] for name in names if "/" in name}
    found = sorted(folder for folder in folders if folder.endswith(".dist-info"))
    if len(found) != 1:
        raise IntegrityError("it has %d .dist-info folders instead of one" % len(found))
    if normalized(found[0].partition("-")[0]) != normalized(distribution(file_name)[0]):
        raise IntegrityError(f"its metadata belongs to another distribution: {found[0]}")
    return found[0]


def check_version(text: str) -> None:
    """Raise IntegrityError unless the file WHEEL has a supported version of the format, 1.x."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() == "wheel-version" and value.strip().partition(".")[0] == "1":
            return
    raise IntegrityError("it is not in version 1 of the wheel format")


def read_record(text: str) -> Dict[str, Tuple[str, str]]:
    """Return the content of RECORD: (digest, size) by name, both as written. Raises IntegrityError."""
    found: Dict[str, Tuple[str, str]] = {}
    try:
        for row in csv.reader(text.splitlines()):
            if not row:
                continue
            if len(row) != 3 or row[0] in found:
                raise IntegrityError("a line of its RECORD is invalid: {!r}".format(",".join(row)[:200]))
            found[row[0]] = (row[1], row[2])
    except csv.Error as error:
        raise IntegrityError(f"its RECORD is not in CSV form: {error}") from None
    return found


def record_line(path: str, digest: str, size: int) -> str:
    """Return the line of the installed RECORD for ``path`` in the overlay; ``digest`` is a hexadecimal SHA-256."""
    value = base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode("ascii")
    return "%s,sha256=%s,%d\n" % (_csv_field(relative_to_lib(path)), value, size)


def relative_to_lib(path: str) -> str:
    """Return a path in the overlay as in RECORD, relative to site-packages."""
    return path[len(LIB) + 1 :] if path.startswith(LIB + "/") else "../" + path


def files(info: str, entries: Sequence[WheelEntry], record: Dict[str, Tuple[str, str]]) -> List[WheelFile]:
    """Return the files to install from a wheel whose metadata is in the folder ``info``, in the order of the archive.

    Names that differ only in case are different: Open MPI has both mpicc and mpiCC.

    Raises:
        IntegrityError: a file is not regular, occurs twice, is not in RECORD with its size and a valid digest, or
            has no place in the overlay.
    """
    distribution_name = info.partition("-")[0]
    data = info[: -len(".dist-info")] + ".data/"
    unseen = dict(record)
    found: List[WheelFile] = []
    for entry in entries:
        _check_plain(entry)
        claim = unseen.pop(entry.name, None)
        if entry.name in [info + "/" + name for name in _NOT_RECORDED]:
            continue
        if claim is None:
            raise IntegrityError(f"its RECORD does not list {entry.name}, or the archive has the file twice")
        area, path = _place(entry.name, data, distribution_name)
        executable = area == BIN or bool(entry.mode & 0o111)
        digest = _digest(entry, claim)
        found.append(WheelFile(entry.name, path, entry.size, digest, executable, area == BIN))
    missing = sorted(name for name in unseen if name not in [info + "/" + name for name in _NOT_RECORDED])
    if missing:
        raise IntegrityError(f"its RECORD lists {missing[0]}, which is not in the archive")
    check_distinct([file.path for file in found])
    return found


def check_distinct(paths: Iterable[str]) -> None:
    """Raise IntegrityError unless all paths can be files in one folder."""
    seen = set()
    for path in paths:
        if path in seen:
            raise IntegrityError(f"it has {path} twice")
        seen.add(path)
    for path in sorted(seen):
        parent = path.rpartition("/")[0]
        while parent:
            if parent in seen:
                raise IntegrityError(f"{parent} is both a file and a folder")
            parent = parent.rpartition("/")[0]


def console_scripts(text: str, python: str) -> Dict[str, str]:
    """Return the scripts that entry_points.txt defines, name to text; ``python`` is the interpreter to name.

    Raises:
        IntegrityError: an entry point cannot be a script.
    """
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keep upper and lower case in names of commands
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise IntegrityError(f"its {ENTRY_POINTS} cannot be read: {error}") from None
    found = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else []:
            point = _ENTRY_POINT.match(value.strip())
            if not point or not _SCRIPT_NAME.match(name):
                raise IntegrityError(f"its entry point {name} = {value} cannot be a script")
            attribute = point.group("attribute")
            found[name] = _SCRIPT.format(
                python=python, module=point.group("module"), first=attribute.partition(".")[0], attribute=attribute
            )
    return found


def with_interpreter(content: bytes, python: str) -> bytes:
    """Return a script whose first line was ``#!python`` (or ``#!pythonw``) with ``python`` as its interpreter."""
    if not content.startswith(b"#!python"):
        return content
    words = content.partition(b"\n")[0].split(None, 1)
    rest = b" " + words[1] if len(words) > 1 else b""
    return b"#!" + python.encode() + rest + b"\n" + content.partition(b"\n")[2]


def _check_plain(entry: WheelEntry) -> None:
    """Raise IntegrityError unless an entry is a regular file with a plain relative name."""
    if "\\" in entry.name or not entry.name.isprintable():
        raise IntegrityError(f"it has a name that is not plain: {entry.name!r}")
    tarformat.check_path(entry.name.encode("utf-8", "surrogateescape"))
    if entry.mode & _TYPE not in _PLAIN_TYPES:
        raise IntegrityError(f"{entry.name} is not a regular file")


def _place(name: str, data: str, distribution_name: str) -> Tuple[str, str]:
    """Return the area (LIB, BIN, ...) and the path in the overlay of a file of the archive."""
    if not name.startswith(data):
        return LIB, f"{LIB}/{name}"
    key, _, rest = name[len(data) :].partition("/")
    places = {
        "purelib": (LIB, LIB + "/"),
        "platlib": (LIB, LIB + "/"),
        "scripts": (BIN, BIN + "/"),
        "headers": (INCLUDE, f"{INCLUDE}/{distribution_name}/"),
        "data": ("", ""),
    }
    if key not in places or not rest:
        raise IntegrityError(f"{name} is in an unknown part of .data")
    area, prefix = places[key]
    return area, prefix + rest


def _digest(entry: WheelEntry, claim: Tuple[str, str]) -> Digest:
    """Return an entry's digest in RECORD, whose size must match too."""
    algorithm, _, text = claim[0].partition("=")
    if algorithm not in ALGORITHMS:
        raise IntegrityError(f"its RECORD has no SHA-256 for {entry.name}")
    try:
        value = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise IntegrityError(f"its RECORD has an invalid digest for {entry.name}") from None
    if claim[1] and claim[1] != str(entry.size):
        raise IntegrityError("%s has %d bytes, but its RECORD says %s" % (entry.name, entry.size, claim[1]))
    return Digest(algorithm, value)


def _csv_field(text: str) -> str:
    return '"{}"'.format(text.replace('"', '""')) if re.search(r'[",\r\n]', text) else text
