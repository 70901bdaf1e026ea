"""Rules of bundle and site: each is set off by what really fails, and not by its near miss."""

import datetime as dt
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from deployer.connected.bundle import pack, sources
from deployer.connected.bundle.contents import Contents
from deployer.connected.check import check
from deployer.connected.check.checking import Checking
from deployer.connected.check.rules import (
    command,
    cpu,
    fabric,
    gpu,
    linking,
    mpi,
    places,
    pmi,
    python,
    runtimes,
    site,
    uncaptured,
)
from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.linker import commands, jobs
from deployer.connected.linker.code import x86_64
from deployer.connected.linker.code.code_facts import CodeFacts, Instructions
from deployer.connected.linker.index import Index, Indexed, of_site
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.loader import Loader
from deployer.connected.linker.process import Overlay, Process, Start, start
from deployer.connected.site_profile.forms import RuntimeName
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import BundleMember, DataNeed, Manifest, Segment, WheelOverlay
from deployer.contract.elf.dynamic import Facts
from deployer.contract.rules import verdict
from deployer.contract.rules.findings import ERROR, NOTE, WARNING, Finding
from deployer.contract.rules.hostfiles import FOLDER, LINK, HostFile
from deployer.contract.site import plan as plans
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import Bind, HostMpi, Plan
from deployer.system.trust.verify import begin, opened
from tests.host_files import HostFiles
from tests.running import IMAGE, PREFIX, START_OPTION
from tests.unit.connected.check.test_check import (
    CALLS,
    HAS,
    HOST_FILES,
    IMAGE_FILES,
    MODULE,
    OPENMPI,
    OPENMPI_FILES,
    PLAN,
    below,
    index,
    lib,
    on,
    started,
)
from tests.unit.connected.linker.code.test_instructions import compiled

UNKNOWN = verdict.MISSING_FACTS
FABRIC = PREFIX + "/lib/libfabric.so.1"
PSM2 = PREFIX + "/lib/libpsmx2-fi.so"


def case(
    partition: Mapping[str, Any] | None = None,
    files: Mapping[str, Facts | None] | None = None,
    *,
    plan: Plan = PLAN,
    manifest: Manifest | None = None,
    processes: list[Process] | None = None,
    overlays: list[Overlay] | None = None,
    today: dt.date | None = None,
    **top: Any,
) -> Case:
    source = {"kind": "document", "where": "a test", "date": "2026-11-20"}
    policy, runtimes_ = {"runtimes": ["charliecloud"]}, {"charliecloud": {"version": "0.31"}}
    fields = {"format": 1, "name": "lab", "source": source, "policy": policy, "runtimes": runtimes_, **top}
    profile = Profile.model_validate({**fields, "partitions": {"batch": partition or {}}})
    _, chosen = profile.partition("batch")
    made = manifest or manifest_of([])
    image = index(IMAGE_FILES if files is None else files)
    return Case(profile, chosen, plan, made, image, overlays or [], processes or [], today)


def manifest_of(members: list[BundleMember], size: int = 0, **image: Any) -> Manifest:
    segments = [Segment("data", 0, size, "")]
    return Manifest("hello", "1", {}, {}, IMAGE._replace(**image), {}, [], members, segments)


