"""Faults that are really produced on two nodes, and the sentence that a user sees of each: ``job_faults.FAULTS``."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Site
from tests.integration.job_faults import BUNDLE, FAULTS, QUICK, Bench, record


@pytest.fixture(scope="module")
def bench(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a lab with hello-mpi's image as a bundle without a job of its own."""
    path = tmp_path_factory.mktemp("faults") / "faults.tar"
    site.cli(
        "pack", "--image", "deployer/hello-mpi:1.0.0", "--name", BUNDLE, "--version", "1", "--site", "lab", "-o", path
    )
    site.cli("push", path, "lab", "--ssh-config", site.lab.ssh_config)
    yield Bench(site.lab)
    site.cli("remove", *site.options, BUNDLE, "--force")
    site.lab.up()


def _needs(name: str) -> list[pytest.MarkDecorator]:
    fault = FAULTS[name]
    marks = [] if name in QUICK else [pytest.mark.slow]
    return [*marks, pytest.mark.needs("loop")] if fault.disk_mb else marks


@pytest.mark.parametrize("name", [pytest.param(name, marks=_needs(name)) for name in FAULTS])
def test_a_fault_and_what_the_user_sees(bench: Bench, name: str) -> None:
    seen = bench.see(name)
    if os.environ.get("DEPLOYER_FAULTS"):
        record(os.environ["DEPLOYER_FAULTS"], name, seen)
    assert seen.is_right(FAULTS[name]), seen


def test_the_page_counts_the_faults() -> None:
    """Its rows have several faults each; `python -m tests.integration.job_faults` prints one for each."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "evidence" / "faults.md").read_text()
    assert f"\n{len(FAULTS)} faults are really produced" in page
