# Each rank gives its number + 1; the first knows the sum.
require "mpi"
require "numo/narray"

MPI.Init
world = MPI::Comm::WORLD
mine = Numo::DFloat[world.rank + 1.0]
sum = Numo::DFloat.zeros(1)
world.Reduce(mine, sum, MPI::Op::SUM, 0)
puts "sum #{sum[0].to_i} of #{world.size} ranks" if world.rank == 0
MPI.Finalize
