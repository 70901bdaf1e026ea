"""The page of a bundle for a security officer: ``inspect --html``."""

import datetime as dt
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deployer import __version__
from deployer.connected.bundle import end_of_support
from deployer.connected.bundle import sbom as sboms
from deployer.connected.bundle.diff import Difference, diff
from deployer.connected.bundle.listing import files_of
from deployer.connected.check import rehearsed
from deployer.connected.ground import progress
from deployer.connected.ground.html_page import element, facts, page, section, table
from deployer.connected.rootfs.entries import shown
from deployer.connected.rootfs.flatten import CHANGES
from deployer.contract import plan as plans
from deployer.contract.manifest import APP_PREFIX, DATA_PREFIX, PLANS_PREFIX, Manifest
from deployer.contract.plan import Plan
from deployer.contract.rehearsal import Rehearsal
from deployer.contract.sealed_file import member_segments
from deployer.contract.shell import quoted
from deployer.contract.tarformat import FILE
from deployer.contract.text import counted
from deployer.system.trust import Trust
from deployer.system.verify import Verification, VerifiedBundle, begin, opened, verify

#: How much of each file is searched for addresses, and how many findings of a kind are listed.
_HEAD, _LISTED = 64 * 1024, 500
_URL = re.compile(rb"\b(?:https?|ftp|ssh|git|s3|gs)://[^\s\"'<>`\\)\]}]{3,300}")


class SearchedScript(NamedTuple):
    """A text file with addresses.

    Attributes:
        path: in the image, or the member of the bundle.
        addresses: what it names, each once.
    """

    path: str
    addresses: list[str]


class Searched(NamedTuple):
    """What was found in the files of a bundle.

    Attributes:
        files: how many files were looked at.
        programs: how many of them are executable.
        executables: the paths of the first of these.
        scripts: the scripts that name addresses.
    """

    files: int
    programs: int
    executables: list[str]
    scripts: list[SearchedScript]


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
        f"Bundle {manifest.name} {manifest.version}",
        _summary(manifest, verified, path, made),
        _verdicts(made, rehearsals),
        _packages(document, today),
        _changes(manifest),
        _scripts(found, manifest),
        _contents(manifest),
        _difference(before, diff(before, path) if before else None),
    )


def _summary(manifest: Manifest, verified: VerifiedBundle, path: str, made: list[Plan]) -> "ET.Element[str]":
    return section(
        "What it is",
        element("p", f"Every byte was verified against the digest by deployer {__version__}. Nothing was run."),
        facts(
            "Bundle",
            [
                ("file", Path(path).name),
                ("digest", element("code", verified.digest)),
                *_signers(verified.trust),
                *_image(manifest),
                ("made for the sites", ", ".join(sorted({plan.site for plan in made})) or "none"),
                ("made with", ", ".join(map(" ".join, sorted(manifest.tools.items()))) or "not recorded"),
            ],
        ),
        _table(
            "What its jobs start",
            ("job", "command", "layout"),
            [
                (
                    job.name,
                    element("code", quoted(job.command)),
                    f"{counted(job.nodes, 'node')}, {counted(job.ranks_per_node, 'rank')} per node",
                )
                for job in manifest.jobs
            ],
            "The bundle defines no job.",
        ),
    )


def _image(manifest: Manifest) -> Iterator[tuple[str, "ET.Element[str] | str"]]:
    image = manifest.image
    if manifest.is_data:
        yield "image", "none: the bundle has only data"
        return
    yield "image", f"{image.entries} files and folders, {image.raw_size:,} bytes"
    yield "image digest", element("code", image.layer_digest)


def _signers(trust: Trust) -> Iterator[tuple[str, "ET.Element[str] | str"]]:
    """Yield what is known of the keys that signed. Anyone can make a key, so a valid signature alone names nobody."""
    if not trust.keys:
        yield "signed by", _bad("nobody: compare the digest with the maker's by phone or on paper")
        return
    yield "signed by the keys", element("code", ", ".join(key.fingerprint for key in trust.keys))
    yield (
        "who signed",
        ", ".join(trust.signers)
        or _bad("unknown: no policy of this machine lists any of these keys, and anyone can make a key"),
    )
    yield "what to compare", "A fingerprint does not name a person: compare it with the maker's by phone or on paper."


def _bad(text: str) -> "ET.Element[str]":
    return element("span", text, class_="bad")


def _table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence["ET.Element[str] | str"]], none: str
) -> "ET.Element[str]":
    """Return a table, or a text if it has no rows."""
    return table(caption, head, rows) if rows else element("p", none)


def _verdicts(made: list[Plan], rehearsals: list[Rehearsal]) -> "ET.Element[str]":
    rows = [
        (
            plan.site,
            plan.partition,
            plan.checked.verdict + plan.checked.by,
            "; ".join(map(str, plan.checked.findings)) or "no findings",
        )
        for plan in made
        if plan.checked
    ]
    done = [
        (each.job, str(dt.datetime.fromtimestamp(each.date, dt.timezone.utc).date()), each.summary())
        for each in rehearsals
    ]
    return section(
        "Verdict and rehearsal",
        _table(
            "Prediction of check, recorded by the maker",
            ("site", "partition", "verdict", "findings"),
            rows,
            "The bundle has no verdict of check.",
        ),
        _table(
            "Rehearsals without a network", ("job", "day", "outcome"), done, "No rehearsal is recorded in the bundle."
        ),
    )


