"""The host's own programs without a container, for comparison with a job in a container. Used only on request.

The launcher, pinning, layout, the plan's environment, the probe and the proof are the same as in any other job. In the
command's words and the environment's values, the path of a bind's target is replaced with its source. Paths in a
program's own files cannot be replaced.

The payload gets the host's environment after a login shell and the modules. The plan's variables override it, but are
only put before the host's values of ``LISTS``. Nothing from the image is used.
"""

import re
from typing import Dict, List, Mapping, Optional, Sequence

from deployer.contract.base import shell
from deployer.contract.base.shell import Text, Value, Variable, Word
from deployer.contract.rules import hostfiles
from deployer.site.container.runtimes.interface import Container, Here, Mount, Runtime

#: Search paths for programs, Python and the loader: a plan's folders must not replace the host's.
LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")

#: The context of a path in a text: before it, nothing that makes it part of another path; after it, an end.
_BEFORE, _BEHIND = r"(?<![\w./~*?}\])-])", r"(?=[/\s:,;'\"()<>|&}\]]|$)"


class Native(Runtime):
    """Runs the command with ``env``, in the current folder."""

    contained = False

    def options(self, container: Container) -> List[Text]:
        sources = _sources(container)
        words: List[Text] = [self.program]
        for name, value in sorted(container.environment.items()):
            parts = Word(value).parts
            own = "".join(part for part in parts if isinstance(part, str))
            host = [Word(part) for part in parts if not isinstance(part, str)]  # known when the process starts
            undone = [_undone(part, sources) for part in (own.split(":") if name in LISTS else [own])]
            # Only a container needs the folder of host files: the host's loader finds the host's libraries anyway.
            kept = [part for part in undone if not (shell.data(part) + "/").startswith(hostfiles.FOLDER + "/")]
            if kept:
                words.append(shell.joined([name, "=", shell.joined(kept, ":"), *host]))
        return words

    def binds(self, binds: Sequence[Mount]) -> List[Text]:  # noqa: ARG002 (see ``given``)
        return []

    def starting_in(self, folder: str) -> List[Text]:  # noqa: ARG002 (it stays in the user's folder)
        return []

    def given(self, container: Container, command: Sequence[str]) -> List[Text]:
        sources = _sources(container)
        return [_undone(word, sources) for word in command]

    def argv(self, container: Container, command: Sequence[str], _: Sequence[Text] = ()) -> List[Text]:
        return [*self.options(container), *self.given(container, command)]

    def veto(self, _: Here) -> Optional[str]:
        return None


def inherited(own: str, name: str) -> Value:
    """Return the value of a list: its ``own`` part, then the host's value when the process starts."""
    return Word(own, Variable(name, more=True))


def _sources(container: Container) -> Dict[str, Value]:
    return {bind.target: bind.source for bind in container.binds}


def _undone(text: str, sources: Mapping[str, Value]) -> Value:
    """Return a text in which each target that is a complete path is replaced with its source."""
    if not sources:
        return text
    # Longest first, because a bind may be inside another.
    targets = "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
    parts = re.split(_BEFORE + "(" + targets + ")" + _BEHIND, text)
    return shell.joined([sources[part] if place % 2 else part for place, part in enumerate(parts)])
