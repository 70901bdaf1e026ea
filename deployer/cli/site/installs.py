"""Commands that make or change an installed image: install, receive, squash, take-plan, take-scan."""

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from deployer.cli.site import common
from deployer.cli.site.meter import Meter
from deployer.contract.bundle import plan_update
from deployer.contract.site.plan import SIF
from deployer.site.install import install as installing
from deployer.site.install import squash, take_plan
from deployer.site.install.receive import receive
from deployer.site.media import media
from deployer.site.storage import events, scans, space, store
from deployer.site.storage.store import InstalledImage, Store
from deployer.system import files, terminal, workers

if TYPE_CHECKING:
    from deployer.site.install.squash import Squashed

_JOBS = "number of processes (default: one per core, at most 16)"


def add_parsers(subparsers: Any) -> None:
    """Register this group's commands."""
    command = common.add_store_command(subparsers, "install", _install)
    common.add(command, "bundle", "BUNDLE.tar", "a bundle, as `deployer pack` wrote it on the laptop")
    common.flag(command, "--keep", "afterwards move the bundle to ROOT/bundles, as push does")
    add_squashfs(command)
    common.add(command, "--jobs", "N", _JOBS, type=common.count)
    text = common.SIGNERS + "; the first such file becomes the root folder's policy"
    common.add(command, "--signers", "FILE", text)
    command = common.add_store_command(subparsers, "squash", _squash)
    common.add(command, "image", store.REFERENCE, "an installed image: see `list`")
    common.add(command, "--jobs", "N", _JOBS, type=common.count)
    command = common.add_store_command(subparsers, "receive", _receive)
    text = "a folder that push --to wrote, complete; of several media, those that are here, in any order"
    common.add(command, "folders", "DIR", text, nargs="+")
    text = "the private key for encrypted media (default: ~/.ssh/id_ed25519)"
    common.add(command, "--identity", "FILE", text)
    common.add(command, "--age", "FILE", "the program that decrypts (default: age in PATH)", default="age")
    add_squashfs(command)
    command = common.add_store_command(subparsers, "take-plan", _take_plan)
    common.add(command, "file", "FILE", "a file that `plan -o` wrote; - reads what push sends")
    common.add(command, "--signers", "FILE", common.SIGNERS)
    command = common.add_store_command(subparsers, "take-scan", _take_scan)
    common.add(command, "file", "FILE", "a file that `scan` wrote on the laptop; - reads what push sends")


def add_squashfs(command: Any) -> None:
    """Register the option for a SquashFS file, which all commands that install images share."""
    text = "also make its SquashFS file, for --staging squashfs, with the site's mksquashfs or else the kit's"
    common.flag(command, "--squashfs", text)


def _install(args: argparse.Namespace) -> None:
    where = store.locate(args.root)

    def work(meter: Meter) -> installing.InstallOutcome:
        outcome = installing.install(args.bundle, where, meter, args.jobs, args.keep, args.signers)
        # The file of an already installed bundle was not verified and may be something else, so it stays in place.
        keeps = args.keep and not outcome.known
        bundle = installing.keep(args.bundle, where, outcome.image) if keeps else args.bundle
        return outcome._replace(bundle=bundle)

    _suggest(args, show_received(work, where, args.json, args.squashfs, args.jobs, "installed"))


def _suggest(args: argparse.Namespace, image: InstalledImage) -> None:
    """Print the command that runs an image's job, if the image has one."""
    if image.manifest().jobs:
        plan = ["--plan", "SITE"] if len(image.sites()) > 1 else []
        common.suggest(args, "run", image.receipt.label, *plan)


def _receive(args: argparse.Namespace) -> None:
    where = store.locate(args.root)
    folders = [os.path.abspath(folder) for folder in args.folders]
    key = args.identity or os.path.expanduser("~/.ssh/id_ed25519")
    with Meter("copy") as meter:
        folder, missing = media.gather(folders, where, key, args.age, meter)
    if missing:
        line = f"kept what has arrived; missing: {', '.join(missing).replace('-', ' ')}"
        common.show_result(args, {"folder": None, "missing": missing}, line)
        common.suggest(args, "receive", "DIR", *(["--identity", args.identity] if args.identity else []))
        return
    _suggest(args, show_received(lambda meter: receive(folder, where, meter), where, args.json, args.squashfs))


