import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployer.connected.rootfs.entries import FileEntry, InMemory
from deployer.connected.rootfs.merge import Rootfs
from deployer.contract.base.errors import UsageError
from deployer.contract.base.tarformat import FILE, FOLDER, HARDLINK, SYMLINK
from tests.tars import layer, root_of

# ------------------------------------------------------------------- against layers that are applied to a real folder

path = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3).map(b"/".join)
target = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=2).map(b"/".join)
entries = st.one_of(
    path.map(lambda path: FileEntry(FOLDER, path, 0o755)),
    st.builds(
        lambda path, content: FileEntry(FILE, path, 0o644, data=InMemory(content)),
        path,
        st.binary(min_size=1, max_size=3),
    ),
    st.builds(lambda path, target: FileEntry(SYMLINK, path, 0o777, target=target), path, target),
    st.builds(lambda path, target: FileEntry(HARDLINK, path, 0o777, target=target), path, path),
)
whiteouts = st.builds(
    lambda path, opaque: FileEntry(FILE, _whiteout(path, opaque), 0, data=InMemory()), path, st.booleans()
)
layers = st.builds(
    lambda hidden, brought: hidden + brought, st.lists(whiteouts, max_size=2), st.lists(entries, max_size=7)
)


def _whiteout(path: bytes, opaque: bool) -> bytes:
    folder, name = os.path.split(path)
    return os.path.join(path, b".wh..wh..opq") if opaque else os.path.join(folder, b".wh." + name)


