"""A push starts the site tool several times: what only reads and writes parts imports nothing that is slow."""

import re
import subprocess
import sys

import pytest


@pytest.mark.thorough
def test_known_and_take_import_neither_install_nor_what_judges_signatures():
    program = "import sys, deployer.cli.site.main, deployer.cli.site.transfers; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    found = set(re.findall(r"\S+", done.stdout))
    assert "deployer.site.install.incoming" in found
    slow = {
        "subprocess",
        "deployer.system.trust.trust",
        "deployer.site.install.install",
        "deployer.site.install.squash",
    }
    assert not found & slow
