"""Train 3DGAN on generated electromagnetic showers, data-parallel over all MPI ranks by Horovod.

The generator makes an image of 25 x 25 x 25 calorimeter cells from noise and the energy of a particle. The
discriminator tells real from generated images, and estimates the particle's energy and the sum of the cells. In each
step the discriminator learns from a batch of real and one of generated images, then the generator learns twice.
Real images come from a parametrised shower, so no data has to be shipped. Each rank has its own shard.

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
SIDE = 25
LATENT = 200
#: Parameters as published.
GENERATOR, DISCRIMINATOR = 872_948, 73_450
#: Weights of the losses: real or generated, energy of the particle, sum of the cells.
WEIGHTS = (6.0, 0.2, 0.1)
FLIPPED = 0.05  # labels that are wrong on purpose
ENERGIES = (1.0, 5.0)  # of a particle; in units of 100 GeV
DEPOSIT = 2.0  # the sum of the cells for a unit of energy

#: The shower: 1 unit is 100 GeV; the critical energy is about 10 MeV, as of tungsten; a cell is one radiation length.
CRITICAL_ENERGY = 1e-4
SLOPE = 0.5  # b of the longitudinal profile, per radiation length
CORE, HALO, IN_CORE = 1.0, 3.0, 0.8  # radial lengths in cells, and the part of the energy in the core
COARSENESS = 2e-3  # how much the energy of a cell fluctuates
NOISE = 1e-5  # cells below it are empty


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


def showers(count: int, random: np.random.Generator):
    """Return images [count, 25, 25, 25, 1] and the energies of their particles.

    The mean energy at a depth follows the gamma distribution of electromagnetic showers (Longo, Sestili), at a radius
    two exponentials. Energies of cells fluctuate around it as gamma distributions.
    """
    energy = random.uniform(*ENERGIES, count)
    shape = 1 + SLOPE * (np.log(energy / CRITICAL_ENERGY) + 0.5)  # the maximum is at ln(E / Ec) + 0.5
    shape *= random.normal(1, 0.05, count)
    depth = np.arange(SIDE) + 0.5
    along = np.exp((shape[:, None] - 1) * np.log(SLOPE * depth) - SLOPE * depth)
    along /= along.sum(axis=1, keepdims=True)
    middle = (SIDE - 1) / 2 + random.uniform(-0.5, 0.5, (count, 2))
    cells = np.arange(SIDE)
    radius = np.hypot(cells[None, :, None] - middle[:, 0, None, None], cells[None, None, :] - middle[:, 1, None, None])
    across = np.zeros_like(radius)
    for length, part in ((CORE, IN_CORE), (HALO, 1 - IN_CORE)):
        ring = np.exp(-radius / length)
        across += part * ring / ring.sum(axis=(1, 2), keepdims=True)
    mean = DEPOSIT * energy[:, None, None, None] * across[..., None] * along[:, None, None, :]
    images = random.gamma(mean / COARSENESS, COARSENESS)
    images[images < NOISE] = 0
    return images[..., np.newaxis].astype("float32"), energy.astype("float32")


def build_generator() -> tf.keras.Model:
    """Return the untrained generator: a latent vector to an image."""
    layers = tf.keras.layers

    def convolution(filters, size, padding):
        return layers.Conv3D(filters, size, padding=padding, kernel_initializer="he_uniform")

    return tf.keras.Sequential(
        [
            layers.Input((LATENT,)),
            layers.Dense(7 * 7 * 8 * 8),
            layers.Reshape((7, 7, 8, 8)),
            convolution(64, (6, 6, 8), "same"),
            layers.LeakyReLU(),
            layers.BatchNormalization(),
            layers.UpSampling3D((2, 2, 2)),
            layers.ZeroPadding3D((2, 2, 0)),
            convolution(6, (6, 5, 8), "valid"),
            layers.LeakyReLU(),
            layers.BatchNormalization(),
            layers.UpSampling3D((2, 2, 3)),
            layers.ZeroPadding3D((1, 0, 3)),
            convolution(6, (3, 3, 8), "valid"),
            layers.LeakyReLU(),
            layers.Conv3D(1, (2, 2, 2), use_bias=False, kernel_initializer="glorot_normal"),
            layers.ReLU(),
        ],
        name="generator",
    )


def build_discriminator() -> tf.keras.Model:
    """Return the untrained discriminator: an image to (is it real, energy of the particle, sum of the cells)."""
    layers = tf.keras.layers
    image = features = layers.Input((SIDE, SIDE, SIDE, 1))
    features = layers.Conv3D(32, 5, padding="same")(features)
    features = layers.Dropout(0.2)(layers.LeakyReLU()(features))
    for padding in (2, 2, 1):
        features = layers.Conv3D(8, 5)(layers.ZeroPadding3D(padding)(features))
        features = layers.BatchNormalization()(layers.LeakyReLU()(features))
        features = layers.Dropout(0.2)(features)
    features = layers.Flatten()(layers.AveragePooling3D()(features))
    real = layers.Dense(1, activation="sigmoid", name="real")(features)
    energy = layers.Dense(1, activation="linear", name="energy")(features)
    total = layers.Lambda(lambda cells: tf.reduce_sum(cells, axis=(1, 2, 3)), name="total")(image)
    return tf.keras.Model(image, [real, energy, total], name="discriminator")


def require_parameters(model: tf.keras.Model, published: int) -> None:
    """End this rank if a network is not the published one."""
    if model.count_params() != published:
        sys.exit(f"3dgan: error: the {model.name} has {model.count_params()} parameters, not {published}")


class Gan:
    """Both networks, their optimizers, and a step of the training."""

    def __init__(self, rate: float, batch: int) -> None:
        self.batch = batch
        self.generator, self.discriminator = build_generator(), build_discriminator()
        require_parameters(self.generator, GENERATOR)
        require_parameters(self.discriminator, DISCRIMINATOR)
        self.optimizers = [tf.keras.optimizers.RMSprop(rate) for _ in range(2)]
        for optimizer, model in zip(self.optimizers, (self.generator, self.discriminator), strict=True):
            optimizer.build(model.trainable_variables)

    @property
    def variables(self):
        """All that ranks must agree on before the first step."""
        models = [*self.generator.variables, *self.discriminator.variables]
        return models + [each for optimizer in self.optimizers for each in optimizer.variables]

    @staticmethod
    def _loss(said, label, energy, total):
        losses = tf.keras.losses
        parts = (
            losses.binary_crossentropy(label, said[0]),
            losses.mean_absolute_percentage_error(energy, said[1]),
            losses.mean_absolute_percentage_error(total, said[2]),
        )
        return sum(weight * tf.reduce_mean(part) for weight, part in zip(WEIGHTS, parts, strict=True))

    def _energies(self):
        return tf.random.uniform((self.batch, 1), *ENERGIES)

    def _noise(self, energy):
        return tf.random.normal((self.batch, LATENT)) * energy

    def _label(self, real: bool):
        """Return the labels of a batch; some are wrong, so that the discriminator does not become too sure."""
        flipped = tf.cast(tf.random.uniform((self.batch, 1)) < FLIPPED, tf.float32)
        return 1 - flipped if real else flipped

    def _learn(self, which: int, model, loss):
        with tf.GradientTape() as tape:
            value = loss()
        gradients = hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
        self.optimizers[which].apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    @tf.function
    def step(self, images, energy):
        """Train both on a batch of real images; return the losses of discriminator and generator."""
        total = tf.reduce_sum(images, axis=(1, 2, 3))

        def of_images(made, label, particle, cells):
            return lambda: self._loss(self.discriminator(made, training=True), label, particle, cells)

        real = self._learn(1, self.discriminator, of_images(images, self._label(True), energy, total))
        asked = self._energies()
        made = self.generator(self._noise(asked), training=True)
        fake = self._learn(1, self.discriminator, of_images(made, self._label(False), asked, DEPOSIT * asked))
        tricked = 0.0
        for _ in range(2):
            wanted = self._energies()

            def of_trick(wanted=wanted):
                said = self.discriminator(self.generator(self._noise(wanted), training=True), training=True)
                return self._loss(said, tf.ones((self.batch, 1)), wanted, DEPOSIT * wanted)

            tricked += self._learn(0, self.generator, of_trick)
        return (real + fake) / 2, tricked / 2


def main() -> None:
    """Train, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--showers", type=int, default=64, help="images of all ranks together (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="images a rank and step")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of one rank; scaled by the ranks")
    options = parser.parse_args()

    threads_from_environment()
    hvd.init()
    tf.keras.utils.set_random_seed(SEED + hvd.rank())
    active = itex_active()
    # Equal shards of whole batches: a rank with a step more than the others would wait for ever in its last allreduce.
    steps = options.showers // hvd.size() // options.batch_size
    if steps < 1:
        sys.exit(f"3dgan: error: {options.showers} showers are less than a batch for each of {hvd.size()} ranks")
    images, energies = showers(steps * options.batch_size, np.random.default_rng(SEED + hvd.rank()))
    data = tf.data.Dataset.from_tensor_slices((images, energies[:, np.newaxis]))
    batches = data.shuffle(len(images), seed=SEED).batch(options.batch_size, drop_remainder=True)

    gan = Gan(options.learning_rate * hvd.size(), options.batch_size)
    hvd.broadcast_variables(gan.variables, root_rank=0)
    began = time.monotonic()
    gan.step.get_concrete_function(
        tf.TensorSpec((options.batch_size, SIDE, SIDE, SIDE, 1)), tf.TensorSpec((options.batch_size, 1))
    )
    traced = time.monotonic() - began
    epochs = []
    for number in range(options.epochs):
        began = time.monotonic()
        losses = tf.reduce_mean([gan.step(*batch) for batch in batches], axis=0)
        discriminator, generator = (float(loss) for loss in hvd.allreduce(losses, op=hvd.Average))
        epochs.append({"seconds": round(time.monotonic() - began, 3), "discriminator_loss": round(discriminator, 5)})
        epochs[-1]["generator_loss"] = round(generator, 5)
        if hvd.rank() == 0:
            print(f"epoch {number + 1}: {json.dumps(epochs[-1])}", flush=True)
    if hvd.rank() == 0 and os.environ.get("DEPLOYER_RESULT"):
        payload = {
            "measured": {
                "workload": "3dgan",
                "settings": f"{options.showers} showers, batch {options.batch_size} per rank",
                "unit": "s/epoch",
                # The first epoch includes the time in which TensorFlow prepares its graph.
                "values": [epoch["seconds"] for epoch in epochs[1:] or epochs],
            },
            "epochs": epochs,
            "samples_per_epoch": steps * options.batch_size * hvd.size(),
            "parameters": {model.name: model.count_params() for model in (gan.generator, gan.discriminator)},
            "world_size": hvd.size(),
            "learning_rate": options.learning_rate * hvd.size(),
            "graph_seconds": round(traced, 3),
            "itex_active": active,
        }
        with open(os.environ["DEPLOYER_RESULT"], "w", encoding="utf-8") as stream:
            json.dump(payload, stream)


if __name__ == "__main__":
    main()