def test_memory_that_ranks_need_is_compared_with_a_node() -> None:
    job = Job("t", ["true"], 1, 4, 1, "00:01:00")

    def found(memory: int | None) -> list[Finding]:
        return list(site.numbers(case(manifest=manifest_of([])._replace(jobs=[job._replace(memory=memory)]))))

    room = PLAN.node.memory_mb
    assert found(None) == found(room // 4) == []
    (few,) = found(room // 4 + 1)
    assert (few.code, few.severity, few.job) == ("job.memory", ERROR, "t")
    assert few.remedy == "use fewer ranks per node and more nodes: --ranks-per-node 3 at most"
    each = room // 4 + 1
    assert f"4 ranks per node x {each} MiB = {4 * each} MiB, but a job may use {room} MiB" in few.message
    assert codes(found(room + 1)) == [("job.memory", ERROR)]


def codes(findings: Any) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in findings]


def provider(name: str, host: Mapping[str, Facts], plan: Plan = PLAN, **environment: str) -> list[Finding]:
    image = {**IMAGE_FILES, "/usr/lib/libhere.so.1": lib("libhere.so.1")}
    if plan.abi == "openmpi":
        image[MODULE] = lib(None, "libmpi.so.40", imports=CALLS)
    asked = plan._replace(environment={**plan.environment, "FI_PROVIDER": name, **environment})
    return list(fabric.provider(started(image, host, asked)))


# ------------------------------------------------------------------------------------------------ the network


def test_a_provider_that_intel_s_libfabric_does_not_have() -> None:
    """Seen: Intel MPI 2021.15 with FI_PROVIDER=opx: "find_provider: No data available", exit 137."""
    (found,) = provider("opx", HOST_FILES)
    assert (found.code, found.severity, found.subject) == ("fabric.provider", ERROR, FABRIC)
    assert "only: tcp" in found.message
    assert provider("tcp", HOST_FILES) == []
    assert provider("opx,tcp", HOST_FILES) == []  # seen: it takes tcp
    assert provider("^psm3", HOST_FILES) == []
    assert provider("verbs;ofi_rxm", {**HOST_FILES, PREFIX + "/lib/libverbs-fi.so": lib(None)}) == []


def test_the_folder_of_providers_is_the_only_one_when_it_is_named() -> None:
    """Seen: FI_PROVIDER_PATH=/nonexistent: Intel MPI fails even with tcp."""
    folder = PREFIX + "/lib/prov"
    (found,) = provider("tcp", HOST_FILES, FI_PROVIDER_PATH=folder)
    assert (found.code, found.severity) == ("fabric.provider", ERROR)
    assert provider("tcp", {**HOST_FILES, folder + "/libtcp-fi.so": lib(None)}, FI_PROVIDER_PATH=folder) == []


def test_a_provider_whose_own_library_is_not_there() -> None:
    """Seen: Intel MPI with FI_PROVIDER=psm2 where no libpsm2.so.2 is."""
    (found,) = provider("psm2", {**HOST_FILES, PSM2: lib(None, "libfabric.so.1", "libpsm2.so.2")})
    assert (found.code, found.severity, found.subject) == ("fabric.library", ERROR, PSM2)
    assert "libpsm2.so.2" in found.message
    assert provider("psm2", {**HOST_FILES, PSM2: lib(None, "libfabric.so.1", "libhere.so.1")}) == []
    new = lib(None, "libc.so.6", versions={"libc.so.6": ["GLIBC_2.38"]})
    (found,) = provider("psm2", {**HOST_FILES, PSM2: new})
    assert "GLIBC_2.38" in found.message


def test_providers_of_other_names_need_the_folder() -> None:
    """Seen in traces: libfabric asks for libverbs-fi.so where no FI_PROVIDER_PATH is, and Intel's have other names."""
    two = {
        **HOST_FILES,
        PREFIX + "/lib/libverbs-1.1-fi.so": lib(None, "libgone.so.1"),
        PREFIX + "/lib/libverbs-1.12-fi.so": lib(None),
    }
    assert codes(provider("verbs", two)) == [("fabric.provider", ERROR)]
    assert provider("verbs", two, FI_PROVIDER_PATH=PREFIX + "/lib") == []  # one of its versions is enough


def test_others_than_intel_take_another_network() -> None:
    """Seen: Open MPI 5.0.11 and MPICH 5.0.2 run with FI_PROVIDER=psm2 on nodes without it; MPICH 4.2.3 aborts."""
    plugins = {PREFIX + "/lib/libfabric.so.1": lib("libfabric.so.1"), PREFIX + "/lib/libverbs-fi.so": lib(None)}
    open_mpi = {**OPENMPI_FILES, PREFIX + "/lib/libmpi.so.40": lib("libmpi.so.40", "libfabric.so.1", exports=HAS)}
    assert codes(provider("psm2", {**open_mpi, **plugins}, OPENMPI)) == [("fabric.provider", WARNING)]
    mpich = {PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", "libfabric.so.1", exports=HAS), **plugins}
    for version, severity in (("4.2.3", ERROR), ("5.0.2", WARNING)):
        plan = PLAN._replace(mpi=HostMpi("mpich", version, PREFIX, PREFIX + "/lib/libmpi.so.12", "MPICH"))
        assert codes(provider("psm2", mpich, plan)) == [("fabric.provider", severity)]
        assert provider("tcp", mpich, plan) == []  # which libfabric has in itself


def test_what_a_libfabric_has_in_itself_is_not_known() -> None:
    alone = {
        PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", "libfabric.so.1", exports=HAS),
        FABRIC: lib("libfabric.so.1"),
    }
    plan = PLAN._replace(mpi=HostMpi("mpich", "4.2.3", PREFIX, PREFIX + "/lib/libmpi.so.12", "MPICH"))
    assert codes(provider("psm2", alone, plan)) == [("facts.fabric", UNKNOWN)]


def test_intel_mpi_opens_libfabric_by_name() -> None:
    """Seen: Intel MPI 2021.19, whose wheel brings none: "Other MPI error" in MPI_Init."""
    bare = {PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
    assert codes(fabric.library(started(host=bare))) == [("fabric.missing", ERROR)]
    beside = {**bare, FABRIC: lib("libfabric.so.1")}
    linked = started(host=beside)
    assert codes(fabric.library(linked)) == []
    assert linked.loader.find("libfabric.so.1") is not None
    mpich = PLAN._replace(mpi=HostMpi("mpich", "4.2.3", PREFIX, PREFIX + "/lib/libmpi.so.12", "MPICH"))
    assert codes(fabric.library(started(host=bare, plan=mpich))) == []


def test_the_image_s_libfabric_is_a_half_bound_tree() -> None:
    """Seen: a bind without the folder in LD_LIBRARY_PATH lets Intel MPI open the container's libfabric."""
    bare = {PREFIX + "/lib/libmpi.so.12": lib("libmpi.so.12", exports=HAS)}
    image = {**IMAGE_FILES, "/usr/lib/libfabric.so.1": lib("libfabric.so.1")}
    assert codes(mpi.tree(started(image, bare))) == [("mpi.mixed", WARNING)]


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("omni-path", "", [("fabric.tcp", WARNING)]),
        ("omni-path", "tcp", [("fabric.tcp", WARNING)]),
        ("infiniband", "tcp;ofi_rxm", [("fabric.tcp", WARNING)]),
        ("omni-path", "psm2", []),
        ("ethernet", "tcp", []),
        ("ethernet", "", []),
    ],
)
def test_a_fast_network_that_is_not_used(kind: str, asked: str, expected: list[tuple[str, str]]) -> None:
    plan = PLAN._replace(environment={**PLAN.environment, "FI_PROVIDER": asked})
    found = fabric.slow(case({"fabric": {"kind": kind}}, plan=plan, processes=[started(plan=plan)]))
    assert codes(found) == expected


@pytest.mark.parametrize(
    ("kind", "added", "expected"),
    [
        ("slingshot", "", [("fabric.tcp", WARNING)]),
        ("slingshot", "/usr/lib/libcxi.so.1", []),
        ("infiniband", "/usr/lib/libcxi.so.1", [("fabric.tcp", WARNING)]),
        ("infiniband", "/usr/lib/libibverbs.so.1.14", []),
        ("omni-path", "", []),  # opx needs no library
        ("ethernet", "", []),
    ],
)
def test_the_image_s_own_mpi_without_the_library_of_a_fast_network(
    kind: str, added: str, expected: list[tuple[str, str]]
) -> None:
    plan = PLAN._replace(mpi=None, environment={})
    image = {**IMAGE_FILES, **({added: lib(Path(added).name)} if added else {})}
    here = case({"fabric": {"kind": kind}}, image, plan=plan, processes=[started(image, {}, plan)])
    assert codes(fabric.slow(here)) == expected


# ------------------------------------------------------------------------------------------------ libraries


def test_open_mpi_s_c_library_for_cpp() -> None:
    user = lib(None, "libmpi_cxx.so.40", "libmpi.so.40", imports=CALLS)
    image = {**IMAGE_FILES, MODULE: user}
    linked = started(image, OPENMPI_FILES, OPENMPI)
    assert codes(mpi.cxx(linked)) == [("mpi.cxx", ERROR)]
    assert codes(linking.missing(linked)) == [("link.missing", ERROR)] * 0
    of_image = {**image, "/usr/lib/libmpi_cxx.so.40": lib("libmpi_cxx.so.40", "libmpi.so.40", imports=CALLS)}
    assert codes(mpi.cxx(started(of_image, OPENMPI_FILES, OPENMPI))) == [("mpi.cxx", ERROR)]
    four = OPENMPI._replace(mpi=HostMpi("openmpi", "4.1.8", PREFIX, PREFIX + "/lib/libmpi.so.40", "Open MPI v4.1.8"))
    assert codes(mpi.cxx(started(of_image, OPENMPI_FILES, four))) == []
    wants = lib(None, "libmpi_cxx.so.40", "libmpi.so.40", imports=[*CALLS, "ompi_mpi_cxx_op_intercept"])
    has = lib("libmpi_cxx.so.40", "libmpi.so.40", imports=CALLS, exports=["ompi_mpi_cxx_op_intercept"])
    both = {**of_image, MODULE: wants, "/usr/lib/libmpi_cxx.so.40": has}
    assert codes(mpi.symbols(started(both, OPENMPI_FILES, four))) == []
    assert codes(mpi.cxx(started(image, OPENMPI_FILES, four))) == [("mpi.cxx", ERROR)]
    of_site = {**OPENMPI_FILES, PREFIX + "/lib/libmpi_cxx.so.40": lib("libmpi_cxx.so.40", "libmpi.so.40")}
    assert codes(mpi.cxx(started(image, of_site, OPENMPI))) == []


@pytest.mark.parametrize(
    ("kind", "files", "expected"),
    [
        ("infiniband", ["libnccl.so.2"], [("fabric.nccl", WARNING)]),
        ("infiniband", ["libnccl.so.2", "libibverbs.so.1"], []),
        ("infiniband", ["libibverbs.so.1"], []),  # no NCCL
        ("infiniband", [], []),
        ("slingshot", ["libnccl.so.2", "libibverbs.so.1"], [("fabric.nccl", WARNING)]),
        ("omni-path", ["libnccl.so.2.16.5", "libnccl-net.so"], []),
        ("ethernet", ["libnccl.so.2"], []),
    ],
)
def test_nccl_needs_its_library_for_a_fast_network(kind: str, files: list[str], expected: list[Any]) -> None:
    image = {**IMAGE_FILES, **{f"/usr/lib/x/{name}": lib(name) for name in files}}
    gpus = {"node": {"gpus": {"kind": "nvidia"}}}
    assert codes(fabric.nccl(case({"fabric": {"kind": kind}, **gpus}, image))) == expected
    assert codes(fabric.nccl(case({"fabric": {"kind": kind}}, image))) == []  # no GPUs
    host = [HostFile("lib/libibverbs.so.1", "file", "/usr/lib64/libibverbs.so.1", "x")]
    bound = case({"fabric": {"kind": kind}, **gpus}, image, plan=PLAN._replace(host=host))
    assert codes(fabric.nccl(bound)) == (expected if kind != "infiniband" else [])


@pytest.mark.parametrize(
    ("files", "kind", "expected"),
    [
        (["librccl.so"], "slingshot", "for which RCCL opens libnccl-net; neither the image nor the plan has it"),
        (["librccl.so", "librccl-net.so"], "slingshot", None),
        (["librccl.so.1", "libnccl-net.so"], "omni-path", None),
        (["librccl.so"], "infiniband", "for which RCCL opens libibverbs.so.1"),
    ],
)
def test_rccl_needs_its_library_for_a_fast_network(files: list[str], kind: str, expected: str | None) -> None:
    image = {**IMAGE_FILES, **{f"/usr/lib/x/{name}": lib(name) for name in files}}
    found = list(fabric.nccl(case({"fabric": {"kind": kind}, "node": {"gpus": {"kind": "amd"}}}, image)))
    assert codes(found) == ([("fabric.nccl", WARNING)] if expected else [])
    assert not expected or expected in found[0].message


OFI = "/opt/aws-ofi-nccl/lib/libnccl-net.so"
PLUGGED = {
    OFI: lib("libnccl-net.so", "libfabric.so.1", "libcudart.so.12", versions={"libc.so.6": ["GLIBC_2.36"]}),
    "/opt/cray/lib64/libfabric.so.1": lib("libfabric.so.1", "libcxi.so.1"),
    "/usr/lib64/libcxi.so.1": lib("libcxi.so.1"),
}


@pytest.mark.parametrize(
    ("image", "lacks", "forced", "expected"),
    [
        ({}, [], True, None),
        ({}, ["/usr/lib64/libcxi.so.1"], True, ("libcxi.so.1", ERROR)),
        ({}, ["/usr/lib64/libcxi.so.1"], False, ("libcxi.so.1", WARNING)),
        ({"/lib/libcudart.so.12": None}, [], True, ("libcudart.so.12", ERROR)),
        ({"/lib/x86_64-linux-gnu/libc.so.6": lib("libc.so.6", defines=("GLIBC_2.17",))}, [], True,
         ("GLIBC_2.36", ERROR)),
        ({"/lib/libnccl.so.2": None}, ["/usr/lib64/libcxi.so.1"], True, None),  # no NCCL in the image
    ],
)  # fmt: skip
def test_the_site_s_plug_in_of_nccl_in_the_image(
    image: dict[str, Facts | None], lacks: list[str], forced: bool, expected: tuple[str, str] | None
) -> None:
    libc = {"/lib/x86_64-linux-gnu/libc.so.6": lib("libc.so.6", defines=("GLIBC_2.17", "GLIBC_2.36"))}
    of_image = {**IMAGE_FILES, **libc, "/lib/libcudart.so.12": lib("libcudart.so.12"),
                "/lib/libnccl.so.2": lib("libnccl.so.2"), **image}  # fmt: skip
    of_image = {path: facts for path, facts in of_image.items() if facts or path not in image}
    files = {path: facts for path, facts in PLUGGED.items() if path not in lacks}
    host = tuple(HostFile(f"lib/{path.rpartition('/')[2]}", "file", path, "x") for path in files)
    environment = {"LD_LIBRARY_PATH": "/deployer/host/lib", **({"NCCL_NET": "x"} if forced else {})}
    plan = PLAN._replace(host=host, environment=environment)
    site = {PREFIX: below(HOST_FILES), FOLDER: of_site(files, {})}
    process = start(plan, IMAGE, index(of_image), (), site, Start("python3"))
    place = {"fabric": {"kind": "slingshot"}, "node": {"gpus": {"kind": "nvidia"}}}
    found = list(fabric.nccl(case(place, of_image, plan=plan, processes=[process])))
    assert codes(found) == ([("fabric.nccl", expected[1])] if expected else [])
    assert (
        not expected or f"the site's plug-in needs {expected[0]}, which the container does not have" in found[0].message
    )


def test_a_plug_in_of_tensorflow_that_cannot_be_opened() -> None:
    plugin = "/usr/lib/python3/dist-packages/tensorflow-plugins/libitex_cpu.so"
    image = {**IMAGE_FILES, plugin: lib(None, "libitex_cpu_internal.so")}
    assert codes(linking.plugins(started(image))) == [("link.plugin", ERROR)]
    own = {**image, "/usr/lib/python3/dist-packages/itex/libitex_cpu_internal.so": lib("libitex_cpu_internal.so")}
    assert codes(linking.plugins(started(own))) == []
    elsewhere = {**IMAGE_FILES, plugin.replace("tensorflow-plugins", "other"): lib(None, "libgone.so")}
    assert codes(linking.plugins(started(elsewhere))) == []


# ------------------------------------------------------------------------------------------------ processors


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a real program that needs x86-64-v3, and one that needs nothing."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("built")
    (folder / "a.c").write_text("int main(void) { return 0; }\n")
    for name, words in (("new", ["-Wl,-z,x86-64-v3"]), ("old", [])):
        subprocess.run(["gcc", "a.c", "-o", name, *words], cwd=folder, check=True, timeout=60)
    return folder


@pytest.mark.thorough
def test_the_level_of_x86_64_is_read_from_a_real_program(built: Path) -> None:
    levels = {}
    for name in ("new", "old"):
        facts = HostFiles(str(built)).facts("/" + name)
        levels[name] = facts.level
    assert levels == {"new": 3, "old": 0}


V3 = ["sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2"]


def test_instructions_that_a_node_lacks() -> None:
    """glibc 2.33 and later: "CPU ISA level is lower than required"."""
    image = {**IMAGE_FILES, "/usr/lib/libc.so.6": IMAGE_FILES["/usr/lib/libc.so.6"]._replace(level=3)}  # type: ignore[union-attr]
    linked = [started(image)]
    for flags, expected in (
        (V3, []),
        ([flag for flag in V3 if flag != "avx2"], [("cpu.instructions", ERROR)]),
        (None, [("facts.cpu", UNKNOWN)]),
    ):
        node = {"node": {"cpu": {"flags": flags}}}
        assert codes(cpu.instructions(case(node, image, processes=linked))) == expected
    assert codes(cpu.instructions(case({}, processes=[started()]))) == []


def test_tensorflow_s_wheel_uses_avx() -> None:
    image = {
        **IMAGE_FILES,
        "/usr/lib/python3/dist-packages/tensorflow/libtensorflow_cc.so.2": lib("libtensorflow_cc.so.2"),
    }
    assert codes(cpu.instructions(case({"node": {"cpu": {"flags": ["sse4_2"]}}}, image))) == [
        ("cpu.instructions", ERROR)
    ]
    assert codes(cpu.instructions(case({"node": {"cpu": {"flags": ["avx"]}}}, image))) == []
    arm = manifest_of([], architecture="arm64")
    assert codes(cpu.instructions(case({}, image, manifest=arm))) == []


@pytest.mark.parametrize(
    ("node", "image", "expected"),
    [
        ("x86_64", "amd64", []),
        ("aarch64", "arm64", []),
        ("aarch64", "amd64", [("node.architecture", ERROR)]),
        (None, "amd64", []),
        ("x86_64", "unknown", []),
    ],
)
def test_an_image_for_another_machine(node: str | None, image: str, expected: list[tuple[str, str]]) -> None:
    found = cpu.architecture(case({"architecture": node}, manifest=manifest_of([], architecture=image)))
    assert codes(found) == expected


def on_aarch64(
    partition: Mapping[str, Any], found: Instructions | None = None, pages: int = 0, jemalloc: int = 0
) -> tuple[Case, Process]:
    """Return a bundle for AArch64, whose program links the library libx.so with these facts."""
    image = {
        "/usr/bin/x": on(183, lib(None, "libx.so")),
        "/usr/lib/libx.so": on(183, lib("libx.so"))._replace(pages=pages),
    }
    made = case(partition, image, manifest=manifest_of([], architecture="arm64"))
    made.image.code = CodeFacts(lambda path: None, None)
    known = {"/usr/lib/libx.so": (found or Instructions(), jemalloc)}
    made.image.code.of = lambda path: known.get(path, (Instructions(), 0))[0]  # type: ignore[method-assign]
    made.image.code.jemalloc = lambda path: known.get(path, (Instructions(), 0))[1]  # type: ignore[method-assign]
    image_record = IMAGE._replace(architecture="arm64")
    return made, jobs.process.start(PLAN, image_record, made.image, [], {}, jobs.process.Start("x"))


@pytest.mark.parametrize(
    ("found", "flags", "expected"),
    [
        (Instructions(["sve"], ["sve"]), ["atomics"], [("cpu.instructions", ERROR)]),
        (Instructions(["sve"], ["sve"]), ["atomics", "sve"], []),
        (Instructions(["sve"], ["sve"]), None, [("facts.cpu", UNKNOWN)]),
        (Instructions(["bf16"]), ["atomics"], [("cpu.instructions", WARNING)]),
        (Instructions(["sve", "bf16"], asks=True), [], []),
    ],
)
def test_code_for_newer_arm_processors(found: Instructions, flags: Any, expected: list[tuple[str, str]]) -> None:
    made, linked = on_aarch64({"node": {"cpu": {"flags": flags}}}, found)
    findings = list(cpu.code(made, linked))
    assert codes(findings) == expected
    assert all("armv8-a" in finding.remedy for finding in findings if finding.code == "cpu.instructions")


@pytest.mark.parametrize(
    ("size", "pages", "jemalloc", "expected"),
    [
        (65536, 0, 0, []),
        (65536, 4096, 0, [("cpu.page-size", ERROR)]),
        (16384, 16384, 0, []),
        (4096, 4096, 4096, []),
        (None, 4096, 4096, [("facts.cpu", UNKNOWN)]),
        (None, 0, 4096, []),
        (65536, 0, 4096, [("cpu.page-size", ERROR)]),
        (65536, 0, 65536, []),
        (65536, 0, -1, [("cpu.page-size", WARNING)]),
    ],
)
def test_page_sizes(size: int | None, pages: int, jemalloc: int, expected: list[tuple[str, str]]) -> None:
    made, linked = on_aarch64({"page_size": size}, pages=pages, jemalloc=jemalloc)
    assert codes(cpu.page_size(made, linked)) == expected
    assert cpu.page_size in check.NODE_RULES


V3 = ["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "sse4_1", "sse4_2"]


@pytest.mark.parametrize(
    ("found", "flags", "expected"),
    [
        (Instructions(["avx"], ["avx"], ["avx"]), ["sse4_2"], [("cpu.instructions", ERROR)]),
        (Instructions(["avx"], ["avx"], ["avx"]), V3, []),
        (Instructions(["avx"], ["avx"], ["avx"]), None, [("facts.cpu", UNKNOWN)]),
        (Instructions(["avx", "avx512f"], ["avx", "avx512f"]), V3, [("cpu.instructions", ERROR)]),
        (Instructions(["avx"]), ["sse4_2"], [("cpu.instructions", WARNING)]),
        (Instructions(["avx"]), None, []),
        (Instructions(["avx"], asks=True), ["sse4_2"], []),
        (Instructions(["avx"], [], ["avx"], asks=True), ["sse4_2"], [("cpu.instructions", ERROR)]),
    ],
)
def test_code_for_newer_processors(
    found: Instructions, flags: Any, expected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = case({"node": {"cpu": {"flags": flags}}})
    linked = jobs.process.start(PLAN, IMAGE, made.image, [], {}, jobs.process.Start("python3"))
    made.image.code = CodeFacts(lambda path: None, None)
    monkeypatch.setattr(made.image.code, "of", lambda path: found if path.endswith("python3") else Instructions())
    assert codes(cpu.code(made, linked)) == expected
    assert cpu.code in check.NODE_RULES


@pytest.mark.parametrize(
    ("name", "found", "severity"),
    [
        ("libc.so.6", Instructions(["avx"], ["avx"]), ERROR),
        ("libc.so.6", Instructions(["avx"], ["avx"], asks=True), None),  # most of its code is there to be chosen
        ("libkernels-avx2.so", Instructions(["avx"], ["avx"]), WARNING),
    ],
)
def test_code_of_libraries_for_newer_processors(
    name: str, found: Instructions, severity: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = {"/usr/bin/python3": lib(None, name), f"/usr/lib/{name}": lib(name)}
    made = case({"node": {"cpu": {"flags": ["sse4_2"]}}}, image)
    made.image.code = CodeFacts(lambda path: None, None)
    monkeypatch.setattr(made.image.code, "of", lambda path: found if path.endswith(name) else Instructions())
    linked = jobs.process.start(PLAN, IMAGE, made.image, [], {}, jobs.process.Start("python3"))
    assert codes(cpu.code(made, linked)) == ([("cpu.instructions", severity)] if severity else [])
    newer = case({"node": {"cpu": {"flags": [*V3, "avx512f"]}}}, image)  # nothing is decoded for them
    monkeypatch.setattr(made.image.code, "of", None)
    assert list(cpu.code(newer._replace(image=made.image), linked)) == []


# ------------------------------------------------------------------------------------------------ GPUs


@pytest.mark.parametrize(
    ("driver", "gpus", "cudart", "expected"),
    [
        ("535.104", {"capability": "7.0"}, "libcudart.so.12", []),
        ("470.82", {"capability": "7.0"}, "libcudart.so.12", [("gpu.driver", ERROR)]),
        ("470.82", {"capability": "7.0"}, "libcudart.so.11.0", []),
        ("535.104", {"capability": "3.7"}, "libcudart.so.12", [("gpu.capability", ERROR)]),  # K80
        ("535.104", {}, "libcudart.so.13", [("gpu.driver", ERROR)]),
        (None, {"model": "V100"}, "libcudart.so.12", [("facts.gpu", UNKNOWN)]),
        (None, None, "libcudart.so.12", [("gpu.none", WARNING)]),
        (None, None, "libcudadevrt.so.12", []),
    ],
)
def test_cuda_and_the_nodes(driver: str | None, gpus: Any, cudart: str, expected: list[tuple[str, str]]) -> None:
    partition = {
        "driver": {"kind": "nvidia", "version": driver} if driver else None,
        "node": {"gpus": gpus} if gpus is not None else None,
    }
    files = {**IMAGE_FILES, f"/usr/lib/python3/dist-packages/nvidia/cuda_runtime/lib/{cudart}": lib(cudart)}
    assert codes(gpu.usable(case(partition, files))) == expected


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ({"node": {"cores": 8}}, [("gpu.none", ERROR)]),
        ({"node": {"gpus": {"count": 4}}}, []),
        ({"node": {"gpus": {"count": 3}}}, [("gpu.count", ERROR)]),
        ({"node": {"gpus": {"kind": "nvidia"}}}, [("facts.gpu", UNKNOWN)]),
        ({"node": {"cores": 8}, "driver": {"kind": "nvidia"}}, [("facts.gpu", UNKNOWN)]),
        ({}, [("facts.gpu", UNKNOWN)]),
    ],
)
def test_a_job_with_gpus_of_its_own_and_the_nodes(partition: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    train = Job("train", ["true"], 1, 2, 1, "00:01:00", gpus=2)
    made = case(partition, manifest=manifest_of([])._replace(jobs=[train, train._replace(name="prepare", gpus=0)]))
    found = list(gpu.requested(made))
    assert codes(found) == expected
    assert {each.job for each in found} <= {"train"}
    assert gpu.requested in check.RULES


@pytest.mark.parametrize(
    ("files", "kind", "expected"),
    [
        (["libcudart.so.12"], "nvidia", []),
        (["libcudart.so.12"], None, []),
        (["libcudart.so.12"], "amd", [("gpu.vendor", ERROR), ("gpu.vendor", WARNING)]),
        (["libcudart.so.12"], "intel", [("gpu.vendor", ERROR), ("gpu.vendor", WARNING)]),
        (["libcudart.so.12", "libamdhip64.so.6"], "amd", []),
        (["libamdhip64.so.6"], "nvidia", [("gpu.vendor", ERROR), ("gpu.vendor", WARNING)]),
        (["libsycl.so.8"], "nvidia", [("gpu.vendor", ERROR), ("gpu.vendor", WARNING)]),
        (["libze_loader.so.1", "librocm_smi64.so.1"], "nvidia", []),  # hwloc's
        (["libamdhip64.so.5", "libhsa-runtime64.so.1", "ucx/libuct_rocm.so.0"], "nvidia", []),  # UCX's
        (["libamdhip64.so.5.7.31921", "ucx/libuct_rocm.so.0"], "amd", []),
        (
            ["librocblas.so.4", "libamdhip64.so.6", "ucx/libuct_rocm.so.0"],
            "nvidia",
            [("gpu.vendor", ERROR), ("gpu.vendor", WARNING)],
        ),
    ],
)
def test_gpus_of_another_vendor(files: list[str], kind: str | None, expected: list[tuple[str, str]]) -> None:
    """No rule about CUDA's driver, versions or kernels speaks of another vendor's GPUs."""
    train = Job("train", ["true"], 1, 1, 1, "00:01:00", gpus=1)
    manifest = manifest_of([])._replace(jobs=[train, train._replace(name="prepare", gpus=None)])
    partition = {"node": {"gpus": {"kind": kind, "count": 4}}, "driver": {"kind": kind or "nvidia", "version": "6.2"}}
    image = {**IMAGE_FILES, **{f"/opt/{name}": lib(name) for name in files}}
    made = case(partition, image, manifest=manifest)
    assert codes(gpu.vendor(made)) == expected
    only = {path: entry._replace(kernels=("sm_80",)) for path, entry in made.image.entries.items()}
    for rule in (gpu.usable, gpu.kernels, gpu.toolkit) if kind in ("amd", "intel") else ():
        assert list(rule(made._replace(image=Index(only, {})))) == []


def test_a_bundle_for_another_vendor_names_both() -> None:
    image = {**IMAGE_FILES, "/opt/libcudart.so.12": lib(), TORCH: lib(), "/opt/libcudart.so.11.0": lib()}
    gpus = {"kind": "amd", "model": "Instinct MI250X", "count": 8}
    (finding,) = gpu.vendor(case({"node": {"gpus": gpus}}, image))
    assert finding.message.startswith(
        f"this bundle's PyTorch is built for NVIDIA CUDA ({TORCH}); the GPUs of batch are AMD Instinct MI250X"
    )
    assert finding.remedy == "choose a partition with GPUs of NVIDIA, or build the image for AMD ROCm"
    image = {**IMAGE_FILES, "/opt/libamdhip64.so.6": lib()}
    (finding,) = gpu.vendor(case({"node": {"gpus": {"kind": "nvidia", "model": "NVIDIA H100"}}}, image))
    assert (
        "this bundle's software is built for AMD ROCm (/opt/libamdhip64.so.6); the GPUs of batch are NVIDIA H100"
        in str(finding.message)
    )


# ------------------------------------------------------------------------------------------------ runtimes and room


@pytest.mark.parametrize(
    ("namespaces", "fuse", "stagings", "expected"),
    [
        (True, None, ["folder"], []),
        (False, True, ["folder"], [("runtime.namespaces", ERROR)]),
        (None, None, ["folder"], [("facts.runtime", UNKNOWN)]),
        (True, False, ["squashfs"], [("runtime.fuse", ERROR)]),
        (True, True, ["squashfs"], []),
        (True, False, ["squashfs", "folder"], [("runtime.fuse", NOTE)]),  # the second is taken
    ],
)
def test_what_the_kernel_allows(
    namespaces: bool | None, fuse: bool | None, stagings: list[str], expected: list[tuple[str, str]]
) -> None:
    plan = PLAN._replace(start_options=[START_OPTION._replace(name=staging, staging=staging) for staging in stagings])
    found = runtimes.startable(case({"user_namespaces": namespaces, "fuse": fuse}, plan=plan))
    assert codes(found) == expected


def test_udocker_needs_no_namespace() -> None:
    plan = PLAN._replace(start_options=[START_OPTION, START_OPTION._replace(name="u", runtime="udocker")])
    assert codes(runtimes.startable(case({"user_namespaces": False}, plan=plan))) == [("runtime.namespaces", NOTE)]


def test_a_site_s_ch_run_may_be_too_old() -> None:
    old = case({"user_namespaces": True, "runtimes": {"charliecloud": {"version": "0.26"}}})
    [found] = runtimes.startable(old)
    assert (found.code, found.severity) == ("runtime.old", ERROR)
    assert "ch-run 0.26 is too old" in found.message
    both = PLAN._replace(start_options=[START_OPTION, START_OPTION._replace(name="kit", runtime="charliecloud-kit")])
    assert codes(runtimes.startable(old._replace(plan=both))) == [("runtime.old", NOTE)]


def test_a_setuid_apptainer_needs_no_namespaces() -> None:
    plan = PLAN._replace(start_options=[START_OPTION._replace(name="a", runtime="apptainer")])
    for own, expected in (({}, [("runtime.namespaces", ERROR)]), ({"setuid": True}, [])):
        found = case({"user_namespaces": False, "runtimes": {"apptainer": own}}, plan=plan)
        assert codes(runtimes.startable(found)) == expected


@pytest.mark.parametrize(
    ("name", "version", "noted"),
    [("apptainer", "1.1.9", True), ("apptainer", "1.2.0", False), ("singularity", "3.8.7-1.el8", True),
     ("singularity", "4.1.0", False), ("apptainer", None, False)],
)  # fmt: skip
def test_an_old_apptainer_lets_the_administrator_s_folders_in(name: str, version: str | None, noted: bool) -> None:
    plan = PLAN._replace(start_options=[START_OPTION._replace(name="a", runtime=name)])
    found = list(runtimes.entering(case({"runtimes": {name: {"version": version}}}, plan=plan)))
    assert codes(found) == ([("runtime.bind-path", NOTE)] if noted else [])


def test_an_apptainer_that_started_nothing_at_capture() -> None:
    plan = PLAN._replace(start_options=[START_OPTION._replace(name="a", runtime="apptainer")])
    facts = {"user_namespaces": True, "runtimes": {"apptainer": {"starts": False}}}
    [found] = runtimes.startable(case(facts, plan=plan))
    assert (found.code, found.severity) == ("runtime.start", ERROR)
    both = plan._replace(start_options=[*plan.start_options, START_OPTION])
    assert codes(runtimes.startable(case(facts, plan=both))) == [("runtime.start", NOTE)]


@pytest.mark.parametrize(
    ("sif", "said"),
    [("kernel", None), ("fuse", None), ("unpacked", "no folder or SIF file"), ("refused", "no folder or SIF file")],
)
def test_an_apptainer_that_starts_only_sif_files(sif: str, said: str | None) -> None:
    found = case({"user_namespaces": True, "runtimes": {"apptainer": {"starts": False, "sif": sif, "failure": "why"}}})
    for staging in ("folder", "squashfs"):
        option = START_OPTION._replace(name="a", runtime="apptainer", staging=staging, sif=True)
        against = list(runtimes.startable(found._replace(plan=PLAN._replace(start_options=[option]))))
        start = [each.message for each in against if each.code == "runtime.start"]
        assert [said in message and "(why)" in message for message in start if said] == ([True] if said else [])
        assert bool(against) is (said is not None)


def test_a_podman_that_started_nothing_at_capture_says_why() -> None:
    plan = PLAN._replace(start_options=[START_OPTION._replace(name="p", runtime="podman")])
    own = {"starts": False, "failure": "crun: cgroups in hybrid mode not supported"}
    [found] = runtimes.startable(case({"user_namespaces": True, "runtimes": {"podman": own}}, plan=plan))
    assert (found.code, found.severity) == ("runtime.start", ERROR)
    assert own["failure"] in found.message
    assert found.remedy.startswith("ask the site for nodes with control groups of version 2 alone")
    [found] = runtimes.startable(case({"user_namespaces": True, "runtimes": {"podman": {"starts": False}}}, plan=plan))
    assert found.remedy.startswith("ask the site about the reason")
    assert (
        codes(runtimes.startable(case({"user_namespaces": True, "runtimes": {"podman": {"starts": True}}}, plan=plan)))
        == []
    )


@pytest.mark.parametrize(
    ("own", "expected"),
    [({"squashfs": "fuse"}, []), ({"squashfs": "kernel"}, []), ({"squashfs": "unpacked"}, [("runtime.fuse", ERROR)]),
     ({"squashfs": "refused"}, [("runtime.fuse", ERROR)]), ({}, [("facts.runtime", MISSING_FACTS)])],
)  # fmt: skip
def test_an_apptainer_mounts_a_squashfs_file_by_itself(own: dict[str, str], expected: list[tuple[str, str]]) -> None:
    plan = PLAN._replace(start_options=[START_OPTION._replace(name="a", runtime="apptainer", staging="squashfs")])
    facts = {"user_namespaces": True, "fuse": False, "runtimes": {"apptainer": own}}
    assert codes(runtimes.startable(case(facts, plan=plan))) == expected


def test_without_a_container_there_is_nothing_to_judge() -> None:
    native = START_OPTION._replace(name="native", runtime="native", launcher="srun", pmi="pmix")
    plan = PLAN._replace(start_options=[START_OPTION, native])
    assert codes(runtimes.startable(case({"user_namespaces": False}, plan=plan))) == [("runtime.namespaces", ERROR)]
    assert codes(runtimes.allowed(case({}, plan=PLAN._replace(start_options=[native])))) == [("runtime.none", ERROR)]
    asked = PLAN._replace(start_options=[START_OPTION._replace(pmi="pmi2"), native])
    assert codes(pmi.offered(case(plan=asked, scheduler={"kind": "slurm", "pmi": ["pmi2"]}))) == []


def test_no_runtime_that_is_allowed() -> None:
    found = list(runtimes.allowed(case({}, plan=PLAN._replace(start_options=[]))))
    assert codes(found) == [("runtime.none", ERROR)]
    assert codes(runtimes.allowed(case())) == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"size_mb": 5000, "inodes": 50000}, []),
        ({"size_mb": 3000}, [("space.size", ERROR)]),
        ({"quota_mb": 3000, "size_mb": 10**6}, [("space.size", ERROR)]),
        ({"quota_inodes": 30000}, [("space.files", ERROR)]),
        ({"purge_days": 30}, [("space.purge", NOTE)]),
        ({}, []),
    ],
)
def test_room_for_an_image(limits: Mapping[str, int], expected: list[tuple[str, str]]) -> None:
    manifest = manifest_of([BundleMember("deployer/app/x", 1, 0o644)], 10**9, raw_size=3 * 10**9, entries=36000)
    plan = PLAN._replace(workspace="/scratch/me/deployer")
    found = places.room(case({"filesystems": {"/scratch": limits, "/": {"size_mb": 1}}}, plan=plan, manifest=manifest))
    assert codes(found) == expected


