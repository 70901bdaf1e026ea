"""Handwritten digits on one Intel GPU, with TensorFlow and Intel's extension; on a processor if there is no GPU.

Three quarters of the images train a small network, the others test it. Writes ``$DEPLOYER_RESULT``.
"""

import json
import os
import time

import numpy as np
import tensorflow as tf

EPOCHS, BATCH = 20, 64


def main() -> None:
    """Train, test and write the result."""
    devices = tf.config.list_physical_devices("XPU")
    with np.load("/opt/digits/digits.npz") as digits:
        images, labels = digits["images"].astype("float32") / 16.0, digits["labels"]
    train, test = slice(None, 1437), slice(1437, None)
    layers = [tf.keras.layers.Flatten(), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential(layers)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    started = time.perf_counter()
    with tf.device("/XPU:0" if devices else "/CPU:0"):
        model.fit(images[train], labels[train], BATCH, EPOCHS, verbose=2)
        _, accuracy = model.evaluate(images[test], labels[test], verbose=0)
    result = {
        "devices": [device.name for device in devices],
        "accuracy": round(float(accuracy), 4),
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(json.dumps(result))
    path = os.environ.get("DEPLOYER_RESULT")
    if path:
        with open(path, "w") as stream:
            json.dump(result, stream)


if __name__ == "__main__":
    main()
