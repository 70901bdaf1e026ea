! The area below 4 / (1 + x * x), by as many ranks as there are.
program pi
  use mpi
  implicit none
  integer, parameter :: steps = 20000000
  integer :: rank, ranks, ierr, i
  double precision :: x, mine, total
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  mine = 0
  do i = rank, steps - 1, ranks
    x = (i + 0.5d0) / steps
    mine = mine + 4 / (1 + x * x)
  end do
  call MPI_Reduce(mine, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD, ierr)
  if (rank == 0) write (*, '(A,F10.8,A,I0,A)') 'pi is ', total / steps, ' by ', ranks, ' ranks'
  call MPI_Finalize(ierr)
end program pi
