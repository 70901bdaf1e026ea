"""Images per second of a Keras network on synthetic data, data-parallel over all MPI ranks by Horovod.

Ten iterations are counted after one to warm up; of each, ten batches. Rank 0 writes mean and 95 % interval as JSON to
the file that DEPLOYER_RESULT names. A rank takes the GPU of its own number on the node, the CPU where there is none.
"""

import argparse
import json
import os
import statistics
import time

import horovod.tensorflow as hvd
import tensorflow as tf

BATCHES = 10


def take_device() -> str:
    """Let this rank see its own GPU alone; return what it computes on."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        tf.config.threading.set_intra_op_parallelism_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        return "CPU"
    mine = gpus[hvd.local_rank() % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)
    return str(mine.name)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ResNet50", help="of tf.keras.applications")
    parser.add_argument("--batch", type=int, default=256, help="images a rank and step")
    parser.add_argument("--image", type=int, default=224, help="pixels a side")
    parser.add_argument("--iterations", type=int, default=10)
    args = parser.parse_args()
    hvd.init()
    device = take_device()
    model = getattr(tf.keras.applications, args.model)(weights=None, input_shape=(args.image, args.image, 3))
    optimizer = tf.keras.optimizers.legacy.SGD(0.01 * hvd.size())
    images = tf.random.uniform([args.batch, args.image, args.image, 3])
    labels = tf.random.uniform([args.batch], 0, 999, tf.int64)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()

    @tf.function
    def step(first):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        return loss

    step(True)
    rates = []
    for iteration in range(args.iterations + 1):
        began = time.perf_counter()
        for _ in range(BATCHES):
            loss = step(False)
        float(loss)  # until it is done
        if iteration:
            rates.append(args.batch * BATCHES / (time.perf_counter() - began))
    if hvd.rank() == 0:
        spread = 1.96 * statistics.stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0
        found = {
            "model": args.model,
            "parameters": model.count_params(),
            "ranks": hvd.size(),
            "device": device,
            "nccl": bool(hvd.nccl_built()),
            "images_per_second_a_rank": round(statistics.mean(rates), 3),
            "interval_95": round(spread, 3),
        }
        print(json.dumps(found), flush=True)
        if "DEPLOYER_RESULT" in os.environ:
            with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
                json.dump(found, stream)


if __name__ == "__main__":
    main()
