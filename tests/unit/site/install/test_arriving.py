import errno
import io
import multiprocessing
import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from deployer.contract.base import tarformat
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, SpaceError, TransferError
from deployer.contract.base.tarformat import FILES, REST, TarEntry
from deployer.contract.bundle import delta
from deployer.site.install import arriving, incoming
from deployer.site.install import receive as receiving
from deployer.site.storage import inventory, space
from deployer.system import workers
from tests import bundles, forked
from tests.signing import TestKey
from tests.unit.site.install.test_receive import APP, as_stream, content, files_of, here, shipment
from tests.wheels import file_name, wheel

MORE = [*APP, *(("deployer/app/more%d.py" % number, os.urandom(5000)) for number in range(4))]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(delta, "PART_SIZE", 6000)
    monkeypatch.setattr(arriving.receiving, "LITTLE", 0)


def items_of(store, data):
    return shipment(data, here(store, data))


def push(store, data):
    """Return the result, and how many bytes were sent."""
    digest, items = items_of(store, data)
    return arriving.take(as_stream(items), store, digest), sum(len(content) for _, content in items)


def nothing_is_installed(store):
    return files_of(store.images) == files_of(store.layers) == files_of(store.bundles) == []


def cut(items):
    """Return a stream that is cut after ``items``."""
    return io.BytesIO(as_stream(items).getvalue()[: -len(delta.END)])


class Line(io.BytesIO):
    """A stream that calls something before it yields what is after ``place``."""

    def __init__(self, data, place, call):
        super().__init__(data)
        self.place, self.call = place, call

    def readline(self, *limit):
        if self.call and self.tell() >= self.place:
            call, self.call = self.call, None
            multiprocessing.current_process()._config["daemon"] = False  # it may start workers of its own
            call()
        return super().readline(*limit)


def line(items, call, left=1):
    """Return a stream of ``items`` that calls something before the last ones."""
    return Line(as_stream(items).getvalue(), len(as_stream(items[:-left]).getvalue()) - len(delta.END), call)


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [0, 2])
def test_what_has_arrived_is_unpacked_before_the_last_part_arrives(store, monkeypatch, processes):
    monkeypatch.setattr(workers, "suitable", lambda size: processes)
    large = os.urandom(20_000)
    header = tarformat.encode(TarEntry(tarformat.FILE, b"large", 0o644, len(large)))
    padding = b"\0" * tarformat.padding(len(large))
    pieces = [
        *bundles.whole(bundles.ENTRIES)[:2],
        (FILES, header + large[:8000]),
        (REST, large[8000:] + padding),
        *bundles.whole(bundles.ENTRIES)[2:],
    ]
    demo = ("deployer/wheels/" + file_name(), wheel({"demo/__init__.py": os.urandom(9000)}))
    data = bundles.build(pieces, extra=[demo, *MORE])
    digest, items = shipment(data)

    def wait():
        end = time.monotonic() + 30
        while not any(names for _, _, names in os.walk(store.layers)):
            assert time.monotonic() < end, "nothing is unpacked"
            time.sleep(0.01)

    done = arriving.take(line(items, wait, left=len(items) - 3), store, digest)
    image = done.image
    assert not done.known
    assert content(done.bundle) == data
    assert content(os.path.join(image.rootfs, "large")) == large
    assert content(os.path.join(image.app, "3.py")) == APP[3][1]
    assert files_of(os.path.join(image.wheels, "lib", "demo")) == ["__init__.py"]
    assert files_of(store.incoming) == []


def test_a_next_bundle_of_which_much_is_new(store):
    first, second = bundles.build(extra=APP), bundles.build(extra=[*APP[:2], ("deployer/app/n.py", b"new"), *MORE[2:]])
    push(store, first)
    done, cost = push(store, second)
    assert content(done.bundle) == second
    assert cost < len(second) - 10_000
    assert len(store.installed()) == 2


def test_content_that_occurs_twice_is_sent_once(store):
    twice = os.urandom(7000)
    data = bundles.build(extra=[("deployer/app/%d" % number, twice) for number in range(3)])
    done, cost = push(store, data)
    assert content(done.bundle) == data
    assert cost < len(data) - 14_000


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.3, 0.7, 0.95, 0.9999])
def test_a_line_that_is_cut_in_the_middle_of_the_install(store, share):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    whole = as_stream(items).getvalue()
    with pytest.raises(TransferError, match="the connection closed"):
        arriving.take(io.BytesIO(whole[: int(len(whole) * share)]), store, digest)
    assert nothing_is_installed(store)
    folder = incoming.folder_of(store, digest)
    assert {os.path.splitext(name)[1] for name in files_of(folder)} <= {".end", ".part", ".begun"}
    came = incoming.open_parcel(folder).begun[0].size
    assert came > len(data) * share / 2
    done, cost = push(store, data)
    assert cost <= sum(len(content) for _, content in items) - came + 6000
    assert content(done.bundle) == data
    assert files_of(store.incoming) == []


