"""The ``module`` command (Lmod or Tcl) of a fresh login shell, independent of what this shell has loaded."""

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from deployer.site.capture.tools import EACH, Answer, Tools

#: Seconds for all calls together; at large sites without a cache, each call may be slow.
TOGETHER = 15.0

_NAME = re.compile(r"^[A-Za-z0-9][\w./+-]{0,100}$")
#: Markers before a folder's modules, and before the text of each module shown.
_HEADER = re.compile(r"^\s*(/.*):$")
#: Lmod's ``setenv("NAME", "value")`` and Tcl's ``setenv NAME value``; prepend and append for lists of folders.
_WORD = r"^\s*(setenv|pushenv|(?:pre|ap)pend[_-]path)"
_SETS = (
    re.compile(_WORD + r"\s*[({]\s*\"(\w+)\"\s*,\s*\"(.*?)\"\s*(?:,.*)?[)}];?$", re.MULTILINE),
    re.compile(_WORD + r"\s+(?:-?-d(?:elim)?[= ]\S+\s+)?\"?(\w+)\"?\s+[{\"]?(.*?)[}\"]?$", re.MULTILINE),
)
_USES = re.compile(r"^\s*module\s+use\s+(.+)$", re.MULTILINE)
#: Lmod's prereq("a", "b") requires all of them; prereq_any and Tcl's prereq require one of them.
_NEEDS = re.compile(r"^\s*prereq([_-]any|[_-]all)?(?:\(([^()\n]*)\)|\s+(.+))$", re.MULTILINE)
_CONFLICTS = re.compile(r"^\s*conflict(?:\(([^()\n]*)\)|\s+(.+))$", re.MULTILINE)
#: What Lmod's spider prints between a module and the modules to load before it; each line is an alternative.
_BEFORE = re.compile(r"^\s+You will need to load all module\(s\).*\n\s*\n((?: {6}\S.*\n)+)", re.MULTILINE)

_MARK = "deployer: the variables of this shell"
_LOGIN = "type module >/dev/null 2>&1 && HAS_MODULE=1; export HAS_MODULE; printf '\\n%s\\n' \"$1\"; env -0"
_CALL = 'MODULEPATH=$1; export MODULEPATH; shift; module "$@"'
#: Variables about loaded modules. With them, Lmod would treat the login shell's modules as from another MODULEPATH.
_LOADED = ("_ModuleTable", "__LMOD", "LOADEDMODULES", "_LMFILES_", "LMOD_FAMILY_")
#: Lmod prints in its default format, and only writes a cache to the user's home if creating it took over a day.
_PLAIN = {"LMOD_SHORT_TIME": "86400", "LMOD_PAGER": "none", "LMOD_LANG": "en", "LMOD_AVAIL_STYLE": "system"}


_NOTHING = Answer("", "", 0)


class Listed(NamedTuple):
    """A module listed in a folder of MODULEPATH."""

    name: str
    folder: str


class Module(NamedTuple):
    """A module.

    Attributes:
        name: its name, including the version.
        sets: the variables that it sets.
        adds: (variable, value) of each addition to a list.
        before: the modules that a fresh login shell must load before it, in order.
        needs: groups of module words; the module requires one word from each group.
        conflicts: words for modules that must not be loaded with it.
    """

    name: str
    sets: Dict[str, str]
    adds: List[Tuple[str, str]]
    before: Tuple["Module", ...] = ()
    needs: Sequence[Sequence[str]] = ()
    conflicts: Sequence[str] = ()

    @property
    def chain(self) -> List[str]:
        """Return the names of all modules that a fresh login shell must load, in order."""
        return list(dict.fromkeys(each.name for each in (*self.before, self)))

    def added(self, variable: str) -> List[str]:
        """Return the folders that this module and those before it add to a list, with its own first."""
        return [value for each in (self, *reversed(self.before)) for key, value in each.adds if key == variable]


