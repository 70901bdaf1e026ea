"""Whether a program may open an MPI library by name, which its files do not show. Pure."""

import posixpath
import re
from collections.abc import Sequence

from deployer.connected.linker.process import Overlay, Process
from deployer.contract.site.plan import APP

#: Words in Python source text that may open a library by name.
_BY_NAME = re.compile(r"\b(?:ctypes|cffi|CDLL|dlopen|libmpi\w*)\b")
#: Programs that load libraries as the user's script requires, which is not followed.
_INTERPRETERS = re.compile(
    r"^(?:julia|lua|luajit|R|Rscript|perl|ruby|node|java|guile|tclsh|octave|octave-cli|php|mono|dotnet|sbcl|racket|"
    r"scilab|gap|sage|erl|ocaml|swipl|root)[0-9.-]*(?:\.exe)?$"
)


def may_open_mpi(process: Process, overlays: Sequence[Overlay]) -> str:
    """Return why a program may open an MPI library by name; empty if it does not."""
    if process.is_python:
        return _python(process, overlays)
    name = posixpath.basename(process.name)
    if _INTERPRETERS.match(name):
        return f"what {name} loads is not followed"
    if process.program and process.program.facts.opens:
        return "it opens libraries by name"
    named = (posixpath.basename(loaded.path) for loaded in process.loader.objects if loaded is not process.program)
    return next((f"{library} may open an MPI library" for library in named if "mpi" in library.lower()), "")


def _python(process: Process, overlays: Sequence[Overlay]) -> str:
    if not process.text:
        return "its text is not known"
    packages = [posixpath.basename(path) for path in process.packages or ()]
    package = next((name for name in packages if "mpi" in name.lower()), "")
    if package:
        return f"it imports {package}"
    texts = {"its text": process.text}
    for overlay in overlays if not process.text.startswith("-c ") else ():  # the bundle's own modules
        for path in overlay.files.entries if overlay.target == APP else ():
            if path.endswith(".py"):
                texts[APP + path] = process.view.content(APP + path).decode("utf-8", "replace")
    matches = ((name, _BY_NAME.search(text)) for name, text in texts.items())
    return next((f"{name} has {match[0]}" for name, match in matches if match), "")