@pytest.mark.thorough
def test_each_push_that_is_cut_goes_on_from_the_last_and_leaves_one_beginning(store):
    data = bundles.build(extra=MORE)
    digest = shipment(data)[0]
    sizes = []
    for _ in range(4):
        stream = as_stream(items_of(store, data)[1]).getvalue()
        with pytest.raises(TransferError):
            arriving.take(io.BytesIO(stream[: len(stream) * 2 // 3]), store, digest)
        begun = incoming.open_parcel(incoming.folder_of(store, digest)).begun
        sizes.append(begun[0].size)
        assert len(begun) <= 2  # the last one may have less than the one before, by less than a part
    assert sizes == sorted(sizes)
    assert content(push(store, data)[0].bundle) == data


@pytest.mark.thorough
def test_a_push_that_still_works_keeps_its_beginning(store):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)

    def other():
        with pytest.raises(TransferError):
            arriving.take(cut(items_of(store, data)[1]), store, digest)
        assert len(incoming.open_parcel(incoming.folder_of(store, digest)).begun) == 2

    done = arriving.take(line(items, other, left=2), store, digest)
    assert content(done.bundle) == data


def test_two_at_once_both_end_well(store):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    done = arriving.take(line(items, lambda: push(store, data)), store, digest)
    assert (done.known, done.image.receipt.digest) == (True, digest)
    assert content(os.path.join(store.bundles, "tiny-1.0.tar")) == data
    assert files_of(store.incoming) == []


def test_damage_on_the_way_is_named_and_sent_again(store):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    stream = bytearray(as_stream(items).getvalue())
    stream[stream.index(MORE[6][1]) + 9] ^= 1
    with pytest.raises(IntegrityError, match=r"\.begun: the data at byte \d+ does not match its digest"):
        arriving.take(io.BytesIO(stream), store, digest)
    assert nothing_is_installed(store)
    done, cost = push(store, data)
    assert content(done.bundle) == data
    assert cost < len(data) / 2


@pytest.mark.thorough
@pytest.mark.parametrize("little", [0, 2])
@pytest.mark.parametrize("whole", [True, False])
def test_the_push_after_a_damaged_stream_works(store, monkeypatch, little, whole):
    """Also if the line was cut after the damage, so that the cut was the error, or if more than one part is damaged."""
    monkeypatch.setattr(arriving.receiving, "LITTLE", little)
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    stream = bytearray((as_stream(items) if whole else cut(items[:-1])).getvalue())
    for _, added in MORE[4:7]:
        stream[stream.index(added) + 9] ^= 1
    with pytest.raises(IntegrityError if whole else DeployerError):
        arriving.take(io.BytesIO(stream), store, digest)
    assert nothing_is_installed(store)
    assert content(push(store, data)[0].bundle) == data


def test_damage_of_what_an_earlier_push_left_is_named_and_sent_again(store):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    with pytest.raises(TransferError):
        arriving.take(cut(items[:-1]), store, digest)
    (begun,) = incoming.open_parcel(incoming.folder_of(store, digest)).begun
    bundles.flip(begun.path, data.index(MORE[5][1]))
    with pytest.raises(IntegrityError, match="is damaged"):
        push(store, data)
    assert nothing_is_installed(store)
    assert content(push(store, data)[0].bundle) == data


def test_a_policy_refuses_before_the_rest_arrives(store):
    os.makedirs(store.root)
    with open(os.path.join(store.root, "policy.json"), "w") as stream:
        stream.write('{"schema": "deployer.policy", "format": 1, "min_reader": 1, "require_signature": true, ')
        stream.write('"allowed_signers": "signers"}')
    Path(store.root, "signers").write_text(f'me namespaces="deployer-bundle" {TestKey(seed=1).key.line}\n')
    digest, items = shipment(bundles.build(extra=MORE))
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as stream, os.fdopen(theirs, "wb", buffering=0) as laptop:
        laptop.write(cut(items[:2]).getvalue())  # and the line stays open
        with pytest.raises(Refused):
            arriving.take(stream, store, digest)
    assert nothing_is_installed(store)


@pytest.mark.thorough
def test_what_does_not_belong_to_the_bundle_is_refused(store):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    for wrong in (("5-6000.part", b"x" * 6000), items[0], items[1], ("%d-9.part" % len(data), b"x" * 9)):
        with pytest.raises(TransferError, match="instead of a part"):
            arriving.take(as_stream([*items[:3], wrong]), store, digest)
        assert nothing_is_installed(store)
    assert content(push(store, data)[0].bundle) == data


def test_parts_that_are_missing_are_named(store):
    digest, items = shipment(bundles.build(extra=MORE))
    with pytest.raises(DeployerError, match="neither in"):
        arriving.take(as_stream(items[:-1]), store, digest)
    assert nothing_is_installed(store)


def test_space_is_checked_for_image_and_bundle_when_the_manifest_has_arrived(store, monkeypatch):
    def full(folder, size, entries):
        raise SpaceError("%d bytes" % size)

    monkeypatch.setattr(space, "check", full)
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    with pytest.raises(SpaceError) as caught:
        arriving.take(as_stream(items), store, digest)
    raw = sum(len(piece) for _, piece in bundles.whole(bundles.ENTRIES))
    need = int(caught.value.message.split()[0]) - raw - sum(len(file) for _, file in MORE)
    assert 0 <= need <= len(data)
    assert nothing_is_installed(store)

    class Stuck(io.BytesIO):
        def readline(self, *limit):
            return super().readline(*limit) if self.tell() == 0 else time.sleep(60)

    with pytest.raises(SpaceError) as caught:
        arriving.take(Stuck(as_stream(items).getvalue()), store, digest)
    assert int(caught.value.message.split()[0]) > raw + len(data) - 20_000


def test_a_disk_that_fills_up_while_parts_arrive(store):
    def full():
        raise OSError(28, "No space left on device")

    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    with pytest.raises(SpaceError, match="No space left") as caught:
        arriving.take(line(items, full), store, digest)
    assert "received parts stay" in caught.value.hint
    assert nothing_is_installed(store)
    assert push(store, data)[1] < len(data) / 2


def test_a_receiver_that_is_killed_ends_the_install(store):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    with pytest.raises(DeployerError, match="killed by signal 9"):
        arriving.take(line(items, lambda: os.kill(os.getpid(), signal.SIGKILL)), store, digest)
    assert nothing_is_installed(store)
    assert content(push(store, data)[0].bundle) == data


@pytest.mark.parametrize("removed", [False, True])
def test_a_kept_bundle_that_is_replaced_while_parts_arrive_is_not_called_damaged(store, removed):
    first = bundles.build(extra=MORE)
    kept = push(store, first)[0].bundle
    second = bundles.build(extra=[("deployer/app/0new.py", os.urandom(9000)), *MORE], version="2")
    digest, items = items_of(store, second)

    def replace():
        os.unlink(kept)
        if not removed:  # the same content is at other places
            Path(kept).write_bytes(bundles.build(extra=[("deployer/app/0other.py", os.urandom(3000)), *MORE]))

    stream = line(items, replace, left=len(items) - 1)
    if removed:
        with pytest.raises(DeployerError, match=r"neither in .* nor in a kept bundle"):
            arriving.take(stream, store, digest)
    else:
        assert content(arriving.take(stream, store, digest).bundle) == second


def test_an_image_that_is_whole_without_its_bundle_s_end_is_installed_with_a_warning(store, monkeypatch):
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    write, ending = incoming.write, delta.read_name(items[0][0])

    def full(target, written):
        if len(written) == ending.size:
            raise OSError(28, "No space left on device")
        write(target, written)

    monkeypatch.setattr(incoming, "write", full)
    done = arriving.take(as_stream(items), store, digest)
    assert (done.known, done.bundle) == (False, None)
    assert "No space left on device: the bundle is not kept" in done.warnings[-1]
    assert inventory.whole(store, digest)
    assert files_of(store.bundles) == files_of(store.incoming) == []


def test_a_link_in_the_place_of_a_beginning_damages_no_other_file(store, tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    digest, items = shipment(bundles.build(extra=MORE))
    stream = bytearray(as_stream(items).getvalue())
    stream[stream.index(MORE[6][1]) + 9] ^= 1
    place = len(as_stream(items[:2]).getvalue()) - len(delta.END)

    def replace():
        (begun,) = incoming.open_parcel(incoming.folder_of(store, digest)).begun
        os.unlink(begun.path)
        os.symlink(str(mine), begun.path)

    with pytest.raises(IntegrityError, match="digest"):
        arriving.take(Line(stream, place, replace), store, digest)
    assert mine.read_bytes() == b"mine"
    assert incoming.open_parcel(incoming.folder_of(store, digest)).begun == []  # a link is none


def test_a_pipe_in_the_place_of_a_beginning_blocks_nobody(tmp_path):
    path = str(tmp_path / "x.begun")
    os.mkfifo(path)
    incoming.remove_unlocked(path)
    assert os.path.exists(path)


def test_a_beginning_that_another_push_still_writes_is_not_removed(store):
    digest, items = shipment(bundles.build(extra=MORE))
    with pytest.raises(TransferError):
        arriving.take(cut(items), store, digest)
    parcel = incoming.open_parcel(incoming.folder_of(store, digest))
    (begun,) = parcel.begun
    damaged = parcel.manifest.segments[0]

    def read():
        sources = receiving.SegmentSources(parcel, store)
        with pytest.raises(IntegrityError, match="is damaged"), closing(sources):
            sources.content(damaged)
        return os.path.exists(begun.path)

    with open(begun.path, "r+b", buffering=0) as other:
        other.write(b"?")
        incoming.lock(other)
        parcel.remove_parts()
        assert read()
    assert not read()


@pytest.mark.thorough
def test_without_locks_a_beginning_is_removed_when_nobody_has_written_it_for_a_while(store, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    with pytest.raises(TransferError):
        arriving.take(cut(items[:3]), store, digest)  # as a push that still works leaves its file
    (begun,) = incoming.open_parcel(incoming.folder_of(store, digest)).begun
    with pytest.raises(TransferError):
        arriving.take(cut(items[:4]), store, digest)
    assert os.path.exists(begun.path)
    os.utime(begun.path, (1, 1))
    with pytest.raises(TransferError):
        arriving.take(cut(items[:5]), store, digest)
    assert not os.path.exists(begun.path)
    (first, *_) = incoming.open_parcel(incoming.folder_of(store, digest)).begun
    bundles.overwrite(first.path, b"?")
    with pytest.raises(IntegrityError, match="is damaged"):
        push(store, data)
    assert not os.path.exists(first.path)
    while True:  # each beginning that is damaged costs one push at most
        try:
            done, _ = push(store, data)
            break
        except IntegrityError:
            continue
    assert content(done.bundle) == data
    assert files_of(store.incoming) == []


def test_damage_of_content_that_occurs_twice_loses_only_the_rest(store):
    twice = os.urandom(5000)
    files = [*MORE, ("deployer/app/one.py", twice), ("deployer/app/two.py", twice)]
    data = bundles.build(extra=files)
    digest, items = shipment(data)
    stream = bytearray(as_stream(items).getvalue())
    stream[stream.index(twice) + 9] ^= 1
    with pytest.raises(IntegrityError):
        arriving.take(io.BytesIO(stream), store, digest)
    (begun,) = incoming.open_parcel(incoming.folder_of(store, digest)).begun
    assert begun.size <= data.index(twice)
    done, cost = push(store, data)
    assert content(done.bundle) == data
    assert cost < len(data) / 2


def test_a_beginning_is_kept_as_long_as_parts_are(store):
    digest, items = shipment(bundles.build(extra=MORE))
    with pytest.raises(TransferError):
        arriving.take(cut(items), store, digest)
    (begun,) = incoming.open_parcel(incoming.folder_of(store, digest)).begun
    os.utime(begun.path, (1, 1))
    incoming.remove_stale(store)
    assert os.path.exists(begun.path)


@pytest.mark.thorough
def test_no_changed_byte_of_the_stream_is_installed(store):
    chance = random.Random(62)
    data = bundles.build(extra=MORE)
    digest, items = shipment(data)
    whole = as_stream(items).getvalue()
    for _ in range(60):
        stream = bytearray(whole)
        stream[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        with pytest.raises(DeployerError):
            arriving.take(io.BytesIO(stream), store, digest)
        assert nothing_is_installed(store)
        incoming.discard(store, digest)


@pytest.mark.thorough
def test_a_push_that_is_killed_anywhere_ends_whole_the_next_time(store):
    chance = random.Random(62)
    for number in range(15):
        data = bundles.build(extra=MORE, version=str(number))
        digest, items = items_of(store, data)
        child = forked.fork(lambda items=items, digest=digest: arriving.take(as_stream(items), store, digest))
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if not inventory.whole(store, digest):
            push(store, data)
        image = inventory.whole(store, digest)
        receiving.finish(store, digest, image)
        assert content(os.path.join(store.bundles, "tiny-%d.tar" % number)) == data
        assert content(os.path.join(image.rootfs, "bin", "tool")) == b"#!/bin/sh"
        assert files_of(store.incoming) == []
