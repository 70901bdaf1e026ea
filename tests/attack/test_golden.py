"""Bundles of old formats are read for ever; what a newer writer may add is skipped, what it must not is refused."""

import base64
import gzip
import io
import os

import pytest

from deployer.contract.errors import IntegrityError, UsageError
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from deployer.system import policy
from deployer.system.verify import verify
from tests import bundles, signing

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")


def golden(name):
    with open(os.path.join(GOLDEN, name + ".b64"), "rb") as stream:
        return gzip.decompress(base64.b64decode(stream.read()))


def write(folder, data):
    path = folder / "b.tar"
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("name", sorted(name[:-4] for name in os.listdir(GOLDEN) if name.endswith(".b64")))
def test_a_golden_bundle_is_installed(tmp_path, name):
    image = install(write(tmp_path, golden(name)), Store(str(tmp_path / "root"))).image
    assert image.receipt.digest == "sha256:ede76244480ff7e9e4a5a112f0d1dd6b1836b1a6297cfed405e33ff39edc27af"
    assert image.manifest().jobs == [bundles.JOB]
    with io.open(os.path.join(image.rootfs, "bin", "same"), "rb") as stream:
        assert stream.read() == b"#!/bin/sh"
    with io.open(os.path.join(image.app, "train.py"), "rb") as stream:
        assert stream.read() == b"print('hello')\n"


def test_the_golden_signatures_are_right(tmp_path):
    keys = [signing.TestKey(), signing.TestKey("ecdsa-sha2-nistp256")]
    (tmp_path / "signers").write_text(keys[1].allowed("second@lab"))
    path = write(tmp_path, golden("format1-signed"))
    with io.open(path, "rb") as stream:
        bundle = verify(stream, path, policies=policy.load(None, str(tmp_path / "signers")))
    assert sorted(bundle.trust.keys) == sorted(key.key for key in keys)
    assert bundle.trust.signers == ["second@lab (%s)" % keys[1].key.fingerprint]


def test_what_a_newer_writer_adds_is_skipped(tmp_path):
    def change(record):
        record.update(format=2, added={"in": ["format", 2]})
        record["members"][0]["added"] = 1

    install(write(tmp_path, bundles.reseal(golden("format1"), change)), Store(str(tmp_path / "root")))


def test_what_needs_a_newer_reader_is_refused_with_a_hint(tmp_path):
    data = bundles.reseal(golden("format1"), lambda record: record.update(format=100, min_reader=99))
    with pytest.raises(UsageError, match="format 100 and needs a reader of format 99") as caught:
        install(write(tmp_path, data), Store(str(tmp_path / "root")))
    assert "newer deployer" in caught.value.hint
    seal = bundles.with_seal(golden("format1"), lambda record: record.update(format=2, min_reader=2))
    with pytest.raises(UsageError, match="seal"):
        install(write(tmp_path, seal), Store(str(tmp_path / "root")))


def test_a_newer_seal_must_raise_min_reader(tmp_path):
    data = bundles.with_seal(golden("format1"), lambda record: record.update(format=2, added=1))
    with pytest.raises(IntegrityError, match="canonical"):
        install(write(tmp_path, data), Store(str(tmp_path / "root")))
