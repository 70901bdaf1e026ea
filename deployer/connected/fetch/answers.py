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
from deployer.connected.fetch.downloads import DownloadStore
from deployer.connected.fetch.recorder import Records
from deployer.contract.site import replay
from deployer.system import files

#: The most bytes of one answer, and of all.
LARGEST, MOST = 64 * 1024 * 1024, 1024 * 1024 * 1024


def keep(records: Records, store: DownloadStore, kept: Collection[str], target: Path, last: Path) -> list[str]:
    """Write the answers that are not among the kept files into the new folder ``target``; return their addresses.

    Answers of the hub are left out: with ``hub.OFFLINE``, its libraries send no requests.

    Args:
        kept: digests of the kept files.
        last: the folder of the last fetch: its certificates are used again for the same hosts.

    Raises:
        DeployerError: the disk is full.
    """
    names, room = {}, MOST
    for name, url in sorted(records.exact.items(), key=lambda item: item[1]):
        each = records.downloads.get(url)
        if not each or each.sha256 in kept or urlsplit(url).hostname == hub.HOST or each.size > min(LARGEST, room):
            continue
        stored = store.find(each.place)
        if not stored or stored.sha256 != each.sha256:  # another fetch uses the store too
            continue
        headers = {key: value for key, value in stored.headers.items() if value.isprintable()}
        with files.errors_named(f"write {target}"), store.open(each.place) as body:
            target.mkdir(parents=True, exist_ok=True)
            with open(target / name, "wb") as stream:
                stream.write(json.dumps(headers).encode() + b"\n")
                shutil.copyfileobj(body, stream)
        names[name], room = url, room - each.size
    if names:
        _certify({str(url.hostname) for url in map(urlsplit, names.values()) if url.scheme == "https"}, target, last)
    return sorted({*names.values()})


def _certify(hosts: Collection[str], target: Path, last: Path) -> None:
    """Write the names of the hosts, their certificate, and those that programs trust."""
    text = "\n".join(sorted(hosts))
    files.write_text(str(target / replay.HOSTS), text)
    if files.is_file(str(last / replay.HOSTS)) and files.read_text(str(last / replay.HOSTS)) == text:
        for name in (replay.KEY, replay.CERTIFICATES):
            shutil.copyfile(last / name, target / name)
        return
    authority = trustme.CA()
    key = authority.issue_cert(*hosts or ["localhost"]).private_key_and_cert_chain_pem.bytes()
    files.write_text(str(target / replay.KEY), key.decode())
    trusted = files.read_text(certifi.where()) + "\n" + authority.cert_pem.bytes().decode()
    files.write_text(str(target / replay.CERTIFICATES), trusted)
