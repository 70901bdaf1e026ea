"""Files that are complete under their final name or do not exist, and questions about existence.

Do not use ``os.path.exists`` and similar functions for decisions: they return False for an inaccessible path, as if it
did not exist. The functions here recognize only one kind of absence, "does not exist" (ENOENT); everything else is an
error.
"""

import errno
import fcntl
import hashlib
import io
import os
import re
import stat
from contextlib import contextmanager, suppress
from typing import IO, Callable, Iterator, List, NoReturn, Optional, Tuple

from deployer.contract.base.errors import DeployerError, SpaceError, UsageError

CHUNK = 1024 * 1024
#: A temporary file of ``published``: the final name, and eight hexadecimal digits.
_PART = re.compile(r"^\.(.+)\.[0-9a-f]{8}\.part$", re.DOTALL)
#: Bytes of a text file that is read at once, unless a smaller limit is given.
MAX_TEXT = 16 * 1024 * 1024
#: Aligned blocks of this many zero bytes are left out of a file.
HOLE = 64 * 1024
_ZEROS = bytes(HOLE)
#: F_SETPIPE_SZ of Linux's fcntl.h; Python has had a name for it since 3.10.
_SET_PIPE_SIZE = 1031
_NOT_NEEDED = getattr(os, "POSIX_FADV_DONTNEED", 4)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def published(path: str, mode: int = 0o666, flushed: bool = True, hint: Optional[str] = None) -> Iterator[IO[bytes]]:
    """Yield a new file that gets the name ``path`` only if the block ends without an error.

    The temporary file is in the same folder, because rename is atomic only within a file system. It is removed after a
    failure; after a kill, ``reap_parts`` removes it. The file is flushed to disk before it is renamed.

    Args:
        mode: subject to the umask.
        flushed: False: the caller calls ``flush`` later, and copes with a damaged file after a power failure.
        hint: as in ``errors_named``.

    Raises:
        UsageError: ``path`` is a folder.
        DeployerError: as ``errors_named`` raises.
    """
    check_not_folder(path)
    folder = os.path.dirname(os.path.abspath(path))
    with errors_named("write " + path, hint):
        os.makedirs(folder, exist_ok=True)
        descriptor, temporary = _new_part(folder, os.path.basename(path))
    try:
        with errors_named("write " + path, hint):
            with io.open(descriptor, "w+b") as stream:
                yield stream
                stream.flush()
                if flushed:
                    os.fsync(stream.fileno())
            os.chmod(temporary, mode & ~umask())
            os.replace(temporary, path)
    except BaseException:
        if lexists(temporary):
            os.unlink(temporary)
        raise


def check_not_folder(path: str) -> None:
    """Raise UsageError if a folder with the file's name prevents writing it, or as ``errors_named`` does."""
    with errors_named("write " + path), suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            raise UsageError(f"cannot write {path}: it is a folder", "give the path of a file")


def flush(path: str) -> None:
    """Flush a file to disk. If that fails, the file is removed, because its content may be lost."""
    with errors_named("write " + path), open_regular(path) as stream:
        try:
            os.fsync(stream.fileno())
        except OSError:
            os.unlink(path)
            raise


def begin_flush(descriptor: int, offset: int, size: int) -> None:
    """Let the kernel begin to write a range of an open file to disk, so that a later flush is short."""
    if hasattr(os, "posix_fadvise"):  # macOS has no such call
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, size, _NOT_NEEDED)  # this does not wait


def part_of(path: str) -> str:
    """Return a name for a temporary file of ``path``, which ``reap_parts`` recognizes."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.urandom(4).hex()}.part")


def _new_part(folder: str, name: str) -> Tuple[int, str]:
    """Make a temporary file, locked while it is open; return its descriptor and path."""
    while True:
        # mkstemp does the same, but its module takes longer to import than a node needs to write its record.
        path = part_of(os.path.join(os.path.abspath(folder), name))
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        with suppress(OSError):  # a file system without locks: then nothing removes it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor, path
        os.close(descriptor)  # it was removed as abandoned between the two steps


def reap_parts(path: str) -> None:
    """Remove temporary files left by killed writers of ``path`` or of another .tar file beside it."""
    folder, name = os.path.split(os.path.abspath(path))
    for entry in names(folder):
        part = _PART.match(entry)
        if part and (part.group(1) == name or part.group(1).endswith(".tar")):
            with suppress(OSError):  # another user's, or just renamed
                _reap(os.path.join(folder, entry))


def _reap(path: str) -> None:
    """Remove a temporary file unless its writer is alive and thus holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(state, os.lstat(path)):
                os.unlink(path)
    finally:
        os.close(descriptor)


