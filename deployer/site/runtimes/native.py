"""No container: the host's own programs, which a job in a container can be compared with. Only for who asks for it.

Launcher, pinning, layout, the plan's environment, probe and proof are those of any job. What a container would be given
is undone by name: where a word of the command, or a value of the environment, has a path of a container, there stands
what would be bound there. A path that a program has in its own text is beyond that.

The host's whole environment is the payload's, as a login shell and the modules make it; the plan's stands over it, but
in front of what the host has of ``LISTS``. Nothing of the image is used.
"""

import re
from typing import Dict, List, Mapping, Optional, Sequence

from deployer.contract import hostfiles
from deployer.contract.plan import Bind
from deployer.site.runtimes.interface import Container, Here, Runtime

#: Where programs, Python and the loader search: a folder more must not take the host's own away.
LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")

_INHERITED = re.compile("\0{([A-Z_]+)[^\0]*\0")
#: Around a path in a text: before it nothing that would make it the rest of another, behind it its end or a part of it.
_BEFORE, _BEHIND = r"(?<![\w./~*?}\])-])", r"(?=[/\s:,;'\"()<>|&}\]]|$)"


class Native(Runtime):
    """``env`` becomes the command, in the folder where it is called."""

    program = "env"
    contained = False

    def options(self, container: Container) -> List[str]:
        sources = _sources(container)
        found = [self.program]
        for name, value in sorted(container.environment.items()):
            own, mark, host = value.partition("\0")
            parts = own.split(":") if name in LISTS else [own]
            parts = [part for part in (_undone(part, sources) for part in parts) if not _only_inside(part)]
            if parts:
                found.append("%s=%s%s%s" % (name, ":".join(parts), mark, host))
        return found

    def binds(self, binds: Sequence[Bind]) -> List[str]:  # noqa: ARG002 (see ``given``)
        return []

    def given(self, container: Container, command: Sequence[str]) -> List[str]:
        sources = _sources(container)
        return [_undone(word, sources) for word in command]

    def argv(self, container: Container, command: List[str], join: Sequence[str] = ()) -> List[str]:
        del join
        return [*self.options(container), *self.given(container, command)]

    def veto(self, here: Here) -> Optional[str]:
        del here
        return None


def inherited(name: str) -> str:
    """Return what stands, at the end of a value, for what the host has of a list: known when the process starts.

    Between the two NULs is a variable of the batch script; ``filled`` is for who has no script.
    """
    return "\0{%s:+:$%s}\0" % (name, name)


def filled(word: str, environment: Mapping[str, str]) -> str:
    """Return a word with what ``environment`` has of the lists that it inherits."""
    own = {name: ":" + value for name, value in environment.items() if value}
    return _INHERITED.sub(lambda match: own.get(match.group(1), ""), word)


def _sources(container: Container) -> Dict[str, str]:
    return {bind.target: bind.source for bind in container.binds}


def _undone(text: str, sources: Mapping[str, str]) -> str:
    """Return a text with each target's source in its place, wherever it stands as a path of its own."""
    if not sources:
        return text
    # The longest first: a bind may lie within another.
    targets = "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
    return re.sub(_BEFORE + "(" + targets + ")" + _BEHIND, lambda match: sources[match.group(1)], text)


def _only_inside(part: str) -> bool:
    """Return whether a container alone has this folder: the host's own loader finds the host's libraries by itself."""
    return part == hostfiles.FOLDER or part.startswith(hostfiles.FOLDER + "/")
