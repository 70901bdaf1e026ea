"""Commands that plan, sign, send and compare bundles: plan, sign, push, diff, pyz."""

import argparse
import hashlib
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployer.cli.laptop import settings
from deployer.cli.laptop.remote import site_options
from deployer.cli.site import common
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.check import check as checking
from deployer.connected.check.checking import Checking
from deployer.connected.ground import caches, user_settings
from deployer.connected.ground.sign import sign, sign_update
from deployer.connected.transfer import push as pushing
from deployer.connected.transfer.published import profile_of
from deployer.connected.transfer.push_plan import push_plan
from deployer.contract.base import records
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.contract.bundle.plan_update import PlanUpdate
from deployer.contract.site.choose import explained
from deployer.site.storage.space import human
from deployer.system import files, terminal
from deployer.system.trust.verify import begin, opened, read_seal

if TYPE_CHECKING:
    from deployer.connected.bundle.about.diff import Difference

#: The most files that diff lists per kind: added, removed, changed.
_NAMED = 20


def add_parsers(subparsers: Any) -> None:
    """Register this group's commands."""
    command = common.add_command(subparsers, "plan", _plan)
    common.add(command, "bundle", "B.tar", "a bundle that `pack` wrote")
    command.add_argument("--site", help=settings.SITE)
    command.add_argument("--partition", help="only for this partition of the profile (default: for each)")
    common.add_plan_choice(command)
    common.repeated(command, "--accept", "CODE", "treat this rule of check as a warning; the plan records it")
    common.add(command, "-o", "--output", "FILE", "write the plan to this file, for `push --plan`", required=True)

    command = common.add_command(subparsers, "sign", _sign)
    common.add(command, "bundle", "FILE", "a bundle, or a plan that `plan -o` wrote")
    text = "a private key, or an agent's .pub (default: that of the settings)"
    common.add(command, "--key", "KEY", text, type=Path)

    command = common.add_command(subparsers, "push", _push)
    common.add(command, "bundle", "B.tar", "the bundle; left out with --plan", nargs="?")
    text = "a profile's name or path, or ssh:HOST for what that site publishes (default: that of the settings); "
    text += "--site SITE is the same"
    common.add(command, "site", "SITE", text, nargs="?")
    command.add_argument("--site", dest="named", metavar="SITE", help=argparse.SUPPRESS)
    common.add(command, "--ssh-config", "F", "use this ssh configuration instead of ~/.ssh/config", type=Path)
    common.flag(command, "--full", "send the whole bundle, including parts that the site already has")
    common.flag(command, "--force", "send it even if check predicts that it will not run there")
    text = "send this new plan for a bundle that is installed at the site; `run` uses it from then on"
    common.add(command, "--plan", "FILE", text, type=Path)
    text = "send it even if it has no plan for the site: `exec` and `shell` work there, `run` does not"
    common.flag(command, "--without-plan", text)
    common.flag(command, "--dry-run", "print what would be sent, and send nothing")
    common.flag(command, "--squashfs", "also make the image's SquashFS file at the site, for --staging squashfs")
    text = "send the data through this host by sftp; it must mount the same workspace, and needs no shell"
    common.add(command, "--transfer-host", "HOST", text)
    common.add(command, "--to", "DIR", "write the parts to this folder, to be carried to the site", type=Path)
    text = "with --to: leave out what the site has, listed in this file by its `receipt` command"
    common.add(command, "--have", "RECEIPT", text, type=Path)
    text = "with --to: fill media of this size, such as 4.7GB, in folders DIR/1, DIR/2, ..."
    common.add(command, "--medium-size", "SIZE", text, type=_size, default=0)
    text = "with --to: encrypt with age for this OpenSSH public key, or a file with such keys; repeatable"
    common.repeated(command, "--encrypt-to", "KEY", text)
    common.flag(command, "--bring-age", "with --encrypt-to: add a static age to each medium, for a site without it")

    command = common.add_command(subparsers, "diff", _diff)
    common.add(command, "old", "A.tar", "the earlier bundle")
    common.add(command, "new", "B.tar", "the later bundle")
    common.repeated(command, "--accept", "CODE", "accept secrets of this code, or one of them (CODE:FILE)")
    common.flag(command, "--files", f"list every file, not only {_NAMED} of each kind")

    command = common.add_command(subparsers, "pyz", _pyz)
    common.add(command, "-o", "--output", "deployer.pyz", "write it to this file", required=True)


