"""deployer result: fetch and show the output of a job on a site."""

import argparse
import contextlib
import functools
import json
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.laptop.remote import add_site, site_options
from deployer.cli.site import common, run_table
from deployer.contract.base import json_records
from deployer.contract.base.errors import TransferError, UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.base.text import counted
from deployer.contract.proof import in_words
from deployer.site.storage.space import human
from deployer.system import terminal

#: The size limit of a result.json in bytes, with the evidence of some 100,000 ranks.
_LIMIT = 256 * 1024 * 1024
_NAME = "result.json"
#: The most levels of a job's own result to print.
_DEPTH = 100
#: The most numbers of a list to print. Longer lists, such as curves, are shortened to their first and last numbers.
_NUMBERS, _FIRST = 8, 3


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "result", run)
    common.add(command, "job", "JOB", "its name or the scheduler's id (default: the last)", nargs="?")
    text = "copy the job's whole folder to this new folder: its log, its results, and all that the job wrote there"
    common.add(command, "-o", "--output", "DIR", text, type=Path)
    ours = command.add_argument_group("while the job runs")
    common.flag(ours, "--follow", "copy changed files into DIR until the job has ended; files over 100 MB need --only")
    text = "copy only files with this name or path, such as '*tfevents*', of any size; may be repeated"
    common.repeated(ours, "--only", "PATTERN", text)
    common.add(ours, "--every", "SECONDS", "the time between two copies (default: 10)", type=float, default=10.0)
    text = "show the copy in TensorBoard on this port of this machine (6006)"
    common.add(ours, "--tensorboard", "PORT", text, type=int, nargs="?", const=6006)
    trackers = command.add_argument_group("afterwards")
    text = "upload the offline runs in DIR with the tracker's own program: wandb, mlflow"
    common.add(trackers, "--sync", "TRACKER", text, choices=("wandb", "mlflow"))
    add_site(command.add_argument_group("the site"))


def run(args: argparse.Namespace) -> None:
    """Fetch the result and print it."""
    settings.fill(args)
    if (args.follow or args.sync) and not args.output:
        raise UsageError(f"{'--follow' if args.follow else '--sync'} needs a folder: -o DIR")
    if not args.follow and (args.only or args.tensorboard):
        raise UsageError(f"{'--only' if args.only else '--tensorboard'} goes with --follow")
    (_follow if args.follow else _fetch)(args)


def _fetch(args: argparse.Namespace) -> None:
    from deployer.connected.transfer.published import profile_of
    from deployer.connected.transfer.remote import Remote

    with Remote(profile_of(args.site, args.ssh_config), args.ssh_config) as remote:
        remote.prepare()
        status = remote.site(["status", *([args.job] if args.job else [])])
        folder, tasks = status.text("folder"), status.record.get("tasks")
        result = None
        if remote.has(folder, _NAME):
            data = remote.fetch(f"{folder}/{_NAME}", _LIMIT)
            result = _read(data, f"{_NAME} of {status.text('job')}")
        if args.output and not (args.sync and args.output.is_dir()):  # the copy of an earlier call is uploaded again
            remote.download(folder, args.output)
        written = {} if args.output or args.json or tasks else remote.files_in(folder)
    fetched = str(args.output) if args.output else None
    _sync(args)
    if common.as_json(args, {**status.record, "result": result, "fetched": fetched}):
        return
    if tasks:
        terminal.show(f"{status.text('job')}: {status.text('state')}, {status.text('reason')}")
        run_table.show_tasks(args, tasks)
    else:
        _show(status, result)
    if args.output:
        terminal.show(f"job folder copied to: {args.output}")
        if tasks or result is not None:
            common.suggest(args, "report", str(args.output), *(() if tasks else ("--html", "page.html")))
        return
    sizes: dict[str, list[int]] = {}  # by folder
    for path, state in sorted(written.items()):
        top, below, _ = path.partition("/")
        sizes.setdefault(top + below, []).append(state.size)
    for name, group in sizes.items():
        count = f"  ({counted(len(group), 'file')})" if name.endswith("/") else ""
        terminal.show(f"{human(sum(group)):>12}  {name}{count}")
    common.suggest(args, "result", *site_options(args), status.text("job"), "-o", "DIR")


