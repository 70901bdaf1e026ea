import hashlib
import json
from pathlib import Path

import pytest

from deployer.cli.laptop.main import main
from deployer.connected.image.bases import alone
from tests.tars import layer
from tests.unit.connected.bundle.about.test_provenance import definition


def packed(tmp_path: Path) -> tuple[Path, Path]:
    folder, bundle = definition(tmp_path / "d"), tmp_path / "b.tar"
    assert main(["pack", str(folder), "-o", str(bundle)]) == 0
    return folder, bundle


@pytest.mark.thorough
def test_the_same_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, bundle = packed(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["reproduce", str(bundle), str(folder)]) == 0
    assert "reproduced: the same layer sha256:" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before
    assert main(["reproduce", str(bundle), str(folder), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["reproduced"]
    assert record["layer"] == record["layer_again"]
    assert record["files"] == record["packages"] == record["settings"] == []


@pytest.mark.thorough
def test_each_file_that_differs_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bundle = packed(tmp_path)
    other = tmp_path / "other.tar"
    other.write_bytes(layer([("bin/hello", b"hello 2\n"), ("etc/new", b""), ("etc/passwd", b"")]))
    monkeypatch.setattr(alone, "_archive", lambda *_: other)
    assert main(["reproduce", str(bundle), str(folder)]) == 3
    shown = capsys.readouterr().out
    assert "\nnot reproduced: layer sha256:" in shown
    assert "added /etc/new: unknown" in shown
    assert "changed /bin/hello: unknown" in shown


def test_a_base_that_the_bundle_does_not_carry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, bundle = packed(tmp_path)
    assert main(["reproduce", str(bundle)]) == 2
    assert f"hint: deployer reproduce {bundle} DEFINITION" in capsys.readouterr().err


def test_another_definition_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, bundle = packed(tmp_path)
    with (folder / "bundle.yaml").open("a") as stream:
        stream.write("# changed\n")
    assert main(["reproduce", str(bundle), str(folder)]) == 2
    assert "is not the definition of" in capsys.readouterr().err


def test_a_damaged_bundle_is_not_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, bundle = packed(tmp_path)
    data = bundle.read_bytes()
    bundle.write_bytes(data.replace(b"small", b"smalL", 1))
    assert hashlib.sha256(bundle.read_bytes()).digest() != hashlib.sha256(data).digest()
    assert main(["reproduce", str(bundle), str(folder)]) == 4
