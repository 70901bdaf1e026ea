// Words that the ranks count together by MapReduce-MPI.
#include <cstdio>
#include <cstring>

#include <mpi.h>
#include <mapreduce.h>
#include <keyvalue.h>

using namespace MAPREDUCE_NS;

static void emit(int task, KeyValue *pairs, void *) {
    static const char *words[] = {"one", "two", "two", "three", "three", "three"};
    char *word = const_cast<char *>(words[task]);
    pairs->add(word, static_cast<int>(strlen(word)) + 1, nullptr, 0);
}

static void count(char *key, int size, char *, int, int *, KeyValue *pairs, void *) { pairs->add(key, size, nullptr, 0); }

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    {
        MapReduce words(MPI_COMM_WORLD);
        words.memsize = 1;
        words.map(6, emit, nullptr);
        words.collate(nullptr);
        uint64_t different = words.reduce(count, nullptr);
        if (rank == 0)
            printf("%d ranks, %llu words\n", size, static_cast<unsigned long long>(different));
    }
    MPI_Finalize();
    return 0;
}
