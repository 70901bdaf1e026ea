"""The Hugging Face hub: the user's own login, and the licences on the cards of repositories."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import requests

from deployer.contract.base.text import printable
from deployer.system import files

HOST = "huggingface.co"
#: Variables that keep the hub's libraries, old and new, from asking for the network.
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_FILE = re.compile(rf"https://{re.escape(HOST)}/(datasets/|spaces/)?([\w.-]+(?:/[\w.-]+)?)/resolve/([^/]+)/")
_TIMEOUT = 20.0
_UNKNOWN = "not stated"


def login(host: str) -> str:
    """Return the Authorization header of the user's own login for a host, or an empty text."""
    if host != HOST:
        return ""
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
        path = os.environ.get("HF_TOKEN_PATH") or str(Path(home) / "token")
        token = files.read_text(path).strip() if files.is_file(path) else ""
    return f"Bearer {token}" if token.isascii() and token.isprintable() and token else ""


def licences(urls: Iterable[str], session: requests.Session) -> dict[str, str]:
    """Return the licence on the card of each repository with a downloaded file."""
    matches = filter(None, map(_FILE.match, urls))
    found = {(match[1] or "models/", match[2]): match[3] for match in matches}
    return {name: _licence(kind, name, revision, session) for (kind, name), revision in sorted(found.items())}


def _licence(kind: str, name: str, revision: str, session: requests.Session) -> str:
    url, header = f"https://{HOST}/api/{kind}{name}/revision/{revision}", login(HOST)
    try:
        answer = session.get(url, headers={"Authorization": header} if header else {}, timeout=_TIMEOUT).json()
        licence = answer["cardData"]["license"]
    except (requests.exceptions.RequestException, ValueError, KeyError, TypeError):
        return _UNKNOWN
    return printable(", ".join(licence) if isinstance(licence, list) else str(licence))[:100]
