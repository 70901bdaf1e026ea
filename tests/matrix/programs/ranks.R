# Each rank gives its number + 1; all know the sum.
library(Rmpi)
size <- mpi.comm.size(0)
total <- mpi.allreduce(mpi.comm.rank(0) + 1, type = 2, op = "sum", comm = 0)
if (mpi.comm.rank(0) == 0) cat(sprintf("sum %g of %d ranks\n", total, size))
invisible(mpi.finalize())
