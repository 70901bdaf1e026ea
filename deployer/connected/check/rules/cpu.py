"""Rules for the processor: that nodes support the instructions and page sizes that programs were built for.

Sources: x86-64 psABI, "Micro-Architecture Levels"; glibc's loader, which refuses a file whose note requires more;
TensorFlow's installation guide (its wheels use AVX); glibc, elf/dl-map-segments.h and elf/dl-load.c ("ELF load command
alignment not page-aligned"); Linux, fs/binfmt_elf.c; jemalloc, INSTALL.md, "--with-lg-page".
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.connected.linker.code.instructions import BEYOND, Instructions
from deployer.connected.linker.code.jemalloc import UNKNOWN
from deployer.connected.linker.index import Bundle
from deployer.connected.linker.process import Process
from deployer.connected.site_profile.profile import Partition
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import KIT_PREFIX, Manifest
from deployer.contract.elf.machines import AARCH64, BY_OCI, X86_64, kernel_name, of_elf
from deployer.contract.rules.findings import ERROR, WARNING, Finding

#: The flags of each level, limited to the flags that a profile records (``site.capture.node.FLAGS``).
_LEVELS: Mapping[int, frozenset[str]] = {
    2: frozenset({"sse4_1", "sse4_2"}),
    3: frozenset({"sse4_1", "sse4_2", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma"}),
}
_LEVELS = {**_LEVELS, 4: _LEVELS[3] | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}}

#: The page size of all x86_64 nodes and of most others, and the largest on AArch64.
_SMALLEST, _LARGEST = 4096, 65536

#: Libraries that use instructions without checking for them: names, flags, and the package that they belong to.
_LIBRARIES = (
    (re.compile(r"^libtensorflow_(cc|framework)\.so(\.\d+)*$"), frozenset({"avx"}), "TensorFlow's wheel"),
    (re.compile(r"^libitex_cpu_internal_avx2\.so$"), frozenset({"avx2"}), "Intel's Extension for TensorFlow"),
)
#: Libraries that a program may load or call only on suitable processors: libfoo-avx2.so.
_NAMED_FOR_A_SET = re.compile(
    r"avx|haswell|skylake|skx|knl|zen\d|x86-64-v[34]|sve|neoverse|a64fx|armv[89]", re.IGNORECASE
)
#: The compiler option for the oldest processors, by machine.
_OLD = {X86_64.number: "-march=x86-64-v2", AARCH64.number: "-march=armv8-a"}


def architecture(case: Case) -> Iterator[Finding]:
    """node.architecture: the image is for another kind of processor."""
    image, node = machines(case.partition, case.manifest)
    if image != node:
        text = f"its nodes are {node}, and the image is for {image}"
        remedy = f"build it for {node}: `architecture: {node}` in a Debian base, or a base image for {node}"
        yield Finding("node.architecture", ERROR, case.plan.partition, text, remedy)


def machines(partition: Partition, manifest: Manifest) -> tuple[str, str]:
    """Return the machines, by the kernel's names, of the image and of the nodes.

    If one of them is unknown, it is assumed to equal the other.
    """
    image = kernel_name(manifest.image.architecture)
    return image or partition.architecture or "", partition.architecture or image or ""


def kit(bundle: Bundle, partition: str, node: str) -> Iterator[Finding]:
    """node.architecture: a program or library of the kit is for another kind of processor than the nodes.

    Args:
        partition: the partition, for the message.
        node: the processor of its nodes, by the kernel's name; empty: unknown.
    """
    manifest = bundle.manifest
    for name, segments in sealed_file.contents(manifest.members, manifest.segments).items():
        own = of_elf(bundle.read(segments[0])) if segments and name.startswith(KIT_PREFIX) else None
        if own and node and own.kernel != node:
            text = f"it is for {own.kernel}, and the nodes of {partition} are {node}"
            yield Finding("node.architecture", ERROR, name, text, "pack the bundle again")
            return  # the others are for the same


def instructions(case: Case) -> Iterator[Finding]:
    """cpu.instructions, facts.cpu: files that a job loads use instructions that the nodes lack."""
    if case.manifest.image.architecture != "amd64":
        return
    flags = case.cpu_flags
    for demand, (path, what) in _demands(case).items():
        if flags is None:
            text = f"{path} ({what}) needs {_shown(demand)}, but the processors of the nodes are unknown"
            yield Finding("facts.cpu", MISSING_FACTS, case.plan.partition, text, CAPTURE)
        elif demand - set(flags):
            text = f"{what} needs {_shown(demand - set(flags))}, which the nodes of {case.plan.partition} do not have"
            remedy = "choose a partition with newer processors, or a package that was built for older ones"
            yield Finding("cpu.instructions", ERROR, path, text, remedy)


def code(case: Case, process: Process) -> Iterator[Finding]:
    """cpu.instructions, facts.cpu: the code of a program, or of a file that it maps, uses instructions the nodes lack.

    ``instructions`` reports files whose note or name states this.
    """
    flags = case.cpu_flags
    known = BY_OCI.get(case.manifest.image.architecture)
    if known is None or set(BEYOND.get(known.number, ())) <= set(flags or ()):
        return
    indexes = {id(files): files.code for _, files in case.layers}
    for loaded in process.loader.objects:
        where, inner = process.view.identity(loaded.path)
        facts = indexes.get(where) if loaded.dynamic.machine == known.number else None
        if facts is None or loaded.facts.level in _LEVELS or _libraries(loaded.path):
            continue
        severity, sets = lacking(facts.of(inner), loaded.path, loaded is process.program, flags or ())
        if flags is None and severity == ERROR and sets:
            text = f"{loaded.path} was compiled for {_shown(sets)}, but the processors of the nodes are unknown"
            yield Finding("facts.cpu", MISSING_FACTS, case.plan.partition, text, CAPTURE)
        elif flags is not None and sets:
            text = (
                f"its code uses {_shown(sets)} without asking the processor, and the nodes of {case.plan.partition} do "
                "not have it: the program ends with SIGILL (illegal instruction)"
            )
            remedy = f"compile it for older processors ({_OLD[known.number]}), or choose a partition with newer ones"
            yield Finding("cpu.instructions", severity, loaded.path, text, remedy)


def page_size(case: Case, process: Process) -> Iterator[Finding]:
    """cpu.page-size, facts.cpu: a program, or a file that it maps, cannot be used with the nodes' large pages."""
    indexes = {id(files): files.code for _, files in case.layers}
    size, where = case.partition.page_size, case.plan.partition
    for loaded in process.loader.objects:
        layer, inner = process.view.identity(loaded.path)
        pages, facts = loaded.facts.pages, indexes.get(layer)
        if size is None and pages:
            text = f"{loaded.path} can be mapped only with pages of up to {pages} bytes; those of the nodes are unknown"
            yield Finding("facts.cpu", MISSING_FACTS, where, text, CAPTURE)
        elif size is not None and 0 < pages < size:
            text = (
                f"its segments are aligned to {pages} bytes, and the nodes of {where} have pages of {size} bytes: "
                "it cannot be mapped"
            )
            yield Finding("cpu.page-size", ERROR, loaded.path, text, f"link it with -z max-page-size={_LARGEST}")
        elif size is not None and size > _SMALLEST and facts and loaded.dynamic.machine == AARCH64.number:
            yield from _of_jemalloc(facts.jemalloc(inner), size, where, loaded.path)


