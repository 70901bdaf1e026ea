"""One error class per documented exit code. A message states what failed; a hint states what to do.

Scripts rely on the exit codes (docs/exit-codes.md); 0 is success and 130 is interrupted.
"""

from typing import List, Sequence

from deployer.contract.base.text import printable

EXIT_DONE = 0
EXIT_INTERRUPTED = 130


class DeployerError(Exception):
    """An expected failure: shown as one line on stderr, with an optional hint below, never as a traceback.

    Args:
        message: what failed, with the value.
        hint: what to do.
        details: one per cause, if the failure has several; the message counts them.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = list(details)

    def lines(self) -> List[str]:
        """Return the lines to print on stderr; the message and each detail become one line each.

        They may quote images, profiles and programs, so escape sequences are shown as text, not sent to the terminal.
        """
        shown = ["deployer: error: " + " ".join(self.message.split())]
        shown += ["  " + " ".join(detail.split()) for detail in self.details]
        if self.hint:
            shown.append("hint: " + self.hint)
        return [printable(line) for line in shown]


class JobFailed(DeployerError):
    """The payload, the build step or the job itself failed, not deployer."""

    exit_code = 1


class UsageError(DeployerError):
    """Wrong usage or wrong input, which the caller can correct."""

    exit_code = 2


class Refused(DeployerError):
    """A rule or the site's policy forbids the operation."""

    exit_code = 3


class IntegrityError(DeployerError):
    """Bytes do not match their digest or signature."""

    exit_code = 4


class TransferError(DeployerError):
    """The connection to the site failed, or the site does not answer."""

    exit_code = 5


class SpaceError(DeployerError):
    """No space, no inodes or no quota is left."""

    exit_code = 6


class MissingTool(DeployerError):
    """A required tool or engine is missing."""

    exit_code = 7


class Unknown(DeployerError):
    """Not enough facts to decide."""

    exit_code = 8


#: The class of an error by the exit code of the process that raised it.
BY_EXIT_CODE = {
    error.exit_code: error
    for error in (JobFailed, UsageError, Refused, IntegrityError, TransferError, SpaceError, MissingTool, Unknown)
}
