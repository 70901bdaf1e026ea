import pytest

from deployer.connected.image.wheelhouse.target import Target, version_pair
from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused, UsageError

BOOKWORM = Target((3, 11), (2, 36), "x86_64", {"numpy": "1.26.4"})


def test_it_survives_being_written() -> None:
    assert Target.read(json_records.Fields(BOOKWORM.record(), "test")) == BOOKWORM
    assert str(BOOKWORM) == "Python 3.11 on Linux x86_64 with glibc 2.36"


def test_platforms_go_down_from_the_images_glibc() -> None:
    platforms = BOOKWORM.platforms()
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert platforms[platforms.index("manylinux_2_17_x86_64") + 1] == "manylinux2014_x86_64"
    assert platforms[-1] == "linux_x86_64"
    assert "manylinux_2_37_x86_64" not in platforms


def test_the_best_wheel_of_a_release() -> None:
    names = [
        "x-1-cp311-cp311-manylinux_2_39_x86_64.whl",
        "x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "x-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "x-1-cp38-abi3-manylinux_2_28_x86_64.whl",
        "x-1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "x-1-cp311-cp311-manylinux_2_28_aarch64.whl",
        "x-1-cp311-cp311-musllinux_1_2_x86_64.whl",
        "x-1-py3-none-any.whl",
    ]
    order = []
    while (best := BOOKWORM.best(names)) is not None:
        order.append(best)
        names.remove(best)
    assert [name.split("-", 2)[2] for name in order] == [
        "cp311-cp311-manylinux_2_28_x86_64.whl", "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "cp38-abi3-manylinux_2_28_x86_64.whl", "py3-none-any.whl",
    ]  # fmt: skip
    assert len(names) == 4


def test_a_wheel_for_a_newer_glibc_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"x-1-py3-none-manylinux_2_39_x86_64\.whl needs glibc 2\.39, .* has 2\.36"):
        BOOKWORM.check("x-1-py3-none-manylinux_2_39_x86_64.whl")
    with pytest.raises(Refused, match=r"is not for Python 3\.11"):
        BOOKWORM.check("x-1-cp312-cp312-manylinux_2_28_x86_64.whl")
    old = BOOKWORM._replace(glibc=(2, 12))
    with pytest.raises(Refused, match=r"needs glibc 2\.17"):
        old.check("x-1-py3-none-manylinux2014_x86_64.whl")
    BOOKWORM.check("x-1-py3-none-manylinux_2_39_x86_64.manylinux_2_28_x86_64.whl")


@pytest.mark.parametrize("text", ["", "3", "3.x", "three.1"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(UsageError):
        version_pair(text)
