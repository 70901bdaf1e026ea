"""Each program of a job is judged by itself, and what may be started refuses nothing."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from deployer.connected.check import check
from deployer.connected.check.rules import mpi, pmi, programs, uncaptured
from deployer.connected.check.rules.case import Case
from deployer.connected.linker import jobs, process
from deployer.connected.linker.job_filesystem import Files
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.linker.starts.removed import Removed
from deployer.contract.bundle.job import Job
from deployer.contract.elf.dynamic import Facts
from deployer.contract.elf.linked_mpi import SYMBOLS
from deployer.contract.rules.findings import ERROR, NOTE, WARNING, Finding
from deployer.contract.rules.verdict import MISSING_FACTS as UNKNOWN
from deployer.contract.site.plan import Plan
from tests.running import PREFIX, START_OPTION
from tests.unit.connected.check.test_check import (
    CALLS,
    HAS,
    HOST_FILES,
    IMAGE_FILES,
    MODULE,
    MPICH_5,
    PLAN,
    UCX_FILES,
    below,
    index,
    lib,
    started,
)
from tests.unit.connected.check.test_rules import case, manifest_of

GOOD, BAD, SERIAL = "/usr/bin/good", "/usr/bin/bad", "/usr/bin/serial"


def program(*needed: str, imports: list[str] | None = None) -> Facts:
    facts = lib(None, *needed, imports=imports)
    return facts._replace(dynamic=facts.dynamic._replace(interpreter="/lib64/ld-linux-x86-64.so.2"))


SMALL = program("libc.so.6")
#: Programs that run, and that do not; a module of Python's that does not.
FILES: dict[str, Facts | None] = {
    "/usr/bin/python3": IMAGE_FILES["/usr/bin/python3"],
    "/usr/bin/sh": SMALL,
    "/usr/lib/libc.so.6": IMAGE_FILES["/usr/lib/libc.so.6"],
    GOOD: program("libmpi.so.12", imports=CALLS),
    BAD: program("libmpi.so.40", imports=CALLS),
    SERIAL: SMALL,
    MODULE: lib(None, "libmpi.so.40", imports=CALLS),
}


def job(*words: str, ranks: int = 2) -> Job:
    return Job("t", list(words), 1, ranks, 1, "00:01:00")


def linked(
    *words: str,
    files: dict[str, Facts | None] = FILES,
    ranks: int = 2,
    host: Mapping[str, Files] = {PREFIX: below(HOST_FILES)},
) -> LinkedJob:
    manifest = manifest_of([], env=["PATH=/usr/bin"])._replace(jobs=[job(*words, ranks=ranks)] if words else [])
    image = index(files)
    for path in files:
        image.entries[path] = image.entries[path]._replace(executable=True)
    (found,) = jobs.link(manifest, PLAN, image, [], host)
    return found


def judged(found: LinkedJob, plan: Plan = PLAN) -> list[Finding]:
    here: Case = case(plan=plan)
    return list(programs.of_job(found, here, check.PROCESS_RULES))


def codes(found: LinkedJob) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in judged(found)]


def alone(*names: str) -> list[Process]:
    return [started(FILES, command=name) for name in names]


# ------------------------------------------------------------------------------------------------ one process each


def test_a_c_program_loads_no_python_package() -> None:
    """The unused mpi4py beside it was refused."""
    assert codes(linked(GOOD)) == []
    assert codes(linked("python3", "-c", "import hvd.mpi_lib")) == [("mpi.family", ERROR)]
    assert started(FILES, command=GOOD).plugins == []


@pytest.mark.parametrize(
    "words", [("/opt/tool",), ("sh", "-c", "exec /opt/tool"), ("env", "A=1", "/opt/tool"), ("sh", "-ec", "/opt/tool x")]
)
def test_a_program_for_another_machine_behind_a_wrapper(words: tuple[str, ...]) -> None:
    static = lib(None)._replace(dynamic=lib(None).dynamic._replace(machine=183))
    found = judged(linked(*words, files={**FILES, "/usr/bin/env": SMALL, "/opt/tool": static}))
    assert [(each.code, each.severity, each.subject) for each in found] == [("link.machine", ERROR, "/opt/tool")]


HVD = "/usr/lib/python3/dist-packages/hvd"


def test_only_packages_that_are_imported_count() -> None:
    def start(packages: set[str]) -> Process:
        return process.start(PLAN, case().manifest.image, index(FILES), [], {}, process.Start("python3", packages))

    found = start({HVD + "_other", "/usr/lib/python3/dist-packages/h"})
    assert (found.users, found.uses_mpi) == ([], False)
    assert [each.path for each in start({HVD}).users] == [MODULE]


@pytest.mark.parametrize(("text", "expected"), [
    ("import hvd.mpi_lib", [("mpi.family", ERROR)]),
    ("import os", [("mpi.unused", WARNING)]),
    ("import os\nif os.environ.get('X'): import hvd.mpi_lib", [("mpi.family", UNKNOWN), ("command.unclear", NOTE)]),
])  # fmt: skip
def test_what_a_script_imports_is_judged(text: str, expected: list[tuple[str, str]]) -> None:
    assert codes(linked("python3", "-c", text)) == expected


def test_a_program_with_a_python_in_it_may_load_packages() -> None:
    files = {
        **FILES,
        SERIAL: program("libpython3.11.so.1.0"),
        "/usr/lib/libpython3.11.so.1.0": lib("libpython3.11.so.1.0"),
    }
    assert codes(linked(SERIAL, files=files)) == [("mpi.family", ERROR)]


def test_one_program_s_search_path_is_not_another_s() -> None:
    rpath = program("libmpi.so.12", imports=CALLS)
    files = {
        **FILES,
        BAD: rpath._replace(dynamic=rpath.dynamic._replace(rpath=["/opt/own"])),
        "/opt/own/libmpi.so.12": lib("libmpi.so.12", exports=HAS),
    }
    found = linked()._replace(job=job("x"), processes=[started(files, command=name) for name in (BAD, GOOD)])
    (finding,) = judged(found)
    assert (finding.code, finding.subject) == ("mpi.rpath", BAD)


def test_a_finding_names_the_wrapper() -> None:
    (finding,) = judged(linked("env", "X=1", BAD, files={**FILES, "/usr/bin/env": SMALL}))
    assert finding.code == "mpi.family"
    assert finding.message.endswith(f"({BAD} is started by env)")


def test_what_a_wrapper_sets_decides_what_is_found() -> None:
    files = {**FILES, "/usr/bin/env": SMALL, "/opt/own/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
    (finding,) = judged(linked("env", "LD_LIBRARY_PATH=/opt/own", GOOD, files=files))
    assert (finding.code, finding.subject) == ("mpi.escape", GOOD)
    assert codes(linked("env", "OMP_NUM_THREADS=1", GOOD, files=files)) == []


def kept(removed: Iterable[Removed], environment: Mapping[str, str] | None = None, ranks: int = 2) -> list[Finding]:
    """Return the findings on a job's program before which these variables are removed."""
    own = started(FILES, command=GOOD)._replace(removed=frozenset(removed))
    own = own._replace(environment={**own.environment, **(environment or {})})
    return list(pmi.kept(linked()._replace(job=job(GOOD, ranks=ranks), processes=[own]), case()))


