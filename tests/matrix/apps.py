"""Programs that others wrote: MPI applications as Debian packages them, and as users build and install them.

Each has a workload of seconds whose result is known, and prints how many ranks it has. What it has mapped is seen from
outside, by ``watch``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from deployer.connected.bundle import pack, sources
from deployer.contract.bundle.job import Job
from deployer.contract.site.plan import APP
from tests.lab import kept, roots
from tests.matrix import inputs, mpis
from tests.matrix.app import BIN, PRIVATE, SHARE, VENV, App, both
from tests.matrix.apps_of_2026 import APPS_OF_2026, ASIDE_OF_2026, ASIDE_OF_NEWEST, NEWEST
from tests.matrix.images import JOB, kit_members
from tests.matrix.linked import link_tree
from tests.matrix.wrappers import IMAGE_SCRIPT, WRAPPERS

_PROGRAMS = Path(__file__).with_name("programs")
_LIB = "/usr/lib/x86_64-linux-gnu"
_PI: dict[str, Any] = {"right": r"pi is 3\.14159265 ", "world": r"pi is .* by (\d+) ranks"}
_HELLO: dict[str, Any] = {
    "right": r"Hello, World! I am process 1 of 2",
    "world": r"Hello, World! I am process \d+ of (\d+)",
}
_RPATH, _RUNPATH = (("-Wl,--disable-new-dtags", f"-Wl,-rpath,{PRIVATE}/lib"),
                    ("-Wl,--enable-new-dtags", f"-Wl,-rpath,{PRIVATE}/lib"))  # fmt: skip
_STATIC = ("-I/usr/include/x86_64-linux-gnu/mpich", f"{_LIB}/libmpich.a")
_STATIC_UCX = ("-lucp", "-lucs", "-luct", "-lhwloc", "-lm", "-lpthread")
#: UCX registers itself by constructors, which a linker takes from an archive only as a whole.
_STATIC_WHOLLY = (
    "-Wl,--whole-archive", "-lucp", "-luct", "-lucs", "-lucm", "-Wl,--no-whole-archive",
    "-lhwloc", "-lnuma", "-lm", "-lpthread", "-ldl", "-lrt", "-static",
)  # fmt: skip


#: Packages that share a root; what some programs are compiled with.
_PHYLOGENY = ("garli-mpi", "hyphy-mpi", "iqtree")
_PHYSICS = ("elk-lapw", "form", "pnetcdf-bin", "python3-mpi4py-fft")
_LIBRARIES = ("libfftw3-dev", "libfftw3-mpi-dev", "libhdf5-mpich-dev")
_BOOKWORM_ONLY = ("libfftw3-mpi3", "murasaki-mpi", "yorick-mpy-openmpi")
_OVER_MPICH = ("libhdf5-mpich-103-1", "yorick-mpy-mpich2")


def _scalapack(flavour: str, family: str) -> list[App]:
    return both(
        f"scalapack-{flavour}", ("scalapack-mpi-test",), family=family, language="Fortran",
        command=(f"{_LIB}/scalapack/{flavour}-tests/xdbrd",), inputs=("/usr/share/scalapack/BRD.dat",),
        right=r"1[0-9] tests completed and passed", world=r"^ *0 tests completed and failed",
    )  # fmt: skip


APPS: tuple[App, ...] = (
    *both("mumps", ("mumps-test",), family="openmpi", language="Fortran",
           command=("sh", "-c", "/usr/lib/mumps/dsimpletest < /usr/lib/mumps/input_simpletest_real"),
           right=r"Solution is +(0\.9{8}|1\.0{8})\d* +(1\.9{8}|2\.0{8})", world=r"executing #MPI = +(\d+)"),
    *both("hpcc", ("hpcc", "netpipe-openmpi"), family="openmpi", language="C", command=("hpcc",),
           inputs=("hpccinf.txt",), leaves="hpccoutf.txt", right=r"Success=1", world=r"CommWorldProcs=(\d+)"),
    *both("netpipe-openmpi", ("hpcc", "netpipe-openmpi"), family="openmpi", language="C",
           command=("NPopenmpi", "-u", "4096", "-n", "20", "-o", "/dev/null"),
           right=r"57: +4099 bytes", world=r"57: +4099 bytes"),
    *both("netpipe-mpich", ("netpipe-mpich2",), family="mpich", language="C",
           command=("NPmpich2", "-u", "4096", "-n", "20", "-o", "/dev/null"),
           right=r"57: +4099 bytes", world=r"57: +4099 bytes"),
    *_scalapack("openmpi", "openmpi"),
    *_scalapack("mpich", "mpich"),
    *both("mpi4py", ("python3-mpi4py", "python3-h5py-mpi"), family="openmpi", language="Python",
           command=("python3", "-m", "mpi4py.bench", "helloworld"), **_HELLO),
    *both("h5py", ("python3-mpi4py", "python3-h5py-mpi"), family="openmpi", language="Python",
           command=("python3", f"{APP}/parallel_h5py.py"), scripts=("parallel_h5py.py",),
           right=r"ranks wrote 3000\.0", world=r"(\d+) ranks wrote"),
    App("petsc4py", "bookworm", "openmpi", "Python", ("python3-petsc4py", "python3-petsc4py-real3.18"),
        # Debian's petsc4py is found by this variable, or by a link that its package for developers makes.
        ("env", "PETSC_DIR=/usr/lib/petscdir/petsc3.18/x86_64-linux-gnu-real", "python3", f"{APP}/solve_petsc.py"),
        scripts=("solve_petsc.py",),
        right=r"ranks, solved: True", world=r"(\d+) ranks, solved"),
    App("abyss", "bookworm", "openmpi", "C++", ("abyss", "ray"),
        ("/usr/lib/abyss/ABYSS-P", "-k25", "-c0", "-e0", "-t0", "-b0", "-o", "contigs.fa", "reads1.fa", "reads2.fa"),
        inputs=("reads1.fa", "reads2.fa"), right=r"^Assembled 14\d\d k-mer in 1 contigs",
        world=r"Running on (\d+) processors"),
    App("tree-puzzle", "bookworm", "openmpi", "C", ("tree-ppuzzle", "examl", "phyml"),
        ("sh", "-c", "echo y | tree-ppuzzle aln.phy"), inputs=("aln.phy",), leaves="aln.phy.puzzle",
        right=r"Maximum likelihood branch|MAXIMUM LIKELIHOOD BRANCH", world=r"performed with (\d+) parallel processes"),
    App("tree-puzzle", "trixie", "openmpi", "C", ("tree-ppuzzle", "ptscotch"),
        ("sh", "-c", "echo y | tree-ppuzzle aln.phy"), inputs=("aln.phy",), leaves="aln.phy.puzzle",
        right=r"Maximum likelihood branch|MAXIMUM LIKELIHOOD BRANCH", world=r"performed with (\d+) parallel processes"),
    App("examl", "bookworm", "openmpi", "C", ("tree-ppuzzle", "examl", "phyml"),
        ("/usr/lib/examl/bin/examl-sse3", "-t", "start.tree", "-m", "GAMMA", "-s", "aln.binary", "-n", "T1"),
        inputs=("start.tree", f"{SHARE}/aln.binary"), right=r"^Likelihood +: -1219\.", world=r"^Likelihood +:",
        prepare="parse-examl -s aln.phy -m DNA -n aln"),
    App("phyml", "bookworm", "openmpi", "C", ("tree-ppuzzle", "examl", "phyml"),
        ("phyml-mpi", "-i", "aln.phy", "-b", "4", "--no_memory_check", "--r_seed", "1"), inputs=("aln.phy",),
        right=r"Log likelihood of the current tree: -1222\.", world=r"analysis on (\d+) CPUs"),
    App("ptscotch", "bookworm", "openmpi", "C", ("ptscotch", "mplrs"),
        ("dgpart", "4", "grid.grf", "grid.map", "-vmt"), inputs=("grid.grf",),
        right=r"CommCutSz", world=r"CommCutSz"),
    App("ptscotch", "trixie", "openmpi", "C", ("tree-ppuzzle", "ptscotch"),
        ("dgpart", "4", "grid.grf", "grid.map", "-vmt"), inputs=("grid.grf",),
        right=r"CommCutSz", world=r"CommCutSz"),
    App("lammps", "bookworm", "openmpi", "C++", ("lammps",), ("lmp", "-in", "in.lj", "-log", "none"),
        inputs=("in.lj",), right=r"^ +100 +0\.7\d+ ", world=r"Loop time of .* on (\d+) procs"),
    App("rmpi", "bookworm", "openmpi", "R", ("r-cran-rmpi",), ("Rscript", f"{APP}/ranks.R"), scripts=("ranks.R",),
        right=r"sum 3 of 2 ranks", world=r"sum .* of (\d+) ranks",
        prepare=f"ln -s libmpi.so.40 {_LIB}/libmpi.so"),  # the name that it opens, of a package for developers
    App("ruby-mpi", "bookworm", "openmpi", "Ruby", ("ruby-mpi",), ("ruby", f"{APP}/ranks.rb"), scripts=("ranks.rb",),
        right=r"sum 3 of 2 ranks", world=r"sum .* of (\d+) ranks"),
    *both("iqtree", _PHYLOGENY, family="openmpi", language="C++",
           command=("iqtree2-mpi", "-s", "aln.phy", "-m", "JC", "-seed", "1", "-nt", "1", "-n", "2", "-redo"),
           inputs=("aln.phy",), right=r"^BEST SCORE FOUND : -1222\.", world=r"^MPI: +(\d+) process"),
    # Each rank searches on its own; only the second of a world says that it has ended.
    *both("garli", _PHYLOGENY, family="openmpi", language="C++", command=("garli-mpi", "-2", "garli.conf"),
           inputs=("garli.conf", "taxa.nex"), leaves="garli.run00.screen.log", right=r"Final score = -46\.5",
           world=r"^process 1 terminating"),
    *both("hyphy", _PHYLOGENY, family="openmpi", language="C++", command=("HYPHYMPI", f"{APP}/nodes.bf"),
           scripts=("nodes.bf",), right=r"^node 1 says 42", world=r"^nodes (\d+)"),
    *both("elk", _PHYSICS, family="openmpi", language="Fortran", command=("elk-lapw",), inputs=("elk.in",),
           leaves="INFO.OUT", right=r"total energy +: +-241\.91", world=r"number of processes : +(\d+)"),
    # A rank gives work to the others.
    *both("form", _PHYSICS, family="openmpi", language="C", command=("parform", "binomial.frm"),
           inputs=("binomial.frm",), right=r"^ +1;$", world=r"^ParFORM .* 1 worker "),
    *both("pnetcdf", _PHYSICS, family="openmpi", language="C", command=("ncmpidiff", "t.nc", "t.nc"),
           inputs=(f"{SHARE}/t.nc",), prepare="ncmpigen -o t.nc t.cdl",
           right=r"variables .*are the same", world=r"variables .*are the same"),
    *both("mpi4py-fft", _PHYSICS, family="openmpi", language="Python",
           command=("python3", f"{APP}/parallel_fft.py"), scripts=("parallel_fft.py",),
           right=r"ranks, there and back: True", world=r"(\d+) ranks, there"),
    App("yorick-openmpi", "bookworm", "openmpi", "C", _BOOKWORM_ONLY,
        ("mpy.openmpi", "-batch", f"{APP}/pi.i"), scripts=("pi.i",), **_PI),
    App("yorick-mpich", "bookworm", "mpich", "C", _OVER_MPICH,
        ("mpy.mpich2", "-batch", f"{APP}/pi.i"), scripts=("pi.i",), **_PI),
    App("murasaki", "bookworm", "openmpi", "C++", _BOOKWORM_ONLY,
        ("murasaki-mpi", "-p", "11111100111100", "reads1.fa", "reads2.fa"),
        inputs=("reads1.fa", "reads2.fa"), right=r"^Total anchors: 198", world=r"rank \d+/(\d+): running"),
    App("fftw", "bookworm", "openmpi", "C", _BOOKWORM_ONLY, (f"{BIN}/pi",), source="fftw.c",
        compiler="mpicc.openmpi", needs=_LIBRARIES, right=r"ranks, there and back: yes", world=r"(\d+) ranks, there",
        flags=("-lfftw3_mpi", "-lfftw3", "-lm")),
    App("hdf5-mpich", "bookworm", "mpich", "C", _OVER_MPICH, (f"{BIN}/pi",), source="hdf5.c",
        compiler="mpicc.mpich", needs=_LIBRARIES, right=r"ranks wrote 3000\.0", world=r"(\d+) ranks wrote",
        flags=("-I/usr/include/hdf5/mpich", f"-L{_LIB}/hdf5/mpich", "-lhdf5")),
    App("boost", "bookworm", "openmpi", "C++", ("libboost-mpi1.74.0",), (f"{BIN}/pi",), source="pi_boost.cc",
        compiler="mpicxx.openmpi", flags=("-lboost_mpi", "-lboost_serialization"), needs=("libboost-mpi-dev",), **_PI),
    *both("fortran-openmpi", ("libopenmpi3", "libgfortran5"), trixie=("libopenmpi40", "libgfortran5"),
           family="openmpi", language="Fortran",
           command=(f"{BIN}/pi",), source="pi.f90", compiler="mpifort.openmpi", needs=("gfortran",), **_PI),
    *both("fortran-mpich", ("libmpich12", "libgfortran5"), family="mpich", language="Fortran",
           command=(f"{BIN}/pi",), source="pi.f90", compiler="mpifort.mpich", needs=("gfortran",), **_PI),
    App("static-mpich", "bookworm", "mpich", "C", ("libucx0", "libhwloc15"), (f"{BIN}/pi",), source="pi.c",
        compiler="cc", flags=(*_STATIC, *_STATIC_UCX), **_PI),
    App("wholly-static-mpich", "bookworm", "mpich", "C", (), (f"{BIN}/pi",), source="pi.c no_udev.c",
        compiler="cc", flags=(*_STATIC, *_STATIC_WHOLLY), **_PI),
    App("runpath-mpich", "bookworm", "mpich", "C", (), (f"{BIN}/pi",), source="pi.c", built="mpich-5.0.2",
        flags=_RUNPATH, **_PI),
    App("runpath-openmpi", "trixie", "openmpi", "C", (), (f"{BIN}/pi",), source="pi.c", built="openmpi-5.0.11",
        flags=_RUNPATH, **_PI),
    App("rpath-mpich", "trixie", "mpich", "C", (), (f"{BIN}/pi",), source="pi.c", built="mpich-4.2.3",
        flags=_RPATH, **_PI),
    App("rpath-openmpi", "bookworm", "openmpi", "C", (), (f"{BIN}/pi",), source="pi.c", built="openmpi-4.1.8",
        flags=_RPATH, **_PI),
    *(App(f"venv-{mpi.partition('-')[0]}", "bookworm", "", "Python", (),
          (f"{VENV}/bin/python", "-m", "mpi4py.bench", "helloworld"), venv=mpi, **_HELLO)
      for mpi in ("mpich-5.0.2", "openmpi-5.0.11", "intel-2021.15")),
    *APPS_OF_2026,
    *NEWEST,
)  # fmt: skip
#: A third of the applications, set aside: written without a look at what check says of them, and drawn by counted runs
#: alone. Those that two counted runs had shown before are no longer among them.
SET_ASIDE = (
    "elk", "fftw", "form", "garli", "hdf5-mpich", "hyphy", "iqtree", "mpi4py-fft", "murasaki", "pnetcdf",
    "wholly-static-mpich", "yorick-mpich", "yorick-openmpi", *ASIDE_OF_2026, *ASIDE_OF_NEWEST,
)  # fmt: skip
BY_NAME = {app.name: app for app in APPS}


def rootfs(app: App) -> Path:
    """Return the application's root filesystem, made now if need be."""
    base = roots.root(app.suite, ("python3", *app.packages), "-".join(("image", *app.packages)))
    compilers = _compilers(app) if app.source else None
    tree = mpis.tree(app.built or app.venv) if app.built or app.venv else None
    modules = mpis.tree(app.modules) if app.venv else None
    binds = [mpi.prefix for mpi in mpis.HOSTS]
    source = "".join((_PROGRAMS / name).read_text() for name in app.source.split())
    made_of = [base.name, compilers and compilers.name, tree and tree.name, modules and modules.name, binds, source]
    script = WRAPPERS["script in image"](app.command).image
    prepared = _prepared(app)

    def make(target: Path) -> None:
        link_tree(base, target)
        for place in (*binds, *(prefix for prefix in (SHARE, BIN) if not (target / prefix.lstrip("/")).is_dir())):
            (target / place.lstrip("/")).mkdir(parents=True)  # plans come when it is packed already
        start = target / IMAGE_SCRIPT.lstrip("/")
        start.write_text(script)
        start.chmod(0o755)
        if compilers:
            shutil.copy(_compile(app, compilers, tree, target.parent), target / f"{BIN}/pi".lstrip("/"))
        if modules and tree:
            _make_venv(target / VENV.lstrip("/"), tree, modules)
        elif tree:
            for part in ("lib", "etc", "share"):
                if (tree / part).is_dir():
                    link_tree(tree / part, target / PRIVATE.lstrip("/") / part)
        if prepared:
            for name, text in inputs.TEXTS.items():
                (target / SHARE.lstrip("/") / name).write_text(text)
            roots.run_inside(target, ["sh", "-c", f"cd {SHARE} && {app.prepare}"])

    return kept.kept("images", app.name, [app._replace(right="", world=""), *made_of, script, prepared], make)


