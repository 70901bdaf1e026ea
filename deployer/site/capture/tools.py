"""The site's own tools, with time limits for each and for all: any may be missing, hang, or print garbage."""

import os
import shutil
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.base.errors import DeployerError, MissingTool
from deployer.contract.base.json_records import Record
from deployer.contract.base.shell import quoted
from deployer.system import process

#: Seconds for all tools together, and for each tool.
TOGETHER = 30.0
EACH = 5.0

_MAX_NOTES = 50
_MAX_NOTE = 300
_MAX_FILE = 16 * 1024 * 1024


def determined(facts: Record) -> Record:
    """Return the facts that could be determined: neither None nor an empty text, list or object."""
    return {key: value for key, value in facts.items() if value not in (None, "", [], {})}


def read_word(*parts: str) -> str:
    """Return the text of a system file, of which these are the parts of the path, without its line end."""
    return read_text(os.path.join(*parts)).strip()


def read_text(path: str) -> str:
    """Return the text of a system file; empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(_MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def refused(path: str) -> Optional[str]:
    """Return why this user cannot open a device; None if it can be opened."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


class Answer(NamedTuple):
    """The output of a tool.

    Attributes:
        out: its standard output.
        both: standard output and standard error together.
        status: its exit status.
    """

    out: str
    both: str
    status: int


class Tools:
    """Runs tools and notes failures; ``notes`` are for the person who reviews the capture.

    Args:
        seconds: the time for all tools together.
        settings: prefixes of additional variables to pass to the tools.
    """

    def __init__(self, seconds: float = TOGETHER, settings: Sequence[str] = ()) -> None:
        self._end = time.monotonic() + seconds
        self._dead: Dict[str, bool] = {}
        self.notes: List[str] = []
        names = [name for name in os.environ if name.startswith(tuple(settings))]
        self.environment = process.base_environment("SHELL", "LD_LIBRARY_PATH", *names)
        # Everyone can use administrators' tools such as ldconfig, but they may not be in PATH.
        self.environment["PATH"] = self.environment.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

    @property
    def left(self) -> float:
        """The number of seconds left for all tools."""
        return max(0.0, self._end - time.monotonic())

    def note(self, text: str) -> None:
        """Print and store what could not be determined, and why."""
        line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:_MAX_NOTE]
        if line not in self.notes and len(self.notes) < _MAX_NOTES:
            self.notes.append(line)

    def ask(
        self,
        argv: Sequence[str],
        seconds: float = EACH,
        environment: Optional[Mapping[str, str]] = None,
        any_status: bool = False,
        name: str = "",
    ) -> Optional[Answer]:
        """Return the output of a tool; None if it is missing, failed, or took too long.

        Args:
            seconds: the limit for this tool.
            any_status: return the output even if the exit status is not 0.
            name: the name to use in notes; the default is the command as a person would type it.
        """
        limit = min(seconds, self.left)
        name = name or quoted(argv)
        if limit <= 0:
            self.note(f"{name}: skipped, no time was left")
            return None
        try:
            done = process.glance(argv, limit, env=dict(self.environment, **(environment or {})))
        except MissingTool:
            return None
        except DeployerError:
            self.note(f"{name}: it did not end within {limit:g} s, or printed too much")
            return None
        if done.returncode and not any_status:
            self.note("%s: exit %d: %s" % (name, done.returncode, done.last_words(1)))
            return None
        return Answer(done.stdout, done.stdout + "\n" + done.stderr, done.returncode)

    def answers(self, folder: str) -> bool:
        """Return whether the file system of ``folder`` answers, because access to a dead one would hang."""
        if folder not in self._dead:
            asked = ["stat", "--file-system", folder]
            self._dead[folder] = bool(shutil.which("stat")) and self.ask(asked, 2.0, any_status=True) is None
        return not self._dead[folder]
