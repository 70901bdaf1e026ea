"""remove, gc and uninstall, through the command line that people use."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import EXIT_DONE, Refused, Unknown, UsageError
from deployer.contract.proof.evidence import Launch
from deployer.site.install import gc
from deployer.site.install.install import install, keep
from deployer.site.jobs import jobs
from deployer.site.storage.store import Store
from tests import bundles, running


@pytest.fixture(autouse=True)
def bin_folder(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", "{}:{}".format(folder, os.environ["PATH"]))
    return folder


def put(tmp_path, store, version, name="tiny", age=0):
    """Install a bundle of that version, keep it, and let it be ``age`` days old."""
    path = bundles.write(tmp_path / "b.tar", name=name, version=version)
    image = install(str(path), store).image
    kept = keep(str(path), store, image)
    receipt = image.receipt._replace(installed=image.receipt.installed - age * 86400)
    running.write(os.path.join(image.folder, "receipt.json"), receipt.record())
    os.utime(kept, (time.time() - age * 86400,) * 2)
    return image._replace(receipt=receipt)


def submit(store, image, job="j1", number="77"):
    """Leave what ``run`` leaves of a job that was submitted."""
    folder = os.path.join(store.jobs, job)
    os.makedirs(folder)
    launch = Launch(
        job, "tiny", "1", image.receipt.digest, "lab", "v", "", "charliecloud", 1, 1, 1, "1:00", ["true"], None, None, 1
    )
    running.write(os.path.join(folder, "job.json"), launch.record())
    if number:
        Path(folder, "job_id").write_text(number)


def squeue(folder, word):
    running.program(folder, "squeue", f"echo '77|{word}|0:01|node1|None'\n")


def call(store, *words):
    return main.main([words[0], "--root", store.root, *words[1:]])


def test_remove_takes_read_only_folders_and_leaves_nothing(tmp_path, store, capsys):
    image = put(tmp_path, store, "1.0")
    os.chmod(os.path.join(image.rootfs, "etc"), 0o500)
    assert call(store, "remove", "tiny:1.0") == EXIT_DONE
    assert image.folder in capsys.readouterr().out
    assert os.listdir(store.images) == []
    assert call(store, "remove", "tiny") == UsageError.exit_code


@pytest.mark.parametrize("word", ["PENDING", "RUNNING", "COMPLETING"])
def test_an_image_that_a_job_uses_stays(tmp_path, store, bin_folder, capsys, word):
    image, other = put(tmp_path, store, "1.0"), put(tmp_path, store, "2.0")
    submit(store, image)
    squeue(bin_folder, word)
    assert call(store, "remove", "tiny:1.0") == Refused.exit_code
    assert "job j1 uses tiny:1.0" in capsys.readouterr().err
    assert call(store, "remove", "--all") == Refused.exit_code
    assert len(store.installed()) == 2
    assert call(store, "remove", "tiny:2.0") == EXIT_DONE
    assert [left.folder for left in store.installed()] == [image.folder] != [other.folder]
    assert call(store, "remove", "tiny:1.0", "--force") == EXIT_DONE
    assert store.installed() == []


def test_a_job_that_is_over_or_was_never_submitted_uses_nothing(tmp_path, store, bin_folder):
    image = put(tmp_path, store, "1.0")
    submit(store, image)
    submit(store, image, "j2", number="")
    squeue(bin_folder, "COMPLETED")
    assert call(store, "remove", "tiny") == EXIT_DONE


def test_a_scheduler_that_does_not_answer_is_no_yes(tmp_path, store, bin_folder, capsys):
    submit(store, put(tmp_path, store, "1.0"))
    running.program(bin_folder, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1\n")
    assert call(store, "remove", "tiny") == Unknown.exit_code
    assert "--force" in capsys.readouterr().err
    assert len(store.installed()) == 1


def test_a_job_that_cannot_be_looked_at_may_use_the_image(tmp_path, store, capsys):
    put(tmp_path, store, "1.0")
    os.makedirs(store.jobs)
    os.symlink("theirs", os.path.join(store.jobs, "theirs"))  # leads nowhere, as a folder of another user does
    assert call(store, "remove", "tiny") == Unknown.exit_code
    assert "cannot tell whether job theirs uses tiny:1.0" in capsys.readouterr().err
    assert len(store.installed()) == 1
    assert jobs.folders(store)[0] == []


def test_an_image_that_cannot_be_looked_at_is_not_garbage(tmp_path, store, capsys):
    put(tmp_path, store, "1.0")
    name = "a" * len(os.listdir(store.images)[0])
    os.symlink(name, os.path.join(store.images, name))
    assert call(store, "gc") == UsageError.exit_code
    assert "cannot access" in capsys.readouterr().err
    assert os.path.lexists(os.path.join(store.images, name))


@pytest.mark.parametrize("words", [(), ("tiny", "--all")])
def test_remove_wants_one_thing(store, words):
    assert call(store, "remove", *words) == UsageError.exit_code


def test_uninstall_spares_results_and_what_is_not_ours(tmp_path, store, bin_folder, capsys):
    submit(store, put(tmp_path, store, "1.0"))
    squeue(bin_folder, "COMPLETED")
    running.write(store.tool, {})
    running.write(os.path.join(store.root, "mine"), {})
    assert call(store, "remove", "--all", "--json") == EXIT_DONE
    assert json.loads(capsys.readouterr().out) == {"removed": store.root, "left": ["jobs", "mine"]}
    for name in os.listdir(store.root):
        (shutil.rmtree if name == "jobs" else os.unlink)(os.path.join(store.root, name))
    assert call(store, "remove", "--all") == EXIT_DONE
    assert not os.path.exists(store.root)
    assert call(store, "remove", "--all") == EXIT_DONE


def test_gc(tmp_path, store, bin_folder, capsys):
    images = [put(tmp_path, store, "%d.0" % age, age=age) for age in (1, 2, 3, 4)]
    put(tmp_path, store, "1.0", name="other", age=9)
    submit(store, images[3])
    squeue(bin_folder, "RUNNING")
    dead = os.path.join(store.images, ".installing-elsewhere-1-1-ab")
    os.mkdir(dead)
    os.utime(dead, (1, 1))
    before = sorted(os.listdir(store.images)), sorted(os.listdir(store.bundles))
    assert call(store, "gc", "--dry-run") == EXIT_DONE
    said = capsys.readouterr().out.splitlines()
    assert (sorted(os.listdir(store.images)), sorted(os.listdir(store.bundles))) == before
    assert call(store, "gc") == EXIT_DONE
    assert [line.replace("removed", "would remove") for line in capsys.readouterr().out.splitlines()] == said
    assert [line.split()[0] for line in said] == ["would"] * 5 + ["kept"]
    assert sorted(os.listdir(store.bundles)) == ["other-1.0.tar", "tiny-1.0.tar"]
    assert {image.receipt.version for image in store.installed()} == {"1.0", "2.0", "4.0"}
    assert not os.path.exists(dead)
    assert [item.spared for item in gc.find(store, 2)] == ["job j1 uses tiny:4.0"]


@pytest.mark.parametrize("receipt", [None, "{"])
def test_gc_takes_the_rest_of_an_image_without_a_receipt(tmp_path, store, bin_folder, receipt):
    """Sites remove files that nobody touched for weeks: the receipt may be the first."""
    image = put(tmp_path, store, "1")
    os.unlink(os.path.join(image.folder, "receipt.json"))
    if receipt:
        Path(image.folder, "receipt.json").write_text(receipt)
    os.makedirs(os.path.join(store.images, "mine"))  # not ours
    submit(store, image)
    squeue(bin_folder, "RUNNING")
    (spared,) = gc.find(store, 2)
    assert (spared.path, spared.spared) == (image.folder, f"job j1 uses {image.folder}")
    squeue(bin_folder, "COMPLETED")
    gc.collect(gc.find(store, 2))
    assert os.listdir(store.images) == ["mine"]


def test_gc_leaves_a_bundle_that_it_cannot_read(tmp_path, store):
    put(tmp_path, store, "1.0")
    running.write(os.path.join(store.bundles, "strange.tar"), {})
    assert gc.find(store, 1) == []


@pytest.mark.parametrize("count", ["0", "-1", "x"])
def test_gc_keeps_at_least_one(store, count):
    assert call(store, "gc", "--keep", count) == UsageError.exit_code


def test_a_file_that_only_claims_to_be_an_installed_bundle_is_not_kept(tmp_path, store):
    image = put(tmp_path, store, "1.0")
    kept = store.bundle(image.receipt)
    data = bytearray(Path(kept).read_bytes())
    data[3000] ^= 1
    liar = tmp_path / "liar.tar"
    liar.write_bytes(data)
    assert call(store, "install", str(liar), "--keep") == EXIT_DONE
    assert liar.exists()
    assert Path(kept).read_bytes() != bytes(data)


DAMAGED = [b"{", b'{"schema": 5}', b"[" * 5000, None]
DAMAGED += [pytest.param(damage, marks=pytest.mark.thorough) for damage in (b"", b"[]", b"\xff\xfe")]


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
@pytest.mark.parametrize("name", ["bundle.json", "receipt.json"])
def test_a_damaged_image_does_not_stop_the_others(tmp_path, store, capsys, name, damage):
    """Not remove, nor gc, nor list; None is a file that is gone."""
    old, new, other = put(tmp_path, store, "1", age=2), put(tmp_path, store, "2"), put(tmp_path, store, "1", "other")
    path = os.path.join(other.folder, name)
    os.unlink(path)
    if damage is not None:
        Path(path).write_bytes(damage)
    assert call(store, "list") == EXIT_DONE
    assert call(store, "gc", "--keep", "1") == EXIT_DONE
    assert not os.path.exists(old.folder)
    assert os.path.exists(new.folder)
    assert call(store, "remove", "tiny:2") == EXIT_DONE
    if name == "bundle.json":
        assert call(store, "remove", "other") == EXIT_DONE
    else:
        assert not os.path.exists(other.folder)  # gc takes what has no receipt
    assert os.listdir(store.images) == []


def test_data_are_kept_if_a_damaged_bundle_may_need_them(tmp_path, store, capsys):
    data, other = put(tmp_path, store, "1"), put(tmp_path, store, "1", "other")
    os.makedirs(os.path.join(data.data, "digits"))
    with open(os.path.join(other.folder, "bundle.json"), "w"):
        pass
    assert call(store, "remove", "tiny") == EXIT_DONE  # an empty folder is not its own
    data = put(tmp_path, store, "1")
    os.makedirs(os.path.join(data.data, "digits"))
    with open(os.path.join(data.data, "digits", "0.csv"), "w"):
        pass
    assert call(store, "remove", "tiny") == Refused.exit_code
    assert "other:1, whose bundle.json cannot be read, needs the data of tiny:1" in capsys.readouterr().err


def test_archives_of_caches_go_with_the_last_image_of_their_layer(tmp_path):
    store = Store(str(tmp_path / "root"))
    first, second = put(tmp_path, store, "1"), put(tmp_path, store, "2")  # with the same layer
    (layer,) = {os.path.basename(image.layers[-1]) for image in (first, second)}
    archive = os.path.join(store.caches, layer.partition("-")[0] + "-0123.tar")
    other = os.path.join(store.caches, "f" * 32 + "-0123.tar")
    os.mkdir(store.caches, 0o700)
    for path in (archive, other):
        Path(path).write_text("")
    assert [item.path for item in gc.find(store, 1)][1:] == [first.folder, other]  # after the bundle
    call(store, "remove", "tiny:1")
    assert os.listdir(store.caches) == [os.path.basename(archive)]
    call(store, "remove", "tiny:2")
    assert os.listdir(store.caches) == []
    Path(archive).write_text("")
    call(store, "gc")
    assert os.listdir(store.caches) == []
    call(store, "remove", "--all")
    assert not os.path.exists(store.caches)
