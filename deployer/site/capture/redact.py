"""Placeholders for confidential names; a name gets the same placeholder everywhere in a capture."""

import os
import re
import socket
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from deployer.contract.json_records import Record

_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")


class Redaction(object):
    """Replaces names by ``host-1``, ``user-1``, ``address-1``, ``hidden-1``, in keys and values alike."""

    def __init__(self, hosts: Sequence[str], users: Sequence[str], hidden: Sequence[str]) -> None:
        self._placeholders: Dict[str, str] = {}
        for kind, words in (("hidden", hidden), ("host", hosts), ("user", users)):
            for word in words:
                if word and word not in self._placeholders and (kind == "hidden" or word not in ("root", "localhost")):
                    used = sum(1 for other in self._placeholders.values() if other.lstrip("/").startswith(kind))
                    slash = "/" if word.startswith("/") else ""  # a path remains a path
                    self._placeholders[word] = "%s%s-%d" % (slash, kind, used + 1)
        self._addresses: Dict[str, str] = {}
        longest_first = sorted(self._placeholders, key=len, reverse=True)
        words = "|".join(re.escape(word) for word in longest_first) or r"(?!)"
        self._pattern = re.compile(r"(?<![A-Za-z0-9])(?:%s)(?![A-Za-z0-9])" % words)

    def __call__(self, value: Any) -> Any:
        """Return the JSON value ``value`` without the names."""
        if isinstance(value, str):
            text = self._pattern.sub(lambda match: self._placeholders[match.group()], value)
            return _ADDRESS.sub(lambda match: self._address(match.group()), text)
        if isinstance(value, dict):
            return {self(key): self(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self(each) for each in value]
        return value

    def _address(self, text: str) -> str:
        if any(int(part) > 255 for part in text.split(".")):
            return text
        return self._addresses.setdefault(text, "address-%d" % (len(self._addresses) + 1))


def of(profile: Record, hidden: Sequence[str] = ()) -> Redaction:
    """Return the redaction of a capture: its machines, the user who made it, and the words in ``hidden``."""
    hosts: List[str] = []
    for name in [socket.gethostname(), *_hosts(profile)]:
        hosts += [name, name.partition(".")[0]]
        domain = name.partition(".")[2]
        if "." in domain:
            hosts.append(domain)
    home = os.path.expanduser("~")
    users = [os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), os.path.basename(home)]
    return Redaction(list(dict.fromkeys(hosts)), list(dict.fromkeys(users)), hidden)


def _hosts(profile: Record) -> Iterator[str]:
    """Yield the machines in a captured profile."""
    login = profile.get("login")
    if isinstance(login, dict) and isinstance(login.get("host"), str):
        yield login["host"]
    for source in _sources(profile):
        yield source


def _sources(value: Any) -> Iterator[str]:
    pairs: List[Tuple[str, Any]] = list(value.items()) if isinstance(value, dict) else []
    for key, each in pairs:
        if key == "source" and isinstance(each, dict) and each.get("kind") == "captured":
            yield str(each.get("where", ""))
        else:
            yield from _sources(each)
