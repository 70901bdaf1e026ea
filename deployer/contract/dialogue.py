"""What the laptop and the site half exchange over ssh for programs, not for people."""

import re
from typing import Callable, Optional

#: The beginning of a line for programs; other lines may be noise of a login shell.
ANSWER = "deployer-answer:"
#: Environment variables of a site command that the laptop started; each is "1" or unset. They mean: a person watches;
#: this person can answer; print the job's name and number in a line of their own.
TERMINAL = "DEPLOYER_TERMINAL"
ANSWERS = "DEPLOYER_ANSWERS"
ANNOUNCE = "DEPLOYER_ANNOUNCE"
#: If set, progress is printed as lines on standard error: bytes done, bytes in total.
PROGRESS = "DEPLOYER_PROGRESS"
PROGRESS_LINE = "deployer-progress:"
#: The laptop's standard streams that show colour: "1", "2" or "12".
COLOUR = "DEPLOYER_COLOUR"
#: The options with which commands of the laptop's `deployer` name this site, as shell text: hints print them.
CALLER = "DEPLOYER_CALLER"
#: The beginnings of the warnings about a bundle whose signers no policy names.
NOT_SIGNED, UNKNOWN_SIGNERS = ORIGINS = ("not signed: ", "signed by ")
#: The end of a message that is not a warning, because the user's own key signed the bundle.
OWN_KEY = ", one of your own keys (~/.ssh)"
#: What a laptop chooses as the end of a job's name before it submits the job: the time, and digits that nobody guesses.
TOKEN = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}\Z")
#: The folder of a root folder in which a laptop puts the site's program, each version in a folder of its own.
TOOLS = "tools"
#: Digits of a digest in a warning.
_SHOWN = 12
_DIGITS = frozenset("0123456789")


def replaces(label: str, digest: str) -> str:
    """Return the beginning of a warning after an install, which `deploy` prints unless it pushed that bundle itself.

    Args:
        label: NAME:VERSION.
        digest: the bundle that had this name before.
    """
    return "another bundle is installed as %s (%s)" % (label, digest.rpartition(":")[2][:_SHOWN])


def listener(tell: Optional[Callable[[int, int], None]]) -> Optional[Callable[[str], bool]]:
    """Return what receives lines of standard error and passes reports of progress to ``tell``.

    It returns whether a line was such a report. None: nobody looks.
    """
    if tell is None:
        return None

    def hear(said: str) -> bool:
        words = said[len(PROGRESS_LINE) :].split(" ") if said.startswith(PROGRESS_LINE) else []
        if len(words) != 2 or not all(0 < len(word) <= 18 and set(word) <= _DIGITS for word in words):
            return False
        tell(int(words[0]), int(words[1]))
        return True

    return hear
