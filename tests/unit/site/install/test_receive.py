import errno
import io
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from deployer.cli.site import main
from deployer.cli.site.meter import Meter
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, SpaceError, TransferError, UsageError
from deployer.contract.bundle import delta, sealed_file
from deployer.contract.bundle.delta import Ending
from deployer.site.install import gc, incoming, remove
from deployer.site.install import receive as receiving
from deployer.site.install.receive import receive
from deployer.system.trust import policy
from tests import bundles, forked
from tests.signing import TestKey, signed

APP = [("deployer/app/%d.py" % number, b"%d" % number * 3000) for number in range(5)]


def shipment(data, held=frozenset()):
    """Return (digest, [(name, bytes)]) of what a push of the bundle ``data`` would send."""
    seal = sealed_file.read_tail(data[-sealed_file.TAIL :], len(data))
    place = Ending(seal.offset, len(data) - seal.offset)
    packed = delta.compress(data[seal.offset :])
    manifest = delta.decompress(packed, place)[2]
    parts = delta.cut(delta.missing(manifest.segments, held))
    return seal.digest, [(place.name, packed)] + [(part.name, data[part.offset : part.end]) for part in parts]


def as_stream(items):
    parts = [b"%s %d\n" % (name.encode(), len(content)) + content for name, content in items]
    return io.BytesIO(b"".join(parts) + delta.END)


def here(store, data):
    """Return what the store says that it holds of the bundle ``data``."""
    return delta.read_held(delta.held_text(incoming.held(store, shipment(data)[0])))


def arrive(store, data, last=None):
    """Let what a push sends arrive, or but its last items; return (digest, items, their folder)."""
    digest, items = shipment(data, here(store, data))
    incoming.take(as_stream(items[:last]), store, digest)
    return digest, items, incoming.folder_of(store, digest)


def push(store, data):
    _, items, folder = arrive(store, data)
    return receive(folder, store), sum(len(content) for _, content in items)


def content(path):
    return Path(path).read_bytes()