def _packages(document: Mapping[str, Any], today: dt.date) -> "ET.Element[str]":
    components = document.get("components", ())
    if not components:
        return section("Packages", element("p", "The bundle has no list of packages."))
    rows = []
    for item in sorted(components, key=lambda item: (str(item.get("type")), str(item.get("name")))):
        flags = end_of_support.flags({"components": [item]}, today)
        end = end_of_support.end(item)
        supported = f"until {end}" if end else "not known"
        ends = _bad("; ".join(flag.line() for flag in flags)) if flags else supported
        rows.append((str(item.get("name", "")), str(item.get("version", "")), _licence(item), ends))
    late = end_of_support.flags(document, today)
    text = f"{counted(len(rows), 'component')}. Products out of support on {today}: {len(late)}."
    head = ("name", "version", "licence", "end of support")
    return section("Packages", element("p", text), table("Components (SBOM)", head, rows))


def _licence(item: Mapping[str, Any]) -> str:
    found = []
    for each in item.get("licenses", ()):
        licence = each.get("license", {})
        found.append(str(each.get("expression") or licence.get("id") or licence.get("name") or ""))
    return ", ".join(filter(None, found)) or "not stated"


def _changes(manifest: Manifest) -> "ET.Element[str]":
    text = element(
        "p",
        "What the maker's deployer changed in the image's files when it made one layer of them. The maker can list "
        "every path: ",
        element("code", "deployer pack --changes FILE"),
        ".",
    )
    rows = [
        (kind.replace("_", " "), str(count), CHANGES.get(kind, ""))
        for kind, count in sorted(manifest.changes.items())
        if count
    ]
    changes = _table("Changes", ("kind", "number", "meaning"), rows, "It changed nothing.")
    return section("Changes by flatten", text, changes)


def _scripts(found: Searched, manifest: Manifest) -> "ET.Element[str]":
    data = [member.size for member in manifest.members if member.name.startswith(DATA_PREFIX)]
    text = (
        f"Files of the image and the app that were read: {found.files}; executable: {found.programs}. Addresses were "
        f"searched in the first {_HEAD:,} bytes of scripts (files that begin with #!) and of all files of the app. "
        "Programs may hold others. No file of a bundle runs as its owner or group: the format has no setuid and setgid."
    )
    if data:
        text += f" The data folders were not searched: {counted(len(data), 'file')}, {sum(data):,} bytes."
    rows = [(each.path, element("code", ", ".join(each.addresses))) for each in found.scripts[:_LISTED]]
    return section(
        "Executables and addresses",
        element("p", text),
        element("h3", "Executable files"),
        *(_listed(found.executables, found.programs) if found.programs else [element("p", "None.")]),
        _table("Scripts that name addresses", ("script", "addresses"), rows, "No script names an address."),
        *_more(len(found.scripts) - len(rows), "Scripts with addresses that are not listed"),
    )


def _listed(paths: Sequence[str], count: int) -> Iterator["ET.Element[str]"]:
    """Yield the first of ``count`` paths as a list, and how many are left out."""
    items = [element("li", element("code", path)) for path in paths[:_LISTED]]
    if items:
        yield element("ul", *items, class_="many", role="list", tabindex=0)
    yield from _more(count - len(items), "More that are not listed")


def _more(count: int, what: str) -> Iterator["ET.Element[str]"]:
    if count > 0:
        yield element("p", f"{what}: {count}.")


def _contents(manifest: Manifest) -> "ET.Element[str]":
    listed = [member for member in manifest.members if not member.name.startswith("blobs/")][:_LISTED]
    rows = ((member.name, f"{member.size:,}") for member in listed)
    text = element(
        "p",
        f"The table has {len(listed)} of the bundle's {len(manifest.members)} files, without the image's pieces. ",
        element("code", "deployer inspect --files B.tar"),
        " lists the files of the image with their digests.",
    )
    return section("Files of the bundle", text, table("Members", ("name", "bytes"), rows))


def _difference(before: str | None, found: Difference | None) -> "ET.Element[str]":
    title = "Differences from the previous bundle"
    if found is None or before is None:
        return section(title, element("p", "It was not compared with another bundle."))
    rows = [(each.name, each.kind, each.old or "absent", each.new or "absent") for each in found.packages]
    parts = [
        element("p", f"Compared with {Path(before).name}."),
        _table("Packages", ("package", "kind", "before", "now"), rows, "No package differs."),
    ]
    for name, paths in (("added", found.added), ("removed", found.removed), ("changed", found.changed)):
        parts += [element("h3", f"Files {name}: {len(paths)}"), *_listed(paths, len(paths))]
    return section(title, *parts)


def _searched(bundle: Verification) -> Searched:
    count = programs = 0
    executables: list[str] = []
    scripts: list[SearchedScript] = []
    for listed in files_of(bundle, _HEAD):
        entry = listed.entry
        if entry.kind != FILE:
            continue
        count += 1
        if entry.mode & 0o111:
            programs += 1
            if programs <= _LISTED:
                executables.append("/" + shown(entry.path))
        if listed.head.startswith(b"#!"):
            scripts += _script("/" + shown(entry.path), listed.head)
    for name in _members(bundle.manifest, APP_PREFIX):
        count += 1
        scripts += _script(shown(name.encode()), _content(bundle, name)[:_HEAD])
    return Searched(count, programs, executables, scripts)


def _script(path: str, content: bytes) -> Iterator[SearchedScript]:
    addresses = dict.fromkeys(url.decode("utf-8", "replace") for url in _URL.findall(content))
    if addresses:
        yield SearchedScript(path, list(addresses)[:_LISTED])


def _members(manifest: Manifest, prefix: str) -> list[str]:
    return [member.name for member in manifest.members if member.name.startswith(prefix)]


def _content(bundle: Verification, name: str) -> bytes:
    return b"".join(bundle.read(segment) for segment in member_segments(bundle.manifest, name))
