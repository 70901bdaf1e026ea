"""The syntax tree of a shell script, as parsed by the program shfmt, which its wheel provides."""

import functools
import shutil
import sys
from pathlib import Path
from typing import Any

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, MissingTool
from deployer.system import process

#: Dialects, by the file name of the shell.
DIALECTS = {"bash": "bash", "dash": "posix", "ash": "posix", "busybox": "posix", "sh": "posix", "ksh": "mksh"}

#: Longer scripts, in bytes, are not read: their trees are 500 times as large, and json_records limits these too.
MAX_SCRIPT = 128 * 1024
_MAX_OPENED = 10_000  # brackets; nested nodes are held in memory
_TIMEOUT = 30
_INSTALL = "its wheel is a requirement of deployer: pip install shfmt-py"

#: A node of the tree: JSON that shfmt prints.
Node = dict[str, Any]


class NotReadable(Exception):
    """A script cannot be read; the message is the reason."""


@functools.lru_cache(maxsize=8)
def statements(text: str, dialect: str) -> list[Node]:
    """Return the statements of a script.

    Raises:
        NotReadable: it is too long, not text, or has a syntax error.
        MissingTool: shfmt is not installed.
    """
    if len(text) > MAX_SCRIPT or sum(map(text.count, "({`")) > _MAX_OPENED:
        raise NotReadable(f"it is too long: more than {MAX_SCRIPT // 1024} KiB, or too many brackets")
    if "\0" in text:
        raise NotReadable("it contains a NUL")
    try:
        data = text.encode("utf-8", "surrogateescape")
        done = process.run(
            [_program(), "--to-json", "-ln", dialect], timeout=_TIMEOUT, stdin=data, check=False, hint=_INSTALL
        )
        if done.returncode:
            raise NotReadable(f"a syntax error: {done.last_words(1):.80}")
        tree: Node = json_records.parse(done.stdout.encode("utf-8", "surrogateescape"), "its syntax tree")
    except (NotReadable, MissingTool):
        raise
    except DeployerError as error:
        raise NotReadable(f"shfmt cannot read it: {error.message:.80}") from error
    stmts: list[Node] = tree.get("Stmts", [])
    return stmts


def _program() -> str:
    """Return shfmt's path: beside the running Python, where its wheel puts it, else in PATH."""
    beside = Path(sys.executable).with_name("shfmt")
    return str(beside) if beside.is_file() else shutil.which("shfmt") or "shfmt"
