"""Add the ranks by an MPI library that is opened by name."""

import ctypes

MPI = ctypes.CDLL("libmpi.so.12", ctypes.RTLD_GLOBAL)
MPI.MPI_Init(None, None)
size, rank = ctypes.c_int(), ctypes.c_int()
WORLD = 0x44000000
MPI.MPI_Comm_size(WORLD, ctypes.byref(size))
MPI.MPI_Comm_rank(WORLD, ctypes.byref(rank))
total, own = ctypes.c_int(), ctypes.c_int(rank.value + 1)
INT, SUM = 0x4C000405, 0x58000003
MPI.MPI_Allreduce(ctypes.byref(own), ctypes.byref(total), 1, INT, SUM, WORLD)
if rank.value == 0:
    print(f"sum {total.value} of {size.value} ranks", flush=True)
MPI.MPI_Finalize()
