"""Commands for bundles and installed images: verify, list, join, log, remove, gc."""

import argparse
import os
import re
import time
from contextlib import suppress
from typing import Any, List, Optional

from deployer.cli.site import common
from deployer.cli.site.meter import Meter
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.site.install import admit
from deployer.site.install import gc as collecting
from deployer.site.install import remove as removing
from deployer.site.jobs import jobfolders
from deployer.site.storage import events, group, space, store
from deployer.site.storage.store import InstalledImage
from deployer.system import files, terminal
from deployer.system.trust import policy
from deployer.system.trust import verify as verifying

#: Defaults of gc: the number of images to keep per name, and the age of job folders to remove.
_KEPT_IMAGES, _OLD_SECONDS = 2, 30 * 86400


def add_parsers(subparsers: Any) -> None:
    """Register this group's commands."""
    command = common.add_command(subparsers, "verify", _verify)
    common.add(command, "bundle", "BUNDLE.tar", "a bundle, as `deployer pack` wrote it on the laptop")
    common.add(command, "--signers", "FILE", common.SIGNERS)
    common.add_store_command(subparsers, "list", _list)
    command = common.add_store_command(subparsers, "join", _join)
    common.add(command, "store", "STORE", "a root folder of somebody whom you trust, which you may read")
    common.add_store_command(subparsers, "log", _log)
    command = common.add_store_command(subparsers, "remove", _remove)
    common.add(command, "image", store.REFERENCE, "an installed image: see `list`", nargs="?")
    common.flag(command, "--all", "remove all images, bundles, logs and this tool")
    common.flag(command, "--force", "remove it even if a job uses it")
    command = common.add_store_command(subparsers, "gc", _gc)
    common.add(command, "--keep", "K", "images to keep of each name (default: 2)", type=common.count)
    common.flag(command, "--dry-run", "only print what would be removed")
    common.flag(command, "--jobs", "remove the folders of old finished jobs instead")
    text = "with --jobs: folders unchanged for this time, such as 30d or 12h (default: 30d)"
    common.add(command, "--older-than", "TIME", text, type=duration)
    common.flag(command, "--yes", "with --jobs: remove folders with results too")


def duration(text: str) -> int:
    """Parse a number of days or hours, and return it in seconds."""
    match = re.match("^([0-9]{1,6})([dh])\\Z", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days or hours, such as 30d or 12h")
    return int(match.group(1)) * {"d": 86400, "h": 3600}[match.group(2)]


def _verify(args: argparse.Namespace) -> None:
    path = args.bundle
    root: Optional[str] = None
    with suppress(UsageError):  # a laptop has no root folder
        root = store.locate(None).root
    policies = policy.load(root, args.signers)
    with verifying.opened(path) as stream:
        size = verifying.size_of(stream)
        with Meter("verify") as meter:
            bundle = verifying.verify(stream, path, policies=policies, progress=lambda done: meter(done, size))
    manifest, signers = bundle.manifest, bundle.trust.signers
    keys = [key.fingerprint for key in bundle.trust.keys]
    record = {
        "name": manifest.name, "version": manifest.version, "digest": bundle.digest, "keys": keys, "signers": signers
    }  # fmt: skip
    if common.as_json(args, record):
        return
    terminal.show(f"{manifest.name}:{manifest.version} is intact", f"digest {bundle.digest}")
    terminal.show(*(f"signed by {signer}" for signer in signers))
    common.warn(admit.origin(bundle.trust, bundle.digest))
    if args.front.prog.endswith(".pyz"):
        common.suggest(args, "install", args.bundle)


def _list(args: argparse.Namespace) -> None:
    where = _existing(args)
    images = where.installed()
    newest = {image.receipt.name: image.folder for image in reversed(images)}  # the last one, the newest, counts
    current = set(newest.values())
    if args.json:
        records = [dict(each.receipt.record(), folder=each.folder, uses=group.uses(each.folder)) for each in images]
        terminal.show_json({"images": [dict(record, current=record["folder"] in current) for record in records]})
        return
    rows = []
    for image in images:
        receipt = image.receipt
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(receipt.installed))
        mark = "*" if image.folder in current else ""
        label = " ".join([receipt.label, *_group(where, image)])
        rows.append([mark, store.short(receipt.digest), space.human(receipt.bytes), when, label])
    if rows:
        terminal.show(*common.table(("", "DIGEST", "SIZE", "INSTALLED", "IMAGE"), rows, ("SIZE",)))
    if len(rows) > len(current):
        terminal.show("* the current image: NAME selects it; for others use NAME:VERSION or NAME@DIGEST")
    if not images:
        terminal.tell(f"no image is installed under {where.root}")


