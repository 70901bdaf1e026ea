"""Which files of a program are kept, and that its links and names lead nowhere else."""

import hashlib
import io
import os
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from deployer.connected.fetch.kept import KeptFiles, keep
from deployer.contract.site.plan import HOME, JOB

BODY = b"downloaded"
DOWNLOADS = {hashlib.sha256(BODY).hexdigest(): len(BODY)}


class Folders:
    def __init__(self, top: Path) -> None:
        self.home, self.job, self.target = top / "home", top / "job", top / "kept"
        self.home.mkdir()
        self.job.mkdir()

    def put(self, path: str, body: bytes = BODY) -> Path:
        place = (self.job if path.startswith("job/") else self.home) / path.removeprefix("job/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        return place

    def keep(self, *wanted: str) -> KeptFiles:
        return keep(self.home, self.job, self.target, DOWNLOADS, wanted)

    def kept(self) -> list[str]:
        return sorted(str(path.relative_to(self.target)) for path in self.target.rglob("*") if not path.is_dir())


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_the_home_is_kept_without_files_of_tools(folders: Folders) -> None:
    for path in (".keras/datasets/x.npz", ".cache/a/b", "data-gym-cache/9b5ad"):
        folders.put(path)
    for path in (".cache/matplotlib/fontlist.json", "tmpab12cd34/x", ".cache/a/__pycache__/b.pyc", ".nv/x"):
        folders.put(path)
    folders.put(".cache/a/b.lock", b"")
    kept = folders.keep()
    assert folders.kept() == ["home/.cache/a/b", "home/.keras/datasets/x.npz", "home/data-gym-cache/9b5ad"]
    assert kept.home[".cache"] == (1, len(BODY))
    assert kept.digests == set(DOWNLOADS)


def test_the_job_s_folder_is_kept_where_a_download_is(folders: Folders) -> None:
    folders.put("job/data/raw/x.gz")
    folders.put("job/data/raw/x", b"unpacked from it")
    folders.put("job/result/model.pt", b"trained")
    folders.put("job/extra.txt", b"by hand")
    folders.put("job/output.log", BODY)
    kept = folders.keep("extra.txt")
    assert folders.kept() == ["job/data/raw/x", "job/data/raw/x.gz", "job/extra.txt"]
    assert kept.left == ["result"]


def test_results_with_a_copy_of_a_download_in_home_are_left(folders: Folders) -> None:
    folders.put(".cache/huggingface/hub/tokenizer.json")
    folders.put("job/out/tokenizer.json")
    folders.put("job/out/checkpoint-2/model.safetensors", b"trained")
    kept = folders.keep()
    assert folders.kept() == ["home/.cache/huggingface/hub/tokenizer.json"]
    assert kept.left == ["out"]


def test_links_of_the_hub_become_files_and_nameless_ones_go(folders: Folders) -> None:
    blob = folders.put(".cache/huggingface/hub/models--a--b/blobs/abc")
    for place, target in (("config.json", "../../blobs/abc"), ("absolute", str(blob).replace(str(folders.home), HOME))):
        link = folders.home / ".cache/huggingface/hub/models--a--b/snapshots/rev" / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    folders.keep()
    top = "home/.cache/huggingface/hub/models--a--b/snapshots/rev"
    assert folders.kept() == [f"{top}/absolute", f"{top}/config.json"]
    assert (folders.target / top / "config.json").read_bytes() == BODY
    assert not (folders.target / top / "config.json").is_symlink()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "gone", f"{JOB}/../../etc/passwd", "loop", "."])
def test_links_that_lead_elsewhere_are_left(folders: Folders, target: str) -> None:
    folders.put("job/data/x")
    (folders.job / "data" / "loop").symlink_to(target)
    kept = folders.keep()
    assert folders.kept() == ["job/data/x"]
    assert kept.outside == ["data/loop"]


def test_sockets_and_pipes_are_left_and_closed_folders_are_read(folders: Folders) -> None:
    os.mkfifo(folders.home / "pipe")
    hidden = folders.put("closed/x")
    hidden.chmod(0)
    hidden.parent.chmod(0)
    folders.keep()
    assert folders.kept() == ["home/closed/x"]
    assert stat.S_IMODE((folders.target / "home/closed/x").stat().st_mode) == 0o600


def test_files_that_run_code_when_they_are_loaded_are_listed(folders: Folders) -> None:
    folders.put("m/pytorch_model.bin", b"\x80\x02}")
    folders.put("m/zip.pt", b"PK\x03\x04")
    folders.put("m/plain.bin", b"\0\0\0\0")
    folders.put("m/model.safetensors", b"\x80\x02}")
    folders.put(".cache/huggingface/modules/x/modeling.py", b"import os")
    kept = folders.keep()
    assert kept.running == [".cache/huggingface/modules/x/modeling.py", "m/pytorch_model.bin", "m/zip.pt"]


@pytest.mark.parametrize("name", ["a\nb", "~x", "x" * 250 + "/" + "y" * 250 + "/" + "z" * 250 + "/" + "w" * 100])
def test_names_that_no_link_can_have_are_left(folders: Folders, name: str) -> None:
    folders.put(name)
    folders.put("plain")
    assert folders.keep().outside == [name]
    assert folders.kept() == ["home/plain"]


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_what_a_kept_archive_was_unpacked_to_is_kept(folders: Folders, kind: str, tmp_path: Path) -> None:
    (tmp_path / "set" / "pos").mkdir(parents=True)
    (tmp_path / "set" / "pos" / "1.txt").write_text("good")
    made = shutil.make_archive(str(tmp_path / "x"), "gztar" if kind == "tar.gz" else "zip", tmp_path, "set")
    body = Path(made).read_bytes()
    folders.put(f"job/set.{kind}", body)
    folders.put("job/set/pos/1.txt", b"good")
    folders.put("job/out/x", b"trained")
    folders.put("job/odd.gz", b"\x1f\x8bno archive")
    kept = keep(folders.home, folders.job, folders.target, {hashlib.sha256(body).hexdigest(): len(body)}, ["odd.gz"])
    assert folders.kept() == ["job/odd.gz", f"job/set.{kind}", "job/set/pos/1.txt"]
    assert kept.left == ["out"]


@pytest.mark.parametrize("kind", ["tar.gz", "zip", "piped.zip"])
def test_what_was_unpacked_to_another_name_is_kept(folders: Folders, kind: str, tmp_path: Path) -> None:
    out = io.BytesIO()
    if kind == "tar.gz":
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            member = tarfile.TarInfo("Messages")
            member.size = 4
            tar.addfile(member, io.BytesIO(b"spam"))
    else:
        out = _Pipe() if kind == "piped.zip" else out
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("Messages", b"spam")
    body = out.getvalue()
    folders.put(f"job/messages.{kind}", body)
    folders.put("job/messages/all.tsv", b"spam")
    folders.put("job/out/same-size", b"ham!")
    kept = keep(folders.home, folders.job, folders.target, {hashlib.sha256(body).hexdigest(): len(body)})
    assert folders.kept() == [f"job/messages.{kind}", "job/messages/all.tsv"]
    assert kept.left == ["out"]


class _Pipe(io.BytesIO):
    """A stream that cannot be wound back."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError
