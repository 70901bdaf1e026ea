"""What a real container has of the site: single files (MPICH's alias, one library of a system folder, a driver's),
folders on their own path, and variables."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployer.connected.site_profile import profile as profiles
from tests.integration.conftest import DIFFICULT, WORKSPACE, Cli, Sight, Site, look
from tests.lab import Lab
from tests.lab.cluster import SUITE_VARIABLE

SOURCES = Path(__file__).with_name("hosted")
HOST = "/deployer/host/lib"
#: Folders of the site, which no image has: one that the profile mounts, and one that it does not.
SHARED, OWN = "/home/alice/shared", "/p/own data"
SYSTEM = "/usr/lib/x86_64-linux-gnu"
#: Stand-ins for a driver, compiled here: a file of each name that says its version.
DRIVER = "550.99.01"
STAND_INS = ("libcuda.so.1", "libnvidia-ml.so.1", f"libnvidia-gpucomp.so.{DRIVER}")
#: Stand-ins for aws-ofi-nccl and GDRCopy, in a folder of the site that no loader searches.
BETWEEN_GPUS = ("libnccl-net-ofi.so", "libgdrapi.so.2")


def decided(captured: Path, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a profile of the lab over its capture; ``batch`` is what its partition says besides."""
    return {
        "format": 1,
        "name": "lab-hosted",
        "extends": str(captured),
        "workspace": "~/deployer",
        "login": {"host": "login1"},
        "policy": {"runtimes": ["charliecloud"]},
        "mounts": [SHARED],
        "partitions": {"batch": {"mpi": "intel-2021.15", "pmi": "pmi2", "gpu_request": "none", **batch}},
    }


def compiled(source: str, target: Path, *options: object) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    argv = ["cc", "-O1", "-w", SOURCES / source, "-o", target, *options]
    subprocess.run(list(map(str, argv)), check=True, timeout=60)
    return target


