"""push --to for several media, plain and encrypted; the site's own receive installs them."""

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop import main as cli
from deployer.cli.site import main as site_cli
from deployer.connected.bundle import kit, medium, shipment
from deployer.connected.bundle.shipment import on_disk
from deployer.connected.transfer.push import push_to
from deployer.contract.base.errors import MissingTool, UsageError
from deployer.contract.bundle import delta
from deployer.contract.bundle.delta import Part
from deployer.contract.bundle.scan import Scan, Scanner
from deployer.system.trust.verify import begin, opened
from tests import bundles

BIG = [(f"deployer/wheels/{number}", os.urandom(400_000)) for number in range(12)]
SIZE = 5_500_000
pytestmark = pytest.mark.thorough
needs_age = pytest.mark.needs("age")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "PART_SIZE", 500_000)
    monkeypatch.setattr(shipment, "ENCRYPTED_FILE", 1_000_000)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    write: Any = bundles.write
    return write(tmp_path_factory.mktemp("bundle") / "a.tar", extra=BIG)


@pytest.fixture
def key(tmp_path: Path) -> Callable[[str], Path]:
    def make(kind: str = "ed25519") -> Path:
        path = tmp_path / f"key-{kind}"
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True)
        return path

    return make


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check_sizes(folder: Path) -> int:
    media = sorted(folder.iterdir())
    for number, one in enumerate(media, 1):
        assert one.name == str(number)
        assert sum(on_disk(Part(0, path.stat().st_size)) for path in one.iterdir()) <= SIZE
        assert f"This is medium {number} of {len(media)}." in (one / "README.txt").read_text()
        subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "SHA256SUMS"], cwd=one, check=True)
        listed = [line.split()[1] for line in (one / "SHA256SUMS").read_text().splitlines()]
        assert sorted([*listed, "SHA256SUMS"]) == contents(one)
        assert all(re.fullmatch(r"\w[\w.-]*\w", name, re.ASCII) for name in listed)  # FAT and exFAT allow these
    return len(media)


