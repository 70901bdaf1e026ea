/* A transform in two dimensions, its array spread over the ranks, and back. */
#include <fftw3-mpi.h>
#include <math.h>
#include <stdio.h>

#define SIDE 64

int main(int argc, char **argv)
{
    ptrdiff_t rows, first, count;
    int rank, ranks, wrong = 0, all;
    MPI_Init(&argc, &argv);
    fftw_mpi_init();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    count = fftw_mpi_local_size_2d(SIDE, SIDE, MPI_COMM_WORLD, &rows, &first);
    fftw_complex *data = fftw_alloc_complex(count);
    fftw_plan forth = fftw_mpi_plan_dft_2d(SIDE, SIDE, data, data, MPI_COMM_WORLD, FFTW_FORWARD, FFTW_ESTIMATE);
    fftw_plan back = fftw_mpi_plan_dft_2d(SIDE, SIDE, data, data, MPI_COMM_WORLD, FFTW_BACKWARD, FFTW_ESTIMATE);
    for (ptrdiff_t i = 0; i < rows * SIDE; i++) {
        data[i][0] = first * SIDE + i;
        data[i][1] = rank;
    }
    fftw_execute(forth);
    fftw_execute(back);
    for (ptrdiff_t i = 0; i < rows * SIDE; i++)
        wrong |= fabs(data[i][0] / (SIDE * SIDE) - (first * SIDE + i)) > 1e-6;
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_LOR, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, there and back: %s\n", ranks, all ? "no" : "yes");
    MPI_Finalize();
    return 0;
}
