"""Debian 12's own Open MPI and MPICH, in the system's folders: captured, bound file by file, run on two nodes."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle.pyz import make_pyz
from tests.integration.conftest import WORKSPACE, Cli, Site
from tests.lab import Lab
from tests.lab.mounts import TOP_LEVEL
from tests.lab.site import USER_ID

SYSTEM = "/usr/lib/x86_64-linux-gnu"
PLUGINS = f"{SYSTEM}/openmpi/lib/openmpi3"
#: Profiles by name: the MPI's family, and how its ranks start.
PROFILES = {
    "srun": ("openmpi", {"pmi": "pmix"}),
    "mpirun": ("openmpi", {"launcher": "mpirun"}),
    "mpich": ("mpich", {"pmi": "pmi2"}),
}
SAYS = {"openmpi": "Open MPI v4.1.4", "mpich": "MPICH Version: 4.0.2"}


def run(*argv: object) -> None:
    subprocess.run(list(map(str, argv)), check=True, timeout=300, capture_output=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield this machine's system with Debian's Open MPI and MPICH in it, as a root for nodes."""
    folder = tmp_path_factory.mktemp("root")
    added, archives = folder / "added", folder / "archives"
    archives.mkdir()
    words = ["--download-only", "--reinstall", "--yes", "--no-install-recommends"]
    options = [
        word for each in ("APT::Sandbox::User=root", f"Dir::Cache::archives={archives}") for word in ("-o", each)
    ]
    run("apt-get", "install", *words, *options, "openmpi-bin", "libmpich12")
    for package in archives.glob("*.deb"):
        run("dpkg-deb", "-x", package, added)
    (added / "usr" / "bin" / "mpirun").symlink_to("mpirun.openmpi")  # as its postinst does
    top = folder / "top"
    (top / "usr").mkdir(parents=True)
    shutil.copytree("/etc", top / "etc", symlinks=True)
    shutil.copytree(added / "etc", top / "etc", symlinks=True, dirs_exist_ok=True)
    for name in TOP_LEVEL:
        link = Path("/", name)
        if link.is_symlink():
            (top / name).symlink_to(link.readlink())
    run("mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={added}/usr:/usr", top / "usr")
    try:
        run("/usr/sbin/ldconfig", "-X", "-r", top)
        yield top
    finally:
        run("umount", "--lazy", top / "usr")


@pytest.fixture(scope="module")
def system(root: Path, built: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, dict[str, str]]]:
    """Yield a lab with these nodes and hello-mpi on it, and a profile of its capture for each way."""
    work = tmp_path_factory.mktemp("system")
    lab = Lab("system-mpi", root=root, say=lambda line: None)
    lab.up(nodes=2)
    try:
        home = lab.home / "alice"
        (home / "capture").mkdir()
        shutil.chown(home / "capture", USER_ID, USER_ID)
        (home / "capture" / "deployer.pyz").write_bytes(make_pyz())
        site = Site(built, lab)
        tool = "python3 deployer.pyz"
        site.alice(
            f"cd capture && {tool} capture -o login.json && srun -N1 -n1 {tool} capture --node -o node.json </dev/null "
            f"&& {tool} capture --merge login.json node.json -o site.json"
        )
        record = json.loads((home / "capture" / "site.json").read_text())
        names = {mpi["family"]: name for name, mpi in record["mpi"].items() if mpi["prefix"] == "/usr"}
        profiles = {}
        for name, (family, words) in PROFILES.items():
            decided: dict[str, Any] = {
                "format": 1,
                "name": f"system-{name}",
                "extends": str(home / "capture" / "site.json"),
                "workspace": "~/deployer",
                "login": {"host": "login1"},
                "policy": {"runtimes": ["charliecloud"]},
                "partitions": {"batch": {"mpi": names[family], **words}},
            }
            profiles[name] = str(work / f"{name}.json")
            Path(profiles[name]).write_text(json.dumps(decided))
        named = [word for path in profiles.values() for word in ("--site", path)]
        built("pack", "bundles/hello-mpi", *named, "-o", work / "hello.tar")
        built("push", work / "hello.tar", profiles["srun"], "--ssh-config", lab.ssh_config)
        yield site, profiles
    finally:
        lab.down(purge=True)


@pytest.mark.parametrize(
    "name", ["srun", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mpirun", "mpich"))]
)
def test_ranks_run_on_the_system_s_mpi(system: tuple[Site, dict[str, str]], name: str) -> None:
    site, profiles = system
    result = site.run("--nodes", "2", site=profiles[name])
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert result["check"]["verdict"] == "RUN"
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith(SAYS[PROFILES[name][0]])
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    assert result["payload"]["sum"] == 1


def test_its_plugins_and_settings_are_the_host_s(system: tuple[Site, dict[str, str]]) -> None:
    site, _ = system
    script = (
        "import ctypes, os; ctypes.CDLL('libmpi.so.40', ctypes.RTLD_GLOBAL).MPI_Init(None, None); "
        "print(sorted({line.split()[-1] for line in open('/proc/self/maps') if 'mca_' in line or 'libopen' in line})); "
        "print(os.listdir(os.environ['OPAL_SYSCONFDIR']), len(os.listdir(os.environ['OPAL_PKGDATADIR'])) > 20)"
    )
    (site.lab.home / "alice" / "look.py").write_text(script)
    command = "deployer.pyz exec hello-mpi --plan system-srun -- python3"
    said = site.alice(f'srun -N1 -n1 --mpi=pmix python3 {WORKSPACE}/{command} -c "$(cat look.py)" </dev/null')
    mapped, own = said.splitlines()[:2]  # warnings may follow: this root has no links by update-alternatives
    assert "/deployer/host/lib/openmpi/mca_" in mapped
    assert "/deployer/host/lib/libopen-pal.so.40" in mapped
    assert "/usr/lib" not in mapped
    assert "openmpi-mca-params.conf" in own
    assert own.endswith("True")