def files_of(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def test_a_first_bundle_and_the_next_one(store):
    first, second = bundles.build(extra=APP), bundles.build(extra=[*APP[:3], ("deployer/app/n.py", b"new"), *APP[3:]])
    done, _ = push(store, first)
    assert content(done.bundle) == first
    done, cost = push(store, second)
    assert content(done.bundle) == second
    assert os.path.isfile(os.path.join(done.image.app, "n.py"))
    assert cost < len(first) / 5
    assert files_of(store.incoming) == []


def test_a_pipe_among_bundles_parts_or_endings_blocks_nobody(store):
    data = bundles.build(extra=APP)
    os.makedirs(store.bundles)
    os.mkfifo(os.path.join(store.bundles, "pipe.tar"))
    done, _ = push(store, data)
    assert content(done.bundle) == data
    assert [item.path for item in gc.find(store, 1)] == []
    other = bundles.build(extra=APP, version="2")
    digest, items = shipment(other)
    for number in (0, 1):
        incoming.take(as_stream(items), store, digest)
        path = os.path.join(incoming.folder_of(store, digest), items[number][0])
        os.unlink(path)
        os.mkfifo(path)
        with pytest.raises(DeployerError, match="not a regular file" if number == 0 else "neither in"):
            receive(incoming.folder_of(store, digest), store)
        os.unlink(path)


def test_what_is_installed_is_not_rebuilt(store):
    data = bundles.build()
    push(store, data)
    done, _ = push(store, data)
    assert (done.known, done.bundle) == (True, None)
    assert files_of(store.incoming) == []


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_stream_that_is_cut_anywhere_goes_on(store, share, monkeypatch):
    monkeypatch.setattr(delta, "PART_SIZE", 4000)
    data = bundles.build(extra=APP)
    digest, items = shipment(data)
    whole = as_stream(items).getvalue()
    with pytest.raises(TransferError):
        incoming.take(io.BytesIO(whole[: int(len(whole) * share)]), store, digest)
    folder = incoming.folder_of(store, digest)
    assert all(delta.read_name(name) for name in files_of(folder))  # nothing half under any name
    came = sum(os.path.getsize(os.path.join(folder, name)) for name in files_of(folder) if name.endswith(".part"))
    done, cost = push(store, data)
    assert content(done.bundle) == data
    assert cost <= sum(len(content) for _, content in items) - came
    assert share < 0.5 or came > 0


def test_a_stream_that_is_cut_between_two_parts_is_not_complete(store):
    digest, items = shipment(bundles.build())
    with pytest.raises(TransferError, match="between two parts"):
        incoming.take(io.BytesIO(as_stream(items).getvalue()[: -len(delta.END)]), store, digest)
    assert len(files_of(incoming.folder_of(store, digest))) == len(items)  # they are not sent again


def test_noise_is_no_part(store):
    with pytest.raises(TransferError, match="Welcome"):
        incoming.take(io.BytesIO(b"Welcome to login1\n"), store, "sha256:" + "0" * 64)
    with pytest.raises(TransferError, match="instead of a part"):
        incoming.take(io.BytesIO(b"../../../etc/cron.d/x 5\nhello"), store, "sha256:" + "0" * 64)
    with pytest.raises(UsageError, match="is not a digest"):
        incoming.take(io.BytesIO(b""), store, "sha256:../..")


def test_a_full_disk_is_named_and_leaves_no_half_part(store, monkeypatch):
    def full(source, target, size):
        target.write(b"half")
        raise OSError(28, "No space left on device")

    digest, items = shipment(bundles.build())
    monkeypatch.setattr(incoming, "copy", full)
    with pytest.raises(SpaceError, match="No space left"):
        incoming.take(as_stream(items), store, digest)
    assert files_of(incoming.folder_of(store, digest)) == []


def test_parts_that_are_missing(store):
    _, _, folder = arrive(store, bundles.build(), -1)
    with pytest.raises(UsageError, match="bytes of the bundle are neither in"):
        receive(folder, store)
    assert files_of(store.bundles) == files_of(store.images) == []


@pytest.mark.parametrize("again", [False, True])
def test_space_is_asked_for_before_a_bundle_is_rebuilt(store, tmp_path, monkeypatch, again):
    """The image of a bundle that came before may be shared: then only the bundle itself is certain to need space."""
    if again:
        push(store, bundles.build())
    data = bundles.build(extra=APP, version="2")
    media = tmp_path / "media"
    media.mkdir()
    for name, content in shipment(data)[1]:
        (media / name).write_bytes(content)
    asked = []
    monkeypatch.setattr(receiving.space, "check", lambda folder, size, entries: asked.append((folder, size)))
    monkeypatch.setattr(receiving, "rebuild", lambda *_, **__: pytest.fail("it was not asked") if not asked else stop())

    def stop():
        raise SpaceError("enough")

    with pytest.raises(SpaceError, match="enough"):
        receive(str(media), store)
    manifest = incoming.open_parcel(str(media)).manifest
    assert asked == [(store.images, len(data) + (0 if again else manifest.unpacked))]


def test_a_folder_with_no_parts_or_two_bundles(store, tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(UsageError, match="no bundle's parts"):
        receive(str(tmp_path / "a"), store)
    with pytest.raises(UsageError, match="cannot read"):
        receive(str(tmp_path / "b"), store)
    for extra in ([], APP):
        for name, data in shipment(bundles.build(extra=extra))[1]:
            (tmp_path / "a" / name).write_bytes(data)
    with pytest.raises(UsageError, match="several"):
        receive(str(tmp_path / "a"), store)


def test_a_damaged_kept_bundle_is_named(store):
    data = bundles.build(extra=APP)
    done, _ = push(store, data)
    remove.remove(store, done.image)
    bundles.flip(done.bundle, 600)
    with pytest.raises(IntegrityError, match=r"tiny-1\.0\.tar is damaged") as caught:
        push(store, data)
    assert "remove that file" in caught.value.hint
    assert files_of(store.images) == []
    os.unlink(done.bundle)
    assert content(push(store, data)[0].bundle) == data


def test_a_damaged_part_on_media_stays_and_is_named(store, tmp_path):
    _, items = shipment(bundles.build())
    for name, data in items:
        (tmp_path / name).write_bytes(data[:-1] + b"?" if name.endswith(".part") else data)
    with pytest.raises(IntegrityError, match=r"\.part is damaged"):
        receive(str(tmp_path), store)
    assert all((tmp_path / name).exists() for name, _ in items)
    assert files_of(store.bundles) == files_of(store.images) == []


def test_a_damaged_kept_bundle_is_found_by_install(store, monkeypatch):
    """Its segments are copied unchecked first, and the parts that came are kept until it is installed."""
    first, second = bundles.build(extra=APP), bundles.build(extra=[*APP, ("deployer/app/n.py", b"new")])
    kept = push(store, first)[0].bundle
    monkeypatch.setattr(receiving, "LITTLE", 1)
    bundles.overwrite(kept, b"!", first.index(APP[1][1]))
    _, _, folder = arrive(store, second)
    before = files_of(folder)
    with pytest.raises(IntegrityError, match=r"tiny-1\.0\.tar is damaged") as caught:
        receive(folder, store)
    assert "remove that file" in caught.value.hint
    assert files_of(folder) == before
    assert len(store.installed()) == 1
    os.unlink(kept)
    assert content(push(store, second)[0].bundle) == second


def test_a_kept_file_that_is_no_bundle_holds_nothing(store):
    os.makedirs(store.bundles)
    Path(store.bundles, "odd.tar").write_bytes(b"x" * 20000)
    data = bundles.build()
    assert content(push(store, data)[0].bundle) == data


def test_a_receive_that_was_killed_before_install_goes_on(store, monkeypatch):
    data = bundles.build()
    (ending, packed), *_ = shipment(data)[1]
    digest, _ = kill_before(store, monkeypatch, data)
    assert delta.missing(delta.decompress(packed, delta.read_name(ending))[2].segments, here(store, data)) == []
    assert content(receive(incoming.folder_of(store, digest), store).bundle) == data


def kill_before(store, monkeypatch, data, step="install"):
    """Receive the bundle ``data`` until a step of it; return its digest and the assembled file."""
    digest, _, folder = arrive(store, data)
    with monkeypatch.context() as patched:
        patched.setattr(receiving, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            receive(folder, store)
    return digest, os.path.join(folder, incoming.BUNDLE)


def test_what_a_killed_receive_assembled_from_a_damaged_bundle_is_assembled_again(store, monkeypatch):
    first, second = bundles.build(extra=APP), bundles.build(extra=[*APP, ("deployer/app/n.py", b"new")])
    kept = push(store, first)[0].bundle
    monkeypatch.setattr(receiving, "LITTLE", 1)
    bundles.overwrite(kept, b"!", first.index(APP[1][1]))
    digest, assembled = kill_before(store, monkeypatch, second)
    assert os.path.isfile(assembled)
    with pytest.raises(IntegrityError, match=r"tiny-1\.0\.tar is damaged"):
        receive(incoming.folder_of(store, digest), store)
    assert not os.path.exists(assembled)
    os.unlink(kept)
    assert content(push(store, second)[0].bundle) == second


def test_a_file_that_was_damaged_after_a_kill_is_removed_if_its_parts_are_gone(store, monkeypatch):
    data = bundles.build(extra=APP)
    digest, assembled = kill_before(store, monkeypatch, data)
    bundles.overwrite(assembled, b"!", data.index(APP[1][1]))
    with pytest.raises(IntegrityError, match=r"bundle\.tar") as caught:
        receive(incoming.folder_of(store, digest), store)
    assert "push" in caught.value.hint
    assert not os.path.exists(assembled)
    assert content(push(store, data)[0].bundle) == data


def test_a_whole_file_stays_when_its_signature_is_wrong(store, monkeypatch):
    data = bundles.build(extra=APP)
    digest, assembled = kill_before(store, monkeypatch, data)
    folder = incoming.folder_of(store, digest)
    before = files_of(folder)

    def wrong(*_):
        raise IntegrityError("the signature is wrong")

    with monkeypatch.context() as patched:
        patched.setattr(receiving, "install", wrong)
        with pytest.raises(IntegrityError, match="signature"):
            receive(folder, store)
    assert content(assembled) == data
    assert files_of(folder) == before


@pytest.mark.parametrize("little", [0, 1])
def test_a_bundle_that_is_signed_after_a_refusal_is_installed_by_the_next_push(store, monkeypatch, little):
    """The signature is in the end of the file, and the digest is the same: what was assembled has the old end."""
    monkeypatch.setattr(receiving, "LITTLE", little)
    key = TestKey(seed=1)
    os.makedirs(store.root)
    policy.pin_policy(store.root, key.allowed())
    data = bundles.build(extra=APP)
    for refused in (data, signed(data, TestKey(seed=2))):
        with pytest.raises(Refused):
            push(store, refused)
    received, sent = push(store, signed(data, key))
    assert content(received.bundle) == signed(data, key)
    assert sent < len(data) / 4
    assert files_of(store.incoming) == []


def test_a_file_that_a_power_failure_emptied_is_assembled_again(store, monkeypatch):
    first, second = bundles.build(extra=APP), bundles.build(extra=[*APP, ("deployer/app/n.py", b"new")])
    push(store, first)
    monkeypatch.setattr(receiving, "LITTLE", 1)
    digest, assembled = kill_before(store, monkeypatch, second)
    for left in (0, len(second) - 5):
        os.truncate(assembled, left)
        assert main.main(["known", digest, "--root", store.root, "--json"]) == 0
    assert content(receive(incoming.folder_of(store, digest), store).bundle) == second
    assert files_of(store.incoming) == []


@pytest.mark.parametrize("little", [0, 1])
def test_a_bundle_is_on_disk_before_it_is_kept_and_before_its_parts_are_removed(store, monkeypatch, little):
    monkeypatch.setattr(receiving, "LITTLE", little)
    steps = []
    fsync, replace, remove_parts = os.fsync, os.replace, incoming.Parcel.remove_parts

    def note(name, real, *arguments):
        steps.append(name)
        return real(*arguments)

    monkeypatch.setattr(os, "fsync", lambda descriptor: note("flush", fsync, descriptor))

    def moved(old, new):
        name = "keep" if new.startswith(store.bundles) else "name" if new.endswith(incoming.BUNDLE) else "part"
        note(name, replace, old, new)

    monkeypatch.setattr(os, "replace", moved)
    monkeypatch.setattr(incoming.Parcel, "remove_parts", lambda parcel: note("remove", remove_parts, parcel))
    push(store, bundles.build(extra=APP))
    expected = ["name", "flush", "keep"] if little else ["flush", "name", "remove", "flush", "keep"]
    assert [step for step in steps if step in expected][: len(expected)] == expected


def test_a_bundle_that_cannot_be_flushed_is_not_kept(store, monkeypatch):
    data = bundles.build(extra=APP)
    monkeypatch.setattr(receiving, "LITTLE", 1)
    digest, assembled = kill_before(store, monkeypatch, data)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        done = receive(incoming.folder_of(store, digest), store)
    assert (done.known, done.bundle) == (True, None)  # the image is whole
    assert not os.path.exists(assembled)
    assert files_of(store.bundles) == []


def arrived_late(store, monkeypatch):
    """Return two bundles, of which the first is kept, the digest of the second, and what installs that."""
    first, second = bundles.build(extra=APP), bundles.build(extra=[*APP, ("deployer/app/n.py", b"new")])
    push(store, first)
    monkeypatch.setattr(receiving, "LITTLE", 1)
    digest, _, folder = arrive(store, second)
    return first, second, digest, lambda late: receive(folder, store, late=late)


def test_a_job_can_start_before_its_bundle_is_on_disk(store, monkeypatch):
    first, second, digest, install = arrived_late(store, monkeypatch)
    flushed, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (flushed.append(os.fstat(descriptor).st_ino), fsync(descriptor))
    )
    with receiving.settled(store, digest) as late:
        done = install(late)
        assert content(done.bundle) == second
        assert content(os.path.join(incoming.folder_of(store, digest), incoming.BUNDLE)) == first  # until it is on disk
        assert os.stat(done.bundle).st_ino not in flushed
    assert os.stat(done.bundle).st_ino in flushed
    assert files_of(store.incoming) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_receive_that_was_killed_before_its_bundle_is_on_disk_loses_nothing(store, monkeypatch, lost):
    _, second, digest, install = arrived_late(store, monkeypatch)
    kept = install(receiving.Late()).bundle
    if lost:  # by a power failure
        os.truncate(kept, 0)
        third = bundles.build(extra=[*APP, ("deployer/app/n.py", b"third")])
        assert push(store, third)[1] < len(third) / 2
        assert content(kept) == third
    assert main.main(["known", digest, "--root", store.root, "--json"]) == 0
    assert files_of(store.incoming) == []
    assert lost or content(kept) == second


def test_without_hard_links_a_bundle_is_on_disk_before_it_replaces_another(store, monkeypatch):
    _, second, digest, install = arrived_late(store, monkeypatch)
    steps, replace = [], os.replace
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EPERM, "no links")))
    monkeypatch.setattr(receiving.files, "flush", lambda path: steps.append(("flush", os.path.basename(path))))
    monkeypatch.setattr(
        os, "replace", lambda old, new: (steps.append(("name", os.path.basename(new))), replace(old, new))
    )
    with receiving.settled(store, digest) as late:
        kept = install(late).bundle
        assert steps.index(("flush", incoming.BUNDLE)) < steps.index(("name", "tiny-1.0.tar"))
    assert content(kept) == second
    assert files_of(store.incoming) == []