def _prepared(app: App) -> list[str]:
    return [app.prepare, *inputs.TEXTS.values()] if app.prepare else []


def _compilers(app: App) -> Path:
    if app.needs:
        return roots.root(app.suite, (*roots.WRAPPERS, *app.needs), "-".join(("wrappers", *app.needs)))
    if app.compiler == "gcc":
        return roots.root(app.suite, roots.GCC, "gcc")
    return roots.root(app.suite, roots.WRAPPERS, "wrappers")


def _compile(app: App, compilers: Path, tree: Path | None, work: Path) -> Path:
    """Compile the program in the root of the suite's compilers, and return it."""
    out = work / "out"
    shutil.copytree(_PROGRAMS, out)
    binds = [(out, "/mnt")]
    argv = [app.compiler, "-O1", "-o", "/mnt/pi", *(f"/mnt/{name}" for name in app.source.split()), *app.flags]
    if tree:
        (compilers / "srv").mkdir(exist_ok=True)
        binds.append((tree, "/srv"))
        argv += ["-I/srv/include", "-L/srv/lib", "-Wl,-rpath-link,/srv/lib", "-lmpi"]
    roots.run_inside(compilers, argv, binds)
    return out / "pi"


def _make_venv(target: Path, tree: Path, modules: Path) -> None:
    """Lay out a virtual environment of Debian 12's Python as pip would: the MPI's wheel in its prefix."""
    link_tree(tree, target)
    link_tree(modules, target / "lib/python3.11/site-packages")
    (target / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n")
    (target / "bin").mkdir(exist_ok=True)
    for name in ("python", "python3"):
        (target / "bin" / name).symlink_to("/usr/bin/python3")


def bundle(app: App, wrapper: str, work: Path) -> Path:
    """Return the application packed behind a wrapper, with the kit and without a plan."""
    started = WRAPPERS[wrapper](app.command)
    folder = work / f"{app.name}-{wrapper.replace(' ', '-')}"
    scripts = folder / "app"
    scripts.mkdir(parents=True)
    for name in app.scripts:
        shutil.copy(_PROGRAMS / name, scripts / name)
    for name, text in started.app.items():
        (scripts / name).write_text(text)
        (scripts / name).chmod(0o755)
    contents = sources.from_folder(rootfs(app), app.name, "1")
    contents = contents._replace(
        jobs=[Job(JOB, list(started.command), 2, 1, 1, "00:05:00")],
        app=scripts if any(scripts.iterdir()) else None,
        carried=kit_members(),
    )
    path = folder / "bundle.tar"
    pack.pack(contents, (), path, cache=kept.folder() / "frames")
    return path


def input_files(app: App) -> dict[str, bytes]:
    """Return what is put into the job's folder, by name."""
    found = {}
    for name in app.inputs:
        if name.startswith("/"):
            found[Path(name).name] = (rootfs(app) / name.lstrip("/")).read_bytes()
        else:
            found[name] = inputs.TEXTS[name].encode()
    return found
