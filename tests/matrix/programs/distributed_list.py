"""A list over all ranks."""

from mpi_list import Context

context = Context()
found = context.iterates(1000).map(str).filter(lambda text: "2" in text).len()
if context.rank == 0:
    print(f"{context.procs} ranks, {found} with a 2")
