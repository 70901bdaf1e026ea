"""The threads of a rank under the real OpenMP libraries, GNU's and Intel's: each on its core, and no warning."""

import os
import subprocess
from pathlib import Path

import pytest

from deployer.contract.site import layout
from deployer.contract.site.plan import NodeShape
from tests.lab.software import download, lay_out

INTEL = "intel-openmp==2026.2.0 --hash=sha256:2308a1a3e74718a9cd8cccf218c34d8cd80b43d3b89dfbb01b38dee205c50980"
PROGRAM = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <omp.h>
int main(void) {
    int cpus[2] = {-1, -1};
    #pragma omp parallel
    {
        cpu_set_t own;
        sched_getaffinity(0, sizeof own, &own);
        if (CPU_COUNT(&own) == 1) cpus[omp_get_thread_num()] = sched_getcpu();
    }
    printf("%d %d\n", cpus[0] >= 0, cpus[0] != cpus[1]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that was built for GNU's OpenMP, with Intel's library beside it under GNU's name."""
    folder = tmp_path_factory.mktemp("openmp")
    argv = ["cc", "-fopenmp", "-x", "c", "-o", folder / "threads", "-"]
    subprocess.run(argv, input=PROGRAM, text=True, check=True)
    (folder / "pins.txt").write_text(INTEL + "\n")
    download(folder / "pins.txt", folder, os.environ)
    lay_out(folder.glob("*.whl"), folder)
    (folder / "lib" / "libgomp.so.1").symlink_to("libiomp5.so")
    return folder / "threads"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two threads need two CPUs")
@pytest.mark.parametrize("intel", [True, False])
def test_threads_are_bound_without_a_warning(program: Path, intel: bool) -> None:
    found = layout.environment(layout.lay_out(1, 1, 2, NodeShape(1, 2, 1, 1000)))
    if intel:
        found["LD_LIBRARY_PATH"] = str(program.parent / "lib")
    done = subprocess.run([program], env=found, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1 1\n", "")
    if intel:  # the library is there, and would complain
        more = {**found, "KMP_AFFINITY": "granularity=fine,compact,1,0"}
        done = subprocess.run([program], env=more, capture_output=True, text=True, check=True)
        assert "OMP_PLACES: ignored" in done.stderr
