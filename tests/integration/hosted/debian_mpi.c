/* Linked to libmpich.so.12, as programs built with Debian's MPICH are. The values are those of MPICH's ABI. */
#include <stdio.h>
#include <stdlib.h>

int MPI_Init(int *argc, char ***argv);
int MPI_Finalize(void);
int MPI_Comm_rank(int comm, int *rank);
int MPI_Allreduce(const void *send, void *receive, int count, int type, int operation, int comm);
int MPI_Get_library_version(char *text, int *length);

#define WORLD 0x44000000
#define INT 0x4c000405
#define SUM 0x58000003

int main(int argc, char **argv) {
    int rank, length, one = 1, size = 0;
    static char text[8193];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(WORLD, &rank);
    MPI_Allreduce(&one, &size, 1, INT, SUM, WORLD);
    MPI_Get_library_version(text, &length);
    const char *path = getenv("DEPLOYER_RESULT");
    FILE *result = rank == 0 && path ? fopen(path, "w") : NULL;
    if (result) {
        fprintf(result, "{\"counted\": %d, \"says\": \"%.30s\"}\n", size, text);
        fclose(result);
    }
    return MPI_Finalize();
}
