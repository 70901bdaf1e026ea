"""The bind map of a site, rule by rule, from profiles with the facts that capture would write."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.binds import bindmap
from deployer.connected.site_profile.binds.bindmap import BindMap
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base.errors import Refused, Unknown, UsageError
from deployer.contract.rules.hostfiles import DIRECTORY, LINK
from tests.unit.connected.check.test_check import lib

PREFIX = "/opt/intel/mpi/2021.15"
SYSTEM = "/usr/lib/x86_64-linux-gnu"

#: An Intel MPI of which only libfabric and its providers need more than the C library.
TREE = {
    "lib/libmpi.so.12.0": lib("libmpi.so.12", "libfabric.so.1", "libgcc_s.so.1", "libc.so.6", exports=["MPI_Init"]),
    "lib/libfabric.so.1": lib("libfabric.so.1", "libnuma.so.1", "libc.so.6"),
    "lib/libtcp-fi.so": lib(None, "libc.so.6"),
    "lib/libpsmx2-fi.so": lib(None, "libpsm2.so.2", "libc.so.6"),
    "lib/libverbs-fi.so": lib(None, "librdmacm.so.1", "libibverbs.so.1"),
}
LINKS = {"lib/libmpi.so.12": "libmpi.so.12.0"}


def system(*sonames: str, **needs: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return files and links of libraries of a system folder, each under a name with its version."""
    named = {name: needs.get(name.partition(".")[0].replace("-", "_"), []) for name in sonames}
    files = {f"{SYSTEM}/{name}.9.9": lib(name, "libc.so.6", *more).record() for name, more in named.items()}
    return files, {f"{SYSTEM}/{name}": f"{SYSTEM}/{name}.9.9" for name in named}


def profile(*sonames: str, needs: dict[str, list[str]] | None = None, mpi: dict[str, Any] | None = None,
            **partition: Any) -> Profile:  # fmt: skip
    record = yaml.safe_load((profiles.CURATED / "lab.yaml").read_text())
    intel = record["mpi"]["intel-2021.15"]
    intel.update({"files": {path: facts.record() for path, facts in TREE.items()}, "links": LINKS, **(mpi or {})})
    files, links = system("libc.so.6", *sonames, **(needs or {}))
    batch = {"files": files, "links": links, **partition}
    if "mpi_of_partition" in batch:
        batch["mpi"] = batch.pop("mpi_of_partition")
    record["partitions"]["batch"].update(batch)
    return Profile.model_validate(record)


def made(given: Profile) -> BindMap:
    name, chosen = given.partition()
    return bindmap.make(given, name, chosen)


def test_folders_of_the_site_are_bound_on_their_own_path() -> None:
    record = profile().model_dump()
    record["mounts"] = ["/lustre/p", "/opt/site", PREFIX]
    record["partitions"]["batch"]["mounts"] = ["/lustre", "/lustre/p"]
    plan = make_plan(Profile.model_validate(record), "hello:1")
    bound = [(bind.source, bind.target) for bind in plan.binds]
    assert bound == [(path, path) for path in ("/lustre", "/lustre/p", "/opt/site", PREFIX)]  # outer ones first
    assert "the site's MPI" in plan.binds[-1].why


@pytest.mark.parametrize(
    ("path", "said"),
    [("lustre", "must be an absolute path"), ("/tmp/x", "is the node's own"), ("/usr", "which it would hide"),
     ("/a/../b", "an empty part, . or .."), ("/deployer", "deployer's own")],
)  # fmt: skip
def test_a_folder_of_the_site_that_cannot_be_bound_is_an_error_of_the_profile(
    path: str, said: str, tmp_path: Path
) -> None:
    text = (profiles.CURATED / "lab.yaml").read_text() + f"mounts: [/lustre, {path}]\n"
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        profiles.load(str(tmp_path / "x.yaml"))
    assert "mounts.1: " in error.value.message
    assert said in error.value.message


def names(found: BindMap) -> list[str]:
    return sorted(item.name for item in found.host)


def test_the_prefix_whole_and_the_alias_and_nothing_of_the_system() -> None:
    found = made(profile())
    assert [(bind.source, bind.target) for bind in found.binds] == [(PREFIX, PREFIX)]
    (alias,) = found.host
    assert (alias.name, alias.kind, alias.source) == ("lib/libmpich.so.12", LINK, f"{PREFIX}/lib/libmpi.so.12")
    assert found.environment["LD_LIBRARY_PATH"] == f"{PREFIX}/lib:/deployer/host/lib"
    assert found.environment["FI_PROVIDER_PATH"] == f"{PREFIX}/lib"


