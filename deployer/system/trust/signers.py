"""Who may sign (an allowed_signers file), and who no longer may (a file of revoked keys).

Formats: ssh-keygen(1), ALLOWED SIGNERS and KEY REVOCATION LISTS. The files are parsed here, so that they mean the same
on every site: ssh-keygen has supported dates only since OpenSSH 8.7, and the Z of UTC since 9.1. Only a part of the
format is supported, and each difference from ssh-keygen refuses more. An unsupported line is an error and is never
skipped, because it might be the line that matters.
"""

import calendar
import os
import re
import tempfile
import time
from datetime import datetime, timezone
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from deployer.contract.base.errors import IntegrityError, MissingTool, UsageError
from deployer.contract.bundle.sshsig import ALGORITHMS, NAMESPACE, Key, read_key_text
from deployer.system import files, process
from deployer.system.trust.signature import SSH_KEYGEN

_KRL_MAGIC = b"SSHKRL\n\0"
_FINGERPRINT = re.compile(r"^SHA256:[A-Za-z0-9+/]{43}$")
#: WHO [OPTIONS] KIND KEY [COMMENT]. Quotes protect spaces; a quote inside WHO and a backslash are not accepted.
_LINE = re.compile(
    r'("[^"]+"|[^ \t"]+)[ \t]+(?:((?:[^ \t"]|"[^"]*")*)[ \t]+)?({})[ \t]+([A-Za-z0-9+/=]+)(?:[ \t].*)?$'.format(
        "|".join(re.escape(kind) for kind in ALGORITHMS)
    )
)
_OPTION = re.compile(r'([a-zA-Z-]+)(?:="([^"]*)")?(?:,(?=.)|$)')
_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)?)?(Z?)$", re.ASCII)
_FIRST_YEAR = 1971  # ssh-keygen reads second 0 as "no limit", and refuses earlier times
#: ssh-keygen does not match longer patterns.
_MAX_PATTERN = 1000
#: Bytes; enough for thousands of keys. A larger file is a mistake, and would be held in memory.
_MAX_FILE = 4 * 1024 * 1024
_KINDS = "the kinds of keys that can sign: " + ", ".join(sorted(ALGORITHMS))
_SECONDS = 60


class Signer(NamedTuple):
    """A line of an allowed_signers file.

    Attributes:
        who: the identities that may sign.
        key: the key with which they sign.
        namespaces: a list of patterns; None: all.
        after: the start of validity in seconds since the epoch; None: no limit.
        before: the end of validity in seconds since the epoch; None: no limit.
    """

    who: str
    key: Key
    namespaces: Optional[str] = None
    after: Optional[float] = None
    before: Optional[float] = None

    def refusal(self, now: float, namespace: str = NAMESPACE) -> str:
        """Return "" if a signature by this key is accepted at the time ``now``, else the reason."""
        if self.namespaces is not None and not _matches(namespace, self.namespaces):
            return f"{self.who} may not sign for the namespace {namespace}"
        if self.after is not None and now < self.after:
            return f"the key of {self.who} is not valid before {_shown(self.after)}"
        if self.before is not None and now > self.before:
            return f"the key of {self.who} is not valid after {_shown(self.before)}"
        return ""


def read_signers(path: str) -> List[Signer]:
    """Parse an allowed_signers file. Raises UsageError that names the invalid line."""
    return parse(_text(path), path)


def given(path: str) -> str:
    """Return the text of an allowed_signers file that a user named; it may be a pipe."""
    return _text(path, piped=True)


def parse(text: str, path: str) -> List[Signer]:
    """Parse the text of the allowed_signers file ``path``, as ``read_signers`` does."""
    return [signer for signer in (_signer(line, where) for where, line in _lines(text, path)) if signer]


def is_revoked(path: str, key: Key) -> bool:
    """Return whether the file ``path`` revokes ``key``.

    The file is a key revocation list (ssh-keygen -k), or has one fingerprint (SHA256:...) or public key per line.

    Raises:
        UsageError: the file is not valid.
        MissingTool: it is a revocation list, and ssh-keygen is missing.
    """
    with files.errors_named("read " + path), files.open_regular(path) as stream:
        if stream.read(len(_KRL_MAGIC)) == _KRL_MAGIC:
            return _is_in_krl(path, key)
    for where, line in _lines(_text(path), path):
        words = re.split(r"[ \t]+", line)
        if _FINGERPRINT.match(words[0]):
            revoked = words[0] == key.fingerprint
        elif len(words) > 1:
            revoked = _key(words[0], words[1], where) == key
        else:
            raise UsageError(f"{where}: neither a fingerprint (SHA256:...) nor a public key")
        if revoked:
            return True
    return False


def _is_in_krl(path: str, key: Key) -> bool:
    with tempfile.TemporaryDirectory(prefix="deployer-krl-") as folder:
        public = os.path.join(folder, "key.pub")
        files.write_text(public, key.line + "\n")
        try:
            done = process.run([SSH_KEYGEN, "-Q", "-f", path, public], timeout=_SECONDS, check=False)
        except MissingTool as error:
            hint = "install openssh-client, or list the revoked keys' fingerprints as text"
            text = f"{path} is a key revocation list, but ssh-keygen, which reads it, is missing"
            raise MissingTool(text, hint) from error
    if done.returncode and "REVOKED" not in done.stdout:
        raise UsageError(f"{path}: ssh-keygen cannot read it: {done.last_words()}")
    return done.returncode != 0