class ModuleCommand:
    """Queries the module command without loading any module.

    Attributes:
        paths: MODULEPATH of a fresh login shell.
        loaded: the modules that a fresh login shell has loaded.
        has_spider: whether the command is Lmod.
    """

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._end = tools.left - TOGETHER
        environment = self._login() or dict(os.environ)
        self._lmod = environment.get("LMOD_CMD")
        self.has_spider = bool(self._lmod)
        there = self._lmod or environment.get("HAS_MODULE") or environment.get("MODULESHOME")
        self.paths = [path for path in environment.get("MODULEPATH", "").split(":") if path] if there else []
        self.loaded = [name for name in environment.get("LOADEDMODULES", "").split(":") if name]
        own = {name: value for name, value in environment.items() if not name.startswith(_LOADED)}
        self._environment = dict(own, **_PLAIN)

    def _login(self) -> Dict[str, str]:
        """Return the variables of a fresh login shell; empty if it has no module command."""
        output = self._ask(["bash", "-l", "-c", _LOGIN, "module", _MARK], {}).out
        pairs = (pair.partition("=") for pair in output.rpartition(_MARK + "\n")[2].split("\0"))
        variables = {name: value for name, equals, value in pairs if equals}
        return variables if "LMOD_CMD" in variables or "HAS_MODULE" in variables else {}

    @property
    def left(self) -> float:
        """The number of seconds left for all calls."""
        return self._tools.left - self._end

    def listed(self, folders: Sequence[str]) -> List[Listed]:
        """Return the modules in some folders, without aliases and module folders."""
        found: List[Listed] = []
        folder = next(iter(folders), "")
        for line in self._call(folders, "-t", "avail"):
            header = _HEADER.match(line)
            folder = header.group(1) if header else folder
            name = re.sub(r"(\((?:default|L|D|,)+\)|<\w+>|[*@])+$", "", line.strip())
            if not header and _NAME.match(name) and not name.endswith("/") and folder in folders:
                found.append(Listed(name, folder))
        return list(dict.fromkeys(found))

    def shown(self, folder: str, names: Sequence[str]) -> Dict[str, Module]:
        """Return what the modules of a folder do, by name."""
        found: Dict[str, List[str]] = {}
        name = ""
        for line in self._call([folder], "show", *names) if names else ():
            header = _HEADER.match(line)
            if header:
                path = re.sub(r"\.lua$", "", header.group(1))
                name = next((each for each in names if path.endswith("/" + each)), os.path.relpath(path, folder))
            found.setdefault(name, []).append(line)
        return {name: parse(name, "\n".join(lines)) for name, lines in found.items() if _NAME.match(name)}

    def spider(self) -> List[str]:
        """Return the names of all modules that Lmod knows, including those that require another module first."""
        lines = map(str.strip, self._call(self.paths, "-t", "spider") if self.has_spider else ())
        return list(filter(_NAME.match, lines))

    def before(self, names: Sequence[str]) -> Iterator[Tuple[str, ...]]:
        """Yield lists of modules to load before others become visible, according to Lmod's spider."""
        text = "\n".join([*self._call(self.paths, "spider", *names), ""]) if names else ""
        for words in (line.split() for lines in _BEFORE.findall(text) for line in lines.splitlines()):
            if all(map(_NAME.match, words)):
                yield tuple(words)

    def _call(self, folders: Sequence[str], *words: str) -> List[str]:
        """Call the module command with these folders in MODULEPATH, and return the lines that it prints.

        Lmod's command is a program, Tcl's a function.
        """
        path = ":".join(folders)
        if self._lmod:
            answer = self._ask([self._lmod, "bash", *words], dict(self._environment, MODULEPATH=path))
        else:
            answer = self._ask(["bash", "-l", "-c", _CALL, "module", path, *words], {})
        return answer.both.splitlines()

    def _ask(self, argv: Sequence[str], environment: Dict[str, str]) -> Answer:
        if self.left <= 0:
            self._tools.note(f"modules: the search ended after {TOGETHER:g} s; some were not examined")
            return _NOTHING
        return self._tools.ask(argv, min(self.left, 2 * EACH), environment, any_status=True) or _NOTHING


def parse(name: str, text: str) -> Module:
    """Return the module that the output of ``module show`` describes."""
    sets: Dict[str, str] = {}
    adds: List[Tuple[str, str]] = []
    for word, variable, value in (each for pattern in _SETS for each in pattern.findall(text)):
        if word in ("setenv", "pushenv"):
            sets[variable] = value.strip()
        else:
            adds += [(variable, each) for each in value.strip().split(":") if each]
    adds += [("MODULEPATH", path) for words in _USES.findall(text) for path in words.split() if path.startswith("/")]
    needs: List[Sequence[str]] = []
    for kind, listed, words in _NEEDS.findall(text):
        several = _words(listed or words)
        needs += [[each] for each in several] if kind.endswith("all") or (listed and not kind) else [several]
    conflicts = [each for listed, words in _CONFLICTS.findall(text) for each in _words(listed or words)]
    return Module(name, sets, adds, needs=needs, conflicts=conflicts)


def _words(text: str) -> List[str]:
    return [word for word in re.split(r"[\s,\"']+", text) if _NAME.match(word)]
