"""Inputs of the applications, small and always the same. Pure."""

from __future__ import annotations

import random

_HPCC = """\
HPLinpack benchmark input file
of the verdict matrix
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
100          Ns
1            # of NBs
40           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
1            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
"""

_LAMMPS = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 50
run 100
"""


def _reads(number: int) -> str:
    """Return reads of a genome of 1500 bases, by chance but always the same."""
    chance = random.Random(1)
    genome = "".join(chance.choice("ACGT") for _ in range(1500))
    chance.seed(number)
    starts = (chance.randrange(1400) for _ in range(300))
    return "".join(f">r{place}/{number}\n{genome[start : start + 100]}\n" for place, start in enumerate(starts))


def _alignment() -> str:
    """Return eight sequences that differ more and more."""
    chance = random.Random(1)
    first = [chance.choice("ACGT") for _ in range(200)]
    lines = [" 8 200"]
    for taxon in range(8):
        bases = [base if chance.random() > 0.05 * (taxon + 1) else chance.choice("ACGT") for base in first]
        lines.append(f"taxon{taxon}".ljust(10) + "".join(bases))
    return "\n".join(lines) + "\n"


def _grid(side: int = 32) -> str:
    """Return a square grid as a graph of Scotch's format."""
    nodes = []
    for row in range(side):
        for column in range(side):
            around = ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1))
            nodes.append([a * side + b for a, b in around if 0 <= a < side and 0 <= b < side])
    lines = [f"0\n{len(nodes)} {sum(map(len, nodes))}\n0 000", *(" ".join(map(str, [len(n), *n])) for n in nodes)]
    return "\n".join(lines) + "\n"


TEXTS = {
    "hpccinf.txt": _HPCC,
    "in.lj": _LAMMPS,
    "reads1.fa": _reads(1),
    "reads2.fa": _reads(2),
    "aln.phy": _alignment(),
    "start.tree": "(taxon0,taxon1,(taxon2,(taxon3,(taxon4,(taxon5,(taxon6,taxon7))))));\n",
    "grid.grf": _grid(),
}