def test_the_c_library_stays_the_image_s_and_common_libraries_are_spare() -> None:
    found = {item.name: item for item in made(profile("libnuma.so.1", "libgcc_s.so.1", "libzstd.so.1")).host}
    assert sorted(found) == ["lib/libgcc_s.so.1", "lib/libmpich.so.12", "lib/libnuma.so.1"]
    assert found["lib/libnuma.so.1"].spare
    assert found["lib/libgcc_s.so.1"].spare
    assert found["lib/libnuma.so.1"].source == f"{SYSTEM}/libnuma.so.1"


def test_each_fabric_gets_its_own_libraries() -> None:
    have = ("libpsm2.so.2", "libibverbs.so.1", "librdmacm.so.1", "libnl-3.so.200")
    needs = {"libibverbs": ["libnl-3.so.200"]}
    ethernet = made(profile(*have, needs=needs, fabric={"kind": "ethernet", "devices": ["eth0"]}))
    assert names(ethernet) == ["lib/libmpich.so.12"]
    assert ethernet.environment["FI_PROVIDER"] == "tcp"
    omni_path = made(profile(*have, needs=needs, fabric={"kind": "omni-path", "devices": ["hfi1_0"]}))
    assert names(omni_path) == ["lib/libmpich.so.12", "lib/libpsm2.so.2"]
    assert not omni_path.host[-1].spare
    assert omni_path.environment["FI_PROVIDER"] == "psm2"
    infiniband = made(profile(*have, needs=needs, fabric={"kind": "infiniband"}))
    assert names(infiniband)[:2] == ["lib/libibverbs.so.1", "lib/libmpich.so.12"]
    assert names(infiniband)[2:] == ["lib/libnl-3.so.200", "lib/librdmacm.so.1"]
    assert infiniband.environment["FI_PROVIDER"] == "verbs"
    unknown = made(profile(*have, needs=needs, fabric={"devices": ["x"]}))
    assert {"lib/libpsm2.so.2", "lib/libibverbs.so.1"} <= set(names(unknown))


def test_rdma_over_ethernet_is_driven_by_verbs() -> None:
    fabric = {"kind": "ethernet", "devices": ["mlx5_0"], "provider": "verbs"}
    found = made(profile("libibverbs.so.1", "librdmacm.so.1", fabric=fabric))
    assert {"lib/libibverbs.so.1", "lib/librdmacm.so.1"} <= set(names(found))


def test_intel_s_newer_mpi_takes_opx() -> None:
    tree = {path: facts.record() for path, facts in TREE.items() if "psmx2" not in path}
    tree["lib/libopx-fi.so"] = lib(None, "libuuid.so.1").record()
    found = made(profile("libuuid.so.1", mpi={"files": tree}, fabric={"kind": "omni-path"}))
    assert found.environment["FI_PROVIDER"] == "opx"
    assert "lib/libuuid.so.1" in names(found)


def test_verbs_find_their_drivers_and_ucx_its_transports() -> None:
    files, links = system("libibverbs.so.1", "libmlx5.so.1", "libucp.so.0", "librdmacm.so.1", "libpsm2.so.2")
    files[f"{SYSTEM}/libibverbs/librxe-rdmav34.so"] = lib(None).record()
    files[f"{SYSTEM}/ucx/libuct_ib.so.0"] = lib(None).record()
    links[f"{SYSTEM}/libibverbs/libmlx5-rdmav34.so"] = f"{SYSTEM}/libmlx5.so.1.9.9"
    libraries = {name: f"{SYSTEM}/{name}" for name in ("libibverbs.so.1", "libucp.so.0", "libpsm2.so.2")}
    given = profile(files=files, links=links, fabric={"kind": "infiniband", "libraries": libraries})
    found = made(given)
    host = {item.name: item for item in found.host}
    assert {"lib/libmlx5-rdmav34.so", "lib/librxe-rdmav34.so", "lib/libibverbs.so.1", "lib/libucp.so.0"} <= set(host)
    assert "lib/libpsm2.so.2" not in host
    assert (host["lib/ucx"].kind, host["lib/ucx"].source) == (DIRECTORY, f"{SYSTEM}/ucx")
    assert found.binds[-1][:2] == ("/etc/libibverbs.d", "/etc/libibverbs.d")


