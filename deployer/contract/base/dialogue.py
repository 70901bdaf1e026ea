"""The machine-readable messages that the laptop and the site half exchange over ssh."""

import re
from typing import Callable, Optional

#: The beginning of a machine-readable line; other lines may be noise from a login shell.
ANSWER = "deployer-answer:"
#: Environment variables of a site command that the laptop started; each is "1" or unset. They mean: a person is
#: watching; print the job's name and number on a separate line.
TERMINAL = "DEPLOYER_TERMINAL"
ANNOUNCE = "DEPLOYER_ANNOUNCE"
#: If set, progress is printed as lines on standard error: bytes done, bytes in total.
PROGRESS = "DEPLOYER_PROGRESS"
PROGRESS_LINE = "deployer-progress:"
#: The laptop's standard streams that support colour: "1", "2" or "12".
COLOUR = "DEPLOYER_COLOUR"
#: The options that select this site in commands of the laptop's `deployer`, as shell text for hints.
CALLER = "DEPLOYER_CALLER"
#: The beginnings of the warnings about a bundle whose signers are in no policy.
NOT_SIGNED, UNKNOWN_SIGNERS = ORIGINS = ("not signed: ", "signed by ")
#: The end of a message that is not a warning, because the user's own key signed the bundle.
OWN_KEY = ", one of your own keys (~/.ssh)"
#: The end of a job's name, which the laptop chooses before it submits the job: the time, and digits nobody can guess.
TOKEN = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}\Z")
#: The folder below a root folder for the site's program, with a separate folder for each version.
TOOLS = "tools"
#: The number of digits of a digest that a warning shows.
_SHOWN = 12
_DIGITS = frozenset("0123456789")


def replaces(label: str, digest: str) -> str:
    """Return the beginning of an install's warning that `deploy` prints unless it pushed that bundle itself.

    Args:
        label: NAME:VERSION.
        digest: the digest of the bundle that had this name before.
    """
    return "another bundle is installed as {} ({})".format(label, digest.rpartition(":")[2][:_SHOWN])


def listener(tell: Optional[Callable[[int, int], None]]) -> Optional[Callable[[str], bool]]:
    """Return a function that receives lines of standard error and passes progress reports to ``tell``.

    It returns whether a line was such a report. If ``tell`` is None, nobody is watching, and the result is None.
    """
    if tell is None:
        return None

    def hear(line: str) -> bool:
        words = line[len(PROGRESS_LINE) :].split(" ") if line.startswith(PROGRESS_LINE) else []
        if len(words) != 2 or not all(0 < len(word) <= 18 and set(word) <= _DIGITS for word in words):
            return False
        tell(int(words[0]), int(words[1]))
        return True

    return hear
