"""Fit a line to noisy points on all ranks, to see that JAX trains together; put your own training here.

It reads MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, which `run` sets.
"""

import json
import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def loss_of(line, points, values):
    """Return the mean squared error over the points of all ranks."""
    return ((line[0] * points + line[1] - values) ** 2).mean()


@jax.jit
def step(line, points, values):
    """Return the line after one step, and the loss before it. JAX sums the gradient over the ranks."""
    loss, gradient = jax.value_and_grad(loss_of)(line, points, values)
    return line - 0.5 * gradient, loss


def main() -> None:
    """Train, print the loss, and write it to the file that DEPLOYER_RESULT names."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(address, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    random = np.random.default_rng(jax.process_index())  # each rank has points of its own
    points = random.uniform(-1, 1, 512).astype("float32")
    values = 3 * points + 1 + random.normal(0, 0.01, 512).astype("float32")
    split = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices"))
    everyone = [jax.make_array_from_process_local_data(split, own) for own in (points, values)]
    line, loss = np.zeros(2, "float32"), None
    for _ in range(100):
        line, loss = step(line, *everyone)
    if jax.process_index() == 0:
        found = {"loss": float(loss), "world_size": jax.process_count(), "jax": jax.__version__}
        print(f"JAX {jax.__version__} on {found['world_size']} ranks: loss {found['loss']:.5f}", flush=True)
        if os.environ.get("DEPLOYER_RESULT"):
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump(found, stream)


if __name__ == "__main__":
    main()
