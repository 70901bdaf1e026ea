"""What the bash texts have in common that start a runtime: how they read our words, which the runtime does not know.

They are files of this folder.
"""

import pkgutil
from typing import List, Mapping

from deployer.contract.shell import Program, Text, Value
from deployer.site.container.runtimes.interface import Container, globs

#: The place in a program for ``read.sh``. That reads the words up to --: --pass=GLOB and --set-env=NAME=VALUE into
#: ``passed`` and ``values``, others into ``words``, and the last of those, the image, into ``image``.
_READ = "@read@\n"


def program(file: str) -> Program:
    """Return the program in a file of this folder."""
    return Program(_text(file).replace(_READ, _text("read.sh")))


def _text(file: str) -> str:
    return (pkgutil.get_data(__name__, file) or b"").decode()


def words(
    start: Program, name: Value, container: Container, variables: Mapping[str, Value], *first: Value
) -> List[Text]:
    """Return the words that call ``start``, a text with ``read.sh``, up to the runtime's own.

    -p: no BASH_ENV, no functions of the host.

    Args:
        name: the runtime's program, $0 of the text.
        variables: those of the container.
        first: words before all others; the text removes them before that.
    """
    return [
        *("bash", "-p", "-c", start, name),
        *first,
        *("--pass=" + each for each in globs(container.passed)),
        *("--set-env=" + each + "=" + value for each, value in sorted(variables.items())),
    ]
