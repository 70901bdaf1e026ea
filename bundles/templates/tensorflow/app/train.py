"""Fit a line to noisy points, to see that TensorFlow trains; put your own training here."""

import json
import os

import numpy as np
import tensorflow as tf


def main() -> None:
    """Train, print the loss, and write it to the file that DEPLOYER_RESULT names."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))  # the threads of this rank
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    random = np.random.default_rng(0)
    points = random.uniform(-1, 1, (512, 1)).astype("float32")
    values = 3 * points + 1 + random.normal(0, 0.01, points.shape).astype("float32")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.learning_rate = 0.1
    loss = model.fit(points, values, batch_size=32, epochs=10, verbose=0).history["loss"][-1]
    print(f"TensorFlow {tf.__version__}: loss {loss:.5f}", flush=True)
    if os.environ.get("DEPLOYER_RESULT"):
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump({"loss": float(loss), "tensorflow": tf.__version__}, stream)


if __name__ == "__main__":
    main()
