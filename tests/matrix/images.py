"""The images: Debian of two suites, with a program that does a checked Allreduce, linked in ways that are met."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from deployer.connected.bundle import kit, pack, seal, sources
from deployer.connected.ground import caches
from deployer.connected.ground.scratch import Scratch
from deployer.connected.image.definition import definition
from deployer.connected.rootfs import archive, flatten
from deployer.connected.rootfs import folder as folders
from deployer.contract.bundle.job import Job
from deployer.contract.elf.machines import X86_64
from deployer.contract.rules import hostfiles
from deployer.contract.site import plan
from deployer.contract.site.plan import APP
from tests.lab import roots
from tests.lab.engine import take_engine
from tests.lab.kept import kept
from tests.matrix import mpis
from tests.matrix.linked import link_tree
from tests.matrix.machine import EMULATED

_PROGRAMS = Path(__file__).with_name("programs")
_DEFINITIONS = Path(__file__).resolve().parents[2] / "bundles"
_BUILD_S = 3000
#: Where an image has an MPI of its own that is no package of Debian's, and the program.
_OWN = "/usr/local/mpi"
PROGRAM = "/usr/local/bin/allreduce"
_SCRIPT = "/usr/local/lib/allreduce.py"
_PACKAGES = "/usr/local/lib/python3.11/dist-packages"
JOB = "allreduce"


class Image(NamedTuple):
    """An image: a suite, and what its program was built against, ``debian`` or the name of an MPI.

    ``own``: the image has that MPI as well, as most do. ``flags`` are gcc's; ``compiled_on`` is another suite;
    ``definition`` is a folder of bundles/, built by the product; ``trap`` says in words what is wrong with it, if
    something is.
    """

    name: str
    suite: str
    built: str
    own: bool = True
    flags: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    compiler: str = "gcc"
    source: str = "allreduce.c"
    library: str = "mpi"
    compiled_on: str = ""
    command: tuple[str, ...] = (PROGRAM,)
    definition: str = ""
    trap: str = ""

    @property
    def family(self) -> str:
        """Return which family its program is built for; empty where it has modules for both."""
        if self.definition or self.built == "mpi4py-4.1.2":
            return ""
        return "openmpi" if "openmpi" in (self.built + self.compiler) else "mpich"


_RPATH = ("-Wl,--disable-new-dtags", f"-Wl,-rpath,{_OWN}/lib")
_RUNPATH = ("-Wl,--enable-new-dtags", f"-Wl,-rpath,{_OWN}/lib")

IMAGES: tuple[Image, ...] = (
    Image("mpich4", "bookworm", "mpich-4.2.3"),
    Image("mpich4-trixie", "trixie", "mpich-4.2.3"),
    Image("mpich5", "bookworm", "mpich-5.0.2"),
    Image("mpich5-trixie", "trixie", "mpich-5.0.2"),
    Image("mpich4-bare", "bookworm", "mpich-4.2.3", own=False),
    Image("mpich4-runpath", "bookworm", "mpich-4.2.3", flags=_RUNPATH),
    Image("mpich4-rpath", "bookworm", "mpich-4.2.3", flags=_RPATH, trap="DT_RPATH to its own MPI"),
    Image("mpich5-now", "bookworm", "mpich-5.0.2", flags=("-DNEW=MPI_Comm_c2f", "-Wl,-z,now"),
          trap="a function that Intel MPI lacks, bound at once"),
    Image("mpich5-called", "trixie", "mpich-5.0.2", flags=("-DNEW=MPI_Comm_toint", "-Wl,-z,lazy"),
          trap="a function of MPI 5, called, bound lazily"),
    Image("mpich5-lazy", "bookworm", "mpich-5.0.2", flags=("-DNEW=MPI_Comm_toint", "-DRARELY", "-Wl,-z,lazy"),
          trap="a function of MPI 5, never called, bound lazily"),
    Image("mpich5-abi", "bookworm", "mpich-5.0.2", flags=("-DMPI_ABI",), library="mpi_abi",
          trap="the ABI of MPI 5, libmpi_abi.so.1"),
    Image("mpich-debian", "bookworm", "debian", packages=("libmpich12",), compiler="mpicc.mpich",
          trap="Debian's libmpich.so.12"),
    Image("mpich-debian-trixie", "trixie", "debian", packages=("libmpich12",), compiler="mpicc.mpich",
          trap="Debian's libmpich.so.12"),
    Image("intel-2021.11", "bookworm", "intel-2021.11", own=False),
    Image("intel-2021.15", "trixie", "intel-2021.15", own=False),
    Image("intel-2021.18", "bookworm", "intel-2021.18.1"),
    Image("intel-2021.19", "bookworm", "intel-2021.19", own=False),
    Image("openmpi4", "bookworm", "openmpi-4.1.8"),
    Image("openmpi5", "bookworm", "openmpi-5.0.11"),
    Image("openmpi5-trixie", "trixie", "openmpi-5.0.11"),
    Image("openmpi-debian", "bookworm", "debian", packages=("libopenmpi3",), compiler="mpicc.openmpi"),
    Image("openmpi-debian-trixie", "trixie", "debian", packages=("libopenmpi40",), compiler="mpicc.openmpi"),
    Image("openmpi4-rpath", "bookworm", "openmpi-4.1.8", flags=_RPATH, trap="DT_RPATH to its own MPI"),
    Image("openmpi-cxx", "bookworm", "debian", packages=("libopenmpi3",), compiler="mpicxx.openmpi",
          source="allreduce_cxx.cc", trap="Open MPI's C++ library"),
    Image("mpi4py", "bookworm", "mpi4py-4.1.2", command=("python3", _SCRIPT)),
    Image("horovod", "bookworm", "", command=("python3", f"{APP}/horovod_allreduce.py"), definition="digits-horovod"),
    Image("newer-glibc", "bookworm", "mpich-4.2.3", compiled_on="trixie", flags=("-D_GNU_SOURCE",),
          trap="compiled on a newer Debian"),
    Image("no-openmp", "bookworm", "mpich-4.2.3", flags=("-fopenmp", "-Wl,--no-as-needed", "-lgomp"),
          trap="libgomp.so.1 is not there"),
)  # fmt: skip
if EMULATED:  # compiled by a cross compiler, for MPIs that the index has for that processor
    IMAGES = tuple(each for each in IMAGES if each.compiler == "gcc" and each.built and "intel" not in each.built)
BY_NAME = {image.name: image for image in IMAGES}


def rootfs(image: Image) -> Path:
    """Return the image's root filesystem, made now if need be."""
    packages, name = ("python3", *image.packages), "-".join(("image", *image.packages))
    suite = image.compiled_on or image.suite
    if EMULATED:
        base = roots.emulated(image.suite, packages, name, EMULATED)
        compilers = roots.root(suite, roots.CROSS[EMULATED], f"gcc-{EMULATED}")
    else:
        base = roots.root(image.suite, packages, name)
        of_gcc = image.compiler == "gcc"
        compilers = roots.root(suite, *((roots.GCC, "gcc") if of_gcc else (roots.WRAPPERS, "wrappers")))
    tree = None if image.built == "debian" else mpis.tree(image.built)
    binds = [mpi.prefix for mpi in mpis.HOSTS]

    def make(target: Path) -> None:
        link_tree(base, target)
        for target_of_bind in binds:  # plans come when it is packed already
            (target / target_of_bind.lstrip("/")).mkdir(parents=True)
        if image.command != (PROGRAM,):
            shutil.copy(_PROGRAMS / "allreduce.py", target / _SCRIPT.lstrip("/"))
            if tree is None:
                raise AssertionError("a module in Python comes as a wheel")
            shutil.copytree(tree, target / _PACKAGES.lstrip("/"), dirs_exist_ok=True)
            return
        _compile(image, compilers, tree, target.parent)
        shutil.copy(target.parent / "out" / "allreduce", target / PROGRAM.lstrip("/"))
        if tree is not None and image.own:
            own = target / _OWN.lstrip("/")
            for part in ("lib", "etc", "share"):
                if (tree / part).is_dir():
                    link_tree(tree / part, own / part)
            (target / "etc/ld.so.conf.d/mpi.conf").write_text(f"{_OWN}/lib\n")
            roots.run_inside(target, ["/sbin/ldconfig"])

    made_of = [image, base.name, compilers.name, tree and tree.name, _texts(image), binds]
    return kept("images", image.name + EMULATED, made_of, make)


