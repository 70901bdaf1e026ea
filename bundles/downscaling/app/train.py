"""Train a network that downscales precipitation, data-parallel over all MPI ranks by Horovod.

From 20 coarse fields of 30 x 53 cells the network predicts, for each of 117 x 209 fine cells, the probability of rain
and the shape and scale of a gamma distribution of its amount. Its loss is the negative log-likelihood of that
Bernoulli-gamma distribution. The fields are generated, so no data has to be shipped. Each rank has its own shard.

Rank 0 writes what came out as JSON to the file that DEPLOYER_RESULT names; `deployer report` reads its "measured".
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

SEED = 20151
COARSE, FINE = (30, 53, 20), (117, 209)
#: Parameters as published.
PARAMETERS = 1_615_671
EPSILON = 1e-6
#: Waves that a generated coarse field is the sum of, and the part of fine cells with rain.
WAVES, WET = 6, 0.3


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


def day(random: np.random.Generator):
    """Return the coarse fields [30, 53, 20] of a day and its precipitation [117, 209].

    The fields are sums of long waves. A fixed mixture of them, seen on the fine grid and with noise, decides where it
    rains and how much.
    """
    y, x = (np.linspace(0, 1, size) for size in COARSE[:2])
    waves = random.normal(size=(4, WAVES, COARSE[2]))
    angle = 2 * np.pi * (waves[0] * y[:, None, None, None] + waves[1] * x[None, :, None, None] + waves[2])
    fields = (waves[3] * np.sin(angle)).sum(axis=2) / np.sqrt(WAVES / 2)
    mixture = np.cos(np.arange(COARSE[2])) / np.sqrt(COARSE[2] / 2)
    weather = fields @ mixture
    rows, columns = (np.arange(fine) * coarse // fine for fine, coarse in zip(FINE, COARSE[:2], strict=True))
    fine = weather[np.ix_(rows, columns)] + random.normal(0, 0.3, FINE)
    excess = np.maximum(fine - np.quantile(fine, 1 - WET), 0)
    amount = np.where(excess > 0, random.gamma(1.5, 1 + 4 * excess), 0)
    return fields.astype("float32"), amount.astype("float32")


def build_model() -> tf.keras.Model:
    """Return the untrained network."""
    layers = tf.keras.layers

    def convolutions(features, *kinds):
        for filters, size in kinds:
            features = layers.Conv2D(filters, size, padding="same", activation="relu")(features)
        return features

    fields = layers.Input(COARSE)
    branches = [convolutions(fields, (50, size), (25, size), (10, size)) for size in (2, 3, 5, 7, 9)]
    features = layers.UpSampling2D()(layers.Concatenate()(branches))
    features = layers.UpSampling2D()(convolutions(features, (50, 5), (75, 5), (100, 5)))
    features = convolutions(features, (132, 8))
    outputs = [layers.Conv2D(1, 4, activation=kind)(features) for kind in ("sigmoid", "linear", "linear")]
    return tf.keras.Model(fields, layers.Concatenate()(outputs), name="downscaling")


def bernoulli_gamma(amount, said):
    """Return the mean negative log-likelihood of precipitation under the predicted distributions."""
    wet_chance, alpha, beta = said[..., 0], tf.exp(said[..., 1]), tf.exp(said[..., 2])
    wet = tf.cast(amount > 0, tf.float32)
    gamma = (
        (alpha - 1) * tf.math.log(amount + EPSILON)
        - alpha * tf.math.log(beta + EPSILON)
        - tf.math.lgamma(alpha + EPSILON)
        - amount / (beta + EPSILON)
    )
    rain = tf.math.log(wet_chance + EPSILON) + gamma
    return -tf.reduce_mean((1 - wet) * tf.math.log(1 - wet_chance + EPSILON) + wet * rain)


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=16, help="fields of all ranks together (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=4, help="days per rank and step (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of one rank; scaled by the ranks")
    options = parser.parse_args()

    threads_from_environment()
    hvd.init()
    tf.keras.utils.set_random_seed(SEED + hvd.rank())
    active = itex_active()
    # Equal shards of whole batches: a rank with a step more than the others would wait for ever in its last allreduce.
    steps = options.days // hvd.size() // options.batch_size
    if steps < 1:
        sys.exit(f"downscaling: error: {options.days} days are less than a batch for each of {hvd.size()} ranks")
    random = np.random.default_rng(SEED + hvd.rank())
    fields, amounts = map(np.stack, zip(*(day(random) for _ in range(steps * options.batch_size)), strict=True))
    data = tf.data.Dataset.from_tensor_slices((fields, amounts))
    batches = data.shuffle(len(fields), seed=SEED).batch(options.batch_size, drop_remainder=True)

    model = build_model()
    if model.count_params() != PARAMETERS:
        sys.exit(f"downscaling: error: the network has {model.count_params()} parameters, not {PARAMETERS}")
    optimizer = tf.keras.optimizers.Adam(options.learning_rate * hvd.size())
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(coarse, amount):
        with tf.GradientTape() as tape:
            loss = bernoulli_gamma(amount, model(coarse, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    step.get_concrete_function(*(tf.TensorSpec((options.batch_size, *shape)) for shape in (COARSE, FINE)))
    epochs = []
    for number in range(options.epochs):
        began = time.monotonic()
        loss = float(hvd.allreduce(tf.reduce_mean([step(*batch) for batch in batches]), op=hvd.Average))
        epochs.append({"seconds": round(time.monotonic() - began, 3), "loss": round(loss, 5)})
        if hvd.rank() == 0:
            print(f"epoch {number + 1}: {json.dumps(epochs[-1])}", flush=True)
    if hvd.rank() == 0 and os.environ.get("DEPLOYER_RESULT"):
        payload = {
            "measured": {
                "workload": "downscaling",
                "settings": f"{options.days} days, batch {options.batch_size} per rank",
                "unit": "s/epoch",
                # The first epoch includes the time in which TensorFlow prepares its graph.
                "values": [epoch["seconds"] for epoch in epochs[1:] or epochs],
            },
            "epochs": epochs,
            "parameters": model.count_params(),
            "world_size": hvd.size(),
            "learning_rate": options.learning_rate * hvd.size(),
            "itex_active": active,
        }
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump(payload, stream)


if __name__ == "__main__":
    main()