# ------------------------------------------------------------------------------------------------ wheels and facts


def python_image(target: str = "python3.11") -> Index:
    made = index({**IMAGE_FILES, f"/usr/bin/{target}": lib(None)})
    made.entries["/usr/bin/python3"] = Indexed("link", target)
    return made


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("six-1.16.0-py2.py3-none-any.whl", True),
        ("numpy-1.26.4-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("numpy-1.26.4-cp311-cp311-manylinux_2_38_x86_64.whl", False),
        ("numpy-1.26.4-cp311-cp311-manylinux_2_17_aarch64.whl", False),
    ],
)
def test_a_wheel_that_is_not_for_the_image(name: str, fits: bool) -> None:
    manifest = manifest_of([])._replace(overlays=[WheelOverlay("wheels", [name], 1, 1)])
    looked = case(manifest=manifest)._replace(image=python_image())
    found = list(python.tags(looked))
    assert codes(found) == ([] if fits else [("wheel.tags", ERROR)])
    assert all(finding.subject == name for finding in found)


def test_an_image_that_does_not_tell_its_python_is_not_judged() -> None:
    overlay = WheelOverlay("wheels", ["numpy-1.26.4-cp310-cp310-linux_x86_64.whl"], 1, 1)
    assert list(python.tags(case(manifest=manifest_of([])._replace(overlays=[overlay])))) == []