def _text(path: str, piped: bool = False) -> str:
    return files.read_text(path, "is the path right, and may you read it?", _MAX_FILE, piped)


def _lines(text: str, path: str) -> Iterator[Tuple[str, str]]:
    """Yield the lines of the file ``path`` that are neither empty nor comments, each with its position for errors.

    Lines end only at a newline, as for ssh-keygen. Invisible characters, and any that look like a line end or a space,
    are refused, in comments too; outside comments everything except ASCII is refused.
    """
    for number, line in enumerate(text.split("\n"), 1):
        where = "%s, line %d" % (path, number)
        strange = next((character for character in line.replace("\t", " ") if not character.isprintable()), "")
        if strange:
            hint = "lines end with a newline alone (in UTF-8, without a byte order mark); remove this character"
            raise UsageError(f"{where}: contains the invisible character {strange!a}", hint)
        line = line.strip(" \t")
        if line and not line.startswith("#"):
            yield where, line


def _signer(line: str, where: str) -> Optional[Signer]:
    match = _LINE.match(line)
    if not match:
        raise UsageError(f"{where}: not of the form WHO [OPTIONS] KIND KEY: {line[:200]!a}", _KINDS)
    who, options, kind, text = match.groups()
    _check_who(who, where)
    values = _options(options or "", where)
    after, before = (_time(values.get(name), name, where) for name in ("valid-after", "valid-before"))
    if after is not None and before is not None and before <= after:
        raise UsageError(f"{where}: valid-before is not later than valid-after")
    signer = Signer(who, _key(kind, text, where), values.get("namespaces"), after, before)
    # An authority signs certificates, not bundles; signatures by certificates are not supported.
    return None if "cert-authority" in values else signer


def _check_who(who: str, where: str) -> None:
    """Raise UsageError for principals that ssh-keygen never matches, or reads differently."""
    patterns = who.strip('"').split(",")
    # An @ at the start is a marker (@revoked, @cert-authority) in OpenSSH's similar known_hosts files.
    if not all(re.match(r'!?[ "-?A-~][ -~]{0,%d}$' % _MAX_PATTERN, pattern) for pattern in patterns):
        hint = "WHO is a list of identities (user@host), separated by commas, in ASCII"
        raise UsageError(f"{where}: invalid identity in {who[:200]!a}", hint)
    # At least one identity must match: one that the patterns suggest and none excludes.
    examples = [pattern.replace("*", "any").replace("?", "a") for pattern in patterns if not pattern.startswith("!")]
    if not any(_matches(example, ",".join(patterns)) for example in examples):
        raise UsageError(f"{where}: {who[:200]!a} excludes every identity that it names")


def _options(text: str, where: str) -> Dict[str, str]:
    values = {}
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        name, value = (match.group(1).lower(), match.group(2)) if match else ("", None)
        is_flag = name == "cert-authority"
        known = is_flag or name in ("namespaces", "valid-after", "valid-before")
        if not match or name in values or not known or is_flag != (value is None) or "\\" in (value or ""):
            hint = 'options are cert-authority, namespaces="...", valid-after="..." and valid-before="...", each once'
            raise UsageError(f"{where}: invalid options: {text[:200]!a}", hint)
        values[name] = value or ""
        position = match.end()
    return values


def _key(kind: str, text: str, where: str) -> Key:
    try:
        return read_key_text(kind, text)
    except IntegrityError as error:
        raise UsageError(f"{where}: {error.message}", error.hint) from error


def _time(text: Optional[str], name: str, where: str) -> Optional[float]:
    """Return a time given as YYYYMMDD[HHMM[SS]][Z]: with Z it is UTC, else in the time zone of this machine.

    OpenSSH reads local times without daylight saving. The stricter of its result and the local clock's result counts.
    """
    if text is None:
        return None
    try:
        match = _TIME.match(text)
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6]) if match else [0] * 6
        parsed = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timetuple()
        if year < _FIRST_YEAR:
            raise ValueError
        if text.endswith("Z"):
            return calendar.timegm(parsed)
        stricter = max if name == "valid-after" else min
        return stricter(time.mktime((*parsed[:8], daylight)) for daylight in (-1, 0))
    except (ValueError, OverflowError):
        hint = "give YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, from %d on; Z at the end means UTC" % _FIRST_YEAR
        raise UsageError(f"{where}: invalid time in {name}: {text[:40]!a}", hint) from None


def _matches(name: str, patterns: str) -> bool:
    """Return whether ``name`` is in a list of patterns; ``*`` and ``?`` are wildcards, a leading ``!`` excludes."""
    matches = False
    for pattern in patterns.split(","):
        if _is_like(name, pattern[1:] if pattern.startswith("!") else pattern):
            if pattern.startswith("!"):
                return False
            matches = True
    return matches


def _is_like(name: str, pattern: str) -> bool:
    """Return whether one pattern matches; unlike a regular expression, no pattern can make this slow."""
    at = position = 0
    star, retry = -1, 0  # the last *, and the first character of the name that it does not cover yet
    while at < len(name):
        if position < len(pattern) and pattern[position] == "*":
            star, retry = position, at
            position += 1
        elif position < len(pattern) and pattern[position] in ("?", name[at]):
            at, position = at + 1, position + 1
        elif star >= 0:
            retry += 1
            at, position = retry, star + 1
        else:
            return False
    return not pattern[position:].strip("*")


def _shown(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
