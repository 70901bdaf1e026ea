/* The area below 4 / (1 + x * x), by as many ranks as there are. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>

#define STEPS 20000000

int main(int argc, char **argv)
{
    int rank, size;
    double mine = 0, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = rank; i < STEPS; i += size) {
        double x = (i + 0.5) / STEPS;
        mine += 4 / (1 + x * x);
    }
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("pi is %.8f by %d ranks\n", sum / STEPS, size);
    MPI_Finalize();
    return 0;
}