@pytest.mark.parametrize(("days", "expected"), [(10, []), (180, []), (181, [("profile.age", NOTE)])])
def test_the_age_of_facts(days: int, expected: list[tuple[str, str]]) -> None:
    found = list(site.age(case(today=dt.date(2026, 11, 20) + dt.timedelta(days))))
    assert codes(found) == expected
    assert verdict.judged(found).verdict == verdict.RUN


def test_facts_without_a_date_are_noted() -> None:
    undated = {"kind": "document", "where": "a paper"}
    assert codes(site.age(case(source=undated, today=dt.date(2026, 11, 21)))) == [("profile.age", NOTE)]
    assert codes(site.age(case(source=undated))) == []


# ------------------------------------------------------------------------------------------------ the whole way


def true_root(top: Path) -> Path:
    """Return a root with this machine's ``true``, and a Python that is none, so that nothing is missing."""
    loader = Loader(JobFilesystem(HostFiles()))
    program = os.path.realpath(shutil.which("true") or "/bin/true")
    assert loader.start(program)
    for each in loader.objects:
        for path in (each.path, each.found):
            target = top / path[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each.path, target)
    (top / "usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(program, top / "usr/bin/true")
    (top / "usr/bin/true").chmod(0o755)
    return top


SITE: dict[str, Any] = {
    "format": 1, "name": "there", "workspace": "/scratch/me",
    "source": {"kind": "document", "where": "a test", "date": "2026-11-20"},
    "scheduler": {"kind": "slurm"}, "policy": {"runtimes": ["charliecloud"]},
    "runtimes": {"charliecloud": {"version": "0.31"}},  # so pack needs no kit, which would be made, from a mirror
    "user_namespaces": True,
    "partitions": {"batch": {"pmi": "none", "node": {
        "sockets": 1, "cores": 2, "threads_per_core": 1, "memory_mb": 1000}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return true_root(tmp_path_factory.mktemp("rootfs"))


def contents(rootfs: Path) -> Contents:
    return sources.from_folder(rootfs, "x", "1")._replace(jobs=[Job("t", ["true"], 1, 1, 1, "00:01:00")])


@pytest.fixture(scope="module", autouse=True)
def _code_is_decoded_once() -> Iterator[None]:
    """Keep what a program's code needs: most images here have the same program and libraries."""
    decoded = functools.cache(lambda parts, counts=x86_64.counts: counts(parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(x86_64, "counts", lambda parts: decoded(tuple(parts)))
        yield


@pytest.fixture(scope="module")
def bundle(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without plans, with a folder ``cache`` beside it for what is read of its image."""
    return pack.pack(contents(rootfs), [], tmp_path_factory.mktemp("bundle") / "b.tar").path


@pytest.mark.thorough
def test_pack_puts_the_verdict_into_the_plan(rootfs: Path, tmp_path: Path) -> None:
    profile = Profile.model_validate(SITE)
    packed = pack.pack(contents(rootfs), [profile], tmp_path / "b.tar", checking=Checking(cache=tmp_path / "c"))
    (plan,) = packed.plans
    assert (plan.checked.verdict, codes(plan.checked.findings)) == (verdict.RUN, [("proof.outside", NOTE)])
    with opened(str(packed.path)) as stream:
        bundle = begin(stream, str(packed.path))
        for cache in (tmp_path / "c", None):  # what pack read while it made the layer, and the frames
            assert [each.checked for each in check.check_carried(bundle, profile, cache)] == [plan.checked]
        text = b"".join(map(bundle.read, bundle.member_segments("deployer/plans/there.json")))
    assert plans.read(text, "it") == plan
    kept = [each for each in (tmp_path / "c").iterdir() if ".code." not in each.name]
    assert len(kept) == 1  # what pack read is there for check
    again = pack.pack(contents(rootfs), [profile], tmp_path / "again.tar")
    assert again.digest == packed.digest


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose jobs start a program for newer processors: alone, or in a shell that goes on or ends with it."""
    folder = tmp_path_factory.mktemp("newer")
    top = true_root(folder / "root")
    shutil.copyfile(top / "usr/bin/true", top / "usr/bin/sh")
    (top / "usr/bin/newer").write_bytes(compiled(folder, "", "f(c) + g(c)", "-O2", "-march=x86-64-v3").read_bytes())
    for name in ("sh", "newer"):
        (top / "usr/bin" / name).chmod(0o755)
    commands = {"alone": ["newer"], "or": ["sh", "-c", "newer || true"], "exec": ["sh", "-c", "true; exec newer"]}
    made = [Job(name, words, 1, 1, 1, "00:01:00") for name, words in commands.items()]
    return pack.pack(sources.from_folder(top, "x", "1")._replace(jobs=made), [], folder / "b.tar").path


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("job", "flags", "expected"),
    [
        ("alone", [], verdict.REFUSE),
        ("alone", [*V3, "avx512f"], verdict.RUN),
        ("alone", None, verdict.UNKNOWN),
        ("or", [], verdict.WARN),
        ("exec", [], verdict.REFUSE),
    ],
)
def test_a_job_s_own_program_for_newer_processors(job: str, flags: Any, expected: str, newer: Path) -> None:
    node = {**SITE["partitions"]["batch"]["node"], "cpu": {"flags": flags}}
    profile = Profile.model_validate({**SITE, "partitions": {"batch": {"pmi": "none", "node": node}}})
    found = check.check_all(str(newer), profile, job=job)[0].checked
    assert found.verdict == expected, codes(found.findings)
    assert any(each.code == "cpu.instructions" for each in found.findings) == (flags == [])


def test_what_is_certain_is_said_beside_what_was_not_captured(
    rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi = {"m": {"family": "mpich", "prefix": "/opt/mpi", "says": "MPICH"}}
    partition = {**SITE["partitions"]["batch"], "mpi": "m", "pmi": "pmi2"}
    profile = Profile.model_validate({**SITE, "mpi": mpi, "partitions": {"batch": partition}})
    wrong = Finding("link.missing", ERROR, "/bin/true", "it needs libgone.so", "add it")
    monkeypatch.setattr(uncaptured, "RULES", (lambda _: iter([wrong]),))
    packed = pack.pack(contents(rootfs), [profile], tmp_path / "b.tar")
    checked = packed.plans[0].checked
    assert {("facts.mpi", verdict.MISSING_FACTS), ("link.missing", ERROR)} <= set(codes(checked.findings))
    assert checked.verdict == "REFUSE"


@pytest.mark.parametrize(("words", "expected"), [
    (["x", "/deployer/data/set/train.csv", "--out=/deployer/job/y"], []),
    (["x", "--data=/deployer/data/set"], []),
    (["sh", "-c", "x /deployer/data/set/tr*.csv /deployer/data/set/$N /deployer/data/shared/any"], []),
    (["x", "/deployer/data/sets/train.csv"], [("data.missing", ERROR)]),
    (["x", "--data", "/deployer/data/set/tset.csv"], [("data.missing", WARNING)]),
    (["sh", "-c", "cat /deployer/data/gone/* /deployer/data/gone/x"], [("data.missing", ERROR)] * 2),
])  # fmt: skip
def test_arguments_below_the_data_folders_are_compared(words: list[str], expected: list[tuple[str, str]]) -> None:
    members = [BundleMember("deployer/data/set/train.csv", 0, 0o644)]
    job = Job("t", words, 1, 1, 1, "00:01:00")
    manifest = manifest_of(members)._replace(jobs=[job], needs=(DataNeed("shared", "other:1"),))
    assert codes(command.readable(case(manifest=manifest))) == expected


@pytest.mark.thorough
def test_what_one_job_has_is_that_job_s(rootfs: Path, tmp_path: Path) -> None:
    """One job's error refused all jobs. What all jobs have is said once."""
    good = Job("a", ["true"], 1, 1, 1, "00:01:00")
    wrong = [good._replace(name="b", command=["gone"]), good._replace(name="c", memory=9_000)]
    three = contents(rootfs)._replace(jobs=[good, *wrong])
    packed = pack.pack(three, [Profile.model_validate(SITE)], tmp_path / "b.tar", checking=Checking([commands.CODE]))
    checked = verdict.judged(packed.plans[0].checked.findings)  # type: ignore[union-attr]
    found = [(finding.code, finding.job) for finding in checked.findings]
    assert found == [("proof.outside", ""), ("command.missing", "b"), ("job.memory", "c")]
    assert [checked.of_job(name).verdict for name in "abc"] == ["RUN", "REFUSE", "REFUSE"]
    assert checked.said == "REFUSE for job b, c"
    profile = Profile.model_validate(SITE)
    (one,) = check.check_all(str(packed.path), profile, job="a")
    assert (one.checked.verdict, one.checked.said) == ("RUN", "RUN")
    with pytest.raises(UsageError, match="no job d"):
        check.check_all(str(packed.path), profile, job="d")


def test_a_profile_of_another_architecture(rootfs: Path, tmp_path: Path) -> None:
    """Its libraries are for another machine as well: one finding says it, not one for each."""
    path, library = "/opt/mpi", lib("libmpi.so.12", exports=HAS)
    foreign = library._replace(dynamic=library.dynamic._replace(machine=183))
    mpi = {"m": {"family": "mpich", "prefix": path, "says": "MPICH", "files": {"lib/libmpi.so.12": foreign.record()}}}
    partition = {**SITE["partitions"]["batch"], "mpi": "m", "pmi": "pmi2"}
    arm = {**SITE, "architecture": "aarch64", "mpi": mpi, "partitions": {"batch": partition}}
    fits = {**arm, "architecture": "x86_64"}  # which the libraries are not, but nothing calls MPI
    packed = pack.pack(contents(rootfs), [Profile.model_validate(fits)], tmp_path / "b.tar")
    found = check.check_all(str(packed.path), Profile.model_validate(arm))[0].checked
    assert (found.verdict, codes(found.findings)) == (
        verdict.REFUSE,
        [("node.architecture", ERROR), ("proof.outside", NOTE)],
    )
    assert check.check_all(str(packed.path), Profile.model_validate(fits))[0].checked.verdict == verdict.RUN


@pytest.mark.thorough
@pytest.mark.parametrize("machine", [62, 183])
def test_a_kit_for_another_machine(rootfs: Path, tmp_path: Path, machine: int) -> None:
    """Bundles of older versions have a kit for x86_64, whatever the image is for."""
    (tmp_path / "proot").write_bytes(b"\x7fELF\2\1\1" + bytes(9) + bytes([2, 0, machine, 0]) + bytes(100))
    (tmp_path / "text").write_text("")
    carried = {f"deployer/kit/{name}": tmp_path / name for name in ("proot", "text")}
    packed = pack.pack(contents(rootfs)._replace(carried=carried), [], tmp_path / "b.tar")
    expected = [] if machine == 62 else [("node.architecture", ERROR, "deployer/kit/proot")]
    for nodes in ("x86_64", None):  # by default, the nodes are those of the image
        profile = Profile.model_validate({**SITE, "architecture": nodes})
        found = check.check_all(str(packed.path), profile)[0].checked.findings
        found = [each for each in found if each.code == "node.architecture"]
        assert [(each.code, each.severity, each.subject) for each in found] == expected


@pytest.mark.thorough
def test_the_image_has_a_place_for_what_is_bound(rootfs: Path, tmp_path: Path) -> None:
    mpi = {"m": {"family": "mpich", "prefix": "/opt/mpi"}}
    partition = {**SITE["partitions"]["batch"], "mpi": "m", "pmi": "pmi2"}
    profile = Profile.model_validate({**SITE, "mpi": mpi, "partitions": {"batch": partition}})

    def found(packed: Path) -> list[Finding]:
        return [each for each in check.check_all(str(packed), profile)[0].checked.findings if each.code == "bind.place"]

    assert found(pack.pack(contents(rootfs), [profile], tmp_path / "for.tar").path) == []
    (finding,) = found(pack.pack(contents(rootfs), [], tmp_path / "other.tar").path)
    assert (finding.severity, finding.subject) == (ERROR, "/opt/mpi")
    assert finding.remedy == f"pack it with --site {profile.name}"
    asked = contents(rootfs)._replace(mount_points=["/opt/mpi/of/the/site"])
    assert found(pack.pack(asked, [], tmp_path / "asked.tar").path) == []


def test_an_image_of_before_has_no_place_for_single_files() -> None:
    link = HostFile("lib/libmpich.so.12", LINK, "/opt/mpi/lib/libmpi.so.12", "Debian's name")
    there = {**IMAGE_FILES, PREFIX + "/x": None, FOLDER + "/x": None}
    single = PLAN._replace(host=(link,))
    assert codes(places.bound(case(files=there, plan=single))) == []
    before = {**IMAGE_FILES, PREFIX + "/x": None}
    assert codes(places.bound(case(files=before))) == []
    (finding,) = places.bound(case(files=before, plan=single))
    assert (finding.subject, "pack it again" in finding.remedy) == (FOLDER, True)


def test_a_place_that_is_a_link_is_none() -> None:
    leads = Index({**index(IMAGE_FILES).entries, "/opt": Indexed(LINK, "/srv"), "/srv": Indexed("folder"),
                   "/srv/intel": Indexed("folder")}, {})  # fmt: skip
    plan = PLAN._replace(binds=[Bind("/opt/intel", "/opt/intel", "MPI")])
    (finding,) = places.bound(case(plan=plan)._replace(image=leads))
    assert finding.message.startswith("/opt is a link in the image, to /srv, but the plan binds")


def test_what_an_image_without_python_does_not_prove_is_stated_before() -> None:
    (finding,) = runtimes.proving(case(manifest=manifest_of([], python=None)))
    assert (finding.code, finding.severity) == ("proof.outside", NOTE)
    assert "are not proven" in finding.message
    assert list(runtimes.proving(case(manifest=manifest_of([], python="/usr/bin/python3")))) == []


@pytest.mark.parametrize(
    ("image", "job", "found"),
    [
        ("/", None, []),
        ("", None, []),
        ("/", "/deployer/job/run", []),
        ("/", "/data/x", []),
        ("/", PREFIX + "/lib", []),  # the site's, bound
        ("/opt/model", None, [("workdir.read-only", NOTE)]),
        ("/opt/model", "/deployer/job", []),
        ("/", "/gone", [("workdir.missing", ERROR)]),
        ("/", "/data-x", [("workdir.missing", ERROR)]),
    ],
)
def test_where_a_job_starts(image: str, job: str | None, found: list[tuple[str, str]]) -> None:
    manifest = manifest_of([], workdir=image)._replace(jobs=[Job("train", ["true"], 1, 1, 1, "1:00:00", job)])
    files = {**IMAGE_FILES, "/opt/model/x": None}
    plan = PLAN._replace(binds=[Bind(PREFIX, PREFIX, "MPI")])
    assert codes(places.working(case(files=files, manifest=manifest, plan=plan))) == found


def test_a_site_without_a_plan_is_a_verdict(rootfs: Path, tmp_path: Path) -> None:
    packed = pack.pack(contents(rootfs)._replace(mpi=["openmpi"]), [], tmp_path / "b.tar")
    unknown = Profile.model_validate({**SITE, "workspace": None})
    assert codes(check.check_all(str(packed.path), unknown)[0].checked.findings) == [("facts.plan", UNKNOWN)]
    partition = {**SITE["partitions"]["batch"], "mpi": "m", "pmi": "pmi2"}
    other = {**SITE, "mpi": {"m": {"family": "mpich", "prefix": "/opt/mpi"}}, "partitions": {"batch": partition}}
    found = check.check_all(str(packed.path), Profile.model_validate(other))[0].checked
    assert (found.verdict, codes(found.findings)) == (verdict.REFUSE, [("plan.refused", ERROR)])
    accepted = check.check_all(str(packed.path), Profile.model_validate(other), Checking(["plan.refused"]))[0].checked
    assert accepted.verdict == verdict.WARN
    with pytest.raises(UsageError, match=r"no rule has the code x\.y"):
        check.check_all(str(packed.path), unknown, Checking(["x.y"]))[0]


def test_a_job_whose_program_is_not_in_the_bundle() -> None:
    def found(*words: str, stdin: str | None = None, **changes: Any) -> list[tuple[str, str]]:
        files = {**index(IMAGE_FILES).entries}
        files["/usr/bin/python3"] = files["/usr/bin/python3"]._replace(executable=True)
        manifest = manifest_of([])._replace(jobs=[Job("t", list(words), 1, 1, 1, "00:01:00", stdin=stdin)])
        made = case(manifest=manifest, **changes)._replace(image=Index(files, {}))
        return codes(command.startable(made))

    assert found("python3", "x.py") == []
    assert found("python", "x.py") == [("command.missing", ERROR)]
    assert found("python3", "x.py", stdin="/deployer/app/in") == [("command.missing", ERROR)]
    assert found("python3", "x.py", stdin="/usr/bin/python3") == []
    app = Overlay(plans.APP, Index({"/x.py": Indexed("file", "/usr/bin/python3")}, {}))
    assert found("/deployer/app/x.py", overlays=[app]) == [("command.missing", ERROR)]  # it may not be executed
    wheel_ = Overlay(plans.WHEELS + "/lib", Index({}, {}, ["trainer"]))
    assert found("trainer", overlays=[wheel_]) == []
    host = PLAN._replace(host=(HostFile("bin/nvidia-smi", "file", "/usr/bin/nvidia-smi", "the driver's"),))
    assert found("nvidia-smi") == [("command.missing", ERROR)]
    assert found("nvidia-smi", plan=host) == []
    assert found(f"{PREFIX}/bin/IMB-MPI1") == []  # of the site's MPI, which is bound


@pytest.mark.thorough
def test_pack_and_check_refuse_a_missing_program(rootfs: Path, tmp_path: Path) -> None:
    profile = Profile.model_validate(SITE)
    wrong = contents(rootfs)._replace(jobs=[Job("t", ["untrue"], 1, 1, 1, "00:01:00")])
    with pytest.raises(Refused, match="no untrue in its PATH"):
        pack.pack(wrong, [profile], tmp_path / "b.tar")
    accepted = Checking(["command.missing"])
    packed = pack.pack(wrong, [profile], tmp_path / "b.tar", checking=accepted)
    (plan,) = packed.plans
    assert plan.checked.verdict == "WARN"
    checked = check.check_all(str(packed.path), profile)[0].checked
    assert checked.verdict == "REFUSE"
    found = [each.code for each in checked.findings]
    assert found == ["command.missing", "proof.outside"]  # and link.program says no more


def test_what_a_wheel_brings_is_run_by_the_images_python() -> None:
    manifest = manifest_of([])._replace(jobs=[Job("t", ["horovodrun"], 1, 1, 1, "00:01:00")])
    overlays = [Overlay(plans.VARIANT + "/lib", Index({}, {}, ["horovodrun"]))]
    (linked,) = jobs.link(manifest, PLAN, index(IMAGE_FILES), overlays, {})
    assert [each.name for each in linked.processes] == ["/usr/bin/python3"]


TORCH = "/usr/lib/python3/dist-packages/torch/lib/libtorch_cuda.so"
ATTENTION = "/usr/lib/python3/dist-packages/flash_attn.so"
BLAS = "/usr/lib/python3/dist-packages/nvidia/cublas/lib/libcublasLt.so.12"
NCCL = "/usr/lib/python3/dist-packages/nvidia/nccl/lib/libnccl.so.2"
CUDNN = "/usr/lib/python3/dist-packages/nvidia/cudnn/lib/libcudnn_ops.so.9"
OTHER_NCCL, CUDNN_8 = "/usr/lib/libnccl.so.2", "/usr/lib/libcudnn_ops_infer.so.8"
DEBIAN_NCCL, DEBIAN_CUDNN = "/usr/lib/libnccl.so.2.20.5", "/usr/lib/libcudnn_ops.so.9.1.0"
CUDNN_PART = "/usr/lib/python3/dist-packages/nvidia/cudnn/lib/libcudnn_engines_runtime_compiled.so.9"


@pytest.mark.parametrize(
    ("found", "capability", "expected"),
    [
        ({TORCH: ["sm_70", "sm_80"]}, "7.0", []),
        ({TORCH: ["sm_80", "sm_90"]}, "7.0", [("gpu.kernels", ERROR)]),
        ({TORCH: ["sm_80", "compute_60"]}, "7.0", []),
        ({TORCH: ["sm_80"]}, "9.0", [("gpu.kernels", ERROR)]),  # newer than all, and no PTX
        ({TORCH: ["sm_70"], ATTENTION: ["sm_90"]}, "7.0", [("gpu.kernels", WARNING)]),
        ({ATTENTION: ["sm_90"]}, "7.0", [("gpu.kernels", ERROR)]),  # there is no other
        ({TORCH: ["sm_70"], BLAS: ["sm_90"]}, "7.0", []),  # CUDA's own: gpu.capability
        ({BLAS: ["sm_90"]}, "7.0", []),
        ({TORCH: ["sm_70"], CUDNN: ["sm_75", "compute_120"]}, "7.0", [("gpu.kernels", ERROR)]),  # cuDNN 9.28
        ({TORCH: ["sm_70"], CUDNN_8: ["sm_75"]}, "7.0", [("gpu.kernels", ERROR)]),
        ({TORCH: ["sm_70"], CUDNN_PART: ["sm_75"]}, "7.0", []),
        ({TORCH: ["sm_50"], NCCL: ["sm_60", "sm_70"]}, "5.2", [("gpu.kernels", ERROR)]),  # NCCL 2.32
        ({TORCH: ["sm_50"], NCCL: ["sm_60"], OTHER_NCCL: ["sm_50"]}, "5.2", [("gpu.kernels", WARNING)]),
        ({TORCH: ["sm_70"], CUDNN: ["sm_70"], DEBIAN_CUDNN: ["sm_75"]}, "7.0", [("gpu.kernels", WARNING)]),
        ({TORCH: ["sm_70"], CUDNN: ["sm_75"], DEBIAN_CUDNN: ["sm_70"]}, "7.0", [("gpu.kernels", WARNING)]),
        ({TORCH: ["sm_70"], CUDNN: ["sm_75"], CUDNN_8: ["sm_70"]}, "7.0", [("gpu.kernels", ERROR)]),
        ({ATTENTION: ["sm_90"], NCCL: ["sm_70"]}, "7.0", [("gpu.kernels", ERROR)]),  # NCCL alone computes nothing
        ({TORCH: ["sm_70"]}, None, [("facts.gpu", UNKNOWN)]),
        ({}, None, []),
    ],
)
def test_kernels_and_gpus(found: dict[str, list[str]], capability: str | None, expected: list[tuple[str, str]]) -> None:
    files = {**index({**IMAGE_FILES, **dict.fromkeys(found, lib())}).entries}
    files |= {path: files[path]._replace(kernels=kernels) for path, kernels in found.items()}
    made = case({"node": {"gpus": {"kind": "nvidia", "capability": capability}}})._replace(image=Index(files, {}))
    assert codes(gpu.kernels(made)) == expected
    assert codes(gpu.kernels(made._replace(partition=case({"node": {}}).partition))) == []


HIP_TORCH = "/usr/lib/python3/dist-packages/torch/lib/libtorch_hip.so"
RCCL = "/usr/lib/python3/dist-packages/torch/lib/librccl.so"
TENSILE = "/usr/lib/python3/dist-packages/torch/lib/rocblas/library/Kernels.so-000-{}-xnack-.hsaco"
HIPBLASLT = "/opt/rocm/lib/hipblaslt/library/{}/Kernels.so-000.hsaco"
ROCFFT = "/usr/lib/python3/dist-packages/torch/lib/librocfft.so.0"


@pytest.mark.parametrize(
    ("found", "target", "expected"),
    [
        ({HIP_TORCH: ["gfx908", "gfx90a:xnack-"]}, "gfx90a", []),
        ({HIP_TORCH: ["gfx1030", "gfx1100"]}, "gfx90a", [("gpu.kernels", ERROR)]),
        ({HIP_TORCH: ["gfx90a"], ATTENTION: ["gfx942"]}, "gfx90a", [("gpu.kernels", WARNING)]),
        ({HIP_TORCH: ["gfx90a"], RCCL: ["gfx942"]}, "gfx90a", [("gpu.kernels", ERROR)]),
        ({ATTENTION: ["gfx942"], RCCL: ["gfx90a"]}, "gfx90a", [("gpu.kernels", ERROR)]),  # RCCL alone computes nothing
        ({HIP_TORCH: ["gfx90a"], ROCFFT: ["gfx1100"]}, "gfx90a", []),  # ROCm's own
        ({HIP_TORCH: ["gfx90a"], TENSILE.format("gfx942"): []}, "gfx90a", [("gpu.kernels", ERROR)]),
        ({HIP_TORCH: ["gfx90a"], TENSILE.format("gfx942"): [], TENSILE.format("gfx90a"): []}, "gfx90a", []),
        ({HIP_TORCH: ["gfx90a"], HIPBLASLT.format("gfx942"): []}, "gfx90a", [("gpu.kernels", WARNING)]),
        ({HIP_TORCH: ["gfx90a"], ATTENTION: ["sm_90"]}, "gfx90a", []),  # for another vendor
        ({HIP_TORCH: ["gfx90a"]}, None, [("facts.gpu", UNKNOWN)]),
        ({ATTENTION: ["sm_90"]}, None, []),
    ],
)
def test_kernels_and_gpus_of_amd(found: dict[str, list[str]], target: str | None, expected: list[Any]) -> None:
    files = {**index({**IMAGE_FILES, **dict.fromkeys(found, lib())}).entries}
    files |= {path: files[path]._replace(kernels=kernels) for path, kernels in found.items()}
    gpus = {"kind": "amd", "model": "Instinct MI250X", "target": target}
    findings = list(gpu.kernels(case({"node": {"gpus": gpus}})._replace(image=Index(files, {}))))
    assert codes(findings) == expected
    if expected and target:
        assert "the GPUs of batch are gfx90a (AMD Instinct MI250X): HIP finds no code object" in findings[0].message


@pytest.mark.parametrize(
    ("driver", "path", "expected"),
    [
        ("6.3.6", "/opt/rocm-6.2.4/lib/libamdhip64.so.6", None),
        ("6.3.6", "/opt/rocm-6.4.1/lib/libamdhip64.so.6", "ROCm 5.6 to 6.2; the image has ROCm 6.4"),
        ("6.16.13", "/usr/lib/libamdhip64.so.5.7.31921", "ROCm 6.3 to 7.2; the image has ROCm 5.7"),
        ("6.8.5", "/opt/v/torch-2.9.1+rocm7.2.0.dist-info/METADATA", "ROCm 6.0 to 6.4; the image has ROCm 7.2"),
        ("6.8.5", "/opt/rocm-10.0.0/lib/libamdhip64.so.10", None),  # newer than the matrix
        (None, "/opt/rocm-6.4.1/lib/libamdhip64.so.6", None),  # the kernel's own, without a version
    ],
)
def test_the_release_of_rocm_and_the_kernels_driver(driver: str | None, path: str, expected: str | None) -> None:
    place = {"node": {"gpus": {"kind": "amd"}}, "driver": {"kind": "amd", "version": driver}}
    found = list(gpu.usable(case(place, {**IMAGE_FILES, path: lib()})))
    assert codes(found) == ([("gpu.driver", WARNING)] if expected else [])
    assert not expected or expected in found[0].message


def test_sycl_finds_gpus_with_level_zero() -> None:
    place = {"node": {"gpus": {"kind": "intel"}}}
    image = {**IMAGE_FILES, "/opt/libsycl.so.8": lib(), "/usr/lib/libze_loader.so.1": lib()}
    (finding,) = gpu.usable(case(place, image))
    assert (finding.code, finding.severity) == ("gpu.driver", ERROR)
    assert "but not libze_intel_gpu.so.1, with which" in finding.message
    assert list(gpu.usable(case(place, {**image, "/usr/lib/libze_intel_gpu.so.1": lib()}))) == []
    bound = PLAN._replace(host=(HostFile("lib/libze_intel_gpu.so.1", "file", "/usr/lib64/libze_intel_gpu.so.1", "x"),))
    assert list(gpu.usable(case(place, image, plan=bound))) == []
    assert list(gpu.usable(case(place, IMAGE_FILES))) == []


HOROVOD = "/usr/lib/python3/dist-packages/horovod/tensorflow/mpi_lib.cpython-311-x86_64-linux-gnu.so"
NEW = ["sm_70", "compute_90", "ptx_9.0"]


@pytest.mark.parametrize(
    ("found", "driver", "capability", "expected"),
    [
        # CUDA 13's run time is in the file: any driver of that release, whatever the kernels are for
        ({HOROVOD: ["sm_75", "sm_80", "compute_90", "ptx_9.0"]}, "570.26", "8.0", [("gpu.driver", ERROR)]),
        ({HOROVOD: ["sm_75", "sm_80", "compute_90", "ptx_9.0"]}, "580.65", "8.0", []),
        ({HOROVOD: ["sm_70", "compute_90", "ptx_7.8"]}, "470.82", "7.0", []),  # 11.8's code runs with any driver of 11
        ({HOROVOD: ["sm_60", "compute_70", "ptx_7.8"]}, "470.82", "8.0", [("gpu.driver", ERROR)]),  # its PTX does not
        ({HOROVOD: ["sm_60", "compute_70", "ptx_7.8"]}, "520.61", "8.0", []),
        ({TORCH: ["sm_70"], ATTENTION: ["sm_70", "compute_90", "ptx_9.0"]}, "535.54", "7.0", [("gpu.driver", WARNING)]),
        ({NCCL: NEW, DEBIAN_NCCL: ["sm_70", "ptx_7.8"]}, "535.54", "7.0", [("gpu.driver", WARNING)]),
        ({NCCL: NEW, DEBIAN_NCCL: ["sm_80", "ptx_7.8"]}, "535.54", "7.0", [("gpu.driver", ERROR)]),  # not for this GPU
        ({NCCL: NEW, CUDNN: ["sm_70", "ptx_7.8"]}, "535.54", "7.0", [("gpu.driver", ERROR)]),
        ({TORCH: ["sm_70", "compute_70", "ptx_12.0"]}, "535.54", "7.0", []),  # of a release that nobody knows yet
        ({TORCH: ["compute_70", "ptx_8.2"]}, None, "7.0", []),
        ({TORCH: ["sm_60", "compute_60", "ptx_7.8"]}, "470.82", "3.7", []),  # gpu.kernels says it
    ],
)
def test_the_release_of_cuda_that_compiled_kernels_needs_its_driver(
    found: dict[str, list[str]], driver: str | None, capability: str, expected: list[tuple[str, str]]
) -> None:
    files = {path: Indexed("file", kernels=kernels) for path, kernels in found.items()}
    place = {"node": {"gpus": {"kind": "nvidia", "capability": capability}}}
    made = case({**place, "driver": {"kind": "nvidia", "version": driver}} if driver else place)
    assert codes(gpu.toolkit(made._replace(image=Index(files, {})))) == expected


def test_the_highest_release_of_several_run_times_counts_for_the_driver() -> None:
    files = {f"/opt/{number}/libcudart.so.{number}": lib(f"libcudart.so.{number}") for number in (13, 11, 12)}
    made = case(
        {"driver": {"kind": "nvidia", "version": "535.104"}, "node": {"gpus": {"capability": "5.2"}}},
        {**IMAGE_FILES, **files},
    )
    (finding,) = gpu.usable(made)
    assert finding.code == "gpu.driver"
    assert "/opt/13/libcudart.so.13" in finding.message


def test_kernels_of_horovod_are_needed() -> None:
    files = {TORCH: Indexed("file", kernels=["sm_70"]), HOROVOD: Indexed("file", kernels=["sm_75"])}
    made = case({"node": {"gpus": {"kind": "nvidia", "capability": "7.0"}}})._replace(image=Index(files, {}))
    assert codes(gpu.kernels(made)) == [("gpu.kernels", ERROR)]


def test_the_kernels_of_a_wheel_count() -> None:
    files = {"/torch/lib/libtorch_cuda.so": Indexed("file", kernels=["sm_80"])}
    made = case({"node": {"gpus": {"kind": "nvidia", "capability": "7.0"}}})
    made = made._replace(overlays=[Overlay(plans.WHEELS + "/lib", Index(files, {}))])
    (finding,) = gpu.kernels(made)
    assert finding.subject == "/deployer/wheels/lib/torch/lib/libtorch_cuda.so"


def test_a_runtime_without_an_adapter_is_refused_with_an_alternative() -> None:
    policy = {"policy": {"runtimes": ["docker"]}, "runtimes": {"docker": {"version": "20.10"}}}
    assert codes(runtimes.allowed(case(plan=PLAN._replace(start_options=[]), **policy))) == [
        ("runtime.unsupported", ERROR)
    ]
    # of an older deployer's plan
    older = PLAN._replace(start_options=[START_OPTION._replace(name="docker-folder", runtime="docker")])
    assert codes(runtimes.allowed(case(plan=older, **policy))) == [("runtime.unsupported", ERROR)]
    assert codes(runtimes.startable(case({"user_namespaces": False}, plan=older, **policy))) == []
    both = {"policy": {"runtimes": ["docker", "udocker"]}}
    fine = PLAN._replace(start_options=[START_OPTION._replace(name="udocker-folder", runtime="udocker")])
    assert codes(runtimes.allowed(case(plan=fine, **both))) == [("runtime.unsupported", NOTE)]


@pytest.mark.thorough
@pytest.mark.parametrize("runtime", get_args(RuntimeName))
@pytest.mark.parametrize("listed", [True, False], ids=["on the nodes", "in the policy"])
def test_each_runtime_of_a_profile_is_known_to_run_or_refused(runtime: str, listed: bool, bundle: Path) -> None:
    has = {"runtimes": {runtime: {}} if listed else {}}
    carried = [known.policy_name for known in runtime_table.TABLE if known.carried]
    if not listed and runtime_table.supported(runtime) and runtime not in carried:
        with pytest.raises(ValidationError, match="no runtime that the policy allows is on the site"):
            Profile.model_validate({**SITE, "policy": {"runtimes": [runtime]}, **has})
        return
    profile = Profile.model_validate({**SITE, "policy": {"runtimes": [runtime]}, **has})
    [made] = check.all_plans(str(bundle), profile, Checking(cache=bundle.parent / "cache"))
    assert made.checked
    checked = made.checked
    assert {option.runtime for option in made.start_options} <= set(runtime_table.SUPPORTED)
    refused = [each.code for each in checked.against] == ["runtime.unsupported"]
    assert refused is (runtime not in runtime_table.SUPPORTED)
    if refused:
        (finding,) = checked.against
        assert runtime in finding.message
        assert finding.remedy.startswith("allow ")


# ------------------------------------------------------------------------------------- arguments of the site's runtime


def parted(*words: str, ranks: int = 2, nodes: int = 1, plan: Plan = PLAN, runtime: str = "apptainer") -> list[Finding]:
    """Return the findings on a job whose ranks a runtime starts with these arguments; "" has a start option of none."""
    options = [START_OPTION._replace(runtime=runtime, arguments=(word,) if word else ()) for word in words]
    of = Job("t", ["python3"], nodes, ranks, 1, "00:01:00")
    linked = jobs.LinkedJob(of, [started()])
    return list(runtimes.private(linked, case(plan=plan._replace(start_options=options))))


@pytest.mark.parametrize("word", [
    "--scratch=/dev/shm", "--scratch=/a,/dev/shm", "-S=/dev/shm", "-S/dev/shm/", "--contain", "--containall=true", "-C",
    "--compat",
])  # fmt: skip
def test_ranks_with_a_dev_shm_of_their_own(word: str) -> None:
    """Seen with Apptainer 1.4.5: MPI_Init fails or hangs with Intel MPI 2021.15 and MPICH 4.2.3."""
    (found,) = parted(word)
    assert (found.code, found.severity) == ("runtime.private", ERROR)
    assert word in found.message
    assert found.remedy == "remove it from runtimes.apptainer.arguments in the site's profile"
    assert parted(word, ranks=1) == []
    assert parted(word, runtime="charliecloud") == []
    assert codes(parted("", word)) == [("runtime.private", UNKNOWN)]
    assert codes(parted(word, plan=PLAN._replace(abi="openmpi"))) == [("runtime.private", UNKNOWN)]
    assert parted(word, plan=PLAN._replace(launch=plans.INSIDE)) == []


@pytest.mark.parametrize("word", ["--scratch=/work", "--ipc", "--no-mount=hostfs", "--contain=false", "--userns"])
def test_arguments_that_leave_ranks_together(word: str) -> None:
    """Seen: --ipc runs."""
    assert parted(word, nodes=2) == []


def test_ranks_with_a_network_of_their_own() -> None:
    assert codes(parted("--net", nodes=2)) == [("runtime.private", UNKNOWN)]
    assert codes(parted("--network=bridge", nodes=2, runtime="podman")) == [("runtime.private", UNKNOWN)]
    assert parted("--network=host", nodes=2) == parted("--net") == []