def test_a_helper_without_the_launcher_beside_a_whole_program() -> None:
    whole = started(FILES, command=GOOD)
    helper = whole._replace(removed=frozenset([Removed("*", True, "env -i")]))
    of = linked()._replace(job=job(GOOD), processes=[helper, whole])
    assert [(each.code, each.severity) for each in pmi.kept(of, case())] == [("pmi.unmet", UNKNOWN)]


def test_an_empty_environment_makes_singletons() -> None:
    (process,) = linked("env", "-i", GOOD, files={**FILES, "/usr/bin/env": SMALL}).processes
    assert process.removed == {Removed("*", True, "env -i")}
    (finding,) = kept(process.removed)
    assert (finding.code, finding.severity, finding.subject) == ("pmi.unmet", ERROR, GOOD)
    assert "`env -i` removes variables by which ranks find their launcher (PMI_FD" in finding.message


def test_a_module_that_loses_the_way_to_the_site_s_library_may_open_the_image_s() -> None:
    files = {**FILES, "/usr/bin/env": SMALL, MODULE: lib(None, "libmpi.so.12", imports=CALLS)}
    files["/opt/venv/lib/libmpi.so.12"] = lib("libmpi.so.12")
    of = linked("env", "-i", "PATH=/usr/bin", "python3", "-c", "import hvd", files=files)
    escaped = [each for each in judged(of) if each.code == "mpi.escape"]
    assert [(each.subject, each.severity) for each in escaped] == [(MODULE, UNKNOWN)]
    (removed,) = pmi.kept(of._replace(job=job("env", ranks=2)), case())
    assert (removed.code, removed.severity) == ("pmi.unmet", ERROR)
    assert not list(pmi.spoken(case()._replace(processes=list(of.processes))))


