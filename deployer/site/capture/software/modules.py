"""Environment modules (Lmod and Tcl) for MPI and container runtimes, and how to load them in a fresh login shell.

In a hierarchy, loading a compiler adds the folder with its MPIs to MODULEPATH. The search for such folders works like
Lmod's spider: each module that adds a folder leads to more modules. Nothing is loaded.
"""

import os
import re
from contextlib import suppress
from typing import Dict, Iterable, List, NamedTuple, Pattern, Sequence, Tuple

from deployer.contract.site.runtime_table import RUNTIMES
from deployer.site.capture.software.module_command import Listed, Module, ModuleCommand
from deployer.site.capture.tools import Tools

#: Variables that modules set to the prefix of an MPI.
MPI_VARIABLES = ("I_MPI_ROOT", "MPI_HOME", "MPI_ROOT", "MPICH_HOME", "MPICH_DIR", "OPAL_PREFIX", "OMPI_HOME", "MPI_DIR",
                 "EBROOTIMPI", "EBROOTOPENMPI", "EBROOTMPICH", "HPCX_MPI_DIR")  # fmt: skip
_MPI = re.compile(
    r"(?:^|[/._-])(?:i|open|intel-?|para|ps|hpe-?|spectrum-?)?mpi(?:ch)?\d?(?:[/._-]|$)|mvapich|hpcx", re.I
)
#: Modules of libraries for communication between GPUs: plug-ins for libfabric, GDRCopy.
_COMMUNICATION = re.compile(
    r"(?:^|[/._-])(?:(?:aws-)?ofi-[nr]ccl(?:-plugin)?|[nr]ccl-(?:ofi|net)|gdrcopy)(?:[/._-]|$)", re.I
)
_RUNTIMES = re.compile(r"^(?:.*/)?({})(?:/(\d[\w.-]*))?$".format("|".join(map(re.escape, RUNTIMES))), re.I)
#: Text in a module file that leads to more modules, or that shows an MPI regardless of the module's name.
_LEADS = re.compile(rb"MODULEPATH|module[\s(\"']+use")
_HAS_MPI = re.compile(rb"\b(%s)\b" % b"|".join(name.encode() for name in MPI_VARIABLES))
_MAX_READ = 64 * 1024
_MAX_SHOWN = 24
_MAX_FOLDERS = 200


class SiteModules(NamedTuple):
    """The modules of a site.

    Attributes:
        chains: by name, the modules that a fresh login shell must load, with the module itself last.
        mpi: the modules of MPI installations.
        communication: the modules of libraries for communication between GPUs.
    """

    chains: Dict[str, Tuple[str, ...]]
    mpi: List[Module]
    communication: List[Module]


def find(tools: Tools) -> SiteModules:
    """Return the modules that a fresh login shell can load, directly or after others."""
    search = _Search(tools, ModuleCommand(tools))
    search.walk()
    return SiteModules(search.chains(), list(search.of_mpi()), list(search.named(_COMMUNICATION)))


def like_mpi(found: Iterable[str]) -> List[str]:
    """Return the names that look like MPI installations."""
    return [name for name in found if _MPI.search(name)]


def runtimes(found: Iterable[str]) -> Dict[str, Tuple[str, str]]:
    """Return (module, version) for each container runtime that has modules; the last module counts."""
    matches = [(match, name) for name in found for match in [_RUNTIMES.match(name)] if match]
    return {match.group(1).lower(): (name, match.group(2) or "") for match, name in matches}


