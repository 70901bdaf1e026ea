/* A benchmark in C, as its ranks start in an image without Python. The values are those of MPICH's ABI. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int MPI_Init(int *argc, char ***argv);
int MPI_Finalize(void);
int MPI_Comm_rank(int comm, int *rank);
int MPI_Allreduce(const void *send, void *receive, int count, int type, int operation, int comm);

int main(int argc, char **argv) {
    int rank = 0, one = 1, size = 0;
    FILE *out;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(0x44000000, &rank);
    MPI_Allreduce(&one, &size, 1, 0x4c000405, 0x58000003, 0x44000000);
    usleep(700000); /* long enough to be seen */
    if (rank == 0 && (out = fopen(getenv("DEPLOYER_RESULT"), "w"))) {
        fprintf(out, "{\"counted\": %d}\n", size);
        fclose(out);
    }
    if (argc > 1 && !(out = fopen(argv[1], "w"))) { /* where a rank may not write */
        printf("finished\n");
        perror(argv[1]);
        return 1;
    }
    return MPI_Finalize();
}
