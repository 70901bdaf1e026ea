"""The entry point of a rank and of its probe, in the first bytes of deployer.pyz (``contract.base.first_bytes``).

Everything else is imported from the zip file, as usual. No bytecode is kept: bytecode that other ranks can write cannot
be trusted, and these modules compile in a few ms.
"""

import os
import sys

MYPY = False
if MYPY:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Dict, List, Optional

_PACKAGE = "/__init__.py"


class RankModules:
    """Finds and loads the modules of a rank."""

    def __init__(self, archive: str, parts: "List[bytes]") -> None:
        self._sources: "Dict[str, bytes]" = {}
        self._paths: "Dict[str, str]" = {}
        for part in parts:
            if not part:
                break
            path, _, source = part.partition(b"\n")
            file = path.decode()
            is_package = file.endswith(_PACKAGE)
            name = file[: -len(_PACKAGE) if is_package else -len(".py")].replace("/", ".")
            self._sources[name], self._paths[name] = source, archive + "/" + file

    def find_spec(self, name: str, *_: "Any") -> "Optional[ModuleSpec]":
        """Return the spec of a module; None if it is not here."""
        path = self._paths.get(name)
        if path is None:
            return None
        is_package = path.endswith(_PACKAGE)
        # The class comes from an existing spec, because importing importlib.machinery is slow.
        spec = type(sys.__spec__)(name, self, origin=path, is_package=is_package)  # type: ignore[arg-type]
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(path[: -len(_PACKAGE)])
        return spec

    def create_module(self, spec: "Any") -> None:
        """Return None, so that Python creates the module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module."""
        name = module.__name__
        exec(compile(self._sources[name], self._paths[name], "exec", dont_inherit=True), module.__dict__)  # noqa: S102


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, RankModules(sys.argv[1], globals()["parts"][1:]))

    if sys.argv[2] == "probe":
        from deployer.site.rank.probe import main

        # MPICH disconnects from its launcher not in MPI_Finalize but when the process exits (atexit in MPIR_pmi_init).
        # Without this, Hydra kills the other ranks.
        sys.exit(main(sys.argv[3:]))

    from deployer.site.rank.rank import main

    os._exit(main(sys.argv[3:]))  # at once: there is nothing to clean up
