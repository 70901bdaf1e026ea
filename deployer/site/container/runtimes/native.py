"""No container: the host's own programs, which a job in a container can be compared with. Only for who asks for it.

Launcher, pinning, layout, the plan's environment, probe and proof are those of any job. What a container would be given
is undone by name: where a word of the command, or a value of the environment, has a path of a container, there stands
what would be bound there. A path that a program has in its own text is beyond that.

The host's whole environment is the payload's, as a login shell and the modules make it; the plan's stands over it, but
in front of what the host has of ``LISTS``. Nothing of the image is used.
"""

import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from deployer.contract import hostfiles, shell
from deployer.contract.shell import Text, Value, Variable, Word
from deployer.site.container.runtimes.interface import Container, Here, Mount, Runtime

#: Where programs, Python and the loader search: a folder more must not take the host's own away.
LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")

#: Around a path in a text: before it nothing that would make it the rest of another, behind it its end or a part of it.
_BEFORE, _BEHIND = r"(?<![\w./~*?}\])-])", r"(?=[/\s:,;'\"()<>|&}\]]|$)"


class Native(Runtime):
    """``env`` becomes the command, in the folder where it is called."""

    program = "env"
    contained = False

    def options(self, container: Container) -> List[Text]:
        sources = _sources(container)
        found: List[Text] = [self.program]
        for name, value in sorted(container.environment.items()):
            own, host = _divided(value)
            parts = own.split(":") if name in LISTS else [own]
            undone = [part for part in (_undone(part, sources) for part in parts) if not _only_inside(part)]
            if undone:
                found.append(shell.joined([name, "=", shell.joined(undone, ":"), *host]))
        return found

    def binds(self, binds: Sequence[Mount]) -> List[Text]:  # noqa: ARG002 (see ``given``)
        return []

    def starting_in(self, folder: str) -> List[Text]:  # noqa: ARG002 (it stays where the user is)
        return []

    def given(self, container: Container, command: Sequence[str]) -> List[Text]:
        sources = _sources(container)
        return [_undone(word, sources) for word in command]

    def argv(self, container: Container, command: Sequence[str], join: Sequence[Text] = ()) -> List[Text]:
        del join
        return [*self.options(container), *self.given(container, command)]

    def veto(self, here: Here) -> Optional[str]:
        del here
        return None


def inherited(own: str, name: str) -> Value:
    """Return the value of a list: its ``own`` part, then what the host has of it when the process starts."""
    return Word(own, Variable(name, more=True))


def _divided(value: Value) -> Tuple[str, List[Word]]:
    """Return the part of a value that is known, and that of the host."""
    parts = Word(value).parts
    own = "".join(part for part in parts if isinstance(part, str))
    return own, [Word(part) for part in parts if not isinstance(part, str)]


def _sources(container: Container) -> Dict[str, Value]:
    return {bind.target: bind.source for bind in container.binds}


def _undone(text: str, sources: Mapping[str, Value]) -> Value:
    """Return a text with each target's source in its place, wherever it is a path of its own."""
    if not sources:
        return text
    # The longest first: a bind may lie within another.
    targets = "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
    parts = re.split(_BEFORE + "(" + targets + ")" + _BEHIND, text)
    return shell.joined([sources[part] if place % 2 else part for place, part in enumerate(parts)])


def _only_inside(part: Value) -> bool:
    """Return whether a container alone has this folder: the host's own loader finds the host's libraries by itself."""
    return part == hostfiles.FOLDER or shell.data(part).startswith(hostfiles.FOLDER + "/")
