"""Commands about what the site has and what arrives: receipt; and those that push calls: known, take."""

import argparse
import json
import os
import platform
import sys
from typing import Any

from deployer.cli.site import common
from deployer.contract import delta, json_records
from deployer.contract.errors import UsageError
from deployer.site.install import incoming
from deployer.site.storage import inventory, store
from deployer.site.storage.space import human
from deployer.system import files


def add_parsers(subparsers: Any) -> None:
    """Register this group's commands."""
    command = common.add_store_command(subparsers, "receipt", _receipt)
    command.add_argument("-o", "--output", metavar="FILE", required=True)
    command = common.add_store_command(
        subparsers, "known", _known, "print what is here of a bundle, and the free space; called by push"
    )
    command.add_argument("digest", metavar="DIGEST")
    command = common.add_store_command(subparsers, "take", _take, "write the parts from standard input; called by push")
    command.add_argument("digest", metavar="DIGEST")


def _receipt(args: argparse.Namespace) -> int:
    digests = list(incoming.kept(store.locate(args.root)))
    files.write_text(args.output, json_records.pretty(delta.receipt(digests)))
    answer = {"receipt": args.output, "segments": len(digests)}
    print(json.dumps(answer) if args.json else "receipt of %d segments: %s" % (len(digests), args.output))
    return 0


def _known(args: argparse.Namespace) -> int:
    where = store.locate(args.root)
    if not files.is_folder(where.root):
        raise UsageError("there is no folder %s" % where.root, "push creates it; or give another with --root DIR")
    present = inventory.whole(where, args.digest)
    if present:
        from deployer.site.install.receive import finish  # only here: its imports take longer than the rest

        finish(where, args.digest, present)
    state = os.statvfs(where.root)
    answer = {
        "folder": present.folder if present else None,
        "free": state.f_bavail * state.f_frsize,
        "python": platform.python_version(),
        "held": "" if present else delta.held_text(incoming.held(where, args.digest)),
    }
    if args.json:
        print(json.dumps(answer))
    else:
        print("installed: %s" % (present.folder if present else "no"))
        print("free: %s" % human(int(str(answer["free"]))))
    return 0


def _take(args: argparse.Namespace) -> int:
    files.enlarge_pipe(sys.stdin.fileno())
    count = incoming.take(sys.stdin.buffer, store.locate(args.root), args.digest)
    print(json.dumps({"taken": count}) if args.json else "%d came" % count)
    return 0
