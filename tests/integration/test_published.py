"""A profile that an admin publishes in /etc/deployer of the lab: check and push find it, and a change is seen."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Cli
from tests.lab import Lab

pytestmark = pytest.mark.slow


#: Lays a writable /etc over the lab's, which is read-only, with an empty /etc/deployer of root's.
_WRITABLE = """\
set -e
mkdir -p /run/over /run/etc && mount -t tmpfs over /run/over && mkdir /run/over/upper /run/over/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/over/upper,workdir=/run/over/work over /run/etc
for name in ssh profile.d; do mount --bind /etc/$name /run/etc/$name; done
mkdir /run/etc/deployer && mount --rbind /run/etc /etc
"""


@pytest.fixture
def publish(lab: Lab) -> Iterator[Callable[[Path], None]]:
    """Yield what copies a folder to /etc/deployer of login1, as root does it."""
    lab.sh("login1", "root", _WRITABLE).check("make /etc writable")
    folder = lab.home / "published"

    def copy(source: Path) -> None:
        shutil.copytree(source, folder)
        lab.sh("login1", "root", "install -m 644 /home/published/* /etc/deployer/").check("publish")
        shutil.rmtree(folder)

    yield copy
    lab.sh("login1", "root", "umount -l /etc; umount -l /run/etc; umount -l /run/over").check("mend /etc")


def test_check_and_push_use_what_the_site_publishes(
    cli: Cli, lab: Lab, bundle: Path, publish: Callable[[Path], None], tmp_path: Path
) -> None:
    folders = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state")}
    own = Cli({**cli.environment, **folders})
    ssh = ["--ssh-config", lab.ssh_config]
    assert "login1 publishes no profile" in own("check", bundle, "--site", "ssh:login1", *ssh, code=2).stderr
    captured, out = tmp_path / "lab.yaml", tmp_path / "out"
    own("capture", "login1", *ssh, "-o", captured)
    own("profile", "publish", captured, "-o", out)
    publish(out)
    done = own("check", bundle, "--site", "ssh:login1", *ssh, "--json")
    assert json.loads(done.stdout)["verdict"] == "RUN"
    assert "login1 publishes a profile" in done.stderr
    again = own("push", bundle, "ssh:login1", *ssh, "--json")
    assert "publishes a profile" not in again.stderr
    assert json.loads(again.stdout)["checked"]["verdict"] == "RUN"
    lab.sh("login1", "root", "chmod 666 /etc/deployer/profile.json").check("let everyone write")
    assert "can be written by others than root" in own("push", bundle, "ssh:login1", *ssh, code=3).stderr