@pytest.mark.parametrize(("removed", "expected"), [
    ([Removed("PMI_FD", True, "unset PMI_FD")], [("pmi.unmet", ERROR)]),
    ([Removed("*", False, "unset $v"), Removed("PMI_RANK", True, "env -u PMI_RANK")], [("pmi.unmet", ERROR)]),
    ([Removed("*", False, "unset $v")], [("pmi.unmet", UNKNOWN)]),
    ([Removed("PMI*", False, "unset ${!PMI@}")], [("pmi.unmet", UNKNOWN)]),
    ([Removed("SLURM_*", False, "unset ${!SLURM_@}")], []),  # tried: PMI needs none of them
    ([Removed("PMIX_RANK", True, "unset PMIX_RANK"), Removed("CONDA_EXE", True, "unset CONDA_EXE")], []),
])  # fmt: skip
def test_variables_of_the_launcher_that_are_unset(removed: list[Removed], expected: list[tuple[str, str]]) -> None:
    assert [(each.code, each.severity) for each in kept(removed)] == expected
    assert kept(removed, ranks=1) == []
    assert kept(removed, {"PMI_FD": "3", "PMI_RANK": "0", "PMI_SIZE": "2"}) == []  # env -i PMI_FD=$PMI_FD ...


def test_a_preload_is_not_followed() -> None:
    files = {**FILES, "/usr/bin/env": SMALL}
    found = linked("env", "LD_PRELOAD=/usr/lib/libtrace.so", GOOD, files=files)
    assert {finding.code for finding in judged(found)} == {"command.unclear"}
    assert found.unclear == ["env: LD_PRELOAD makes it load another library first"]


# ------------------------------------------------------------------------------------------------ what may be started


def test_a_condition_refuses_nothing() -> None:
    found = LinkedJob(job("x"), alone(GOOD), conditional=alone(BAD))
    assert codes(found) == [("mpi.family", UNKNOWN)]
    assert codes(LinkedJob(job("x"), alone(GOOD), conditional=alone("/usr/bin/gone"))) == []


def test_what_cannot_be_known_is_judged_by_all_that_could_be_started() -> None:
    unclear = ["run.sh, line 3: a variable"]
    (finding,) = judged(LinkedJob(job("x"), alone("sh"), unclear=unclear, candidates=alone(GOOD)))
    assert (finding.code, finding.severity, finding.subject) == ("command.unclear", NOTE, "job t")
    assert "run.sh, line 3" in finding.message
    assert f"would run: {GOOD}" in finding.message
    (finding,) = judged(LinkedJob(job("x"), alone("sh"), unclear=unclear, candidates=alone(GOOD, BAD)))
    assert (finding.code, finding.severity) == ("command.unclear", UNKNOWN)
    assert f"if it starts {BAD}" in finding.message
    assert "(mpi.family)" in finding.message
    (finding,) = judged(LinkedJob(job("x"), alone("sh"), unclear=unclear))
    assert (finding.code, finding.severity) == ("command.unclear", UNKNOWN)
    assert "no program that was found calls MPI" in finding.message


def test_candidates_are_the_programs_that_call_mpi() -> None:
    files = {
        **FILES,
        "/usr/bin/fortran": program("libmpi_mpifh.so.40"),
        "/usr/lib/libmpi_mpifh.so.40": lib("libmpi_mpifh.so.40", "libmpi.so.40"),
        "/usr/bin/lmp": program("liblammps.so.0"),
        "/usr/lib/liblammps.so.0": lib("liblammps.so.0", "libmid.so"),
        "/usr/lib/libmid.so": lib("libmid.so", "libmpi.so.40"),
        "/usr/bin/static": lib()._replace(linked=SYMBOLS),
        "/usr/bin/ompi_info": program("libmpi.so.40", "libopen-pal.so.40"),
    }
    callers = process.callers([Overlay("", index(files))])
    assert callers == [BAD, "/usr/bin/fortran", GOOD, "/usr/bin/lmp", "/usr/bin/static"]
    found = linked("env", "mpirun", "good", files={**files, "/usr/bin/mpirun": SMALL, "/usr/bin/env": SMALL})
    assert found.unclear
    names = {each.name for each in found.candidates}
    assert names >= {BAD, GOOD, "/usr/bin/fortran", "/usr/bin/python3"}
    assert "/usr/bin/ompi_info" not in names


