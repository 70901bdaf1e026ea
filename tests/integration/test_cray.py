"""Fakes of Cray's programming environment and of MVAPICH on the lab's nodes: capture, plan, check, a job on two nodes.

The MPI is MPICH of PyPI under Cray's names, with stand-ins for Cray's PMI, Slingshot and XPMEM. Slurm's plugin for
Cray's PMI is real and serves no MPICH, so a stand-in for srun asks for PMI-2 in its place.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.bundle.pyz import make_pyz
from deployer.connected.check import check
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.profile import Profile
from deployer.contract.rules.verdict import REFUSE
from tests.integration.conftest import Cli, Site
from tests.lab import Lab
from tests.lab.site import USER_ID
from tests.lab.software import ensure
from tests.lab.state import cache_dir
from tests.matrix import mpis
from tests.matrix.linked import link_tree

pytestmark = pytest.mark.slow

CRAY = "cray/pe/mpich/8.1.32/ofi/gnu/11.2"
LIBRARY = "libmpi_gnu_112.so.12"
MVAPICH = "mvapich2/2.3.7"
#: The stand-ins by folder, each with what it needs. The real libcxi is in /usr/lib64.
STAND_INS = {
    "cray/pe/pals/1.2.12/lib/libpals.so.0": None,
    "cray/pe/pmi/6.1.15/lib/libpmi2.so.0": "cray/pe/pals/1.2.12/lib/libpals.so.0",
    "cray/pe/pmi/6.1.15/lib/libpmi.so.0": "cray/pe/pmi/6.1.15/lib/libpmi2.so.0",
    "cray/cxi/lib64/libcxi.so.1": None,
    "cray/xpmem/2.9/lib64/libxpmem.so.0": None,
}
FABRIC = "cray/libfabric/1.22.0/lib64/libfabric.so.1"
NEEDED = ["libcxi.so.1", "libfabric.so.1", "libpals.so.0", "libpmi.so.0", "libpmi2.so.0", "libxpmem.so.0"]
PARTITIONS: dict[str, Any] = {
    "cray": {"mpi": "cray-4.2.3", "fabric": {"kind": "slingshot"}},
    "mvapich": {"mpi": "mvapich-4.2.3"},
}
SRUN = '#!/bin/bash\nexec /usr/bin/srun "${@/--mpi=cray_shasta/--mpi=pmi2}"\n'
MODULE = f"""\
whatis("Name: cray-mpich")
setenv("MPICH_DIR", "/opt/{CRAY}")
setenv("MPICH_GPU_SUPPORT_ENABLED", "0")
prepend_path("PATH", "/opt/cray/stand-in/bin")
"""


def run(*argv: object) -> None:
    subprocess.run(list(map(str, argv)), check=True, timeout=120, capture_output=True)


def patched(source: Path, target: Path, *changes: list[str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    for words in changes:  # patchelf 0.14 mixes up the names if it is to change several at once
        run("patchelf", *words, target)


def say(library: Path, says: bytes) -> None:
    """Make a library of MPICH return another text from MPI_Get_library_version."""
    said, content = b"MPICH Version:      %s\n", library.read_bytes()
    assert content.count(said) == 1
    assert len(says) == len(said)
    library.write_bytes(content.replace(said, says))


@pytest.fixture(scope="module")
def opt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return /opt of the site, with Cray's programming environment beside the lab's own software."""
    top = tmp_path_factory.mktemp("opt") / "opt"
    link_tree(ensure(cache_dir(os.environ), os.environ).path, top)
    source = top.with_name("none.c")
    source.write_text("int stand_in(void) { return 0; }\n")
    for name, needed in STAND_INS.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        more = ["-Wl,--no-as-needed", top / needed] if needed else []
        run("cc", "-shared", "-fPIC", f"-Wl,-soname,{Path(name).name}", "-o", top / name, source, *more)
    mpich = mpis.tree("mpich-4.2.3") / "lib"
    slingshot = (["--add-needed", name] for name in ("libcxi.so.1", "libxpmem.so.0"))
    patched(mpich / "mpich" / "libfabric.so.1", top / FABRIC, *slingshot)
    for part in (mpich / "mpich").iterdir():
        if not part.name.startswith("libfabric"):
            copy = shutil.copytree if part.is_dir() else shutil.copy
            (top / CRAY / "lib").mkdir(parents=True, exist_ok=True)
            copy(part, top / CRAY / "lib" / part.name)
    library = top / CRAY / "lib" / f"{LIBRARY}.0.0"
    changes = ["--set-soname", LIBRARY], ["--add-needed", "libpmi.so.0"], ["--remove-rpath"]
    patched(mpich / "libmpi.so.12", library, *changes)
    say(library, b"CRAY MPICH version %s\n\0")
    (top / CRAY / "lib" / LIBRARY).symlink_to(library.name)
    (top / CRAY / "lib-abi-mpich").mkdir()
    (top / CRAY / "lib-abi-mpich" / "libmpi.so.12").symlink_to(f"../lib/{LIBRARY}")
    shutil.copytree(mpich, top / MVAPICH / "lib", symlinks=True)
    say(top / MVAPICH / "lib" / "libmpi.so.12", b"MVAPICH2 Version: %s\n\0\0")
    srun = top / "cray" / "stand-in" / "bin" / "srun"
    srun.parent.mkdir(parents=True)
    srun.write_text(SRUN)
    srun.chmod(0o755)
    folders = dict.fromkeys(f"/opt/{Path(name).parent}" for name in (*STAND_INS, FABRIC))
    searched = [f"/opt/{CRAY}/lib-abi-mpich", f"/opt/{CRAY}/lib", *folders]
    lines = [f'prepend_path("LD_LIBRARY_PATH", "{folder}")\n' for folder in searched]
    (top / "modulefiles" / "cray-mpich").mkdir(parents=True)
    (top / "modulefiles" / "cray-mpich" / "8.1.32.lua").write_text(MODULE + "".join(lines))
    return top


