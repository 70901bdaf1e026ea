"""The host's network settings for a build: a CA bundle, pip's indexes, proxies. They are never part of an image.

Builders mount them in each RUN step. All files contain ``MARK``, so one search finds any trace in a finished image
(docs/adr/0003-build-settings-leave-no-trace.md).
"""

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from deployer.contract.base.errors import MissingTool, UsageError
from deployer.system import files, process

MARK = "deployer-build-settings"
#: The folder with the build settings during a RUN step. Its name may be in an image's history, so it is not a trace.
FOLDER = "/run/deployer"

#: If no option is given, the first of these variables that is set to a file's path selects the host's CA bundle.
_CA_VARIABLES = ("DEPLOYER_CA_BUNDLE", "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")

#: Variables with which programs in a build find the CA bundle.
_CA_READERS = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")

_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy")
_WEB = ("http://", "https://")
_APT_PROXY = re.compile(r'^(Acquire::https?::Proxy(?:::[A-Za-z0-9.:-]+)?) "([^"]+)";$')
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


class BuildSettings(NamedTuple):
    """Settings for a build. Each of them may be empty.

    Attributes:
        ca: certificates in PEM.
        pip: the text of a pip.conf.
        apt: apt's options for proxies, with their values.
        proxies: proxy variables, with their values.
        sources: the text of a sources.list that replaces Debian's mirror.
        find_links: folders and pages with packages, for programs on this host.
    """

    ca: bytes = b""
    pip: str = ""
    apt: Mapping[str, str] = {}
    proxies: Mapping[str, str] = {}
    sources: str = ""
    find_links: tuple[str, ...] = ()

    def contents(self, folder: str = FOLDER) -> dict[str, bytes]:
        """Return the files for a build by name. Each file contains MARK; ca.crt has it before each certificate.

        Args:
            folder: where the build finds them.
        """
        found = {}
        apt = "".join(f'{name} "{value}";\n' for name, value in sorted(self.apt.items()))
        if self.ca:
            found["ca.crt"] = self.ca.replace(b"-----BEGIN CERTIFICATE", f"# {MARK}\n-----BEGIN CERTIFICATE".encode())
            apt += f'Acquire::https::CAInfo "{folder}/ca.crt";\n'
        if self.pip:
            found["pip.conf"] = f"# {MARK}\n{self.pip}".encode()
        if self.sources:
            found["sources.list"] = f"# {MARK}\n{self.sources}".encode()
            apt += f'Dir::Etc::SourceList "{folder}/sources.list";\nDir::Etc::SourceParts "-";\n'
        if apt:
            found["apt.conf"] = f"# {MARK}\n{apt}".encode()
        return found

    def environment(self, folder: str = FOLDER) -> dict[str, str]:
        """Return the variables with which programs in a build find the files in ``folder``."""
        found = {}
        if self.ca:
            found.update(dict.fromkeys(_CA_READERS, f"{folder}/ca.crt"))
        if self.pip:
            found["PIP_CONFIG_FILE"] = f"{folder}/pip.conf"
        if "apt.conf" in self.contents():
            found["APT_CONFIG"] = f"{folder}/apt.conf"
        return found

    def traces(self) -> dict[str, bytes]:
        """Return the bytes that an image must not contain. The keys are descriptions for errors."""
        found = {"the build settings": MARK.encode()}
        texts = [self.pip, self.sources, *self.apt.values(), *self.proxies.values()]
        urls = re.findall(r"https?://[^\s\"']+", " ".join(texts))
        for url in urls:
            login, at, _ = urlsplit(url).netloc.rpartition("@")
            if at:
                found[f"the login for {urlsplit(url).hostname}"] = login.encode()
        return found


def from_host(
    ca_bundle: Path | None, pip_conf: Path | None, environ: Mapping[str, str], apt_sources: Path | None = None
) -> BuildSettings:
    """Return the settings of this host.

    Args:
        ca_bundle: a file with certificates, instead of the host's.
        pip_conf: a pip.conf, instead of the host's pip settings.
        environ: the environment.
        apt_sources: a file with deb lines, instead of Debian's mirror.

    Raises:
        UsageError: a given file cannot be read or has the wrong content.
    """
    ca = b""
    source = str(ca_bundle) if ca_bundle else next((environ[name] for name in _CA_VARIABLES if environ.get(name)), "")
    if source:
        ca = files.read_text(source, "--ca-bundle requires a file with certificates in PEM", piped=True).encode()
        if b"-----BEGIN CERTIFICATE" not in ca:
            raise UsageError(f"{source} contains no certificate", "it must be in PEM: -----BEGIN CERTIFICATE-----")
    listing = "" if pip_conf else _pip_config(environ)
    pip = files.read_text(str(pip_conf), piped=True) if pip_conf else pip_settings(listing)
    names = [name for name in _PROXY_VARIABLES for name in (name, name.upper())]
    proxies = {name: environ[name] for name in names if environ.get(name)}
    return BuildSettings(
        ca, pip, apt_proxies(_apt_config()), proxies, _sources(apt_sources, environ), find_links(listing)
    )


def _sources(apt_sources: Path | None, environ: Mapping[str, str]) -> str:
    source = str(apt_sources or environ.get("DEPLOYER_APT_SOURCES", ""))
    if not source:
        return ""
    text = files.read_text(source, "--apt-sources requires a file with deb lines", piped=True)
    if not re.search(r"^deb\s", text, re.MULTILINE):
        raise UsageError(f"{source} has no deb line", "it is a sources.list: deb URL SUITE COMPONENT...")
    return text


def pip_settings(listing: str) -> str:
    """Return a pip.conf with the indexes, trusted hosts and proxy from the output of ``pip config list``.

    An index in a folder of this host (file://) is left out, because a build cannot read it.
    """
    values: dict[str, str] = {}
    for key, words in _pip_values(listing, _PIP_KEYS).items():
        kept = [word for word in words if not key.endswith("index-url") or word.startswith(_WEB)]
        if kept:
            values[key] = "\n    ".join(kept)
    if not values:
        return ""
    return "[global]\n" + "".join(f"{key} = {values[key]}\n" for key in _PIP_KEYS if key in values)


def find_links(listing: str) -> tuple[str, ...]:
    """Return the find-links in the output of ``pip config list``: pages, and existing folders."""
    found = _pip_values(listing, ("find-links",)).get("find-links", [])
    return tuple(place for place in found if place.startswith(_WEB) or Path(place.removeprefix("file://")).is_dir())


def _pip_values(listing: str, keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of settings in the output of ``pip config list``, each as a list of words."""
    values: dict[str, list[str]] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        scope, _, key = name.rpartition(".")
        # In pip, the environment takes precedence over files, but its position in the list depends on pip's version.
        if key in keys and (scope == ":env:" or key not in values):
            values[key] = str(ast.literal_eval(value)).split()
    return values


def apt_proxies(dump: str) -> dict[str, str]:
    """Return the proxies in the output of ``apt-config dump``, by option."""
    return {found[1]: found[2] for found in map(_APT_PROXY.match, dump.splitlines()) if found}


def _pip_config(environ: Mapping[str, str]) -> str:
    """Return the output of ``pip config list``; empty without pip."""
    own = {name: value for name, value in environ.items() if name.startswith("PIP_")}
    argv = [sys.executable, "-m", "pip", "config", "list"]
    return process.run(argv, timeout=60, env={**process.base_environment(), **own}, check=False).stdout


def _apt_config() -> str:
    try:
        return process.run(["apt-config", "dump"], timeout=30, check=False).stdout
    except MissingTool:  # this machine does not run Debian
        return ""
