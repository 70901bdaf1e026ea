"""Why a file differs between two builds, as far as comparing both contents can tell."""

import gzip
import io
import re
import zipfile
import zlib

UNKNOWN = "unknown"
#: Bytes of the header of a .pyc (PEP 552), which has the time of its source; of a decompressed file to compare.
_PYC_HEADER, _MOST = 16, 64 * 1024 * 1024
#: Two texts that are the same without these differ for the reason.
_WITHOUT = {
    "times in its text": rb"\d{4}-\d\d-\d\d|\d\d:\d\d(:\d\d)?(\.\d+)?|\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*\b|\bUTC\b"
    rb"|\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* +\d+|\b1[5-9]\d{8}(\.\d+)?\b|:\d{5}:|[+-]\d{4}\b",
    "folders of the build": rb"/(tmp|root|home|build|src|var/tmp)(/[^\s:;\"'<>\0]*)?|\btmp[a-z0-9_]{8}\b",
}


def reason(path: str, old: bytes, new: bytes) -> str:
    """Return why the contents of a file differ, or UNKNOWN."""
    if old == new:
        return "permissions, kind or link target"
    if path.endswith(".pyc") and old[_PYC_HEADER:] == new[_PYC_HEADER:]:
        return "time in the header of compiled Python"
    if _unpacked(old) == _unpacked(new):
        return "times or order in a compressed archive"
    if sorted(old.splitlines()) == sorted(new.splitlines()):
        return "order of its lines"
    return next((why for why, rest in _WITHOUT.items() if re.sub(rest, b"", old) == re.sub(rest, b"", new)), UNKNOWN)


def _unpacked(data: bytes) -> object:
    """Return the content of a gzip file, the members of a zip file with their checksums, or another file itself."""
    try:
        if data.startswith(b"\x1f\x8b"):
            return gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MOST)
        if data.startswith(b"PK"):
            return sorted((item.filename, item.CRC) for item in zipfile.ZipFile(io.BytesIO(data)).infolist())
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):
        pass
    return data