def test_the_system_s_libfabric_is_for_an_mpi_without_one() -> None:
    files, links = system("libfabric.so.1", "libpsm2.so.2", libfabric=["libpsm2.so.2"])
    files[f"{SYSTEM}/libfabric/libefa-fi.so"] = lib(None).record()
    fabric = {"kind": "omni-path", "libraries": {"libfabric.so.1": f"{SYSTEM}/libfabric.so.1"}}
    tree = {"lib/libmpi.so.12.0": TREE["lib/libmpi.so.12.0"].record()}
    found = made(profile(files=files, links=links, fabric=fabric, mpi={"files": tree}))
    host = {item.name: item for item in found.host}
    assert (host["lib/libfabric.so.1"].source, host["lib/libfabric.so.1"].spare) == (f"{SYSTEM}/libfabric.so.1", False)
    assert "lib/libpsm2.so.2" in host
    assert host["lib/libfabric"].source == f"{SYSTEM}/libfabric"
    assert found.environment["FI_PROVIDER_PATH"] == "/deployer/host/lib/libfabric"
    own = made(profile(files=files, links=links, fabric=fabric))
    assert not [name for name in names(own) if "libfabric" in name]
    assert own.environment["FI_PROVIDER_PATH"] == f"{PREFIX}/lib"


def test_the_scheduler_s_pmi_is_named_by_where_the_container_has_it() -> None:
    environment = {"I_MPI_PMI_LIBRARY": f"{SYSTEM}/libpmi2.so.0"}
    needs = {"libpmi2": ["libslurm_pmi.so.1"]}
    given = profile("libpmi2.so.0", "libslurm_pmi.so.1", needs=needs, environment=environment)
    found = made(given)
    assert found.environment["I_MPI_PMI_LIBRARY"] == "/deployer/host/lib/libpmi2.so.0"
    assert {item.name: item.spare for item in found.host if "pmi" in item.name} == {
        "lib/libpmi2.so.0": False,
        "lib/libslurm_pmi.so.1": False,
    }
    inside = {"I_MPI_PMI_LIBRARY": f"{PREFIX}/lib/libpmi.so"}
    assert made(profile(environment=inside)).environment["I_MPI_PMI_LIBRARY"] == inside["I_MPI_PMI_LIBRARY"]


CRAY = "/opt/cray/pe/mpich/8.1.32/ofi/gnu/11.2"


def cray(**mpi: Any) -> Profile:
    """Return a site with Cray MPICH and Slingshot, as its documents describe them."""
    own = {
        "lib/libmpi_gnu_112.so.12.0": lib("libmpi_gnu_112.so.12", "libpmi.so.0", "libfabric.so.1", exports=["MPI_Init"])
    }
    places = {
        "/opt/cray/pe/pmi/6.1.15/lib/libpmi.so.0": ["libpmi2.so.0"],
        "/opt/cray/pe/pmi/6.1.15/lib/libpmi2.so.0": ["libpals.so.0"],
        "/opt/cray/pe/pals/1.2.12/lib/libpals.so.0": [],
        "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1": ["libcxi.so.1", "libxpmem.so.0", "libjson-c.so.5"],
        "/usr/lib64/libcxi.so.1": [],
        "/usr/lib64/libjson-c.so.5": [],
        "/opt/cray/xpmem/2.9/lib64/libxpmem.so.0": [],
    }
    files = {path: lib(path.rpartition("/")[2], *needed).record() for path, needed in places.items()}
    entry = {
        "family": "cray", "prefix": CRAY, "library": "lib-abi-mpich/libmpi.so.12",
        "libraries": ["lib-abi-mpich", "lib"],
        "files": {path: facts.record() for path, facts in own.items()}, "binds": ["/var/spool/slurmd"],
        "links": {"lib-abi-mpich/libmpi.so.12": "../lib/libmpi_gnu_112.so.12.0"}, **mpi,
    }  # fmt: skip
    given = profile(mpi=entry, files=files, links={}, fabric={"kind": "slingshot"}, pmi=None)
    assert given.scheduler is not None
    offered = given.scheduler.model_copy(update={"pmi": ["cray_shasta", "none", "pmi2"]})
    return given.model_copy(update={"scheduler": offered})


