/* A one-dimensional Laplace equation, solved by hypre's conjugate gradients. */
#include <HYPRE.h>
#include <HYPRE_IJ_mv.h>
#include <HYPRE_krylov.h>
#include <HYPRE_parcsr_ls.h>
#include <mpi.h>
#include <stdio.h>

#define EACH 10

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    HYPRE_Init();
    HYPRE_Int first = rank * EACH, last = first + EACH - 1, all = size * EACH;
    HYPRE_IJMatrix matrix;
    HYPRE_IJVector right, found;
    HYPRE_IJMatrixCreate(MPI_COMM_WORLD, first, last, first, last, &matrix);
    HYPRE_IJMatrixSetObjectType(matrix, HYPRE_PARCSR);
    HYPRE_IJMatrixInitialize(matrix);
    HYPRE_IJVectorCreate(MPI_COMM_WORLD, first, last, &right);
    HYPRE_IJVectorSetObjectType(right, HYPRE_PARCSR);
    HYPRE_IJVectorInitialize(right);
    HYPRE_IJVectorCreate(MPI_COMM_WORLD, first, last, &found);
    HYPRE_IJVectorSetObjectType(found, HYPRE_PARCSR);
    HYPRE_IJVectorInitialize(found);
    for (HYPRE_Int row = first; row <= last; row++) {
        HYPRE_Int columns[3], count = 0;
        double values[3];
        for (HYPRE_Int column = row - 1; column <= row + 1; column++)
            if (column >= 0 && column < all) {
                columns[count] = column;
                values[count++] = column == row ? 2.0 : -1.0;
            }
        HYPRE_IJMatrixSetValues(matrix, 1, &count, &row, columns, values);
        double one = row == 0 || row == all - 1 ? 1.0 : 0.0, zero = 0.0; /* the solution is 1 */
        HYPRE_IJVectorSetValues(right, 1, &row, &one);
        HYPRE_IJVectorSetValues(found, 1, &row, &zero);
    }
    HYPRE_IJMatrixAssemble(matrix);
    HYPRE_IJVectorAssemble(right);
    HYPRE_IJVectorAssemble(found);
    HYPRE_ParCSRMatrix a;
    HYPRE_ParVector b, x;
    HYPRE_IJMatrixGetObject(matrix, (void **)&a);
    HYPRE_IJVectorGetObject(right, (void **)&b);
    HYPRE_IJVectorGetObject(found, (void **)&x);
    HYPRE_Solver solver;
    HYPRE_ParCSRPCGCreate(MPI_COMM_WORLD, &solver);
    HYPRE_PCGSetMaxIter(solver, 100);
    HYPRE_PCGSetTol(solver, 1e-10);
    HYPRE_ParCSRPCGSetup(solver, a, b, x);
    HYPRE_ParCSRPCGSolve(solver, a, b, x);
    double product;
    HYPRE_ParVectorInnerProd(x, x, &product);
    if (rank == 0)
        printf("%d ranks, mean square %.6f\n", size, product / all);
    HYPRE_ParCSRPCGDestroy(solver);
    HYPRE_Finalize();
    MPI_Finalize();
    return 0;
}