def _read(data: bytes, what: str) -> json_records.Record:
    result = json_records.parse(data, what, TransferError, limit=json_records.MAX_LARGE)
    if not isinstance(result, dict):
        raise TransferError(f"{what} is not a JSON object")
    return result


def _follow(args: argparse.Namespace) -> None:
    """Copy the job's files while it runs. TensorBoard stays until Ctrl-C."""
    from deployer.connected.transfer import following, trackers
    from deployer.connected.transfer.published import profile_of
    from deployer.connected.transfer.remote import Remote

    profile, words = profile_of(args.site, args.ssh_config), [args.job] if args.job else []
    copies: list[following.JobCopy] = []

    def copy_of(status: Fields) -> following.JobCopy:
        if not copies:
            copies.append(following.JobCopy(status.text("job"), args.output, args.only))
            terminal.tell(f"copying job {status.text('job')} to {args.output}; Ctrl-C ends this, not the job")
        return copies[0]

    with contextlib.ExitStack() as cleanup:
        board = None
        if args.tensorboard:
            board = cleanup.enter_context(trackers.TensorBoard(args.output, args.tensorboard))
            terminal.tell(f"TensorBoard: {board.url}")
        connect = functools.partial(Remote, profile, args.ssh_config)
        status = following.follow(connect, words, copy_of, max(args.every, 1.0), terminal.tell)
        _sync(args)
        path = args.output / _NAME
        result = _read(path.read_bytes(), str(path)) if path.is_file() else None
        if not common.as_json(args, {**status.record, "result": result, "fetched": str(args.output)}):
            _show(status, result)
        if copies[0].large:
            names = ", ".join(sorted(copies[0].large)[:3])
            terminal.warn(
                f"not copied, because of the size: {names}; copy them with --only PATTERN, or without --follow"
            )
        if board:
            terminal.tell("the job has ended; Ctrl-C ends TensorBoard")
            board.wait()


def _sync(args: argparse.Namespace) -> None:
    if args.sync:
        from deployer.connected.transfer import trackers

        names = trackers.upload(args.sync, args.output)
        terminal.tell(f"uploaded with {args.sync}: {', '.join(names)}")


def _show(status: Fields, result: json_records.Record | None) -> None:
    words = [f"job {status.text('job')} ({status.maybe_text('job_id') or '-'}): {status.text('state')}"]
    code, seconds = status.maybe_number("exit_code"), status.maybe_number("seconds")
    words += [f"exit {code}"] if code is not None else []
    words += [f"{seconds} s"] if seconds is not None else []
    terminal.show(", ".join(words))
    for name in ("problem", "remedy"):
        if status.text(name, lines=True):
            terminal.show(f"{name}: {status.text(name, lines=True)}")
    payload = result.get("payload") if result else None
    if result is None:
        terminal.show("it has written no result yet" if status.flag("active") else f"it left no {_NAME}")
    elif payload is None:
        terminal.show("the job wrote no result of its own (a program writes JSON to the file $DEPLOYER_RESULT)")
    elif json_records.is_deeper(payload, _DEPTH):
        terminal.show(f"the job's own result is nested deeper than {_DEPTH} levels: copy it with -o DIR")
    else:
        terminal.show(*_json(payload).splitlines())
    if result is not None:
        terminal.show(in_words.line(result))
    terminal.show(f"on the site: {status.text('folder')}")


def _json(value: Any, before: str = "") -> str:
    """Return a job's own result as indented JSON. Each list of numbers is on one line; long ones are shortened.

    Args:
        before: the indentation of the closing bracket.
    """
    if isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
        if len(value) <= _NUMBERS:
            return json.dumps(value)
        first = json.dumps(value[:_FIRST]).removesuffix("]")
        return f"{first}, ... {len(value) - _FIRST - 1} more ..., {json.dumps(value[-1])}]"
    inner = f"{before}  "
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(name)}: {_json(item, inner)}" for name, item in value.items()]
    elif isinstance(value, list) and value:
        rows = [_json(item, inner) for item in value]
    else:
        return json.dumps(value)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([begin, ",\n".join(inner + row for row in rows), before + end])
