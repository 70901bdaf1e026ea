/* A dataset that all ranks write together, and read back. */
#include <hdf5.h>
#include <stdio.h>

#define EACH 1000

int main(int argc, char **argv)
{
    int rank, ranks;
    double mine[EACH], read[EACH], sum = 0, total;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    hsize_t size = (hsize_t)ranks * EACH, first = (hsize_t)rank * EACH, count = EACH;
    for (int i = 0; i < EACH; i++)
        mine[i] = rank + 1;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
    hid_t file = H5Fcreate("together.h5", H5F_ACC_TRUNC, H5P_DEFAULT, access);
    hid_t whole = H5Screate_simple(1, &size, NULL), part = H5Screate_simple(1, &count, NULL);
    hid_t data = H5Dcreate2(file, "x", H5T_NATIVE_DOUBLE, whole, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Sselect_hyperslab(whole, H5S_SELECT_SET, &first, NULL, &count, NULL);
    herr_t failed = H5Dwrite(data, H5T_NATIVE_DOUBLE, part, whole, transfer, mine);
    failed |= H5Dread(data, H5T_NATIVE_DOUBLE, part, whole, transfer, read);
    for (int i = 0; i < EACH; i++)
        sum += read[i];
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    H5Dclose(data);
    H5Fclose(file);
    if (rank == 0)
        printf("%d ranks wrote %.1f\n", ranks, total);
    MPI_Finalize();
    return failed < 0;
}
