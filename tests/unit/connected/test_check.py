"""Each rule is set off by what really fails, and not by its near miss."""

import pytest

from deployer.connected import check
from deployer.connected.linker import process
from deployer.connected.linker.index import Index, Indexed
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.linker.view import FILE, FOLDER, Captured, folders_of
from deployer.contract.dynamic import Dynamic, Facts
from deployer.contract.findings import ERROR, WARNING, Finding
from deployer.contract.plan import HostMpi, Plan
from tests import running
from tests.running import IMAGE, PREFIX

PLAN = running.PLAN._replace(abi="mpich-abi")
MODULE = "/usr/lib/python3/dist-packages/hvd/mpi_lib.so"
CALLS = ["MPI_Allreduce", "MPI_Init"]
HAS = [*CALLS, "MPI_Finalize"]


def lib(soname: str | None = None, *needed: str, imports: list[str] | None = None, exports: list[str] | None = None,
        rpath: str = "", runpath: str = "", versions: dict[str, list[str]] | None = None,
        defines: tuple[str, ...] = (), now: bool = False) -> Facts:  # fmt: skip
    paths = [[path for path in text.split(":") if path] for text in (rpath, runpath)]
    dynamic = Dynamic(62, None, soname, list(needed), *paths, versions or {}, list(defines), now, None)
    return Facts(dynamic, imports or [], exports or [])


def index(files: dict[str, Facts | None]) -> Index:
    entries = {path: Indexed(FILE, facts=facts, bad="" if facts else "it is cut off") for path, facts in files.items()}
    return Index({**dict.fromkeys(folders_of(files), Indexed(FOLDER)), **entries}, {})


LIBC = lib("libc.so.6", defines=("GLIBC_2.17", "GLIBC_2.34"))
IMAGE_FILES: dict[str, Facts | None] = {
    "/usr/bin/python3": lib(None, "libc.so.6", versions={"libc.so.6": ["GLIBC_2.34"]}),
    "/usr/lib/libc.so.6": LIBC,
    MODULE: lib(None, "libmpi.so.12", "libc.so.6", imports=CALLS),
}
HOST_FILES = {
    PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", "libfabric.so.1", "libc.so.6", exports=HAS),
    PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", versions={"libc.so.6": ["GLIBC_2.17"]}),
}
OPENMPI = PLAN._replace(
    mpi=HostMpi("openmpi", "5.0.11", PREFIX, PREFIX + "/lib/libmpi.so.40", "Open MPI v5.0.11"),
    abi="openmpi",
)
OPENMPI_FILES = {
    PREFIX + "/lib/libmpi.so.40": lib("libmpi.so.40", "libopen-pal.so.80", exports=HAS),
    PREFIX + "/lib/libopen-pal.so.80": lib("libopen-pal.so.80"),
}


def started(
    image: dict[str, Facts | None] | None = None,
    host: dict[str, Facts] | None = None,
    plan: Plan = PLAN,
    overlays: tuple[Overlay, ...] = (),
    command: str = "python3",
) -> Process:
    files = index(IMAGE_FILES if image is None else image)
    site = {PREFIX: _Below(HOST_FILES if host is None else host)}
    return process.start(plan, IMAGE, files, overlays, site, command)


class _Below(Captured):
    """Files by their absolute paths, bound at the prefix."""

    def __init__(self, found: dict[str, Facts]) -> None:
        super().__init__({path.removeprefix(PREFIX): facts for path, facts in found.items()})


def findings(linked: Process) -> list[Finding]:
    return [finding for rule in check.RULES for finding in rule(linked)]


def codes(linked: Process) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in findings(linked)]


def test_the_site_s_library_is_taken_and_nothing_is_found() -> None:
    linked = started()
    assert linked.library is not None
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


def test_a_site_s_library_that_needs_a_newer_c_library() -> None:
    host = {**HOST_FILES, PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1", versions={"libc.so.6": ["GLIBC_2.38"]})}
    (finding,) = findings(started(host=host))
    assert (finding.code, finding.severity) == ("link.version", ERROR)
    assert "newer base" in finding.remedy


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
    linked = started(both)
    assert findings(linked) == []
    assert linked.passed_over == ["/usr/lib/python3/dist-packages/mpi4py/MPI.openmpi.so"]


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


def test_an_rpath_escapes_the_bind_and_a_runpath_does_not() -> None:
    own = {"/usr/local/lib/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
    with_rpath = {**IMAGE_FILES, **own, MODULE: lib(None, "libmpi.so.12", imports=CALLS, rpath="/usr/local/lib")}
    (finding,) = findings(started(with_rpath))
    assert finding.code == "mpi.escape"
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


@pytest.mark.parametrize(
    ("severities", "verdict"),
    [
        ([], check.RUN),
        ([WARNING], check.WARN),
        ([WARNING, check.MISSING_FACTS], check.UNKNOWN),
        ([check.MISSING_FACTS, ERROR], check.REFUSE),
    ],
)
def test_the_worst_finding_is_the_verdict(severities: list[str], verdict: str) -> None:
    found = [Finding(f"a.{number}", severity, "x", "y", "z") for number, severity in enumerate(severities)]
    assert check.judge(found) == verdict
    assert check.judge(found, [finding.code for finding in found]) == (check.WARN if found else check.RUN)


def test_each_code_has_its_page() -> None:
    from tests.conftest import ROOT

    pages = (ROOT / "docs" / "rules.md").read_text()
    assert sorted(line[3:] for line in pages.splitlines() if line.startswith("## ")) == sorted(check.CODES)
