"""Each rank writes its row of one HDF5 file; then all read the whole."""

import h5py
from mpi4py import MPI

world = MPI.COMM_WORLD
with h5py.File("ranks.h5", "w", driver="mpio", comm=world) as out:
    rows = out.create_dataset("rows", (world.size, 1000), dtype="d")
    rows[world.rank] = world.rank + 1.0
world.Barrier()
with h5py.File("ranks.h5", "r", driver="mpio", comm=world) as found:
    total = float(found["rows"][:].sum())
if world.rank == 0:
    print(f"{world.size} ranks wrote {total:.1f}", flush=True)
