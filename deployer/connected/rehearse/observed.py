"""Become an observed program: ``python -m deployer.connected.rehearse.observed -- PROGRAM ...``."""

import os
import sys

from deployer.connected.rehearse import syscalls


def main(words: list[str]) -> None:
    """Become the program after ``--``, confined, and observed if there is an observer."""
    command = words[words.index("--") + 1 :]
    syscalls.confine()
    syscalls.announce()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv)
