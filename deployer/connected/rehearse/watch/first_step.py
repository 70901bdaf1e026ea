"""When a job made its first step, according to its lines of progress."""

import re

#: The maximum number of characters in a line.
_MAX_LINE = 2_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: Progress bars of Keras and tqdm, except empty ones.
_BAR = re.compile(
    r"(?:^| )0*[1-9]\d{0,8}/\d{1,9} (?:\[[=>.]+\]|━)|\d%\|[^|]{0,300}\| {0,20}0*[1-9]\d{0,8}/\d{1,9} \[[0-9:]{1,20}<"
)
#: Counted steps; samples, and Horovod's examples, whose "Iter #1" has several batches; the times in PyTorch's examples.
# The numbers are short, so that a long line of digits is not slow to match.
_OTHERS = (
    re.compile(r"\b(?:global[_ ]?step|step|iter(?:ation)?|batch)\b[ \t:=\[(]{1,4}\d{1,9}\b", re.IGNORECASE),
    re.compile(r"\bepoch\b.{0,20}\[\s{0,20}\d{1,9}/\d|^iter #\d", re.IGNORECASE),
    re.compile(r"\bTime {1,20}\d{1,9}\.\d{1,9} \( {0,20}\d{1,9}\.\d{1,9}\)"),
)


class FirstStep:
    """Reads the growing output of a job.

    Attributes:
        seconds: from the start of the payload to the first line of progress; None: there was none.
    """

    def __init__(self) -> None:
        self._rest = ""
        self.seconds: float | None = None

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
        if self.seconds is None and (_BAR.search(line) or any(form.search(line) for form in _OTHERS)):
            self.seconds = round(seconds, 1)
