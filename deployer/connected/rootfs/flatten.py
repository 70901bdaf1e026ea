"""flatten: convert a root filesystem into the entries of one layer, in the normal form.

Metadata that varies without meaning is set to constants. Entries that an unprivileged user cannot unpack are removed.
All changes are listed and counted for the manifest. The same root filesystem gives the same entries, whether it comes
from an engine, an archive or a folder.
"""

import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence

from deployer.connected.rootfs import machine, unused
from deployer.connected.rootfs.entries import DEVICE, SOCKET, FileContent, InMemory, check_path, shown
from deployer.connected.rootfs.merge import WHITEOUT, Rootfs, TreeNode
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, MTIME, SYMLINK, TarEntry
from deployer.contract.site import plan

#: Kinds that an unprivileged user cannot make, or that have no meaning on another machine. Files whose names begin with
#: .wh. are dropped as well, because other programs would treat them as whiteouts.
_DROPPED = {DEVICE: "devices_dropped", SOCKET: "sockets_dropped"}
#: The meaning of each kind of change, for people who did not make the bundle. The part before the colon is short.
CHANGES = {
    "caches_dropped": "files of package managers' caches left out: apt, dnf, pip, conda",
    "capabilities": "file capabilities and other extended attributes removed",
    "copies_linked": "large copies of a file made hard links to it",
    "devices_dropped": "device files left out",
    "engine_files_dropped": "files of the engine or the kernel left out: /.dockerenv, /dev, /proc, /sys",
    "engine_files_reset": "files of the engine emptied: /etc/hosts, /etc/resolv.conf, ...",
    "for_compilers_dropped": "headers and static libraries left out: the image has no compiler",
    "folders_made": "folders added: they contain files, but were not in the image",
    "manuals_dropped": "manuals and translations left out",
    "modes": "permissions changed: the owner can read and write",
    "mount_points": "mount points added: empty folders, over which the site binds its own",
    "owners": "owners replaced by root",
    "password_days": "days of password changes in /etc/shadow set to a constant: otherwise each build differs",
    "pyc_repaired": "times of compiled Python files corrected: in the header, to the source's time",
    "pyc_stale": "outdated compiled Python files kept: older than their source, and not used by Python",
    "setuid": "setuid and setgid bits removed: no program can run with the rights of another user",
    "sockets_dropped": "sockets left out",
    "tests_dropped": "files of Python packages' own tests left out",
    "whiteouts_dropped": "files named .wh.* left out: other programs read these names as deletions",
}
#: Folders that the kernel or the runtime fills. Files left there by an engine are not part of the image.
_KERNEL_FOLDERS = (b"dev", b"proc", b"sys")
_ENGINE_FILES = (b".dockerenv",)
#: Files that an engine empties or makes in each container. Only in these does an export differ from the image's layers.
_ENGINE_FILLS = (b"etc/hostname", b"etc/hosts", b"etc/resolv.conf")
_MTAB = TarEntry(SYMLINK, b"etc/mtab", 0o777, 0, b"/proc/mounts")
_CANARY, _CANARY_TEXT = os.fsencode(plan.CANARY).strip(b"/"), plan.CANARY_TEXT.encode()
#: Charliecloud bind-mounts the host's folders over these, and fails if the image lacks one.
_NEEDED_FOLDERS = (*_KERNEL_FOLDERS, b"tmp", b"etc", b"home", b"root")
_NEEDED_FILES = (b"etc/passwd", b"etc/group")

#: Each line has the day on which the password was last changed (shadow(5)), in as many digits as in the constant.
_SHADOW, _DAYS = (b"etc/shadow", b"etc/shadow-"), re.compile(rb"^([^:\n]*:[^:\n]*:)\d{5}:", re.MULTILINE)
_PYC_HEADER = struct.Struct("<HHIII")  # magic, "\r\n", flags, source's mtime, source's size (PEP 552)
_FIRST_PEP552_MAGIC = 3390  # Python 3.7

#: Header fields of little-endian ELF files: magic, byte order, machine (System V ABI, "ELF Header").


