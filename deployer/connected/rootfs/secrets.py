"""Secrets in files and texts: private keys, tokens and logins, found by the exact patterns of secrets.yaml.

detect-secrets was not used: it has no rules for hubs of models and W&B, takes one line at a time, and reports the first
line of a key without its key. Binary files, large ones, and files of packages outside /etc are not searched.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import own_data
from deployer.connected.rootfs.entries import FileContent, shown
from deployer.connected.rootfs.flatten import FlattenedRootfs
from deployer.connected.rootfs.package_files import PackageFiles
from deployer.contract.base.tarformat import FILE
from deployer.contract.site import replay

#: The largest file to search, in bytes, and those of its beginning that have a NUL if it is binary.
MAX_SIZE, _BEGIN = 1024 * 1024, 1024
#: A key that `fetch` makes, which only its job trusts.
_REPLAYED = f"/{replay.FOLDER}/{replay.KEY}"
_CODEC = ("utf-8", "surrogateescape")


def _compiled(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode(), re.MULTILINE)


_TABLE = own_data.load_yaml(Path(__file__).with_suffix(".yaml"))
_LOGINS = [(_compiled(pattern), tuple(ends)) for pattern, ends in _TABLE["logins"]]
_SETTINGS, _SETTING, _PUBLIC = tuple(_TABLE["settings"]), _compiled(_TABLE["setting"]), re.compile(_TABLE["public"])
_SAMPLE, _SAMPLE_ADDRESS = _compiled(_TABLE["sample"]), _compiled(_TABLE["sample_address"])
#: No letter or digit before a token: it would be a part of something else.
_ALONE = "(?<![A-Za-z0-9])"
_LAST_WORDS = ("PASSWORD", "PASSWD", "SECRET", "TOKEN", "CREDENTIALS", "APIKEY")
_KEYS = ("API_KEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "ACCOUNT_KEY")


def _searches() -> Iterator[tuple[re.Pattern[bytes], list[str]]]:
    """Yield an expression for all kinds whose beginnings end with the same letter, and its groups' kinds.

    Python finds a fixed first letter 20 times faster than one of several: 300 MB per second for all, not 16.
    """
    for letter in sorted({begin[-1] for _, begin, _ in _TABLE["kinds"]}):
        own = [kind for kind in _TABLE["kinds"] if kind[1][-1] == letter]
        ways = [f"((?<={_ALONE if begin[0] not in ':-' else ''}{begin}){rest})" for _, begin, rest in own]
        yield _compiled(f"{letter}(?:{'|'.join(ways)})"), [kind for kind, _, _ in own]


_SEARCHES = tuple(_searches())


class Secret(NamedTuple):
    """A secret, without its value.

    Attributes:
        path: its absolute path in the image or on this machine, printable.
        line: the line.
        what: its kind: ``a private key``.
    """

    path: str
    line: int
    what: str


def in_tree(tree: FlattenedRootfs) -> list[Secret]:
    """Return the secrets in the files of a root filesystem."""
    entries = (entry for entry in tree.entries() if entry.kind == FILE and not entry.path.endswith(b".pyc"))
    files = [(entry.path.decode(*_CODEC), tree.content(entry)) for entry in entries]
    return list(in_files(files, PackageFiles.of(files)))


def in_files(files: Iterable[tuple[str, FileContent]], packages: PackageFiles | None = None) -> Iterator[Secret]:
    """Yield the secrets in files, the first of each kind in each file.

    Args:
        files: paths relative to the root, and contents.
        packages: the files of packages.
    """
    for path, content in files:
        is_own = packages is None or path.startswith("etc/") or path not in packages
        if is_own and content.size <= MAX_SIZE and not _PUBLIC.fullmatch(path):
            yield from in_content(f"/{path}", content.read(0, content.size))


def in_content(path: str, content: bytes) -> Iterator[Secret]:
    """Yield the secrets in a file, the first of each kind. A binary file has none."""
    if len(content) > MAX_SIZE or b"\0" in content[:_BEGIN] or path.endswith(_REPLAYED):
        return
    found: dict[str, int] = {}
    for search, kinds in _SEARCHES:
        for match in search.finditer(content):
            kind = kinds[(match.lastindex or 0) - 1]
            if kind not in found and _is_real(content, match, kind):
                found[kind] = match.start()
    for pattern, ends in _LOGINS:
        if path.endswith(ends) and (login := pattern.search(content)):
            found["a login"] = login.start()
    for match in _SETTING.finditer(content) if path.endswith(_SETTINGS) else ():
        if names_a_secret(match[1].decode()):
            found.setdefault(f"a value of {match[1].decode()}", match.start())
    for kind, start in found.items():
        yield Secret(shown(path.encode(*_CODEC)), content.count(b"\n", 0, start) + 1, kind)


def in_text(text: str) -> list[str]:
    """Return the kinds of secrets in a command or a value, with those of ``NAME=VALUE`` anywhere in it."""
    content = text.encode(*_CODEC)
    parts = (in_content("", content), in_content(_SETTINGS[0], b"\n".join(content.split())))
    return list(dict.fromkeys(secret.what for part in parts for secret in part))


def names_a_secret(name: str) -> bool:
    """Return whether a name indicates a secret, like DB_PASSWORD, unlike TOKENIZERS_PARALLELISM or SECRET_FILE."""
    upper = name.upper()
    return upper.rpartition("_")[2] in _LAST_WORDS or upper.endswith(_KEYS)


def _is_real(content: bytes, match: re.Match[bytes], kind: str) -> bool:
    """Return whether a match is not a sample, as documents have them."""
    if kind == "an address with a password":
        return not _SAMPLE_ADDRESS.search(match[0])
    if kind != "a private key":
        return len({*match[0][-16:]}) > 6 and not _SAMPLE.search(match[0])
    body = content[match.end() : match.end() + 1000].replace(b"\\n", b"\n").partition(b"-----END")[0]
    lines = (line.strip(b" \t\r\\\"',+") for line in body.split(b"\n"))
    key = b"".join(line for line in lines if b":" not in line)[:60]  # without headers
    return re.fullmatch(rb"[A-Za-z0-9+/=]{60}", key) is not None and len({*key}) > 15
