"""Libraries that are opened by name at run time: the libfabric of Intel MPI, and libfabric's providers.

No file shows that Intel MPI opens libfabric, or which providers libfabric loads. tests/integration/test_rules.py
compares both with an LD_DEBUG trace of a real run.
"""

import re
from collections.abc import Mapping

from deployer.connected.linker.loader import Loader
from deployer.connected.linker.starts.words import UnknownWord

FABRIC = "libfabric.so.1"

#: Names that libfabric requests from the loader if FI_PROVIDER_PATH is not set: upstream's, and two of Intel's.
PROVIDERS = (
    *("coll", "cxi", "efa", "lnx", "lpp", "mlx", "net", "opx", "psm2", "psm3", "psmx2", "rxd", "rxm", "shm", "sm2"),
    *("sockets", "tcp", "ucx", "udp", "usnic", "verbs"),
    *(f"hook_{name}" for name in ("debug", "dmabuf_peer_mem", "hmem", "monitor", "noop", "perf", "profile", "trace")),
)

_PROVIDER = re.compile(r"^lib[\w.-]+-fi\.so$")


def open_fabric(loader: Loader) -> None:
    """Map the libfabric that Intel MPI opens at startup, if it is found; without it, MPI_Init fails."""
    library = loader.find("libmpi.so.12") or loader.find("libmpi_abi.so.1")
    place = loader.would_find(FABRIC, library) if library and not loader.find(FABRIC) else None
    if place:
        loader.dlopen(place, library)


def providers(loader: Loader, environment: Mapping[str, str], intel: bool) -> dict[str, list[str]] | None:
    """Return the files of libfabric's providers, by provider; None if libfabric is not mapped or its path is unknown.

    It opens every provider in the folders of FI_PROVIDER_PATH. If that is not set, it requests one name per provider
    from the loader; for psm2, that name differs in Intel's own build (``intel``).
    """
    fabric = loader.find(FABRIC)
    given = environment.get("FI_PROVIDER_PATH")
    if fabric is None or isinstance(given, UnknownWord):
        return None
    paths: dict[str, list[str]] = {}
    if given:
        for folder in given.split(":"):
            for file in filter(_PROVIDER.match, loader.view.names(folder)):
                name = file.removeprefix("lib").removesuffix("-fi.so").partition("-")[0]
                path = loader.view.resolve(f"{folder}/{file}")
                paths.setdefault("psm2" if name == "psmx2" else name, []).append(path or "")
        return paths
    names = {name: name for name in PROVIDERS if name != "psmx2"}
    names["psm2"] = "psmx2" if intel else "psm2"
    for name, file in names.items():
        path = loader.would_find(f"lib{file}-fi.so", fabric)
        if path:
            paths[name] = [path]
    return paths
