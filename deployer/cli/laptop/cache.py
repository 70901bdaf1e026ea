"""deployer cache: list and prune the caches of the connected side."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from deployer.cli.site import common
from deployer.connected.ground import caches
from deployer.connected.rehearse.ask import cache as rehearse_cache
from deployer.contract.base.errors import UsageError
from deployer.site.install import gc as collecting
from deployer.site.storage.space import human
from deployer.site.storage.store import Store
from deployer.system import files, terminal

#: The right-aligned columns.
_NUMBERS = ("ENTRIES", "WOULD REMOVE", "REMOVED", "SIZE")


def add_parsers(subparsers: Any) -> None:
    """Register ``cache``."""
    command = subparsers.add_parser("cache")
    verbs = command.add_subparsers(dest="verb", metavar="VERB", required=True)
    common.add_command(verbs, "list", _list, "show the caches, their contents and sizes")
    text = "remove entries unused for long or beyond a cache's size limit, and leftovers of killed processes"
    verb = common.add_command(verbs, "prune", _prune, text)
    common.add(verb, "caches", "CACHE", "prune only these caches (default: all that deployer manages)", nargs="*")
    text = "remove entries unused for N days (default: %(default)s)"
    common.add(verb, "--days", "N", text, type=float, default=caches.AGE)
    common.flag(verb, "--all", "remove everything")
    common.flag(verb, "--dry-run", "only print what would be removed")


def _list(args: argparse.Namespace) -> None:
    usages = list(map(caches.usage, caches.CACHES))
    if common.as_json(args, {"caches": [item.record() for item in usages]}):
        return
    rows = []
    for item in usages:
        used = time.strftime("%Y-%m-%d", time.localtime(item.used)) if item.used else "-"
        limit = item.cache.keeper or human(item.cache.cap)
        about = f"{item.cache.what}: {item.cache.folder}; limit: {limit}"
        rows.append([item.cache.name, str(item.entries), human(item.bytes), used, about])
    terminal.show(*common.table(("CACHE", "ENTRIES", "SIZE", "LAST USED", "CONTENTS"), rows, _NUMBERS))


def _left_by_rehearsals(dry_run: bool) -> caches.Pruned:
    """Remove installs left by killed rehearsals. Other rehearsals may be running."""
    root = str(caches.REHEARSE.folder / rehearse_cache.ROOT)
    garbage = collecting.find(Store(root), sys.maxsize) if files.is_folder(root) else []
    size = sum(caches.size(Path(item.path)) for item in garbage)
    if not dry_run:
        collecting.collect(garbage)
    return caches.Pruned(caches.REHEARSE.name, len(garbage), size)


def _prune(args: argparse.Namespace) -> None:
    if args.days < 0:
        raise UsageError(f"--days must be 0 or more, not {args.days:g}")
    names = [name for name in args.caches if name != caches.REHEARSE.name]
    done = caches.prune(names, args.days, args.all, args.dry_run) if names or not args.caches else []
    if args.all and caches.REHEARSE.name in args.caches:
        done.append(rehearse_cache.remove(args.dry_run, terminal.warn))
    elif caches.REHEARSE.name in args.caches or not args.caches:
        done.append(_left_by_rehearsals(args.dry_run))
    if common.as_json(args, {"dry_run": args.dry_run, "removed": [item._asdict() for item in done]}):
        return
    rows = [[item.cache, str(item.entries), human(item.bytes)] for item in done]
    head = ("CACHE", "WOULD REMOVE" if args.dry_run else "REMOVED", "SIZE")
    terminal.show(*common.table(head, rows, _NUMBERS))
