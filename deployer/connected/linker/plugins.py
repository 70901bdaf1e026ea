"""What libraries open by name at run time: a declared table, looked up in the container that does not exist yet.

No file says that Intel MPI opens libfabric, or which providers that one loads. Each line here was seen in an LD_DEBUG
trace of a real run; tests/integration/test_rules.py holds the table against new traces.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from deployer.connected.linker.loader import Loader, Object
from deployer.connected.linker.starts.words import UnknownWord

FABRIC = "libfabric.so.1"

#: What libfabric asks the loader for, where FI_PROVIDER_PATH names no folders: upstream's, and Intel's own two.
_PROVIDERS = (
    *("coll", "cxi", "efa", "lnx", "lpp", "mlx", "net", "opx", "psm2", "psm3", "psmx2", "rxd", "rxm", "shm", "sm2"),
    *("sockets", "tcp", "ucx", "udp", "usnic", "verbs"),
    *(f"hook_{name}" for name in ("debug", "dmabuf_peer_mem", "hmem", "monitor", "noop", "perf", "profile", "trace")),
)

#: What a library opens by soname, where it is there: the one that opens, by how its soname begins, and the names.
BY_NAME: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("libmpi.so.12", (FABRIC, "libpmix.so", "libnuma.so", "libunitrace_mpi.so")),  # Intel MPI
    ("libmpi_abi.so.1", (FABRIC, "libpmix.so", "libnuma.so", "libunitrace_mpi.so")),
    ("libitex_cpu.so", ("libitex_cpu_internal_avx2.so", "libitex_cpu_internal_avx512.so")),
    ("libfabric.so.", tuple(f"lib{name}-fi.so" for name in _PROVIDERS)),
)
_PROVIDER = re.compile(r"^lib[\w.-]+-fi\.so$")
#: What a library opens out of folders beside it: the folders, relative to its own, and the files' names.
BY_FOLDER: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    ("libmpi.so.40", ("openmpi", "openmpi3"), re.compile(r"^mca_\w+\.so$")),
    ("libopen-pal.so.", ("openmpi", "openmpi3"), re.compile(r"^mca_\w+\.so$")),
    ("libpmix.so.", ("pmix",), re.compile(r"^pmix_mca_\w+\.so$")),
    ("libucs.so.", ("ucx",), re.compile(r"^libuc[smt]\w*\.so(\.\d+)*$")),
    ("libuct.so.", ("ucx",), re.compile(r"^libuct_\w+\.so(\.\d+)*$")),
    ("libucp.so.", ("ucx",), re.compile(r"^libuc[pt]_\w+\.so(\.\d+)*$")),
    ("libucm.so.", ("ucx",), re.compile(r"^libucm_\w+\.so(\.\d+)*$")),
    ("libtensorflow_framework.so.", ("../tensorflow-plugins",), re.compile(r"^[\w.-]+\.so$")),
    ("libibverbs.so.", ("libibverbs",), re.compile(r"^lib\w+-rdmav\d+\.so$")),
)


class Plugin(NamedTuple):
    """A file that ``opener`` opens at run time; ``path`` is None for a name that is nowhere."""

    opener: Object
    name: str
    path: str | None


def open_fabric(loader: Loader) -> None:
    """Map the libfabric that Intel MPI opens at startup, if it is found: MPI_Init fails without it."""
    library = loader.find("libmpi.so.12") or loader.find("libmpi_abi.so.1")
    place = loader.would_find(FABRIC, library) if library and not loader.find(FABRIC) else None
    if place:
        loader.dlopen(place, library)


def declared(loader: Loader) -> Iterator[Plugin]:
    """Yield all that the libraries that are mapped may open: by name, and out of folders beside them."""
    for opener in list(loader.objects):
        soname = opener.dynamic.soname or posixpath.basename(opener.found)
        for start, names in BY_NAME:
            for name in names if soname.startswith(start) else ():
                yield Plugin(opener, name, loader.would_find(name, opener))
        for start, folders, pattern in BY_FOLDER:
            for folder in folders if soname.startswith(start) else ():
                yield from _in_folder(loader, opener, f"{posixpath.dirname(opener.path)}/{folder}", pattern)


def providers(loader: Loader, environment: Mapping[str, str], intel: bool) -> dict[str, list[str]] | None:
    """Return the files of libfabric's providers, by the provider's name; None if it is not mapped or searched for sure.

    It opens all that is in the folders of FI_PROVIDER_PATH; where that is not set, it asks the loader for one name a
    provider, which for psm2 is another in ``intel``'s own build.
    """
    fabric = loader.find(FABRIC)
    given = environment.get("FI_PROVIDER_PATH")
    if fabric is None or isinstance(given, UnknownWord):
        return None
    found: dict[str, list[str]] = {}
    if given:
        for folder in given.split(":"):
            for plugin in _in_folder(loader, fabric, folder, _PROVIDER):
                name = plugin.name.removeprefix("lib").removesuffix("-fi.so").partition("-")[0]
                found.setdefault("psm2" if name == "psmx2" else name, []).append(plugin.path or "")
        return found
    names = {name: name for name in _PROVIDERS if name != "psmx2"}
    names["psm2"] = "psmx2" if intel else "psm2"
    for name, file in names.items():
        path = loader.would_find(f"lib{file}-fi.so", fabric)
        if path:
            found[name] = [path]
    return found


def _in_folder(loader: Loader, opener: Object, folder: str, pattern: re.Pattern[str]) -> Iterator[Plugin]:
    real = loader.view.resolve(folder)
    for name in loader.view.names(real) if real else ():
        if pattern.match(name):
            yield Plugin(opener, name, loader.view.resolve(f"{real}/{name}"))
