"""SquashFS files of installed images: whose mksquashfs makes them, what it says when it fails, and the same bytes.

mksquashfs is a stand-in, in the failures and where the real one is not on this machine; on the lab, with the kit's and
mounted: tests/integration/test_staging.py.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.cli.site import main as site_cli
from deployer.contract.base.errors import JobFailed, MissingTool, Refused, SpaceError
from deployer.contract.base.tarformat import FILE, FOLDER, TarEntry
from deployer.contract.bundle import sif
from deployer.site.install import squash
from deployer.site.install.install import install
from deployer.site.storage import unfinished
from deployer.site.storage.store import Store
from tests import bundles, running

ROOT = Path(__file__).resolve().parents[4]
ENTRIES = [
    *((TarEntry(FOLDER, name, 0o755), b"") for name in (b"bin", b"deployer", b"lib")),
    (TarEntry(FILE, b"bin/tool", 0o755, 9), b"#!/bin/sh"),
    (TarEntry(FILE, b"deployer/canary", 0o644, 4), b"here"),
    *((TarEntry(FILE, b"lib/%03d" % number, 0o644, 9000), b"%09d" % number * 1000) for number in range(100)),
]
#: Writes a file with the magic number of SquashFS, unless {body} ends it; {unknown} is an option that it refuses.
STAND_IN = """#!/bin/sh
[ "$1" = -version ] && {{ echo 'mksquashfs version {version} (2022/03/17)'; exit; }}
for word; do case $word in -*) break;; esac; out=$word; done
case " $* " in *" {unknown} "*) echo "mksquashfs: invalid option" >&2; exit 1;; esac
case $out in *sample.sqfs) ;; *) echo "$*" >>{log}
{body}
esac
printf 'hsqs{nothing}' >$out
"""


def stand_in(folder, body="", unknown="-nothing", version="4.5.1"):
    return STAND_IN.format(body=body, unknown=unknown, version=version, log=folder / "log", nothing="\\0" * 200)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder in whose ``bin`` is all that PATH has: no mksquashfs."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def put(folder, *words, **more):
    """Put a stand-in into PATH."""
    path = folder / "bin" / "mksquashfs"
    path.write_text(stand_in(folder, *words, **more))
    path.chmod(0o755)
    return path


def installed(folder, kit=None, name="root"):
    extra = [("deployer/app/train.py", b"pass")]
    extra += [("deployer/kit/mksquashfs", kit.encode(), 0o755)] if kit else []
    bundle = bundles.write(folder / (name + ".tar"), bundles.whole(ENTRIES), extra)
    return install(str(bundle), Store(str(folder / name))).image


def left(image):
    """Return what is there of a SquashFS file, under its name or any other."""
    parent = os.path.dirname(image.folder)
    return [name for name in os.listdir(image.folder) if name.startswith("image")] + [
        name for name in os.listdir(parent) if name.startswith(".")
    ]


def test_the_site_s_own_comes_first_and_the_kit_s_where_there_is_none(folder):
    image = installed(folder, stand_in(folder, version="4.6"))
    by_kit = squash.make(image, 2)
    assert (by_kit.tool.whose, by_kit.tool.version) == ("kit", "4.6")
    assert by_kit.tool.path == os.path.join(image.folder, "kit", "mksquashfs")
    own = put(folder)
    by_site = squash.make(image, 2)
    assert (by_site.tool.whose, by_site.tool.version, by_site.tool.path) == ("site", "4.5.1", str(own))
    assert by_site.size == os.path.getsize(squash.path(image.folder)) == 204
    assert by_site.line().startswith("SquashFS file of 204 B in ")
    assert "with the site's mksquashfs 4.5.1: " in by_site.line()
    assert by_site.record()["mksquashfs"] == {"whose": "site", "path": str(own), "version": "4.5.1"}
    assert left(image) == ["image.sqfs"]


def test_without_any_a_line_says_what_would_help(folder):
    image = installed(folder)
    with pytest.raises(MissingTool, match="no mksquashfs in PATH, nor in the bundle") as caught:
        squash.make(image, 1)
    assert "--kit squashfs-tools" in caught.value.hint
    assert "no mksquashfs here, nor in the bundle" in squash.absent(image).reason
    put(folder)
    assert squash.absent(image) == ("it has no SquashFS file", "make its SquashFS file: squash tiny:1.0")


def test_one_that_does_not_work_is_passed_over(folder):
    image = installed(folder, stand_in(folder))
    put(folder, unknown="-all-root")
    assert squash.make(image, 1).tool.whose == "kit"
    os.chmod(os.path.join(image.folder, "kit", "mksquashfs"), 0o644)
    with pytest.raises(MissingTool) as caught:
        squash.make(image, 1)
    assert "the site's" in caught.value.message
    assert "invalid option" in caught.value.message
    assert "the kit's" in caught.value.message
    assert "Permission denied" in caught.value.message


def test_options_are_those_that_it_knows(folder):
    put(folder)
    image = installed(folder)
    options = squash.make(image, 3).tool.options
    for word in ("zstd", "-exit-on-error", "-all-time", "-no-xattrs", "-mem"):
        assert word in options
    assert (folder / "log").read_text().endswith("-processors 3\n")
    put(folder, unknown="-comp")
    old = squash.make(image, 3).tool.options
    assert "zstd" not in old
    assert "-all-time" in old


@pytest.mark.parametrize(
    ("runtime", "version", "codec"),
    [
        ("charliecloud", None, "zstd"), ("singularity", None, "gzip"), ("apptainer", "1.4.0", "zstd"),
        ("apptainer", "1.3.6", "gzip"), ("apptainer", None, "gzip"),
    ],
)  # fmt: skip
def test_it_is_compressed_as_all_runtimes_of_its_plans_can_read(folder, runtime, version, codec):
    put(folder)
    image = installed(folder)
    options = [running.START_OPTION, running.START_OPTION._replace(runtime=runtime)]
    os.mkdir(os.path.join(image.folder, "plans"))
    running.write(
        os.path.join(image.folder, "plans", "lab.json"), running.PLAN._replace(start_options=options).record()
    )
    if version:
        running.program(folder / "bin", "apptainer", f"echo apptainer version {version}")
    words = squash.make(image, 1).tool.options
    assert words[words.index("-comp") + 1] == codec


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        ("kill -9 $$", JobFailed, "killed by signal 9 while it wrote"),
        ("kill -25 $$", SpaceError, "File too large"),
        (
            "printf half >$out; echo 'Write failed because No space left on device' >&2; exit 1",
            SpaceError,
            "No space left",
        ),
        ("echo 'FATAL ERROR: Out of memory' >&2; exit 1", JobFailed, "Out of memory"),
        ("echo 'Failed to read file /x, creating empty file' >&2", JobFailed, "creating empty file"),
        ("printf half >$out; exit 0", JobFailed, "did not write all"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(folder, body, error, said):
    put(folder, body)
    image = installed(folder)
    with pytest.raises(error) as caught:
        squash.make(image, 1)
    assert said in caught.value.message
    assert len(caught.value.lines()[0]) < 400
    assert left(image) == []


def test_what_a_killed_one_left_goes_with_the_next(folder):
    image = installed(folder)
    with unfinished.folder(os.path.dirname(image.folder)) as work:
        stale = work[: -len(work.rpartition("-")[2])] + "00000000"
        os.mkdir(stale.replace("-%d-" % os.getpid(), "-%d-" % 2**30))
    put(folder)
    squash.make(image, 1)
    assert left(image) == ["image.sqfs"]


def test_the_commands_say_which_mksquashfs_it_was(folder, capsys):
    image = installed(folder, stand_in(folder, version="4.6"))
    where = ["--root", str(folder / "root")]
    assert site_cli.main(["install", str(folder / "root.tar"), "--squashfs", "--json", *where]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["known"], said["squashfs"]["mksquashfs"]["whose"]) == (True, "kit")
    assert site_cli.main(["squash", "tiny", *where]) == 0
    assert capsys.readouterr().out == f"its SquashFS file exists already: {squash.path(image.folder)}\n"
    os.unlink(squash.path(image.folder))
    assert site_cli.main(["squash", "tiny:1.0", *where]) == 0
    assert "with the kit's mksquashfs 4.6: " in capsys.readouterr().out


# --- the SIF file ---


@pytest.fixture
def packed(folder, monkeypatch):
    """Return an image whose plan needs a SIF file, with its SquashFS file, and a function that squashes it."""
    put(folder)
    image = installed(folder)
    monkeypatch.setattr(squash, "needs_sif", lambda image: True)
    return image, lambda: site_cli.main(["squash", "tiny", "--root", str(folder / "root")])


def test_a_sif_file_is_made_once_where_a_plan_needs_it(packed, capsys):
    image, squash_it = packed
    target = squash.path(image.folder, "sif")
    with pytest.raises(Refused, match=r"tiny:1.0: it has no SIF file") as caught:
        squash.existing(image, "sif")
    assert caught.value.hint == "make its SIF file: squash tiny:1.0"
    assert squash_it() == 0
    assert capsys.readouterr().out.endswith(f"; SIF file: {target}\n")
    data = Path(target).read_bytes()
    contents = sif.find(lambda start, length: data[start : start + length], len(data))
    assert data[contents.offset :] == Path(squash.path(image.folder)).read_bytes()
    Path(target).write_bytes(b"signed since")
    assert squash_it() == 0
    assert Path(target).read_bytes() == b"signed since"
    assert squash.existing(image, "sif") == target


def test_a_disk_too_full_for_the_second_file_leaves_none(packed, monkeypatch, capsys):
    image, squash_it = packed

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(squash.shutil, "copyfileobj", full)
    assert squash_it() == SpaceError.exit_code
    assert "cannot write " + squash.path(image.folder, "sif") + ": No space left" in capsys.readouterr().err
    assert left(image) == ["image.sqfs"]


@pytest.mark.thorough
def test_what_a_killed_writer_of_the_second_file_left_goes_with_the_next(packed):
    image, squash_it = packed
    target = squash.path(image.folder, "sif")
    code = (
        "import os, sys; from deployer.system import files\nwith files.published(sys.argv[1]): os.kill(os.getpid(), 9)"
    )
    assert subprocess.call([sys.executable, "-c", code, target], cwd=str(ROOT)) == -9
    assert len(os.listdir(image.folder)) > len(left(image))
    assert squash_it() == 0
    assert sorted(left(image)) == ["image.sif", "image.sqfs"]
    assert not [name for name in os.listdir(image.folder) if "sif" in name and name != "image.sif"]


# --- with the real one ---

_REAL = shutil.which("mksquashfs")
real = pytest.mark.skipif(_REAL is None, reason="no mksquashfs: apt-get install squashfs-tools")


@real
def test_the_same_image_gives_the_same_bytes(folder):
    (folder / "bin" / "mksquashfs").symlink_to(_REAL)
    made = []
    for jobs in (1, 4):
        image = installed(folder, name="root%d" % jobs)
        os.utime(os.path.join(image.folder, "app", "train.py"), (jobs, jobs))  # it has the time of its install
        squashed = squash.make(image, jobs)
        assert "-all-time" in squashed.tool.options
        made.append(Path(squashed.path).read_bytes())
    assert made[0] == made[1]


@real
@pytest.mark.parametrize("name", ["python3.11", "libc.so.6", "libc-2.28.so", "libpython3.6m.so.1.0"])
@pytest.mark.thorough
def test_what_each_start_reads_is_not_compressed(folder, name):
    (folder / "bin" / "mksquashfs").symlink_to(_REAL)
    image = installed(folder)
    before = squash.make(image, 1)
    os.unlink(before.path)
    path = os.path.join(image.rootfs, "lib", name)
    Path(path).write_bytes(b"pattern." * 100000)
    as_it_is = squash.make(image, 1).size
    os.rename(path, os.path.join(image.rootfs, "lib", "other"))
    assert as_it_is >= 800000
    assert squash.make(image, 1).size <= before.size + 8192 < 800000


@pytest.fixture
def squash_on(folder):
    """Return what runs ``squash`` with the store's ``images`` on a tmpfs of its own, mounted with options."""
    unshare = ["/usr/bin/unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c"]
    env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    images, copy, store = (str(folder / name) for name in ("root/images", "copy", "root"))

    def run(script):
        return subprocess.run(
            [*unshare, script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            env=env,
            check=False,
        )

    def squash_on(options):
        shutil.copytree(images, copy, symlinks=True)
        code = "import sys; from deployer.cli.site.main import main; sys.exit(main())"
        return run(
            f"mount -t tmpfs -o {options} tmpfs {images} && cp -a {copy}/. {images} || exit 99; "
            + "PATH={} PYTHONPATH={} {} -c '{}' ".format(folder / "bin", ROOT, sys.executable, code)
            + f"squash tiny --root {store}; code=$?; find {images}; exit $code"
        )

    return squash_on


@pytest.mark.thorough
@pytest.mark.needs("user-namespaces")
def test_a_kit_s_tool_on_a_file_system_that_is_mounted_noexec(folder, squash_on):
    installed(folder, stand_in(folder))
    done = squash_on("noexec")
    assert done.returncode == 7, done.stderr
    assert "/kit/mksquashfs: its file system is mounted noexec" in done.stderr
    assert "image.sqfs" not in done.stdout


@pytest.mark.thorough
@real
@pytest.mark.needs("user-namespaces")
def test_a_disk_that_gets_full_meanwhile(folder, squash_on):
    """The room is enough for what is foreseen, the layer compressed: the real mksquashfs compresses nothing here."""
    running.program(folder / "bin", "mksquashfs", f'exec {_REAL} "$@" -noI -noD -noF\n')
    installed(folder)
    done = squash_on("size=800k")
    assert done.returncode == 6, done.stderr
    assert "No space left on device" in done.stderr
    assert "image.sqfs" not in done.stdout
    assert ".installing" not in done.stdout
