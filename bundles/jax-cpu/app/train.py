"""Train a small CNN on handwritten digits, data-parallel over the devices of all ranks by JAX.

Each rank holds its own shard of the 1,437 training images; the loss is the mean over all ranks, so that JAX sums the
gradients over NCCL on GPUs and over gloo on CPUs. The learning rate is scaled by the number of ranks. The other 360
images are held out, the same for every rank and every world size. Rank 0 writes what came out as JSON to the file that
DEPLOYER_RESULT names.

It needs MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, which launchers of PyTorch set as well.
"""

import argparse
import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA = "/opt/digits/digits.npz"
SEED = 20151
HELD_OUT = 360  # 20 %
CLASSES = 10
#: Adam's own, as everywhere.
DECAY, DECAY_SQUARES, EPSILON = 0.9, 0.999, 1e-8


def load_digits():
    """Return train images, train labels, held-out images, held-out labels; images are float32 [n, 8, 8, 1] in 0..1."""
    with np.load(DATA) as data:
        images, labels = data["images"].astype("float32")[..., np.newaxis] / 16.0, data["labels"].astype("int32")
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], labels[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def build_model():
    """Return the untrained weights of the CNN, the same on every rank."""
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (4 * 4 * 64, 128), "dense2": (128, CLASSES)}
    random = np.random.default_rng(SEED)
    model = {}
    for name, shape in shapes.items():
        inputs = int(np.prod(shape[:-1]))
        model[name] = (random.standard_normal(shape) * np.sqrt(2 / inputs)).astype("float32")
        model[name + "_bias"] = np.zeros(shape[-1], "float32")
    return model


def logits(model, images):
    """Return the scores of the classes for each image."""
    found = images
    for name in ("conv1", "conv2"):
        found = jax.lax.conv_general_dilated(
            found, model[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        found = jax.nn.relu(found + model[name + "_bias"])
    found = jax.lax.reduce_window(found, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    found = found.reshape(found.shape[0], -1)
    found = jax.nn.relu(found @ model["dense1"] + model["dense1_bias"])
    return found @ model["dense2"] + model["dense2_bias"]


def loss_of(model, images, labels):
    """Return the mean cross entropy over the images of all ranks."""
    chances = jax.nn.log_softmax(logits(model, images))
    return -jnp.take_along_axis(chances, labels[:, None], 1).mean()


def train_step(state, images, labels, learning_rate):
    """Return the state after one step of Adam, and the loss before it."""
    model, mean, squares, step = state
    loss, gradient = jax.value_and_grad(loss_of)(model, images, labels)
    step = step + 1
    mean = jax.tree.map(lambda old, new: DECAY * old + (1 - DECAY) * new, mean, gradient)
    squares = jax.tree.map(lambda old, new: DECAY_SQUARES * old + (1 - DECAY_SQUARES) * new**2, squares, gradient)
    rate = learning_rate * jnp.sqrt(1 - DECAY_SQUARES**step) / (1 - DECAY**step)
    model = jax.tree.map(lambda old, m, s: old - rate * m / (jnp.sqrt(s) + EPSILON), model, mean, squares)
    return (model, mean, squares, step), loss


def weights_are_equal(model) -> bool:
    """Return whether all ranks ended with the same weights, bit by bit."""
    from jax.experimental import multihost_utils

    own = np.concatenate([np.asarray(item.addressable_data(0)).ravel() for item in jax.tree.leaves(model)])
    everyone = multihost_utils.process_allgather(own, tiled=False).reshape(jax.process_count(), -1)
    return all(np.array_equal(own, other) for other in everyone)


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of one rank; scaled by the ranks")
    options = parser.parse_args()

    environment = os.environ
    jax.distributed.initialize(
        f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}",
        int(environment["WORLD_SIZE"]),
        int(environment["RANK"]),
    )
    rank, ranks = jax.process_index(), jax.process_count()

    train_images, train_labels, val_images, val_labels = load_digits()
    share = len(train_images) // ranks
    images, labels = (array[rank * share : (rank + 1) * share] for array in (train_images, train_labels))

    mesh = Mesh(np.array(jax.devices()), ("devices",))
    split = NamedSharding(mesh, PartitionSpec("devices"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    learning_rate = options.learning_rate * ranks
    step = jax.jit(train_step, out_shardings=everywhere)
    model = build_model()
    zeros = jax.tree.map(np.zeros_like, model)
    state = jax.device_put((model, zeros, zeros, np.float32(0)), everywhere)
    accuracy = jax.jit(
        lambda model: (logits(model, val_images).argmax(1) == val_labels).mean(), out_shardings=everywhere
    )

    random = np.random.default_rng(SEED + rank)
    epochs = []
    for epoch in range(options.epochs):
        began, losses = time.monotonic(), []
        order = random.permutation(share)
        for first in range(0, share - options.batch_size + 1, options.batch_size):
            chosen = order[first : first + options.batch_size]
            batch = (jax.make_array_from_process_local_data(split, array[chosen]) for array in (images, labels))
            state, loss = step(state, *batch, learning_rate)
            losses.append(loss)
        loss, right = (
            np.mean([float(each) for each in losses]),
            float(accuracy(state[0])),
        )  # waits until they are computed
        row = {
            "epoch": epoch + 1,
            "seconds": round(time.monotonic() - began, 3),
            "loss": round(float(loss), 5),
            "val_accuracy": round(right, 5),
        }
        epochs.append(row)
        if rank == 0:
            print(
                f"epoch {row['epoch']}: {row['seconds']:.2f} s, loss {row['loss']:.4f}, "
                f"val_accuracy {row['val_accuracy']:.4f}",
                flush=True,
            )
    equal = weights_are_equal(state[0])
    if rank == 0 and environment.get("DEPLOYER_RESULT"):
        payload = {
            "val_accuracy": epochs[-1]["val_accuracy"],
            "epochs": epochs,
            "world_size": ranks,
            "devices": jax.device_count(),
            "device": jax.local_devices()[0].device_kind,
            "weights_equal": equal,
            "learning_rate": learning_rate,
            "parameters": sum(item.size for item in jax.tree.leaves(model)),
            "jax": jax.__version__,
        }
        with open(environment["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump(payload, stream)


if __name__ == "__main__":
    main()
