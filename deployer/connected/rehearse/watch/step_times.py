"""When a job made its first step and how long a step takes, according to its lines of progress.

Only printed times are known. Keras and tqdm print the time of a step, and so do PyTorch's examples that measure it. If
lines only count steps, the times at which they appeared are compared. A line that counts samples shows that a step was
made, but not how many.
"""

import re
import statistics
from collections import deque
from typing import NamedTuple

#: The maximum number of characters in a line.
_MAX_LINE = 2_000
#: The maximum number of steps to keep; the latest are kept.
_MOST = 10_000
#: The minimum seconds between the first and last counted step, because lines are timed to half a second.
_ENOUGH = 5.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Formats of lines of progress. The first group is the count of steps, if there is one.
# The numbers are short, so that a long line of digits is not slow to match.
_KERAS = re.compile(r"(?:^| )(\d{1,9})/\d{1,9} (?:\[[=>.]+\]|━)")
_TQDM = re.compile(r"\d%\|[^|]{0,300}\| {0,20}(\d{1,9})/\d{1,9} \[[0-9:]{1,20}<")
_COUNTED = re.compile(r"\b(?:global[_ ]?step|step|iter(?:ation)?|batch)\b[ \t:=\[(]{1,4}(\d{1,9})\b", re.IGNORECASE)
#: Samples instead of steps, and Horovod's examples, whose "Iter #1" has several batches.
_SAMPLES = re.compile(r"\bepoch\b.{0,20}\[\s{0,20}\d{1,9}/\d|^iter #\d", re.IGNORECASE)
#: The printed time of a step.
_PER_STEP = re.compile(r"\b(\d{1,9}(?:\.\d{1,9})?) ?(us|ms|s)/(?:step|it|iter|batch)\b")
_RATE = re.compile(r"\b(\d{1,9}(?:\.\d{1,9})?) ?(?:it|steps?|batch(?:es)?)/s(?:ec)?\b")
#: PyTorch's examples. The mean of all batches is in parentheses.
_METER = re.compile(r"\bTime {1,20}\d{1,9}\.\d{1,9} \( {0,20}(\d{1,9}\.\d{1,9})\)")


class _Step(NamedTuple):
    seconds: float
    number: int


class StepTimes:
    """Reads the growing output of a job."""

    def __init__(self) -> None:
        self._rest = ""
        self._first: float | None = None
        self._told: deque[float] = deque(maxlen=_MOST)
        self._counted: deque[_Step] = deque(maxlen=_MOST)

    def feed(self, text: str, seconds: float) -> None:
        """Read the next part of the output, which appeared ``seconds`` after the payload started."""
        lines = re.split(r"[\r\n\b]+", self._rest + text)  # Keras returns to the start of its line with backspaces
        self._rest = lines.pop()[-_MAX_LINE:]
        for line in lines:
            self._read(_COLOUR.sub("", line[-_MAX_LINE:]), seconds)

    def end(self, seconds: float) -> None:
        """Read the last line if it does not end with a newline."""
        self.feed("\n", seconds)

    def _read(self, line: str, seconds: float) -> None:
        bar = _KERAS.search(line) or _TQDM.search(line)
        counted = bar or _COUNTED.search(line)
        if counted is None and not _SAMPLES.search(line) and not _METER.search(line):
            return
        if counted is not None and bar is not None and int(counted.group(1)) == 0:
            return  # an empty progress bar
        if self._first is None:
            self._first = seconds
        told = _told(line)
        if told is not None:
            self._told.append(told)
        elif counted is not None and bar is None:
            self._counted.append(_Step(seconds, int(counted.group(1))))

    @property
    def first(self) -> float | None:
        """Return the seconds until the first line of progress, or None if there was none."""
        return None if self._first is None else round(self._first, 1)

    @property
    def each(self) -> float | None:
        """Return the seconds per step: the median of the printed times, or from the counts; None if unknown."""
        if self._told:
            return statistics.median(self._told)
        rising = [step for at, step in enumerate(self._counted) if not at or step.number > self._counted[at - 1].number]
        if len(rising) < len(self._counted) or len(rising) < 2:  # the count restarts in each epoch, or is not of steps
            return None
        seconds = rising[-1].seconds - rising[0].seconds
        return round(seconds / (rising[-1].number - rising[0].number), 4) if seconds >= _ENOUGH else None


def _told(line: str) -> float | None:
    """Return the seconds per step in a line, or None."""
    if per_step := _PER_STEP.search(line):
        return float(per_step.group(1)) * _UNITS[per_step.group(2)]
    if meter := _METER.search(line):
        return float(meter.group(1))
    rate = _RATE.search(line)
    return 1 / float(rate.group(1)) if rate and float(rate.group(1)) > 0 else None
