"""Points that Zoltan moves between ranks."""

import numpy as np
from cyarray.api import DoubleArray, UIntArray
from mpi4py import MPI
from pyzoltan.core import zoltan

comm = MPI.COMM_WORLD
rank = comm.rank
n = 20
rng = np.random.default_rng(rank)
x = DoubleArray(n)
x.set_data(rng.random(n))
y = DoubleArray(n)
y.set_data(rng.random(n))
gid = UIntArray(n)
gid.set_data(np.arange(n, dtype=np.uint32) + rank * n)
pz = zoltan.ZoltanGeometricPartitioner(dim=2, comm=comm, x=x, y=y, z=x, gid=gid)
pz.set_lb_method("RCB")
pz.Zoltan_Set_Param("DEBUG_LEVEL", "0")
pz.Zoltan_LB_Balance()
moved = comm.allreduce(pz.numExport)
arrived = comm.allreduce(pz.numImport)
if rank == 0:
    print(f"{comm.size} ranks, as many arrive as leave: {moved == arrived and moved > 0}")
