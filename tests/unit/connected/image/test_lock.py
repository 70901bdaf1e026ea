from pathlib import Path

import pytest

from deployer.connected.image.wheelhouse import lock as locks
from deployer.connected.image.wheelhouse.lock import Lock, Pin
from deployer.connected.image.wheelhouse.target import Target
from deployer.contract.base.errors import UsageError

TARGET = Target((3, 11), (2, 36), "x86_64", {})
LOCK = Lock(
    TARGET,
    "a" * 64,
    (
        Pin("demo-x", "1.0", "b" * 64, "demo_x-1.0-py3-none-any.whl"),
        Pin("tqdm", "4.66.1", "c" * 64, "tqdm-4.66.1-py3-none-any.whl"),
    ),
    {"numpy": "1.26.4"},
)
WITH_NUMPY = TARGET._replace(packages={"numpy": "1.26.4", "other": "1"})


def test_it_is_a_requirements_file_that_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "python.lock"
    path.write_text(LOCK.text())
    assert locks.read_lock(path) == LOCK
    assert "tqdm==4.66.1 --hash=sha256:" + "c" * 64 + "  # tqdm-4.66.1-py3-none-any.whl\n" in LOCK.text()
    assert locks.read_lock(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# for: Python 3.11 on Linux x86_64 with glibc 2.36\n", ""),
        ("# requirements: sha256:", "# requirements: md5:"),
        ("tqdm==4.66.1 --hash", "tqdm>=4.66.1 --hash"),
        ("  # tqdm-4.66.1-py3-none-any.whl", ""),
        ("# tqdm-4.66.1-py3-none-any.whl", "# ../tqdm-4.66.1-py3-none-any.whl"),
        ("# tqdm-4.66.1-py3-none-any.whl", "# other-4.66.1-py3-none-any.whl"),
        ("<<<", "<<<<<<< HEAD"),
    ],
)
def test_what_we_did_not_write_is_no_lock(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "python.lock"
    text = LOCK.text() + "<<<" if old == "<<<" else LOCK.text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=r"python\.lock"):
        locks.read_lock(path)


@pytest.mark.parametrize(
    ("target", "requirements", "reason"),
    [
        (WITH_NUMPY, "a" * 64, ""),
        (WITH_NUMPY, "d" * 64, "the requirements changed"),
        (WITH_NUMPY._replace(python=(3, 12)), "a" * 64, "it is for Python 3.11 on Linux x86_64 with glibc 2.36, and"),
        (WITH_NUMPY._replace(glibc=(2, 31)), "a" * 64, "the image has Python 3.11 on Linux x86_64 with glibc 2.31"),
        (TARGET, "a" * 64, "relies on numpy 1.26.4 of the image, which has none"),
        (TARGET._replace(packages={"numpy": "2.0"}), "a" * 64, "which has 2.0"),
        (TARGET._replace(packages={"numpy": "1.26.4", "tqdm": "4"}), "a" * 64, "the image has its own tqdm 4 now"),
    ],
)
def test_drift(target: Target, requirements: str, reason: str) -> None:
    found = LOCK.drift(target, requirements)
    assert reason in found
    assert bool(found) == bool(reason)


def digest(tmp_path: Path, text: str) -> str:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    return locks.requirements_digest(path)


def test_the_digest_is_of_all_files_that_are_named(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("numpy\n-r requirements.txt\n")
    first = digest(tmp_path, "tqdm  # bars\n\n-r more.txt\n")
    assert first == digest(tmp_path, "tqdm  # bars\n\n-r more.txt\n")
    joined = digest(tmp_path, "tqdm\n-rmore.txt\n")
    assert first != joined
    (tmp_path / "more.txt").write_text("numpy<2\n")
    assert first != digest(tmp_path, "tqdm  # bars\n\n-r more.txt\n")
    assert joined != digest(tmp_path, "tqdm\n-rmore.txt\n")


def test_requirements_with_hashes_and_markers(tmp_path: Path) -> None:
    digest(
        tmp_path, "tqdm==4.66.1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nnumpy[x]>=1,<2; python_version<'4'\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tqdm\n\n-e .\n", "requirements.txt:3: the option -e is not allowed in this file"),
        ("--index-url https://x.invalid/simple\n", "the option --index-url"),
        ("x @ https://x.invalid/x-1-py3-none-any.whl\n", "x is requested by URL"),
        ("a==1 \\\n --hash=sha256:aa\ntqdm==\n", r"requirements.txt:3: 'tqdm==' is not a requirement"),
        ("./x-1-py3-none-any.whl", "is not a requirement"),
        ("-r gone.txt", "cannot read .*gone.txt"),
    ],
)
def test_what_cannot_be_locked_by_name(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        digest(tmp_path, text)
