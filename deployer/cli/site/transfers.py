"""Commands for the site's bundles and transfers: receipt, and those that push calls, known and take."""

import argparse
import os
import platform
import sys
from typing import Any, Dict

from deployer.cli.site import common
from deployer.contract.base import dialogue, json_records
from deployer.contract.base.errors import UsageError
from deployer.contract.base.text import counted
from deployer.contract.bundle import delta
from deployer.site.install import incoming
from deployer.site.storage import inventory, store
from deployer.site.storage.space import human
from deployer.system import files, terminal


def add_parsers(subparsers: Any) -> None:
    """Register this group's commands."""
    command = common.add_store_command(subparsers, "receipt", _receipt)
    common.add(command, "-o", "--output", "FILE", "write the list to this file", required=True)
    text = "print what is here of a bundle, and the free space; called by push"
    command = common.add_store_command(subparsers, "known", _known, text)
    command.add_argument("digest", metavar="DIGEST")
    text = "print what `known` does, and install the parts from standard input while they arrive; called by push"
    command = common.add_store_command(subparsers, "take", _take, text)
    command.add_argument("digest", metavar="DIGEST")
    common.add(command, "--ahead", "TOKEN", "use the parts that `ahead TOKEN` has taken")
    text = "print what is here, and take parts of a bundle that is still being packed; called by deploy"
    command = common.add_store_command(subparsers, "ahead", _ahead, text)
    command.add_argument("token", metavar="TOKEN")


def _receipt(args: argparse.Namespace) -> None:
    digests = list(incoming.kept(store.locate(args.root)))
    files.write_text(args.output, json_records.pretty(delta.receipt(digests)))
    line = f"receipt of {counted(len(digests), 'segment')}: {args.output}"
    common.show_result(args, {"receipt": args.output, "segments": len(digests)}, line)


def _known(args: argparse.Namespace) -> None:
    answer = _about(store.locate(args.root), args.digest)
    free = human(int(str(answer["free"])))
    common.show_result(args, answer, f"installed: {answer['folder'] or 'no'}", f"free: {free}")


def _about(where: store.Store, digest: str) -> Dict[str, object]:
    """Return the facts for ``push`` about the parts of a bundle that are already here."""
    if not files.is_folder(where.root):
        raise UsageError(f"there is no folder {where.root}", "push creates it; or give another with --root DIR")
    present = inventory.whole(where, digest)
    if present:
        from deployer.site.install.receive import finish  # only here: its imports take longer than the rest

        finish(where, digest, present)
    state = os.statvfs(where.root)
    return {
        "folder": present.folder if present else None,
        "free": state.f_bavail * state.f_frsize,
        "python": platform.python_version(),
        "held": "" if present else delta.held_text(incoming.held(where, digest)),
    }


def _take(args: argparse.Namespace) -> int:
    files.enlarge_pipe(sys.stdin.fileno())
    where = store.locate(args.root)
    incoming.remove_stale(where)
    came = incoming.adopted(where, args.ahead, args.digest) if args.ahead else []
    answer = {**_about(where, args.digest), "came": " ".join(part.name for part in came)}
    terminal.show_json(answer, mark=dialogue.ANSWER)
    if answer["folder"]:
        terminal.show_json(answer)
        return _then(args)
    from deployer.cli.site.installs import show_received  # slow, so it runs while the laptop selects what to send
    from deployer.site.install import arriving, receive

    if args.rest:
        from deployer.cli.site import jobs  # noqa: F401  for the command afterwards
        from deployer.site.run import run  # noqa: F401

    # Not sys.stdin, which is closed in forked processes.
    with os.fdopen(os.dup(sys.stdin.fileno()), "rb") as stream, receive.settled(where, args.digest) as late:
        show_received(lambda meter: arriving.take(stream, where, args.digest, meter, late), where, args.json)
        sys.stdout.flush()
        return _then(args)


def _ahead(args: argparse.Namespace) -> None:
    files.enlarge_pipe(sys.stdin.fileno())
    where = store.locate(args.root)
    terminal.show_json(_about(where, args.token), mark=dialogue.ANSWER)
    incoming.take_ahead(sys.stdin.buffer, where, args.token)
    terminal.show_json({})


def _then(args: argparse.Namespace) -> int:
    """Run the command after ``--`` in this process, to save a start of Python and its imports."""
    if not args.rest:
        return 0
    from deployer.cli.site.main import main

    os.environ.pop(dialogue.PROGRESS, None)  # jobs must not inherit it
    return main(args.rest)
