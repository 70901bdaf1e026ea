/* A rank of the matrix: a checked Allreduce, and what this process has mapped, as JSON beside $DEPLOYER_RESULT.
 * Launchers mix the lines that ranks print.
 *
 * It judges by nothing of the product's: the libraries are read from /proc/self/maps, by inode, and the numbers are
 * computed here. With -DNEW=MPI_Comm_toint it calls a function that not every MPI has; with -DRARELY only when it is
 * given an argument. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH 10000

#ifdef NEW
#undef MPI_Comm_c2f /* a macro; behind it is a function, of MPICH's library and not of Intel's */
int NEW(MPI_Comm);
#endif

/* Print the files that are mapped whose name tells of MPI or a network: each once, as ["path", inode]. */
static void print_mapped(FILE *out)
{
    static const char *const words[] = {"/libmpi", "-fi.so", "/libfabric", "/libucp", "/libopen-pal", "/libmpich"};
    char line[8192], last[8192] = "";
    const char *comma = "";
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long inode = 0;
        int at = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%*s %*s %*s %*s %lu %n", &inode, &at) < 1 || line[at] != '/' || !strcmp(line + at, last))
            continue;
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (strstr(line + at, words[i])) {
                fprintf(out, "%s[\"%s\", %lu]", comma, line + at, inode);
                comma = ", ";
                strcpy(last, line + at);
                break;
            }
    }
    if (maps)
        fclose(maps);
}

/* Open this rank's own file: all singletons are rank 0, so it is named by node and process. */
static FILE *open_record(const char *host)
{
    char path[4096] = "";
    const char *beside = getenv("DEPLOYER_RESULT");
    FILE *out = NULL;
    if (beside && strrchr(beside, '/')) {
        snprintf(path, sizeof path, "%.*s/matrix-%s-%ld.json", (int)(strrchr(beside, '/') - beside), beside, host,
                 (long)getpid());
        out = fopen(path, "w");
    }
    return out ? out : stdout;
}

int main(int argc, char **argv)
{
    static double mine[LENGTH], sum[LENGTH];
    static char version[MPI_MAX_LIBRARY_VERSION_STRING + 1];
    char host[256] = "";
    int rank, size, length, wrong = 0;
    FILE *out;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < LENGTH; i++)
        mine[i] = rank + 1 + i % 7;
    MPI_Allreduce(mine, sum, LENGTH, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < LENGTH; i++)
        wrong += sum[i] != size * (size + 1) / 2.0 + (double)size * (i % 7);
#ifdef NEW
#ifdef RARELY
    if (argc > 1)
#endif
        wrong += NEW(MPI_COMM_WORLD) == 0;
#endif
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = 0;
    for (char *c = version; *c; c++)
        if (*c == '"' || *c == '\\' || *c == '\t')
            *c = ' ';
    gethostname(host, sizeof host - 1);
    out = open_record(host);
    fprintf(out, "{\"rank\": %d, \"size\": %d, \"wrong\": %d, \"host\": \"%s\", \"says\": \"%s\", \"mapped\": [",
            rank, size, wrong, host, version);
    print_mapped(out);
    fprintf(out, "]}\n");
    fflush(out);
    MPI_Finalize();
    return wrong != 0;
}
