"""deployer profile: list, show, validate, diff, publish, schema."""

import argparse
import json
import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from deployer.cli.site import common
from deployer.connected.ground.yaml_model import KeyPath
from deployer.connected.site_profile import drift, gaps, published, search
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.profile import Profile, Resolved
from deployer.connected.site_profile.summary import only_captured, summary
from deployer.contract.base.errors import DeployerError, MissingTool, UsageError
from deployer.contract.base.text import counted
from deployer.system import terminal

#: The only fact that `push` needs and plans do not.
_HOST = ("login", "host")
#: Facts that no capture finds.
_DECIDED = (("policy",), ("workspace",))
_SITE = "a profile's name (see `profile list`) or path"


def add_parsers(subparsers: Any) -> None:
    """Register ``profile`` and its verbs."""
    command = subparsers.add_parser("profile")
    verbs = command.add_subparsers(dest="verb", metavar="VERB", required=True)
    common.add_command(verbs, "list", _list, "list the profiles that you can select by name")
    text = "show a profile with the profiles that it extends, and the source of each value"
    verb = common.add_command(verbs, "show", _show, text)
    common.add(verb, "site", "SITE", f"{_SITE}, or ssh:HOST for what was fetched from there")
    common.flag(verb, "--files", "also show the facts of libraries")
    verb.example = "deployer profile show lab"
    verb = common.add_command(verbs, "validate", _validate, "check profiles and print all errors at once")
    common.add(verb, "sites", "SITE", _SITE, nargs="+")
    verb.example = "deployer profile validate lab.yaml"
    verb = common.add_command(verbs, "diff", _diff, "show what differs between two profiles, and what it means")
    common.add(verb, "old", "A", _SITE)
    common.add(verb, "new", "B", _SITE)
    verb.example = "deployer profile diff before.yaml lab.yaml"
    text = "write a profile with its facts, for /etc/deployer at the site"
    verb = common.add_command(verbs, "publish", _publish, text)
    common.add(verb, "site", "SITE", _SITE)
    common.add(verb, "-o", "--output", "DIR", "write the files to this folder", type=Path, required=True)
    verb.example = "deployer profile publish lab.yaml -o published"
    text = "print the JSON schema of profiles, for editors"
    common.add_command(verbs, "schema", lambda _: terminal.show_json(profiles.schema(), indent=2), text)


def _list(args: argparse.Namespace) -> None:
    rows: dict[str, Resolved] = {}
    today = date.today()  # noqa: DTZ011  facts have a date, no time
    for site in (*search.names(), *published.sites()):
        try:
            resolved = published.used(site)
        except DeployerError as error:
            path = search.names().get(site)
            if path and search.is_curated(path):
                raise
            terminal.complain([f"deployer: {path or site}: {error.message}"])  # continue with the others
            continue
        if resolved.paths[0] not in [row.paths[0] for row in rows.values()]:
            rows[site] = resolved
    shown = [(site, row.paths[0], row.profile) for site, row in rows.items()]
    about = {
        site: {**summary(profile, today)._asdict(), "description": profile.description, "file": str(path)}
        for site, path, profile in shown
    }
    if common.as_json(args, {"profiles": list(about), "about": about}):
        return
    if not shown:
        hint = "the installation of deployer is incomplete: install it again"
        raise MissingTool(f"no curated profiles in {profiles.CURATED}", hint)
    cells = []
    for site, path, profile in shown:
        where = "" if search.is_curated(path) else f"{path}: "
        cells.append([site, f"{summary(profile, today)}. {where}{profile.description}"])
    terminal.show(*common.table(("SITE", "FACTS AND DESCRIPTION"), cells))