class FlattenedRootfs:
    """A root filesystem in the normal form.

    Attributes:
        changed: the changed paths by kind of change. They are complete once all contents have been read, because .pyc
            headers are repaired while they are read.
    """

    def __init__(self, root: Rootfs, lean: bool = False) -> None:
        """Convert ``root`` to the normal form.

        Args:
            lean: leave out what few jobs use, too (``unused``).

        Raises:
            UsageError: it is not a root filesystem, or a mount point cannot be made.
        """
        self.changed: dict[str, list[bytes]] = defaultdict(list)
        self._root = root
        self._entries: dict[bytes, TarEntry] = {}
        self._nodes: dict[bytes, TreeNode] = {}  # nodes of files with content
        self.changed["folders_made"] += root.made
        self._check_is_root()
        self._take(lean)
        self._make_mount_points()

    @property
    def changes(self) -> dict[str, int]:
        """Return how many paths were changed, by kind of change."""
        return {kind: len(paths) for kind, paths in sorted(self.changed.items()) if paths}

    def entries(self) -> Iterator[TarEntry]:
        """Yield all entries in the layer's order: folders, files, then links, each sorted by path."""
        for kinds in ((FOLDER,), (FILE,), (HARDLINK, SYMLINK)):
            yield from sorted((e for e in self._entries.values() if e.kind in kinds), key=lambda e: e.path)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(entry.size for entry in self._entries.values())

    def content(self, entry: TarEntry) -> FileContent:
        """Return a file's content, with the repaired header for a .pyc."""
        if entry.path == _CANARY:
            return InMemory(_CANARY_TEXT)
        node = self._nodes.get(entry.path)
        if node is None or node.data is None:
            return InMemory()  # a file that flatten made
        if entry.path in _SHADOW:
            self.changed["password_days"].append(entry.path)
            return InMemory(_DAYS.sub(rb"\g<1>10000:", node.data.read(0, node.data.size)))
        if entry.path.endswith(b".pyc"):
            return InMemory(self._repaired(entry.path, node.data.read(0, node.data.size)))
        return node.data

    def find_program(self, name: str, search: Sequence[str]) -> str | None:
        """Return the absolute path in the image of the first program ``name`` in the folders of ``search``."""
        for folder in search:
            path = os.path.join("/", folder, name)
            node = self._root.find(os.fsencode(path))
            if node is not None and node.kind == FILE:
                return path
        return None

    def find(self, path: bytes) -> TarEntry | None:
        """Return the entry at a path relative to the root without following links. For a hard link, return its file."""
        entry = self._entries.get(path)
        return self._entries.get(entry.target) if entry and entry.kind == HARDLINK else entry

    def architecture(self) -> str:
        """Return the architecture of its programs, as OCI names it, or "unknown"."""
        return machine.architecture(self._root)

    # --- reading the root filesystem ---

    def _take(self, lean: bool) -> None:
        groups: dict[int, list[bytes]] = {}
        rules = unused.rules(self._root, lean)
        for path, node in self._root.walk():
            check_path(path)
            top, _, below = path.partition(b"/")
            if path in (*_ENGINE_FILES, _CANARY) or (top in _KERNEL_FOLDERS and (below or node.kind != FOLDER)):
                self.changed["engine_files_dropped"].append(path)
            elif node.kind != FOLDER and (match := rules.match(path)):
                self.changed[str(match.lastgroup)].append(path)
            elif node.kind in _DROPPED:
                self.changed[_DROPPED[node.kind]].append(path)
            elif b"/" + WHITEOUT in b"/" + path:
                self.changed["whiteouts_dropped"].append(path)
            elif path in _ENGINE_FILLS and node.kind != FOLDER:
                self._note_reset(path, TarEntry(FILE, path, 0o644), node)
            elif path == _MTAB.path and node.kind != FOLDER:
                self._note_reset(path, _MTAB, node)
            elif node.kind == FILE and node.data is not None:
                group = groups.setdefault(id(node), [])
                group.append(path)
                self._nodes[path] = node
            else:
                self._entries[path] = self._entry(path, node)
        if lean:
            names = [paths[0] for paths in groups.values() if not paths[0].endswith(b".pyc")]  # their headers change
            for copy, earlier in unused.copies(map(self._nodes.__getitem__, names)):
                self.changed["copies_linked"] += groups[id(copy)]
                groups[id(earlier)] += groups.pop(id(copy))
        for first, *others in map(sorted, groups.values()):  # the other names of a file are hard links to its first
            self._entries[first] = self._entry(first, self._nodes[first])
            self._entries.update({path: TarEntry(HARDLINK, path, 0o777, 0, first) for path in others})

    def _entry(self, path: bytes, node: TreeNode) -> TarEntry:
        if node.kind == FOLDER:
            mode = 0o755 if path in _KERNEL_FOLDERS else (node.mode & 0o777) | 0o700
            entry = TarEntry(FOLDER, path, mode)
        elif node.kind == SYMLINK:
            entry = TarEntry(SYMLINK, path, 0o777, 0, node.target)
        else:
            execute = 0o100 if node.mode & 0o111 else 0
            size = node.data.size if node.data else 0
            entry = TarEntry(FILE, path, (node.mode & 0o777) | 0o600 | execute, size)
        for change, happened in (
            ("owners", node.owned),
            ("setuid", node.mode & 0o6000 and node.kind != SYMLINK),
            ("modes", node.kind != SYMLINK and entry.mode != node.mode & 0o1777),
            ("capabilities", node.attributes),
        ):
            if happened:
                self.changed[change].append(path)
        return entry

    def _note_reset(self, path: bytes, entry: TarEntry, node: TreeNode) -> None:
        mode = node.mode & 0o777 if node.kind == FILE else 0o777
        if TarEntry(node.kind, path, mode, node.data.size if node.data else 0, node.target) != entry:
            self.changed["engine_files_reset"].append(path)

    def _check_is_root(self) -> None:
        names = self._root.top.children
        if any(path in names for path in (b"bin", b"usr", b"lib", b"sbin")):
            return
        if b"manifest.json" in names or b"oci-layout" in names:
            hint = "give the image itself with --archive"
            raise UsageError("it holds an image's layers, not a root filesystem", hint)
        found = ", ".join(shown(name) for name in sorted(names)[:5])
        text = f"it is not a root filesystem: it has none of /bin, /usr, /lib, /sbin, but {found or 'nothing'}"
        raise UsageError(text)

    # --- making missing entries ---

    def _make_mount_points(self) -> None:
        for path in _NEEDED_FOLDERS:
            self._make_folder(path)
        for path in (*_NEEDED_FILES, *_ENGINE_FILLS, *(os.fsencode(name).strip(b"/") for name in plan.MOUNT_FILES)):
            self._make_folder(path.rpartition(b"/")[0])
            self._make(TarEntry(FILE, path, 0o644))
        self._make(_MTAB)
        self._make(TarEntry(FILE, _CANARY, 0o644, len(_CANARY_TEXT)))
        for name in plan.MOUNT_FOLDERS:
            self._make_folder(os.fsencode(name).strip(b"/"))

    def _make(self, entry: TarEntry) -> None:
        if entry.path not in self._entries:
            self._entries[entry.path] = entry
            self.changed["mount_points"].append(entry.path)

    def _make_folder(self, path: bytes) -> None:
        parts = path.split(b"/")
        for count in range(1, len(parts) + 1):
            part = b"/".join(parts[:count])
            entry = self._entries.get(part)
            if entry is None:
                self._make(TarEntry(FOLDER, part, 0o755))
            elif entry.kind != FOLDER:
                text = f"/{shown(path)} must be a mount point, but /{shown(part)} is not a folder in the image"
                raise UsageError(text, "make it a folder in the Dockerfile")

    # --- .pyc ---

    def _repaired(self, path: bytes, content: bytes) -> bytes:
        """Return a .pyc whose header has its source's new modification time, if the .pyc was valid before.

        A stale .pyc stays stale. Otherwise, Python would not notice changes of the source.
        """
        folder, _, name = path.rpartition(b"/")
        if not folder.endswith(b"__pycache__") or len(content) < _PYC_HEADER.size:
            return content
        magic, newline, flags, mtime, size = _PYC_HEADER.unpack_from(content)
        source = self._nodes.get(folder[: -len(b"__pycache__")] + name.split(b".")[0] + b".py")
        if newline != 0x0A0D or magic < _FIRST_PEP552_MAGIC or flags != 0 or source is None or source.data is None:
            return content  # not a .pyc, or one that Python checks by hash or not at all
        if (mtime, size) != (source.mtime & 0xFFFFFFFF, source.data.size & 0xFFFFFFFF):
            self.changed["pyc_stale"].append(path)
            return content
        self.changed["pyc_repaired"].append(path)
        return _PYC_HEADER.pack(magic, newline, flags, MTIME, size) + content[_PYC_HEADER.size :]
