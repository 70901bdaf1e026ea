"""Merge layers into one root filesystem, following the rules of container runtimes.

The tree is in memory. Folders are dicts; other entries are nodes, and a node with several names is a hard link. The
rules come from the OCI image specification ("Applying Changesets"):

- an entry replaces an earlier entry of the same name, but a folder that replaces a folder keeps its content;
- whiteouts and opaque folders hide entries of lower layers, but never of their own layer, in any order;
- if a parent is a symbolic link, it is followed inside the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deployer.connected.rootfs.entries import FileContent, FileEntry, shown
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import FOLDER, HARDLINK, SYMLINK

#: The prefix that marks a name as deleted by a layer.
WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_META = b".wh..wh."  # internal files of AUFS
_MAX_LINKS = 40
_MAX_PATH = 4096
#: The maximum bytes of memory for the tree, and the measured bytes per entry besides its names: about 400,000 files.
_MAX_TREE = 340_000_000
_ENTRY = 700


class TreeNode:
    """A file, link, device or folder, with the fields of FileEntry. Only folders have ``children``."""

    __slots__ = ("attributes", "children", "data", "kind", "mode", "mtime", "owned", "target")

    def __init__(self, entry: FileEntry) -> None:
        self.kind = entry.kind
        self.mode = entry.mode
        self.mtime = entry.mtime
        self.target = entry.target
        self.data: FileContent | None = entry.data
        self.owned = entry.owned
        self.attributes = entry.attributes
        self.children: dict[bytes, TreeNode] = {}


class Rootfs:
    """A root filesystem to which layers are applied, lowest first.

    Attributes:
        made: the paths of parent folders that are not in any layer.
    """

    def __init__(self) -> None:
        self.top = _folder()
        self.made: list[bytes] = []
        self._fresh: set[bytes] = set()  # paths in the current layer
        self._size = 0  # bytes of memory for all entries that were ever in the tree
        self._whiteouts = True
        self._last: tuple[bytes, TreeNode] | None = None  # the previous entry's folder, if it was reached without links

    def apply(self, layer: Iterable[FileEntry], whiteouts: bool = True) -> None:
        """Apply one layer.

        Args:
            whiteouts: False for a root filesystem, in which names with .wh. have no special meaning.

        Raises:
            UsageError: a runtime could not apply the layer, or the tree is too large.
        """
        self._fresh, self._last = set(), None
        self._whiteouts = whiteouts
        for entry in layer:
            self._place(entry)
        self._fresh, self._last = set(), None

    def walk(self) -> Iterator[tuple[bytes, TreeNode]]:
        """Yield each path with its node, sorted by name, with each folder before its content."""
        todo = [(b"", self.top)]
        while todo:
            path, node = todo.pop()
            if path:
                yield path, node
            prefix = path + b"/" if path else b""
            todo += [(prefix + name, node.children[name]) for name in sorted(node.children, reverse=True)]

    def find(self, path: bytes) -> TreeNode | None:
        """Return the node at ``path``, or None if there is none. Links are followed inside the root."""
        found = self._follow(_names(path), make=False)
        return found[1] if found else None

    # --- one entry ---

    def _place(self, entry: FileEntry) -> None:
        above, _, name = entry.path.rpartition(b"/")
        if self._last is not None and above == self._last[0] and _is_plain(name) and len(entry.path) <= _MAX_PATH:
            followed: tuple[bytes, TreeNode] | None = self._last  # usually the same folder again
        else:
            parts = _parts(entry.path)
            if not parts:
                return  # the root itself
            name = parts[-1]
            followed = self._follow(parts[:-1], make=not self._is_whiteout(name))
            self._last = followed if followed and followed[0] == above and followed[1].kind == FOLDER else None
        if self._is_whiteout(name):
            if followed is not None and followed[1].kind == FOLDER:
                self._white_out(*followed, name)
            return
        if followed is None or followed[1].kind != FOLDER:
            raise UsageError(f"the layer has /{shown(entry.path.strip(b'/'))} below a path that is not a folder")
        where, parent = followed
        path = _joined(where, name)
        self._grow(path, entry.target)
        there = parent.children.get(name)
        if entry.kind == FOLDER and there is not None and there.kind == FOLDER:
            there.mode, there.mtime, there.owned = entry.mode, entry.mtime, entry.owned
            there.attributes = entry.attributes
        else:
            parent.children[name] = self._linked(entry, path) if entry.kind == HARDLINK else TreeNode(entry)
        self._fresh.add(path)

    def _linked(self, entry: FileEntry, path: bytes) -> TreeNode:
        parts = _parts(entry.target)
        followed = self._follow(parts[:-1], make=False)
        node = followed[1].children.get(parts[-1]) if parts and followed else None
        if node is None or node.kind == FOLDER:
            text = f"/{shown(path)} is a hard link to what is {'a folder' if node else 'not there'}: "
            text += f"/{shown(entry.target.strip(b'/'))}"
            raise UsageError(text)
        return node

    # --- whiteouts ---

    def _is_whiteout(self, name: bytes) -> bool:
        return self._whiteouts and name.startswith(WHITEOUT)

    def _white_out(self, where: bytes, folder: TreeNode, name: bytes) -> None:
        if name == _OPAQUE:
            self._hide_below(where, folder)
        elif not name.startswith(_META):
            hidden = name[len(WHITEOUT) :]
            node = folder.children.get(hidden)
            if node is not None and not self._keeps(_joined(where, hidden), node):
                del folder.children[hidden]

    def _hide_below(self, where: bytes, folder: TreeNode) -> None:
        """Remove all entries of lower layers from a folder."""
        for name, node in list(folder.children.items()):
            if not self._keeps(_joined(where, name), node):
                del folder.children[name]

    def _keeps(self, path: bytes, node: TreeNode) -> bool:
        """Return whether the current layer has this path or a path below it. Remove all other paths below it."""
        if node.kind == FOLDER:
            self._hide_below(path, node)
        return path in self._fresh or bool(node.children)

    # --- paths ---

    def _grow(self, path: bytes, target: bytes) -> None:
        """Raise UsageError if the tree would need too much memory with another entry."""
        if len(target) > _MAX_PATH:
            raise UsageError(f"the layer has a link to a path of {len(target)} bytes: /{shown(path)}")
        self._size += _ENTRY + 2 * len(path) + len(target)
        if self._size > _MAX_TREE:
            hint = "400,000 files are about the limit; pack data as data folders, or as a few large files"
            raise UsageError("the image has too many files: their names do not fit into the memory allowed", hint)

    def _follow(self, parts: list[bytes], make: bool) -> tuple[bytes, TreeNode] | None:
        """Return the path without links and its node, or None if it does not exist.

        Args:
            parts: the names in the path. ``..`` stops at the root, as in a chroot.
            make: whether to make missing folders.
        """
        done: list[tuple[bytes, TreeNode]] = [(b"", self.top)]
        todo = parts[::-1]
        links = 0
        while todo:
            name = todo.pop()
            if name == b"..":
                if len(done) > 1:
                    done.pop()
                continue
            where, folder = done[-1]
            if folder.kind != FOLDER:
                return None
            path = _joined(where, name)
            node = folder.children.get(name)
            if node is None:
                if not make:
                    return None
                node = folder.children[name] = _folder()
                self.made.append(path)
                self._grow(path, b"")
            if node.kind == SYMLINK:
                links += 1
                if links > _MAX_LINKS:
                    return None
                if node.target.startswith(b"/"):
                    del done[1:]
                todo += _names(node.target)[::-1]
            else:
                done.append((path, node))
        return done[-1]


def _is_plain(name: bytes) -> bool:
    return name not in (b"", b".", b"..") and b"\0" not in name


def _parts(path: bytes) -> list[bytes]:
    """Return the names in an entry's path. Raises UsageError if the path leads outside the root."""
    parts = _names(path)
    if b".." in parts or b"\0" in path or len(path) > _MAX_PATH:
        raise UsageError(f"the layer has an unsafe path: {shown(path[:200])}")
    return parts


def _names(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _joined(where: bytes, name: bytes) -> bytes:
    return where + b"/" + name if where else name


def _folder() -> TreeNode:
    return TreeNode(FileEntry(FOLDER, b"", 0o755))
