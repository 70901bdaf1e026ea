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


_ELK = """\
tasks
  0

avec
  1.0  1.0  0.0
  1.0  0.0  1.0
  0.0  1.0  1.0

scale
  3.8267

sppath
  '/usr/share/elk-lapw/species/'

atoms
  1
  'Al.in'
  1
  0.0  0.0  0.0    0.0  0.0  0.0

ngridk
  2  2  2

vkloff
  0.5  0.5  0.5
"""

_TAXA = """\
#NEXUS
begin data;
dimensions ntax=4 nchar=20;
format datatype=dna;
matrix
a ACGTACGTACGTACGTACGT
b ACGTACGAACGTACGTACGT
c ACGTTCGTACGTACGTACCT
d ACGTTCGTACGAACGTACCT
;
end;
"""

_GARLI = """\
[general]
datafname = taxa.nex
constraintfile = none
streefname = stepwise
attachmentspertaxon = 10
ofprefix = garli
randseed = -1
availablememory = 128
logevery = 100
saveevery = 1000
refinestart = 0
outputeachbettertopology = 0
outputcurrentbesttopology = 0
enforcetermconditions = 1
genthreshfortopoterm = 200
scorethreshforterm = 0.05
significanttopochange = 0.01
outputphyliptree = 0
outputmostlyuselessfiles = 0
writecheckpoints = 0
restart = 0
outgroup = 1
resampleproportion = 1.0
inferinternalstateprobs = 0
searchreps = 1
collapsebranches = 1
datatype = nucleotide
ratematrix = 1rate
statefrequencies = equal
ratehetmodel = none
numratecats = 1
invariantsites = none
[master]
nindivs = 4
holdover = 1
selectionintensity = 0.5
holdoverpenalty = 0
stopgen = 300
stoptime = 20
bootstrapreps = 0
startoptprec = 0.5
minoptprec = 0.01
numberofprecreductions = 1
treerejectionthreshold = 50.0
topoweight = 1.0
modweight = 0.05
brlenweight = 0.2
randnniweight = 0.1
randsprweight = 0.3
limsprweight = 0.6
intervallength = 100
intervalstostore = 5
limsprrange = 6
meanbrlenmuts = 5
gammashapebrlen = 1000
gammashapemodel = 1000
uniqueswapbias = 0.1
distanceswapbias = 1.0
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
    "elk.in": _ELK,
    "taxa.nex": _TAXA,
    "garli.conf": _GARLI,
    "binomial.frm": "Symbols x,y;\nLocal F=(x+y)^10;\nid y=1-x;\nPrint;\n.end\n",
    "t.cdl": "netcdf t {\ndimensions: x = 4;\nvariables: int v(x);\ndata: v = 1,2,3,4;\n}\n",
}
