"""Applications of others that were added for the eighth counted run: none of them had been shown to check. Pure."""

from __future__ import annotations

from typing import Any

from deployer.contract.plan import APP
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
