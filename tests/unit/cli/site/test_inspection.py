"""inspect at the site: a bundle, a medium, an installed image with and without its bundle."""

import json
import os

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import PROVENANCE_MEMBER, SBOM_MEMBER
from deployer.contract.bundle.scan import Scan, Scanner, Vulnerability
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


def test_the_officers_page(tmp_path, capsys):
    bad = "<script>a</script>"
    sbom = {"components": [{"name": bad, "version": "1.3"}]}
    extra = [(SBOM_MEMBER, json.dumps(sbom).encode()), (PROVENANCE_MEMBER, b'{"predicate": "of the maker"}')]
    data = bundles.build(extra=extra)
    path, media, page = tmp_path / "a.tar", tmp_path / "media", tmp_path / "page.html"
    path.write_bytes(data)
    media.mkdir()
    for name, content in shipment(data)[1]:
        (media / name).write_bytes(content)
    digest = json.loads(run(capsys, path, "--json")[1])["digest"]
    findings = [
        Vulnerability("CVE-1", "low", "b", status="not_affected", because=bad), Vulnerability("CVE-2", "critical", "a")
    ]  # fmt: skip
    scan = Scan(digest, "tiny:1.0", [Scanner("grype", "1", 1795168800, 1794996000)], findings)
    for what, beside in ((path, tmp_path / "a.tar.scan.json"), (media, media / "bundle.scan.json")):
        assert run(capsys, what, "--html", page)[:2] == (0, f"wrote {page}\n")
        assert "Nobody recorded a scan" in page.read_text()
        beside.write_text(scan.text())
        assert run(capsys, what, "--html", page)[0] == 0
        text = page.read_text()
        assert "<script" not in text
        for said in (
            "signed by NOBODY", "grype 1 on 2026-11-20, with a database of 2026-11-18", "open findings: 1 of 2",
            "critical: CVE-2 in a : OPEN\n  low: CVE-1 in b : not_affected, says the maker: &lt;script&gt;",
            digest, "NOT SIGNED", "&lt;script&gt;a&lt;/script&gt; 1.3", "of the maker",
        ):  # fmt: skip
            assert said in text, said
        beside.write_text(scan._replace(digest="sha256:" + "0" * 64).text())
        assert run(capsys, what, "--html", page)[0] == 0
        assert "is of another bundle" in page.read_text()
    part = min(media.glob("*.part"))
    part.write_bytes(b"x" * part.stat().st_size)
    page.unlink()
    assert run(capsys, media, "--html", page)[0] == 4
    assert not page.exists()
