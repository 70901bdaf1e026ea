/* A dot product of SUNDIALS' parallel vectors. */
#include <mpi.h>
#include <nvector/nvector_parallel.h>
#include <stdio.h>
#include <sundials/sundials_context.h>

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm world = MPI_COMM_WORLD;
    SUNContext context;
    SUNContext_Create(&world, &context);
    N_Vector twos = N_VNew_Parallel(MPI_COMM_WORLD, 50 / size, 50, context);
    N_VConst(2.0, twos);
    double product = N_VDotProd(twos, twos);
    if (rank == 0)
        printf("%d ranks, product %.1f\n", size, product);
    N_VDestroy(twos);
    SUNContext_Free(&context);
    MPI_Finalize();
    return 0;
}