def test_a_bundle_that_cannot_be_flushed_later_is_removed_with_a_warning(store, monkeypatch, capsys):
    _, _, digest, install = arrived_late(store, monkeypatch)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with receiving.settled(store, digest) as late:
        done = install(late)
        monkeypatch.setattr(os, "fsync", full)
    assert not os.path.exists(done.bundle)
    assert os.path.isfile(os.path.join(done.image.folder, "receipt.json"))
    assert "warning: cannot write" in capsys.readouterr().err


def test_parts_that_cannot_be_removed_after_a_submission_are_no_error(store, monkeypatch, capsys):
    _, second, digest, install = arrived_late(store, monkeypatch)

    def busy(path):
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with receiving.settled(store, digest) as late:
        kept = install(late).bundle
        monkeypatch.setattr(receiving.files, "remove_tree", busy)
    assert content(kept) == second
    assert capsys.readouterr().err == ""


def test_a_second_name_that_another_push_removes_is_no_error(store, monkeypatch):
    _, second, digest, install = arrived_late(store, monkeypatch)
    rename = os.rename

    def remove_first(old, new):
        if old.endswith(".tmp"):
            os.unlink(old)
        rename(old, new)

    with receiving.settled(store, digest) as late, monkeypatch.context() as patched:
        patched.setattr(os, "rename", remove_first)
        done = install(late)
    assert content(done.bundle) == second
    assert files_of(store.incoming) == []