def _show(args: argparse.Namespace) -> None:
    resolved = published.used(args.site)
    profile = resolved.profile
    record = profile.model_dump(mode="json", exclude_unset=True)
    if not args.files:
        groups = (record, record.get("login"), *(record.get("mpi") or {}).values())
        for group in (*groups, *(record.get("partitions") or {}).values()):
            for key in ("files", "links") if isinstance(group, dict) else ():
                group.pop(key, None)
    if common.as_json(args, record):
        return
    for path in resolved.paths:
        terminal.show(f"# {os.path.relpath(path)}: {search.label(path)}")
    # Sources are printed at the end with their ages.
    rows = [(place, value) for place, value in _leaves((), record) if value not in ({}, []) and "source" not in place]
    for place, value in rows:
        path, line = resolved.layers.at(place)
        origin = f"# {os.path.relpath(path)}:{line}"
        if profile.facts and ("files" in place or "links" in place):
            origin = f"# {profile.facts.file}"
        text = f"{'.'.join(place)}: {json.dumps(value, ensure_ascii=False)}"
        room = terminal.columns() - len(origin) - 2
        one_line = [f"{text:<{room}}  {origin}"]
        two_lines = [*common.wrapped(text, "", "    "), f"{origin:>{terminal.columns()}}"]
        terminal.show(*(one_line if len(text) <= room else two_lines))
    for age in profiles.age(profile, date.today()):  # noqa: DTZ011  facts have a date, no time
        days = "not known" if age.days is None else counted(age.days, "day")
        source = f"{age.source.kind}, {age.source.where}, {age.source.date or 'no date'}"
        terminal.show(*common.wrapped(f"age of {age.group}: {days} ({source})", "", "  "))
    lacking = only_captured(profile)
    if lacking:
        terminal.show(*common.wrapped("only a capture can tell: " + ", ".join(lacking), "", "  "))
    _show_gaps(args.site, profile, gaps.find(profile))


def _leaves(above: KeyPath, record: dict[str, Any]) -> Iterator[tuple[KeyPath, object]]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _leaves((*above, key), value)
        else:
            yield (*above, key), value


def _validate(args: argparse.Namespace) -> None:
    errors = []
    valid = []
    for site in args.sites:
        try:
            valid.append((site, profiles.load(site)))
        except DeployerError as error:
            errors += error.details or [error.message]
    if errors:
        raise UsageError(f"{', '.join(args.sites)}: {counted(len(errors), 'error')}", details=errors)
    missing = {profile.name: gaps.find(profile) for _, profile in valid}
    lacks = {name: [gap.record() for gap in lacking] for name, lacking in missing.items()}
    if common.as_json(args, {"valid": True, "names": list(missing), "missing": lacks}):
        return
    for site, profile in valid:
        terminal.show(f"{profile.name} is valid")
        _show_gaps(site, profile, missing[profile.name])
    site, profile = valid[0]
    if not missing[profile.name]:
        common.suggest(args, "pack", "DEF", "--site", site, "-o", "B.tar")
    elif profile.login.host and any(gap.place not in _DECIDED for gap in missing[profile.name]):
        common.suggest(args, "capture", profile.login.host)


def _show_gaps(site: str, profile: Profile, lacking: list[gaps.Gap]) -> None:
    """Print the facts that plans lack, and a profile with examples to paste."""
    if not lacking:
        return
    if [gap.place for gap in lacking] == [_HOST]:
        terminal.show("", f"`push` to {profile.name} needs one more fact; plans can be made:")
    else:
        terminal.show("", f"{profile.name} cannot be planned for yet: it lacks {counted(len(lacking), 'fact')}:")
    for gap in lacking:
        terminal.show(*common.wrapped(".".join(gap.place) or f"{gap.message}: {gap.hint}", "  ", "    "))
    if any(gap.place for gap in lacking):
        terminal.show("correct the examples in these lines, and save them as a new profile:", "")
        extends = site if site in search.names() else str(Path(site).resolve())
        terminal.show(*gaps.lines(profile, lacking, extends))


def _diff(args: argparse.Namespace) -> None:
    changes = drift.between(*(profiles.comparable(profiles.load(site)) for site in (args.old, args.new)))
    if common.as_json(args, {"differences": [change._asdict() for change in changes]}):
        return
    for change in changes:
        terminal.show(str(change), f"         {change.severity}: {change.meaning}")
    terminal.show(counted(len(changes), "difference") if changes else "no differences")


def _publish(args: argparse.Namespace) -> None:
    path = published.publish(args.site, args.output)
    names = [published.PROFILE, published.FACTS]
    there = "at the site, as root: install -d /etc/deployer && install -m 644 profile.* /etc/deployer/"
    record = {"files": [str(path.with_name(name)) for name in names]}
    common.show_result(args, record, f"wrote {', '.join(names)}: {path.parent}", there)
