"""The command line of the lab: ``scripts/lab``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tests.lab import host
from tests.lab.cluster import Lab, Status
from tests.lab.errors import LabError
from tests.lab.faults import FAULTS
from tests.lab.site import LOGIN

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"lab: error: {message}\nhint: {self.prog} --help", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    faults = "\n".join(f"  {name + ' ' + fault.arguments:24}{fault.text}" for name, fault in FAULTS.items())
    which = _Parser(add_help=False)
    which.add_argument("--name", default=argparse.SUPPRESS, help="which lab (default: $DEPLOYER_LAB, else default)")
    which.add_argument("--dir", type=Path, default=argparse.SUPPRESS, help="its folder, instead of the usual one")
    top = _Parser(prog="scripts/lab", description=__doc__, parents=[which])
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    up = commands.add_parser("up", parents=[which], help="bring it up, or repair it; undoes every fault")
    up.add_argument("--nodes", type=int, help="compute nodes (default: as before, else 2)")
    up.add_argument(
        "--suite",
        help="nodes of a Debian suite: trixie, sid (default: as before, else this machine's own system)",
    )
    up.add_argument("--scratch", help="size of login1's scratch (default: as before, else 64m)")
    down = commands.add_parser("down", parents=[which], help="end it")
    down.add_argument("--purge", action="store_true", help="remove its folder too: logs and alice's home")
    status = commands.add_parser("status", parents=[which], help="show it; exit 1 unless all of it runs")
    status.add_argument("--json", action="store_true")
    execute = commands.add_parser("exec", parents=[which], help="run a command as root in a node")
    execute.add_argument("node")
    login = commands.add_parser("as", parents=[which], help="run a command as a user logged in to a node")
    login.add_argument("user")
    login.add_argument("node")
    ssh = commands.add_parser("ssh", parents=[which], help="ssh from the laptop; without arguments to login1")
    for command in (execute, login, ssh):
        command.add_argument("words", nargs=argparse.REMAINDER, metavar="-- ...")
    commands.add_parser("ssh-config", parents=[which], help="print the path of the ssh configuration")
    fault = commands.add_parser(
        "fault", parents=[which], help="make something go wrong, or mend it", epilog="faults:\n" + faults,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    fault.add_argument("fault", choices=list(FAULTS), metavar="FAULT")
    fault.add_argument("arguments", nargs="*")
    commands.add_parser("packages", parents=[which], help="print the Debian packages that it needs")
    return top


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. What stands behind the first "--" is another command's: argparse never sees it."""
    ours, words = list(argv), list[str]()
    if "--" in ours:
        cut = ours.index("--")
        ours, words = ours[:cut], ours[cut + 1 :]
    arguments = parser().parse_args(ours)
    if words and not hasattr(arguments, "words"):
        parser().error(f"{arguments.command} takes no command after --")
    arguments.words = [*getattr(arguments, "words", []), *words]
    return arguments


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    arguments = parse(argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except LabError as error:
        print(f"lab: error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # `scripts/lab status | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("lab: error: interrupted\nhint: run it again, or `scripts/lab down`", file=sys.stderr)
        return EXIT_INTERRUPTED


def _dispatch(arguments: argparse.Namespace) -> int:
    if arguments.command == "packages":
        print(" ".join(host.packages()))
        return 0
    name = getattr(arguments, "name", os.environ.get("DEPLOYER_LAB") or "default")
    lab = Lab(name, getattr(arguments, "dir", None), root=_root(arguments))
    if arguments.command == "up":
        _up(lab, arguments)
    elif arguments.command == "down":
        lab.down(purge=arguments.purge)
        print("lab: down")
    elif arguments.command == "status":
        status = lab.status()
        print(status.as_json() if arguments.json else _table(status))
        return 0 if status.up else EXIT_FAILED
    elif arguments.command == "ssh-config":
        print(lab.ssh_config)
    elif arguments.command == "fault":
        lab.fault(arguments.fault, *arguments.arguments)
    else:
        _become(lab, arguments)
    return 0


def _root(arguments: argparse.Namespace) -> Path | None:
    suite = getattr(arguments, "suite", None)
    if not suite:
        return None
    try:
        from tests.lab import roots  # needs the connected side's packages, which a lab of this machine does not
    except ImportError as error:
        raise LabError(f"--suite needs the project's environment: {error}", "scripts/setup") from error
    return roots.node(suite)


def _up(lab: Lab, arguments: argparse.Namespace) -> None:
    report = lab.up(nodes=arguments.nodes, scratch=arguments.scratch)
    for line in report.text.splitlines():
        print(f"lab: {line}")
    print(f"lab: ssh -F {lab.ssh_config} {LOGIN}")


def _become(lab: Lab, arguments: argparse.Namespace) -> NoReturn:
    """Become the command, so that its terminal, signals and exit code are its own."""
    words = arguments.words
    environment = {**os.environ}
    if arguments.command == "ssh":
        lab.holder(LOGIN)
        argv = ["ssh", "-F", str(lab.ssh_config), *(words or [LOGIN])]
    else:
        user = "root" if arguments.command == "exec" else arguments.user
        argv, environment = lab.argv(arguments.node, user, words or ["bash"])
        environment["TERM"] = os.environ.get("TERM", "dumb")
    sys.stdout.flush()
    os.execvpe(argv[0], argv, environment)


def _table(status: Status) -> str:
    if not status.nodes:
        return f"lab {status.name}: never started"
    lines = [f"lab {status.name}: {'up' if status.up else 'not complete'}, {status.dir}"]
    for node in status.nodes:
        daemons = " ".join(name if runs else f"{name}:DOWN" for name, runs in node.daemons.items())
        state = f"pid {node.pid}" if node.up else "DOWN"
        line = f"  {node.name:8}{state:12}{node.address:28}{node.slurm:12}{daemons}"
        lines.append(line.rstrip())
    lines.append(f"  ssh -F {status.ssh_config} {LOGIN}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
