import pytest

from deployer.contract.base import json_records
from deployer.contract.base.errors import UsageError
from deployer.contract.rules import hostfiles
from deployer.contract.rules.hostfiles import DIRECTORY, FILE, LINK, HostFile
from deployer.contract.site import plan
from tests.running import PLAN

HOST = (
    HostFile("lib/libpsm2.so.2", FILE, "/usr/lib64/libpsm2.so.2", "it needs it"),
    HostFile("lib/libnuma.so.1", FILE, "/usr/lib64/libnuma.so.1", "it needs it", True),
    HostFile("lib/ucx", DIRECTORY, "/usr/lib64/ucx", "transports"),
    HostFile("lib/libmpich.so.12", LINK, "/opt/mpi/lib/libmpi.so.12", "Debian's name"),
)


def test_a_plan_with_host_files_is_read_as_it_was_written():
    whole = PLAN._replace(host=HOST)
    assert plan.read(json_records.dumps(whole.record()), "it") == whole


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "lib/../../x"), ("name", "/etc/x"), ("name", "x"), ("name", "lib/.."), ("name", "lib/a/b"),
     ("name", "lib/a\nb"), ("kind", "device"), ("spare", 1)],
)  # fmt: skip
def test_a_plan_cannot_make_files_elsewhere(field, value):
    record = PLAN._replace(host=HOST[:1]).record()
    record["host"][0][field] = value
    with pytest.raises(UsageError, match="host"):
        plan.read(json_records.dumps(record), "it")


def test_spare_libraries_are_for_images_without():
    has = {"/usr/lib/x86_64-linux-gnu/libnuma.so.1", "/usr/lib/x86_64-linux-gnu/libpsm2.so.2", "/srv/libnuma.so.1"}
    assert [item.name for item in hostfiles.for_image(HOST, lambda path: path in has)] == [
        "lib/libpsm2.so.2",  # the fabric's is the host's in any case
        "lib/ucx",
        "lib/libmpich.so.12",
    ]
    assert hostfiles.for_image(HOST, lambda path: path == "/srv/libnuma.so.1") == list(HOST)


def test_the_plan_s_folders_are_searched_before_the_image_s():
    found = hostfiles.library_path({"LD_LIBRARY_PATH": "/opt/mpi/lib:/x"}, {"LD_LIBRARY_PATH": "/usr/local/cuda:/x::"})
    assert found == "/opt/mpi/lib:/x:/usr/local/cuda"
    assert hostfiles.library_path({}, {}) == ""