def _of_jemalloc(built_for: int, size: int, partition: str, path: str) -> Iterator[Finding]:
    remedy = "use a newer release of it, or build it with --with-lg-page=16 (Rust: JEMALLOC_SYS_WITH_LG_PAGE=16)"
    if 0 < built_for < size:
        text = (
            f"its jemalloc was built for pages of {built_for} bytes, and the nodes of {partition} have pages of {size} "
            'bytes: it ends with "<jemalloc>: Unsupported system page size"'
        )
        yield Finding("cpu.page-size", ERROR, path, text, remedy)
    elif built_for == UNKNOWN:
        text = f"it contains jemalloc, which may not support the pages of {size} bytes of the nodes of {partition}"
        yield Finding("cpu.page-size", WARNING, path, text, remedy)


def lacking(instructions: Instructions, path: str, is_program: bool, flags: Sequence[str]) -> tuple[str, set[str]]:
    """Return the severity, and the instruction sets that a mapped file uses and a node with these flags lacks.

    A library that queries the processor, or is named for an instruction set, may use the set only in functions that
    are chosen at run time.
    """
    certain = {*(instructions.whole if is_program or not instructions.asks else ()), *instructions.in_main} - set(flags)
    possible = set() if instructions.asks else set(instructions.used) - set(flags)
    is_chosen = not is_program and _NAMED_FOR_A_SET.search(posixpath.basename(path))
    return ERROR if certain and not is_chosen else WARNING, certain or possible


def _libraries(path: str) -> list[tuple[frozenset[str], str]]:
    return [(flags, what) for pattern, flags, what in _LIBRARIES if pattern.match(posixpath.basename(path))]


def _demands(case: Case) -> dict[frozenset[str], tuple[str, str]]:
    """Return the required sets of flags, each with the first file that requires it and the reason."""
    demands: dict[frozenset[str], tuple[str, str]] = {}
    for process in case.processes:
        for loaded in process.loader.objects:
            flags = _LEVELS.get(loaded.facts.level)
            if flags:
                demands.setdefault(flags, (loaded.path, f"built for x86-64-v{loaded.facts.level}"))
    for path in (path for _, files in case.layers for path, entry in files.entries.items() if entry.facts):
        for flags, what in _libraries(path):
            demands.setdefault(flags, (path, what))
    return demands


def _shown(flags: Iterable[str]) -> str:
    return ", ".join(sorted(flags))
