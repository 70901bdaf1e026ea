"""The page of a bundle for a security officer: ``inspect --html``."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deployer import __version__
from deployer.connected.bundle.about import sbom as sboms
from deployer.connected.bundle.about import scan
from deployer.connected.bundle.about.diff import diff
from deployer.connected.bundle.about.listing import files_of
from deployer.connected.bundle.about.running_code import HEAD, runs_code
from deployer.connected.ground import progress
from deployer.connected.ground.reports.html_page import page
from deployer.connected.rootfs import secrets
from deployer.connected.rootfs.entries import InMemory, shown
from deployer.connected.rootfs.flatten import CHANGES
from deployer.connected.rootfs.package_files import PackageFiles
from deployer.contract.base.shell import quoted
from deployer.contract.base.tarformat import FILE, TarEntry
from deployer.contract.bundle import scan as scans
from deployer.contract.bundle.manifest import APP_PREFIX, DATA_PREFIX, PLANS_PREFIX, SBOM_MEMBER, Manifest
from deployer.contract.bundle.sealed_file import contents, member_segments, small
from deployer.contract.site import plan as plans
from deployer.system.trust.verify import Verification, begin, opened, size_of, verify

_SECTIONS = (
    "Known vulnerabilities, secrets, and what is new",
    "What it is",
    "Files outside of packages",
    "Addresses",
    "Verdict",
    "Packages",
    "Changes by flatten",
    "Files of the bundle",
    "Differences from the previous bundle",
)
#: Bytes of each file to search for addresses; bytes of a package's file list to read; findings to list per kind.
_HEAD, _LIST, _LISTED = 64 * 1024, 16 * 1024 * 1024, 500
_URL = re.compile(rb"\b(?:https?|ftp|ssh|git|s3|gs)://[^\s\"'<>`\\)\]}]{3,300}")
#: Addresses of licences, as licence texts contain them.
_LICENCE = re.compile(
    r"https?://(www\.)?(gnu\.org/(licenses|copyleft)|apache\.org/licenses|opensource\.org/licen[cs]es?"
    r"|creativecommons\.org/(licenses|publicdomain)|mozilla\.org/MPL|perlfoundation\.org/artistic_license"
    r"|spdx\.org/licenses|boost\.org/LICENSE)"
)


def make(path: str, before: str | None) -> str:
    """Return the page of a bundle after verifying every byte.

    Args:
        path: the path of the bundle.
        before: an earlier bundle for comparison, or None.
    """
    with opened(path) as stream:
        with progress.bar("verify", size_of(stream)) as advance:
            verified = verify(stream, path, progress=advance)
        bundle = begin(stream, path)
        manifest = bundle.manifest
        document = sboms.parsed(small(manifest, SBOM_MEMBER, bundle.read))
        found = _searched(bundle)
        running = _running(bundle)
        made = [plans.read(_content(bundle, name), name) for name in _members(manifest, PLANS_PREFIX)]
    scanned, before_scanned = scan.verified(path), scan.verified(before) if before else None
    return page(
        "bundle.html",
        title=f"Bundle {manifest.name} {manifest.version}",
        sections=_SECTIONS,
        deployer=__version__,
        file=Path(path).name,
        manifest=manifest,
        verified=verified,
        jobs=[(job, quoted(job.command)) for job in manifest.jobs],
        plans=made,
        packages=list(_packages(document)),
        meanings=CHANGES,
        found=found,
        running=running,
        searched=_HEAD,
        data=[member.size for member in manifest.members if member.name.startswith(DATA_PREFIX)],
        members=[member for member in manifest.members if not member.name.startswith("blobs/")],
        day=scans.day,
        scan=scanned and scanned[0],
        scan_trust=scanned and scanned[1],
        new=scanned and before_scanned and scanned[0].new_since(before_scanned[0]),
        before=Path(before).name if before else "",
        difference=diff(before, path) if before else None,
        most=_LISTED,
    )


def _packages(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, version, licence and places of each component; the places of a module are programs."""
    components = document.get("components", ())
    for item in sorted(components, key=lambda item: (str(item.get("type")), str(item.get("name")))):
        places = ", ".join(str(place.get("location")) for place in item.get("evidence", {}).get("occurrences", ()))
        yield str(item.get("name", "")), str(item.get("version", "")), _licence(item), places


