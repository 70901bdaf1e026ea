"""Inputs of the applications, small and always the same. Pure."""

from __future__ import annotations

import itertools
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


_MDP = """\
integrator = md
nsteps = 50
dt = 0.002
cutoff-scheme = Verlet
rvdw = 0.9
rcoulomb = 0.9
rlist = 0.9
gen-vel = yes
gen-temp = 100
gen-seed = 1
"""

_TOP = """\
[ defaults ]
1 1 no 1.0 1.0
[ atomtypes ]
AR 39.948 0.0 A 0.00622127 9.69576e-06
[ moleculetype ]
AR 1
[ atoms ]
1 AR 1 AR AR 1 0 39.948
[ system ]
Argon
[ molecules ]
AR 432
"""

_GRAINS = """\
atom_style granular
atom_modify map array
boundary f f f
newton off
communicate single vel yes
units si
region reg block 0 1 0 1 0 1 units box
create_box 1 reg
neighbor 0.01 bin
neigh_modify delay 0
fix m1 all property/global youngsModulus peratomtype 5.e6
fix m2 all property/global poissonsRatio peratomtype 0.45
fix m3 all property/global coefficientRestitution peratomtypepair 1 0.9
fix m4 all property/global coefficientFriction peratomtypepair 1 0.05
pair_style gran model hertz tangential history
pair_coeff * *
timestep 0.0001
fix gravi all gravity 9.81 vector 0.0 0.0 -1.0
create_atoms 1 single 0.25 0.5 0.5
create_atoms 1 single 0.75 0.5 0.5
set group all diameter 0.1 density 2500
fix integr all nve/sphere
thermo 100
run 200
"""

_BOXES = """\
2 1 GfsSimulation GfsBox GfsGEdge {} {
  Time { end = 0.05 }
  Refine 4
  Init {} { U = 1 }
  OutputTime { istep = 1 } stderr
}
GfsBox { pid = 0 }
GfsBox { pid = 1 }
1 2 right
"""

_NWCHEM = """\
start h2
geometry units angstrom
 H 0 0 0
 H 0 0 0.74
end
basis
 H library sto-3g
end
task scf energy
"""

_BANDS = """\
(set! num-bands 4)
(set! k-points (list (vector3 0 0 0) (vector3 0.5 0 0)))
(set! geometry (list (make cylinder (center 0 0 0) (radius 0.2) (height infinity)
  (material (make dielectric (epsilon 12))))))
(set! geometry-lattice (make lattice (size 1 1 no-size)))
(set! resolution 16)
(run-tm)
"""

_ALUMINIUM = """\
&control
 calculation='scf', prefix='al', pseudo_dir='/usr/share/espresso/pseudo', outdir='./'
/
&system
 ibrav=2, celldm(1)=7.5, nat=1, ntyp=1, ecutwfc=12.0, occupations='smearing', smearing='mp', degauss=0.05
/
&electrons
/
ATOMIC_SPECIES
 Al 26.98 Al.pz-vbc.UPF
ATOMIC_POSITIONS alat
 Al 0.0 0.0 0.0
K_POINTS automatic
 2 2 2 1 1 1
"""

_ABINIT = """\
pp_dirpath "."
pseudos "h.psp"
acell 8 8 8
ntypat 1
znucl 1
natom 2
typat 1 1
xcart -0.7 0 0 0.7 0 0
ecut 8
nstep 15
toldfe 1e-6
kptopt 1
ngkpt 2 1 1
"""

_METHANE = """\
THEORY
   indo
THEORY_END

SCF
   max_iter 50
   rms_density 0.000001
   damping_thresh 1.0
   damping_weight 0.0
   diis_num_error_vect 5
   diis_start_error 0.1
   diis_end_error 0.00000002
SCF_END

GEOMETRY
 C                  0.64738871    0.82013076    0.00000000
 H                  1.00404313   -0.18867924    0.10000000
 H                  1.00406155    1.32452895    0.87365150
 H                  1.00406155    1.32452895   -0.87365150
 H                 -0.42261129    0.82014394    0.00000000
GEOMETRY_END
"""

_HOC = """\
objref pc
pc = new ParallelContext()
x = pc.allreduce(pc.id() + 1, 1)
if (pc.id() == 0) printf("sum %g of %d ranks\\n", x, pc.nhost())
pc.runworker()
pc.done()
quit()
"""

_EDP = """\
real x = mpirank + 1, s = 0;
mpiAllReduce(x, s, mpiCommWorld, mpiSUM);
if (mpirank == 0) cout << "sum " << s << " of " << mpisize << " ranks" << endl;
"""

_GRETL = """\
set verbose off
scalar x = $mpirank + 1
mpiallred(&x, sum)
if $mpirank == 0
  printf "sum %g of %d ranks\\n", x, $mpisize
endif
"""

