"""A Poisson problem in one dimension, solved by PETSc, its matrix spread over the ranks."""

import sys

import petsc4py

petsc4py.init(sys.argv)
from petsc4py import PETSc  # noqa: E402 (PETSc is started by then)

SIZE = 200
matrix = PETSc.Mat().createAIJ([SIZE, SIZE], nnz=3)
first, last = matrix.getOwnershipRange()
for row in range(first, last):
    for column, value in ((row - 1, -1.0), (row, 2.0), (row + 1, -1.0)):
        if 0 <= column < SIZE:
            matrix[row, column] = value
matrix.assemble()
answer, right = matrix.createVecs()
right.set(1.0)
solver = PETSc.KSP().create()
solver.setOperators(matrix)
solver.setType("cg")
solver.setTolerances(rtol=1e-10, max_it=1000)
solver.solve(right, answer)
residual = right - matrix * answer
PETSc.Sys.Print(f"{PETSc.COMM_WORLD.size} ranks, solved: {residual.norm() < 1e-6}")
