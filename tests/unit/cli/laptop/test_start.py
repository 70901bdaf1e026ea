"""The start of a command is a part of each pack and deploy: it imports no library that it does not use."""

import subprocess
import sys

import pytest


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("modules", "slow"),
    [
        ("deployer.cli.laptop.pack", {"docker", "requests", "cyclonedx", "deployer.connected.image.build"}),
        ("deployer.connected.bundle.kit", {"docker", "requests"}),
    ],
)
def test_pack_imports_no_library_before_it_uses_it(modules: str, slow: set[str]) -> None:
    program = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert not slow.intersection(done.stdout.split())