class Naive:
    """Applies members to a folder with system calls and nothing else; True where that was possible.

    Symbolic links of the test lead nowhere outside, so the kernel follows them as a chroot would.
    """

    def __init__(self, top: bytes) -> None:
        self.top = top

    def apply(self, member: FileEntry) -> bool:
        folder, name = os.path.split(os.path.join(self.top, member.path))
        try:
            if name.startswith(b".wh."):
                self._hide(folder, name)
                return True
            os.makedirs(os.path.realpath(folder), exist_ok=True)
            self._make(member, os.path.join(folder, name))
        except (FileExistsError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            return False
        except OSError as error:
            if error.errno == 40:  # ELOOP
                return False
            raise
        return True

    def _hide(self, folder: bytes, name: bytes) -> None:
        if not os.path.isdir(folder):
            return
        hidden = os.listdir(folder) if name == b".wh..wh..opq" else [name[len(b".wh.") :]]
        for below in hidden:
            self._remove(os.path.join(folder, below))

    def _make(self, member: FileEntry, where: bytes) -> None:
        if member.kind == HARDLINK:
            source = os.path.join(self.top, member.target)
            if not os.path.lexists(source) or (os.path.isdir(source) and not os.path.islink(source)):
                raise FileNotFoundError
            if os.path.lexists(where) and os.path.samestat(os.lstat(source), os.lstat(where)):
                return
            os.link(source, self.top + b".link", follow_symlinks=False)
            self._remove(where)
            os.rename(self.top + b".link", where)
            return
        if member.kind == FOLDER and os.path.isdir(where) and not os.path.islink(where):
            return
        self._remove(where)
        if member.kind == FOLDER:
            os.mkdir(where)
        elif member.kind == SYMLINK:
            os.symlink(member.target, where)
        else:
            Path(os.fsdecode(where)).write_bytes(member.data.read(0, 10))

    def _remove(self, where: bytes) -> None:
        if os.path.isdir(where) and not os.path.islink(where):
            shutil.rmtree(where)
        elif os.path.lexists(where):
            os.unlink(where)

    def tree(self) -> dict[bytes, Any]:
        found: dict[bytes, Any] = {}
        names: dict[int, bytes] = {}
        for folder, folders, files in os.walk(self.top):
            for name in sorted(folders + files):
                where = os.path.join(folder, name)
                path = os.path.relpath(where, self.top)
                if os.path.islink(where):
                    found[path] = os.readlink(where)
                elif os.path.isdir(where):
                    found[path] = None
                else:
                    found[path] = Path(os.fsdecode(where)).read_bytes(), names.setdefault(os.lstat(where).st_ino, path)
        return found


def tree(root: Rootfs) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {}
    names: dict[int, bytes] = {}
    # The same order as os.walk's, so that the first name of a file is the same: top down, not depth first.
    for path, node in sorted(root.walk(), key=lambda item: item[0]):
        if node.kind == FOLDER:
            found[path] = None
        elif node.kind == SYMLINK:
            found[path] = node.target
        else:
            found[path] = node.data.read(0, 10), names.setdefault(id(node), path)
    return found


def groups(found: dict[bytes, Any]) -> dict[bytes, Any]:
    """Return a tree with each file's names as a set in place of its first."""
    names: dict[bytes, set[bytes]] = {}
    for path, what in found.items():
        if isinstance(what, tuple):
            names.setdefault(what[1], set()).add(path)
    return {
        path: (what[0], frozenset(names[what[1]])) if isinstance(what, tuple) else what for path, what in found.items()
    }


@pytest.mark.thorough
@given(st.lists(layers, max_size=4))
@settings(max_examples=200, deadline=None)
def test_layers_come_out_as_on_a_real_folder(drawn: list[list[FileEntry]]) -> None:
    root = Rootfs()
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        naive = Naive(os.path.join(os.fsencode(folder), b"root"))
        os.mkdir(naive.top)
        for members in drawn:
            done = []
            for member in members:
                if not naive.apply(member):
                    with pytest.raises(UsageError):
                        root.apply([*done, member])
                    return
                done.append(member)
            root.apply(members)
            assert groups(tree(root)) == groups(naive.tree())


# ------------------------------------------------------------------------------------------------ by name


def paths(root: Rootfs) -> list[str]:
    return [os.fsdecode(path) for path, _ in root.walk()]


def test_whiteouts_hide_what_is_below_wherever_they_stand_in_their_layer() -> None:
    lower = layer([("d", None), ("d/old", b"1"), ("d/sub", None), ("d/sub/old", b"1"), ("gone", b"1")])
    marks = [("d/.wh..wh..opq", b""), (".wh.gone", b"")]
    new = [("d", None), ("d/new", b"2"), ("d/sub", None), ("d/sub/new", b"2"), ("gone", b"2")]
    for upper in (marks + new, new + marks):
        assert paths(root_of(lower, layer(upper))) == ["d", "d/new", "d/sub", "d/sub/new", "gone"]


def test_a_folder_becomes_a_link_and_a_folder_again() -> None:
    layers = [
        layer([("d", None), ("d/x", b"1"), ("e", None)]),
        layer([("d", "-> e")]),
        layer([("d/y", b"2")]),
        layer([("d", None), ("d/z", b"3")]),
    ]
    assert paths(root_of(*layers[:2])) == ["d", "e"]
    assert paths(root_of(*layers[:3])) == ["d", "e", "e/y"]
    assert paths(root_of(*layers)) == ["d", "d/z", "e", "e/y"]


def test_links_are_followed_inside_the_root() -> None:
    root = root_of(
        layer([("usr/lib", None), ("lib", "-> ../../usr/lib"), ("abs", "-> /usr")]), layer([("lib/x", b"1")])
    )
    assert paths(root) == ["abs", "lib", "usr", "usr/lib", "usr/lib/x"]
    found = root.find(b"/abs/lib/../lib/x")
    assert found.kind == FILE


def test_a_hard_link_across_layers_keeps_the_file_that_it_named() -> None:
    root = root_of(layer([("a", b"old")]), layer([("b", "= a")]), layer([("a", b"new")]), layer([("c", "= b")]))
    content = {os.fsdecode(path): node.data.read(0, 9) for path, node in root.walk() if node.data}
    assert content == {"a": b"new", "b": b"old", "c": b"old"}
    assert root.find(b"b") is root.find(b"c")


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([("f", b""), ("f/x", b"")], "below a path that is not a folder"),
        ([("l", "-> l"), ("l/x", b"")], "below a path that is not a folder"),
        ([("x", "= gone")], "not there"),
        ([("d", None), ("x", "= d")], "a folder"),
        ([("d/../../x", b"")], "unsafe path"),
    ],
)
def test_what_no_runtime_could_make(entries: list[tuple[str, Any]], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        root_of(layer(entries))