def test_without_a_job_it_depends_on_what_the_user_starts() -> None:
    assert codes(linked()) == [("mpi.family", UNKNOWN), ("mpi.family", UNKNOWN)]
    none = {path: facts for path, facts in FILES.items() if path != GOOD}
    assert codes(linked(files=none)) == [("mpi.family", ERROR), ("mpi.family", ERROR)]


# --------------------------------------------------------------------------- programs that do not decide about a job


@pytest.mark.parametrize(("text", "expected"), [
    (f"nvidia-smi\n{GOOD}", [("link.program", NOTE)]),
    (f"nvidia-smi || true\n{GOOD}", [("link.program", NOTE)]),
    (f"module load gcc 2>/dev/null\n{GOOD}", [("link.program", NOTE)]),
    (f"if nvidia-smi >/dev/null 2>&1; then echo; fi\n{GOOD}", [("link.program", NOTE)]),
    (f"scontrol show hostnames | head -1\n{GOOD}", [("link.program", NOTE), ("link.program", NOTE)]),
    (f'set -e\nexport HOST="$(hostname)"\n{GOOD}', [("link.program", NOTE)]),
    (f"{GOOD}; lscpu; free; date", [("link.program", ERROR), *[("link.program", NOTE)] * 2]),
    (f"set -e\nnvidia-smi\n{GOOD}", [("link.program", ERROR)]),
    (f"set -e\nHOST=$(hostname)\n{GOOD}", [("link.program", ERROR)]),
    (f"{GOOD}\nexec gone", [("link.program", ERROR)]),
    ("gone\necho done", [("link.program", WARNING)]),  # it computes nothing, and nobody sees it
    (f"{BAD}\necho done", [("mpi.family", WARNING)]),
    (f"{BAD} || {GOOD}", [("mpi.family", NOTE)]),
    (f"python3 -c 'import gone'\n{GOOD}", [("import.missing", NOTE)]),
    (f"set -e\npython3 -c 'import gone'\n{GOOD}", [("import.missing", ERROR)]),
])  # fmt: skip
def test_a_program_without_which_the_script_goes_on_refuses_nothing(text: str, expected: list[tuple[str, str]]) -> None:
    files = {**FILES, "/usr/lib/python3/os.py": None}
    files.pop(MODULE)
    found = judged(linked("sh", "-c", text, files=files))
    assert sorted((each.code, each.severity) for each in found) == sorted(expected)
    for each in found:
        assert each.message.endswith("; the job may go on without it") == (each.severity != ERROR)


