"""deployer result: fetch and show the output of a job on a site."""

import argparse
import json
from pathlib import Path
from typing import Any

from deployer.cli.laptop import settings
from deployer.cli.laptop.remote import add_site, site_options
from deployer.cli.site import common, run_table
from deployer.contract.base import json_records
from deployer.contract.base.errors import TransferError
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
    add_site(command.add_argument_group("the site"))


def run(args: argparse.Namespace) -> None:
    """Fetch the result and print it."""
    from deployer.connected.transfer.published import profile_of
    from deployer.connected.transfer.remote import Remote

    settings.fill(args)
    with Remote(profile_of(args.site, args.ssh_config), args.ssh_config) as remote:
        remote.prepare()
        status = remote.site(["status", *([args.job] if args.job else [])])
        folder = status.text("folder")
        result = None
        tasks = status.record.get("tasks")
        if remote.has(folder, _NAME):
            what = f"{_NAME} of {status.text('job')}"
            data = remote.fetch(f"{folder}/{_NAME}", _LIMIT)
            result = json_records.parse(data, what, TransferError, limit=json_records.MAX_LARGE)
            if not isinstance(result, dict):
                raise TransferError(f"{what} is not a JSON object")
        if args.output:
            remote.download(folder, args.output)
        written = [] if args.output or args.json or tasks else remote.files_in(folder)
    fetched = str(args.output) if args.output else None
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
    for path, size in sorted(written):
        top, below, _ = path.partition("/")
        sizes.setdefault(top + below, []).append(size)
    for name, group in sizes.items():
        count = f"  ({counted(len(group), 'file')})" if name.endswith("/") else ""
        terminal.show(f"{human(sum(group)):>12}  {name}{count}")
    common.suggest(args, "result", *site_options(args), status.text("job"), "-o", "DIR")


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
