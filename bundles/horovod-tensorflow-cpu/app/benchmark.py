"""Measure training on synthetic images, data-parallel over all MPI ranks by Horovod: images a second.

Every rank trains a network of Keras on one batch of random images that it keeps, so that nothing is measured but
computing and the exchange of gradients. After the warm-up each iteration of some batches gives one rate; mean and 95 %
interval are over the iterations. Rank 0 writes what came out as JSON to the file that DEPLOYER_RESULT names.
"""

import argparse
import importlib.util
import json
import os
import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

NETWORKS = ("ResNet50", "ResNet101", "InceptionV3", "MobileNetV2")
CLASSES = 1000


def threads_from_environment() -> None:
    """Give TensorFlow the threads that the job gave this rank: else it takes all cores of the node."""
    own = os.environ.get("OMP_NUM_THREADS", "1")
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ.get("TF_NUM_INTRAOP_THREADS", own)))
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("TF_NUM_INTEROP_THREADS", "1")))


def itex_active() -> bool:
    """Import ITEX where it is, and return whether its CPU backend is mapped: the only sure sign."""
    if importlib.util.find_spec("intel_extension_for_tensorflow"):
        import intel_extension_for_tensorflow  # noqa: F401
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return any("/libitex" in line for line in maps)


def interval(rates):
    """Return mean and half of the 95 % interval of one rank's rates."""
    return float(np.mean(rates)), float(1.96 * np.std(rates))


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default=NETWORKS[0])
    parser.add_argument("--batch-size", type=int, default=4, help="images a rank and batch")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batches", type=int, default=1, help="batches an iteration")
    parser.add_argument("--warm-up", type=int, default=1, help="iterations that do not count")
    parser.add_argument("--iterations", type=int, default=3, help="iterations that count")
    parser.add_argument(
        "--paced",
        action="store_true",
        help="an iteration for each line of standard input, to compare trainings in turn",
    )
    options = parser.parse_args()

    threads_from_environment()
    hvd.init()
    tf.keras.utils.set_random_seed(20151 + hvd.rank())
    active = itex_active()

    side = options.image_size
    network = getattr(tf.keras.applications, options.network)
    model = network(weights=None, input_shape=(side, side, 3), classes=CLASSES, classifier_activation=None)
    optimizer = tf.keras.optimizers.legacy.SGD(0.01)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images = tf.random.uniform((options.batch_size, side, side, 3))
    labels = tf.random.uniform((options.batch_size,), maxval=CLASSES, dtype=tf.int64)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def rate() -> float:
        began = time.monotonic()
        for _ in range(options.batches):
            step()
        return options.batch_size * options.batches / (time.monotonic() - began)

    began = time.monotonic()
    step()
    first_seconds = time.monotonic() - began
    hvd.broadcast_variables(model.variables, root_rank=0)
    for _ in range(options.warm_up):
        rate()
    if options.paced:
        print("ready", flush=True)
        for _ in sys.stdin:
            print(rate(), flush=True)
        return
    rates = [rate() for _ in range(options.iterations)]
    mean, half = interval(rates)
    if hvd.rank() == 0:
        print(f"{options.network}, {model.count_params()} parameters; first step {first_seconds:.1f} s")
        print(f"images a second: {mean:.2f} +- {half:.2f} a rank, {mean * hvd.size():.2f} on {hvd.size()} ranks")
        if os.environ.get("DEPLOYER_RESULT"):
            payload = {
                "network": options.network,
                "parameters": model.count_params(),
                "batch_size": options.batch_size,
                "world_size": hvd.size(),
                "images_per_second": round(mean * hvd.size(), 3),
                "images_per_second_rank": {"mean": round(mean, 3), "interval_95": round(half, 3)},
                "iterations": [round(value, 3) for value in rates],
                "first_step_seconds": round(first_seconds, 3),
                "itex_active": active,
            }
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump(payload, stream)


if __name__ == "__main__":
    main()
