"""No container: the host's own programs, for comparison with a job in a container. Used only on request.

Launcher, pinning, layout, the plan's environment, probe and proof are as in any other job. Paths of the container are
replaced: in words of the command and values of the environment, the path of a bind's target becomes its source. A
path inside a program's own files cannot be replaced.

The payload gets the host's environment, as a login shell and the modules make it. The plan's variables override it,
except that they precede the host's values of ``LISTS``. Nothing of the image is used.
"""

import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from deployer.contract import hostfiles, shell
from deployer.contract.shell import Text, Value, Variable, Word
from deployer.site.container.runtimes.interface import Container, Here, Mount, Runtime

#: Search paths of programs, Python and the loader: another folder must not replace the host's own.
LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")

#: The surroundings of a path in a text: nothing before it that would make it part of another path; after it an end.
_BEFORE, _BEHIND = r"(?<![\w./~*?}\])-])", r"(?=[/\s:,;'\"()<>|&}\]]|$)"


class Native(Runtime):
    """``env`` becomes the command, in the folder where it is called."""

    contained = False

    def options(self, container: Container) -> List[Text]:
        sources = _sources(container)
        words: List[Text] = [self.program]
        for name, value in sorted(container.environment.items()):
            own, host = _divided(value)
            parts = own.split(":") if name in LISTS else [own]
            undone = [part for part in (_undone(part, sources) for part in parts) if not _only_inside(part)]
            if undone:
                words.append(shell.joined([name, "=", shell.joined(undone, ":"), *host]))
        return words

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
    """Return the value of a list: its ``own`` part, then the host's value when the process starts."""
    return Word(own, Variable(name, more=True))


def _divided(value: Value) -> Tuple[str, List[Word]]:
    """Return the known part of a value, and the host's part."""
    parts = Word(value).parts
    own = "".join(part for part in parts if isinstance(part, str))
    return own, [Word(part) for part in parts if not isinstance(part, str)]


def _sources(container: Container) -> Dict[str, Value]:
    return {bind.target: bind.source for bind in container.binds}


def _undone(text: str, sources: Mapping[str, Value]) -> Value:
    """Return a text in which each target that is a path of its own is replaced by its source."""
    if not sources:
        return text
    # The longest first: a bind may be inside another.
    targets = "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
    parts = re.split(_BEFORE + "(" + targets + ")" + _BEHIND, text)
    return shell.joined([sources[part] if place % 2 else part for place, part in enumerate(parts)])


def _only_inside(part: Value) -> bool:
    """Return whether only a container needs this folder: the host's own loader finds the host's libraries anyway."""
    return part == hostfiles.FOLDER or shell.data(part).startswith(hostfiles.FOLDER + "/")