@pytest.fixture(scope="module")
def image(built: Cli, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return hello-mpi with a program that is linked to libmpich.so.12, and a library of that name."""
    folder = tmp_path_factory.mktemp("image")
    own = compiled("own_mpi.c", folder / "libmpich.so.12", "-shared", "-fPIC", "-Wl,-soname,libmpich.so.12")
    compiled("debian_mpi.c", folder / "debian_mpi", own)
    shutil.copy(SOURCES / "open.py", folder)
    (folder / "Dockerfile").write_text(
        "FROM deployer/hello-mpi:1.0.0\n"
        "RUN test ! -e /home/alice && test ! -e /p\n"
        f"COPY libmpich.so.12 {SYSTEM}/\nCOPY debian_mpi /usr/local/bin/\nCOPY open.py /usr/local/lib/\n"
        'ENV GREETING="it\'s  \\$5: cheap"\nWORKDIR /usr/local/lib\n'
    )
    argv = ["docker", "build", "-q", "-t", "deployer/hosted:1", str(folder)]
    subprocess.run(argv, check=True, timeout=120, env=built.environment, capture_output=True)
    return "deployer/hosted:1"


@pytest.fixture(scope="module")
def profile(captured: Path, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the lab as it was captured, as a site with Omni-Path and with a GPU's driver of stand-ins."""
    folder = lab.home / "alice" / "driver"
    libraries = {}
    for name in STAND_INS:
        real = folder / f"{name.partition('.so')[0]}.so.{DRIVER}"
        shared = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-DVERSION=550"]
        compiled("stand_in.c", real, *shared)
        libraries[name] = f"/home/alice/driver/{name}"
        if real.name != name:
            (folder / name).symlink_to(real.name)
    folder.chmod(0o755)
    plug = lab.home / "alice" / "aws-ofi-nccl"
    for name in BETWEEN_GPUS:
        compiled("stand_in.c", plug / name, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-DVERSION=119")
    plug.chmod(0o755)
    between = {
        "libraries": {name: f"/home/alice/aws-ofi-nccl/{name}" for name in BETWEEN_GPUS},
        "environment": {"NCCL_CROSS_NIC": "1"},
    }
    batch = {
        "fabric": {"kind": "omni-path", "provider": "tcp", "devices": ["hfi1_0", "eth0"], **between},
        "driver": {"kind": "nvidia", "version": DRIVER, "libraries": libraries},
        "node": {"gpus": {"kind": "nvidia", "count": 1}},
    }
    path = tmp_path_factory.mktemp("hosted") / "lab-hosted.yaml"
    path.write_text(json.dumps(decided(captured, batch)))
    return path


@pytest.fixture(scope="module")
def hosted(image: str, profile: Path, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a bundle of the image, packed for that site and pushed to it."""
    bundle = tmp_path_factory.mktemp("bundle") / "hosted.tar"
    site.alice(f"mkdir -p {SHARED} own && echo shared >{SHARED}/name && echo own >own/name")
    label = ["--name", "hosted", "--version", "1", "--site", profile, "--mount-point", OWN]
    site.cli("pack", "--image", image, *label, "-o", bundle)
    site.cli("push", bundle, "lab", "--without-plan", "--ssh-config", site.lab.ssh_config)
    yield bundle
    site.cli("remove", *site.options, "hosted")


def test_a_program_that_knows_mpich_by_debian_s_name_runs_on_the_site_s_mpi(
    hosted: Path, site: Site, profile: Path
) -> None:
    result = site.run("--nodes", "2", "--", "debian_mpi", bundle="hosted", site=str(profile))
    assert (result["world_size"], result["exit_code"], result["findings"]) == (2, 0, [])
    assert result["payload"] == {"counted": 2, "says": "Intel(R) MPI Library 2021.15 f"[:30]}
    for rank in result["ranks"]:
        assert rank["mpi_seen_in"] == "payload"
        assert rank["mpi_library"].startswith("Intel(R) MPI Library 2021.15")
        assert rank["mpi_identity"] == rank["host_mpi_identity"]
    script = "LD_LIBRARY_PATH= DEPLOYER_RESULT=/tmp/own debian_mpi; cat /tmp/own; rm /tmp/own"
    own = site.tool("exec", "hosted", "--", "sh", "-c", f"'{script}'")
    assert "the image's own stand-in" in own  # which it would have used, and nothing would have told


def seen(site: Site, *names: str) -> dict[str, Any]:
    """Return what the loader in the container takes for each name."""
    said = site.tool("exec", "hosted", "--", "python3", "/usr/local/lib/open.py", *names)
    found: dict[str, Any] = json.loads(said)
    return found


def inode(site: Site, path: str) -> int:
    return int(site.alice(f"stat -L -c %i {path}"))


#: The image is of Debian 12; the libraries of newer nodes need a newer C library than it has.
NEWER = bool(os.environ.get(SUITE_VARIABLE))
OF_THE_SAME = pytest.mark.skipif(NEWER, reason="the nodes' libraries need a newer C library than the image has")


@OF_THE_SAME
def test_one_library_of_a_system_folder_comes_alone(hosted: Path, site: Site) -> None:
    found = seen(site, "libpsm2.so.2", "libgcc_s.so.1", "libm.so.6")
    psm2 = found["libpsm2.so.2"]["mapped"]
    assert psm2[f"{HOST}/libpsm2.so.2"] == inode(site, f"{SYSTEM}/libpsm2.so.2")
    assert psm2[f"{HOST}/libnuma.so.1"] == inode(site, f"{SYSTEM}/libnuma.so.1")  # psm2 needs it, the image lacks it
    rootfs = (
        f"$(ls -d {WORKSPACE}/images/*/rootfs | while read r; do test -e $r/usr/local/bin/debian_mpi && echo $r; done)"
    )
    for name in ("libgcc_s.so.1", "libm.so.6"):  # of which the host's stand in the same folder as psm2
        ((path, number),) = [item for item in found[name]["mapped"].items() if os.path.basename(item[0]) == name]
        assert not path.startswith("/deployer/")
        assert number == inode(site, f"{rootfs}{path}")
        assert number != inode(site, f"{SYSTEM}/{name}")


def test_a_driver_of_stand_ins_is_opened_by_each_of_its_names(hosted: Path, site: Site) -> None:
    names = [*STAND_INS, "libcuda.so", f"libcuda.so.{DRIVER}"]
    found = seen(site, *names)
    assert {name: each["version"] for name, each in found.items()} == dict.fromkeys(names, 550)
    assert found["libcuda.so.1"]["mapped"][f"{HOST}/libcuda.so.1"] == inode(site, "~/driver/libcuda.so.1")
    assert "error" in seen(site, "libnvidia-opticalflow.so.1")["libnvidia-opticalflow.so.1"]


def test_a_plug_in_of_nccl_is_opened_by_the_name_that_nccl_asks_for(hosted: Path, site: Site) -> None:
    found = seen(site, "libnccl-net.so", *BETWEEN_GPUS)
    assert {name: each["version"] for name, each in found.items()} == dict.fromkeys(found, 119)
    mapped = found["libnccl-net.so"]["mapped"]
    assert mapped[f"{HOST}/libnccl-net-ofi.so"] == inode(site, "~/aws-ofi-nccl/libnccl-net-ofi.so")
    assert site.tool("exec", "hosted", "--", "sh", "-c", "'echo $NCCL_CROSS_NIC'").strip() == "1"


def test_ranks_see_all_gpus_nccl_s_network_and_what_the_image_says_of_itself(hosted: Path, site: Site) -> None:
    script = 'echo "$CUDA_VISIBLE_DEVICES $NCCL_SOCKET_IFNAME $NCCL_IB_DISABLE $GREETING $PWD"'
    tool = f"python3 {WORKSPACE}/deployer.pyz exec hosted -- sh -c"
    said = site.alice(f"export CUDA_VISIBLE_DEVICES=0,1; srun -N2 --mpi=none {tool} '{script}' </dev/null")
    assert said.splitlines() == ["0,1 =eth0 1 it's  $5: cheap /usr/local/lib"] * 2


@pytest.mark.slow
@pytest.mark.skipif(not NEWER, reason="the nodes' libraries need no newer C library than the image has")
def test_check_names_a_library_that_the_image_s_c_library_is_too_old_for(
    hosted: Path, site: Site, profile: Path
) -> None:
    said = json.loads(site.cli("check", hosted, "--site", profile, "--json").stdout)
    named = [str(each) for each in said["findings"] if each["code"] == "link.version"]
    error = seen(site, "libpsm2.so.2")["libpsm2.so.2"]["error"]
    (needed,) = re.findall(r"version `(GLIBC_[0-9.]+)' not found", error)
    assert any(needed in each for each in named), (error, named)


@OF_THE_SAME
def test_check_sees_what_the_job_sees(hosted: Path, site: Site, profile: Path) -> None:
    said = json.loads(site.cli("check", hosted, "--site", profile, "--json").stdout)
    assert said["verdict"] == "WARN"  # the profile says Omni-Path, and the lab's provider is tcp: nothing else is wrong
    assert [each["code"] for each in said["findings"]] == ["fabric.tcp", "workdir.read-only"]


def test_the_script_says_what_is_bound_and_why(hosted: Path, site: Site) -> None:
    text = site.tool("run", "hosted", "--nodes", "1", "--dry-run", "--", "true")
    assert f"/x86_64-linux-gnu/libpsm2.so.2:{HOST}/libpsm2.so.2\n" in text
    assert f"#   {HOST}/libpsm2.so.2: " in text


def test_folders_of_the_site_and_variables_of_the_user_are_in_the_container(hosted: Path, site: Site) -> None:
    options = ["--bind", f"/home/alice/own:{OWN}"]
    expected = Sight(DIFFICULT, {SHARED: "shared\n", OWN: "own\n"})
    assert look(site, "exec", "hosted", options, [SHARED, OWN]) == [expected]
    assert look(site, "run", "hosted", ["--nodes", "2", *options], [SHARED, OWN]) == [expected] * 2


def test_a_target_that_the_image_lacks_is_refused_with_what_helps(hosted: Path, site: Site) -> None:
    said = site.tool("exec", "hosted", "--bind", "$HOME/own:/p/other", "--", "true", code=2)
    assert "the image is read-only and has no /p/other" in said
    assert "pack it again with --mount-point /p/other" in said


def test_nodes_that_lack_what_is_bound_are_named_before_the_container_starts(
    hosted: Path, site: Site, profile: Path
) -> None:
    site.alice("mkdir -p /tmp/only-here")  # each node of the lab has a /tmp of its own
    result = site.run(
        "--nodes", "2", "--bind", "/tmp/only-here:/data", "--", "true", bundle="hosted", site=str(profile), code=1
    )
    assert {(each["code"], each["subject"]) for each in result["findings"]} == {("hosts.missing", "2 nodes: cn1-cn2")}
    assert result["findings"][0]["message"].startswith("the node has no /tmp/only-here,")
    assert result["ranks"] == []


@pytest.mark.skipif(not os.path.exists("/dev/nvidia0"), reason="no NVIDIA GPU here: there is no /dev/nvidia0")
def test_a_real_driver_is_used_in_the_container(site: Site, captured: Path, tmp_path: Path) -> None:
    """Written without a GPU at hand: nobody has seen it pass yet."""
    driver = profiles.load(str(captured)).partition("batch")[1].driver
    assert driver is not None
    profile = tmp_path / "gpu.yaml"
    profile.write_text(json.dumps(decided(captured, {"node": {"gpus": {"kind": "nvidia"}}})))
    bundle = tmp_path / "gpu.tar"
    image = ["--image", "deployer/hello-mpi:1.0.0", "--name", "gpu", "--version", "1"]
    site.cli("pack", *image, "--site", profile, "-o", bundle)
    site.cli("push", bundle, "lab", "--without-plan", "--ssh-config", site.lab.ssh_config)
    code = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); print(cuda.cuInit(0))"
    try:
        assert site.tool("exec", "gpu", "--", "python3", "-c", f'"{code}"').strip() == "0"
        assert driver.version in site.tool("exec", "gpu", "--", "nvidia-smi")
    finally:
        site.cli("remove", *site.options, "gpu")