#: Of hydrogen, after Goedecker, Teter and Hutter (Physical Review B 54, 1703).
_PSEUDOPOTENTIAL = """\
Goedecker-Teter-Hutter hydrogen
1   1   960508                     zatom,zion,pspdat
2   1   0    0    2001    0.       pspcod,pspxc,lmax,lloc,mmax,r2well
0.2000000 -4.0663326  0.6778322 0 0     rloc, c1, c2, c3, c4
0 0 0                              rs, h1s, h2s
0 0                                rp, h1p
  1.36 .2   0.6                    rcutoff, rloc
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


def _argon(sides: tuple[int, int, int] = (12, 6, 6), step: float = 0.4) -> str:
    """Return a crystal of argon in GROMACS's format, in a box that two ranks can cut."""
    places = list(itertools.product(*map(range, sides)))
    lines = ["Argon", f"{len(places):5}"]
    for number, place in enumerate(places, 1):
        x, y, z = ((each + 0.5) * step for each in place)
        lines.append(f"{number:5}{'AR':5}{'AR':>5}{number:5}{x:8.3f}{y:8.3f}{z:8.3f}")
    return "\n".join([*lines, "".join(f"{side * step:10.5f}" for side in sides)]) + "\n"


_CP2K = """\
&GLOBAL
  PROJECT argon
  RUN_TYPE ENERGY
&END GLOBAL
&FORCE_EVAL
  METHOD FIST
  &MM
    &FORCEFIELD
      &NONBONDED
        &LENNARD-JONES
          ATOMS Ar Ar
          EPSILON 119.8
          SIGMA 3.405
          RCUT 8.4
        &END LENNARD-JONES
      &END NONBONDED
      &CHARGE
        ATOM Ar
        CHARGE 0.0
      &END CHARGE
    &END FORCEFIELD
    &POISSON
      &EWALD
        EWALD_TYPE none
      &END EWALD
    &END POISSON
  &END MM
  &SUBSYS
    &CELL
      ABC 20.0 20.0 20.0
    &END CELL
    &COORD
      Ar 0.0 0.0 0.0
      Ar 0.0 0.0 4.0
    &END COORD
  &END SUBSYS
&END FORCE_EVAL
"""

_BAGEL = """\
{ "bagel" : [
{ "title" : "molecule", "basis" : "svp", "df_basis" : "svp-jkfit", "angstrom" : "true",
  "geometry" : [ { "atom" : "H", "xyz" : [ 0.0, 0.0, 0.0 ] }, { "atom" : "H", "xyz" : [ 0.0, 0.0, 0.74 ] } ] },
{ "title" : "hf", "thresh" : 1.0e-8 } ] }
"""

_MEEP = """\
(set! geometry-lattice (make lattice (size 4 4 no-size)))
(set! sources (list (make source (src (make continuous-src (frequency 0.15))) (component Ez) (center 0 0))))
(set! pml-layers (list (make pml (thickness 1.0))))
(set! resolution 10)
(run-until 20 (at-end (lambda () (print "field " (real-part (get-field-point Ez (vector3 0.3 0.2))) "\n"))))
"""

_TACHYON = """\
BEGIN_SCENE
RESOLUTION 64 64
CAMERA
ZOOM 1.0
ASPECTRATIO 1.0
ANTIALIASING 0
RAYDEPTH 2
CENTER 0.0 0.0 -10.0
VIEWDIR 0.0 0.0 1.0
UPDIR 0.0 1.0 0.0
END_CAMERA
LIGHT CENTER 4.0 3.0 -10.0 RAD 0.2 COLOR 0.5 0.5 0.5
SPHERE CENTER 0.0 0.0 0.0 RAD 1.0
TEXTURE AMBIENT 0.2 DIFFUSE 0.8 SPECULAR 0.0 OPACITY 1.0
COLOR 1.0 0.5 0.2
TEXFUNC 0
END_SCENE
"""


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
    "argon.gro": _argon(),
    "argon.mdp": _MDP,
    "argon.top": _TOP,
    "in.grains": _GRAINS,
    "boxes.gfs": _BOXES,
    "h2.nw": _NWCHEM,
    "bands.ctl": _BANDS,
    "al.in": _ALUMINIUM,
    "h2.abi": _ABINIT,
    "h.psp": _PSEUDOPOTENTIAL,
    "methane.in": _METHANE,
    "ranks.hoc": _HOC,
    "ranks.edp": _EDP,
    "ranks.inp": _GRETL,
    "three.fa": ">a\nACGTACGTACGTACGTACGTTT\n>b\nACGTACGTACGTTCGTACGTAT\n>c\nTTTTACGTACGTTCGTACGTAT\n",
    "argon.inp": _CP2K,
    "h2.json": _BAGEL,
    "wave.ctl": _MEEP,
    "ball.dat": _TACHYON,
}