@pytest.fixture(scope="module")
def site(opt: Path, built: Cli) -> Iterator[Site]:
    lab = Lab("cray", opt=opt, say=lambda line: None)
    lab.up(nodes=2)
    yield Site(built, lab)
    lab.down(purge=True)


@pytest.fixture(scope="module")
def profile(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile of what was captured, as a site with Slingshot; one with MVAPICH is beside it."""
    home = site.lab.home / "alice"
    (home / "capture").mkdir()
    shutil.chown(home / "capture", USER_ID, USER_ID)
    (home / "capture" / "deployer.pyz").write_bytes(make_pyz())
    tool = "python3 deployer.pyz"
    site.alice(
        f"cd capture && {tool} capture -o login.json && srun -N1 -n1 {tool} capture --node -o node.json </dev/null "
        f"&& {tool} capture --merge login.json node.json -o site.json"
    )
    folder = tmp_path_factory.mktemp("cray")
    for name, batch in PARTITIONS.items():
        decided: dict[str, Any] = {
            "format": 1,
            "name": name,
            "extends": str(home / "capture" / "site.json"),
            "workspace": "~/deployer",
            "login": {"host": "login1"},
            "policy": {"runtimes": ["charliecloud"]},
            "partitions": {"batch": batch},
        }
        (folder / f"{name}.json").write_text(json.dumps(decided))
    return folder / "cray.json"


@pytest.fixture(scope="module")
def bundle(site: Site, profile: Path) -> Path:
    path = profile.with_name("hello.tar")
    site.cli("pack", "bundles/hello-mpi", "--site", profile, "--site", profile.with_name("mvapich.json"), "-o", path)
    site.cli("push", path, profile, "--ssh-config", site.lab.ssh_config)
    return path


def test_the_capture_has_what_cray_mpich_needs(profile: Path) -> None:
    found = profiles.load(str(profile))
    mpi = found.mpi["cray-4.2.3"]
    assert (mpi.family, mpi.prefix, mpi.library) == ("cray", f"/opt/{CRAY}", "lib-abi-mpich/libmpi.so.12")
    assert mpi.says == "CRAY MPICH version 4.2.3"
    assert "/var/spool/slurmd" in mpi.binds
    captured = {path.rpartition("/")[2] for path in found.site_files("batch").files}
    assert set(NEEDED) <= captured


def ranks_run_on(site: Site, profile: Path, says: str) -> None:
    result = site.run("--nodes", "2", site=str(profile))
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert result["check"]["verdict"] == "RUN"
    assert {rank["host"] for rank in result["ranks"]} == {"cn1", "cn2"}
    for rank in result["ranks"]:
        assert rank["mpi_library"].startswith(says)
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    assert result["payload"]["sum"] == 1


def test_a_job_on_two_nodes(site: Site, bundle: Path, profile: Path) -> None:
    ranks_run_on(site, profile, "CRAY MPICH version 4.2.3")
    script = site.alice("cat $(ls -td ~/deployer/jobs/* | head -n 1)/job.sh")
    assert "--mpi=cray_shasta" in script
    assert "/var/spool/slurmd:/var/spool/slurmd" in script


def test_a_job_with_mvapich(site: Site, bundle: Path, profile: Path) -> None:
    assert bundle.is_file()
    ranks_run_on(site, profile.with_name("mvapich.json"), "MVAPICH2 Version: 4.2.3")
    script = site.alice("cat $(ls -td ~/deployer/jobs/* | head -n 1)/job.sh")
    assert "--mpi=pmi2" in script
    assert "--set-env=MV2_ENABLE_AFFINITY=0" in script


@pytest.mark.parametrize("name", NEEDED)
def test_a_library_that_the_site_lacks_is_named(bundle: Path, profile: Path, name: str) -> None:
    checked = check.check_all(str(bundle), without(profiles.load(str(profile)), name))[0].checked
    assert checked.verdict == REFUSE
    assert any(name in finding.message for finding in checked.against if finding.code == "link.missing")


def without(found: Profile, name: str) -> Profile:
    """Return a profile in which nobody captured the library of a name."""
    record = found.model_dump()
    for group in (record, *record["partitions"].values(), *record["mpi"].values()):
        for kind in ("files", "links"):
            kept = {path: fact for path, fact in group[kind].items() if path.rpartition("/")[2] != name}
            group[kind] = kept
        if group.get("fabric"):
            group["fabric"]["libraries"].pop(name, None)
    return Profile.model_validate(record)


def test_cray_s_real_plugin_serves_no_other_mpi(site: Site) -> None:
    """What ``pmi.unmet`` says of Intel MPI under srun --mpi=cray_shasta."""
    code = (
        "import ctypes; mpi = ctypes.CDLL('libmpi.so.12', ctypes.RTLD_GLOBAL); mpi.MPI_Init(None, None); "
        "size = ctypes.c_int(); mpi.MPI_Comm_size(0x44000000, ctypes.byref(size)); print('size', size.value)"
    )
    (site.lab.home / "alice" / "size.py").write_text(code)
    start = "module load intel-mpi/2021.15; srun -N2 -n2 --mpi={} python3 size.py </dev/null"
    said = {pmi: site.alice(f"bash -lc '{start.format(pmi)}'") for pmi in ("cray_shasta", "pmi2")}
    assert said["cray_shasta"].split().count("1") == 2
    assert said["pmi2"].split().count("2") == 2
