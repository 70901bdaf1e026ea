"""Bundles that a hostile holder of a trusted key made: sealed again and signed again, so that only the rules are left.

Each is refused with its exit code, and nothing of it stays. The same from somebody whom no policy knows is refused
before anything is parsed.
"""

import json
import os

import pytest

from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.contract.bundle import manifest as manifests
from deployer.contract.bundle import oci, sealed_file, sshsig
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from deployer.system.trust import policy
from tests import bundles, signing
from tests.attack.test_layers import HOSTILE
from tests.signing import TestKey

KEY, STRANGER = TestKey(seed=1), TestKey(seed=2)
BUNDLE = bundles.build(extra=[("deployer/app/train.py", b"print('hello')")])


@pytest.fixture(autouse=True)
def _trusted(tmp_path, monkeypatch):
    """Make KEY the one signer whom this machine trusts."""
    (tmp_path / "signers").write_text(KEY.allowed())
    policy.pin_policy(str(tmp_path), (tmp_path / "signers").read_text())
    (tmp_path / "signers").unlink()
    monkeypatch.setattr(policy, "SYSTEM_FILE", str(tmp_path / "policy.json"))


def attempt(folder, data):
    """Install ``data`` and return the exit code with which it was refused; nothing of it may stay."""
    path, root = folder / "b.tar", folder / "root"
    path.write_bytes(data)
    with pytest.raises((IntegrityError, Refused)) as caught:
        install(str(path), Store(str(root)))
    images = root / "images"
    assert not images.exists() or list(images.iterdir()) == []
    assert sorted(os.listdir(str(folder))) in (
        ["allowed_signers", "b.tar", "policy.json"],
        ["allowed_signers", "b.tar", "policy.json", "root"],
    )
    return caught.value.exit_code


def test_the_honest_one_is_installed(tmp_path):
    path = tmp_path / "b.tar"
    path.write_bytes(signing.signed(BUNDLE, KEY))
    assert not install(str(path), Store(str(tmp_path / "root"))).warnings


def seg(index, **fields):
    return lambda record: record["segments"][index].update(fields)


def member(index, **fields):
    return lambda record: record["members"][index].update(fields)


def image(**fields):
    return lambda record: record["image"].update(fields)


def first_frame(record):
    return next(segment for segment in record["segments"] if segment["kind"] == "frame")


def overlap(record):
    record["segments"][2].update(offset=record["segments"][1]["offset"])


def swap(record):
    record["segments"][3:5] = record["segments"][4:2:-1]


def merge(record):
    one, two = record["segments"][:2]
    record["segments"][:2] = [dict(one, size=one["size"] + two["size"])]


