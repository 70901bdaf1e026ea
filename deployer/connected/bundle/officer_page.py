"""The page of a bundle for a security officer: ``inspect --html``."""

import datetime as dt
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deployer import __version__
from deployer.connected.bundle import end_of_support
from deployer.connected.bundle import sbom as sboms
from deployer.connected.bundle.diff import Difference, diff
from deployer.connected.bundle.listing import files_of
from deployer.connected.bundle.package_files import PackageFiles
from deployer.connected.check import rehearsed
from deployer.connected.ground import progress
from deployer.connected.ground.html_page import as_bad, as_code, page
from deployer.connected.rootfs.entries import shown
from deployer.connected.rootfs.flatten import CHANGES
from deployer.contract import plan as plans
from deployer.contract.manifest import APP_PREFIX, DATA_PREFIX, PLANS_PREFIX, BundleMember, Manifest
from deployer.contract.plan import Plan
from deployer.contract.sealed_file import member_segments
from deployer.contract.shell import quoted
from deployer.contract.tarformat import FILE, TarEntry
from deployer.contract.text import counted
from deployer.system.trust import Trust
from deployer.system.verify import Verification, VerifiedBundle, begin, opened, verify

_SECTIONS = (
    "What it is",
    "Files outside of packages",
    "Addresses",
    "Verdict and rehearsal",
    "Packages",
    "Changes by flatten",
    "Files of the bundle",
    "Differences from the previous bundle",
)
#: How much of each file is searched for addresses, and of a package's list of files read; findings of a kind, and
#: files with the same address, that are listed.
_HEAD, _LIST, _LISTED, _SAME = 64 * 1024, 16 * 1024 * 1024, 500, 3
_URL = re.compile(rb"\b(?:https?|ftp|ssh|git|s3|gs)://[^\s\"'<>`\\)\]}]{3,300}")
#: Addresses of licences, which texts of licences contain.
_LICENCE = re.compile(
    r"https?://(www\.)?(gnu\.org/(licenses|copyleft)|apache\.org/licenses|opensource\.org/licen[cs]es?"
    r"|creativecommons\.org/(licenses|publicdomain)|mozilla\.org/MPL|perlfoundation\.org/artistic_license"
    r"|spdx\.org/licenses|boost\.org/LICENSE)"
)


class Searched(NamedTuple):
    """What was found in the files of a bundle.

    Attributes:
        files: how many files were searched.
        programs: how many of them are executable.
        outside: the files that no package lists, executable ones first.
        executables: how many of those are executable.
        own: files that no package lists, or members of the bundle, with the addresses that each names.
        packaged: addresses in scripts of packages, each with the scripts.
        licences: how many addresses of licences were left out.
    """

    files: int
    programs: int
    outside: list[str]
    executables: int
    own: list[tuple[str, list[str]]]
    packaged: dict[str, list[str]]
    licences: int


def make(path: str, before: str | None, today: dt.date) -> str:
    """Return the page of a bundle, after every byte of it was verified.

    Args:
        path: the bundle.
        before: an earlier bundle to compare it with, or None.
        today: for the ends of support.
    """
    with opened(path) as stream:
        with progress.bar("verify", Path(path).stat().st_size) as advance:
            verified = verify(stream, path, progress=advance)
        bundle = begin(stream, path)
        manifest = bundle.manifest
        document = sboms.parsed(sboms.read(stream, manifest))
        found = _searched(bundle)
        made = [plans.read(_content(bundle, name), name) for name in _members(manifest, PLANS_PREFIX)]
        rehearsals = rehearsed.of(bundle)
    return page(
        "bundle.html",
        title=f"Bundle {manifest.name} {manifest.version}",
        sections=_SECTIONS,
        deployer=__version__,
        **_summary(manifest, verified, path, made),
        verdicts=_verdicts(made),
        rehearsals=[(each.job, str(_day(each.date)), each.summary()) for each in rehearsals],
        **_packages(document, today),
        changes=_changes(manifest),
        **_addresses(found, manifest),
        members=[(member.name, f"{member.size:,}") for member in _listed(manifest)],
        all_members=len(manifest.members),
        **_difference(before, diff(before, path) if before else None),
        most=_LISTED,
    )


def _summary(manifest: Manifest, verified: VerifiedBundle, path: str, made: list[Plan]) -> dict[str, object]:
    facts = [
        ("file", Path(path).name),
        ("digest", as_code(verified.digest)),
        *_signers(verified.trust),
        *_image(manifest),
        ("made for the sites", ", ".join(sorted({plan.site for plan in made})) or "none"),
        ("made with", ", ".join(map(" ".join, sorted(manifest.tools.items()))) or "not recorded"),
    ]
    jobs = []
    for job in manifest.jobs:
        layout = f"{counted(job.nodes, 'node')}, {counted(job.ranks_per_node, 'rank')} per node"
        jobs.append((job.name, as_code(quoted(job.command)), layout))
    return {"bundle_facts": facts, "jobs": jobs}


def _image(manifest: Manifest) -> Iterator[tuple[str, str]]:
    image = manifest.image
    if manifest.is_data:
        yield "image", "none: the bundle has only data"
        return
    yield "image", f"{image.entries} files and folders, {image.raw_size:,} bytes"
    yield "image digest", as_code(image.layer_digest)


