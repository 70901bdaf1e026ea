"""The program age, which encrypts what is carried on media, to keys of OpenSSH (docs/adr/0072)."""

from typing import IO

from deployer.contract.base.errors import IntegrityError, SpaceError, UsageError
from deployer.system import files, process

#: Seconds for one file, with a person who enters a passphrase.
SECONDS = 3600
_HINT = "have it installed (Debian: apt-get install age), or bring a static one and give it with --age FILE"
#: Words of age about a full disk and about the key. All its other errors are about the file.
_FULL = ("no space left", "quota exceeded")
_ABOUT_KEYS = ("no identity matched", 'error: reading "', "passphrase")


def problem(text: str) -> str:
    """Return the error among the lines that age printed."""
    return next((line for line in text.splitlines() if "error: " in line), " ".join(text.split()) or "age failed")


def decrypt(path: str, target: IO[bytes], key: str, program: str) -> None:
    """Write the content of an encrypted file to an open file. It may be used only if no error is raised.

    Args:
        key: the file of the private key. For a passphrase, age asks on the terminal.
        program: age itself.

    Raises:
        MissingTool: age is not installed.
        UsageError: the key is not one of those that the file is for.
        IntegrityError: the file was changed or cut.
        SpaceError: no space or quota is left.
    """
    with files.errors_named("read " + path):
        files.open_regular(path).close()  # age would wait for a pipe
    done = process.run([program, "--decrypt", "-i", key, path], SECONDS, stdout=target, check=False, hint=_HINT)
    text = problem(done.stderr)
    if done.returncode and any(words in text for words in _FULL):
        raise SpaceError(f"cannot decrypt {path}: {text}", "free some space or quota, and receive again")
    if done.returncode and any(words in text for words in _ABOUT_KEYS):
        hint = "give --identity the private key of a key that it was encrypted to; with the right one, copy it again"
        raise UsageError(f"{key} does not open {path}: {text}", hint)
    if done.returncode:
        raise IntegrityError(f"{path} is damaged: {text}", "copy it again from the medium: nothing is lost")
