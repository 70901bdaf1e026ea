"""The largest eigenvalue of a matrix that is shared among the ranks."""

import sys

import slepc4py

slepc4py.init(sys.argv)

from petsc4py import PETSc  # noqa: E402 (after init)
from slepc4py import SLEPc  # noqa: E402

n = 20
A = PETSc.Mat().createAIJ([n, n], nnz=3)
A.setUp()
for i in range(*A.getOwnershipRange()):
    A[i, i] = 2.0
    if i > 0:
        A[i, i - 1] = -1.0
    if i < n - 1:
        A[i, i + 1] = -1.0
A.assemble()
solver = SLEPc.EPS().create()
solver.setOperators(A)
solver.setProblemType(SLEPc.EPS.ProblemType.HEP)
solver.solve()
PETSc.Sys.Print(f"{PETSc.COMM_WORLD.size} ranks, largest {solver.getEigenvalue(0).real:.4f}")
