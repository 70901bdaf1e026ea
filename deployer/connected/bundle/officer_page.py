"""The page of a bundle for a security officer: ``inspect --html``."""

import datetime as dt
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deployer import __version__
from deployer.connected.bundle import end_of_support
from deployer.connected.bundle import sbom as sboms
from deployer.connected.bundle.diff import Difference, diff
from deployer.connected.bundle.listing import files_of
from deployer.connected.check import rehearsed
from deployer.connected.ground.html_page import element, facts, page, section, table
from deployer.connected.rootfs.entries import shown
from deployer.contract import plan as plans
from deployer.contract.manifest import APP_PREFIX, PLANS_PREFIX, Manifest
from deployer.contract.plan import Plan
from deployer.contract.rehearsal import Rehearsal
from deployer.contract.sealed_file import member_segments
from deployer.contract.shell import quoted
from deployer.contract.tarformat import FILE
from deployer.system.verify import Verification, begin, opened, verify

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
        scripts: the scripts that name addresses.
    """

    files: int
    programs: int
    scripts: list[SearchedScript]


def make(path: str, before: str | None, today: dt.date) -> str:
    """Return the page of a bundle, after every byte of it was verified.

    Args:
        path: the bundle.
        before: an earlier bundle to compare it with, or None.
        today: for the ends of support.
    """
    with opened(path) as stream:
        verified = verify(stream, path)
        bundle = begin(stream, path)
        manifest = bundle.manifest
        document = sboms.parsed(sboms.read(stream, manifest))
        found = _searched(bundle)
        made = [plans.read(_content(bundle, name), name) for name in _members(manifest, PLANS_PREFIX)]
        rehearsals = rehearsed.of(bundle)
    keys = [key.fingerprint for key in verified.trust.keys]
    return page(
        f"Bundle {manifest.name} {manifest.version}",
        _summary(manifest, verified.digest, path, keys, made),
        _verdicts(made, rehearsals),
        _packages(document, today),
        _changes(manifest),
        _scripts(found),
        _contents(manifest),
        _difference(before, diff(before, path) if before else None),
    )


def _summary(manifest: Manifest, digest: str, path: str, keys: list[str], made: list[Plan]) -> "ET.Element[str]":
    image = manifest.image
    signed = ", ".join(keys) or element(
        "span", "nobody: compare the digest with the maker's by phone or on paper", class_="bad"
    )
    return section(
        "What it is",
        element("p", f"Every byte was verified against the digest by deployer {__version__}. Nothing was run."),
        facts(
            "Bundle",
            [
                ("file", Path(path).name),
                ("digest", element("code", digest)),
                ("signed by the keys", signed),
                ("image", f"{image.entries} files and folders, {image.raw_size:,} bytes"),
                ("image digest", element("code", image.layer_digest)),
                ("made for the sites", ", ".join(sorted({plan.site for plan in made})) or "none"),
                ("made with", ", ".join(f"{name} {version}" for name, version in sorted(manifest.tools.items()))),
            ],
        ),
        table(
            "What its jobs start",
            ("job", "command", "layout"),
            (
                (
                    job.name,
                    element("code", quoted(job.command)),
                    f"{job.nodes} nodes, {job.ranks_per_node} ranks per node",
                )
                for job in manifest.jobs
            ),
        ),
    )


def _verdicts(made: list[Plan], rehearsals: list[Rehearsal]) -> "ET.Element[str]":
    rows = [
        (plan.site, plan.partition, plan.checked.verdict, "; ".join(map(str, plan.checked.findings)) or "no findings")
        for plan in made
        if plan.checked
    ]
    done = [
        (each.job, str(dt.datetime.fromtimestamp(each.date, dt.timezone.utc).date()), each.summary())
        for each in rehearsals
    ]
    return section(
        "Verdict and rehearsal",
        table("Prediction of check, recorded by the maker", ("site", "partition", "verdict", "findings"), rows)
        if rows
        else element("p", "The bundle has no verdict of check."),
        table("Rehearsals without a network", ("job", "day", "outcome"), done)
        if done
        else element("p", "No rehearsal is recorded in the bundle."),
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
        ends = element("span", "; ".join(flag.line() for flag in flags), class_="bad") if flags else supported
        rows.append((str(item.get("name", "")), str(item.get("version", "")), _licence(item), ends))
    late = end_of_support.flags(document, today)
    text = f"{len(rows)} components; {len(late)} products are out of support on {today}."
    head = ("name", "version", "licence", "end of support")
    return section("Packages", element("p", text), table("Components (SBOM)", head, rows))


def _licence(item: Mapping[str, Any]) -> str:
    found = []
    for each in item.get("licenses", ()):
        licence = each.get("license", {})
        found.append(str(each.get("expression") or licence.get("id") or licence.get("name") or ""))
    return ", ".join(filter(None, found)) or "not stated"


def _changes(manifest: Manifest) -> "ET.Element[str]":
    text = "What the maker's deployer changed while it made one layer of the image's layers, by kind."
    rows = ((kind.replace("_", " "), str(count)) for kind, count in sorted(manifest.changes.items()) if count)
    return section("Changes by flatten", element("p", text), table("Changes", ("kind", "number"), rows))


def _scripts(found: Searched) -> "ET.Element[str]":
    text = (
        f"{found.files} files of the image and the app were read; {found.programs} are executable. Addresses were "
        f"searched in the first {_HEAD:,} bytes of scripts (files that begin with #!) and of all files of the app. "
        "Programs may hold others. No file of a bundle runs as its owner or group: the format has no setuid and setgid."
    )
    rows = [(each.path, element("code", ", ".join(each.addresses))) for each in found.scripts[:_LISTED]]
    more = len(found.scripts) - len(rows)
    return section(
        "Executables and addresses",
        element("p", text),
        table("Scripts that name addresses", ("script", "addresses"), rows),
        element("p", f"{more} more scripts name addresses." if more > 0 else ""),
    )


def _contents(manifest: Manifest) -> "ET.Element[str]":
    listed = [member for member in manifest.members if not member.name.startswith("blobs/")][:_LISTED]
    rows = ((member.name, str(member.size)) for member in listed)
    text = (
        f"{len(listed)} of {len(manifest.members)} files. `deployer inspect --files` lists the image's, with digests."
    )
    return section("Files of the bundle", element("p", text), table("Members", ("name", "bytes"), rows))


def _difference(before: str | None, found: Difference | None) -> "ET.Element[str]":
    title = "Differences from the previous bundle"
    if found is None or before is None:
        return section(title, element("p", "It was not compared with another bundle."))
    rows = [(each.name, each.kind, each.old or "absent", each.new or "absent") for each in found.packages]
    parts = [
        element("p", f"Compared with {Path(before).name}."),
        table("Packages", ("package", "kind", "before", "now"), rows),
    ]
    for name, paths in (("added", found.added), ("removed", found.removed), ("changed", found.changed)):
        items = [element("li", element("code", path)) for path in paths[:_LISTED]]
        more = len(paths) - len(items)
        items += [element("li", f"and {more} more")] if more > 0 else []
        parts += [element("h3", f"{len(paths)} files {name}"), *([element("ul", *items)] if items else [])]
    return section(title, *parts)


def _searched(bundle: Verification) -> Searched:
    count = programs = 0
    scripts: list[SearchedScript] = []
    for listed in files_of(bundle, _HEAD):
        entry = listed.entry
        if entry.kind != FILE:
            continue
        count += 1
        programs += bool(entry.mode & 0o111)
        if listed.head.startswith(b"#!"):
            scripts += _script("/" + shown(entry.path), listed.head)
    for name in _members(bundle.manifest, APP_PREFIX):
        count += 1
        scripts += _script(shown(name.encode()), _content(bundle, name)[:_HEAD])
    return Searched(count, programs, scripts)


def _script(path: str, content: bytes) -> Iterator[SearchedScript]:
    addresses = dict.fromkeys(url.decode("utf-8", "replace") for url in _URL.findall(content))
    if addresses:
        yield SearchedScript(path, list(addresses)[:_LISTED])


def _members(manifest: Manifest, prefix: str) -> list[str]:
    return [member.name for member in manifest.members if member.name.startswith(prefix)]


def _content(bundle: Verification, name: str) -> bytes:
    return b"".join(bundle.read(segment) for segment in member_segments(bundle.manifest, name))
