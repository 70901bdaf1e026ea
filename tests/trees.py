"""Trees of files as data: what a layer should make, and what stands in a folder. Runs on Python 3.6."""

import os
import stat

from deployer.contract.base import tarformat
from deployer.contract.base.tarformat import FILE, FILES, FOLDER, HARDLINK, LINKS, REST, SYMLINK
from tests import bundles


def expected(entries):
    """Return {path: (kind, mode, content or target)} of (entry, content) pairs; hard links by what they lead to."""
    tree = {}
    for entry, content in entries:
        if entry.kind == HARDLINK:
            tree[entry.path] = tree[entry.target]
        else:
            mode = {FOLDER: entry.mode | 0o700, FILE: entry.mode | 0o600, SYMLINK: 0o777}[entry.kind]
            tree[entry.path] = (entry.kind, mode, entry.target if entry.kind == SYMLINK else content)
    return tree


def described(root):
    """Return the same of a folder, and check that each time is the one constant."""
    root = os.fsencode(root)
    tree = {}
    for where, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(where, name)
            state = os.lstat(path)
            assert state.st_mtime == tarformat.MTIME, path
            if stat.S_ISLNK(state.st_mode):
                found = (SYMLINK, 0o777, os.readlink(path))
            elif stat.S_ISDIR(state.st_mode):
                found = (FOLDER, stat.S_IMODE(state.st_mode), b"")
            else:
                with open(path, "rb") as stream:
                    found = (FILE, stat.S_IMODE(state.st_mode), stream.read())
            tree[os.path.relpath(path, root)] = found
    return tree


def cut(entries, chance, size):
    """Return the pieces (holds, bytes) of a layer, cut about every ``size`` bytes, longer files in several."""
    pieces = []
    for entry, content in entries:
        holds = tarformat.SECTIONS[entry.kind]
        data = bundles.stream([(entry, content)])
        room = chance.randrange(1, 2 * size)
        if pieces and pieces[-1][0] == holds and len(pieces[-1][1]) + len(data) <= room:
            pieces[-1] = (holds, pieces[-1][1] + data)
        elif entry.kind == FILE and entry.size > size:
            first = len(data) - entry.size - tarformat.padding(entry.size) + chance.randrange(size)
            pieces.append((FILES, data[:first]))
            pieces += [(REST, data[start : start + size]) for start in range(first, len(data), size)]
        else:
            pieces.append((holds, data))
    return [*pieces, (LINKS, bundles.END)]
