"""deployer fetch: run a job once with internet, and keep what it downloads for sites without."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.laptop.deploy import say
from deployer.cli.site import common
from deployer.connected.fetch.fetch import Fetched, FetchRequest, fetch, fetch_data
from deployer.connected.fetch.recorder import NO_FILE
from deployer.connected.fetch.snapshot import HubSnapshot
from deployer.connected.ground import user_settings
from deployer.connected.image.definition.definition import load
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.contract.bundle.job import check_time, find, seconds
from deployer.site.storage.space import human
from deployer.system import terminal

#: The number of lines of a list that is printed whole.
_LINES = 12


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "fetch", run)
    common.add(command, "definition", "DEF", "a definition: a folder with a bundle.yaml", type=Path)
    common.add(command, "job", "JOB", "a job of the definition (default: its first)", nargs="?")
    text = "end the job after this time, and keep its downloads (default: %(default)s)"
    common.add(command, "--time", "TIME", text, type=check_time, default="1h")
    common.add(command, "--until", "TEXT", "end the job when it prints this text", default="")
    common.flag(command, "--locked", "refuse files that are not those of fetch.lock")
    text = "keep this file or folder of the job's folder too, without a download in it; may be repeated"
    common.repeated(command, "--keep", "NAME", text)
    common.flag(command, "--private", "let the job reach hosts of private networks, and this machine's own")
    common.repeated(command, "--accept", "CODE", "treat this finding of lint as a warning; may be repeated")
    command.epilog = (
        "Words after -- are added to the end of the job's command. The files are kept in DEF/fetched/JOB, their "
        "addresses and digests in DEF/fetch.lock; `pack` and `deploy` include them, and the job has them at the same "
        "places."
    )
    command.set_defaults(after_dashes="arguments of the job's command")


def run(args: argparse.Namespace) -> int:
    """Fetch, and print what was fetched."""
    definition = load(args.definition)
    certificates = user_settings.path("ca_bundle", None)
    ca_bundle = str(certificates) if certificates else None
    quiet = args.json or terminal.is_quiet()
    tell = (lambda _: None) if quiet else say
    if definition.hub_data:
        snapshots = fetch_data(definition, args.locked, ca_bundle, tell)
        _show_data(snapshots, quiet)
        if not args.job:
            common.as_json(args, {"data": [each._asdict() for each in snapshots]})
            return 0
    if definition.is_data:
        raise UsageError(f"{definition.name} has only data", "fetch runs a job: give a definition that has one")
    job = find(definition.name, definition.own_jobs, args.job).name
    unfit = [name for name in args.keep if not re.fullmatch(r"[^/.][^/]*", name)]
    if unfit:
        raise UsageError(f"--keep {unfit[0]}: not a name in the job's folder", "give the first part of the path")
    wanted = {"seconds": seconds(args.time), "extra": args.rest, "settings": settings.build_files()}
    request = common.from_options(FetchRequest, args, ca_bundle=ca_bundle, **wanted)
    done = fetch(definition, job, request, lambda stage: tell(f"{stage.name}: {stage.text}"), tell)
    if not common.as_json(args, done.record()):
        _show(done)
        common.suggest(args, "rehearse", str(args.definition), job)
    return 0


def _show_data(snapshots: Sequence[HubSnapshot], quiet: bool) -> None:
    for each in [] if quiet else snapshots:
        size = f"{counted(each.files, 'file')} of {human(each.size)}, {human(each.received)} over the network"
        terminal.show(f"data {each.name}: {size}; licence: {each.licence}")
        _list("not fetched, because there are safetensors (`include` selects them)", each.left)
        _list("these run code when they are loaded (pickles, code of a hub): read or trust them", each.running)


def _show(done: Fetched) -> None:
    size = sum(each.size for each in done.downloads)
    what = f"{counted(len(done.downloads), 'file')} of {human(size)}, {human(done.received)} over the network"
    terminal.show(f"fetched for job {done.job}: {what}; {done.ending}")
    rows = [[host, str(count), human(size)] for host, count, size in done.by_host()]
    if rows:
        terminal.show(*common.table(("HOST", "FILES", "SIZE"), rows))
    for name, licence in done.licences.items():
        terminal.show(f"licence of {name}: {licence}")
    kept = [(f"~/{name}", *each) for name, each in done.kept.home.items()]
    kept += [(name, *each) for name, each in done.kept.job.items()]
    for place, count, size in kept:
        terminal.show(f"kept: {place}  ({counted(count, 'file')}, {human(size)})")
    if not kept and not done.replayed:
        terminal.warn("it kept no file")
    if done.kept.left:
        terminal.show(f"not kept, because no file in it was downloaded (--keep NAME): {', '.join(done.kept.left)}")
    _list("left: links that lead out of the folder, and unusual names", done.kept.outside)
    _list("these run code when they are loaded (pickles, code of a hub): read or trust them", done.kept.running)
    _list("no copy kept by the program, so the job gets the recorded answer", done.replayed)
    files = (each for each in done.downloads if each.sha256 not in done.kept.digests)
    unlike = [each.url for each in files if each.url not in done.replayed]
    _list("unpacked, or read without a copy, and too large to record (the rehearsal shows which; `data:`)", unlike)
    _list("a web page instead of a file", [each.url for each in done.downloads if each.is_page])
    _list("not answered", [f"{each.url}: {each.why}" for each in done.refusals if each.why != NO_FILE])
    _list("different from the last fetch", done.changed)
    terminal.show(f"files: {done.folder}")


def _list(title: str, lines: Sequence[str]) -> None:
    if lines:
        more = [f"  and {len(lines) - _LINES} more (--json lists them)"] if len(lines) > _LINES else []
        terminal.show(f"{title}:", *(f"  {line}" for line in lines[:_LINES]), *more)