def _size(text: str) -> int:
    """Parse a size such as 4.7GB or 32GiB, in bytes."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([kMGT])(i?)B", text)
    if match is None:
        raise argparse.ArgumentTypeError("must be a number and a unit, such as 700MB, 4.7GB or 32GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** (1 + "kMGT".index(match[2])))


def _plan(args: argparse.Namespace) -> None:
    args.site = user_settings.site(args.site)
    profile = profile_of(args.site).selected([args.partition] if args.partition else [], args.mpi, args.launch)
    plans = checking.all_plans(args.bundle, profile, Checking(args.accept, caches.LINK.folder))
    first = plans[0]
    with opened(args.bundle) as stream:
        digest = read_seal(stream, args.bundle).digest
    update = PlanUpdate(digest, first.bundle, int(time.time()), plans)
    files.write_text(args.output, update.text())
    verdicts = {plan.partition: plan.checked.verdict for plan in plans if plan.checked}
    record = {"plan": args.output, "site": first.site, "verdict": verdicts.get(first.partition)}
    if not common.as_json(args, {**record, "partitions": verdicts}):
        terminal.show(f"plan for {first.site}: {args.output}")
        for plan in plans:
            if plan.checked:
                of = "" if plan is first else f", partition {plan.partition}"
                terminal.show(f"check {first.site}{of}: {plan.checked.said}")
                common.show(plan.checked, explained(plan))
        terminal.show(*(f"no plan for partition {name}: {reason}" for name, reason in first.without.items()))
    common.suggest(args, "push", "--plan", args.output, args.site)


def _sign(args: argparse.Namespace) -> None:
    path = Path(args.bundle)
    key = user_settings.path("key", args.key)
    if key is None:
        hint = f"give it with --key KEY, or set `key:` in {user_settings.config_file()}"
        raise UsageError("no key is given, and the settings have none", hint)
    signed = (sign_update if _is_update(path) else sign)(path, key)
    if common.as_json(args, signed.record()):
        return
    terminal.show(f"signed by {signed.key.fingerprint}; signatures: {len(signed.keys)}", f"digest {signed.digest}")
    terminal.show(f"for the site's allowed_signers: WHO {signed.key.line}")
    words = ["--plan", args.bundle] if _is_update(path) else [args.bundle]
    common.suggest(args, "push", *words, settings.site_for_hint())


def _is_update(path: Path) -> bool:
    """Return whether a file is a plan update, which is text. A bundle is a tar file."""
    with files.errors_named(f"read {path}"), files.open_regular(str(path)) as stream:
        return stream.read(1) == b"{"


def _push_plan(args: argparse.Namespace) -> None:
    own = ["full", "without_plan", "squashfs", "transfer_host", "to", "have", "medium_size", "encrypt_to", "bring_age"]
    used = [f"--{name.replace('_', '-')}" for name in own if getattr(args, name)]
    if used:
        raise UsageError(f"{' and '.join(used)} cannot be used with --plan: it sends one small file")
    sites = [site for site in (args.bundle, args.site, args.named) if site]
    if len(sites) > 1:
        raise UsageError("push --plan requires one SITE, and no bundle", "write: deployer push --plan FILE SITE")
    args.site = sites[0] if sites else None
    settings.fill(args)
    pushed = push_plan(args.plan, profile_of(args.site, args.ssh_config), args.ssh_config, args.dry_run, args.force)
    if common.as_json(args, pushed._asdict()):
        return
    if pushed.plan is None:
        terminal.show(f"would send {human(pushed.sent)}")
        return
    terminal.show(f"sent {pushed.sent} bytes in {pushed.seconds:.1f} s: {pushed.plan}")
    terminal.show(f"jobs of {pushed.bundle} use this plan for {pushed.site} from now on")
    terminal.show(*(f"signed by {signer}" for signer in pushed.signers))
    common.warn(pushed.warnings)
    common.suggest(args, "run", *site_options(args), pushed.bundle)


def _push(args: argparse.Namespace) -> None:
    if args.plan:
        _push_plan(args)
        return
    if not args.bundle:
        raise UsageError("push requires a bundle, or --plan FILE", "see: deployer push --help")
    if args.site and args.named and args.site != args.named:
        raise UsageError(f"push accepts one site, not two: {args.site} and --site {args.named}", "give one of them")
    args.site = args.site or args.named
    if args.to:
        if args.site:
            raise UsageError("push requires either a SITE or --to DIR", "see: deployer push --help")
        _push_to(args)
        return
    settings.fill(args)
    if args.have:
        raise UsageError("--have requires --to: over ssh, push asks the site what it has")
    if args.medium_size or args.encrypt_to or args.bring_age:
        raise UsageError("--medium-size, --encrypt-to and --bring-age require --to: ssh needs none of them")
    options = common.from_options(pushing.PushOptions, args, facts=caches.LINK.folder)
    profile = profile_of(args.site, args.ssh_config)
    pushed = pushing.push(Path(args.bundle), profile, args.ssh_config, options)
    _show_pushed(args, pushed)
    common.warn(pushed.warnings)
    if pushed.checked and pushed.checked.findings:
        terminal.complain([f"check {args.site}: {pushed.checked.said}"])
        common.show(pushed.checked, stream=sys.stderr)
    with opened(args.bundle) as stream:
        manifest = begin(stream, args.bundle).manifest
    if pushed.folder and manifest.jobs and not args.without_plan:
        common.suggest(args, "run", *site_options(args), f"{manifest.name}:{manifest.version}")


def _show_pushed(args: argparse.Namespace, pushed: pushing.Pushed) -> None:
    if args.json:
        terminal.show_json(pushed.record())
    elif pushed.sent == 0:
        terminal.show(f"already installed at the site: {pushed.folder}")
    elif pushed.folder is None:
        terminal.show(f"would send {human(pushed.sent)} in {counted(pushed.parts, 'part')}")
    else:
        installed = f"verified and installed by Python {pushed.python} in {pushed.seconds_install:.1f} s"
        terminal.show(f"sent {human(pushed.sent)} in {pushed.seconds_transfer:.1f} s; {installed}: {pushed.folder}")
    if pushed.squashfs:
        squashed, tool = pushed.squashfs, pushed.squashfs.child("mksquashfs")
        by = f"the {tool.text('whose')}'s mksquashfs {tool.text('version')}"
        size, seconds = human(squashed.number("size")), squashed.seconds("seconds")
        terminal.show(f"SquashFS file of {size} in {seconds:.1f} s by {by}: {squashed.text('path')}")
    elif args.squashfs and pushed.folder:
        terminal.show("its SquashFS file is already at the site")


def _push_to(args: argparse.Namespace) -> None:
    if args.full and args.have:
        raise UsageError("--full and --have exclude each other: --full sends everything")
    if args.dry_run or args.transfer_host or args.force or args.squashfs or args.without_plan:
        text = "--dry-run, --transfer-host, --force, --without-plan and --squashfs cannot be used with --to"
        raise UsageError(text, "at the site, `deployer.pyz receive DIR` installs the parts; it accepts --squashfs")
    if args.bring_age and not args.encrypt_to:
        raise UsageError("--bring-age requires --encrypt-to: nothing else needs age")
    written = pushing.push_to(Path(args.bundle), args.to, args.have, args.medium_size, args.encrypt_to, args.bring_age)
    if not common.as_json(args, written._asdict()):
        terminal.show(f"wrote {human(written.sent)} in {counted(written.parts, 'part')}: {written.folder}")
        terminal.show(f"digest {written.digest}")
        if not written.data:
            none = "none, so `run` cannot use it; `exec` and `shell` can"
            terminal.show(f"plans: {', '.join(written.plans) or none}")
    what = f"each folder in {args.to}" if args.medium_size else args.to
    key = " --identity KEY" * bool(args.encrypt_to) + " --age DIR/age" * args.bring_age
    terminal.hint("next", f"copy {what} to the site, then there: python3 DIR/deployer.pyz receive DIR --root ROOT{key}")


def _diff(args: argparse.Namespace) -> None:
    from deployer.connected.bundle.about import diff  # its imports are slow, and push does not need it
    from deployer.connected.image.lint import refuse_errors

    difference = diff.diff(args.old, args.new)
    if not common.as_json(args, records.plain(difference)):
        _show_difference(args, difference)
    refuse_errors(difference.secrets, args.accept)


def _show_difference(args: argparse.Namespace, difference: "Difference") -> None:
    terminal.show(*(package.line() for package in difference.packages))
    added, removed, changed = difference.added, difference.removed, difference.changed
    for mark, named in (("+", added), ("-", removed), ("~", changed)):
        paths = sorted(named, key=lambda path: (path.startswith("/"), path))  # put the image's many files last
        for path in paths if args.files else paths[:_NAMED]:
            terminal.show(f"{mark} {path if args.files else common.shortened(path, 2)}")
        if len(paths) > _NAMED and not args.files:
            terminal.show(f"  ... and {len(paths) - _NAMED} more (--files lists all)")
    counts = f"{counted(len(added), 'file')} added, {len(removed)} removed, {len(changed)} changed"
    terminal.show(*common.wrapped(f"{counts}; {human(difference.bytes_to_ship)} to send to a site that has {args.old}"))


def _pyz(args: argparse.Namespace) -> None:
    data = make_pyz()
    files.write_bytes(args.output, data, 0o777)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    record = {"path": args.output, "size": len(data), "digest": digest}
    common.show_result(args, record, f"{args.output}: {human(len(data))}", f"digest {digest}")
