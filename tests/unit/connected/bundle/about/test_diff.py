import json
from pathlib import Path

import pytest

from deployer.cli.laptop import main as cli
from deployer.connected.bundle.about.diff import PackageChange, diff
from deployer.contract.base.tarformat import FILE, FOLDER, TarEntry
from tests import bundles, planted, wheels
from tests.bundles import END, ENTRIES, stream

SITE = b"usr/lib/python3/site-packages"
FOLDERS = [
    *ENTRIES[:2],
    *(
        (TarEntry(FOLDER, name, 0o755), b"")
        for name in (
            b"usr",
            b"usr/lib",
            b"usr/lib/python3",
            SITE,
            SITE + b"/a-1.0.dist-info",
            SITE + b"/a-2.0.dist-info",
            b"var",
            b"var/lib",
            b"var/lib/dpkg",
        )
    ),
]


def file(path: bytes, content: bytes) -> tuple[TarEntry, bytes]:
    return TarEntry(FILE, path, 0o644, len(content)), content


def status(version: str) -> bytes:
    return f"Package: zlib1g\nVersion: {version}\n\nPackage: tar\nVersion: 1.34\n".encode()


def write(path: Path, files: list[list[tuple[TarEntry, bytes]]], extra: list[tuple[str, bytes]], version: str) -> str:
    """Write a bundle with one frame for each list of files, and one for folders, links and the end."""
    pieces = [
        ("folders", stream(FOLDERS)),
        *(("files", stream(group)) for group in files),
        ("links", stream(ENTRIES[4:])),
        ("links", END),
    ]
    return str(bundles.write(path, pieces, extra, version=version))


def sbom(*purls: str) -> tuple[str, bytes]:
    """Return the member with an SBOM of packages, TYPE/NAME@VERSION each."""
    parts = [purl.partition("@") for purl in purls]
    components = [{"name": name.rpartition("/")[2], "version": version, "purl": f"pkg:{name}@{version}"}
                  for name, _, version in parts]  # fmt: skip
    return "deployer/sbom.cdx.json", json.dumps({"components": [*components, {"name": "digits"}]}).encode()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    same = ENTRIES[2:4]
    old = [
        same,
        [file(SITE + b"/a-1.0.dist-info/METADATA", b"x"), file(SITE + b"/a.py", b"1"), file(b"etc/mode", b"")],
        [file(b"var/lib/dpkg/status", status("1"))],
    ]
    changed_mode = file(b"etc/mode", b"")[0]._replace(mode=0o755)
    new = [
        same,
        [file(SITE + b"/a-2.0.dist-info/METADATA", b"x"), file(SITE + b"/a.py", b"2"), (changed_mode, b"")],
        [file(b"var/lib/dpkg/status", status("2"))],
    ]
    return (
        write(
            tmp_path / "a.tar",
            old,
            [("deployer/app/t.py", b"1"), sbom("deb/zlib1g@1", "deb/tar@1.34", "pypi/a@1.0")],
            "1",
        ),
        write(
            tmp_path / "b.tar",
            new,
            [
                ("deployer/app/t.py", b"2"),
                ("deployer/app/u.py", b"new"),
                sbom("pypi/a@2.0", "pypi/a@1.9", "deb/tar@1.34", "deb/zlib1g@2", "conda/b@1"),
            ],
            "2",
        ),
    )


def test_files_and_packages(pair: tuple[str, str]) -> None:
    site = "/" + SITE.decode()
    found = diff(*pair)
    assert found.added == [f"{site}/a-2.0.dist-info/METADATA", "deployer/app/u.py"]
    assert found.removed == [f"{site}/a-1.0.dist-info/METADATA"]
    assert found.changed == [
        "/etc/mode",
        f"{site}/a.py",
        "/var/lib/dpkg/status",
        "deployer/app/t.py",
        "deployer/sbom.cdx.json",
    ]
    assert found.packages == [
        PackageChange("conda", "b", None, "1"),
        PackageChange("deb", "zlib1g", "1", "2"),
        PackageChange("pypi", "a", "1.0", "1.9, 2.0"),
    ]
    assert 0 < found.bytes_to_ship < Path(pair[1]).stat().st_size


def test_a_bundle_and_itself(pair: tuple[str, str]) -> None:
    assert diff(pair[0], pair[0]) == (0, [], [], [], [], [])


