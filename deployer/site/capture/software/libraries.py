"""Libraries as the host's loader finds them, and the facts about their files (``contract.elf.dynamic``)."""

import os
import re
from contextlib import suppress
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence

from deployer.contract.base.json_records import Record
from deployer.contract.elf import dynamic
from deployer.contract.elf.dynamic import BadElf, Facts
from deployer.site.capture.tools import Tools
from deployer.system import file_identity, files

_CACHED = re.compile(r"^\t(\S+) \(libc6,(?:x86-64|AArch64)[^)]*\) => (/.+)$", re.MULTILINE)
#: Dozens of files are normal; a number above this one means an endless loop in this code.
_MAX_FILES = 2000


class LibraryTree(NamedTuple):
    """A profile's facts about libraries.

    Attributes:
        files: facts by path.
        links: the targets of symbolic links, by path.
    """

    files: Dict[str, Facts]
    links: Dict[str, str]

    def update(self, other: "LibraryTree") -> None:
        """Add the facts of another tree."""
        self.files.update(other.files)
        self.links.update(other.links)

    def record(self) -> Record:
        """Return the tree as a JSON object."""
        found = {path: self.files[path].record() for path in sorted(self.files)}
        return {"files": found, "links": {path: self.links[path] for path in sorted(self.links)}}


class Libraries:
    """The libraries of this machine. No library is loaded: each file is only read, once."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._facts: Dict[str, Optional[Facts]] = {}
        answer = tools.ask(["ldconfig", "-p"])
        #: Path by soname, from the first entry of each soname in the loader's cache.
        self.cached: Dict[str, str] = {}
        for name, path in _CACHED.findall(answer.out) if answer else ():
            self.cached.setdefault(name, path)

    def facts(self, path: str) -> Optional[Facts]:
        """Return the facts of a file; None if it is not an ELF file or cannot be read. Damaged files are noted."""
        if path not in self._facts:
            self._facts[path] = self._read(path)
        return self._facts[path]

    def _read(self, path: str) -> Optional[Facts]:
        try:
            with suppress(OSError), files.open_regular(path) as stream:
                facts = dynamic.facts(file_identity.reader(stream.fileno()))
                if not facts or facts.dynamic.build_id:
                    return facts
                return facts._replace(sha256=file_identity.identity(path).partition(":")[2])
        except BadElf as error:
            self._tools.note(f"{path} is not a complete ELF file: {error}")
        return None

    def system(self, names: Iterable[str]) -> Dict[str, str]:
        """Return the path of each soname that the loader's cache contains."""
        return {name: self.cached[name] for name in names if name in self.cached}

    def closure(self, paths: Iterable[str], search: Sequence[str] = (), inside: str = "") -> LibraryTree:
        """Return the libraries that ``files`` need, directly and indirectly, except those below the prefix ``inside``.

        A library that cannot be found is omitted; the facts still show that its name is needed.

        Args:
            search: the folders in LD_LIBRARY_PATH.
        """
        tree = LibraryTree({}, {})
        todo: List[str] = list(paths)
        seen = set()
        while todo and len(tree.files) < _MAX_FILES:
            path = todo.pop()
            facts = self.facts(path)
            for name in facts.dynamic.needed if facts else ():
                if "/" in name or name in seen:
                    continue
                seen.add(name)
                found = self._find(name, self._folders(path, facts, search))
                if found and not (inside and found.startswith(inside + "/")):
                    todo.append(self.add(tree, found))
        return tree

    def _find(self, name: str, folders: Sequence[str]) -> Optional[str]:
        """Return the path where the loader finds a library: in the folders, or else in its cache."""
        paths = (os.path.normpath(os.path.join(folder, name)) for folder in folders)
        return next((each for each in paths if each.startswith("/") and os.path.exists(each)), self.cached.get(name))

    def add(self, tree: LibraryTree, path: str) -> str:
        """Add a system library, and the link that leads to it, to ``tree``; return its path with links resolved."""
        real = os.path.realpath(path)
        facts = self.facts(real)
        if facts is not None:
            tree.files[real] = facts
            if real != path:
                tree.links[path] = real
        return real

    @staticmethod
    def _folders(path: str, facts: Optional[Facts], search: Sequence[str]) -> List[str]:
        own = facts.dynamic.runpath + facts.dynamic.rpath if facts else []
        origin = os.path.dirname(path)
        return [*search, *(word.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for word in own)]