@pytest.mark.parametrize("rule", check.PROCESS_RULES)
def test_no_rule_decides_by_itself_whether_the_job_fails(
    rule: Callable[[Process], Iterator[Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule says what ends the program; one place knows whether this ends the job."""
    code = f"x.{rule.__name__}"

    def broken(_: Process) -> Iterator[Finding]:
        yield Finding(code, ERROR, "x", "y", "z")

    assert "decides" not in inspect.getsource(inspect.getmodule(rule))  # type: ignore[arg-type]
    rules = [broken if each is rule else lambda _: iter(()) for each in check.PROCESS_RULES]
    job_ = linked("sh", "-c", f"{SERIAL}\n{SERIAL}")._replace(decides=lambda _: False)
    found = programs.of_job(job_, case(), rules)
    assert {each.severity for each in found if each.code == code} == {WARNING}
    alone_ = LinkedJob(job("x"), alone(SERIAL))
    assert {each.severity for each in programs.of_job(alone_, case(), rules) if each.code == code} == {ERROR}


def test_a_wrong_mpi_library_fails_the_job_whatever_its_script_does() -> None:
    """The processes of its ranks are watched, and their libraries are in the result."""
    files = {**FILES, "/usr/lib/libmpi.so.40": lib("libmpi.so.40", exports=HAS)}
    assert codes(linked("sh", "-c", f"{BAD}\n{GOOD}", files=files)) == [("mpi.family", ERROR)]


# ------------------------------------------------------------------------------------------ an MPI that is not captured


@pytest.mark.parametrize(("needs", "expected"), [
    (["libgone.so.3"], [("link.missing", ERROR)]),
    (["libmpi.so.12", "libfabric.so.1", "libstdc++.so.6"], []),  # the site may bring them
    (["libmpi.so.40"], [("mpi.family", ERROR)]),
    (["libpart.so.1"], [("link.missing", ERROR)]),
    (["libmpifort.so.12"], []),  # the image's own, which lacks a library; the site's takes its place
])  # fmt: skip
def test_what_is_certain_is_said_without_the_site_s_files(needs: list[str], expected: list[tuple[str, str]]) -> None:
    files = {
        **FILES,
        GOOD: program("libc.so.6", *needs, imports=CALLS),
        "/usr/lib/libpart.so.1": lib("libpart.so.1", "libgone.so.3"),
        "/usr/lib/libmpifort.so.12": lib("libmpifort.so.12", "libgone.so.3"),
    }
    found = linked(GOOD, files=files, host={})
    assert [(each.code, each.severity) for each in programs.of_job(found, case(), uncaptured.RULES)] == expected


def test_a_version_of_the_image_s_own_libc_is_certain_without_the_site_s_files() -> None:
    new = program("libc.so.6")
    needs = new._replace(dynamic=new.dynamic._replace(versions={"libc.so.6": ["GLIBC_2.99"]}))
    has = lib("libc.so.6")
    files = {
        **FILES,
        SERIAL: needs,
        "/usr/lib/libc.so.6": has._replace(dynamic=has.dynamic._replace(defines=["GLIBC_2.2"])),
    }
    found = linked(SERIAL, files=files, host={}, ranks=1)
    assert [each.code for each in programs.of_job(found, case(), uncaptured.RULES)] == ["link.version"]


def test_a_bundle_without_a_job_and_a_shell_is_not_refused() -> None:
    """It was: /bin/sh was linked in its place."""
    files: dict[str, Facts | None] = {"/usr/bin/good": FILES[GOOD], "/usr/lib/libc.so.6": None}
    manifest = manifest_of([], env=["PATH=/usr/bin"], python=None)
    (found,) = jobs.link(manifest, PLAN, index(files), [], {PREFIX: below(HOST_FILES)})
    assert [each.name for each in found.processes] == [GOOD]


# ------------------------------------------------------------------------------------------------ no MPI at all


@pytest.mark.parametrize(("words", "ranks", "expected"), [
    ((SERIAL,), 2, [("mpi.unused", WARNING)]),
    ((SERIAL,), 1, []),
    ((GOOD,), 2, []),
    (("/usr/bin/gone",), 2, [("link.program", ERROR)]),
])  # fmt: skip
def test_a_job_that_calls_no_mpi(words: tuple[str, ...], ranks: int, expected: list[tuple[str, str]]) -> None:
    assert codes(linked(*words, ranks=ranks)) == expected


DLOPENS = program("libc.so.6")._replace(opens=True)


@pytest.mark.parametrize("words", [
    ("python3", "-c", "import ctypes; ctypes.CDLL('libmpi.so.12')"),
    ("python3", "-c", "from cffi import FFI"),
    ("sh", "-c", "python3 -c 'import ctypes'"),
    ("sh", "-c", "/usr/bin/opens x"),
    ("julia", "x.jl"),
    ("trampoline",),
])  # fmt: skip
def test_what_may_open_mpi_by_its_name_is_not_called_unused(words: tuple[str, ...]) -> None:
    """A warning was said of worlds that were whole."""
    files = {
        **FILES,
        "/usr/bin/opens": DLOPENS,
        "/usr/bin/julia": SMALL,
        "/usr/bin/trampoline": program("libmpitrampoline.so.5"),
        "/usr/lib/libmpitrampoline.so.5": lib("libmpitrampoline.so.5"),
        "/usr/lib/python3/ctypes/__init__.py": None,
        "/usr/lib/python3/dist-packages/cffi/__init__.py": None,
    }
    del files[MODULE]
    assert codes(linked(*words, files=files)) == [("mpi.unused", UNKNOWN)]


def test_a_python_that_is_started_under_a_condition_counts_beside_another() -> None:
    found = linked("sh", "-c", "python3 -c 'import os'\nif [ -f x ]; then python3 -c 'import hvd.mpi_lib'; fi")
    assert [each.uses_mpi for each in found.conditional] == [True]
    assert "mpi.unused" not in [each.code for each in judged(found)]


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_a_rendezvous_without_mpi_is_no_unused_mpi(package: str) -> None:
    unused = linked("python3", "-c", f"import {package}")._replace(conditional=[])
    (seen,) = unused.processes
    found = unused._replace(
        processes=[seen._replace(packages={f"/usr/lib/python3/dist-packages/{package}"}, missing=())]
    )
    assert codes(found) == []
    other = seen._replace(packages={f"/usr/lib/python3/dist-packages/{package}_tools"}, missing=())
    assert codes(unused._replace(processes=[other])) == [("mpi.unused", WARNING)]


RMPI = "/usr/lib/R/site-library/Rmpi/libs/Rmpi.so"


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("libmpi.so.12", [("command.unclear", UNKNOWN)]),
        ("libmpi.so.40", [("mpi.family", UNKNOWN), ("command.unclear", UNKNOWN)]),
    ],
)
def test_a_module_of_another_language_is_judged_as_if_it_were_loaded(
    library: str, expected: list[tuple[str, str]]
) -> None:
    """``mpi.unused`` was said of R with Rmpi, a warning for a job that dies."""
    rmpi = lib(None, library, imports=CALLS)
    files = {**FILES, RMPI: rmpi._replace(dynamic=rmpi.dynamic._replace(soname=None))}
    assert codes(linked(SERIAL, files=files)) == expected
    assert codes(linked(GOOD, files=files)) == []


def test_packages_of_python_are_no_modules_of_another_language() -> None:
    """They were: those of wheels, which are in no image, and extensions of Python's packages with a lone name."""
    lone = MODULE.replace("hvd", "lone")
    files = {**FILES, RMPI: lib(None, "libmpi.so.12", imports=CALLS), lone: lib(None, "libmpi.so.12", imports=CALLS)}
    assert process.modules(index(files)) == [RMPI]


def test_without_a_site_s_mpi_nothing_is_unused() -> None:
    assert judged(linked(SERIAL), PLAN._replace(mpi=None)) == []


# ------------------------------------------------------------------------------------------------ chosen builds


H5PY = "/usr/lib/python3/dist-packages/h5py"
OPENS = "import h5py; h5py.File('x', 'w', driver='mpio')"


def h5py(launcher: str, text: str, variable: str, selector: bool = True) -> Process:
    plan = PLAN._replace(start_options=[START_OPTION._replace(launcher=launcher)])
    files = {**FILES, MODULE: None, H5PY + "/_debian_h5py_mpi/h5p.so": lib(None, "libmpi.so.12", imports=CALLS)}
    if selector:
        files[H5PY + "/__init__.py"] = None
    environment = dict(item.split("=") for item in [variable] if item)
    environment["LD_LIBRARY_PATH"] = PREFIX + "/lib"
    place = plan, case().manifest.image, index(files), [], {PREFIX: below(HOST_FILES)}
    return process.start(*place, process.Start("python3", {H5PY}, environment, f"-c {text}"))


@pytest.mark.parametrize(("launcher", "text", "variable", "expected"), [
    ("srun", OPENS, "", [("mpi.serial", ERROR)]),
    ("srun", "import h5py", "", [("mpi.serial", NOTE)]),
    ("srun", OPENS, "H5PY_ALWAYS_USE_MPI=1", []),
    ("srun", OPENS.replace("h5py;", "h5py._debian_h5py_mpi as h5py;"), "", []),
    ("mpirun", OPENS, "", []),
    ("mpiexec.hydra", OPENS, "", []),
])  # fmt: skip
def test_h5py_is_serial_or_parallel_by_the_launcher(
    launcher: str, text: str, variable: str, expected: list[tuple[str, str]]
) -> None:
    start = h5py(launcher, text, variable)
    assert [(each.code, each.severity) for rule in check.PROCESS_RULES for each in rule(start)] == expected
    assert start.uses_mpi == (expected == [])


def test_h5py_without_the_file_that_chooses() -> None:
    """Debian 13's python3-h5py-mpi does not depend on the package that has it; `import h5py` gives an empty package."""
    (finding,) = mpi.serial(h5py("mpirun", OPENS, "", selector=False))
    assert (finding.severity, finding.remedy) == (ERROR, "install python3-h5py-serial as well")
    assert list(mpi.serial(h5py("mpirun", "import h5py._debian_h5py_mpi", "", selector=False))) == []


# ------------------------------------------------------------------------------------- modules that are not there

WITH_LIBRARY: dict[str, Facts | None] = {
    **{path: facts for path, facts in FILES.items() if path != MODULE},
    "/usr/lib/python3/os.py": None,
}


def test_a_module_that_is_not_there_ends_the_job() -> None:
    (found,) = judged(linked("python3", "-c", "import os, numpy", files=WITH_LIBRARY))  # no mpi.unused
    assert (found.code, found.severity, found.subject) == ("import.missing", ERROR, "-c:1")
    assert "it imports numpy, which is in none of the folders where /usr/bin/python3 searches" in found.message
    assert "python.requirements" in found.remedy


def test_a_module_of_another_place_is_named() -> None:
    files = {**WITH_LIBRARY, "/opt/v/lib/python3.11/site-packages/numpy/__init__.py": None, "/opt/v/pyvenv.cfg": None}
    (found,) = judged(linked("python3", "-c", "import numpy", files=files))
    assert "; /opt/v/lib/python3.11/site-packages/numpy is not in them" in found.message
    assert "start it with /opt/v/bin/python" in found.remedy
    del files["/opt/v/pyvenv.cfg"]
    (found,) = judged(linked("python3", "-c", "import numpy", files=files))
    assert "set PYTHONPATH=/opt/v/lib/python3.11/site-packages" in found.remedy


def test_a_module_that_is_not_there_where_the_job_goes_on() -> None:
    found = linked("sh", "-c", "python3 -m numpy || /usr/bin/good", files=WITH_LIBRARY)
    assert codes(found) == [("import.missing", NOTE)]


def test_what_a_program_may_import_is_cut_off_by_slurm_as_well() -> None:
    """Seen: horovod.tensorflow is imported within its package; the first verdict with MPICH 5 was RUN."""
    certain, possible = started(None, UCX_FILES, MPICH_5), started(None, UCX_FILES, MPICH_5)
    found = LinkedJob(job("python3"), [certain._replace(users=[])], [possible._replace(may_import="a condition")])
    here = case(plan=MPICH_5._replace(start_options=[START_OPTION._replace(pmi="pmi2", launcher="srun")]))
    assert ("pmi.truncated", UNKNOWN) in [
        (finding.code, finding.severity) for finding in programs.of_job(found, here, check.PROCESS_RULES)
    ]


@pytest.mark.parametrize(("text", "expected"), [
    ("good", []),
    ("unset PMI_FD; exec good", [("pmi.unmet", ERROR)]),
    ("env -u PMI_RANK good", [("pmi.unmet", ERROR)]),
    ("for v in $(env | grep -o '^SLURM_[^=]*'); do unset $v; done; good", [("pmi.unmet", UNKNOWN)]),
    ("unset $(compgen -e | grep PMI); good", [("pmi.unmet", UNKNOWN)]),
    ("unset SLURM_CPU_BIND; good", []),
    ("export I_MPI_FABRICS=shm; good", [("mpi.variable", ERROR)]),
    ("I_MPI_FABRICS=shm good", [("mpi.variable", ERROR)]),
    ("env I_MPI_FABRICS=shm good", [("mpi.variable", ERROR)]),
    ("I_MPI_FABRICS=shm; good", []),  # not exported
    ("export I_MPI_FABRICS=$(cat x); good", [("mpi.variable", UNKNOWN)]),
    ("if test -f x; then export I_MPI_FABRICS=shm; fi; good", [("mpi.variable", UNKNOWN)]),
    ("export I_MPI_FABRICS=shm:ofi I_MPI_DEBUG=5; good", []),
])  # fmt: skip
def test_what_a_script_sets_or_unsets_for_a_program_with_mpi(text: str, expected: list[tuple[str, str]]) -> None:
    files = {**FILES, "/usr/bin/env": SMALL, "/usr/bin/grep": SMALL}
    of = linked("sh", "-c", text, files=files)
    of = of._replace(job=job("sh")._replace(nodes=2))
    found = [finding for rule in check.JOB_RULES for finding in rule(of, case())]
    assert [(each.code, each.severity) for each in found] == expected


def test_a_module_that_may_be_found_is_unknown() -> None:
    text = "import sys\nsys.path.insert(0, sys.argv[1])\nimport gone"
    (found,) = [each for each in judged(linked("python3", "-c", text, files=WITH_LIBRARY)) if each.code[0] == "i"]
    assert (found.code, found.severity, found.subject) == ("import.missing", UNKNOWN, "-c:3")
    assert "it may end with ModuleNotFoundError: sys.path is changed" in found.message


def test_a_text_that_python_cannot_read_ends_the_job() -> None:
    python = {"/usr/bin/python3.9": FILES["/usr/bin/python3"], "/usr/lib/python3.9/os.py": None}
    (found,) = judged(linked("python3.9", "-c", "print 'a'", files={**FILES, **python}))  # no mpi.unused
    assert (found.code, found.severity, found.subject) == ("python.syntax", ERROR, "-c:1")
    assert "/usr/bin/python3.9 cannot read this line, and ends with SyntaxError: Missing parentheses" in found.message
    found_in = linked("sh", "-c", "python3.9 -c \"print 'a'\" || true", files={**FILES, **python})
    assert ("python.syntax", WARNING) in codes(found_in)


CV = "/usr/lib/python3/dist-packages/cv2"
WITH_CV: dict[str, Facts | None] = {
    **{path: facts for path, facts in FILES.items() if path != MODULE},
    "/usr/bin/python3.11": FILES["/usr/bin/python3"],
    "/usr/lib/python3.11/os.py": None,
    f"{CV}/__init__.py": None,
    f"{CV}/cv2.abi3.so": lib(None, "libxcb.so.1", "libc.so.6"),
    f"{CV}/gui.cpython-39-x86_64-linux-gnu.so": lib(None, "libold.so.1"),
    f"{CV}/gui.cpython-311-x86_64-linux-gnu.so": lib(None, "libqt.so.5", "libown.so.1"),
    f"{CV}/libs/libown.so.1": lib("libown.so.1"),
}


def test_what_a_package_imports_at_its_top_and_nothing_has() -> None:
    upper = "/usr/lib/python3/dist-packages/upper.py"
    image = index({**WITH_CV, upper: None})
    manifest = manifest_of([], env=["PATH=/usr/bin"])._replace(jobs=[job("python3.11", "-c", "import upper")])
    for name, expected in (("gone", [("import.missing", UNKNOWN)]), ("cv2", []), ("os", [])):
        image.imports = {upper: [name]}
        (found,) = jobs.link(manifest, PLAN, image, [], {PREFIX: below(HOST_FILES)})
        assert [(each.code, each.severity) for each in judged(found) if each.code == "import.missing"] == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("import cv2", ["libxcb.so.1"]),
        ("import os, cv2.gui", ["libxcb.so.1", "libqt.so.5"]),
        ("from cv2 import gui", ["libxcb.so.1", "libqt.so.5"]),
        ("def main():\n from cv2.gui import x\nmain()", ["libxcb.so.1", "libqt.so.5"]),
        ("import upper", ["libxcb.so.1", "libqt.so.5"]),
        ("if x:\n import cv2", []),
        ("try:\n import cv2\nexcept ImportError:\n pass", []),
        ("with x:\n import cv2", []),
        ("import sys\nsys.path.insert(0, x)\nimport cv2", []),
        ("import cv2.nothing.more", ["libxcb.so.1"]),
    ],
)
def test_what_a_certain_import_loads_is_linked(text: str, missing: list[str]) -> None:
    image = index({**WITH_CV, "/usr/lib/python3/dist-packages/upper.py": None})
    image.imports = {f"{CV}/__init__.py": ["cv2/cv2"], "/usr/lib/python3/dist-packages/upper.py": ["cv2.gui"]}
    manifest = manifest_of([], env=["PATH=/usr/bin"])._replace(jobs=[job("python3.11", "-c", text)])
    (found,) = jobs.link(manifest, PLAN, image, [], {PREFIX: below(HOST_FILES)})
    lacking = [each for each in judged(found) if each.code == "link.missing"]
    assert [each.message.split()[2].strip(",") for each in lacking] == missing
    assert {each.severity for each in lacking} <= {ERROR}
    for before in ("LD_LIBRARY_PATH=$(cat /x)", "LD_PRELOAD=/opt/all.so"):
        manifest = manifest._replace(jobs=[job("sh", "-c", f"export {before}; python3.11 -c '{text}'")])
        (found,) = jobs.link(manifest, PLAN, image, [], {PREFIX: below(HOST_FILES)})
        assert "link.missing" not in [code for code, _ in codes(found)]
