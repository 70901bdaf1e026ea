"""An empty store, and stand-ins for an MPI library of MPICH's ABI and for the libraries of GPUs, named as such."""

import shutil
import subprocess

import pytest

from deployer.site.storage.store import Store

MPI_C = r"""
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <fcntl.h>
#include <unistd.h>
#include <sys/mman.h>
int MPI_Get_library_version(char *v, int *n) { strcpy(v, "Stand-in  MPI 1.0\nmore"); *n = 17; return 0; }
static void goodbye(void) { if (getenv("STAND_IN_GOODBYE")) fclose(fopen(getenv("STAND_IN_GOODBYE"), "w")); }
int MPI_Init_thread(int *c, char ***v, int wanted, int *got) {
  atexit(goodbye); /* as MPICH does for PMI */
  if (getenv("STAND_IN_ABORTS")) { puts("no provider"); fflush(stdout); abort(); }
  if (getenv("STAND_IN_SHARES")) { /* as MPICH, Intel's MPI and Open MPI do if a node has several ranks */
    char path[] = "/dev/shm/stand_in_XXXXXX"; int file = mkstemp(path); unlink(path);
    if (ftruncate(file, 4096) || mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED) abort(); }
  printf("libfabric provider: %s\n", getenv("I_MPI_DEBUG") ? "tcp" : "none"); *got = wanted; return 0; }
int MPI_Comm_rank(int c, int *r) { *r = c == 0x44000000 ? 1 : -1; return 0; }
int MPI_Comm_size(int c, int *s) { *s = 4; return 0; }
int MPI_Barrier(int c) { return 0; }
int MPI_Allreduce(double *in, double *out, int n, int type, int op, int c) {
  if (type != 0x4c00080b || op != 0x58000003 || c != 0x44000000) return 1;
  for (int i = 0; i < n; i++) out[i] = getenv("STAND_IN_SUMS_WRONG") || !in[i] ? in[i] : 6; /* 0 + 1 + 2 + 3 */
  return 0; }
int MPI_Allgather(double *in, int n, int type, double *out, int m, int to, int c) { /* all ranks on one node */
  for (int i = 0; i < 4; i++) out[i] = *in;
  return 0; }
int MPI_Finalize(void) { return 0; }
"""


CUDA_C = r"""
#include <stdlib.h>
static int word(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
int cuInit(unsigned flags) { if (getenv("STAND_IN_CRASHES")) abort(); return word("STAND_IN_CUINIT"); }
int cuDeviceGetCount(int *n) { *n = word("STAND_IN_DEVICES"); return 0; }
int cuGetErrorString(int code, const char **text) { *text = "stand-in error"; return 0; }
"""
#: The same functions of HIP, and those of Level Zero: two drivers, the second without a device.
HIP_C = (
    CUDA_C.replace("cu", "hip")
    .replace("hipDeviceGetCount", "hipGetDeviceCount")
    .replace(
        'int hipGetErrorString(int code, const char **text) { *text = "stand-in error"; return 0; }',
        'const char *hipGetErrorString(int code) { return "stand-in error"; }',
    )
)
ZE_C = r"""
#include <stdlib.h>
static int word(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
int zeInit(unsigned flags) { return word("STAND_IN_CUINIT"); }
int zeDriverGet(unsigned *n, void **drivers) {
  if (drivers) { drivers[0] = (void *)0x700000001; drivers[1] = 0; } *n = 2; return 0; }
int zeDeviceGet(void *driver, unsigned *n, void **devices) {
  *n = driver == (void *)0x700000001 ? word("STAND_IN_DEVICES") : 0; return 0; }
"""


@pytest.fixture
def store(tmp_path):
    """Return a store in which nothing is installed."""
    return Store(str(tmp_path / "root"))


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """Return the path of a stand-in for an MPI library of MPICH's ABI."""
    return compiled(tmp_path_factory, MPI_C, "libmpi.so.12")


@pytest.fixture(scope="module")
def stand_in_driver(tmp_path_factory):
    """Return the path of a stand-in for CUDA's driver library, 12.4."""
    return compiled(tmp_path_factory, CUDA_C, "libcuda.so.1")


@pytest.fixture(scope="module")
def stand_in_hip(tmp_path_factory):
    """Return the path of a stand-in for HIP's library, of ROCm 6."""
    return compiled(tmp_path_factory, HIP_C, "libamdhip64.so.6")


@pytest.fixture(scope="module")
def stand_in_level_zero(tmp_path_factory):
    """Return the path of a stand-in for the loader of Level Zero."""
    return compiled(tmp_path_factory, ZE_C, "libze_loader.so.1")


def compiled(tmp_path_factory, text, name):
    """Return the path of a library ``name`` made of a C file's text."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "source.c").write_text(text)
    path = str(folder / name)
    subprocess.check_call([compiler, "-shared", "-fPIC", "-Wl,--build-id", "-o", path, str(folder / "source.c")])
    return path
