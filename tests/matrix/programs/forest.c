/* A square whose cells p4est refines and spreads over the ranks. */
#include <p4est_extended.h>
#include <stdio.h>

static int refined(p4est_t *forest, p4est_topidx_t tree, p4est_quadrant_t *cell) {
    (void)forest;
    (void)tree;
    return cell->x == 0 && cell->y == 0;
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    sc_init(MPI_COMM_WORLD, 1, 1, NULL, SC_LP_ERROR);
    p4est_init(NULL, SC_LP_ERROR);
    p4est_connectivity_t *square = p4est_connectivity_new_unitsquare();
    p4est_t *forest = p4est_new_ext(MPI_COMM_WORLD, square, 0, 2, 1, 0, NULL, NULL);
    p4est_refine(forest, 0, refined, NULL);
    p4est_partition(forest, 0, NULL);
    if (rank == 0)
        printf("%d ranks, %lld cells\n", size, (long long)forest->global_num_quadrants);
    p4est_destroy(forest);
    p4est_connectivity_destroy(square);
    sc_finalize();
    MPI_Finalize();
    return 0;
}
