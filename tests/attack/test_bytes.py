"""Every byte of a bundle counts: a flip, a cut or an addition anywhere is refused, and nothing is installed."""

import os
import random
from pathlib import Path

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import DeployerError, IntegrityError
from deployer.contract.bundle import sealed_file
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from deployer.system.trust.verify import opened, verify
from tests import bundles

BUNDLE = bundles.build(extra=[("deployer/app/train.py", b"print('hello')")])


def attempt(folder, data):
    path = str(folder / "b.tar")
    Path(path).write_bytes(data)
    with opened(path) as stream:
        return verify(stream, path)


def test_the_untouched_bundle_is_accepted(tmp_path):
    assert attempt(tmp_path, BUNDLE).manifest.name == "tiny"


def places(stride):
    """Return the start and end of every segment and of the tail's parts, and every stride-th byte between."""
    seal = sealed_file.read_tail(BUNDLE[-sealed_file.TAIL :], len(BUNDLE))
    manifest = sealed_file.read_manifest(BUNDLE[seal.offset : seal.end], seal)
    edges = [segment.offset for segment in manifest.segments] + [seal.offset, seal.end, len(BUNDLE)]
    around = {edge + step for edge in edges for step in (-1, 0)}
    return sorted(place for place in around.union(range(0, len(BUNDLE), stride)) if 0 <= place < len(BUNDLE))


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flip_of_any_byte(tmp_path, bit):
    for position in places(stride=61 + bit):
        broken = bytearray(BUNDLE)
        broken[position] ^= 1 << bit
        try:
            attempt(tmp_path, broken)
        except DeployerError:
            continue
        pytest.fail("a flip of bit %d at byte %d was not seen" % (bit, position))


@pytest.mark.parametrize("cut", [1, 511, 512, 1024, 10240, 20000])
def test_a_cut_or_longer_file(tmp_path, cut):
    for data in (BUNDLE[:-cut], BUNDLE[cut:], BUNDLE + b"\0" * cut, b"\0" * cut + BUNDLE):
        with pytest.raises(IntegrityError):
            attempt(tmp_path, data)


def test_nothing_is_installed_from_a_broken_bundle(tmp_path):
    broken = bytearray(BUNDLE)
    broken[3000] ^= 1
    path = tmp_path / "b.tar"
    path.write_bytes(broken)
    with pytest.raises(IntegrityError) as caught:
        install(str(path), Store(str(tmp_path / "root")))
    assert "send it again" in caught.value.hint
    assert not os.path.exists(str(tmp_path / "root" / "images")) or not os.listdir(str(tmp_path / "root" / "images"))


@pytest.mark.thorough
def test_300_flips_end_in_exit_code_4(tmp_path, capsys):
    """Through the command line, anywhere in the file: headers, padding, frames, manifest and tail."""
    chance = random.Random(300)
    path, root = str(tmp_path / "b.tar"), str(tmp_path / "root")
    seal = BUNDLE.index(b'"min_reader"', len(BUNDLE) - sealed_file.TAIL)
    version = range(seal, seal + 20)  # the tail's own: a higher one is a newer format, until its bytes are compared
    flips = set()
    while len(flips) < 300:
        position = chance.randrange(len(BUNDLE))
        if position not in version:
            flips.add((position, chance.randrange(8)))
    for position, bit in sorted(flips):
        broken = bytearray(BUNDLE)
        broken[position] ^= 1 << bit
        Path(path).write_bytes(broken)
        assert main.main(["install", path, "--root", root, "--jobs", "2"]) == IntegrityError.exit_code, (position, bit)
        assert "deployer: error: " in capsys.readouterr().err
        assert not os.path.exists(os.path.join(root, "images")) or os.listdir(os.path.join(root, "images")) == []


def test_a_layer_with_another_name_in_the_oci_index_is_refused_by_verify(tmp_path):
    """Whoever seals may name the layer as they like: podman would refuse it, and so does verify."""
    other = "sha256:" + "0" * 64
    data = bundles.build(layer_digest=other)
    with pytest.raises(IntegrityError, match="the layer does not match its digest"):
        attempt(tmp_path, data)
