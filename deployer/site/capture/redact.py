"""Placeholders for confidential names; a name gets the same placeholder throughout a capture."""

import ipaddress
import os
import pwd
import re
import socket
from contextlib import suppress
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Match, Sequence

from deployer.contract.base.json_records import Record

#: The prefix of placeholders for the user's own words; every occurrence of such a word is replaced.
HIDDEN = "hidden"
_PUBLIC = ("root", "localhost")
#: Keys of profiles that may also be names of hosts or users.
_KEYS = frozenset(("driver", "fabric", "host", "login", "module", "mpi", "node", "policy", "scheduler", "source"))
_OF_CARD = r"(?<!\w)(?:[0-9a-f]{2}[:-]){5,19}[0-9a-f]{2}(?!\w)"
_IPV4 = r"(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)"
_IPV6 = rf"(?:(?<!\w)[0-9a-f]{{1,4}}:|(?<![\w:])::)(?:[0-9a-f]{{0,4}}:){{0,6}}(?:{_IPV4}|[0-9a-f]{{1,4}})?(?![\w:])"
_ZEROS = re.compile(r"(?<![0-9a-f])0+(?=[0-9a-f])", re.IGNORECASE)
#: Candidates for network card and internet addresses; a time has the same form as an internet address.
_ADDRESS = re.compile(rf"({_OF_CARD})|{_IPV6}|(?<![\d.]){_IPV4}", re.IGNORECASE)


class Redaction:
    """Replaces names with ``host-1``, ``user-1``, ``address-1``, ``hidden-1``, in both keys and values.

    Args:
        names: the words to replace, by kind. Placeholders begin with the kind; the first kind of a word counts.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._placeholders: Dict[str, str] = {}
        for kind, words in names.items():
            known = {"", *self._placeholders, *(() if kind == HIDDEN else _PUBLIC)}
            for number, word in enumerate((word for word in dict.fromkeys(words) if word not in known), 1):
                slash = "/" if word.startswith("/") else ""  # a path remains a path
                self._placeholders[word] = "%s%s-%d" % (slash, kind, number)
        self._addresses: Dict[str, str] = {}
        longest_first = sorted(self._placeholders, key=len, reverse=True)
        words = "|".join(re.escape(word) for word in longest_first) or r"(?!)"
        self._pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])")

    def __call__(self, value: Any) -> Any:
        """Return the JSON value ``value`` without the names."""
        if isinstance(value, str):
            text = self._pattern.sub(lambda match: self._placeholders[match.group()], value)
            return _ADDRESS.sub(self._address, text)
        if isinstance(value, dict):
            return {key if key in _KEYS else self(key): self(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(each) for each in value]
        return value

    def _address(self, match: Match[str]) -> str:
        text = match.group()
        try:
            if not match.group(1):
                ipaddress.ip_address(_ZEROS.sub("", text))
        except ValueError:
            return text
        return self._addresses.setdefault(text, "address-%d" % (len(self._addresses) + 1))


def of(profile: Record, hidden: Sequence[str] = ()) -> Redaction:
    """Return the redaction of a capture: its machines, the user who created it, and the words in ``hidden``."""
    login = profile.get("login")
    own = [login["host"]] if isinstance(login, dict) and isinstance(login.get("host"), str) else []
    return Redaction({HIDDEN: hidden, "host": hosts([*own, *_sources(profile)]), "user": users()})


def hosts(names: Iterable[str]) -> List[str]:
    """Return the names of this machine and others, with and without their domains, and the domains."""
    found: List[str] = []
    for name in [socket.gethostname(), *names]:
        short, _, domain = name.partition(".")
        found += [name, short, *([domain] if "." in domain else [])]
    return found


def users() -> List[str]:
    """Return the names of the user, from the environment and from the system."""
    found = [os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), os.path.basename(os.path.expanduser("~"))]
    with suppress(KeyError):  # a user id without a name
        known = pwd.getpwuid(os.getuid())
        found += [known.pw_name, known.pw_gecos.partition(",")[0]]
    return found


def _sources(value: Any) -> Iterator[str]:
    """Yield the machines on which the facts of a profile were captured."""
    for key, each in value.items() if isinstance(value, dict) else ():
        if key == "source" and isinstance(each, dict) and each.get("kind") == "captured":
            yield str(each.get("where", ""))
        else:
            yield from _sources(each)
