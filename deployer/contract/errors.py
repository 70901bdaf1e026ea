"""One error class a documented exit code; a message that says what happened and a hint that says what to do.

The exit codes are a promise to scripts (docs/exit-codes.md); 0 is done and 130 is interrupted.
"""

from typing import List, Sequence

from deployer.contract.text import printable

EXIT_DONE = 0
EXIT_INTERRUPTED = 130


class DeployerError(Exception):
    """An expected failure: shown as one line on stderr, with an optional hint below, never as a traceback.

    ``details`` are for a failure that has several causes: the message counts them, each detail is one of them.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = list(details)

    def lines(self) -> List[str]:
        """Return the lines to print on stderr; the message and each detail are folded into one line each.

        Images, profiles and programs have their words in them: an escape sequence is shown, not obeyed.
        """
        shown = ["deployer: error: " + " ".join(self.message.split())]
        shown += ["  " + " ".join(detail.split()) for detail in self.details]
        if self.hint:
            shown.append("hint: " + self.hint)
        return [printable(line) for line in shown]


class JobFailed(DeployerError):
    """The payload, the build step or the job itself failed: ours was done right."""

    exit_code = 1


class UsageError(DeployerError):
    """Wrong usage or wrong input: the caller can mend it."""

    exit_code = 2


class Refused(DeployerError):
    """A rule or the site's policy says no."""

    exit_code = 3


class IntegrityError(DeployerError):
    """Bytes are not what their digest or signature says."""

    exit_code = 4


class TransferError(DeployerError):
    """The line to the site failed, or the site does not answer."""

    exit_code = 5


class SpaceError(DeployerError):
    """No space, no inodes or no quota left."""

    exit_code = 6


class MissingTool(DeployerError):
    """A needed tool or engine is not there."""

    exit_code = 7


class Unknown(DeployerError):
    """Facts are missing, so that neither yes nor no would be honest."""

    exit_code = 8
