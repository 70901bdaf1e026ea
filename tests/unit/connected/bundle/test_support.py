import datetime as dt
from typing import Any

import pytest

from deployer.connected.bundle.about import end_of_support

TODAY = dt.date(2026, 11, 21)


def deb(name: str, version: str) -> dict[str, Any]:
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:deb/debian/{name}@{version}"}


def pypi(name: str, version: str) -> dict[str, Any]:
    return {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}


def lines(*components: dict[str, Any], today: dt.date = TODAY) -> list[str]:
    return [flag.line() for flag in end_of_support.flags({"components": list(components)}, today)]


def test_a_line_is_out_of_support_from_the_day_after_its_last() -> None:
    python = deb("python3.8-minimal", "3.8.20-1")
    assert lines(python, today=dt.date(2024, 10, 7)) == []
    assert lines(python, today=dt.date(2024, 10, 8)) == [
        "out of support: Python 3.8, since 2024-10-07 (peps.python.org/api/release-cycle.json)"
    ]


@pytest.mark.parametrize(
    ("component", "said"),
    [
        ({"type": "operating-system", "name": "debian", "version": "11"}, "Debian 11, since 2026-08-31"),
        ({"type": "operating-system", "name": "debian", "version": "12"}, None),
        (deb("python3.11", "3.11.2-6"), None),
        ({**pypi("python", "3.10.4"), "purl": "pkg:generic/python@3.10.4"}, "Python 3.10, since 2026-10-31"),
        (pypi("tensorflow-cpu", "2.15.1"), "TensorFlow 2.15, since 2024-03-13"),
        (pypi("tensorflow", "2.1"), None),  # not 2.11
        (pypi("tensorflow-datasets", "2.15"), None),
        (pypi("horovod", "0.28.1"), "Horovod 0.28.1, no end date published, no release since 2023-06-07"),
        (pypi("mpich", "4.2.3"), None),
        (pypi("nvidia-cuda-runtime-cu12", "12.2.140"), "CUDA 12.2, since 2026-06-30"),
        (deb("libopenmpi3", "4.1.4-3"), None),
        (deb("libopenmpi3", "4.0.3-1"), "Open MPI 4.0.3, no end date published, no release since 2021-11-14"),
        ({"type": "data", "name": "python"}, None),
    ],
)
def test_what_is_told_of_a_component(component: dict[str, Any], said: str | None) -> None:
    found = lines(component)
    assert len(found) == (0 if said is None else 1)
    assert all(line.startswith(f"out of support: {said} (") for line in found)


def test_a_line_is_told_once_and_unverified_facts_say_so() -> None:
    assert len(lines(pypi("tensorflow", "2.15.1"), pypi("tensorflow-cpu", "2.15.0"))) == 1
    assert lines(pypi("torch", "1.13.1"))[0].endswith("; unverified)")


def test_every_fact_has_its_source_and_its_date() -> None:
    table = end_of_support.table()
    for product in table["products"]:
        for line in (end_of_support.ReleaseLine(**facts) for facts in product["lines"].values()):
            assert line.source
            assert (line.end is None) != (line.last_release is None)
            assert line.last_release is None or line.last_release <= table["checked"]


def test_a_debian_package_is_supported_as_long_as_its_distribution() -> None:
    package = {"type": "library", "name": "tar", "version": "1.34", "purl": "pkg:deb/debian/tar@1.34?distro=debian-12"}
    assert end_of_support.end(package) == dt.date(2028, 6, 30)
    assert end_of_support.end({**package, "purl": "pkg:deb/debian/tar@1.34"}) is None
    assert end_of_support.end({**package, "purl": "pkg:deb/debian/tar@1.34?distro=debian-99"}) is None