def _signers(trust: Trust) -> Iterator[tuple[str, str]]:
    """Yield what is known of the keys that signed. Anyone can make a key, so a valid signature alone names nobody."""
    if not trust.keys:
        yield "signed by", as_bad("nobody: compare the digest with the maker's by phone or on paper")
        return
    yield "signed by the keys", as_code(", ".join(key.fingerprint for key in trust.keys))
    unknown = as_bad("unknown: no policy of this machine lists any of these keys, and anyone can make a key")
    yield "who signed", ", ".join(trust.signers) or unknown
    yield "what to compare", "A fingerprint does not name a person: compare it with the maker's by phone or on paper."


def _verdicts(made: list[Plan]) -> list[tuple[str, str, str, str]]:
    rows = []
    for plan in made:
        if plan.checked:
            findings = "; ".join(map(str, plan.checked.findings)) or "no findings"
            rows.append((plan.site, plan.partition, plan.checked.verdict + plan.checked.by, findings))
    return rows


def _day(seconds: int) -> dt.date:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).date()


def _packages(document: Mapping[str, Any], today: dt.date) -> dict[str, object]:
    components = document.get("components", ())
    rows = []
    for item in sorted(components, key=lambda item: (str(item.get("type")), str(item.get("name")))):
        flags = end_of_support.flags({"components": [item]}, today)
        end = end_of_support.end(item)
        supported = f"until {end}" if end else "not known"
        ends = as_bad("; ".join(flag.line() for flag in flags)) if flags else supported
        rows.append((str(item.get("name", "")), str(item.get("version", "")), _licence(item), ends))
    late = len(end_of_support.flags(document, today)) if rows else 0
    return {"packages": rows, "components": counted(len(rows), "component"), "today": str(today), "late": late}


def _licence(item: Mapping[str, Any]) -> str:
    found = []
    for each in item.get("licenses", ()):
        licence = each.get("license", {})
        found.append(str(each.get("expression") or licence.get("id") or licence.get("name") or ""))
    return ", ".join(filter(None, found)) or "not stated"


def _changes(manifest: Manifest) -> list[tuple[str, str, str]]:
    changed = sorted((kind, count) for kind, count in manifest.changes.items() if count)
    return [(kind.replace("_", " "), str(count), CHANGES.get(kind, "")) for kind, count in changed]


def _addresses(found: Searched, manifest: Manifest) -> dict[str, object]:
    data = [member.size for member in manifest.members if member.name.startswith(DATA_PREFIX)]
    rows = [(path, as_code(", ".join(addresses))) for path, addresses in found.own[:_LISTED]]
    hosts: dict[str, list[str]] = {}
    for address, paths in found.packaged.items():
        hosts.setdefault(address.split("/")[2], []).extend(paths)
    known = [(host, str(len({*paths})), ", ".join(sorted({*paths})[:_SAME])) for host, paths in hosts.items()]
    return {
        "found": found,
        "searched": f"{_HEAD:,}",
        "data": f"{counted(len(data), 'file')}, {sum(data):,} bytes" if data else "",
        "addresses": rows,
        "hosts": sorted(known)[:_LISTED],
        "more_hosts": len(known) - _LISTED,
    }


def _listed(manifest: Manifest) -> list[BundleMember]:
    return [member for member in manifest.members if not member.name.startswith("blobs/")][:_LISTED]


def _difference(before: str | None, found: Difference | None) -> dict[str, object]:
    packages = found.packages if found else ()
    rows = [(each.name, each.kind, each.old or "absent", each.new or "absent") for each in packages]
    return {"difference": found, "before": Path(before).name if before else "", "differing": rows}


def _searched(bundle: Verification) -> Searched:
    packages, regular, scripts = PackageFiles(), [], []
    for listed in files_of(bundle, _wanted):
        entry = listed.entry
        if entry.kind == FILE:
            path = os.fsdecode(entry.path)
            regular.append((not entry.mode & 0o111, path))
            packages.add(path, listed.head)
            if listed.head.startswith(b"#!"):
                scripts.append((path, _urls(listed.head[:_HEAD])))
    outside = sorted(each for each in regular if each[1] not in packages)
    own = [(_shown(path), urls) for path, urls in scripts if path not in packages]
    packaged: dict[str, list[str]] = {}
    for path, url in ((path, url) for path, urls in scripts if path in packages for url in urls):
        if not _LICENCE.match(url):
            packaged.setdefault(url, []).append(_shown(path))
    app = _members(bundle.manifest, APP_PREFIX)
    own += [(shown(name.encode()), _urls(_content(bundle, name)[:_HEAD])) for name in app]
    named = [(path, [url for url in urls if not _LICENCE.match(url)]) for path, urls in own]
    return Searched(
        len(regular) + len(app),
        sum(not plain for plain, _ in regular),
        [_shown(path) for _, path in outside],
        sum(not plain for plain, _ in outside),
        [(path, urls[:_LISTED]) for path, urls in named if urls],
        packaged,
        sum(bool(_LICENCE.match(url)) for _, urls in [*own, *scripts] for url in urls),
    )


def _wanted(entry: TarEntry) -> int:
    """Return how much of a file is read."""
    return _LIST if PackageFiles.is_list(os.fsdecode(entry.path)) else _HEAD


def _shown(path: str) -> str:
    return "/" + shown(os.fsencode(path))


def _urls(content: bytes) -> list[str]:
    """Return the addresses in a text, each once."""
    return list(dict.fromkeys(url.decode("utf-8", "replace").rstrip(".,;") for url in _URL.findall(content)))


def _members(manifest: Manifest, prefix: str) -> list[str]:
    return [member.name for member in manifest.members if member.name.startswith(prefix)]


def _content(bundle: Verification, name: str) -> bytes:
    return b"".join(bundle.read(segment) for segment in member_segments(bundle.manifest, name))
