"""udocker in mode P1 (proot) from the bundle's kit, for sites without user namespaces.

The engine's ``start.py`` corrects behaviour that udocker's options cannot change: see its docstring. proot cannot make
anything read-only, so the files of an installed image with a kit have read-only modes (``deployer.site.install.kit``).
All processes on a node share the node's namespaces.
"""

import os
from typing import List, Optional

from deployer.contract.base.shell import Text, Value
from deployer.site.container.runtimes.interface import Container, Here, Runtime, globs
from deployer.system import files

#: The program in the engine's folder.
START = "run"


class Udocker(Runtime):
    """The container's files are read-only by mode; binds are writable; /tmp, /dev, /proc and /sys are the host's."""

    def starter(self, engine: Value) -> Value:
        return engine + "/" + START

    def options(self, container: Container) -> List[Text]:
        return [
            self.starter(container.engine),
            *("--pass=" + name for name in globs(container.passed)),
            *("--set-env=" + name + "=" + value for name, value in sorted(container.environment.items())),
            *self.binds(container.binds),
            "--cd=" + container.workdir,
        ]

    def veto(self, here: Here) -> Optional[str]:
        # A site's own udocker is not used: its version and engine differ from the kit's, the only one that was tested.
        if not files.is_file(os.path.join(here.engine, START)):
            return "the bundle was packed without udocker's kit"
        return None