def _group(where: store.Store, image: InstalledImage) -> List[str]:
    """Return whose image of a group's store it is; for one of this store, which members used it, and when."""
    if image.store.root != where.root:
        return ["of " + group.user(os.stat(image.folder).st_uid)]
    uses = sorted(group.uses(image.folder).items())
    return [f"({name} {time.strftime('%Y-%m-%d', time.localtime(last))})" for name, last in uses]


def _join(args: argparse.Namespace) -> None:
    where = store.locate(args.root)
    joined = group.join(where.root, args.store)
    os.makedirs(where.images, exist_ok=True)  # so that the .pyz there knows its root folder
    where.bring_tool()
    owner = group.user(joined.owner)
    events.note(where.root, "join", store=joined.folder)
    record = {"root": where.root, "store": joined.folder, "owner": owner, "uid": joined.owner}
    text = f"{where.root} also uses the images of {joined.folder}, which only {owner} (uid {joined.owner}) can change"
    common.show_result(args, record, text)


def _log(args: argparse.Namespace) -> None:
    noted = events.read(_existing(args).root)
    rows = []
    for each in noted:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.time))
        who, what = " as ".join(filter(None, (each.login, each.user))), (each.bundle, each.job, each.job_id, each.store)
        rows.append([when, who, each.action, store.short(each.digest), " ".join(filter(None, what))])
    lines = common.table(("TIME", "USER", "ACTION", "DIGEST", "WHAT"), rows)
    common.show_result(args, {"events": [each._asdict() for each in noted]}, *lines)


def _existing(args: argparse.Namespace) -> store.Store:
    """Return the store. Raises UsageError if the root folder does not exist: the path is probably wrong."""
    where = store.locate(args.root)
    if not files.is_folder(where.root):
        raise UsageError(f"there is no folder {where.root}", "give the root folder of the installation with --root DIR")
    return where


def _remove(args: argparse.Namespace) -> None:
    where = store.locate(args.root)
    if bool(args.image) == args.all:
        raise UsageError("remove requires an image or --all", f"remove {store.REFERENCE}, or remove --all")
    if args.all:
        there = files.is_folder(where.root)
        left = removing.uninstall(where, args.force)
        if left:  # else nothing is left to write to
            events.note(where.root, "remove --all")
        rest = "; not removed: {}".format(", ".join(left)) if left else ""
        text = "removed %s%s" if there else "there is no folder %s%s"
        common.show_result(args, {"removed": where.root, "left": left}, text % (where.root, rest))
        return
    image = where.find(args.image)
    where.check_own(image)
    removing.remove(where, image, args.force)
    events.note(where.root, "remove", image)
    common.show_result(args, {"removed": image.folder}, f"removed {image.folder}")


def _gc(args: argparse.Namespace) -> None:
    if args.jobs:
        _gc_jobs(args)
        return
    if args.older_than is not None or args.yes:
        raise UsageError("--older-than and --yes require --jobs", "see: gc --help")
    where = _existing(args)
    garbage, images = collecting.find(where, args.keep or _KEPT_IMAGES), {each.folder: each for each in where.own()}
    if not args.dry_run:
        garbage = collecting.collect(garbage)
        for image in (images[item.path] for item in garbage if item.path in images and not item.spared):
            events.note(where.root, "gc", image)
    if common.as_json(args, {"dry_run": args.dry_run, "garbage": [dict(item._asdict()) for item in garbage]}):
        return
    for item in garbage:
        word = "kept" if item.spared else "would remove" if args.dry_run else "removed"
        terminal.show(f"{word} {item.path}: {item.spared or item.reason}")


def _gc_jobs(args: argparse.Namespace) -> None:
    if args.keep is not None:
        raise UsageError("--keep cannot be used with --jobs: it is a number of images", "see: gc --help")
    where = _existing(args)
    folders_of_jobs = jobfolders.find(where, _OLD_SECONDS if args.older_than is None else args.older_than)
    doomed = [item for item in folders_of_jobs if not item.spared and (args.yes or not item.keeps)]
    if not args.dry_run:
        jobfolders.collect(where, doomed)
    folders = [dict(item._asdict(), removed=item in doomed and not args.dry_run) for item in folders_of_jobs]
    if common.as_json(args, {"dry_run": args.dry_run, "job_folders": folders}):
        return
    for item in folders_of_jobs:
        word = "kept" if item not in doomed else "would remove" if args.dry_run else "removed"
        kept = f"contains {item.keeps}; --yes removes it" if item.keeps and item not in doomed else ""
        age = f"unchanged for {counted(int(item.days), 'day')}"
        terminal.show(f"{word} {item.path}: {item.spared or kept or age}")
