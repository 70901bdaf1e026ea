"""``deployer``: the connected side's front end."""

import signal
import sys
from collections.abc import Sequence

from deployer.cli.site import common
from deployer.cli.site.common import Command
from deployer.connected.ground import xdg

#: The commands by task, as ``--help`` lists them.
GROUPS = (
    (
        "all at once",
        (Command("deploy", "laptop.deploy", "build, pack, check, push, run and follow what changed"),),
    ),
    (
        "write a definition and build its image",
        (
            Command("init", "laptop.definitions", "write a new definition that works without changes"),
            Command("lint", "laptop.definitions", "check a definition, its Dockerfile and its built layers"),
            Command("build", "laptop.build", "build a definition's image in the Docker engine"),
            Command("schema", "laptop.definitions", "print the JSON schema of definitions, for editors"),
        ),
    ),
    (
        "make a bundle and look into it",
        (
            Command("pack", "laptop.pack", "flatten an image and pack it into one bundle"),
            Command("inspect", "laptop.inspection", "show what a bundle contains"),
            Command("diff", "laptop.bundles", "show what changed between two bundles"),
            Command("verify", "site.images", "check every byte of a bundle, and its signatures"),
        ),
    ),
    (
        "prepare it for a site",
        (
            Command("capture", "laptop.capture", "make a site's profile over ssh: capture its nodes, list decisions"),
            Command("profile", "laptop.profiles", "list, show, validate, compare and sign site profiles"),
            Command("check", "laptop.check", "predict whether a bundle will run on a site"),
            Command("rehearse", "laptop.rehearse", "run a job here as a site would, without a network"),
            Command("plan", "laptop.bundles", "make a new plan for a bundle that is installed at a site"),
            Command("sign", "laptop.bundles", "sign a bundle or a plan with an OpenSSH key"),
        ),
    ),
    (
        "send it",
        (
            Command("push", "laptop.bundles", "send a bundle to a site, verify it there and install it"),
            Command("pyz", "laptop.bundles", "write deployer.pyz, the program for the site"),
        ),
    ),
    (
        "on the site, over ssh (with --site SITE)",
        (
            Command("run", "laptop.remote", "submit a job of an installed image"),
            Command("jobs", "laptop.remote", "list the jobs, the newest first"),
            Command("status", "laptop.remote", "show the state of a job"),
            Command("logs", "laptop.remote", "show what a job printed"),
            Command("result", "laptop.result", "fetch and show what a job wrote"),
            Command("cancel", "laptop.remote", "end a job"),
            Command("list", "laptop.remote", "show the installed images"),
            Command("remove", "laptop.remote", "remove an installed image, or with --all everything"),
            Command("gc", "laptop.remote", "remove old bundles and images, or with --jobs old job folders"),
            Command("squash", "laptop.remote", "make the SquashFS file of an installed image"),
            Command("doctor", "laptop.remote", "test each layer from the kernel to Horovod on two nodes"),
        ),
    ),
    (
        "this machine",
        (
            Command("report", "laptop.report", "compare the results of several jobs: speed and efficiency"),
            Command("cache", "laptop.cache", "show and prune deployer's caches"),
            Command("config", "laptop.settings", "show the settings that are in effect, and where they are from"),
        ),
    ),
)

_THERE = "on the site: python3 deployer.pyz %s --help"
#: Commands that exist only on the site. Here they give a hint.
_ELSEWHERE = {name: _THERE % name for name in ("exec", "install", "receipt", "receive", "shell", "take-plan")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if argv is None:  # started as a program, not by a test
        signal.signal(signal.SIGTERM, _interrupt)
    words = list(sys.argv[1:] if argv is None else argv)
    parser = front()
    parser.add_wanted(words)
    return common.run(parser, words, str(xdg.state_folder("logs")))


def _interrupt(*_: object) -> None:
    """Handle SIGTERM like Ctrl-C: incomplete files are removed before the exit."""
    raise KeyboardInterrupt


def front() -> common.Front:
    """Return the parser of this front end, without its commands."""
    text = "Build, pack and push deep-learning images to sites without internet, and run\nthem there."
    return common.Front("deployer", text, GROUPS, elsewhere=_ELSEWHERE)
