"""The common part of the bash texts that start runtimes: parsing deployer's own words, which runtimes do not accept.

The texts are files in this folder.
"""

import pkgutil
from typing import List, Mapping

from deployer.contract.base.shell import Program, Text, Value
from deployer.site.container.runtimes.interface import Container, globs

#: The place in a program for ``read.sh``, which reads the words up to --. It puts --pass=GLOB and --set-env=NAME=VALUE
#: into ``passed`` and ``values``, and others into ``words``, but the last one, the image, into ``image``.
_READ = "@read@\n"


def program(file: str) -> Program:
    """Return the program in a file in this folder."""
    return Program(_text(file).replace(_READ, _text("read.sh")))


def _text(file: str) -> str:
    return (pkgutil.get_data(__name__, file) or b"").decode()


def words(
    start: Program, name: Value, container: Container, variables: Mapping[str, Value], *first: Value
) -> List[Text]:
    """Return the words that call ``start``, a text with ``read.sh``, up to the runtime's own words.

    -p: no BASH_ENV, no functions from the host.

    Args:
        name: the runtime's program, $0 in the text.
        variables: the container's variables.
        first: words before all others; the text removes them before ``read.sh`` runs.
    """
    return [
        *("bash", "-p", "-c", start, name),
        *first,
        *("--pass=" + variable for variable in globs(container.passed)),
        *("--set-env=" + variable + "=" + value for variable, value in sorted(variables.items())),
    ]
