import json
import os

import pytest

from deployer.contract.base import json_records
from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.bundle import multiarch, sealed_file
from deployer.site.install import install as installing
from deployer.site.storage.store import Store
from deployer.system.trust import several_bundles, verify
from tests import bundles

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[os.uname().machine]
NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


def parts(**options):
    return [bundles.build(architecture=name, **options) for name in ("amd64", "arm64")]


def written(folder, data):
    path = folder / "b.tar"
    path.write_bytes(data)
    return str(path)


def read(path, machine=None):
    with verify.opened(path, machine) as stream:
        return verify.verify(stream, path, policies=[])


def changed(data, change):
    """Return the file with another table, whose ending fits it."""
    tail = data[-sealed_file.TAIL :]
    several = multiarch.read(tail, len(data))
    record = json.loads(
        json_records.dumps(several._replace(bundles=[one._asdict() for one in several.bundles])._asdict())
    )
    change(record)
    new = multiarch.Several(
        record["name"], record["version"], [multiarch.OneOfSeveral(**each) for each in record["bundles"]]
    )
    return data[: -len(multiarch.ending(several))] + multiarch.ending(new)


def test_each_bundle_reads_as_if_it_were_alone(tmp_path):
    alone = parts()
    path = written(tmp_path, bundles.join(alone))
    for machine, data in zip(("x86_64", "aarch64"), alone):
        with verify.opened(f"{path}:{machine}") as stream:
            assert verify.size_of(stream) == len(data)
            assert stream.read() == data
        bundle = read(path, machine)
        assert bundle.manifest.image.architecture == NAMES[machine]
    assert several_bundles.in_file(path).machines == ["x86_64", "aarch64"]


def test_without_a_choice_the_error_lists_what_there_is(tmp_path):
    path = written(tmp_path, bundles.join(parts()))
    with pytest.raises(UsageError) as caught:
        read(path)
    assert caught.value.message == f"{path} has bundles for x86_64 and aarch64"
    assert caught.value.hint == f"choose one: {path}:x86_64, {path}:aarch64"
    with pytest.raises(UsageError, match="but not for ppc64le"):
        read(f"{path}:ppc64le")


def test_a_bundle_alone_has_no_table(tmp_path):
    path = written(tmp_path, parts()[0])
    assert several_bundles.in_file(path) is None
    assert read(path, "aarch64").manifest.image.architecture == "amd64"  # check compares it with the nodes


def test_a_file_whose_name_ends_like_a_choice_is_that_file(tmp_path):
    path = tmp_path / "b:aarch64"
    path.write_bytes(parts()[0])
    assert read(str(path)).manifest.name == "tiny"


def test_a_site_installs_and_keeps_the_one_for_its_own_processor(tmp_path):
    alone = parts()
    path = written(tmp_path, bundles.join(alone))
    store = Store(str(tmp_path / "root"))
    image = installing.install(path, store).image
    assert image.manifest().image.architecture == NAMES[os.uname().machine]
    kept = installing.keep(path, store, image)
    with open(kept, "rb") as stream:
        assert stream.read() == alone[list(NAMES).index(os.uname().machine)]
    assert os.path.exists(path)  # it has the others too


def test_a_login_node_of_another_processor_installs_what_is_named(tmp_path):
    path = written(tmp_path, bundles.join(parts()))
    store = Store(str(tmp_path / "root"))
    image = installing.install(f"{path}:{OTHER}", store).image
    assert image.manifest().image.architecture == NAMES[OTHER]
    with open(installing.keep(f"{path}:{OTHER}", store, image), "rb") as stream:
        assert stream.read() == parts()[list(NAMES).index(OTHER)]


def test_a_flipped_bit_anywhere_is_an_error(tmp_path):
    data = bundles.join(parts())
    path = written(tmp_path, data)
    missed = []
    for at in [*range(0, len(data), 1499), *range(len(data) - 13 * 512, len(data), 97)]:
        bundles.flip(tmp_path / "b.tar", at)
        try:
            for each in several_bundles.in_file(path).paths(path):
                read(each)
            missed.append(at)
        except (IntegrityError, UsageError, AttributeError):  # without its name, the table is not found
            pass
        bundles.flip(tmp_path / "b.tar", at)
    assert missed == []


@pytest.mark.parametrize("cut", [1, 512, 1024, 10240, 20000])
def test_a_shorter_or_longer_file_is_an_error(tmp_path, cut):
    data = bundles.join(parts())
    for wrong in (data[:-cut], data + b"\0" * cut, data[cut:]):
        with pytest.raises((IntegrityError, UsageError)):
            read(written(tmp_path, wrong), "x86_64")


def swap(record):
    first, second = record["bundles"]
    first["architecture"], second["architecture"] = second["architecture"], first["architecture"]


def rename(record):
    record["name"] = "other"


def another_image(record):
    record["bundles"][1]["manifest_digest"] = record["bundles"][0]["manifest_digest"]


def another_digest(record):
    record["bundles"][1]["sha256"] = "0" * 64


@pytest.mark.parametrize("change", [swap, rename, another_image, another_digest])
def test_a_table_that_lies_about_a_bundle_is_refused(tmp_path, change):
    path = written(tmp_path, changed(bundles.join(parts()), change))
    with pytest.raises(IntegrityError, match="is not the one that the table states"):
        read(path, "aarch64")


def twice(record):
    record["bundles"][1]["architecture"] = record["bundles"][0]["architecture"]


def unknown(record):
    record["bundles"][1]["architecture"] = "mips"


def shifted(record):
    record["bundles"][0]["size"] += 512
    record["bundles"][1]["size"] -= 512


def odd(record):
    record["bundles"][0]["size"] += 7
    record["bundles"][1]["size"] -= 7


@pytest.mark.parametrize("change", [twice, unknown, shifted, odd])
def test_a_table_that_is_invalid_is_refused(tmp_path, change):
    path = written(tmp_path, changed(bundles.join(parts()), change))
    with pytest.raises(IntegrityError):
        read(path, "aarch64")
