import os
from pathlib import Path

import pytest

from deployer.connected.rootfs import datafolder
from deployer.contract.base.errors import DeployerError, UsageError


def folder(top: Path) -> Path:
    (top / "data" / "sub").mkdir(parents=True)
    (top / "data" / "empty").mkdir()
    for name in ("b", "sub/odd\nname", "a b", ".hidden", "sub/é"):
        (top / "data" / name).write_bytes(name.encode())
    (top / "data" / "b").chmod(0o750)
    return top / "data"


def test_files_come_sorted_with_one_of_two_modes(tmp_path: Path) -> None:
    found = datafolder.files_of(folder(tmp_path))
    assert [file.name for file in found] == [".hidden", "a b", "b", "sub/odd\nname", "sub/é"]
    assert [file.mode for file in found] == [0o644, 0o644, 0o755, 0o644, 0o644]


def test_large_files_come_in_pieces(tmp_path: Path) -> None:
    content = os.urandom(1000) * 9000
    (tmp_path / "x").write_bytes(content)
    told: list[int] = []
    found = list(datafolder.pieces(datafolder.files_of(tmp_path)[0], told.append))
    assert b"".join(found) == content
    assert [len(piece) for piece in found] == told == [datafolder.PIECE, datafolder.PIECE, len(content) - 8 * 1024**2]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("b"), "neither a file nor a folder"),
        (lambda path: path.symlink_to("sub"), "neither a file nor a folder"),
        (os.mkfifo, "neither a file nor a folder"),
        (lambda path: open(os.fsencode(path) + b"\xff", "wb").close(), r"x\\xff is not Unicode"),
    ],
)
def test_what_is_no_plain_file_is_refused(tmp_path: Path, make: object, reason: str) -> None:
    data = folder(tmp_path)
    make(data / "x")  # type: ignore[operator]
    with pytest.raises(UsageError, match=reason):
        datafolder.files_of(data)


def test_an_empty_folder_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no files"):
        datafolder.files_of(tmp_path)
    with pytest.raises(DeployerError, match="cannot read"):
        datafolder.files_of(tmp_path / "gone")


def test_a_file_that_changes_while_it_is_packed_is_told(tmp_path: Path) -> None:
    data = folder(tmp_path)
    found = datafolder.files_of(data)
    (data / "b").write_bytes(b"longer than before")
    with pytest.raises(UsageError, match="changed while it was packed"):
        list(datafolder.pieces(found[2], lambda _: None))
