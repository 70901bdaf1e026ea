"""What libraries open by name at run time: the libfabric of Intel MPI, and libfabric's providers.

No file says that Intel MPI opens libfabric, or which providers that one loads. tests/integration/test_rules.py compares
both with an LD_DEBUG trace of a real run.
"""

import re
from collections.abc import Iterator, Mapping

from deployer.connected.linker.loader import Loader
from deployer.connected.linker.starts.words import UnknownWord

FABRIC = "libfabric.so.1"

#: What libfabric asks the loader for, where FI_PROVIDER_PATH names no folders: upstream's, and Intel's own two.
PROVIDERS = (
    *("coll", "cxi", "efa", "lnx", "lpp", "mlx", "net", "opx", "psm2", "psm3", "psmx2", "rxd", "rxm", "shm", "sm2"),
    *("sockets", "tcp", "ucx", "udp", "usnic", "verbs"),
    *(f"hook_{name}" for name in ("debug", "dmabuf_peer_mem", "hmem", "monitor", "noop", "perf", "profile", "trace")),
)

_PROVIDER = re.compile(r"^lib[\w.-]+-fi\.so$")


def open_fabric(loader: Loader) -> None:
    """Map the libfabric that Intel MPI opens at startup, if it is found: MPI_Init fails without it."""
    library = loader.find("libmpi.so.12") or loader.find("libmpi_abi.so.1")
    place = loader.would_find(FABRIC, library) if library and not loader.find(FABRIC) else None
    if place:
        loader.dlopen(place, library)


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
            for file, path in _in_folder(loader, folder):
                name = file.removeprefix("lib").removesuffix("-fi.so").partition("-")[0]
                found.setdefault("psm2" if name == "psmx2" else name, []).append(path or "")
        return found
    names = {name: name for name in PROVIDERS if name != "psmx2"}
    names["psm2"] = "psmx2" if intel else "psm2"
    for name, file in names.items():
        path = loader.would_find(f"lib{file}-fi.so", fabric)
        if path:
            found[name] = [path]
    return found


def _in_folder(loader: Loader, folder: str) -> Iterator[tuple[str, str | None]]:
    """Yield name and path of each provider in a folder."""
    real = loader.view.resolve(folder)
    for name in loader.view.names(real) if real else ():
        if _PROVIDER.match(name):
            yield name, loader.view.resolve(f"{real}/{name}")
