"""Files of this machine as the linker's tests read them."""

import os
import stat

from deployer.connected.linker.job_filesystem import FILE, FOLDER, LINK, SMALL
from deployer.contract.elf import dynamic
from deployer.contract.elf.dynamic import Facts
from deployer.system import file_identity


class HostFiles:
    """The files below a folder of this machine, as a root of their own."""

    def __init__(self, top: str = "/") -> None:
        self._top = top.rstrip("/")

    def kind(self, path: str) -> str | None:
        try:
            mode = os.lstat(self._top + path).st_mode
        except OSError:
            return None
        kinds = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: LINK}
        return kinds.get(stat.S_IFMT(mode))

    def target(self, path: str) -> str:
        return os.readlink(self._top + path)

    def facts(self, path: str) -> Facts | None:
        with open(self._top + path, "rb", buffering=0) as stream:
            return dynamic.facts(file_identity.reader(stream.fileno()))

    def content(self, path: str) -> bytes:
        with open(self._top + path, "rb") as stream:
            return stream.read(SMALL)

    def names(self, path: str) -> list[str]:
        try:
            return os.listdir(self._top + path)
        except OSError:
            return []