def write_sparse(descriptor: int, content: memoryview, offset: int) -> int:
    """Write ``content`` at ``offset`` of an open file that is empty there; return how many bytes were written.

    Blocks of zeros are left out: they become holes, which take no space. The caller sets the file's size.
    """
    if len(content) < HOLE:
        return _write_all(descriptor, content, offset)
    written = begun = 0
    for at in range(0, len(content), HOLE):
        block = content[at : at + HOLE]
        if len(block) == HOLE and not block[0] and not block[-1] and bytes(block) == _ZEROS:
            written += _write_all(descriptor, content[begun:at], offset + begun)
            begun = at + HOLE
    return written + _write_all(descriptor, content[begun:], offset + begun)


def _write_all(descriptor: int, content: memoryview, offset: int) -> int:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)
    return done


def status(path: str, follow: bool = True) -> Optional[os.stat_result]:
    """Return the state of ``path``; None if it does not exist. With ``follow``, a final link counts as its target.

    Raises:
        UsageError: the path cannot be accessed for any other reason, for instance a folder without search permission.
    """
    try:
        return os.stat(path) if follow else os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse_unseen(path, error)


def exists(path: str) -> bool:
    """Return whether ``path`` leads to something. Raises as ``status`` does."""
    return status(path) is not None


def lexists(path: str) -> bool:
    """Return whether ``path`` exists, even as a link to nothing. Raises as ``status`` does."""
    return status(path, follow=False) is not None


def is_file(path: str) -> bool:
    """Return whether ``path`` leads to a regular file. Raises as ``status`` does."""
    state = status(path)
    return state is not None and stat.S_ISREG(state.st_mode)


def is_folder(path: str) -> bool:
    """Return whether ``path`` leads to a folder. Raises as ``status`` does."""
    state = status(path)
    return state is not None and stat.S_ISDIR(state.st_mode)


def is_link(path: str) -> bool:
    """Return whether ``path`` itself is a symbolic link. Raises as ``status`` does."""
    state = status(path, follow=False)
    return state is not None and stat.S_ISLNK(state.st_mode)


def names(folder: str) -> List[str]:
    """Return the sorted names in ``folder``, empty if it does not exist. Raises UsageError if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        refuse_unseen(folder, error)


def refuse_unseen(path: str, error: OSError) -> NoReturn:
    """Raise UsageError for a path that cannot be accessed although it may exist."""
    hint = "check the access rights of its folders"
    raise UsageError(f"cannot access {path}: {error.strerror or error}", hint) from error


def append(path: str, data: bytes) -> None:
    """Append to the regular file ``path`` in one write, and set its time to now. Raises OSError, also for a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(path, "ab", buffering=0, opener=lambda name, _: os.open(name, flags, 0o666)) as stream:
        stream.write(data)
        os.utime(stream.fileno())


def write_text(path: str, text: str, mode: int = 0o666) -> None:
    """Write ``text`` (UTF-8) under the name ``path``, atomically.

    Bytes of the command line that are not text in this locale are written unchanged.
    """
    write_bytes(path, text.encode("utf-8", "surrogateescape"), mode)


def write_bytes(path: str, data: bytes, mode: int = 0o666) -> None:
    """Write ``data`` under the name ``path``, as ``published``."""
    with published(path, mode) as stream:
        stream.write(data)


