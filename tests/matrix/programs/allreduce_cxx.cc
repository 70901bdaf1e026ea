// Open MPI's C++ bindings pull libmpi_cxx in, which release 5 no longer has; the checks are allreduce.c's.
#include <mpi.h>

#define main allreduce_main
#include "allreduce.c"
#undef main

int main(int argc, char **argv)
{
    if (argc > 9)
        MPI::COMM_WORLD.Abort(1);
    return allreduce_main(argc, argv);
}