def test_cray_mpich_with_slingshot() -> None:
    found = made(cray())
    host = {item.name: item for item in found.host}
    assert {bind.source for bind in found.binds} == {CRAY, "/var/spool/slurmd"}
    for name in ("libpmi.so.0", "libpmi2.so.0", "libpals.so.0", "libfabric.so.1", "libcxi.so.1", "libxpmem.so.0"):
        assert not host[f"lib/{name}"].spare, name
    assert host["lib/libjson-c.so.5"].spare
    assert found.environment["LD_LIBRARY_PATH"] == f"{CRAY}/lib-abi-mpich:{CRAY}/lib:/deployer/host/lib"
    assert "FI_PROVIDER" not in found.environment  # Cray MPICH chooses cxi itself
    plan = make_plan(cray(), "x:1", ["mpich-abi"])
    assert plan.start_options[0].pmi == "cray_shasta"
    assert {"PALS_*", "SLINGSHOT_*"} <= set(plan.pass_environment)


def test_cray_mpich_for_cray_s_compilers_alone_is_refused() -> None:
    with pytest.raises(Refused, match=r"lib/libmpi_gnu_112\.so\.12 is for programs of Cray's compilers") as caught:
        made(cray(library="lib/libmpi_gnu_112.so.12"))
    assert "lib-abi-mpich/libmpi.so.12" in caught.value.hint


def test_mvapich_leaves_pinning_to_the_launcher() -> None:
    found = made(profile(mpi={"family": "mvapich"}))
    assert found.environment["MV2_ENABLE_AFFINITY"] == found.environment["MVP_ENABLE_AFFINITY"] == "0"
    assert {item.name for item in found.host if item.kind == LINK} == {"lib/libmpich.so.12"}
    sites = made(profile(mpi={"family": "mvapich", "environment": {"MV2_ENABLE_AFFINITY": "1"}}))
    assert sites.environment["MV2_ENABLE_AFFINITY"] == "1"


#: Debian's Open MPI: its parts are beside the C library, its plugins in a folder of their own.
PLUGINS = f"{SYSTEM}/openmpi/lib/openmpi3"
FOLDERS = {"OPAL_PKGLIBDIR": PLUGINS, "OPAL_PKGDATADIR": "/usr/share/openmpi", "OPAL_SYSCONFDIR": "/etc/openmpi"}


def debian(**mpi: Any) -> Profile:
    """Return a site whose Open MPI is in the system's folders."""
    inner = f"{SYSTEM.removeprefix('/usr/')}"
    core = lib("libmpi.so.40", "libopen-pal.so.40", "libc.so.6", exports=["MPI_Init"])
    own = {
        f"{inner}/libmpi.so.40.30": core,
        f"{inner}/libmpi_mpifh.so.40": lib("libmpi_mpifh.so.40", "libmpi.so.40", "libgfortran.so.5"),
    }
    files, links = system("libc.so.6", "libopen-pal.so.40", "libgfortran.so.5", "libpsm2.so.2", "libhwloc.so.15",
                          libopen_pal=["libhwloc.so.15"])  # fmt: skip
    files[f"{PLUGINS}/mca_mtl_psm2.so"] = lib(None, "libpsm2.so.2", "libc.so.6").record()
    entry = {
        "family": "openmpi", "prefix": "/usr", "library": f"{inner}/libmpi.so.40", "libraries": [inner],
        "soname": "libmpi.so.40", "folders": FOLDERS, "files": {path: facts.record() for path, facts in own.items()},
        "links": {f"{inner}/libmpi.so.40": "libmpi.so.40.30"}, "providers": f"{inner}/libfabric", **mpi,
    }  # fmt: skip
    return profile(mpi=entry, files=files, links=links)


def test_an_mpi_of_the_system_is_bound_file_by_file_with_its_folders() -> None:
    found = made(debian())
    host = {item.name: item for item in found.host}
    assert not [bind for bind in found.binds if bind.source.startswith("/usr")]
    assert host["lib/libmpi.so.40"].source == f"{SYSTEM}/libmpi.so.40"
    for name in ("libmpi.so.40", "libmpi_mpifh.so.40", "libopen-pal.so.40", "libhwloc.so.15", "libpsm2.so.2"):
        assert not host[f"lib/{name}"].spare, name
    assert host["lib/libgfortran.so.5"].spare
    assert "lib/libc.so.6" not in host
    assert {item.name: item.source for item in found.host if item.kind == DIRECTORY} == {
        "lib/openmpi": PLUGINS, "lib/openmpi-help": "/usr/share/openmpi", "lib/openmpi-settings": "/etc/openmpi",
    }  # fmt: skip
    assert found.environment["LD_LIBRARY_PATH"] == "/deployer/host/lib"
    assert found.environment["OPAL_PREFIX"] == "/usr"
    assert found.environment["OPAL_PKGLIBDIR"] == "/deployer/host/lib/openmpi"
    assert "FI_PROVIDER_PATH" not in found.environment  # it would be a folder of the image


