/* A rank that adds its number to those of the others. Handles are declared here: no compiler of an MPI is needed. */
#include <stdio.h>
#include <stdlib.h>

#ifdef OPEN_MPI
typedef void *Handle;
extern char ompi_mpi_comm_world, ompi_mpi_int, ompi_mpi_op_sum;
#define WORLD ((Handle)&ompi_mpi_comm_world)
#define INT ((Handle)&ompi_mpi_int)
#define SUM ((Handle)&ompi_mpi_op_sum)
#else
typedef int Handle;
#define WORLD 0x44000000
#define INT 0x4c000405
#define SUM 0x58000003
#endif

int MPI_Init(int *, char ***);
int MPI_Comm_rank(Handle, int *);
int MPI_Comm_size(Handle, int *);
int MPI_Allreduce(const void *, void *, int, Handle, Handle, Handle);
int MPI_Finalize(void);

int main(int argc, char **argv)
{
    int rank, size, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(WORLD, &rank);
    MPI_Comm_size(WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, INT, SUM, WORLD);
    if (rank == 0) {
        FILE *out = fopen(getenv("DEPLOYER_RESULT"), "w");
        fprintf(out, "{\"size\": %d, \"sum\": %d}\n", size, sum);
        fclose(out);
    }
    MPI_Finalize();
    return argc > 1 && rank == size - 1 ? atoi(argv[1]) : 0;
}
