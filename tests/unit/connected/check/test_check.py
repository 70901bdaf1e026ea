"""Each rule is set off by what really fails, and not by its near miss."""

from collections.abc import Mapping
from typing import Any

import pytest

from deployer.connected.check import check
from deployer.connected.check.rules import linking as linking_rules
from deployer.connected.check.rules import pmi as pmi_rules
from deployer.connected.check.rules.case import Case
from deployer.connected.check.rules.linking import newer_base
from deployer.connected.linker import job_filesystem, process
from deployer.connected.linker.index import Index, Indexed, of_site
from deployer.connected.linker.job_filesystem import FILE, folders_of
from deployer.connected.linker.loader import WrongVersion
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.linker.starts.words import UnknownWord
from deployer.connected.site_profile.profile import Partition, Profile
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.elf.dynamic import Dynamic, Facts
from deployer.contract.elf.linked_mpi import SYMBOLS, TEXTS
from deployer.contract.rules import verdict
from deployer.contract.rules.findings import ERROR, NOTE, WARNING, Finding
from deployer.contract.rules.hostfiles import DIRECTORY, FOLDER, LINK, HostFile
from deployer.contract.rules.hostfiles import FILE as SINGLE
from deployer.contract.site.plan import NO_MPI, GpuRequest, HostMpi, Plan
from tests import running
from tests.running import IMAGE, PREFIX, START_OPTION

PLAN = running.PLAN._replace(abi="mpich-abi")
MANIFEST = Manifest("hello", "1", {}, {}, IMAGE, {}, [], [], [])
MODULE = "/usr/lib/python3/dist-packages/hvd/mpi_lib.so"
CALLS = ["MPI_Allreduce", "MPI_Init"]
HAS = [*CALLS, "MPI_Finalize"]


def lib(soname: str | None = None, *needed: str, imports: list[str] | None = None, exports: list[str] | None = None,
        rpath: str = "", runpath: str = "", versions: dict[str, list[str]] | None = None,
        defines: tuple[str, ...] = (), now: bool = False) -> Facts:  # fmt: skip
    paths = [[path for path in text.split(":") if path] for text in (rpath, runpath)]
    dynamic = Dynamic(62, None, soname, list(needed), *paths, versions or {}, list(defines), now, None)
    return Facts(dynamic, imports or [], exports or [])


def index(files: Mapping[str, Facts | None]) -> Index:
    entries = {
        path: Indexed(FILE, facts=facts, bad="" if facts else "it is cut off", executable=True)
        for path, facts in files.items()
    }
    return Index({**dict.fromkeys(folders_of(files), Indexed(job_filesystem.FOLDER)), **entries}, {})


LIBC = lib("libc.so.6", defines=("GLIBC_2.17", "GLIBC_2.34"))
IMAGE_FILES: dict[str, Facts | None] = {
    "/usr/bin/python3": lib(None, "libc.so.6", versions={"libc.so.6": ["GLIBC_2.34"]}),
    "/usr/lib/libc.so.6": LIBC,
    MODULE: lib(None, "libmpi.so.12", "libc.so.6", imports=CALLS),
}
HOST_FILES = {
    PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", "libfabric.so.1", "libc.so.6", exports=HAS),
    PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", versions={"libc.so.6": ["GLIBC_2.17"]}),
    PREFIX + "/lib/libtcp-fi.so": lib(None, "libfabric.so.1"),
}
OPENMPI = PLAN._replace(
    mpi=HostMpi("openmpi", "5.0.11", PREFIX, PREFIX + "/lib/libmpi.so.40", "Open MPI v5.0.11"), abi="openmpi"
)
OPENMPI_FILES = {
    PREFIX + "/lib/libmpi.so.40": lib("libmpi.so.40", "libopen-pal.so.80", exports=HAS),
    PREFIX + "/lib/libopen-pal.so.80": lib("libopen-pal.so.80"),
}


def started(
    image: Mapping[str, Facts | None] | None = None,
    host: Mapping[str, Facts] | None = None,
    plan: Plan = PLAN,
    overlays: tuple[Overlay, ...] = (),
    command: str = "python3",
) -> Process:
    files = index(IMAGE_FILES if image is None else image)
    site = {PREFIX: below(HOST_FILES if host is None else host)}
    return process.start(plan, IMAGE, files, overlays, site, process.Start(command))


def below(found: Mapping[str, Facts]) -> Index:
    """Return files by their absolute paths, bound at the prefix."""
    return of_site({path.removeprefix(PREFIX): facts for path, facts in found.items()}, {})


def findings(linked: Process) -> list[Finding]:
    return [finding for rule in check.PROCESS_RULES for finding in rule(linked)]


def codes(linked: Process) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in findings(linked)]


def test_the_site_s_library_is_taken_and_nothing_is_found() -> None:
    linked = started()
    assert linked.library.path == PREFIX + "/lib/libmpi.so.12"
    assert findings(linked) == []
    assert [user.path for user in linked.users] == [MODULE]


def test_a_program_that_is_not_there() -> None:
    assert codes(started(command="/usr/bin/perl")) == [("link.program", ERROR)]
    assert codes(started(command="/usr/bin/python3")) == []


