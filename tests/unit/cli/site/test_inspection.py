"""inspect at the site: a bundle, a medium, an installed image with and without its bundle."""

import json
import os

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.job import Job
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