def test_numbered_media(tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to, root = tmp_path / "media", tmp_path / "root"
    assert cli.main(["push", str(bundle), "--to", str(to), "--medium-size", "5.5MB"]) == 0
    said = capsys.readouterr()
    total = check_sizes(to)
    assert total > 2
    assert f"copy each folder in {to} to the site, then there: " in said.err
    program = [sys.executable, str(to / "2" / "deployer.pyz"), "receive", "--root", str(root)]
    first = subprocess.run([*program, str(to / "2")], check=True, capture_output=True, text=True)
    assert "missing: medium 1 of" in first.stdout
    assert f"receive --root {root} DIR" in first.stderr
    subprocess.run([*program, *(str(to / str(number)) for number in range(total, 0, -1))], check=True)
    assert (root / "bundles" / "tiny-1.0.tar").read_bytes() == bundle.read_bytes()


def test_without_the_options_nothing_has_changed(tmp_path: Path, bundle: Path) -> None:
    push_to(bundle, tmp_path / "media")
    names = contents(tmp_path / "media")
    assert not [name for name in names if name.startswith("medium") or name.endswith(delta.ENCRYPTED)]
    assert "medium" not in (tmp_path / "media" / "README.txt").read_text()


@needs_age
@pytest.mark.parametrize("size", [0, SIZE])
def test_an_encrypted_medium_says_nothing(
    tmp_path: Path, bundle: Path, key: Callable[..., Path], size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    to, root, mine = tmp_path / "media", tmp_path / "root", key()
    line = (tmp_path / "key-ed25519.pub").read_text().strip()
    words = ["push", str(bundle), "--to", str(to), "--encrypt-to", line, "--encrypt-to", f"{key('rsa')}.pub"]
    assert cli.main([*words, *(["--medium-size", "5.5MB"] if size else [])]) == 0
    said = capsys.readouterr()
    assert "receive DIR --root ROOT --identity KEY" in said.err
    digest = said.out.partition("digest sha256:")[2].split()[0]
    media = sorted(to.iterdir()) if size else [to]
    if size:
        check_sizes(to)
    for one in media:
        allowed = ("deployer.pyz", "README.txt", "SHA256SUMS", "medium-", "00")
        assert all(name.startswith(allowed) for name in contents(one))
        for path in one.iterdir():
            if path.name != "deployer.pyz":
                data = path.read_bytes()
                assert not any(
                    word in data for word in (b"tiny", digest[:8].encode(), BIG[0][1][:64], b"deployer/wheels")
                )
    for kind in ("ed25519", "rsa"):
        words = ["receive", *map(str, media), "--root", str(root), "--identity", str(tmp_path / f"key-{kind}")]
        assert site_cli.main(words) == 0
    assert (root / "bundles" / "tiny-1.0.tar").read_bytes() == bundle.read_bytes()
    assert mine.exists()


@needs_age
def test_keys_that_age_refuses(tmp_path: Path, bundle: Path, key: Callable[..., Path]) -> None:
    ecdsa = f"{key('ecdsa')}.pub"
    several = tmp_path / "several"
    several.write_text(Path(ecdsa).read_text() + key().with_suffix(".pub").read_text())
    for wrong in (ecdsa, str(several), str(tmp_path / "none"), str(tmp_path / "key-ed25519"), "ssh-ed25519 AAAA", "-x"):
        with pytest.raises(UsageError, match=r"age: (error|warning): "):
            push_to(bundle, tmp_path / "media", keys=[wrong])
        assert not (tmp_path / "media").exists()


def test_media_that_are_too_small_and_wrong_sizes(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "media"
    with pytest.raises(UsageError, match=r"media of 1\.0 MB are too small") as error:
        push_to(bundle, to, size=1_000_000)
    assert cli.main(["push", str(bundle), "--to", str(to), "--medium-size", error.value.hint.split()[-1]]) == 0
    assert len(contents(to)) == len(BIG)
    with pytest.raises(UsageError, match="is not empty"):
        push_to(bundle, to, size=SIZE)
    for wrong in ("5", "5.5 XB", "-1GB", "1GiB2", "1e9GB"):
        assert cli.main(["push", str(bundle), "--to", str(to), f"--medium-size={wrong}"]) == 2
    assert "such as 700MB, 4.7GB or 32GiB" in capsys.readouterr().err
    assert cli.main(["push", str(bundle), "lab", "--medium-size", "4.7GB"]) == 2
    assert "require --to" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_after_an_error_nothing_remains(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = medium.readme

    def fails(*args: object, **more: object) -> str:
        if len(contents(tmp_path / "media")) == 2:
            raise error
        return real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(medium, "readme", fails)
    with pytest.raises(type(error)):
        push_to(bundle, tmp_path / "media", size=SIZE)
    assert not [path for path in (tmp_path / "media").rglob("*") if path.is_file()]


@needs_age
@pytest.mark.parametrize("size", [0, SIZE])
def test_an_encrypted_medium_brings_the_scan_and_age(
    tmp_path: Path, bundle: Path, key: Callable[..., Path], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = tmp_path / "README.age"
    readme.write_text("licences")
    parts = {"deployer/kit/age": Path(shutil.which("age") or ""), "deployer/kit/README.age": readme}
    monkeypatch.setattr(kit, "members", lambda *_: parts)
    with opened(str(bundle)) as stream:
        digest = begin(stream, str(bundle)).digest
    scan = Path(f"{bundle}.scan.json")
    scan.write_text(Scan(digest, "tiny:1.0", [Scanner("grype", "1", int(time.time()))], []).text())
    to, root, own = tmp_path / "media", tmp_path / "root", f"{key()}.pub"
    words = ["push", str(bundle), "--to", str(to), "--bring-age"]
    assert cli.main(words) == 2
    words += ["--encrypt-to", own, *(["--medium-size", "15MB"] if size else [])]
    assert cli.main(words) == 0
    text = scan.read_bytes()
    scan.unlink()
    media = sorted(to.iterdir()) if size else [to]
    for one in media:
        assert subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=one, check=True)
        assert "--identity KEY --age ./age" in (one / "README.txt").read_text()
        assert (one / "age.txt").read_text() == "licences"
        assert b"grype" not in (one / "bundle.scan.json.age").read_bytes()
        (one / "age").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    words = ["receive", *map(str, media), "--root", str(root), "--identity", str(tmp_path / "key-ed25519")]
    assert site_cli.main(words) == MissingTool.exit_code
    assert site_cli.main([*words, "--age", str(media[0] / "age")]) == 0
    assert [path.read_bytes() for path in (root / "scans").iterdir()] == [text]
