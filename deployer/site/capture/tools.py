"""The site's own tools, any of which may be missing, hang, or print garbage: a time limit for each and for all."""

import os
import shutil
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from deployer.contract.errors import DeployerError, MissingTool
from deployer.contract.shell import quoted
from deployer.system import process

#: Seconds for everything, and for one tool.
TOGETHER = 30.0
EACH = 5.0

_MAX_NOTES = 50
_MAX_NOTE = 300


class Said(NamedTuple):
    """What a tool printed: on standard output, and on both its streams together. It ended with ``status``."""

    out: str
    both: str
    status: int


class Tools(object):
    """Asks tools and notes those that failed; ``notes`` are for the person who reviews the capture."""

    def __init__(self, seconds: float = TOGETHER) -> None:
        self._end = time.monotonic() + seconds
        self._dead: Dict[str, bool] = {}
        self.notes: List[str] = []
        self.environment = process.base_environment("MODULEPATH", "LMOD_CMD", "MODULESHOME", "SHELL", "LD_LIBRARY_PATH")
        # Tools of an administrator, such as ldconfig, are there for all, but not in everybody's PATH.
        self.environment["PATH"] = self.environment.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

    @property
    def left(self) -> float:
        """Seconds that are left for everything."""
        return max(0.0, self._end - time.monotonic())

    def note(self, text: str) -> None:
        """Say what could not be found out, and why."""
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
    ) -> Optional[Said]:
        """Return what a tool said; None where it is missing, failed (but with ``any_status``), or took too long.

        Notes call it by ``name``, else by what a person would type.
        """
        limit = min(seconds, self.left)
        name = name or quoted(argv)
        if limit <= 0:
            self.note("%s: not asked, the time was over" % name)
            return None
        try:
            done = process.glance(argv, limit, env=dict(self.environment, **(environment or {})))
        except MissingTool:
            return None
        except DeployerError:
            self.note("%s: it did not end within %g s, or said too much" % (name, limit))
            return None
        if done.returncode and not any_status:
            self.note("%s: exit %d: %s" % (name, done.returncode, done.last_words(1)))
            return None
        return Said(done.stdout, done.stdout + "\n" + done.stderr, done.returncode)

    def answers(self, folder: str) -> bool:
        """Return whether the file system of ``folder`` answers: to look into a dead one would take for ever."""
        if folder not in self._dead:
            asked = ["stat", "--file-system", folder]
            self._dead[folder] = bool(shutil.which("stat")) and self.ask(asked, 2.0, any_status=True) is None
        return not self._dead[folder]
