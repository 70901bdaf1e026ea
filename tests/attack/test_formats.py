"""What a newer writer may add to a bundle is skipped; what it must not is refused."""

import pytest

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from tests import bundles


def write(folder, data):
    path = folder / "b.tar"
    path.write_bytes(data)
    return str(path)


def test_what_a_newer_writer_adds_is_skipped(tmp_path):
    def change(record):
        record.update(format=2, added={"in": ["format", 2]})
        record["members"][0]["added"] = 1

    install(write(tmp_path, bundles.reseal(bundles.build(), change)), Store(str(tmp_path / "root")))


def test_what_needs_a_newer_reader_is_refused_with_a_hint(tmp_path):
    data = bundles.reseal(bundles.build(), lambda record: record.update(format=100, min_reader=99))
    with pytest.raises(UsageError, match="format 100 and needs a reader of format 99") as caught:
        install(write(tmp_path, data), Store(str(tmp_path / "root")))
    assert "newer deployer" in caught.value.hint
    seal = bundles.with_seal(bundles.build(), lambda record: record.update(format=2, min_reader=2))
    with pytest.raises(UsageError, match="seal"):
        install(write(tmp_path, seal), Store(str(tmp_path / "root")))


def test_a_newer_seal_must_raise_min_reader(tmp_path):
    data = bundles.with_seal(bundles.build(), lambda record: record.update(format=2, added=1))
    with pytest.raises(IntegrityError, match="canonical"):
        install(write(tmp_path, data), Store(str(tmp_path / "root")))
