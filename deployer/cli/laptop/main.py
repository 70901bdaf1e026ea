"""``deployer``: the command line of the connected side."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from deployer.cli.site import common
from deployer.cli.site import main as site
from deployer.cli.site.common import Command
from deployer.connected.ground import xdg


def _over_ssh(*names: str) -> list[Command]:
    """Return commands of the site that are the same here, with ``--site``."""
    known = {each.name: each for group in site.GROUPS.values() for each in group}
    return [known[name]._replace(module="laptop.remote", example=f"--site lab {known[name].example}".rstrip())
            for name in names]  # fmt: skip


#: The commands by task, as ``--help`` lists them.
GROUPS = {
    "all at once": (
        Command("deploy", "laptop.deploy", "build, pack, check, push, run and follow what changed",
                "bundles/trained lab --nodes 2"),
    ),
    "write a definition and build its image": (
        Command("init", "laptop.definitions", "write a new definition that works without changes",
                "trained --template pytorch-ddp"),
        Command("lint", "laptop.definitions", "check a definition, its Dockerfile and its built layers",
                "bundles/trained"),
        Command("build", "laptop.build", "build a definition's image in the Docker engine", "bundles/trained"),
        Command("fetch", "laptop.fetch", "run a job once with internet, and keep what it downloads", "bundles/trained"),
        Command("schema", "laptop.definitions", "print the JSON schema of bundle.yaml, or of a command's record",
                "--output status"),
    ),
    "make a bundle and look into it": (
        Command("pack", "laptop.pack", "flatten an image and pack it into one bundle",
                "bundles/trained --site lab -o trained.tar"),
        Command("inspect", "laptop.inspection", "show what a bundle contains", "trained.tar"),
        Command("scan", "laptop.scan", "record what vulnerability scanners find in a bundle", "trained.tar --key KEY"),
        Command("diff", "laptop.bundles", "show what changed between two bundles", "old.tar trained.tar"),
        Command("reproduce", "laptop.build", "build a bundle's image again and compare, as its provenance says",
                "trained.tar"),
        Command("verify", "site.images", "check every byte of a bundle, and its signatures",
                "trained.tar --signers allowed_signers"),
    ),
    "prepare it for a site": (
        Command("capture", "laptop.capture", "make a site's profile over ssh: capture its nodes, list decisions",
                "login1.example.org -o lab.yaml"),
        Command("profile", "laptop.profiles", "list, show, validate, compare, publish site profiles", "validate lab"),
        Command("check", "laptop.check", "predict whether a bundle will run on a site", "trained.tar --site lab"),
        Command("rehearse", "laptop.rehearse", "run a job here as a site would, without a network",
                "trained.tar --site lab"),
        Command("plan", "laptop.bundles", "make a new plan for a bundle that is installed at a site",
                "trained.tar --site lab -o trained.plan"),
        Command("sign", "laptop.bundles", "sign a bundle or a plan with an OpenSSH key",
                "trained.tar --key ~/.ssh/id_ed25519"),
    ),
    "send it": (
        Command("push", "laptop.bundles", "send a bundle to a site, verify it there and install it", "trained.tar lab"),
        Command("pyz", "laptop.bundles", "write deployer.pyz, the program for the site", "-o deployer.pyz"),
    ),
    "on the site, over ssh (with --site SITE)": (
        *_over_ssh("run", "retry", "jobs", "status", "logs"),
        Command("result", "laptop.result", "fetch and show what a job wrote", "--site lab"),
        *_over_ssh("cancel"),
        Command("notebook", "laptop.remote", "open JupyterLab of an image in a job", "--site lab trained --gpus 1"),
        Command("shell", "laptop.remote", "open a shell of an image in a job", "--site lab trained"),
        *_over_ssh("list", "remove", "gc", "squash", "doctor"),
    ),
    "this machine": (
        Command("report", "laptop.run_report", "compare the results of several jobs: speed and efficiency",
                "--site lab 4711 4712"),
        Command("cache", "laptop.cache", "show and prune deployer's caches", "list"),
        Command("config", "laptop.settings", "show the settings that are in effect, and where they come from"),
    ),
    "get help": (
        Command("explain", "site.explain", "explain the code of a finding or an exit code", "mpi.family"),
        Command("completion", "laptop.completion", "print completion for bash, zsh, fish or tcsh",
                "bash > ~/.local/share/bash-completion/completions/deployer"),
    ),
}  # fmt: skip

#: Common goals, and the commands that lead there, in order.
PATHS = (
    ("from nothing to a job at a site that you can log in to", (
        "init trained", "profile list", "capture login1.example.org -o lab.yaml  # unless it is listed",
        "deploy trained lab.yaml --nodes 2", "result --site lab.yaml",
    )),
    ("to a site that is reached by a medium only", (
        "pyz -o deployer.pyz  # carry it there, and run its `capture`", "build trained",
        "pack trained --site lab.yaml -o trained.tar", "push trained.tar --to DIR",
    )),
    ("as a site's admin, to publish the site's profile", (
        "capture login1.example.org", "profile validate FILE.yaml", "profile publish FILE.yaml -o DIR",
    )),
)  # fmt: skip

#: Seconds until an interrupt is repeated.
_SOON = 0.01
#: The file name of the code that holds Python's import lock.
_IMPORTS = "<frozen importlib._bootstrap>"
#: Commands that exist only on the site. Here they produce a hint.
_ELSEWHERE = {
    name: f"on the site: python3 deployer.pyz {name} --help"
    for name in ("exec", "install", "join", "log", "receipt", "receive", "take-plan", "take-scan", "where")
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if argv is None:  # started as a program, not from a test
        signal.signal(signal.SIGTERM, _interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _interrupt_again
    words = list(sys.argv[1:] if argv is None else argv)
    return common.run(front(), words, str(xdg.state_folder("logs")))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM and Ctrl-C: incomplete files are removed before the exit.

    An import that is interrupted just after it has acquired Python's import lock never releases it, and another thread
    that imports would wait for ever. So the signal is repeated when this step of the import is over.
    """
    if frame is not None and frame.f_code.co_filename == _IMPORTS:
        _repeat(number)
    else:
        raise KeyboardInterrupt


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Repeat an interrupt that came where Python ignores exceptions, such as in the callback of a weak reference."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _repeat(signal.SIGTERM)
    else:
        sys.__unraisablehook__(unraisable)


def _repeat(number: int) -> None:
    threading.Timer(_SOON, os.kill, (os.getpid(), number)).start()


def front() -> common.Front:
    """Return the parser of this command line, without its commands."""
    text = "Pack container images and their jobs (MPI programs, deep learning), send them\n"
    text += "to sites without internet, and run them there."
    return common.Front("deployer", text, GROUPS, elsewhere=_ELSEWHERE, paths=PATHS)