def test_the_image_s_plugins_are_never_those_of_the_system_s_mpi() -> None:
    found = made(debian(folders={"OPAL_PKGLIBDIR": PLUGINS, "PMIX_PKGLIBDIR": "/usr/lib64/pmix"}))
    assert {name: value for name, value in found.environment.items() if name.endswith("DIR")} == {
        "OPAL_PKGLIBDIR": "/deployer/host/lib/openmpi",
        "OPAL_PKGDATADIR": "/deployer/host/lib/openmpi-help",  # it is not bound, and nothing of the image is used
        "OPAL_SYSCONFDIR": "/deployer/host/lib/openmpi-settings",
        "PMIX_PKGLIBDIR": "/deployer/host/lib/pmix",
    }
    assert "lib/openmpi-help" not in names(found)


def test_settings_outside_of_a_prefix() -> None:
    """Red Hat's Open MPI has a prefix of its own, and its settings in /etc."""
    entry = {"family": "openmpi", "folders": {"OPAL_SYSCONFDIR": "/etc/openmpi-x86_64"}, "library": "lib/libmpi.so.12"}
    found = made(profile(mpi=entry))
    assert found.environment["OPAL_SYSCONFDIR"] == "/deployer/host/lib/openmpi-settings"
    assert "OPAL_PKGLIBDIR" not in found.environment
    assert PREFIX in [bind.source for bind in found.binds]


def test_debian_s_mpich_has_two_names() -> None:
    inner = SYSTEM.removeprefix("/usr/")
    files = {f"{inner}/libmpich.so.12": lib("libmpich.so.12", "libc.so.6", exports=["MPI_Init"]).record()}
    entry = {"family": "mpich", "library": f"{inner}/libmpich.so.12", "soname": "libmpich.so.12", "files": files}
    found = {item.name: item for item in made(debian(folders={}, links={}, **entry)).host}
    assert found["lib/libmpich.so.12"].source == f"{SYSTEM}/libmpich.so.12"
    assert (found["lib/libmpi.so.12"].kind, found["lib/libmpi.so.12"].source) == (LINK, "libmpich.so.12")


def test_two_mpis_of_the_system_have_one_prefix_and_files_of_their_own() -> None:
    given, inner = debian(), SYSTEM.removeprefix("/usr/")
    record = given.model_dump(mode="json", exclude_defaults=True)
    name, mpich = next(iter(given.mpi)), f"{inner}/libmpich.so.12"
    files = {mpich: lib("libmpich.so.12", "libc.so.6").record()}
    record["mpi"]["mpich-4.0.2"] = {"family": "mpich", "prefix": "/usr", "library": mpich, "files": files}
    record["partitions"]["batch"]["mpi"] = [name, "mpich-4.0.2"]
    both = Profile.model_validate(record)
    plan = make_plan(both, "x:1", ["mpich-abi"])
    assert plan.mpi
    assert plan.mpi.library == f"/usr/{mpich}"
    assert f"/usr/{mpich}" in both.files_of(plan).files
    assert f"{SYSTEM}/libmpi.so.40.30" not in both.files_of(plan).files


@pytest.mark.parametrize(
    ("lacks", "text"), [({"files": {}}, "its libraries were not"), ({"folders": {}}, "the folder of its plugins is")]
)
def test_an_mpi_of_the_system_that_was_not_captured_whole(lacks: dict[str, Any], text: str) -> None:
    with pytest.raises(Unknown, match=f"is among the system's own libraries in /usr, and {text}") as caught:
        made(debian(**lacks))
    assert "ompi_info" in caught.value.hint


GPUS = {"node": {"sockets": 1, "cores": 1, "threads_per_core": 1, "memory_mb": 1, "gpus": {"kind": "nvidia"}}}


