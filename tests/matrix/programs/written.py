"""An array that all ranks write into a file of ADIOS."""

import adios_mpi as ad
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
ad.init_noxml(comm)
ad.set_max_buffer_size(1)
group = ad.declare_group("ranks", "", ad.FLAG.YES)
ad.define_var(group, "size", "", ad.DATATYPE.integer, "", "", "")
ad.define_var(group, "x", "", ad.DATATYPE.double, "10", str(10 * comm.size), str(10 * comm.rank))
ad.select_method(group, "MPI", "", "")
fd = ad.open("ranks", "x.bp", "w", comm)
ad.write_int(fd, "size", comm.size)
ad.write(fd, "x", np.arange(10.0) + 10 * comm.rank)
ad.close(fd)
comm.Barrier()
if comm.rank == 0:
    f = ad.file("x.bp", comm=MPI.COMM_SELF)
    print(f"{comm.size} ranks wrote {f['x'].read().sum()}")
    f.close()
ad.finalize()