def open_regular(path: str, buffering: int = -1, piped: bool = False, follow: bool = True) -> IO[bytes]:
    """Return the regular file ``path``, open for reading; the caller closes it.

    Args:
        piped: also accept a pipe, for a file that a user named on the command line, as by ``<(...)``. It can be read
            only once.
        follow: False: also refuse a link, for a file that a job wrote.

    Raises:
        OSError: it is anything else. A pipe among a folder's files would block its reader forever.
    """
    special = (0 if piped else os.O_NONBLOCK) | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, os.O_RDONLY | special | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not (stat.S_ISREG(mode) or (piped and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return io.open(descriptor, "rb", buffering=buffering)
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: str, hint: str = "", limit: int = MAX_TEXT, piped: bool = False) -> str:
    """Return the text of ``path``.

    Args:
        hint: the remedy in errors.
        limit: bytes.
        piped: as in ``open_regular``.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or has more than ``limit`` bytes.
    """
    try:
        return read_bytes(path, hint, limit, piped).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", hint) from None


def read_bytes(path: str, hint: str = "", limit: int = MAX_TEXT, piped: bool = False, follow: bool = True) -> bytes:
    """Return the bytes of ``path``; arguments are those of ``open_regular``, errors those of ``read_text``."""
    try:
        with open_regular(path, piped=piped, follow=follow) as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error
    if len(data) > limit:
        raise UsageError("%s has more than the %d bytes allowed" % (path, limit), hint)
    return data


def sha256_file(path: str, advance: Callable[[int], None] = lambda _: None) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal; ``advance`` gets the number of bytes of each piece."""
    with errors_named("read " + path), open_regular(path) as stream:
        return sha256(stream, advance)


def sha256(stream: IO[bytes], advance: Callable[[int], None] = lambda _: None) -> str:
    """Return the SHA-256 of the rest of a stream, as ``sha256_file``."""
    digest = hashlib.sha256()
    for chunk in iter(lambda: stream.read(CHUNK), b""):
        digest.update(chunk)
        advance(len(chunk))
    return digest.hexdigest()


#: Errors in removing a folder that modes can cause, or another process that has just made a file there.
_BY_MODE = (errno.EACCES, errno.EPERM, errno.ENOTEMPTY, errno.EEXIST)


def remove_tree(path: str) -> None:
    """Remove a folder, also if it contains read-only folders; a missing path is not an error.

    Modes in another user's folder are left alone: these paths could be led elsewhere while they are used.
    """
    import shutil  # like tempfile, only where it is needed: every start imports this module

    def make_writable(function, name, info):  # type: ignore[no-untyped-def]
        error = info[1] if isinstance(info, tuple) else info
        if isinstance(error, FileNotFoundError):
            return
        if not ours or error.errno not in _BY_MODE:
            raise error
        if name != path:  # never change the parent folder's mode: as root this would close /tmp to all others
            os.chmod(os.path.dirname(name), 0o700)
        if stat.S_ISDIR(os.lstat(name).st_mode):
            os.chmod(name, 0o700)
            shutil.rmtree(name, onerror=make_writable)
        else:
            function(name)

    if lexists(path):
        ours = is_own(path)
        try:
            shutil.rmtree(path, onerror=make_writable)
        except RecursionError:  # it calls itself for each nested folder
            if not ours:
                raise PermissionError(errno.EPERM, "another user's folders are too deep", path) from None
            _bring_up(path)
            shutil.rmtree(path, onerror=make_writable)


def is_own(path: str) -> bool:
    """Return whether ``path`` has the same owner as files that this user creates beside it."""
    state = status(path, follow=False)
    if state is None:
        return False
    return state.st_uid == os.geteuid() or state.st_uid == owner_of_new(os.path.dirname(path) or ".")


def owner_of_new(parent: str) -> Optional[int]:
    """Return the owner of files that this user creates in a folder; NFS servers may set another owner (all_squash)."""
    path = os.path.join(parent, f".removing-{os.urandom(8).hex()}")
    with suppress(OSError):
        os.mkdir(path)
        try:
            return os.lstat(path).st_uid
        finally:
            with suppress(OSError):
                os.rmdir(path)
    return None


def _bring_up(top: str) -> None:
    """Move each folder below ``top`` into ``top``, so that no folder is deeper and no path is too long."""
    todo = [entry.name for entry in os.scandir(top) if entry.is_dir(follow_symlinks=False)]
    while todo:
        folder = os.path.join(top, todo.pop())
        os.chmod(folder, 0o700)
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                name = f".removing-{os.urandom(8).hex()}"
                os.rename(entry.path, os.path.join(top, name))
                todo.append(name)


class Window(io.RawIOBase):
    """A part of an open file as a separate readable file: ``size`` bytes from ``start``. The file stays open."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._position = start
        self._end = start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer):  # type: ignore[no-untyped-def]
        data = os.pread(self._descriptor, min(len(buffer), self._end - self._position), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


@contextmanager
def errors_named(action: str, hint: Optional[str] = None) -> Iterator[None]:
    """Convert an OSError in the block: SpaceError for a full disk or quota, else DeployerError."""
    try:
        yield
    except OSError as error:
        raise_named(error, action, hint)


def raise_named(error: OSError, action: str, hint: Optional[str] = None) -> NoReturn:
    """Raise ``error`` as a DeployerError; ``action`` completes "cannot ...", for instance "write FILE"."""
    if error.errno in _NO_SPACE:
        hint = hint or "free some space, or choose another folder"
        raise SpaceError(f"cannot {action}: {error.strerror}", hint) from error
    if error.errno == errno.ENAMETOOLONG:
        hint = "choose a folder with a shorter path"
        raise UsageError(f"cannot {action}: {error.strerror}", hint) from error
    raise DeployerError(f"cannot {action}: {error.strerror or error}", hint or "") from error


def umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    current = os.umask(0)
    os.umask(current)
    return current


def enlarge_pipe(descriptor: int) -> None:
    """Let a pipe hold 1 MiB, so that its two ends wait less for each other. If that fails, nothing is lost."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, _SET_PIPE_SIZE, 1024 * 1024)
