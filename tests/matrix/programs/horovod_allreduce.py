"""A rank of the matrix in TensorFlow and Horovod: the same checks, and the same record, as allreduce.py."""

import importlib
import os
import sys
from typing import Any


def main() -> None:
    """Write the record, and end with 1 where the sum is wrong."""
    shared: Any = importlib.import_module("allreduce")
    tensorflow: Any = importlib.import_module("tensorflow")
    horovod: Any = importlib.import_module("horovod.tensorflow")
    horovod.init()
    rank, size = horovod.rank(), horovod.size()
    mine = tensorflow.constant([float(rank + 1 + place % 7) for place in range(shared.LENGTH)])
    total = horovod.allreduce(mine, op=horovod.Sum).numpy()
    wrong = sum(float(total[place]) != size * (size + 1) / 2 + size * (place % 7) for place in range(shared.LENGTH))
    host = os.uname().nodename
    record = {"rank": rank, "size": size, "wrong": wrong, "host": host, "says": "", "mapped": shared.mapped()}
    shared.write(record)
    horovod.shutdown()
    sys.exit(wrong != 0)


main()
