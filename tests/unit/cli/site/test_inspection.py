"""inspect at the site: a bundle, a medium, an installed image with and without its bundle."""

import json
import os

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import SBOM_MEMBER
from deployer.site.storage.store import Store
from tests import bundles
from tests.signing import TestKey, signed
from tests.unit.site.install.test_receive import shipment

KEY = TestKey(seed=1)
JOBS = [Job("train", ["python3", "t.py"], 2, 4, 1, "00:10:00")]


def run(capsys, *words):
    code = main.main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def data():
    return signed(bundles.build(extra=[("deployer/app/a.py", b"1" * 30)], jobs=JOBS), KEY)


@pytest.fixture
def bundle(tmp_path, data):
    path = tmp_path / "b.tar"
    path.write_bytes(data)
    return path


def test_a_bundle_a_medium_and_an_image_look_the_same(tmp_path, bundle, data, capsys):
    media = tmp_path / "media"
    media.mkdir()
    for name, content in shipment(data)[1]:
        (media / name).write_bytes(content)
    store = Store(str(tmp_path / "root"))
    code, out, _ = run(capsys, bundle)
    assert code == 0
    assert "job train: 2 nodes x 4 ranks x 1 thread: python3 t.py\n" in out
    assert "          30  deployer/app/a.py\n" in out
    assert out.endswith(f"signed by {KEY.key.fingerprint}\n")
    assert run(capsys, media) == (0, out, "")
    assert main.main(["install", str(bundle), "--keep", "--root", store.root]) == 0
    capsys.readouterr()
    installed = f"installed: {store.find('tiny').folder}\n"
    assert run(capsys, "tiny", "--root", store.root) == (0, out + installed, "")
    os.unlink(store.bundle(store.find("tiny").receipt))
    unsigned = out[: out.index("signed by")]  # nobody knows any more
    assert run(capsys, "tiny", "--root", store.root) == (0, unsigned + installed, "")


def test_as_a_record(bundle, capsys):
    record = json.loads(run(capsys, bundle, "--json")[1])
    assert (record["name"], record["keys"], record["jobs"][0]["name"]) == ("tiny", [KEY.key.fingerprint], "train")


@pytest.mark.parametrize(
    ("damage", "code"), [(lambda data: data[:-700] + b"?" + data[-699:], IntegrityError), (None, UsageError)]
)
def test_what_is_damaged_or_missing(tmp_path, bundle, data, capsys, damage, code):
    if damage:
        bundle.write_bytes(damage(data))
    code_, out, err = run(capsys, bundle if damage else "nothing", "--root", tmp_path)
    assert (code_, out) == (code.exit_code, "")
    assert err.startswith("deployer: error: ")


def test_a_path_is_never_looked_for_among_images(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DEPLOYER_ROOT", raising=False)
    code, _, err = run(capsys, tmp_path / "none.tar")
    assert code == UsageError.exit_code
    assert "none.tar" in err.splitlines()[0]


def test_the_packages_are_read_from_the_sealed_bundle(tmp_path, capsys):
    sbom = {
        "components": [{"name": "zlib", "version": "1.3"}, {"name": "own"}, {"name": "a\u001b[31m", "version": "1"}]
    }
    good = dict(sbom, components=sbom["components"][:2])
    for number, text in enumerate((json.dumps(good), json.dumps(sbom), "{")):
        data = bundles.build(extra=[(SBOM_MEMBER, text.encode())], version=str(number))
        path, media = tmp_path / f"{number}.tar", tmp_path / f"media{number}"
        path.write_bytes(data)
        media.mkdir()
        for name, content in shipment(data)[1]:
            (media / name).write_bytes(content)
        for what in (path, media):
            code, out, err = run(capsys, what, "--packages", "--root", tmp_path / "root")
            if number == 0:
                assert (code, out) == (0, "own \nzlib 1.3\n")
                assert json.loads(run(capsys, what, "--packages", "--json")[1]) == {"packages": ["own ", "zlib 1.3"]}
            else:
                assert (code, out) == (4, "")
                assert "\x1b" not in err
    part = min(tmp_path.glob("media0/*.part"))
    part.write_bytes(b"x" * part.stat().st_size)
    assert run(capsys, tmp_path / "media0", "--packages")[0] == 4
    assert part.exists()  # a medium is left alone
    part.unlink()
    code, _, err = run(capsys, tmp_path / "media0", "--packages")
    assert code == 2
    assert "are neither in" in err
    (tmp_path / "none.tar").write_bytes(bundles.build())
    code, _, err = run(capsys, tmp_path / "none.tar", "--packages")
    assert code == 4
    assert "field 'components' is missing" in err