def test_secrets_in_what_is_new_are_refused_unless_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = planted.private_key().encode()
    record = b"b.pem,sha256=x,1\n"
    ours = [file(b"etc/old.pem", key)]
    old = write(tmp_path / "a.tar", [ENTRIES[2:4], ours], [("deployer/app/old.py", key)], "1")
    listed = [file(SITE + b"/b.pem", key), file(SITE + b"/b-1.0.dist-info/RECORD", record)]
    new = [*ours, file(b"etc/new\x1b.pem", key), *listed]
    app = [("deployer/app/old.py", key), ("deployer/app/t.py", key), ("deployer/data/x/big", key.ljust(2**20 + 1))]
    path = write(tmp_path / "b.tar", [ENTRIES[2:4], new], app, "2")
    assert [item.subject for item in diff(old, path).secrets] == ["/etc/new\\x1b.pem", "/deployer/app/t.py"]
    assert cli.main(["diff", old, path]) == 3
    out, err = capsys.readouterr()
    assert "+ deployer/app/t.py" in out
    assert "2 errors" in err
    accepted = "--accept=secrets.file:/deployer/app/t.py"
    assert cli.main(["diff", old, path, accepted, "--json"]) == 3
    out, err = capsys.readouterr()
    assert len(json.loads(out)["secrets"]) == 2
    assert "/etc/new\\x1b.pem: secrets.file: it holds a private key on line 1" in err
    assert cli.main(["diff", old, path, "--accept=secrets.file"]) == 0


def test_a_large_file_whose_middle_changed(tmp_path: Path) -> None:
    def bundle(name: str, middle: bytes) -> str:
        content = b"a" * 4000 + middle + b"c" * 96
        data = stream([file(b"etc/large", content)])
        rest = [("rest", data[2512:4608]), ("rest", data[4608:])]
        pieces = [("folders", stream(FOLDERS)), ("files", data[:2512]), *rest, ("links", END)]
        return str(bundles.write(tmp_path / name, pieces, version=name))

    assert diff(bundle("a", b"1"), bundle("b", b"2")).changed == ["/etc/large"]


def test_the_command(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *pair, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) == {"bytes_to_ship", "added", "removed", "changed", "packages", "secrets"}
    assert cli.main(["diff", *pair, "--files"]) == 0
    text = capsys.readouterr().out
    assert "pypi a: 1.0 -> 1.9, 2.0" in text
    assert "~ /etc/mode" in text
    assert "2 files added, 1 removed, 5 changed" in text


def test_the_command_names_what_changed_in_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = b"etc/" + b"y" * 90
    files = [file(b"etc/%03d" % number, b"x") for number in range(30)]
    old = write(
        tmp_path / "a.tar", [ENTRIES[2:4], [file(b"etc/bad\x1b[2J", b"1")]], [("deployer/app/train.py", b"1")], "1"
    )
    new = write(
        tmp_path / "b.tar",
        [ENTRIES[2:4], [*files, file(b"etc/bad\x1b[2J", b"2"), file(long, b"")]],
        [("deployer/app/train.py", b"2"), ("deployer/wheels/a-1.0-py3-none-any.whl", wheels.wheel({}))],
        "2",
    )
    assert cli.main(["diff", old, new]) == 0
    text = capsys.readouterr().out
    assert "~ deployer/app/train.py\n" in text
    assert "+ deployer/wheels/a-1.0-py3-none-any.whl\n" in text
    assert "~ /etc/bad\\x1b[2J\n" in text
    assert text.count("\n+ /etc/") == 18
    assert "  ... and 13 more (--files lists all)\n" in text
    assert cli.main(["diff", old, new, "--json"]) == 0
    assert f"/{long.decode()}" in json.loads(capsys.readouterr().out)["added"]
    assert cli.main(["diff", new, old]) == 0
    lines = capsys.readouterr().out.replace(new, "NEW").splitlines()
    assert max(map(len, lines)) <= 80


def test_inspect_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, long names of wheels are shortened in the middle; --json has them whole."""
    monkeypatch.setenv("COLUMNS", "80")
    wheel = f"deployer/wheels/{'long_name_' * 9}-1.0-cp311-cp311-manylinux2014_x86_64.whl"
    path = write(tmp_path / "a.tar", [ENTRIES[2:4]], [(wheel, wheels.wheel({})), ("deployer/data/d\x1b/f", b"1")], "1")
    assert cli.main(["inspect", path]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "  deployer/wheels/" in text
    assert "_x86_64.whl\n" in text
    assert "\x1b" not in text
    assert cli.main(["inspect", path, "--json"]) == 0
    assert Path(wheel).name in capsys.readouterr().out


def test_inspect_shows_what_a_job_starts_and_its_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [bundles.JOB._replace(name="a", launch="torchrun"), bundles.JOB._replace(name="b", gpus=2)]
    (tmp_path / "a.tar").write_bytes(bundles.build(jobs=jobs))
    assert cli.main(["inspect", str(tmp_path / "a.tar")]) == 0
    text = capsys.readouterr().out
    assert "job a: 2 nodes x 1 rank x 1 thread, launch torchrun: python3 hello.py\n" in text
    assert "job b: 2 nodes x 1 rank x 1 thread x 2 GPUs: python3 hello.py\n" in text
