"""Train a small CNN on handwritten digits, data-parallel over all MPI ranks by Horovod.

Each rank trains on its own shard of the 1,437 training images; gradients are averaged by Horovod, the learning rate is
scaled by the number of ranks. The other 360 images are held out, the same for every rank and every world size.
Rank 0 writes what came out as JSON to the file that DEPLOYER_RESULT names.

With DEPLOYER_CHECKPOINT (`run --again N`), SIGUSR1 makes all ranks stop after the epoch. Rank 0 saves model, optimizer
and epochs in that folder, and all end with SAVED: the next job continues there.
"""

import argparse
import importlib.util
import json
import os
import signal
import sys
import time

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

DATA = "/opt/digits/digits.npz"
SEED = 20151
HELD_OUT = 360  # 20 %
CLASSES = 10
SAVED = 85  # docs/exit-codes.md


def threads_from_environment() -> None:
    """Give TensorFlow the threads that the job gave this rank: else it takes all cores of the node."""
    own = os.environ.get("OMP_NUM_THREADS", "1")
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ.get("TF_NUM_INTRAOP_THREADS", own)))
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("TF_NUM_INTEROP_THREADS", "1")))


def load_digits():
    """Return train images, train labels, held-out images, held-out labels; images are float32 [n, 8, 8, 1] in 0..1."""
    with np.load(DATA) as data:
        images, labels = data["images"].astype("float32")[..., np.newaxis] / 16.0, data["labels"].astype("int64")
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], labels[order]
    return images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT]


def build_model() -> tf.keras.Model:
    """Return the untrained CNN."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(CLASSES),
        ]
    )


def itex_active() -> bool:
    """Import ITEX where it is, and return whether its CPU backend is mapped: the only sure sign."""
    if importlib.util.find_spec("intel_extension_for_tensorflow"):
        import intel_extension_for_tensorflow  # noqa: F401
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return any("/libitex" in line for line in maps)


class EpochTimes(tf.keras.callbacks.Callback):
    """Collect the seconds and the metrics, averaged over the ranks, of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = []
        self._began = 0.0

    def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
        """Start the clock."""
        self._began = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        """Note an epoch; rank 0 prints it."""
        row = {"epoch": epoch + 1, "seconds": round(time.monotonic() - self._began, 3)}
        row.update({name: round(float((logs or {})[name]), 5) for name in ("loss", "accuracy", "val_accuracy")})
        self.epochs.append(row)
        if hvd.rank() == 0:
            print(
                f"epoch {row['epoch']}: {row['seconds']:.2f} s, loss {row['loss']:.4f}, "
                f"accuracy {row['accuracy']:.4f}, val_accuracy {row['val_accuracy']:.4f}",
                flush=True,
            )


class Saving(tf.keras.callbacks.Callback):
    """Stop after the epoch in which a rank was warned of the time limit, and save what the next job needs."""

    def __init__(self, folder: str, times: EpochTimes) -> None:
        super().__init__()
        self.folder, self.times = folder, times
        self.warned = self.saved = False
        signal.signal(signal.SIGUSR1, self._warn)

    def _warn(self, *_) -> None:
        self.warned = True

    @staticmethod
    def _sum(flag: bool) -> bool:
        """Return whether any rank's flag is set; all ranks wait for each other."""
        return float(hvd.allreduce(tf.constant(float(flag)), op=hvd.Sum)) > 0

    def restore(self, model) -> int:
        """Load the saved state, if there is one, and return the number of epochs that it has seen."""
        path = os.path.join(self.folder, "state.json")
        if not os.path.exists(path):
            return 0
        with open(path, encoding="utf-8") as stream:
            state = json.load(stream)
        model.optimizer.build(model.trainable_variables)
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(state["checkpoint"]).assert_consumed()
        self.times.epochs = state["epochs"]
        return len(state["epochs"])

    def on_epoch_end(self, epoch, logs=None):  # noqa: ARG002
        """Save and stop if any rank was warned: all ranks decide alike."""
        if not self._sum(self.warned):
            return
        if hvd.rank() == 0:
            checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.model.optimizer)
            written = checkpoint.write(os.path.join(self.folder, f"epoch-{epoch + 1}"))
            part = os.path.join(self.folder, "state.part")
            with open(part, "w", encoding="utf-8") as stream:
                json.dump({"checkpoint": written, "epochs": self.times.epochs}, stream)
            os.replace(part, os.path.join(self.folder, "state.json"))
        self._sum(True)  # until rank 0 has written
        self.saved = self.model.stop_training = True


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="images a rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of one rank; scaled by the ranks")
    options = parser.parse_args()

    threads_from_environment()
    hvd.init()
    times, saving = EpochTimes(), None
    if os.environ.get(
        "DEPLOYER_CHECKPOINT"
    ):  # at once: from hvd.init() to here, SIGUSR1 would go to a handler of MPI's
        saving = Saving(os.environ["DEPLOYER_CHECKPOINT"], times)
    tf.keras.utils.set_random_seed(SEED + hvd.rank())
    active = itex_active()

    train_images, train_labels, val_images, val_labels = load_digits()
    # Equal shards: a rank with a step more than the others would wait for ever in its last allreduce.
    share = len(train_images) // hvd.size()
    mine = slice(hvd.rank() * share, (hvd.rank() + 1) * share)

    model = build_model()
    learning_rate = options.learning_rate * hvd.size()
    model.compile(
        optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(learning_rate)),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        times,  # after the average: it sees the mean over the ranks
    ]
    begun = 0
    if saving:
        begun = saving.restore(model)
        callbacks.append(saving)
    model.fit(
        train_images[mine],
        train_labels[mine],
        batch_size=options.batch_size,
        epochs=options.epochs,
        initial_epoch=begun,
        shuffle=True,
        validation_data=(val_images, val_labels),
        callbacks=callbacks,
        verbose=0,
    )
    if saving and saving.saved and len(times.epochs) < options.epochs:
        sys.exit(SAVED)
    if hvd.rank() == 0 and os.environ.get("DEPLOYER_RESULT"):
        payload = {
            "continued_from": begun,
            "val_accuracy": times.epochs[-1]["val_accuracy"],
            "epochs": times.epochs,
            "samples_per_epoch": share * hvd.size(),
            "world_size": hvd.size(),
            "learning_rate": learning_rate,
            "parameters": model.count_params(),
            "itex_active": active,
            "threads": [
                tf.config.threading.get_intra_op_parallelism_threads(),
                tf.config.threading.get_inter_op_parallelism_threads(),
            ],
        }
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump(payload, stream)


if __name__ == "__main__":
    main()
