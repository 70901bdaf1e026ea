"""The energy of a hydrogen molecule."""

from ase import Atoms
from gpaw import GPAW, LCAO
from gpaw.mpi import world

atoms = Atoms("H2", [(0, 0, 0), (0, 0, 0.74)])
atoms.center(vacuum=3.0)
atoms.calc = GPAW(mode=LCAO(), basis="dzp", txt=None, h=0.25)
energy = atoms.get_potential_energy()
if world.rank == 0:
    print(f"{world.size} ranks, energy {energy:.2f} eV")
