"""Why two builds of a file differ: a guess from both contents, which states only what it has compared."""

import gzip
import io
import re
import zipfile
import zlib

UNKNOWN = "unknown"
#: The length of the header of a .pyc (PEP 552), which has the time of its source.
_PYC_HEADER = 16
#: Bytes of a decompressed file to compare.
_MOST = 64 * 1024 * 1024
_TIME = re.compile(
    rb"\d{4}-\d\d-\d\d|\d\d:\d\d(:\d\d)?(\.\d+)?|\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*\b"
    rb"|\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* +\d+|\b1[5-9]\d{8}(\.\d+)?\b|:\d{5}:|\bUTC\b|[+-]\d{4}\b"
)
_PLACE = re.compile(rb"/(tmp|root|home|build|src|var/tmp)(/[^\s:;\"'<>\0]*)?|\btmp[a-z0-9_]{8}\b")


def reason(path: str, old: bytes, new: bytes) -> str:
    """Return why the contents of a file differ, or UNKNOWN."""
    if old == new:
        return "permissions, kind or link target"
    if path.endswith(".pyc") and old[_PYC_HEADER:] == new[_PYC_HEADER:]:
        return "time in the header of compiled Python"
    unpacked = _unpacked(old), _unpacked(new)
    if None not in unpacked and unpacked[0] == unpacked[1]:
        return "times or order in a compressed archive"
    if _TIME.sub(b"", old) == _TIME.sub(b"", new):
        return "times in its text"
    if _PLACE.sub(b"", old) == _PLACE.sub(b"", new):
        return "folders of the build"
    if sorted(old.splitlines()) == sorted(new.splitlines()):
        return "order of its lines"
    return UNKNOWN


def _unpacked(data: bytes) -> object:
    """Return the content of a gzip file, or the members of a zip file with their checksums; None for other files."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MOST)
        if data.startswith(b"PK"):
            return sorted((item.filename, item.CRC) for item in zipfile.ZipFile(io.BytesIO(data)).infolist())
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):
        pass
    return None
