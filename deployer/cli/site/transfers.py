"""The site's commands for what arrives: receive, receipt, take-plan; and those that push calls: known, take."""

import argparse
import json
import os
import platform
import sys
import time
from typing import Any

from deployer.cli.site.images import SIGNERS, Meter, add_squashfs, add_store_command, show_squashed, squashed_now, warn
from deployer.contract import delta, json_records, plan_update
from deployer.contract.errors import UsageError
from deployer.site.install import incoming, take_plan
from deployer.site.install.receive import finish, receive
from deployer.site.storage import inventory, store
from deployer.site.storage.space import human
from deployer.system import files
from deployer.system.process import enlarge_pipe


def add_parsers(subparsers: Any) -> None:
    """Register this group's commands."""
    command = add_store_command(subparsers, "receive", _receive)
    command.add_argument("folder", metavar="DIR", help="the folder that push --to wrote, complete")
    add_squashfs(command)
    command = add_store_command(subparsers, "receipt", _receipt)
    command.add_argument("-o", "--output", metavar="FILE", required=True)
    command = add_store_command(
        subparsers, "known", _known, "print what is here of a bundle, and the free space; called by push"
    )
    command.add_argument("digest", metavar="DIGEST")
    command = add_store_command(subparsers, "take", _take, "write the parts from standard input; called by push")
    command.add_argument("digest", metavar="DIGEST")
    command = add_store_command(subparsers, "take-plan", _take_plan)
    command.add_argument("file", metavar="FILE", help="a file that `plan -o` wrote; - reads what push sends")
    command.add_argument("--signers", metavar="FILE", help=SIGNERS)


def _receive(args: argparse.Namespace) -> int:
    started = time.time()
    meter = Meter()
    where = store.locate(args.root)
    received = receive(os.path.abspath(args.folder), where, meter)
    store.bring_tool(where)
    meter.end()
    image, seconds = received.outcome.image, time.time() - started
    squashed = squashed_now(image) if args.squashfs else None
    if args.json:
        record = {"folder": image.folder, "known": received.outcome.known, "digest": received.digest}
        warnings = list(received.outcome.warnings)
        record.update(bundle=received.bundle, warnings=warnings, seconds=round(seconds, 3))
        print(json.dumps(dict(record, squashfs=squashed.record() if squashed else None)))
        return 0
    name = "%s:%s" % (image.receipt.name, image.receipt.version)
    if received.outcome.known:
        print("%s is already installed: %s" % (name, image.folder))
    else:
        print("rebuilt, verified and installed %s in %.1f s: %s" % (name, seconds, image.folder))
        print("digest %s" % received.digest)
    if args.squashfs:
        show_squashed(image, squashed)
    warn(received.outcome.warnings)
    return 0


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
    enlarge_pipe(sys.stdin.fileno())
    count = incoming.take(sys.stdin.buffer, store.locate(args.root), args.digest)
    print(json.dumps({"taken": count}) if args.json else "%d came" % count)
    return 0


def _take_plan(args: argparse.Namespace) -> int:
    if args.file == "-":
        what = "the plan from standard input"
        data = plan_update.unpacked(sys.stdin.buffer.read(plan_update.MAX_SIZE + 1), what)
    else:
        data, what = files.read_bytes(args.file, limit=plan_update.MAX_SIZE), args.file
    taken = take_plan.take(data, what, store.locate(args.root), args.signers)
    path = taken.image.newer_plan(taken.update.site)
    if args.json:
        signers, warnings = taken.signers, list(taken.warnings)
        print(json.dumps({"plan": path, "bundle": taken.update.bundle, "signers": signers, "warnings": warnings}))
        return 0
    print("jobs of %s use this plan for %s from now on: %s" % (taken.update.bundle, taken.update.site, path))
    for signer in taken.signers:
        print("signed by %s" % signer)
    warn(taken.warnings)
    return 0
