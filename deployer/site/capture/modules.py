"""Environment modules (Lmod and Tcl): those for MPI or a container runtime, and the variables that they set."""

import os
import re
from typing import Dict, List, NamedTuple, Sequence, Tuple

from deployer.contract.runtime_table import RUNTIMES
from deployer.site.capture.tools import Said, Tools

_MPI = re.compile(
    r"(?:^|[/._-])(?:i|open|intel-?|para|ps|hpe-?|spectrum-?)?mpi(?:ch)?\d?(?:[/._-]|$)|mvapich|hpcx", re.I
)
_RUNTIMES = re.compile(r"^(?:.*/)?(%s)(?:/(\d[\w.-]*))?$" % "|".join(map(re.escape, RUNTIMES)), re.I)
_NAME = re.compile(r"^[A-Za-z0-9][\w./+-]{0,100}$")
#: ``setenv("NAME", "value")`` of Lmod, ``setenv NAME value`` of Tcl; prepend and append for lists of folders.
_SETS = re.compile(
    r"^\s*(setenv|pushenv|(?:pre|ap)pend[_-]path)\s*(?:\(\s*)?[\"{]?(\w+)[\"}]?\s*,?\s*[\"{]?([^\"{}\n]*?)[\"}]?\s*\)?\s*;?$",
    re.MULTILINE,
)
_MAX_SHOWN = 12


class Module(NamedTuple):
    """A module.

    Attributes:
        name: its name with the version.
        sets: the variables that it sets.
        adds: (variable, value) of each addition to a list.
    """

    name: str
    sets: Dict[str, str]
    adds: List[Tuple[str, str]]


def names(tools: Tools) -> List[str]:
    """Return the names of all modules with a version; with Lmod also those that need another one loaded first."""
    found = set()
    for words in ("avail", "spider"):
        said = _module(tools, "-t", words)
        for line in said.both.splitlines() if said else ():
            name = line.strip().rstrip("*")
            name = re.sub(r"\((?:default|L|D|,)+\)$", "", name)
            if _NAME.match(name) and not name.endswith("/"):
                found.add(name)
        if not os.environ.get("LMOD_CMD"):
            break
    return sorted(found)


def like_mpi(found: List[str]) -> List[str]:
    """Return the names that look like those of MPI installations."""
    return [name for name in found if _MPI.search(name)]


def runtimes(found: Sequence[str]) -> Dict[str, Tuple[str, str]]:
    """Return (module, version) of each container runtime that has a module, the last of each."""
    matches = [(match, name) for name in found for match in [_RUNTIMES.match(name)] if match]
    return {match.group(1).lower(): (name, match.group(2) or "") for match, name in matches}


def show(tools: Tools, wanted: List[str]) -> List[Module]:
    """Return the settings of modules; nothing is loaded."""
    if len(wanted) > _MAX_SHOWN:
        tools.note(
            "%d modules look like MPI, %d of them were examined: %s" % (len(wanted), _MAX_SHOWN, ", ".join(wanted))
        )
    found = []
    for name in wanted[:_MAX_SHOWN]:
        said = _module(tools, "show", name)
        if said:
            found.append(parse(name, said.both))
    return found


def parse(name: str, text: str) -> Module:
    """Return the settings in the output of ``module show``."""
    sets: Dict[str, str] = {}
    adds: List[Tuple[str, str]] = []
    for word, variable, value in _SETS.findall(text):
        if word in ("setenv", "pushenv"):
            sets[variable] = value.strip()
        else:
            adds.append((variable, value.strip()))
    return Module(name, sets, adds)


def _module(tools: Tools, *words: str) -> "Said | None":
    """Ask the module command. Lmod's is a program; Tcl's is a function of login shells."""
    lmod = os.environ.get("LMOD_CMD")
    if lmod:
        # A day: Lmod does not write a cache that takes less time to make into the user's home.
        return tools.ask([lmod, "bash", *words], environment={"LMOD_SHORT_TIME": "86400", "LMOD_PAGER": "none"})
    script = 'if type module >/dev/null 2>&1; then module "$@"; fi'
    return tools.ask(["bash", "-l", "-c", script, "module", *words])
