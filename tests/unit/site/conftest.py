"""A stand-in for an MPI library of MPICH's ABI, named as such, for the tests of probe and rank."""

import shutil
import subprocess

import pytest

MPI_C = r"""
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
int MPI_Get_library_version(char *v, int *n) { strcpy(v, "Stand-in  MPI 1.0\nmore"); *n = 17; return 0; }
int MPI_Init_thread(int *c, char ***v, int wanted, int *got) {
  if (getenv("STAND_IN_ABORTS")) { puts("no provider"); fflush(stdout); abort(); }
  printf("libfabric provider: %s\n", getenv("I_MPI_DEBUG") ? "tcp" : "none"); *got = wanted; return 0; }
int MPI_Comm_rank(int c, int *r) { *r = c == 0x44000000 ? 1 : -1; return 0; }
int MPI_Comm_size(int c, int *s) { *s = 4; return 0; }
int MPI_Barrier(int c) { return 0; }
int MPI_Finalize(void) { return 0; }
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Return the path of a stand-in for an MPI library of MPICH's ABI."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("mpi")
    (folder / "mpi.c").write_text(MPI_C)
    path = str(folder / "libmpi.so.12")
    subprocess.check_call([compiler, "-shared", "-fPIC", "-Wl,--build-id", "-o", path, str(folder / "mpi.c")])
    return path
