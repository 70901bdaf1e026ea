"""The known state of a shell at one point of its script: variables, functions, arguments, folder. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from deployer.connected.linker.starts.removed import Removed, of_branches
from deployer.connected.linker.starts.shell.shell_syntax import Node
from deployer.connected.linker.starts.words import UnknownWord

#: The status of a command that is not found, and an unknown status that is not 0.
NOT_FOUND, FAILED = 127, -1

#: A value: a string, or the elements of an array.
VariableValue = str | tuple[str, ...]
_UNSET: VariableValue = UnknownWord("")
_T = TypeVar("_T")


@dataclass
class State:
    """The known state at one point of a script.

    Attributes:
        name: ``$0``.
        file: the path of the file being read, for ``BASH_SOURCE``.
        arguments: the positional parameters; None if unknown.
        folder: the working folder; None if unknown.
        pushed: the folders of ``pushd``, the last one at the end.
        variables: known and unknown values; other variables are unset.
        exported: names of variables that programs receive.
        functions: function bodies; None if a function has several.
        certain: whether this point is reached whenever the script runs.
        alive: whether it is reached at all.
        ended: whether the shell ended before it without an error.
        may_have_ended: whether it did so in an earlier branch.
        status: ``$?``: FAILED if it is nonzero but otherwise unknown; None if it is unknown.
        stdin: the text of the current command's input; None if it has none of its own.
        tested: whether a condition uses the status of the commands that run here.
        stops: whether the script ends at the first command that fails (``set -e``).
        pipefail: whether a pipeline fails if one of its commands fails.
        removed: variables that were unset.
    """

    name: str
    file: str
    arguments: tuple[str, ...] | None
    folder: str | None
    variables: dict[str, VariableValue]
    exported: frozenset[str]
    functions: dict[str, Node | None] = field(default_factory=dict)
    certain: bool = True
    alive: bool = True
    ended: bool = False
    pushed: tuple[str | None, ...] = ()
    may_have_ended: bool = False
    status: int | None = 0
    stdin: str | None = None
    tested: bool = False
    stops: bool = False
    pipefail: bool = False
    removed: frozenset[Removed] = frozenset()

    def copy(self) -> "State":
        """Return an independent copy."""
        return State(**{**vars(self), "variables": dict(self.variables), "functions": dict(self.functions)})

    def become(self, others: Sequence["State"]) -> None:
        """Keep what holds in all given states that are alive."""
        alive = [other for other in others if other.alive]
        self.alive = bool(alive)
        if not alive:
            return
        self.arguments = _common([state.arguments for state in alive], None)
        self.status = either([state.status for state in alive])
        self.stops = all(state.stops for state in alive)
        self.pipefail = all(state.pipefail for state in alive)
        self.removed = of_branches([state.removed for state in alive])
        self.folder = _common([state.folder for state in alive], None)
        self.pushed = _common([state.pushed for state in alive], ())
        values = {
            name: [branch.variables.get(name, _UNSET) for branch in alive]
            for state in alive
            for name in state.variables
        }
        self.variables = {name: _common(of_each, UnknownWord(f"${name}")) for name, of_each in values.items()}
        self.exported = frozenset(name for state in alive for name in state.exported)
        bodies = {name: [branch.functions.get(name) for branch in alive] for state in alive for name in state.functions}
        self.functions = {name: _common(of_each, None) for name, of_each in bodies.items()}

    def merge(self, others: Sequence["State"], certain: bool) -> None:
        """Keep what holds after one of several branches. ``certain``: whether the branches are certainly reached."""
        self.become(others)
        self.may_have_ended = any(branch.ended or branch.may_have_ended for branch in others)
        self.certain = certain and not self.may_have_ended
        self.ended = not self.alive and all(branch.ended for branch in others)

    def environment(self) -> Mapping[str, str]:
        """Return the variables that programs receive."""
        return {
            name: value for name, value in self.variables.items() if name in self.exported and isinstance(value, str)
        }


def either(statuses: Sequence[int | None]) -> int | None:
    """Return the status of one of several branches: FAILED if all are nonzero but differ; None if unknown."""
    if None in statuses or not statuses or (0 in statuses and any(statuses)):
        return None
    return statuses[0] if len(set(statuses)) == 1 else FAILED


def piped(statuses: Sequence[int | None]) -> int | None:
    """Return the status of a pipeline that fails if one of its commands fails."""
    failed = [status for status in statuses if status]
    return failed[-1] if failed else either(statuses)


def _common(values: Sequence[_T], otherwise: _T) -> _T:
    """Return the value that all branches have."""
    first = values[0]
    same = all(value is first or (type(value) is type(first) and value == first) for value in values)
    return first if same else otherwise
