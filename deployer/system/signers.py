"""Who may sign: an allowed_signers file, and who may no longer: a file of revoked keys.

Formats: ssh-keygen(1), ALLOWED SIGNERS and KEY REVOCATION LISTS. Both are read here and not by ssh-keygen, which knows
dates only since OpenSSH 8.7 and the Z of UTC since 9.1, so that a file means the same on every site. What cannot be
understood is an error, never skipped: it might be the line that counts.
"""

import calendar
import os
import re
import tempfile
import time
from typing import Iterator, List, NamedTuple, Optional, Tuple

from deployer.contract import sshsig
from deployer.contract.errors import IntegrityError, MissingTool, UsageError
from deployer.contract.sshsig import Key
from deployer.system import files, process
from deployer.system.signature import SSH_KEYGEN

_KRL_MAGIC = b"SSHKRL\n\0"
_FINGERPRINT = re.compile(r"^SHA256:[A-Za-z0-9+/]{43}$")
_OPTION = re.compile(r'([a-zA-Z-]+)(?:="([^"]*)")?(,|$)')
_TIME_FORMATS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_SECONDS = 60


class Signer(NamedTuple):
    """A line of an allowed_signers file: ``who`` may sign with ``key`` from ``after`` to ``before``.

    Times are in seconds since the epoch; None has no limit. ``namespaces`` is a list of patterns, None allows all.
    """

    who: str
    key: Key
    namespaces: Optional[str] = None
    after: Optional[float] = None
    before: Optional[float] = None

    def refusal(self, now: float, namespace: str = sshsig.NAMESPACE) -> str:
        """Return "" where what is signed by this key is accepted at the time ``now``, else why not."""
        if self.namespaces is not None and not _matches(namespace, self.namespaces):
            return "%s may not sign for the namespace %s" % (self.who, namespace)
        if self.after is not None and now < self.after:
            return "the key of %s is not valid before %s" % (self.who, _shown(self.after))
        if self.before is not None and now > self.before:
            return "the key of %s is not valid after %s" % (self.who, _shown(self.before))
        return ""


def read(path: str) -> List[Signer]:
    """Parse an allowed_signers file. Raises UsageError with the line that is wrong."""
    found = []
    for where, line in _lines(path):
        signer = _signer(line, where)
        if signer:
            found.append(signer)
    return found


def is_revoked(path: str, key: Key) -> bool:
    """Return whether the file ``path`` revokes ``key``.

    The file is a key revocation list (ssh-keygen -k), or has a fingerprint (SHA256:...) or a public key a line. Raises
    UsageError for a file that cannot be understood, MissingTool for a revocation list without ssh-keygen.
    """
    with files.errors_named("read " + path), open(path, "rb") as stream:
        if stream.read(len(_KRL_MAGIC)) == _KRL_MAGIC:
            return _is_in_krl(path, key)
    for where, line in _lines(path):
        words = line.split()
        if _FINGERPRINT.match(words[0]):
            revoked = words[0] == key.fingerprint
        elif len(words) > 1:
            revoked = _key(words[0], words[1], where) == key
        else:
            raise UsageError("%s: neither a fingerprint (SHA256:...) nor a public key" % where)
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
            raise MissingTool(
                "%s is a key revocation list, and ssh-keygen is not here to read it" % path, hint
            ) from error
    if done.returncode and "REVOKED" not in done.stdout:
        raise UsageError("%s: ssh-keygen cannot read it: %s" % (path, done.last_words()))
    return done.returncode != 0


def _lines(path: str) -> Iterator[Tuple[str, str]]:
    """Yield the lines of a file that are neither empty nor comments, each with where it stands."""
    text = files.read_text(path, "is the path right, and may you read it?")
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            yield "%s, line %d" % (path, number), line


def _signer(line: str, where: str) -> Optional[Signer]:
    who, rest = _word(line)
    options, rest = ("", rest) if _word(rest)[0] in sshsig.ALGORITHMS else _word(rest)
    kind, rest = _word(rest)
    words = rest.split()
    if not words:
        raise UsageError("%s: not of the form WHO [OPTIONS] KIND KEY" % where)
    if kind not in sshsig.ALGORITHMS:
        raise UsageError("%s: a key of kind %r cannot sign bundles" % (where, kind))
    found = {}
    position = 0
    while position < len(options):
        match = _OPTION.match(options, position)
        if not match or match.group(1).lower() in found:
            raise UsageError("%s: the options %r cannot be understood" % (where, options))
        found[match.group(1).lower()] = match.group(2)
        position = match.end()
    unknown = set(found) - {"cert-authority", "namespaces", "valid-after", "valid-before"}
    if unknown or any(text is None for name, text in found.items() if name != "cert-authority"):
        raise UsageError("%s: the options %r cannot be understood" % (where, options))
    after, before = (_time(found.get(name), where) for name in ("valid-after", "valid-before"))
    signer = Signer(who, _key(kind, words[0], where), found.get("namespaces"), after, before)
    # An authority signs certificates, not bundles; signatures by certificates are not supported.
    return None if "cert-authority" in found else signer


def _word(text: str) -> Tuple[str, str]:
    """Return the first word of ``text``, in which quotes protect spaces, and the rest."""
    match = re.match(r'((?:[^\s"]|"[^"]*")*)\s*(.*)$', text)
    return (match.group(1), match.group(2)) if match else ("", "")


def _key(kind: str, text: str, where: str) -> Key:
    try:
        return sshsig.read_key_text(kind, text)
    except IntegrityError as error:
        raise UsageError("%s: %s" % (where, error.message), error.hint) from error


def _time(text: Optional[str], where: str) -> Optional[float]:
    """Return a time given as YYYYMMDD[HHMM[SS]][Z]: with Z it is UTC, else in the time zone of this machine."""
    if text is None:
        return None
    digits = text[:-1] if text.endswith("Z") else text
    try:
        parsed = time.strptime(digits, _TIME_FORMATS[len(digits)])
        return calendar.timegm(parsed) if text.endswith("Z") else time.mktime(parsed)
    except (KeyError, ValueError, OverflowError):
        raise UsageError("%s: %r is no time of the form YYYYMMDD[HHMM[SS]][Z]" % (where, text)) from None


def _matches(name: str, patterns: str) -> bool:
    """Return whether ``name`` is in a pattern-list: ``*`` and ``?`` are wild, ``!`` before a pattern excludes."""
    found = False
    for pattern in patterns.split(","):
        wanted = pattern[1:] if pattern.startswith("!") else pattern
        expression = re.escape(wanted).replace(r"\*", ".*").replace(r"\?", ".")
        if re.match("(?:%s)$" % expression, name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _shown(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
