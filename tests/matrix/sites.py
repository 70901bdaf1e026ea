"""The sites: labs of two suites with many MPIs, captured by the product, and a profile for each choice among them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.profile import Profile
from deployer.contract.site.runtime_table import RUNTIMES
from tests.lab import Lab, apptainer, foreign, roots
from tests.lab.config import PYTHON36_PREFIX
from tests.lab.site import USER, USER_ID
from tests.matrix import machine, mpis
from tests.matrix.machine import EMULATED
from tests.matrix.pairs import SYSTEM, Site

WORKSPACE = "deployer"
_CAPTURE_S = 180
_INSTALL_S = 300


class Place:
    """A lab whose nodes are of a suite, with some MPIs; making this object touches nothing."""

    def __init__(self, suite: str, name: str, work: Path) -> None:
        self.suite = suite
        self._name, self.work = f"{name}-{suite}", work / suite
        self._captured = self.work / "site.json"
        self._names: dict[str, str] = {}
        self.lab = Lab(self._name)
        self.folder = self.lab.home / USER / WORKSPACE

    def start(self, names: Collection[str]) -> None:
        """Bring the lab up with the MPIs that are named, put the tool on it, and capture it."""
        if EMULATED:
            root = foreign.root(self.suite, EMULATED)
        else:
            root = Path("/") if self.suite == "bookworm" else roots.node(self.suite)
        self.lab = Lab(self._name, root=root, opt=mpis.site_opt(names), say=lambda line: None)
        self.lab.up(nodes=2)
        if not EMULATED:
            apptainer.install(self.lab)
        for folder in (self.folder, self.folder / "images"):
            folder.mkdir(exist_ok=True)
            os.chown(folder, USER_ID, USER_ID)
        (self.folder / "deployer.pyz").write_bytes(make_pyz())
        self._capture()
        record = json.loads(self._captured.read_text())
        self._names = {mpi["prefix"]: name for name, mpi in record["mpi"].items()}

    def script(self, text: str) -> str:
        """Return a script in which ``tool`` is the site half, with the Python that the site has for it."""
        python = f'"$(ls {PYTHON36_PREFIX}/bin/python3.6 2>/dev/null || echo python3)"'
        return (
            f'cd ~/{WORKSPACE} && python={python} && tool() {{ "$python" ~/{WORKSPACE}/deployer.pyz "$@"; }} && {text}'
        )

    def alice(self, text: str, timeout: float = 60) -> str:
        """Run a script on the login node as its user, and return what it printed."""
        done = self.lab.sh("login1", USER, self.script(text), timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{text}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def _capture(self) -> None:
        """Capture the login node and a compute node, as an admin would."""
        steps = (
            "rm -f login.json node.json site.json *.facts.json",
            "tool capture -o login.json",
            'srun -N1 -n1 "$python" deployer.pyz capture --node -o node.json </dev/null',
            "tool capture --merge login.json node.json -o site.json",
        )
        self.alice(" && ".join(steps), timeout=_CAPTURE_S)
        self._captured.parent.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("site*.json"):  # the profile, and its facts beside it
            shutil.copy(path, self._captured.with_name(path.name))

    def profile(self, site: Site) -> Profile:
        """Return the profile of a site: what was captured, and a few decisions."""
        record: dict[str, Any] = {
            "format": 1,
            "name": site.name,
            "extends": str(self._captured),
            "workspace": f"~/{WORKSPACE}",
            "login": {"host": "login1"},
            "policy": {"runtimes": [RUNTIMES[site.runtime].policy_name]},
            "partitions": {"batch": {"mpi": self._names[prefix_of(site.mpi)], "launcher": site.launcher}},
        }
        if site.pmi:
            record["partitions"]["batch"]["pmi"] = site.pmi
        if RUNTIMES[site.runtime].allowed_by:  # the kit's, used by a site that lacks its own
            record["runtimes"] = {RUNTIMES[site.runtime].allowed_by: None}
        facts = machine.FACTS.get(EMULATED, {})
        record["partitions"]["batch"].update(facts)
        path = self.work / f"{site.name}.json"
        path.write_text(json.dumps(record, indent=1))
        return profiles.load(str(path))

    def install(self, bundle: Path) -> Path:
        """Install a bundle there, as its user, and return the image's folder as this machine sees it."""
        target = self.folder / bundle.name
        shutil.copy(bundle, target)
        said = json.loads(self.alice(f"tool install --json {bundle.name}", timeout=_INSTALL_S))
        target.unlink()
        return self.lab.home / Path(said["folder"]).relative_to("/home")

    def remove(self, image: str) -> None:
        """Remove an image that was installed there: some are large."""
        self.alice(f"tool remove --force {image}", timeout=_INSTALL_S)

    def inodes(self, site: Site) -> frozenset[int]:
        """Return the inodes of the site's MPI libraries, of whatever name, as its nodes see them."""
        folder = "/usr/lib/x86_64-linux-gnu" if site.mpi == SYSTEM else f"{prefix_of(site.mpi)}/lib"
        script = f"stat -L -c %i {folder}/libmpi*.so*"
        done = self.lab.sh("cn1", "root", script, timeout=30).check("cannot see the site's MPI")
        return frozenset(int(line) for line in done.stdout.split())


def prefix_of(mpi: str) -> str:
    """Return where an MPI stands at the sites that have it."""
    return "/usr" if mpi == SYSTEM else next(each.prefix for each in mpis.HOSTS if each.name == mpi)
