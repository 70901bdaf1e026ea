! The largest eigenvalues of a diagonal matrix that is spread over the ranks, by PARPACK.
program arnoldi
  use mpi
  implicit none
  integer, parameter :: each = 50, wanted = 2, vectors = 12
  integer :: rank, ranks, error, ido, info, param(11), pointers(11), i
  double precision :: residual(each), basis(each, vectors), work(3 * each), tolerance
  double precision :: inner(vectors * (vectors + 8)), values(wanted)
  logical :: chosen(vectors)
  call mpi_init(error)
  call mpi_comm_rank(mpi_comm_world, rank, error)
  call mpi_comm_size(mpi_comm_world, ranks, error)
  ido = 0
  info = 0
  tolerance = 0d0
  param = 0
  param(1) = 1
  param(3) = 500
  param(7) = 1
  do
    call pdsaupd(mpi_comm_world, ido, 'I', each, 'LA', wanted, tolerance, residual, vectors, basis, each, param, &
                 pointers, work, inner, size(inner), info)
    if (abs(ido) /= 1) exit
    do i = 1, each
      work(pointers(2) + i - 1) = dble(rank * each + i) * work(pointers(1) + i - 1)
    end do
  end do
  call pdseupd(mpi_comm_world, .false., 'A', chosen, values, basis, each, 0d0, 'I', each, 'LA', wanted, tolerance, &
               residual, vectors, basis, each, param, pointers, work, inner, size(inner), info)
  if (rank == 0) print '(i0, a, f0.4)', ranks, ' ranks, largest ', maxval(values)
  call mpi_finalize(error)
end program