class _Search:
    """A search for modules, one folder after another."""

    def __init__(self, tools: Tools, command: ModuleCommand) -> None:
        self._tools = tools
        self._command = command
        #: By folder: the modules to load before the folder's modules.
        self._before: Dict[str, Tuple[Module, ...]] = {}
        self._listed: List[Listed] = []
        self._shown: Dict[Listed, Module] = {}
        self._texts: Dict[Listed, bytes] = {}

    def walk(self) -> None:
        """List the modules of MODULEPATH and of the folders they lead to, using Lmod's own search as well."""
        self._walk(dict.fromkeys(self._command.paths, ()))
        self._show(self._like_mpi())  # before the search, which may take all the remaining time
        names = like_mpi(name for name in self._command.spider() if not name.endswith("/"))
        for loads in self._command.before(names[:_MAX_SHOWN]):
            for name in loads:
                self._walk(self._behind([each for each in self._listed if each.name == name]))

    def _walk(self, folders: Dict[str, Tuple[Module, ...]]) -> None:
        while folders:
            self._before.update(folders)
            new = self._command.listed(list(folders))
            self._listed += new
            folders = self._behind([each for each in new if _LEADS.search(self._text(each))])

    def _behind(self, several: Sequence[Listed]) -> Dict[str, Tuple[Module, ...]]:
        """Return the folders that modules add to MODULEPATH, each with the modules to load first."""
        found: Dict[str, Tuple[Module, ...]] = {}
        for module in self._show(several).values():
            for folder in module.added("MODULEPATH") if len(self._before) + len(found) < _MAX_FOLDERS else ():
                if folder not in self._before:
                    found.setdefault(folder, (*module.before, module))
        return found

    def _like_mpi(self) -> List[Listed]:
        named = [each for each in self._listed if _MPI.search(each.name)]
        like = list(dict.fromkeys([*named, *(each for each in self._listed if _HAS_MPI.search(self._text(each)))]))
        if len(like) > _MAX_SHOWN:
            names = ", ".join(each.name for each in like)
            self._tools.note("%d modules look like MPI, %d of them were examined: %s" % (len(like), _MAX_SHOWN, names))
        return like[:_MAX_SHOWN]

    def named(self, pattern: "Pattern[str]") -> Iterable[Module]:
        """Return the modules whose names match, the newest of each first."""
        like = sorted((each for each in self._listed if pattern.search(each.name)), reverse=True)
        return self._show(like[:_MAX_SHOWN]).values()

    def of_mpi(self) -> Iterable[Module]:
        """Yield the modules that look like MPI installations, each with the modules to load before it."""
        for module in self._show(self._like_mpi()).values():
            needed = [each for words in module.needs for each in self._first(words)]
            taken = [name for name in self._command.loaded for word in module.conflicts if _is(name, word)]
            if taken:
                self._tools.note(
                    "module {} conflicts with {}, which a login shell loads".format(module.name, ", ".join(taken))
                )
            before = {each.name: each for each in reversed([*module.before, *needed])}
            yield module._replace(before=tuple(reversed(list(before.values()))))

    def _first(self, words: Sequence[str]) -> Sequence[Module]:
        """Return the first existing module of some, with those before it."""
        there = [(each, word) for word in words for each in self._listed if _is(each.name, word)]
        for each, word in there[:1]:
            for module in self._command.shown(each.folder, [word]).values():  # without a version, the default one
                return (*self._before[each.folder], module)
        return ()

    def _show(self, several: Sequence[Listed]) -> Dict[Listed, Module]:
        """Return what modules do, in their order, without those that cannot be shown."""
        new = [each for each in several if each not in self._shown]
        for folder in dict.fromkeys(each.folder for each in new):
            names = [each.name for each in new if each.folder == folder]
            for name, module in self._command.shown(folder, names).items():
                self._shown[Listed(name, folder)] = module._replace(before=self._before[folder])
        return {each: self._shown[each] for each in several if each in self._shown}

    def chains(self) -> Dict[str, Tuple[str, ...]]:
        """Return the shortest chain that loads each module, by name."""
        found: Dict[str, Tuple[str, ...]] = {}
        for each in self._listed:
            found.setdefault(each.name, (*(module.name for module in self._before[each.folder]), each.name))
        return found

    def _text(self, each: Listed) -> bytes:
        """Return the text of a module's file; empty if it cannot be read."""
        if each not in self._texts:
            self._texts[each] = b""
            for suffix in ("", ".lua") if self._command.left > 0 else ():
                with suppress(OSError), open(os.path.join(each.folder, each.name + suffix), "rb") as stream:
                    self._texts[each] = stream.read(_MAX_READ)
        return self._texts[each]


def _is(name: str, word: str) -> bool:
    """Return whether a word of a module file, with or without a version, refers to the module of this name."""
    return name == word or name.startswith(word + "/")
