"""Measure the training of published networks on random images, data-parallel over all MPI ranks by Horovod.

Every rank trains on one batch of random images that it keeps, so that nothing is measured but computing and the
exchange of gradients. Iterations of some batches warm up; those that follow count, each with the rate of all ranks
together. Shown are the mean of these rates with its 95 % interval, t s / sqrt(n), and under its own name what published
scripts print after "+-": 1.96 standard deviations of the rates of one rank.

Rank 0 writes what came out as JSON to the file that DEPLOYER_RESULT names; `deployer report` reads its "measured".
"""

import argparse
import importlib.util
import json
import math
import os
import resource
import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

CLASSES = 1000
#: Networks with the width of their images and their parameters, as published.
NETWORKS = {
    "AlexNet": (227, 61_838_248),
    "VGG16": (224, 138_357_544),
    "GoogLeNet": (224, 6_998_552),
    "InceptionV3": (299, 23_851_784),
    "ResNet50": (224, 25_636_712),
    "ResNet101": (224, 44_707_176),
}
#: GoogLeNet's modules: filters of 1 x 1, before and in 3 x 3, before and in 5 x 5, after pooling; None: a pooling.
MODULES = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


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


def alexnet(side: int) -> tf.keras.Model:
    """Return AlexNet in one tower, as benchmarks train it: without local response normalization."""
    layers = tf.keras.layers

    def convolution(filters, size):
        return layers.Conv2D(filters, size, padding="same", activation="relu")

    return tf.keras.Sequential(
        [
            layers.Input((side, side, 3)),
            layers.Conv2D(64, 11, 4, activation="relu"),
            layers.MaxPooling2D(3, 2),
            convolution(192, 5),
            layers.MaxPooling2D(3, 2),
            convolution(384, 3),
            convolution(384, 3),
            convolution(256, 3),
            layers.MaxPooling2D(3, 2),
            layers.Flatten(),
            layers.Dense(4096, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(4096, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(CLASSES),
        ]
    )


def googlenet(side: int) -> tf.keras.Model:
    """Return GoogLeNet without its auxiliary outputs."""
    layers = tf.keras.layers

    def convolution(features, filters, size, stride=1):
        return layers.Conv2D(filters, size, stride, padding="same", activation="relu")(features)

    def pooling(features, stride):
        return layers.MaxPooling2D(3, stride, padding="same")(features)

    def module(features, one, before_three, three, before_five, five, pooled):
        branches = (
            convolution(features, one, 1),
            convolution(convolution(features, before_three, 1), three, 3),
            convolution(convolution(features, before_five, 1), five, 5),
            convolution(pooling(features, 1), pooled, 1),
        )
        return layers.Concatenate()(branches)

    image = layers.Input((side, side, 3))
    features = pooling(convolution(image, 64, 7, 2), 2)
    features = pooling(convolution(convolution(features, 64, 1), 192, 3), 2)
    for filters in MODULES:
        features = module(features, *filters) if filters else pooling(features, 2)
    features = layers.Dropout(0.4)(layers.GlobalAveragePooling2D()(features))
    return tf.keras.Model(image, layers.Dense(CLASSES)(features))


def build_model(network: str, side: int) -> tf.keras.Model:
    """Return an untrained network."""
    own = {"AlexNet": alexnet, "GoogLeNet": googlenet}
    if network in own:
        return own[network](side)
    keras = getattr(tf.keras.applications, network)
    return keras(weights=None, input_shape=(side, side, 3), classes=CLASSES, classifier_activation=None)


def half_interval(values) -> float:
    """Return half of the 95 % interval of the mean: t s / sqrt(n), t of Student's distribution."""
    count = len(values)
    if count < 2:
        return math.nan
    free, low, high = tf.constant(count - 1.0, tf.float64), 0.0, 16.0
    for _ in range(60):
        middle = (low + high) / 2
        outside = float(tf.math.betainc(free / 2, tf.constant(0.5, tf.float64), free / (free + middle**2)))
        low, high = (middle, high) if outside > 0.05 else (low, middle)
    return high * float(np.std(values, ddof=1)) / math.sqrt(count)


def paced():
    """Yield on all ranks for each line of rank 0's standard input."""
    if hvd.rank() == 0:
        print("ready", flush=True)
    while hvd.broadcast(tf.constant(hvd.rank() == 0 and bool(sys.stdin.readline())), root_rank=0):
        yield


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="ResNet50")
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and batch")
    parser.add_argument("--image-size", type=int, help="default: as published")
    parser.add_argument("--batches", type=int, default=10, help="batches an iteration")
    parser.add_argument("--warm-up", type=int, default=10, help="iterations that do not count")
    parser.add_argument("--iterations", type=int, default=10, help="iterations that count")
    parser.add_argument(
        "--paced",
        action="store_true",
        help="an iteration for each line of rank 0's standard input, to compare trainings in turn",
    )
    options = parser.parse_args()

    threads_from_environment()
    hvd.init()
    tf.keras.utils.set_random_seed(20151 + hvd.rank())
    active = itex_active()

    published_side, parameters = NETWORKS[options.network]
    side = options.image_size or published_side
    model = build_model(options.network, side)
    if side == published_side and model.count_params() != parameters:
        sys.exit(f"cnn-benchmark: error: {options.network} has {model.count_params()} parameters, not {parameters}")
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
    own = []
    for _ in paced() if options.paced else range(options.iterations):
        own.append(rate())
        if options.paced and hvd.rank() == 0:
            print(own[-1] * hvd.size(), flush=True)
    if not own:  # no line came; the same on all ranks
        return
    rates = hvd.allreduce(tf.constant(own, tf.float64), op=hvd.Sum).numpy().tolist()
    memory = max(
        hvd.allgather(tf.constant([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])).numpy().tolist()
    )
    if hvd.rank() == 0:
        mean, half, spread = float(np.mean(rates)), half_interval(rates), 1.96 * float(np.std(own))
        print(f"{options.network}, {model.count_params()} parameters; first step {first_seconds:.1f} s")
        print(f"images a second on {hvd.size()} ranks: {mean:.2f} +- {half:.2f} (95 % interval of the mean)")
        print(f"published scripts' formula, 1.96 standard deviations: {np.mean(own):.2f} +- {spread:.2f} a rank")
        if os.environ.get("DEPLOYER_RESULT"):
            payload = {
                "measured": {
                    "workload": options.network,
                    "settings": f"batch {options.batch_size} per rank, {side} x {side}",
                    "unit": "images/s",
                    "values": [round(value, 4) for value in rates],
                },
                "network": options.network,
                "parameters": model.count_params(),
                "batch_size": options.batch_size,
                "world_size": hvd.size(),
                "images_per_second": {
                    "mean": round(mean, 3),
                    "interval_95": None if math.isnan(half) else round(half, 3),
                },
                "published_formula_per_rank": {
                    "mean": round(float(np.mean(own)), 3),
                    "spread_1_96_sd": round(spread, 3),
                },
                "memory_mib": round(memory, 1),
                "first_step_seconds": round(first_seconds, 3),
                "itex_active": active,
            }
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump(payload, stream)


if __name__ == "__main__":
    main()