def test_a_library_that_nobody_has() -> None:
    needs = {**IMAGE_FILES, MODULE: lib(None, "libmpi.so.12", "libgone.so.3", imports=CALLS)}
    (finding,) = findings(started(needs))
    assert (finding.code, finding.severity, finding.subject) == ("link.missing", ERROR, MODULE)
    assert "libgone.so.3" in finding.message
    # TensorFlow's own, which its import loads before Horovod's module
    beside = {**needs, "/usr/lib/python3/dist-packages/tf/libgone.so.3": lib("libgone.so.3")}
    assert codes(started(beside)) == []
    # of the site's tree: the remedy is another
    host = {**HOST_FILES, PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", "libpsm2.so.2")}
    (finding,) = findings(started(host=host))
    assert finding.code == "link.missing"
    assert "bind the site's" in finding.remedy


def test_the_gpu_driver_is_the_site_s() -> None:
    image = {**IMAGE_FILES, "/usr/bin/hello": lib(None, "libcuda.so.1")}
    assert codes(started(image, command="hello")) == [("link.missing", ERROR)]
    with_gpus = PLAN._replace(batch=PLAN.batch._replace(gpus=GpuRequest("gres", 4)))
    (finding,) = findings(started(image, plan=with_gpus, command="hello"))
    assert (finding.code, finding.severity) == ("link.missing", verdict.MISSING_FACTS)
    assert "capture" in finding.remedy


def on(machine: int, facts: Facts) -> Facts:
    return facts._replace(dynamic=facts.dynamic._replace(machine=machine))


@pytest.mark.parametrize(("machine", "name"), [(183, "aarch64"), (21, "ppc64le"), (40, "arm"), (9999, "machine 9999")])
def test_a_program_or_library_for_another_machine(machine: int, name: str) -> None:
    """Seen: a static aarch64 program was RUN, and a dynamic one refused for libc.so.6."""
    for program in (lib(None), lib(None, "libc.so.6")):
        (finding,) = findings(started({**IMAGE_FILES, "/usr/bin/hello": on(machine, program)}, command="hello"))
        assert (finding.code, finding.severity, finding.subject) == ("link.machine", ERROR, "/usr/bin/hello")
        assert f"it is for {name}" in finding.message
    needs = {**IMAGE_FILES, "/usr/bin/hello": lib(None, "libpart.so.1")}
    other = {**needs, "/usr/lib/libpart.so.1": on(machine, lib("libpart.so.1"))}
    (finding,) = findings(started(other, command="hello"))
    assert (finding.code, finding.subject) == ("link.machine", "/usr/lib/libpart.so.1")
    assert codes(started({**other, "/lib/libpart.so.1": lib("libpart.so.1")}, command="hello")) == []
    module = {**IMAGE_FILES, MODULE: on(machine, lib(None, "libmpi.so.12", imports=CALLS))}
    (finding,) = findings(started(module))
    assert (finding.code, finding.severity, finding.subject) == ("link.machine", ERROR, MODULE)


def test_a_32_bit_program_is_linked_with_32_bit_libraries() -> None:
    files = {**IMAGE_FILES, "/usr/bin/old": on(3, lib(None, "libc.so.6"))}
    assert codes(started(files, command="old")) == [("link.machine", ERROR)]  # the libc that is there is for x86-64
    assert codes(started({**files, "/usr/lib/i386-linux-gnu/libc.so.6": on(3, LIBC)}, command="old")) == []
    assert codes(started({"/usr/bin/old": on(3, lib(None, "libc.so.6"))}, command="old")) == [("link.missing", ERROR)]


def test_what_a_program_needs_at_its_start_must_be_in_a_folder_that_is_searched() -> None:
    hidden = {**IMAGE_FILES, "/usr/bin/hello": lib(None, "libpart.so.1"), "/opt/part/libpart.so.1": lib("libpart.so.1")}
    assert codes(started(hidden, command="hello")) == [("link.missing", ERROR)]
    hidden["/usr/bin/hello"] = lib(None, "libpart.so.1", runpath="/opt/part")
    assert codes(started(hidden, command="hello")) == []


def test_the_abi_of_mpi_5() -> None:
    """Newer libraries of MPICH's family have libmpi_abi.so.1 too; else the image's own is used, or none."""
    image = {**IMAGE_FILES, MODULE: lib(None, "libmpi_abi.so.1", imports=CALLS)}
    assert codes(started(image)) == [("link.missing", ERROR)]
    has = {**HOST_FILES, PREFIX + "/lib/libmpi_abi.so.1": lib("libmpi_abi.so.1", exports=HAS)}
    assert codes(started(image, has)) == []
    own = {**image, "/usr/lib/libmpi_abi.so.1": lib("libmpi_abi.so.1", exports=HAS)}
    assert codes(started(own)) == [("mpi.escape", ERROR)]
    assert codes(started(own, has)) == []
    assert codes(started(image, OPENMPI_FILES, OPENMPI)) == [("mpi.family", ERROR)]


def test_without_a_site_s_mpi_the_image_must_have_its_own() -> None:
    plan = PLAN._replace(mpi=None, environment={})
    assert codes(started(host={}, plan=plan)) == [("link.missing", ERROR)]
    own = {**IMAGE_FILES, "/usr/lib/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
    assert codes(started(own, {}, plan)) == []


@pytest.mark.parametrize(("library", "family"), [("libmpi.so.12", "mpich-abi"), ("libmpi.so.40", "openmpi")])
def test_mpi_is_called_though_the_definition_says_that_it_is_not(library: str, family: str) -> None:
    """``mpi: []`` and mpi4py: what lacks is not a package of the image."""
    module = {**IMAGE_FILES, MODULE: lib(None, library, "libgone.so.3", imports=CALLS)}
    found = findings(started(module, {}, PLAN._replace(mpi=None, abi=NO_MPI, environment={})))
    said = {each.message.split()[2].rstrip(","): each.remedy for each in found}
    assert f"write `mpi: [{family}]`" in said[library]
    assert said["libgone.so.3"].startswith("add the package")


def test_a_site_s_library_that_needs_a_newer_c_library() -> None:
    host = {**HOST_FILES, PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", versions={"libc.so.6": ["GLIBC_2.38"]})}
    (finding,) = findings(started(host=host))
    assert (finding.code, finding.severity) == ("link.version", ERROR)
    assert "glibc 2.38 or newer: Ubuntu 24.04, RHEL 10" in finding.remedy


def test_a_library_that_is_cut_off() -> None:
    assert ("link.broken", ERROR) in codes(started({**IMAGE_FILES, "/usr/lib/libc.so.6": None}))


def test_the_other_family() -> None:
    module = {**IMAGE_FILES, MODULE: lib(None, "libmpi.so.40", imports=CALLS)}
    assert codes(started(module)) == [("mpi.family", ERROR)]
    assert codes(started(module, OPENMPI_FILES, OPENMPI)) == []
    both = {
        **IMAGE_FILES,
        "/usr/lib/python3/dist-packages/mpi4py/MPI.mpich.so": lib(None, "libmpi.so.12", imports=CALLS),
        "/usr/lib/python3/dist-packages/mpi4py/MPI.openmpi.so": lib(None, "libmpi.so.40", imports=CALLS),
    }
    assert findings(started(both)) == []


def test_nvshmem_needs_mpi_only_if_it_is_told_to_start_with_it() -> None:
    """Its module made the verdict about JAX's wheels for GPUs UNKNOWN: no MPI is in that image."""
    plugin = "/usr/lib/python3/dist-packages/nvidia/nvshmem/lib/nvshmem_bootstrap_mpi.so.3"
    image = {**IMAGE_FILES, plugin: lib(None, "libmpi.so.40", imports=CALLS)}
    assert findings(started(image)) == []
    otherwise = PLAN._replace(environment={**PLAN.environment, "NVSHMEM_BOOTSTRAP": "PMI"})
    assert findings(started(image, plan=otherwise)) == []
    told = PLAN._replace(environment={**PLAN.environment, "NVSHMEM_BOOTSTRAP": "MPI"})
    assert codes(started(image, plan=told)) == [("mpi.family", ERROR)]


def test_a_variant_stands_before_the_image_s_own_package() -> None:
    overlay = Overlay("/deployer/variant/lib", index({"/hvd/mpi_lib.so": lib(None, "libmpi.so.40", imports=CALLS)}))
    linked = started(host=OPENMPI_FILES, plan=OPENMPI, overlays=(overlay,))
    assert [user.path for user in linked.users] == ["/deployer/variant/lib/hvd/mpi_lib.so"]
    assert findings(linked) == []


def test_debian_s_name_escapes_the_bind() -> None:
    debian = {
        **IMAGE_FILES,
        MODULE: lib(None, "libmpich.so.12", imports=CALLS),
        "/usr/lib/libmpich.so.12": lib("libmpich.so.12", exports=HAS),
    }
    (finding,) = findings(started(debian))
    assert (finding.code, finding.severity, finding.subject) == ("mpi.escape", ERROR, MODULE)
    assert "libmpich.so.12" in finding.message


ALIAS = HostFile("lib/libmpich.so.12", LINK, PREFIX + "/lib/libmpi.so.12", "Debian's name")
SYSTEM = "/usr/lib/x86_64-linux-gnu/"


def hosted(image: dict[str, Facts | None], host: dict[str, Facts], *found: HostFile) -> Process:
    """Start the program with single host files; all of the site's files are in ``host``."""
    search = {"LD_LIBRARY_PATH": f"{PREFIX}/lib:{FOLDER}/lib"}
    links = {SYSTEM + "libnuma.so.1": "libnuma.so.1.0"}
    files = {PREFIX: below({p: f for p, f in host.items() if p.startswith(PREFIX)}), FOLDER: of_site(host, links)}
    return process.start(
        PLAN._replace(host=found, environment=search), IMAGE, index(image), (), files, process.Start("python3")
    )


def test_an_alias_catches_debian_s_name() -> None:
    debian = {
        **IMAGE_FILES,
        MODULE: lib(None, "libmpich.so.12", imports=CALLS),
        "/usr/lib/libmpich.so.12": lib("libmpich.so.12", exports=HAS),
    }
    linked = hosted(debian, HOST_FILES, ALIAS)
    assert findings(linked) == []
    assert linked.library.path == PREFIX + "/lib/libmpi.so.12"
    assert codes(hosted(debian, HOST_FILES)) == [("mpi.escape", ERROR)]
    rpath = {**debian, MODULE: lib(None, "libmpich.so.12", imports=CALLS, rpath="/usr/lib")}
    (finding,) = findings(hosted(rpath, HOST_FILES, ALIAS))
    assert (finding.code, "DT_RPATH" in finding.message) == ("mpi.rpath", True)


def test_single_libraries_of_the_host_are_linked_as_the_job_sees_them() -> None:
    numa = HostFile("lib/libnuma.so.1", SINGLE, SYSTEM + "libnuma.so.1", "MPI needs it", spare=True)
    host = {
        **HOST_FILES,
        PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", "libnuma.so.1"),
        SYSTEM + "libnuma.so.1.0": lib("libnuma.so.1", "libc.so.6", versions={"libc.so.6": ["GLIBC_2.17"]}),
    }
    assert codes(hosted(IMAGE_FILES, host)) == [("link.missing", ERROR)]
    linked = hosted(IMAGE_FILES, host, numa)
    assert findings(linked) == []
    assert FOLDER + "/lib/libnuma.so.1" in {each.path for each in linked.loader.objects}
    own = hosted({**IMAGE_FILES, SYSTEM + "libnuma.so.1": lib("libnuma.so.1")}, host, numa)
    assert SYSTEM + "libnuma.so.1" in {each.path for each in own.loader.objects}
    assert findings(own) == []


def test_a_library_of_the_host_that_only_a_provider_opens_needs_this_c_library_too() -> None:
    psm2 = HostFile("lib/libpsm2.so.2", SINGLE, SYSTEM + "libpsm2.so.2", "MPI needs it")
    new = lib("libpsm2.so.2", "libc.so.6", versions={"libc.so.6": ["GLIBC_2.38"]})
    (finding,) = findings(hosted(IMAGE_FILES, {**HOST_FILES, SYSTEM + "libpsm2.so.2": new}, psm2))
    assert (finding.code, finding.subject) == ("link.version", FOLDER + "/lib/libpsm2.so.2")
    assert finding.severity == NOTE  # libfabric passes over the provider; the one that is asked for is fabric.library's
    assert finding.remedy.startswith("build the image on a base with glibc 2.38 or newer: Ubuntu 24.04, RHEL 10")
    old = lib("libpsm2.so.2", "libc.so.6", versions={"libc.so.6": ["GLIBC_2.34"]})
    assert findings(hosted(IMAGE_FILES, {**HOST_FILES, SYSTEM + "libpsm2.so.2": old}, psm2)) == []


def test_a_folder_of_the_host_is_seen_and_nothing_of_it_is_opened_unasked() -> None:
    """UCX's transports, or libfabric's providers: one that lacks its library is passed over."""
    ucx = HostFile("lib/ucx", DIRECTORY, SYSTEM + "ucx", "transports")
    lacks = lib("libuct_cuda.so.0", "libcuda.so.1")
    linked = hosted(IMAGE_FILES, {**HOST_FILES, SYSTEM + "ucx/libuct_cuda.so.0": lacks}, ucx)
    assert linked.view.names(FOLDER + "/lib/ucx") == ["libuct_cuda.so.0"]
    assert findings(linked) == []


def test_the_driver_s_libraries_must_fit_where_the_image_has_cuda() -> None:
    cuda = HostFile("lib/libcuda.so.1", SINGLE, SYSTEM + "libcuda.so.1", "the GPUs' driver")
    new = lib("libcuda.so.1", "libc.so.6", versions={"libc.so.6": ["GLIBC_2.38"]})
    host = {**HOST_FILES, SYSTEM + "libcuda.so.1": new}
    assert codes(hosted(IMAGE_FILES, host, cuda)) == [("link.version", NOTE)]
    image = {**IMAGE_FILES, "/usr/lib/python3/dist-packages/nvidia/libcudart.so.12": lib("libcudart.so.12")}
    assert codes(hosted(image, host, cuda)) == [("link.version", ERROR)]


def test_a_provider_s_library_of_the_host_that_is_asked_for() -> None:
    psm2 = HostFile("lib/libpsm2.so.2", SINGLE, SYSTEM + "libpsm2.so.2", "MPI needs it")
    new = lib("libpsm2.so.2", "libc.so.6", versions={"libc.so.6": ["GLIBC_2.38"]})
    host = {**HOST_FILES, SYSTEM + "libpsm2.so.2": new, PREFIX + "/lib/libpsmx2-fi.so": lib(None, "libpsm2.so.2")}
    linked = hosted(IMAGE_FILES, host, psm2)
    assert ("fabric.library", ERROR) not in codes(linked)
    asked = {**linked.environment, "FI_PROVIDER": "psm2"}
    assert codes(linked._replace(environment=asked)) == [("link.version", NOTE), ("fabric.library", ERROR)]


def test_a_provider_that_the_job_asks_for() -> None:
    linked = started()
    for value, found in (("verbs", ["fabric.provider"]), ("tcp", []), (UnknownWord("$X"), [])):
        job = linked._replace(environment={**linked.environment, "FI_PROVIDER": value})
        assert [code for code, _ in codes(job)] == found


def test_a_base_for_each_version() -> None:
    assert newer_base("GLIBC_2.41").endswith("newer: Debian 13 (trixie)")
    assert "no common base" in newer_base("GLIBC_2.99")
    assert newer_base("GLIBCXX_3.4.32") == "build the image on a newer base"


def test_an_rpath_escapes_the_bind_and_a_runpath_does_not() -> None:
    own = {"/usr/local/lib/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
    with_rpath = {**IMAGE_FILES, **own, MODULE: lib(None, "libmpi.so.12", imports=CALLS, rpath="/usr/local/lib")}
    (finding,) = findings(started(with_rpath))
    assert finding.code == "mpi.rpath"
    assert "DT_RPATH" in finding.message
    with_runpath = {**with_rpath, MODULE: lib(None, "libmpi.so.12", imports=CALLS, runpath="/usr/local/lib")}
    assert codes(started(with_runpath)) == []


def test_functions_that_the_site_s_library_lacks() -> None:
    module = {**IMAGE_FILES, MODULE: lib(None, "libmpi.so.12", imports=[*CALLS, "MPI_Comm_c2f"])}
    (finding,) = findings(started(module))
    assert (finding.code, finding.severity) == ("mpi.symbols", ERROR)
    assert "MPI_Comm_c2f" in finding.message
    host = {**HOST_FILES, PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", exports=[*HAS, "MPI_Comm_c2f"])}
    assert codes(started(module, host)) == []


def test_a_tree_that_is_bound_by_half() -> None:
    pal = {"/usr/lib/libopen-pal.so.80": lib("libopen-pal.so.80"), MODULE: lib(None, "libmpi.so.40", imports=CALLS)}
    half = {path: facts for path, facts in OPENMPI_FILES.items() if "pal" not in path}
    assert codes(started({**IMAGE_FILES, **pal}, half, OPENMPI)) == [("mpi.mixed", ERROR)]
    assert codes(started({**IMAGE_FILES, **pal}, OPENMPI_FILES, OPENMPI)) == []
    fabric = {"/usr/lib/libfabric.so.1": lib("libfabric.so.1")}
    half = {path: facts for path, facts in HOST_FILES.items() if "fabric" not in path}
    assert codes(started({**IMAGE_FILES, **fabric}, half)) == [("mpi.mixed", WARNING)]


FORTRAN = "/usr/lib/libmpi_mpifh.so.40"


def fortran(release: str) -> dict[str, Facts | None]:
    """Return an image with a Fortran program, as Debian has them: of Open MPI 4 it brings libopen-pal.so.40."""
    return {
        **IMAGE_FILES,
        "/usr/lib/mumps/dsimpletest": lib(None, "libmpi_mpifh.so.40"),
        FORTRAN: lib("libmpi_mpifh.so.40", "libmpi.so.40", f"libopen-pal.so.{release}", imports=CALLS),
        f"/usr/lib/libopen-pal.so.{release}": lib(f"libopen-pal.so.{release}"),
        "/usr/lib/libmpi.so.40": lib("libmpi.so.40", f"libopen-pal.so.{release}", exports=[*HAS, "PMPI_Init"]),
        MODULE: None,
    }


def test_open_mpi_s_library_for_fortran_brings_its_own_release() -> None:
    """Seen: dsimpletest of Debian 12 with Open MPI 5.0 dies in MPI_Init; 5.x over 5.x runs."""
    (finding,) = findings(started(fortran("40"), OPENMPI_FILES, OPENMPI, command="/usr/lib/mumps/dsimpletest"))
    assert (finding.code, finding.severity, finding.subject) == ("mpi.mixed", ERROR, FORTRAN)
    assert finding.message.startswith("in /usr/lib/mumps/dsimpletest, it would load ")  # of several jobs, which one
    assert PREFIX + "/lib/libopen-pal.so.80" in finding.message
    assert "has libopen-pal.so.80" in finding.remedy
    assert findings(started(fortran("80"), OPENMPI_FILES, OPENMPI, command="/usr/lib/mumps/dsimpletest")) == []
    four = {
        PREFIX + "/lib/libmpi.so.40": lib("libmpi.so.40", "libopen-pal.so.40", exports=HAS),
        PREFIX + "/lib/libopen-pal.so.40": lib("libopen-pal.so.40"),
    }
    assert findings(started(fortran("40"), four, OPENMPI, command="/usr/lib/mumps/dsimpletest")) == []


def test_a_library_for_another_language_names_all_of_mpi() -> None:
    """Debian's libmpichfort.so.12 calls three PMPIX functions that no other release has; programs call none of them."""
    image = {
        **IMAGE_FILES,
        "/usr/bin/hello": lib(None, "libmpichfort.so.12"),
        "/usr/lib/libmpichfort.so.12": lib("libmpichfort.so.12", "libmpi.so.12", imports=[*CALLS, "PMPIX_Gone"]),
    }
    assert codes(started(image, command="hello")) == [("mpi.symbols", NOTE)]
    at_once = lib("libmpichfort.so.12", "libmpi.so.12", imports=[*CALLS, "PMPIX_Gone"], now=True)
    found = codes(started({**image, "/usr/lib/libmpichfort.so.12": at_once}, command="hello"))
    assert found == [("mpi.symbols", ERROR)]


@pytest.mark.parametrize("how", [SYMBOLS, TEXTS])
def test_a_program_with_mpi_inside_uses_no_library(how: str) -> None:
    image = {**IMAGE_FILES, MODULE: None, "/usr/bin/hello": lib()._replace(linked=how)}
    (finding,) = findings(started(image, command="hello"))
    assert (finding.code, finding.severity, finding.subject) == ("mpi.escape", ERROR, "/usr/bin/hello")
    assert ("stripped" in finding.message) == (how == TEXTS)
    assert "libmpi.so.12" in finding.remedy
    assert findings(started(image, host={}, plan=PLAN._replace(mpi=None), command="hello")) == []


def test_an_mpi_library_of_any_name_is_the_image_s_own() -> None:
    private = "/opt/own/libmpi_own.so.7"
    image = {
        **IMAGE_FILES,
        "/usr/bin/hello": lib(None, "libmpi_own.so.7", imports=CALLS, runpath="/opt/own"),
        private: lib("libmpi_own.so.7", exports=[*HAS, "PMPI_Init"]),
    }
    (finding,) = findings(started(image, command="hello"))
    assert (finding.code, finding.subject) == ("mpi.escape", "/usr/bin/hello")
    assert "the DT_RUNPATH of /usr/bin/hello leads to it" in finding.message
    assert finding.remedy == "link it to libmpi.so.12, which the site's MPI has, in place of libmpi_own.so.7"
    traced = {**image, private: lib("libmpi_own.so.7", "libmpi.so.12", imports=["PMPI_Init"], exports=["MPI_Init"])}
    assert findings(started(traced, command="hello")) == []  # a profiler, over the site's library


def test_an_escape_is_of_the_file_that_leads_to_it() -> None:
    """A program's DT_RPATH brings the library for all; others that use it are not the cause."""
    image = {
        **IMAGE_FILES,
        "/usr/bin/hello": lib(None, "libpart.so.1", "libmpi.so.12", imports=CALLS, rpath="/opt/own"),
        "/usr/lib/libpart.so.1": lib("libpart.so.1", "libmpi.so.12", imports=CALLS),
        "/opt/own/libmpi.so.12": lib("libmpi.so.12", exports=HAS),
    }
    (finding,) = findings(started({**image, MODULE: None}, command="hello"))
    assert (finding.code, finding.subject) == ("mpi.rpath", "/usr/bin/hello")
    assert "patchelf --remove-rpath /usr/bin/hello" in finding.remedy


def test_what_the_image_s_own_mpi_needs_is_a_consequence() -> None:
    image = {
        **IMAGE_FILES,
        MODULE: lib(None, "libmpi_abi.so.1", imports=CALLS, runpath="/opt/own"),
        "/opt/own/libmpi_abi.so.1": lib("libmpi_abi.so.1", "libfabric.so.1", exports=HAS,
                                        versions={"libfabric.so.1": ["FABRIC_1.9"]}),
    }  # fmt: skip
    host = {**HOST_FILES, PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", defines=("FABRIC_1.0",))}
    version, escape = findings(started(image, host))
    assert (version.code, escape.code) == ("link.version", "mpi.escape")
    assert "see mpi.escape" in version.remedy
    assert "link it to libmpi.so.12" in escape.remedy


@pytest.mark.parametrize(
    ("needs", "has", "version", "remedy"),
    [
        (PREFIX + "/lib/a.so", "/usr/lib/libc.so.6", "GLIBC_2.38", "build the image on a base with glibc 2.38"),
        (PREFIX + "/lib/a.so", "/usr/lib/libstdc++.so.6", "GLIBCXX_3.4.32", "build the image on a newer base"),
        (PREFIX + "/lib/a.so", "/usr/lib/libfabric.so.1", "FABRIC_1.9", "bind the site's own libfabric.so.1"),
        (PREFIX + "/lib/a.so", PREFIX + "/lib/b.so", "FABRIC_1.9", "both are the site's"),
        ("/usr/lib/a.so", PREFIX + "/lib/libfabric.so.1", "FABRIC_1.9", "the site's libfabric.so.1 takes the place"),
        ("/usr/lib/a.so", "/usr/lib/libc.so.6", "GLIBC_2.38", "install the package for this image's base"),
        ("/usr/lib/a.so", "/usr/lib/libx.so.1", "X_2", "install the release of libx.so.1"),
    ],
)
def test_a_version_is_mended_where_it_is_missing(needs: str, has: str, version: str, remedy: str) -> None:
    linked = started()
    wrong = WrongVersion(version, has, needs, needs)
    assert linking_rules._fitting(linked, wrong).startswith(remedy)


@pytest.mark.parametrize(
    ("severities", "expected"),
    [
        ([], verdict.RUN),
        ([WARNING], verdict.WARN),
        ([WARNING, verdict.MISSING_FACTS], verdict.UNKNOWN),
        ([verdict.MISSING_FACTS, ERROR], verdict.REFUSE),
    ],
)
def test_the_worst_finding_is_the_verdict(severities: list[str], expected: str) -> None:
    found = [Finding(f"a.{number}", severity, "x", "y", "z") for number, severity in enumerate(severities)]
    assert verdict.judged(found).verdict == expected
    codes = [finding.code for finding in found]
    assert verdict.judged(found, codes).verdict == (verdict.WARN if found else verdict.RUN)


# ------------------------------------------------------------------------------------------------ programs


def test_a_program_that_calls_mpi_is_judged_like_a_module() -> None:
    hello = lib(None, "libmpich.so.12", imports=CALLS)
    image = {**IMAGE_FILES, "/usr/bin/hello": hello, "/usr/lib/libmpich.so.12": lib("libmpich.so.12", exports=HAS)}
    assert codes(started(image, command="hello")) == [("mpi.escape", ERROR)]
    through = {
        **IMAGE_FILES,
        "/usr/bin/hello": lib(None, "libpart.so.1"),
        "/usr/lib/libpart.so.1": lib("libpart.so.1", "libmpi.so.40", imports=CALLS),
    }
    assert codes(started(through, command="hello")) == [("mpi.family", ERROR)]


def test_a_program_that_has_copies_of_mpi_s_data_calls_mpi_all_the_same() -> None:
    """Seen: programs of Open MPI define ompi_mpi_comm_world themselves (copy relocations)."""
    hello = lib(None, "libmpi.so.40", imports=CALLS, exports=["ompi_mpi_comm_world", "ompi_mpi_int"])
    image = {**IMAGE_FILES, "/usr/bin/hello": hello}
    assert codes(started(image, command="hello")) == [("mpi.family", ERROR)]


def test_a_program_is_linked_lazily_and_what_it_opens_is_not() -> None:
    late = [*CALLS, "MPI_Comm_c2f"]
    image = {**IMAGE_FILES, "/usr/bin/hello": lib(None, "libpart.so.1"), "/usr/lib/libpart.so.1": lib(
        "libpart.so.1", "libmpi.so.12", imports=late)}  # fmt: skip
    assert codes(started(image, command="hello")) == [("mpi.symbols", verdict.MISSING_FACTS)]
    bound = PLAN._replace(environment={**PLAN.environment, "LD_BIND_NOW": "1"})
    assert codes(started(image, plan=bound, command="hello")) == [("mpi.symbols", ERROR)]
    (finding,) = findings(
        started({**IMAGE_FILES, "/usr/bin/hello": lib(None, "libmpi.so.12", imports=late)}, command="hello")
    )
    assert (finding.code, finding.severity) == ("mpi.symbols", ERROR)
    assert "aborts when it calls one" in finding.message
    now = {**image, "/usr/lib/libpart.so.1": lib("libpart.so.1", "libmpi.so.12", imports=late, now=True)}
    assert codes(started(now, command="hello")) == [("mpi.symbols", ERROR)]


@pytest.mark.parametrize("line", ["/usr/bin/python3 -u", "/usr/bin/env python3", "/usr/bin/env -S FOO=1 python3"])
def test_a_script_is_run_by_what_its_first_line_names(line: str) -> None:
    files = index(IMAGE_FILES)
    files.entries["/usr/bin/train"] = Indexed(FILE, line)
    site = {PREFIX: below(HOST_FILES)}
    linked = process.start(PLAN, IMAGE, files, [], site, process.Start("train"))
    assert linked.program.path == "/usr/bin/python3"
    files.entries["/usr/bin/train"] = Indexed(FILE, "/usr/bin/perl")
    assert process.start(PLAN, IMAGE, files, [], site, process.Start("train")).program is None


def test_training_code_may_be_a_program() -> None:
    app = index({"/hello": lib(None, "libmpi.so.12", imports=CALLS)})
    linked = started(overlays=(Overlay("/deployer/app", app),), command="/deployer/app/hello")
    assert findings(linked) == []
    assert linked.program is not None


# ------------------------------------------------------------------------------------------------ PMI


def met(linked: Process, pmi: str = "pmi2", launcher: str = "srun", offered: list[str] | None = None) -> list[str]:
    """Return the codes of the rules of PMI, for the one start option of the plan."""
    plan = linked.plan._replace(start_options=[START_OPTION._replace(pmi=pmi, launcher=launcher)])
    site = profile_of(scheduler={"kind": "slurm", "pmi": offered or []})
    case = Case(site, Partition(), plan, MANIFEST, index({}), [], [linked])
    return [finding.code for rule in (pmi_rules.offered, pmi_rules.spoken) for finding in rule(case)]


def profile_of(**fields: Any) -> Profile:
    source = {"kind": "document", "where": "a test", "date": "2026-11-20"}
    return Profile.model_validate({"format": 1, "name": "lab", "source": source, **fields})


@pytest.mark.parametrize(
    ("pmi", "launcher", "expected"),
    [
        ("pmi2", "srun", []),
        ("pmix", "srun", ["pmi.unmet"]),  # seen: singletons with MPICH 4, abort with MPICH 5
        ("pmix_v4", "srun", ["pmi.unmet"]),
        ("none", "srun", ["pmi.unmet"]),  # seen: singletons
        ("none", "mpiexec.hydra", []),
        ("none", "mpirun", ["pmi.unmet"]),  # seen: singletons
        ("pspmi", "srun", []),
        ("cray", "pals", ["pmi.unmet"]),
        ("pmix", "pals", ["pmi.unmet"]),
        ("", "ibrun", []),
    ],
)
def test_mpich_and_intel_speak_pmi_2(pmi: str, launcher: str, expected: list[str]) -> None:
    assert met(started(), pmi, launcher) == expected


CRAY = PLAN._replace(
    mpi=HostMpi("cray", "8.1.32", PREFIX, PREFIX + "/lib/libmpi.so.12", "CRAY MPICH version 8.1.32"),
    environment={"LD_LIBRARY_PATH": PREFIX + "/lib"},
)
#: As Cray MPICH 8 is linked, and each library of which Cray's PMI and Slingshot's libfabric consist.
CRAY_FILES = {
    PREFIX + "/lib/libmpi.so.12": lib("libmpi_gnu_112.so.12", "libpmi.so.0", "libfabric.so.1", exports=HAS),
    PREFIX + "/lib/libpmi.so.0": lib("libpmi.so.0", "libpmi2.so.0"),
    PREFIX + "/lib/libpmi2.so.0": lib("libpmi2.so.0", "libpals.so.0"),
    PREFIX + "/lib/libpals.so.0": lib("libpals.so.0"),
    PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", "libcxi.so.1", "libxpmem.so.0"),
    PREFIX + "/lib/libcxi.so.1": lib("libcxi.so.1"),
    PREFIX + "/lib/libxpmem.so.0": lib("libxpmem.so.0"),
}


@pytest.mark.parametrize(("pmi", "expected"), [("cray_shasta", []), ("pmi2", ["pmi.unmet"]), ("pmix", ["pmi.unmet"])])
def test_cray_mpich_speaks_cray_s_own_pmi(pmi: str, expected: list[str]) -> None:
    linked = started(host=CRAY_FILES, plan=CRAY)
    assert findings(linked) == []
    assert met(linked, pmi) == expected
    assert met(started(), "cray_shasta") == ["pmi.unmet"]  # Intel MPI: Cray's plugin answers no PMI-2
    assert met(linked, "cray", "pals") == []
    assert met(linked, "pmix", "pals") == ["pmi.unmet"]


@pytest.mark.parametrize("name", sorted(path.rpartition("/")[2] for path in CRAY_FILES if "libmpi." not in path))
def test_each_library_of_cray_s_that_is_missing_is_named(name: str) -> None:
    host = {path: facts for path, facts in CRAY_FILES.items() if not path.endswith("/" + name)}
    (finding,) = findings(started(host=host, plan=CRAY))
    assert (finding.code, finding.severity) == ("link.missing", ERROR)
    assert name in finding.message
    packaged = {**IMAGE_FILES, f"/opt/other/lib/{name}": lib(name)}  # where no loader looks
    assert codes(started(packaged, host, CRAY)) == [("link.missing", ERROR)]
    image = {**IMAGE_FILES, f"/usr/lib/x86_64-linux-gnu/{name}": lib(name)}  # of another release, without Cray's parts
    assert codes(started(image, host, CRAY)) == [("mpi.mixed", ERROR)]


def test_cray_mpich_needs_its_library_for_gpus_if_it_is_told_to_use_them() -> None:
    def told(**environment: str) -> list[tuple[str, str]]:
        plan = CRAY._replace(environment={**CRAY.environment, "MPICH_GPU_SUPPORT_ENABLED": "1", **environment})
        return codes(started(host=CRAY_FILES, plan=plan))

    assert told() == [("mpi.gtl", ERROR)]
    assert told(MPICH_GPU_SUPPORT_ENABLED="0") == []
    assert told(LD_PRELOAD="/opt/cray/pe/mpich/8.1.32/gtl/lib/libmpi_gtl_cuda.so.0") == []


MPICH_5 = PLAN._replace(mpi=HostMpi("mpich", "5.0.2", PREFIX, PREFIX + "/lib/libmpi.so.12", "MPICH 5.0.2"))
UCX_FILES = {
    PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", "libucp.so.0", exports=HAS),
    PREFIX + "/lib/libucp.so.0": lib("libucp.so.0"),
}


def truncated(
    process: Process, way: str = "srun", pmi: str = "pmi2", runtime: str = "charliecloud", **environment: str
) -> list[str]:
    option = START_OPTION._replace(pmi=pmi, launcher=way, runtime=runtime)
    plan, process = process.plan._replace(start_options=[option]), process._replace(environment=environment)
    case = Case(profile_of(), Partition(), plan, MANIFEST, index({}), [], [process])
    return [finding.severity for finding in pmi_rules.truncated(case)]


def test_mpich_5_sends_what_the_program_had_in_memory() -> None:
    """Seen: Horovod under srun --mpi=pmi2 with MPICH 5.0.2: 4 of 23 jobs ran. C programs and mpi4py alone ran, but not
    with Apptainer and podman."""
    python = started(None, UCX_FILES, MPICH_5)
    assert truncated(python) == [verdict.MISSING_FACTS]
    assert truncated(python._replace(packages={"/x/site-packages/mpi4py", "/x/site-packages/h5py"})) != [NOTE]
    small = {"/x/site-packages/mpi4py", "/x/site-packages/_distutils_hack"}
    assert truncated(python._replace(packages=small)) == [NOTE]
    program = lib(None, "libmpi.so.12", imports=CALLS)
    in_c = started({**IMAGE_FILES, "/usr/bin/c": program}, UCX_FILES, MPICH_5, command="c")
    assert (
        truncated(in_c) == truncated(in_c, runtime="charliecloud-kit") == truncated(in_c, runtime="udocker") == [NOTE]
    )
    for runtime in ("apptainer", "podman"):
        assert truncated(in_c, runtime=runtime) == [verdict.MISSING_FACTS]
        assert truncated(in_c, runtime=runtime, MPIR_CVAR_CH4_NETMOD="ofi") == []
    assert truncated(python, "mpiexec.hydra", "") == truncated(python, pmi="pmix") == []
    assert truncated(python, MPIR_CVAR_CH4_NETMOD="ofi") == []
    assert truncated(started(None, UCX_FILES)) == []  # another MPI
    assert truncated(started(None, HOST_FILES, MPICH_5)) == []  # with libfabric alone


def test_mpich_that_was_built_with_pmix() -> None:
    mpich = PLAN._replace(mpi=HostMpi("mpich", "4.2.3", PREFIX, PREFIX + "/lib/libmpi.so.12", "MPICH"))
    host = {
        PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", "libpmix.so.2", exports=HAS),
        PREFIX + "/lib/libpmix.so.2": lib("libpmix.so.2"),
    }
    assert met(started(host=host, plan=mpich), "pmix") == []


def test_intel_opens_a_pmix_of_the_container() -> None:
    """Seen: two ranks under --mpi=pmix on nodes that have a libpmix.so, singletons where there is none."""
    there = {**IMAGE_FILES, "/usr/lib/libpmix.so": lib("libpmix.so.2")}
    assert met(started(there), "pmix") == []
    assert met(started({**IMAGE_FILES, "/usr/lib/libpmix.so.2": lib("libpmix.so.2")}), "pmix") == ["pmi.unmet"]
    named = PLAN._replace(environment={**PLAN.environment, "I_MPI_PMI_LIBRARY": "/usr/lib/libpmix.so.2"})
    assert met(started({**IMAGE_FILES, "/usr/lib/libpmix.so.2": lib("libpmix.so.2")}, plan=named), "pmix") == []


def test_open_mpi_speaks_what_its_components_do() -> None:
    image = {**IMAGE_FILES, MODULE: lib(None, "libmpi.so.40", imports=CALLS)}
    assert met(started(image, OPENMPI_FILES, OPENMPI)) == ["facts.pmi"]
    five = {**OPENMPI_FILES, PREFIX + "/lib/libopen-pal.so.80": lib("libopen-pal.so.80", "libpmix.so.2"),
            PREFIX + "/lib/libpmix.so.2": lib("libpmix.so.2")}  # fmt: skip
    assert met(started(image, five, OPENMPI)) == ["pmi.unmet"]  # seen: singletons
    assert met(started(image, five, OPENMPI), "pmix") == []
    assert met(started(image, five, OPENMPI), "pspmix") == []
    assert met(started(image, five, OPENMPI), "pmi2", "mpiexec.hydra") == ["pmi.unmet"]  # seen: singletons
    assert met(started(image, five, OPENMPI), "pmi2", "mpirun") == []
    pal = lib("libopen-pal.so.80")._replace(components=["mca_pmix_base_component", "mca_pmix_pmix3x_component"])
    four = {**OPENMPI_FILES, PREFIX + "/lib/libopen-pal.so.80": pal}
    assert met(started(image, four, OPENMPI)) == ["pmi.unmet"]  # seen: "not built with SLURM's PMI support"
    assert met(started(image, four, OPENMPI), "pmix") == []
    crays = {**OPENMPI_FILES, PREFIX + "/lib/openmpi/mca_pmix_cray.so": lib(None)}
    assert met(started(image, crays, OPENMPI)) == ["facts.pmi"]  # it needs /proc/job
    plugins = {**crays, PREFIX + "/lib/openmpi/mca_pmix_s2.so": lib(None)}
    assert met(started(image, plugins, OPENMPI)) == []
    assert met(started(image, plugins, OPENMPI), "pmix") == ["pmi.unmet"]


def test_what_srun_does_not_offer() -> None:
    assert met(started(), "pmi2", offered=["none", "pmix"]) == ["pmi.not-offered"]
    assert met(started(), "pmi2", offered=["none", "pmi2"]) == []
    assert met(started(), "pmi2", "mpiexec.hydra", offered=["none", "pmix"]) == []


def test_the_image_s_own_library_is_not_asked_for_its_pmi() -> None:
    """It is the wrong one, which another rule says."""
    image = {**IMAGE_FILES, MODULE: lib(None, "libmpi.so.40", imports=CALLS)}
    own = {**image, "/usr/lib/libmpi.so.40": lib("libmpi.so.40", exports=HAS)}
    linked = started(own)
    assert codes(linked) == [("mpi.family", ERROR)]
    assert met(linked) == []


def test_without_mpi_there_is_nothing_to_meet() -> None:
    alone = {path: facts for path, facts in IMAGE_FILES.items() if path != MODULE}
    assert met(started(alone), "none") == []


# ------------------------------------------------------------------------------------------------ the documents


def test_each_code_has_its_page() -> None:
    from deployer.contract.rehearsal import rehearsal
    from tests.conftest import ROOT

    pages = (ROOT / "docs" / "rules.md").read_text()
    titles = sorted(line[3:] for line in pages.splitlines() if line.startswith("## "))
    assert titles == sorted([*check.CODES, *rehearsal.CODES])
