# Each rank gives its number + 1 to the first, which adds them up.
require "mpi"

MPI.Init
world = MPI::Comm::WORLD
if world.rank == 0
  sum = 1
  (1...world.size).each do |rank|
    message = " " * 4
    world.Recv(message, rank, 0)
    sum += message.to_i
  end
  puts "sum #{sum} of #{world.size} ranks"
else
  world.Send((world.rank + 1).to_s.ljust(4), 0, 0)
end
MPI.Finalize