def driver(version: str = "550.54.15", **others: str) -> dict[str, Any]:
    """Return a partition's driver and the facts of its libraries; ``others`` are of another version, by soname."""
    sonames = (
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvidia-nvvm.so.4",
        f"libnvidia-gpucomp.so.{version}",
        "libGL.so.1",
    )
    files, links = {}, {}
    for name in (*sonames, "libnvidia-cfg.so.1"):
        real = f"{SYSTEM}/{name.partition('.so')[0]}.so.{others.get(name.partition('.')[0], version)}"
        files[real] = lib(name).record()
        if not real.endswith(name):
            links[f"{SYSTEM}/{name}"] = real
    libraries = {name: f"{SYSTEM}/{name}" for name in (*sonames, "libnvidia-cfg.so.1")}
    known = {"kind": "nvidia", "version": version, "libraries": libraries, "smi": "/usr/bin/nvidia-smi"}
    return {"files": files, "links": links, "driver": known, **GPUS}


def test_the_driver_s_libraries_for_computing_by_their_names() -> None:
    found = made(profile(fabric={"kind": "infiniband", "devices": ["mlx5_0", "mlx5_1"]}, **driver()))
    host = {item.name: item for item in found.host}
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-gpucomp.so.550.54.15"):
        assert (host[f"lib/{name}"].source, host[f"lib/{name}"].spare) == (f"{SYSTEM}/{name}", False)
    assert (host["lib/libcuda.so"].kind, host["lib/libcuda.so"].source) == (LINK, "libcuda.so.1")
    assert (host["lib/libcuda.so.550.54.15"].kind, host["lib/libcuda.so.550.54.15"].source) == (LINK, "libcuda.so.1")
    assert host["bin/nvidia-smi"].source == "/usr/bin/nvidia-smi"
    assert not [name for name in host if "libGL" in name]
    assert found.environment["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert found.passed == ("CUDA_VISIBLE_DEVICES",)
    assert "CUDA_VISIBLE_DEVICES" in make_plan(profile(gpu_request="none", **driver()), "x:1").pass_environment


def test_a_driver_of_two_versions() -> None:
    left_over = made(profile(**driver(**{"libnvidia-cfg": "535.1.2"})))
    assert "lib/libnvidia-cfg.so.1" not in names(left_over)
    assert "lib/libcuda.so.1" in names(left_over)
    with pytest.raises(Unknown, match=r"libcuda\.so\.1 belongs to driver 535\.1\.2, but the profile's driver is 550"):
        made(profile(**driver(libcuda="535.1.2")))


def test_nccl_on_ethernet_and_what_the_profile_says_before_it() -> None:
    assert made(profile(fabric={"kind": "ethernet", "devices": ["eth0"]}, **driver())).environment[
        "NCCL_SOCKET_IFNAME"
    ] == "=eth0"  # fmt: skip
    own = {"NCCL_SOCKET_IFNAME": "^docker0"}
    found = made(profile(fabric={"kind": "ethernet", "devices": ["eth0"]}, environment=own, **driver()))
    assert found.environment["NCCL_SOCKET_IFNAME"] == "^docker0"


def test_nccl_has_no_verbs_on_slingshot() -> None:
    fabric = {"kind": "slingshot", "devices": ["cxi0", "cxi1", "hsn0", "hsn1"]}
    found = made(profile(fabric=fabric, **driver())).environment
    assert (found.get("NCCL_IB_HCA"), found["NCCL_SOCKET_IFNAME"]) == (None, "=hsn0,hsn1")


OFI = "/opt/aws-ofi-nccl/lib"
LIBFABRIC = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"


def between_gpus(kind: str, *names: str, **fabric: Any) -> Profile:
    """Return a Slingshot site with libraries for communication between GPUs of a vendor, without an MPI."""
    places = {
        **{f"{OFI}/{name}": ["libfabric.so.1", "libcudart.so.12", "libc.so.6"] for name in names if "-net" in name},
        **{f"{OFI}/{name}": ["libc.so.6"] for name in names if "-net" not in name},
        LIBFABRIC: ["libcxi.so.1", "libjson-c.so.5"],
        "/usr/lib64/libcxi.so.1": [], "/usr/lib64/libjson-c.so.5": [], "/opt/cuda/lib64/libcudart.so.12": [],
    }  # fmt: skip
    files = {path: lib(path.rpartition("/")[2], *needed).record() for path, needed in places.items()}
    libraries = {"libcxi.so.1": "/usr/lib64/libcxi.so.1", **{name: f"{OFI}/{name}" for name in names}}
    node = {**GPUS["node"], "gpus": {"kind": kind, "count": 4}}
    network = {"kind": "slingshot", "devices": ["cxi0", "hsn0"], "libraries": libraries, **fabric}
    given = {
        "files": files,
        "links": {},
        "fabric": network,
        "node": node,
        "mpi_of_partition": None,
        "gpu_request": "none",
    }
    return profile(**given)


def test_a_plug_in_of_nccl_is_bound_with_its_libraries_and_variables() -> None:
    found = made(between_gpus("nvidia", "libnccl-net.so", "libgdrapi.so.2"))
    host = {item.name: item for item in found.host}
    assert (host["lib/libnccl-net.so"].source, host["lib/libnccl-net.so"].spare) == (f"{OFI}/libnccl-net.so", False)
    assert not host["lib/libgdrapi.so.2"].spare
    assert (host["lib/libfabric.so.1"].source, host["lib/libfabric.so.1"].spare) == (LIBFABRIC, False)
    assert not host["lib/libcxi.so.1"].spare
    assert host["lib/libcudart.so.12"].spare  # the image's own, of the release of its programs
    assert host["lib/libjson-c.so.5"].spare
    assert "lib/libc.so.6" not in host
    assert found.environment == {
        "LD_LIBRARY_PATH": "/deployer/host/lib",
        "NCCL_NET": "AWS Libfabric", "NCCL_CROSS_NIC": "1", "NCCL_NET_GDR_LEVEL": "PHB",
        "FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_MR_CACHE_MONITOR": "userfaultfd",
        "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=hsn0", "GLOO_SOCKET_IFNAME": "hsn0", "TP_SOCKET_IFNAME": "hsn0",
    }  # fmt: skip
    own = {"NCCL_NET_GDR_LEVEL": "SYS", "FI_CXI_RX_MATCH_MODE": "software"}
    assert made(between_gpus("nvidia", "libnccl-net.so", environment=own)).environment.items() >= own.items()
    assert "NCCL_NET" not in made(between_gpus("nvidia", environment=own)).environment


@pytest.mark.parametrize(
    ("kind", "listed", "bound"),
    [
        ("nvidia", ["libnccl-net-ofi.so"], {"libnccl-net-ofi.so": "", "libnccl-net.so": "libnccl-net-ofi.so"}),
        ("amd", ["librccl-net.so"], {"librccl-net.so": "", "libnccl-net.so": "librccl-net.so"}),
        ("amd", ["libnccl-net.so"], {"libnccl-net.so": "", "librccl-net.so": "libnccl-net.so"}),
        ("amd", ["libgdrapi.so.2", "libnccl.so.2"], {}),
        ("intel", ["libnccl-net.so", "libccl.so.1"], {"libccl.so.1": ""}),
        ("nvidia", ["librccl-net.so", "libnccl.so.2"], {"libnccl.so.2": ""}),
    ],
)
def test_libraries_between_gpus_by_the_names_that_each_vendor_s_opens(
    kind: str, listed: list[str], bound: dict[str, str]
) -> None:
    found = made(between_gpus(kind, *listed))
    host = {item.name[4:]: item for item in found.host if "ccl" in item.name or "gdrapi" in item.name}
    assert {name: item.source if item.kind == LINK else "" for name, item in host.items()} == bound
    assert all(item.spare == ("-net" not in name and "gdrapi" not in name) for name, item in host.items())


def test_a_plug_in_with_the_site_s_mpi_uses_its_libfabric() -> None:
    record = between_gpus("nvidia", "libnccl-net.so").model_dump(mode="json", exclude_defaults=True)
    record["partitions"]["batch"]["mpi"] = "intel-2021.15"
    found = made(Profile.model_validate(record))
    assert "lib/libnccl-net.so" in names(found)
    assert "lib/libfabric.so.1" not in names(found)  # that of the MPI, in a folder before
    assert found.environment["FI_PROVIDER_PATH"] == f"{PREFIX}/lib"


def test_the_user_s_part_of_intel_s_driver_is_for_images_without_it() -> None:
    record = between_gpus("intel").model_dump(mode="json", exclude_defaults=True)
    batch, path = record["partitions"]["batch"], "/usr/lib64/libze_intel_gpu.so.1"
    batch["files"] |= {path: lib("libze_intel_gpu.so.1", "libigdgmm.so.12").record(),
                       "/usr/lib64/libigdgmm.so.12": lib("libigdgmm.so.12").record()}  # fmt: skip
    batch["driver"] = {"kind": "intel", "libraries": {"libze_intel_gpu.so.1": path}}
    found = {item.name: item.spare for item in made(Profile.model_validate(record)).host}
    assert found == {"lib/libze_intel_gpu.so.1": True, "lib/libigdgmm.so.12": True}


@pytest.mark.parametrize(("kind", "name"), [("nvidia", "cuda"), ("amd", "hsa"), ("intel", "ze")])
def test_cray_mpich_s_library_for_gpus_is_loaded_before_the_program(kind: str, name: str) -> None:
    gtl = "/opt/cray/pe/mpich/8.1.32/gtl/lib/libmpi_gtl_{}.so.0"
    more = {gtl.format(each): lib(None, "libamdhip64.so.6").record() for each in ("cuda", "hsa", "ze")}
    record = cray(environment={"MPICH_GPU_SUPPORT_ENABLED": "1"}).model_dump(mode="json", exclude_defaults=True)
    batch = record["partitions"]["batch"]
    batch["files"] |= more | {"/opt/rocm/lib/libamdhip64.so.6": lib("libamdhip64.so.6").record()}
    batch["node"] = {**GPUS["node"], "gpus": {"kind": kind, "count": 8}}
    found = made(Profile.model_validate(record))
    host = {item.name: item for item in found.host}
    assert host[f"lib/libmpi_gtl_{name}.so.0"].source == gtl.format(name)
    assert not host[f"lib/libmpi_gtl_{name}.so.0"].spare
    assert host["lib/libamdhip64.so.6"].spare
    assert found.environment["LD_PRELOAD"] == f"/deployer/host/lib/libmpi_gtl_{name}.so.0"
    assert [each for each in host if "gtl" in each] == [f"lib/libmpi_gtl_{name}.so.0"]
    batch["environment"] = {"MPICH_GPU_SUPPORT_ENABLED": "0"}
    assert "LD_PRELOAD" not in made(Profile.model_validate(record)).environment


@pytest.mark.parametrize(
    ("kind", "devices", "passed"),
    [
        ("nvidia", (), ("CUDA_VISIBLE_DEVICES",)),
        ("amd", ("/dev/kfd", "/dev/dri"), ("ROCR_VISIBLE_DEVICES",)),
        ("intel", ("/dev/dri",), ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY")),
    ],
)
def test_the_devices_and_variables_of_a_vendor(kind: str, devices: tuple[str, ...], passed: tuple[str, ...]) -> None:
    given = between_gpus(kind)
    plan = make_plan(given, "x:1", [])
    assert plan.devices == devices
    assert made(given).passed == passed
    assert set(passed) <= set(plan.pass_environment)


def test_a_partition_without_gpus_gets_nothing_of_a_driver() -> None:
    without = {**driver(), "node": {**GPUS["node"], "gpus": None}}
    found = made(profile(**without))
    assert names(found) == ["lib/libmpich.so.12"]
    assert not [name for name in found.environment if name.startswith("NCCL")]


def test_gpus_with_the_image_s_own_mpi() -> None:
    found = made(profile(**{**driver(), "mpi_of_partition": None}))
    assert found.binds == []
    assert found.environment["LD_LIBRARY_PATH"] == "/deployer/host/lib"
    assert "lib/libcuda.so.1" in names(found)


@pytest.mark.parametrize(
    ("kind", "devices", "interface"),
    [
        ("infiniband", ["ib0", "mlx5_0"], "ib0"),
        ("omni-path", ["hfi1_0", "ibp175s0"], "ibp175s0"),
        ("slingshot", ["cxi0", "hsn0", "hsn1"], "hsn0"),
        ("infiniband", ["mlx5_0"], None),
        ("ethernet", ["eth0", "eth1"], None),  # the job chooses one that all of its nodes have
    ],
)
def test_frameworks_without_mpi_use_the_fast_fabric(kind: str, devices: list[str], interface: str | None) -> None:
    found = made(profile(fabric={"kind": kind, "devices": devices})).environment
    assert (found.get("GLOO_SOCKET_IFNAME"), found.get("TP_SOCKET_IFNAME")) == (interface, interface)
    assert found.get("NCCL_SOCKET_IFNAME", "").startswith(f"={interface}" if interface else "")
