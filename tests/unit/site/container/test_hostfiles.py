"""The folder of stubs of an installed image."""

import os
import shutil

import pytest

from deployer.contract.base.errors import Refused
from deployer.contract.rules.hostfiles import FOLDER
from deployer.contract.site.plan import Bind
from deployer.site.container import container
from deployer.site.container.runtimes import RUNTIMES
from tests import running
from tests.unit.contract.rules.test_hostfiles import HOST

PLAN = running.PLAN._replace(host=HOST)


@pytest.fixture
def installed(tmp_path):
    return running.store(tmp_path, PLAN).find("hello")


def make(installed, plan=PLAN, image=running.IMAGE):
    return container.make(installed, image, plan, RUNTIMES["charliecloud"], [], {})


def test_stubs_are_bound_and_each_file_over_its_own(installed):
    found = container.host_binds(installed, PLAN)
    folder = found[0].source
    assert found[0].target == FOLDER
    assert [(bind.source, bind.target) for bind in found[1:]] == [
        ("/usr/lib64/libpsm2.so.2", FOLDER + "/lib/libpsm2.so.2"),
        ("/usr/lib64/libnuma.so.1", FOLDER + "/lib/libnuma.so.1"),
        ("/usr/lib64/ucx", FOLDER + "/lib/ucx"),
    ]
    assert os.stat(folder + "/lib/libpsm2.so.2").st_size == 0
    assert os.path.isdir(folder + "/lib/ucx")
    assert os.readlink(folder + "/lib/libmpich.so.12") == "/opt/mpi/lib/libmpi.so.12"
    assert [bind.target for bind in make(installed).binds][:3] == [running.PREFIX, FOLDER, found[1].target]


def test_they_are_made_once_and_again_where_a_purge_took_some(installed):
    folder = container.host_binds(installed, PLAN)[0].source
    os.unlink(folder + "/lib/libpsm2.so.2")
    os.unlink(folder + "/lib/libmpich.so.12")
    assert container.host_binds(installed, PLAN)[0].source == folder
    assert len(os.listdir(folder + "/lib")) == 4
    assert container.host_binds(installed, PLAN._replace(host=HOST[:2]))[0].source != folder


def test_a_spare_library_is_left_to_the_image(installed):
    os.makedirs(installed.rootfs + "/usr/lib64")
    open(installed.rootfs + "/usr/lib64/libnuma.so.1", "w").close()
    found = container.host_binds(installed, PLAN)
    assert not [bind for bind in found if "libnuma" in bind.target]
    assert not os.path.exists(found[0].source + "/lib/libnuma.so.1")


def test_an_image_from_before_there_was_a_place_is_refused(installed):
    shutil.rmtree(installed.rootfs + FOLDER)
    with pytest.raises(Refused, match="has no /deployer/host") as caught:
        make(installed)
    assert "pack it again" in caught.value.hint
    assert make(installed, PLAN._replace(host=())).binds[0].target == running.PREFIX


def test_an_image_that_was_not_packed_for_the_site_is_refused(installed):
    other = PLAN._replace(binds=[Bind("/opt/other", "/opt/other", "MPI")])
    with pytest.raises(
        Refused, match=r"/opt/other cannot be bound into hello:1: the image .* has no /opt/other"
    ) as caught:
        make(installed, other)
    assert "--site lab" in caught.value.hint


def test_programs_of_the_host_come_last_in_path(installed):
    smi = HOST[0]._replace(name="bin/nvidia-smi", source="/usr/bin/nvidia-smi")
    assert make(installed, PLAN._replace(host=(smi,))).environment["PATH"] == "/usr/bin:/bin:/deployer/host/bin"
    assert make(installed).environment["PATH"] == "/usr/bin:/bin"


def test_the_image_s_own_library_path_comes_after_the_plan_s(installed):
    image = running.IMAGE._replace(env=["LD_LIBRARY_PATH=/usr/local/cuda/lib64"])
    found = make(installed, image=image).environment["LD_LIBRARY_PATH"]
    assert found == running.PREFIX + "/lib:/usr/local/cuda/lib64"