def _licence(item: Mapping[str, Any]) -> str:
    names = []
    for choice in item.get("licenses", ()):
        licence = choice.get("license", {})
        names.append(str(choice.get("expression") or licence.get("id") or licence.get("name") or ""))
    return ", ".join(filter(None, names)) or "not stated"


def _searched(bundle: Verification) -> dict[str, Any]:
    """Return what files contain that an officer asks for: programs, files outside of packages, and addresses."""
    packages, regular, scripts, secret = PackageFiles(), [], [], []
    for listed in files_of(bundle, _wanted):
        entry = listed.entry
        if entry.kind == FILE:
            path = os.fsdecode(entry.path)
            regular.append((not entry.mode & 0o111, path))
            packages.add(path, listed.head)
            secret += [(path, one) for one in secrets.in_files([(path, InMemory(listed.head))])]
            if listed.head.startswith(b"#!"):
                scripts.append((path, _urls(listed.head[:_HEAD])))
    outside = sorted(each for each in regular if each[1] not in packages)
    own = [(_shown(path), urls) for path, urls in scripts if path not in packages]
    packaged: dict[str, list[str]] = {}
    for path, url in ((path, url) for path, urls in scripts if path in packages for url in urls):
        if not _LICENCE.match(url):
            packaged.setdefault(url.split("/")[2], []).append(_shown(path))
    app = _members(bundle.manifest, APP_PREFIX)
    own += [(shown(name.encode()), _urls(_content(bundle, name)[:_HEAD])) for name in app]
    secret = [(path, one) for path, one in secret if path.startswith("etc/") or path not in packages]
    for name in app:
        secret += [(name, one) for one in secrets.in_content(name, _content(bundle, name))]
    named = [(path, [url for url in urls if not _LICENCE.match(url)]) for path, urls in own]
    return {
        "secrets": [one for _, one in secret],
        "files": len(regular) + len(app),
        "programs": sum(not plain for plain, _ in regular),
        "outside": [_shown(path) for _, path in outside],  # no package lists them; executable ones come first
        "executables": sum(not plain for plain, _ in outside),
        "own": [(path, urls[:_LISTED]) for path, urls in named if urls],
        "packaged": {host: sorted({*paths}) for host, paths in sorted(packaged.items())},  # scripts of packages
        "licences": sum(bool(_LICENCE.match(url)) for _, urls in [*own, *scripts] for url in urls),  # left out
    }


def _running(bundle: Verification) -> list[str]:
    """Return the files of the app and the data that run code when a library loads them."""
    segments = contents(bundle.manifest.members, bundle.manifest.segments)
    names = [*_members(bundle.manifest, APP_PREFIX), *_members(bundle.manifest, DATA_PREFIX)]
    heads = ((name, b"".join(bundle.read(segment)[:HEAD] for segment in segments[name][:1])) for name in names)
    return [shown(os.fsencode(name)) for name, head in heads if runs_code(name, head)]


def _wanted(entry: TarEntry) -> int:
    """Return the number of bytes to read from a file."""
    return _LIST if PackageFiles.is_list(os.fsdecode(entry.path)) else _HEAD


def _shown(path: str) -> str:
    return "/" + shown(os.fsencode(path))


def _urls(content: bytes) -> list[str]:
    """Return the distinct addresses in a text."""
    return list(dict.fromkeys(url.decode("utf-8", "replace").rstrip(".,;") for url in _URL.findall(content)))


def _members(manifest: Manifest, prefix: str) -> list[str]:
    return [member.name for member in manifest.members if member.name.startswith(prefix)]


def _content(bundle: Verification, name: str) -> bytes:
    return b"".join(bundle.read(segment) for segment in member_segments(bundle.manifest, name))