def test_what_another_push_removes_while_it_is_listed_is_no_error(store, monkeypatch):
    digest, items, folder = arrive(store, bundles.build(extra=APP))
    gone, listdir = items[1][0], os.listdir
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda path: [*listdir(path), *(["x.begun"] if path == folder else [])])
        assert incoming.open_parcel(folder).begun == []
        assert set(incoming.held(store, digest))
        for name in (gone, items[0][0]):  # a part, and then the ending
            names = listdir(folder)
            patched.setattr(os, "listdir", lambda path, names=names: names if path == folder else listdir(path))
            os.unlink(os.path.join(folder, name))
            assert set(incoming.held(store, digest)) == set()


def test_a_receive_that_was_killed_after_install_keeps_the_bundle_the_next_time(store, monkeypatch):
    data = bundles.build()
    digest, _ = kill_before(store, monkeypatch, data, "keep")
    assert files_of(store.bundles) == []
    assert main.main(["known", digest, "--root", store.root, "--json"]) == 0
    assert content(os.path.join(store.bundles, "tiny-1.0.tar")) == data
    assert files_of(store.incoming) == []


def test_parts_that_cannot_be_removed_do_not_fail_an_install(store, monkeypatch):
    def denied(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    digest, _, folder = arrive(store, bundles.build())
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda path, **_: denied(path))
        said = []
        patched.setattr(incoming._log, "debug", lambda text, *values: said.append(text % values))
        done = receive(folder, store)
        assert [line.partition(":")[0] for line in said] == [folder + " stays"]
        assert content(done.bundle) == bundles.build()
        assert main.main(["known", digest, "--root", store.root, "--json"]) == 0
        left = os.path.join(folder, "5-6.part.99.tmp")
        open(left, "w").close()
        os.utime(left, (1, 1))
        patched.setattr("os.unlink", denied)  # another user's, in a group's root folder
        incoming.remove_stale(store)
    assert main.main(["known", digest, "--root", store.root, "--json"]) == 0
    assert files_of(store.incoming) == []


