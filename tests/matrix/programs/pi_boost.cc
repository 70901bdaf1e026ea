// The area below 4 / (1 + x * x), by Boost.MPI.
#include <boost/mpi.hpp>
#include <cstdio>
#include <functional>

int main()
{
    boost::mpi::environment environment;
    boost::mpi::communicator world;
    const int steps = 20000000;
    double mine = 0, sum = 0;
    for (int i = world.rank(); i < steps; i += world.size()) {
        double x = (i + 0.5) / steps;
        mine += 4 / (1 + x * x);
    }
    boost::mpi::reduce(world, mine, sum, std::plus<double>(), 0);
    if (world.rank() == 0)
        std::printf("pi is %.8f by %d ranks\n", sum / steps, world.size());
    return 0;
}
