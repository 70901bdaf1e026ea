"""What the unit tests of the laptop's half share."""

import functools
from collections.abc import Iterator

import pytest

from deployer.connected.bundle import pack
from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.ground import podman_service


@pytest.fixture(autouse=True)
def _no_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no unit test start podman's service, which a machine without Docker has as its engine."""
    monkeypatch.setattr(podman_service, "address", lambda: None)


@pytest.fixture(scope="session", autouse=True)
def _one_tool() -> Iterator[None]:
    """Let `pack` read the sources of deployer.pyz once: 300 files for each of some hundred bundles take seconds.

    The tests of ``make_pyz`` call it themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "make_pyz", functools.lru_cache(maxsize=1)(make_pyz))
        yield