def _compile(image: Image, compilers: Path, tree: Path | None, work: Path) -> None:
    """Compile the program into ``work``/out, in the root of the suite's compilers."""
    out = work / "out"
    shutil.copytree(_PROGRAMS, out)
    binds = [(out, "/mnt")]
    compiler = f"{EMULATED}-linux-gnu-gcc" if EMULATED else image.compiler
    argv = [compiler, "-O1", "-o", "/mnt/allreduce", f"/mnt/{image.source}"]
    if tree is not None:
        (compilers / "srv").mkdir(exist_ok=True)
        binds.append((tree, "/srv"))
        argv += ["-I/srv/include", "-L/srv/lib", "-Wl,-rpath-link,/srv/lib", *image.flags, f"-l{image.library}"]
        argv += ["-Wl,--unresolved-symbols=ignore-in-shared-libs"] if EMULATED else []  # a cross compiler has no libz
    roots.run_inside(compilers, argv, binds)


def kit_members() -> dict[str, Path]:
    """Return the parts of the kit for sites that lack a runtime: each bundle of the matrix has them."""
    if EMULATED:
        return {}
    return {
        name: path
        for part in ("charliecloud", "udocker")
        for name, path in kit.members(part, X86_64.kernel, lambda step: None).items()
    }


def bundle(image: Image) -> Path:
    """Return the image packed with the kit, without a plan; made now if need be."""
    packers = [Path(str(module.__file__)).read_text() for module in (flatten, pack, seal, hostfiles)]
    carried = kit_members()
    made_of = [packers, sorted(map(str, carried.values())), plan.MOUNT_FILES, plan.MOUNT_FOLDERS, image, _texts(image)]
    inputs = [*made_of, None if image.definition else rootfs(image).name]

    def make(target: Path) -> None:
        jobs = [Job(JOB, list(image.command), 2, 1, 1, "00:05:00")]
        path, cache = target / "bundle.tar", caches.FRAMES.folder
        if not image.definition:
            contents = sources.from_folder(rootfs(image), image.name, "1")
            pack.pack(contents._replace(jobs=jobs, carried=carried), (), path, cache=cache)
            return
        with take_engine() as engine:
            os.environ["DOCKER_HOST"] = engine.docker_host
            folder = _DEFINITIONS / image.definition
            deployer = Path(sys.executable).with_name("deployer")
            subprocess.run([deployer, "build", folder], check=True, timeout=_BUILD_S, capture_output=True)
            contents = sources.from_definition(definition.load(folder))
            if contents.read is None:
                raise AssertionError("a definition of an image has one")
            read = functools.partial(_with_places, contents.read, target.parent / "places")
            contents = contents._replace(name=image.name, version="1", jobs=jobs, read=read)
            changed = contents._replace(app=_PROGRAMS, data={}, needs=[], carried={**contents.carried, **carried})
            pack.pack(changed, (), path, cache=cache)

    return kept("bundles", image.name + EMULATED, inputs, make) / "bundle.tar"


def _with_places(
    read: Callable[[Scratch], archive.ArchiveImage], places: Path, scratch: Scratch
) -> archive.ArchiveImage:
    """Read an image, and add the places where the sites' MPIs are bound."""
    for mpi in mpis.HOSTS:
        (places / mpi.prefix.lstrip("/")).mkdir(parents=True)
    image = read(scratch)
    image.root.apply(folders.entries_of(str(places)))
    return image


def _texts(image: Image) -> list[str]:
    """Return the sources of an image's program."""
    kind = "*.c*" if image.command == (PROGRAM,) else "*.py"
    return [path.read_text() for path in sorted(_PROGRAMS.glob(kind))]