RECORDS = {
    "a segment is missing": lambda record: record["segments"].pop(4),
    "the last segment is missing": lambda record: record["segments"].pop(),
    "no segments": lambda record: record["segments"].clear(),
    "no members": lambda record: record["members"].clear(),
    "segments overlap": overlap,
    "segments in another order": swap,
    "a segment over two": merge,
    "a segment twice": lambda record: record["segments"].insert(3, record["segments"][3]),
    "a segment beyond the end": lambda record: record["segments"].append(dict(record["segments"][-1], size=1)),
    "a segment of nothing": seg(1, size=0),
    "a size that overflows 63 bits": seg(1, size=2**63),
    "a size that overflows 64 bits": seg(1, size=2**64),
    "a size of 30 digits": seg(1, size=10**30),
    "a negative size": seg(1, size=-1),
    "a negative offset": seg(0, offset=-512),
    "a size with a fraction": seg(1, size=512.0),
    "a size that is true": seg(1, size=True),
    "a size that is text": seg(1, size="512"),
    "a digest that is a number": seg(1, sha256=0),
    "a digest in capitals": lambda record: record["segments"][1].update(sha256=record["segments"][1]["sha256"].upper()),
    "a digest with a newline": lambda record: record["segments"][1].update(
        sha256=record["segments"][1]["sha256"] + "\n"
    ),
    "a segment of another kind": seg(1, kind="frame", raw=1, holds="files"),
    "a frame that holds nothing": lambda record: first_frame(record).update(holds="devices"),
    "a frame without its size": lambda record: first_frame(record).update(raw=None),
    "a frame larger than any": lambda record: (first_frame(record).update(raw=2**40), image(raw_size=2**40)(record)),
    "an image smaller than it is": image(raw_size=1),
    "an image larger than it is": image(raw_size=2**62),
    "a member that climbs": member(-1, name="../../etc/passwd"),
    "a member that is absolute": member(-1, name="/etc/passwd"),
    "a member with a dot": member(-1, name="deployer/app/./x"),
    "a member with a NUL": member(-1, name="deployer/app/\0"),
    "a member with no name": member(-1, name=""),
    "a member of many bytes": member(-1, size=2**63),
    "a member that is the manifest": member(-1, name=sealed_file.MANIFEST_FILE),
    "a member that is the seal": member(-1, name=sealed_file.SEAL_FILE),
    "a member twice": lambda record: record["members"].append(record["members"][-1]),
    "a setuid member": member(0, mode=0o4755),
    "a name that climbs": lambda record: record.update(name="../../evil"),
    "a name that is a path": lambda record: record.update(name="a/b"),
    "a name that colours the terminal": lambda record: record.update(name="a\x1b[31m"),
    "a version that climbs": lambda record: record.update(version="1/../../../x"),
    "a version of many bytes": lambda record: record.update(version="1" * 101),
    "another name than the index's": lambda record: record.update(name="other"),
    "another version than the index's": lambda record: record.update(version="2.0"),
    "another schema": lambda record: record.update(schema="deployer.plan"),
    "an unknown codec": lambda record: record["codec"].update(name="lzma"),
    "a codec that is no name": lambda record: record["codec"].update(name=["gzip"]),
    "the config as the layer": lambda record: image(layer_digest=record["image"]["config_digest"])(record),
    "a variable that would be shell": image(env=["X=\0(touch PWNED)\0"]),
    "a variable whose name would be shell": image(env=["I_MPI_X[$(touch PWNED)]=1"]),
    "a folder that would be shell": image(workdir="/\0(touch PWNED)\0"),
    "a folder that is a number": image(workdir=7),
    "a command in a command": image(cmd=["sh", ["-c"]]),
    "a Python in two lines": image(python="/usr/bin/python3\ntouch PWNED"),
    "a layer that is not there": image(layer_digest="sha256:" + "0" * 64),
    "a layer by another hash": image(layer_digest="sha512:" + "0" * 64),
    "a layer that is a path": image(layer_digest="sha256:../../deployer.pyz"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_manifest_that_lies(tmp_path, name):
    data = bundles.reseal(BUNDLE, RECORDS[name])
    assert attempt(tmp_path, signing.signed(data, KEY)) == IntegrityError.exit_code
    assert attempt(tmp_path, signing.signed(data, STRANGER)) == Refused.exit_code
    assert attempt(tmp_path, data) == Refused.exit_code


def text(change):
    """Return a bundle whose manifest is ``change`` of the honest one's bytes."""
    builder = bundles.Builder()
    seal = sealed_file.read_tail(BUNDLE[-sealed_file.TAIL :], len(BUNDLE))
    builder.out.write(BUNDLE[: seal.offset])
    return builder.seal_bytes(change(signing.manifest_of(BUNDLE)))


JSON = {
    "a key twice": lambda data: data.replace(b'{"changes"', b'{"name":"other","changes"'),
    "a key twice, deep": lambda data: data.replace(b'"kind":"header"', b'"kind":"header","kind":"data"', 1),
    "a number of 5,000 digits": lambda data: data.replace(b'"size":', b'"size":' + b"9" * 5000, 1),
    "a number of a million digits": lambda data: data.replace(b'"level":6', b'"level":' + b"9" * 1000000),
    "a number that is none": lambda data: data.replace(b'"offset":0,', b'"offset":NaN,', 1),
    "an infinite number": lambda data: data.replace(b'"offset":0,', b'"offset":-Infinity,', 1),
    "a number with an exponent": lambda data: data.replace(b'"offset":0,', b'"offset":0e0,', 1),
    "deep nesting": lambda data: b"[" * 200000,
    "deep nesting in an object": lambda data: b'{"a":' * 100000,
    "nothing": lambda data: b"",
    "no object": lambda data: b"[]",
    "not UTF-8": lambda data: data.replace(b"tiny", b"t\xffny"),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "a mark before it": lambda data: b"\xef\xbb\xbf" + data,
    "something after it": lambda data: data + b"{}",
    "half of it": lambda data: data[: len(data) // 2],
}


@pytest.mark.parametrize("name", sorted(JSON))
def test_a_manifest_that_is_no_record(tmp_path, name):
    data = text(JSON[name])
    assert signing.manifest_of(data) != signing.manifest_of(BUNDLE)
    assert attempt(tmp_path, signing.signed(data, KEY)) == IntegrityError.exit_code
    assert attempt(tmp_path, data) == Refused.exit_code


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_layer_with_a_right_signature(tmp_path, name):
    assert attempt(tmp_path, signing.signed(bundles.build(HOSTILE[name]), KEY)) == IntegrityError.exit_code


def frame_bomb(raw, announced):
    """Return a bundle with one frame of ``raw`` zeros that announces another size."""
    pieces = [("files", b"\0" * raw), ("links", bundles.END)]
    return bundles.build(pieces, raws=[announced, len(bundles.END)])


@pytest.mark.parametrize(
    ("raw", "announced"),
    [
        (24 * 1024 * 1024, 1024),
        (manifests.MAX_RAW + 1, manifests.MAX_RAW + 1),
        (1024, manifests.MAX_RAW),
        (4096, 4095),
        (1, 2**40),
    ],
)
def test_a_frame_bomb(tmp_path, raw, announced):
    assert attempt(tmp_path, signing.signed(frame_bomb(raw, announced), KEY)) == IntegrityError.exit_code


def other_layer(index_layer):
    """Return a bundle with two layers: its index leads podman to ``index_layer`` of them, its table us to the first."""
    builder = bundles.Builder()
    pieces = bundles.whole(bundles.ENTRIES)
    frames = [bundles.compress(piece) for _, piece in pieces]
    evil = bundles.compress(bundles.END)
    layers = [oci.blob(b"".join(frames)), oci.blob(evil)]
    builder.member(oci.LAYOUT_FILE, [oci.LAYOUT])
    builder.layer(layers[0].member, frames, [len(piece) for _, piece in pieces], [held for held, _ in pieces])
    builder.member(layers[1].member, [evil])
    config = oci.config("amd64", {}, "sha256:" + "0" * 64)
    builder.member(oci.blob(config).member, [config])
    shown = oci.manifest(oci.blob(config), layers[index_layer], "gzip")
    builder.member(oci.blob(shown).member, [shown])
    builder.member(oci.INDEX_FILE, [oci.index(oci.blob(shown), "tiny", "1.0", "amd64")])
    raw_size = sum(len(piece) for _, piece in pieces)
    digests = (oci.blob(config).digest, layers[0].digest)
    shape = manifests.Image(digests[0], digests[1], "amd64", [], "/", [], [], None, raw_size, len(bundles.ENTRIES))
    codec_record = {"name": "gzip", "version": "1", "level": 6}
    return builder.seal(manifests.Manifest("tiny", "1.0", codec_record, {}, shape, {}, [], [], []))


def test_another_layer_in_the_index(tmp_path):
    assert attempt(tmp_path, signing.signed(other_layer(1), KEY)) == IntegrityError.exit_code
    path = tmp_path / "b.tar"
    path.write_bytes(signing.signed(other_layer(0), KEY))  # the same with the right one is installed
    install(str(path), Store(str(tmp_path / "root")))


def test_a_member_that_is_a_file_and_a_folder(tmp_path):
    data = bundles.build(extra=[("deployer/app/a", b"x"), ("deployer/app/a/b", b"y")])
    assert attempt(tmp_path, signing.signed(data, KEY)) == IntegrityError.exit_code


GOOD = KEY.sign(signing.manifest_of(BUNDLE))
OTHER_BUNDLE = bundles.build(version="2.0")


def seal_with(*texts):
    return bundles.with_seal(BUNDLE, lambda record: record.update(signatures=list(texts)))


def seal_bytes(change):
    content = signing.with_signatures(BUNDLE, [GOOD])[-sealed_file.TAIL + 512 : -1024].rstrip(b"\n") + b"\n"
    return bundles.with_seal_bytes(BUNDLE, change(content))


SEALS = {
    "a signature of another bundle": seal_with(sshsig.encode(KEY.sign(signing.manifest_of(OTHER_BUNDLE)))),
    "a signature for git": seal_with(sshsig.encode(KEY.sign(signing.manifest_of(BUNDLE), namespace="git"))),
    "a signature cut": seal_with(sshsig.encode(GOOD[:-1])),
    "a signature under a trusted key's name": seal_with(
        sshsig.encode(STRANGER.sign(signing.manifest_of(BUNDLE)).replace(STRANGER.key.blob, KEY.key.blob))
    ),
    "a right and a wrong signature": seal_with(*sorted([sshsig.encode(GOOD), sshsig.encode(STRANGER.sign(b"other"))])),
    "a signature twice": seal_with(sshsig.encode(GOOD), sshsig.encode(GOOD)),
    "signatures in another order": seal_with(
        *[sshsig.encode(b) for b in sorted([GOOD, STRANGER.sign(signing.manifest_of(BUNDLE))], reverse=True)]
    ),
    "white space in a signature": seal_with(sshsig.encode(GOOD)[:70] + "\n" + sshsig.encode(GOOD)[70:]),
    "armor": seal_with(sshsig.armored(GOOD)),
    "stray bits in the base64": seal_with("AB=="),
    "a signature that is empty": seal_with(""),
    "no signatures, said": seal_with(),
    "a signature that is a number": bundles.with_seal(BUNDLE, lambda record: record.update(signatures=[1])),
    "signatures that are none": bundles.with_seal(BUNDLE, lambda record: record.update(signatures=None)),
    "a field more": seal_bytes(lambda content: content.replace(b"{", b'{"added":1,', 1)),
    "white space": seal_bytes(lambda content: content.replace(b":", b": ", 1)),
    "keys in another order": seal_bytes(
        lambda content: json.dumps(dict(reversed(list(json.loads(content.decode()).items())))).encode()
    ),
    "an offset beyond the file": bundles.with_seal(BUNDLE, lambda record: record.update(offset=2**62)),
    "an offset before the manifest": bundles.with_seal(
        BUNDLE, lambda record: record.update(offset=record["offset"] - 512)
    ),
    "a manifest of 2**62 bytes": bundles.with_seal(BUNDLE, lambda record: record.update(size=2**62)),
    "a digest in capitals": bundles.with_seal(BUNDLE, lambda record: record.update(sha256=record["sha256"].upper())),
    "no JSON": bundles.with_seal_bytes(BUNDLE, b"\n"),
    "deep nesting": bundles.with_seal_bytes(BUNDLE, b"[" * 8000),
    "a number of 8,000 digits": bundles.with_seal_bytes(BUNDLE, b'{"offset":' + b"9" * 8000 + b"}"),
}


@pytest.mark.parametrize("name", sorted(SEALS))
def test_a_seal_that_is_not_canonical_or_not_right(tmp_path, name):
    data = SEALS[name]
    assert len(data) == len(BUNDLE)
    assert attempt(tmp_path, data) == IntegrityError.exit_code


def test_every_bit_of_a_signature_counts(tmp_path):
    """The tail of a signed bundle, bit by bit where the signature stands, without a policy as with one."""
    data = signing.signed(BUNDLE, KEY)
    start = data.index(b'"signatures":', len(data) - sealed_file.TAIL) + len(b'"signatures":["')
    for place in range(start, start + len(sshsig.encode(GOOD)), 5):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 7)
        assert attempt(tmp_path, bytes(flipped)) in (IntegrityError.exit_code, Refused.exit_code)


def test_no_room_for_one_more_signature():
    seal = sealed_file.read_tail(BUNDLE[-sealed_file.TAIL :], len(BUNDLE))
    many = tuple(sorted(GOOD[:-1] + bytes([number]) for number in range(60)))
    assert (
        sealed_file.read_tail(sealed_file.tail(seal._replace(signatures=many[:30])), len(BUNDLE)).signatures
        == many[:30]
    )
    with pytest.raises(UsageError, match="no room"):
        sealed_file.tail(seal._replace(signatures=many))
