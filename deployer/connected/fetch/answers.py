"""The recorded answers that a job gets at a site without a network: those of which the program left no file.

``contract.site.replay`` describes the folder. The key of the certificate authority is never written: nobody can make a
certificate for another host, and only the job trusts those for its hosts.
"""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

import certifi
import trustme

from deployer.connected.fetch import hub
from deployer.connected.fetch.downloads import Download, DownloadStore
from deployer.connected.fetch.recorder import Records
from deployer.contract.site import replay
from deployer.system import files

#: The most bytes of one answer, and of all.
LARGEST, MOST = 64 * 1024 * 1024, 1024 * 1024 * 1024
_HEADERS = ("content-type", "content-disposition", "content-encoding", "etag", "last-modified")


def keep(records: Records, store: DownloadStore, kept: Collection[str], target: Path, last: Path) -> list[str]:
    """Write the answers that are not among the kept files into the new folder ``target``; return their addresses.

    The hub's libraries do not ask for anything if they are told that there is no network (``hub.OFFLINE``).

    Args:
        kept: digests of the kept files.
        last: the folder of the last fetch: its certificates are used again for the same hosts.

    Raises:
        DeployerError: the disk is full.
    """
    found: dict[str, Download] = {}
    room = MOST
    for name, url in sorted(records.exact.items(), key=lambda item: item[1]):
        each = records.downloads.get(url)
        if each is None or each.sha256 in kept or urlsplit(url).hostname == hub.HOST or each.size > min(LARGEST, room):
            continue
        stored = store.find(records.places[each.sha256])
        if stored and stored.sha256 == each.sha256:  # another fetch uses the store too
            found[name] = each
            room -= each.size
    urls = [urlsplit(each.url) for each in found.values()]
    hosts = "".join(sorted({f"{url.hostname}\n" for url in urls if url.scheme == "https"}))
    if found:
        target.mkdir(parents=True)
        with files.errors_named(f"write {target}"):
            for name, each in found.items():
                _write(target / name, each, store, records.places[each.sha256])
            _certify(hosts, target, last)
    return sorted({each.url for each in found.values()})


def _write(path: Path, answer: Download, store: DownloadStore, url: str) -> None:
    headers = {name: value for name, value in answer.headers.items() if name in _HEADERS and value.isprintable()}
    with open(path, "wb") as stream, store.open(url) as body:
        stream.write(json.dumps(headers).encode() + b"\n")
        shutil.copyfileobj(body, stream)


def _certify(hosts: str, target: Path, last: Path) -> None:
    """Write the names of the hosts, their certificate, and those that programs trust."""
    files.write_text(str(target / replay.HOSTS), hosts)
    if files.exists(str(last / replay.HOSTS)) and files.read_text(str(last / replay.HOSTS)) == hosts:
        for name in (replay.KEY, replay.CERTIFICATES):
            shutil.copyfile(last / name, target / name)
        return
    authority = trustme.CA()
    leaf = authority.issue_cert(*hosts.split() or ["localhost"])
    trusted = [files.read_text(certifi.where()), authority.cert_pem.bytes().decode()]
    files.write_text(str(target / replay.KEY), leaf.private_key_and_cert_chain_pem.bytes().decode())
    files.write_text(str(target / replay.CERTIFICATES), "\n".join(trusted))
