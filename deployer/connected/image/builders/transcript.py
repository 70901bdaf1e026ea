"""What a builder prints: the current step, the end of its log, and the reason for a failure."""

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from tqdm import tqdm

from deployer.connected.ground import engine
from deployer.contract.base.errors import JobFailed, SpaceError
from deployer.system import terminal

#: Lines at the end of a failed step's log to search for the reason, and the maximum length of a printed line.
TAIL = 400
_SHOWN = 300
_LAST = 8  # lines to search for a full disk
_SHOWN_STEP = 100

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Transcript:
    """Keeps a build's current step and the end of its log.

    Args:
        tag: the image's name, for errors.
        log: the path of the log, for errors.
        say: called with every line, without colour codes.
        advice: the beginning of the hint for a failed step.
        part: what is built, for the progress bar.
    """

    def __init__(self, tag: str, log: str, say: Callable[[str], None], advice: str = "", part: str = "build") -> None:
        self.tag = tag
        self.log = log
        self.part = part
        self.step = "before its first step"
        self.number = self.steps = self.cached = 0
        self.say = say
        self._advice = advice
        self._keys: set[str] = set()
        self._known: set[str] = set()
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._bar: tqdm[NoReturn] | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show a progress bar during a block."""
        silent = not terminal.shows_progress()
        with tqdm(desc=self.part, unit="step", leave=False, disable=silent) as self._bar:
            yield

    def for_part(self, what: str, say: Callable[[str], None] | None = None) -> "Transcript":
        """Return a transcript for another image of the same build, with the same log. Its lines begin with its name.

        Args:
            say: called with these lines instead of this transcript's ``say``.
        """
        tell = say or self.say
        return Transcript(f"{self.tag}, {what}", self.log, lambda line: tell(f"{what}: {line}"), self._advice, what)

    def continues(self, other: "Transcript") -> None:
        """Keep the counts of ``other``, whose steps are the first ones of this build."""
        self._known, self.cached = other._keys, other.cached

    def begin(self, key: str, name: str, number: int, steps: int, tail: deque[str] | None = None) -> None:
        """Begin a step.

        Args:
            key: identifies it in this build and in the one that continues this one.
            name: its position and instruction: ``2/5, RUN make``.
            number: the number of steps that have begun.
            steps: the number of all steps, as far as it is known.
            tail: the end of the step's log, if steps run at the same time; the default is a new one.
        """
        self._keys.add(key)
        position, _, text = name.partition(", ")
        self.step = f"in step {position}, {cut(text, _SHOWN_STEP)}"
        self.number, self.steps = number, steps
        self._tail = deque(maxlen=TAIL) if tail is None else tail
        if self._bar is not None and self._bar.n != number:
            self._bar.total = steps
            self._bar.update(number - self._bar.n)

    def reuse(self, key: str) -> None:
        """Count a step from the cache, unless the build that this one continues has already counted it."""
        self.cached += key not in self._known

    def output(self, line: str) -> None:
        """Keep a line of the current step."""
        self._tail.append(line)

    def failed(self, error: str, code: int | None) -> NoReturn:
        """Raise the error of a failed build.

        Args:
            error: the builder's message.
            code: the exit status of the step's command; None: the builder itself failed.

        Raises:
            SpaceError: the engine's disk is full.
            JobFailed: anything else.
        """
        foreign = "exec format error" in f"{error} {' '.join(self._tail)}".lower()
        hint = f"{f'{engine.EMULATION}; ' if foreign else ''}{self._advice}the whole log: {self.log}"
        failed = f"build of {self.tag} failed {self.step}"
        if engine.is_full(error + "".join(list(self._tail)[-_LAST:])):
            raise SpaceError(f"{failed}: {cut(error)}", engine.FREE_SPACE)
        if code is None:
            raise JobFailed(f"{failed}: {cut(error)}", hint)
        raise JobFailed(f"{failed}: exit {code}: {cut(reason(self._tail)) or 'it printed nothing'}", hint)


#: Lines that give the reason for a failure, from apt, pip, compilers, CMake, Python, git, curl and shells.
_REASON = re.compile(
    r"^\s*(E|ERROR|Error|error|FATAL|fatal|fatal error|curl|wget|\w*(Error|Exception)):\s"
    r"|:\s(fatal )?error:\s|^CMake Error|: (command )?not found\b|cannot find -l|undefined reference to"
    r"|No such file or directory|Permission denied|\bERROR[: ]"
)
#: Lines that match, but only report that another program failed. They are used only if no other line matches.
_PASSED_ON = re.compile(
    r"^(make(\[\d+\])?|ninja): |error: subprocess-exited-with-error|^\s*(note|hint): |metadata-generation-failed"
    r"|Failed to build installable wheels|ERROR: Failed building wheel|compilation terminated"
)


def reason(lines: Sequence[str]) -> str:
    """Return the last line of a failed step's log that gives the reason, or the last line if there is none."""
    stripped = [line.strip() for line in lines if line.strip(" :") and not line.startswith(": exit status")]
    for wanted in (lambda line: _REASON.search(line) and not _PASSED_ON.search(line), _REASON.search, bool):
        for line in reversed(stripped):
            if wanted(line):
                return line
    return ""


def plain(line: str) -> str:
    """Return a line without colour codes, and without text that a carriage return overwrites."""
    return _COLOUR.sub("", line).rstrip().rsplit("\r", 1)[-1].rstrip()


def cut(text: str, size: int = _SHOWN) -> str:
    """Return a text of at most ``size`` characters."""
    return text if len(text) <= size else text[: size - 4] + " ..."
