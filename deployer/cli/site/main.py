"""``python3 deployer.pyz``: the site's command line."""

import os
import sys
from typing import List, Optional

from deployer.cli.site import common
from deployer.cli.site.common import Command
from deployer.contract.base.errors import UsageError

#: The commands by task, in the order of ``--help``.
GROUPS = {
    "receive and install bundles": (
        Command("verify", "site.images", "check every byte of a bundle, its signatures and the policies",
                "trained.tar --signers allowed_signers"),
        Command("inspect", "site.inspection", "show the jobs, sizes and signers of a bundle", "/media/usb/trained"),
        Command("install", "site.installs", "verify a bundle and unpack it under the root folder",
                "trained.tar --root /scratch/me/deployer"),
        Command("receive", "site.installs", "rebuild a bundle from carried parts, and install it",
                "/media/usb/trained"),
        Command("receipt", "site.transfers", "list the segments that this site has, for push --to --have",
                "-o receipt.json"),
        Command("take-plan", "site.installs", "use a newer plan for an installed image", "trained.plan"),
        Command("take-scan", "site.installs", "keep the scan of a bundle, for policies", "trained.tar.scan.json"),
    ),
    "run jobs": (
        Command("run", "site.jobs", "submit a job of an installed image", "trained --nodes 2 --wait"),
        Command("retry", "site.jobs", "repeat the tasks of a group that failed or never ran", "4711"),
        Command("jobs", "site.jobs", "list the jobs, the newest first, or the tasks of a group"),
        Command("status", "site.jobs", "show the state of a job"),
        Command("logs", "site.jobs", "show what a job printed", "-f"),
        Command("cancel", "site.jobs", "end a job", "4711"),
        Command("report", "site.run_table", "compare the results of several jobs: speed and efficiency", "4711 4712"),
    ),
    "work in the container": (
        Command("exec", "site.jobs", "run one command in the container, here and now", "trained -- python3 --version"),
        Command("shell", "site.jobs", "open a shell in the container", "trained"),
        Command("where", "site.jobs", "print an image and its binds for other programs", "trained --format apptainer"),
    ),
    "manage images": (
        Command("list", "site.images", "show the installed images"),
        Command("join", "site.images", "also use the images of a group's store", "/project/us/images"),
        Command("log", "site.images", "show who installed, ran and removed what, and when"),
        Command("squash", "site.installs", "make the SquashFS file of an installed image", "trained"),
        Command("remove", "site.images", "remove an installed image, or with --all everything", "trained:1.0.0"),
        Command("gc", "site.images", "remove old bundles and images, or with --jobs old job folders", "--dry-run"),
    ),
    "examine the site": (
        Command("doctor", "site.doctor", "test each layer from the kernel to Horovod on two nodes", "trained"),
        Command("capture", "site.capture", "write a profile of this site; changes nothing there",
                "--partitions all -o site.json"),
    ),
    "get help": (Command("explain", "site.explain", "explain the code of a finding or an exit code", "mpi.family"),),
}  # fmt: skip

#: The goals of a site's users, each with the commands to reach it, in order.
PATHS = (
    ("to run a bundle that arrived as a file",
     ("verify trained.tar", "install trained.tar", "run trained --nodes 2 --wait", "explain CODE")),
    ("to run one that arrived in parts", ("receive /media/usb/trained", "run trained --nodes 2 --wait")),
    ("as the site's admin, to describe the site", ("capture --partitions all -o site.json", "doctor trained")),
)  # fmt: skip

#: Commands that job.sh calls on every node; people do not call them.
FOR_JOBS = ("probe", "result", "stage", "shield", "start", "again", "keep", "inside", "jupyter")
#: These commands, and those that push and deploy call.
INTERNAL = {
    **dict.fromkeys(FOR_JOBS, "site.steps"),
    **dict.fromkeys(("known", "take", "ahead"), "site.transfers"),
    "notebook": "site.jobs",
}


def main(argv: Optional[List[str]] = None) -> int:
    """Run one command and return its exit code."""
    if argv is None:
        common.show_anything()
    words = sys.argv[1:] if argv is None else argv
    return common.run(front(), words, _log_folder(words))


def front() -> common.Front:
    """Return the parser of this command line, without its commands."""
    text = "Install and run deployer's bundles on this site."
    return common.Front("deployer.pyz", text, GROUPS, INTERNAL, paths=PATHS)


def _log_folder(words: List[str]) -> Optional[str]:
    """Return ROOT/logs, or None if no root folder is known.

    Commands that job.sh calls on every node write no log file, because their output is in the job's log, and many of
    them would share one folder.
    """
    command = next((word for word in words if word not in ("-q", "--quiet")), "-")
    if command.startswith("-") or command in FOR_JOBS:
        return None
    from deployer.site.storage import store
    from deployer.system import files

    option = words[words.index("--root") + 1] if "--root" in words[:-1] else None
    try:
        root = store.locate(option).root
        return os.path.join(root, "logs") if files.is_folder(root) else None
    except UsageError:  # the command itself reports it
        return None