def show_received(
    receiving: Callable[[Meter], installing.InstallOutcome],
    where: Store,
    as_json: bool,
    squashfs: bool = False,
    jobs: Optional[int] = None,
    done: str = "rebuilt, verified and installed",
) -> InstalledImage:
    """Install a bundle with ``receiving``, print the result, and return the image."""
    started = time.time()
    with Meter("install") as meter:
        image, known, warnings, bundle = receiving(meter)
        where.bring_tool()
    if not known:
        events.note(where.root, "install", image)
    receipt, seconds = image.receipt, time.time() - started
    squashfs = squashfs or (not known and squash.needs_sif(image))
    squashed = squashed_now(image, jobs) if squashfs else None
    if as_json:
        record = {"folder": image.folder, "known": known, "digest": receipt.digest, "bundle": bundle}
        record.update(warnings=list(warnings), seconds=round(seconds, 3))
        terminal.show_json(dict(record, squashfs=squashed.record() if squashed else None))
        return image
    common.warn(warnings)
    if known:
        terminal.show(f"{receipt.label} is already installed: {image.folder}")
    else:
        size = "%d entries, %s" % (receipt.files, space.human(receipt.bytes))
        terminal.show(f"{done} {receipt.label}: {size}, in {seconds:.1f} s: {image.folder}")
        terminal.show(f"digest {receipt.digest}")
    if squashfs:
        terminal.show(_squashed_line(image, squashed))
    return image


def _sent(file: str, what: str) -> Tuple[bytes, str]:
    """Return the content of a file that was sent or carried, and its name for errors."""
    if file != "-":
        return files.read_bytes(file, limit=plan_update.MAX_SIZE), file
    what += " from standard input"
    return plan_update.unpacked(sys.stdin.buffer.read(plan_update.MAX_SIZE + 1), what), what


def _take_scan(args: argparse.Namespace) -> None:
    scan, path = scans.take(*_sent(args.file, "the scan"), store.locate(args.root))
    common.show_result(args, {"scan": path, "bundle": scan.bundle}, f"scan of {scan.bundle}: {path}")


def _take_plan(args: argparse.Namespace) -> None:
    where, (data, what) = store.locate(args.root), _sent(args.file, "the plan")
    taken = take_plan.take(data, what, where, args.signers)
    path = taken.image.newer_plan(taken.update.site)
    events.note(where.root, "take-plan", taken.image)
    signers, warnings = taken.signers, list(taken.warnings)
    record = {"plan": path, "bundle": taken.update.bundle, "signers": signers, "warnings": warnings}
    if common.as_json(args, record):
        return
    terminal.show(f"jobs of {taken.update.bundle} use this plan for {taken.update.site} from now on: {path}")
    terminal.show(*(f"signed by {signer}" for signer in signers))
    common.warn(warnings)
    common.suggest(args, "run", taken.update.bundle)


def squashed_now(image: InstalledImage, jobs: Optional[int] = None) -> "Optional[Squashed]":
    """Make the SquashFS file of an image and return it; None if it exists. Make its SIF file if a plan needs it."""
    there, as_sif = files.is_file(squash.path(image.folder)), squash.path(image.folder, SIF)
    squashed = None if there else squash.make(image, jobs or min(workers.cores(), workers.MOST))
    if squash.needs_sif(image) and not files.is_file(as_sif):
        squash.write_sif(image, as_sif)
    return squashed


def _squashed_line(image: InstalledImage, squashed: "Optional[Squashed]") -> str:
    """Return a line about the SquashFS file of an image, and its SIF file if it has one."""
    line = squashed.line() if squashed else f"its SquashFS file exists already: {squash.path(image.folder)}"
    as_sif = squash.path(image.folder, SIF)
    return f"{line}; SIF file: {as_sif}" if files.is_file(as_sif) else line


def _squash(args: argparse.Namespace) -> None:
    where = store.locate(args.root)
    image = where.find(args.image)
    where.check_own(image)
    squashed = squashed_now(image, args.jobs)
    record = {"folder": image.folder, "squashfs": squashed.record() if squashed else None}
    common.show_result(args, record, _squashed_line(image, squashed))
