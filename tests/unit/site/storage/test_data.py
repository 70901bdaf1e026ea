"""Data folders of a bundle and of others that it needs, from the install to the container."""

import json
import os

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import EXIT_DONE, IntegrityError, Refused, UsageError
from deployer.site.install.install import install
from deployer.site.run import run
from deployer.site.storage import data
from deployer.site.storage.store import Store
from deployer.system.trust.verify import verify
from tests import bundles, running
from tests.unit.site.run.test_run import REQUEST, fake_slurm, programs

assert programs  # the fixture


@pytest.fixture
def store(tmp_path, programs):
    return Store(str(tmp_path / "root"))


def needing(record):
    record["needs"] = [{"data": "digits", "bundle": "digits-data"}]


def put(tmp_path, store, data):
    path = tmp_path / "b.tar"
    path.write_bytes(data)
    return install(str(path), store)


def put_user(tmp_path, store, change=needing, own=()):
    """Install a bundle with a job that needs the data ``digits``."""
    extra = [("deployer/plans/lab.json", json.dumps(running.PLAN._replace(binds=[]).record()).encode()), *own]
    built = bundles.reseal(
        bundles.build(name="user", jobs=[bundles.JOB._replace(command=["/data/hello"])], extra=extra), change
    )
    outcome = put(tmp_path, store, built)
    running.write(store.tool, {})
    return outcome


def put_carrier(tmp_path, store, version="1.0", folder="digits", content=b"0123"):
    """Install a bundle of data alone: a layer of no entries."""
    extra = [(f"deployer/data/{folder}/sub/odd\n name", content), (f"deployer/data/{folder}/a", b"1")]
    built = bundles.build(pieces=[("links", bundles.END)], name="digits-data", version=version, extra=extra)
    return put(tmp_path, store, bundles.reseal(built, lambda record: record["image"].update(entries=0))).image


def script(store):
    return run.show_script(run.prepare(store, REQUEST._replace(image="user")))


def test_a_data_bundle_is_verified_and_installed_like_any_other(tmp_path, store):
    image = put_carrier(tmp_path, store)
    with open(str(tmp_path / "b.tar"), "rb") as stream:
        assert verify(stream, "b.tar").manifest.is_data
    with open(os.path.join(image.data, "digits", "sub", "odd\n name"), "rb") as stream:
        assert stream.read() == b"0123"
    assert os.listdir(image.rootfs) == []
    assert (image.receipt.files, image.receipt.bytes) == (2, 5)
    assert os.stat(os.path.join(image.data, "digits", "a")).st_mode & 0o777 == 0o444


def test_own_data_are_bound_as_a_whole(tmp_path, store):
    image = put_user(tmp_path, store, lambda record: None, [("deployer/data/mine/x", b"1")]).image
    assert f"    --bind={image.data}:/deployer/data\n" in script(store)


def test_data_of_another_bundle_are_bound_over_an_empty_folder(tmp_path, store):
    outcome = put_user(tmp_path, store, own=[("deployer/data/mine/x", b"1")])
    assert [word for word in outcome.warnings if "digits-data" in word]
    with pytest.raises(Refused, match="user needs the data digits of the bundle digits-data, which is not") as error:
        script(store)
    assert (error.value.exit_code, error.value.hint) == (3, "push or install digits-data first")
    assert not os.path.exists(store.jobs)
    carrier = put_carrier(tmp_path, store)
    user = store.find("user")
    text = script(store)
    own = text.index(f"--bind={user.data}:/deployer/data\n")
    assert own < text.index(f"--bind={carrier.data}/digits:/deployer/data/digits\n")
    assert "#   /deployer/data/digits: data of digits-data:1.0\n" in text
    assert sorted(os.listdir(user.data)) == ["digits", "mine"]
    assert os.listdir(os.path.join(user.data, "digits")) == []
    assert put_user(tmp_path, store, own=[("deployer/data/mine/x", b"1")]).warnings == ()


def test_a_version_may_be_asked_for(tmp_path, store):
    put_user(tmp_path, store, lambda record: record.update(needs=[{"data": "digits", "bundle": "digits-data:1.0"}]))
    put_carrier(tmp_path, store, version="2.0")
    with pytest.raises(Refused, match=r"digits-data:1\.0, which is not installed"):
        script(store)
    first = put_carrier(tmp_path, store)
    assert f"{first.data}/digits:/deployer" in script(store)


def test_a_bundle_without_the_folder_does_not_do(tmp_path, store):
    put_user(tmp_path, store)
    put_carrier(tmp_path, store, folder="letters")
    with pytest.raises(Refused, match=r"digits of digits-data:1\.0, which has no such folder"):
        script(store)


def test_nothing_runs_in_data(tmp_path, store, capsys):
    put_carrier(tmp_path, store)
    with pytest.raises(UsageError, match="digits-data contains only data"):
        run.prepare(store, REQUEST._replace(image="digits-data"))
    assert main.main(["exec", "--root", store.root, "digits-data", "--", "true"]) == UsageError.exit_code
    assert "data: {NAME: {bundle: digits-data}}" in capsys.readouterr().err


def test_data_that_are_needed_stay(tmp_path, store, programs, capsys):
    def call(*words):
        return main.main([words[0], "--root", store.root, *words[1:]])

    carrier = put_carrier(tmp_path, store)
    user = put_user(tmp_path, store).image
    assert data.users(store, carrier) == ["user:1.0"]
    assert data.users(store, user) == []
    assert call("remove", "digits-data") == Refused.exit_code
    assert "user:1.0 needs the data of digits-data:1.0" in capsys.readouterr().err
    folder = run.prepare(store, REQUEST._replace(image="user"))
    fake_slurm(programs, "RUNNING")
    run.submit(folder)
    assert call("remove", "user", "--force") == EXIT_DONE
    assert call("remove", "digits-data") == Refused.exit_code
    assert f"job {os.path.basename(folder)} uses digits-data:1.0" in capsys.readouterr().err
    fake_slurm(programs, "COMPLETED")
    assert call("remove", "digits-data") == EXIT_DONE
    assert store.installed() == []


def test_gc_spares_an_old_version_that_is_asked_for(tmp_path, store, capsys):
    put_user(tmp_path, store, lambda record: record.update(needs=[{"data": "digits", "bundle": "digits-data:1.0"}]))
    for age, version in enumerate(("3.0", "2.0", "1.0")):
        image = put_carrier(tmp_path, store, version)
        receipt = image.receipt._replace(installed=image.receipt.installed - age * 86400)
        running.write(os.path.join(image.folder, "receipt.json"), receipt.record())
    assert main.main(["gc", "--root", store.root, "--keep", "1"]) == EXIT_DONE
    assert "user:1.0 needs its data" in capsys.readouterr().out
    assert sorted(image.receipt.version for image in store.installed() if image.receipt.name != "user") == [
        "1.0",
        "3.0",
    ]


@pytest.mark.parametrize("need", [{"data": "../x", "bundle": "b"}, {"data": "x", "bundle": "a/b"}, {"data": "x"}])
def test_a_need_that_is_no_name_is_refused(tmp_path, store, need):
    with pytest.raises(IntegrityError):
        put_user(tmp_path, store, lambda record: record.update(needs=[need]))
