"""What the bash texts have in common that start a runtime: how they read our words, which the runtime does not know."""

from typing import List, Mapping

from deployer.contract.shell import Program, Text, Value
from deployer.site.container.runtimes.interface import Container, globs

#: Reads the words up to --: --pass=GLOB and --set-env=NAME=VALUE into ``passed`` and ``values``, others into ``words``,
#: and the last of those, the image, into ``image``.
READ = Program(
    """\
passed=() values=() words=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --pass=*) passed+=("${1#*=}") ;;
        --set-env=*) values+=("${1#*=}") ;;
        *) words+=("$1") ;;
    esac
    shift
done
shift; image=${words[-1]}; unset 'words[-1]'
"""
)


def words(
    start: Program, name: Value, container: Container, variables: Mapping[str, Value], *first: Value
) -> List[Text]:
    """Return the words that call ``start``, a text with ``READ``, up to the runtime's own.

    -p: no BASH_ENV, no functions of the host.

    Args:
        name: the runtime's program, $0 of the text.
        variables: those of the container.
        first: words before all others; the text removes them before ``READ``.
    """
    return [
        *("bash", "-p", "-c", start, name),
        *first,
        *("--pass=" + variable for variable in globs(container.passed)),
        *("--set-env=" + variable + "=" + value for variable, value in sorted(variables.items())),
    ]
