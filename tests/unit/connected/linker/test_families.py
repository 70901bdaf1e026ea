"""The families of MPI that an image shows by what its programs and libraries are linked to."""

import pytest

from deployer.connected.linker import families
from deployer.connected.rootfs.entries import FileContent
from deployer.contract.base.errors import Refused
from deployer.contract.bundle.job import Job
from tests import elves, tars

MPICH, OPENMPI = elves.library(["libc.so.6", "libmpi.so.12"]), elves.library(["libmpi.so.40"])
TWO, ONE = Job("two", ["sh", "-c", "exec /opt/solver in"], 2, 1, 1, "1:00"), Job("one", ["x"], 1, 1, 1, "1:00")
SOLVER, OTHER, MODULE = "opt/solver", "usr/bin/other", "usr/lib/python3/dist-packages/{}.so"


def program(library: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return a file that counts as a program, whose dynamic section is that of ``library``."""
    made = library + b"program"
    read = families.dynamic.read

    def seen(read_at: families.dynamic.ReadAt) -> families.dynamic.Dynamic | None:
        found = read(read_at)
        return found._replace(interpreter="/lib64/ld") if found and read_at(len(library), 7) == b"program" else found

    monkeypatch.setattr(families.dynamic, "read", seen)
    return made


def find(
    files: dict[str, bytes], *jobs: Job, wheels: bool = False, app: dict[str, bytes] | None = None
) -> families.FoundFamilies:
    def files_of(contents: dict[str, bytes]) -> list[tuple[str, FileContent]]:
        return list(families.files_of(tars.root_of(tars.layer(contents.items()))))

    in_app = [(f"/deployer/app{path}", data) for path, data in files_of(app or {})]
    return families.find(families.users(files_of(files)), jobs or [TWO], wheels, in_app)


def test_the_family_that_the_program_is_linked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = program(OPENMPI, monkeypatch)
    files = {SOLVER: solver, MODULE.format("h5py"): MPICH, "etc/x": b"text", "usr/bin/short": b"\x7fE"}
    assert find(files) == (["openmpi"], "/opt/solver")
    assert find({"lib/libsolver.so": MPICH, "bin/sh": elves.library(["libc.so.6"])}) == (
        ["mpich-abi"],
        "/lib/libsolver.so",
    )


def test_libraries_of_mpi_itself_show_nothing() -> None:
    own = {"lib/libmpi_mpifh.so.40": OPENMPI, "lib/openmpi/mca_coll_tuned.so": OPENMPI, "lib/libmpichcxx.so.12": MPICH}
    assert find({**own, "lib/libsolver.so": MPICH}).families == ["mpich-abi"]
    assert find(own, ONE).families == []
    profiling = {"usr/lib/x86_64-linux-gnu/openmpi/lib/ompi_monitoring_prof.so": OPENMPI}  # Debian's libopenmpi3
    assert find({**profiling, "lib/libsolver.so": MPICH}).families == ["mpich-abi"]
    nvshmem = {MODULE.format("nvidia/nvshmem/lib/nvshmem_bootstrap_mpi") + ".3": OPENMPI}
    assert find(nvshmem, ONE).families == []


@pytest.mark.parametrize(
    ("needed", "family"),
    [
        ("libmpi_mpifh.so.40", "openmpi"), ("libmpi_usempif08.so.40", "openmpi"), ("libmpi_cxx.so.40", "openmpi"),
        ("libmpichfort.so.12", "mpich-abi"), ("libmpifort.so.12", "mpich-abi"), ("libmpicxx.so.12", "mpich-abi"),
    ],
)  # fmt: skip
def test_a_program_that_names_only_the_library_for_its_language(needed: str, family: str) -> None:
    # CloverLeaf's Makefile with Debian's mpif90: DT_NEEDED has libmpichfort.so.12 or libmpi_mpifh.so.40, no libmpi
    assert find({SOLVER: elves.library([needed, "libgfortran.so.5", "libc.so.6"])}).families == [family]


def test_a_package_with_libraries_for_both_runs_on_both() -> None:
    both = {MODULE.format("mpi4py/MPI.mpich"): MPICH, MODULE.format("mpi4py/MPI.openmpi"): OPENMPI}
    assert find(both).families == ["mpich-abi", "openmpi"]
    assert find({**both, MODULE.format("h5py/h5"): OPENMPI}).families == ["openmpi"]


def test_of_programs_for_both_the_one_that_jobs_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, other = program(OPENMPI, monkeypatch), program(MPICH, monkeypatch)
    assert find({SOLVER: solver, OTHER: other}).families == ["openmpi"]
    with pytest.raises(
        Refused, match=r"both families of MPI: /usr/bin/other \(mpich-abi\), /usr/bin/third \(openmpi\)"
    ):
        find({OTHER: other, "usr/bin/third": solver})


def test_of_programs_in_the_app_only_those_count_that_a_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = program(OPENMPI, monkeypatch), program(MPICH, monkeypatch)
    third = {"usr/bin/third": ours}
    assert find(third, app={"old/model": theirs}) == (["openmpi"], "/usr/bin/third")
    assert find({}, ONE, app={"model": theirs, "other": ours}) == ([], "")
    assert find({}, app={"bin/solver": theirs}) == (["mpich-abi"], "/deployer/app/bin/solver")
    assert find({}, ONE, app={"model.so": MPICH}) == (["mpich-abi"], "/deployer/app/model.so")
    by_script = Job("script", ["sh", "/deployer/app/run.sh"], 2, 1, 1, "1:00")
    app = {"run.sh": b"cd $HOME; ./model; exit\n", "model": theirs, "model.old": ours}
    assert find(third, by_script, app=app) == (["mpich-abi"], "/deployer/app/model")
    # What the command itself names counts before what a script names.
    assert find(third, TWO, by_script, app={**app, "solver": ours}).families == ["openmpi"]


def test_without_any_a_job_of_one_rank_runs_and_one_of_more_is_refused() -> None:
    assert find({"bin/sh": b"x"}, ONE) == ([], "")
    assert find({"bin/sh": b"x"}, TWO, wheels=True).families == []  # they may call it
    with pytest.raises(Refused, match="no program of the image or in app/ is linked to an MPI library") as caught:
        find({"bin/sh": b"x"}, ONE, TWO)
    assert "write mpi: [mpich-abi] or mpi: [openmpi] in the definition" in caught.value.hint
    assert "mpi: [] if the ranks do without MPI" in caught.value.hint