def test_what_nobody_took_up_again_is_removed(store):
    old, new = shipment(bundles.build(version="1")), shipment(bundles.build(version="2"))
    incoming.take(as_stream(old[1]), store, old[0])
    folder = incoming.folder_of(store, old[0])
    os.utime(folder, (1, 1))
    incoming.take(as_stream(new[1]), store, new[0])
    incoming.remove_stale(store)
    assert not os.path.exists(folder)
    left = os.path.join(incoming.folder_of(store, new[0]), "5-6.part.99.tmp")
    open(left, "w").close()
    os.utime(left, (1, 1))
    incoming.remove_stale(store)
    assert not os.path.exists(left)
    assert len(files_of(incoming.folder_of(store, new[0]))) == len(new[1])


@pytest.mark.thorough
def test_a_receive_that_is_killed_anywhere_ends_whole_the_next_time(store):
    chance = random.Random(30)
    for number in range(30):
        data = bundles.build(extra=APP, version=str(number))
        digest, items = shipment(data)
        incoming.take(as_stream(items), store, digest)
        folder = incoming.folder_of(store, digest)
        child = forked.fork(lambda folder=folder: receive(folder, store))
        time.sleep(chance.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done, _ = push(store, data)
        assert content(os.path.join(store.bundles, "tiny-%d.tar" % number)) == data, done
        assert content(os.path.join(done.image.rootfs, "bin", "tool")) == b"#!/bin/sh"
        assert files_of(store.incoming) == []


def test_two_at_once_both_end_well(store, monkeypatch):
    digest, _, folder = arrive(store, bundles.build(extra=APP))
    opened = incoming.open_parcel

    def overtaken(where):
        """Let another receive begin and end between this one's first look and the next."""
        parcel = opened(where)
        monkeypatch.setattr(incoming, "open_parcel", opened)
        receive(folder, store)
        return parcel

    monkeypatch.setattr(incoming, "open_parcel", overtaken)
    done = receive(folder, store)
    assert (done.known, done.image.receipt.digest) == (True, digest)
    assert files_of(store.incoming) == []


def test_parts_that_go_away_are_said_to_be_another_s(store):
    _, _, folder = arrive(store, bundles.build(extra=APP))

    def taken_away(*_):
        for name in os.listdir(folder):
            if name.endswith(".part"):
                os.unlink(os.path.join(folder, name))

    with pytest.raises(TransferError) as caught:
        receive(folder, store, taken_away)
    assert "push again" in caught.value.hint


def test_gc_takes_pushes_that_nobody_took_up_again(store):
    _, _, folder = arrive(store, bundles.build(extra=APP), -1)
    assert gc.find(store, 2) == []
    long_ago = time.time() - 15 * 24 * 3600
    os.utime(folder, (long_ago, long_ago))
    found = gc.find(store, 2)
    assert [item.path for item in found] == [folder]
    gc.collect(found)
    assert files_of(store.incoming) == []


def test_progress_for_a_laptop_comes_in_lines(monkeypatch, capsys):
    monkeypatch.setenv("DEPLOYER_PROGRESS", "1")
    meter = Meter("install")
    meter(10, 100)
    meter(10, 100)  # too soon
    meter.last = 0.0
    meter(30, 100)
    meter.last = 0.0
    meter(5, 70)  # the next stage
    meter.__exit__()
    lines = ["deployer-progress:10 100", "deployer-progress:50 100", "deployer-progress:5 70"]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_laptop_that_is_gone_does_not_end_an_install(monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def isatty(self):
            return False

    monkeypatch.setenv("DEPLOYER_PROGRESS", "1")
    monkeypatch.setattr(sys, "stderr", Gone())
    meter = Meter("install")
    meter(10, 100)
    meter.__exit__()
    assert not meter.told
