"""The published networks have the published parameters and shapes, and their generated data what they need.

TensorFlow is not installed here: a stand-in for its layers computes shapes and counts parameters. The programs check
the count of TensorFlow itself at each start.
"""

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

BUNDLES = Path(__file__).resolve().parents[4] / "bundles"
Shape = tuple[int, ...]
Layer = Callable[[Any], Any]


class Keras:
    """Stands for ``tf.keras.layers``. A tensor is its shape, without the batch; a layer is a function of shapes."""

    def __init__(self) -> None:
        self.parameters = 0

    def _same(self, *_: Any, **__: Any) -> Layer:
        return lambda shape: shape

    LeakyReLU = ReLU = Dropout = _same

    def Input(self, shape: Shape) -> Shape:  # noqa: N802
        return shape

    def Dense(self, units: int, **_: Any) -> Layer:  # noqa: N802
        def apply(shape: Shape) -> Shape:
            assert len(shape) == 1
            self.parameters += (shape[0] + 1) * units
            return (units,)

        return apply

    def Reshape(self, target: Shape) -> Layer:  # noqa: N802
        def apply(shape: Shape) -> Shape:
            assert math.prod(shape) == math.prod(target)
            return target

        return apply

    def Flatten(self) -> Layer:  # noqa: N802
        return lambda shape: (math.prod(shape),)

    def Lambda(self, *_: Any, **__: Any) -> Layer:  # noqa: N802
        return lambda shape: shape[-1:]

    def BatchNormalization(self) -> Layer:  # noqa: N802
        def apply(shape: Shape) -> Shape:
            self.parameters += 4 * shape[-1]
            return shape

        return apply

    def Conv(  # noqa: N802
        self, filters: int, size: Any, strides: int = 1, padding: str = "valid", use_bias: bool = True, **_: Any
    ) -> Layer:
        def apply(shape: Shape) -> Shape:
            sizes = each(size, shape)
            self.parameters += filters * (math.prod(sizes) * shape[-1] + use_bias)
            return (*windows(shape, sizes, strides, padding), filters)

        return apply

    Conv2D = Conv3D = Conv

    def Pooling(self, size: int = 2, strides: int | None = None, padding: str = "valid") -> Layer:  # noqa: N802
        return lambda shape: (*windows(shape, each(size, shape), strides or size, padding), shape[-1])

    MaxPooling2D = AveragePooling3D = Pooling

    def GlobalAveragePooling2D(self) -> Layer:  # noqa: N802
        return lambda shape: shape[-1:]

    def UpSampling2D(self, size: Any = 2) -> Layer:  # noqa: N802
        return lambda shape: (*(a * b for a, b in zip(shape, each(size, shape), strict=False)), shape[-1])

    UpSampling3D = UpSampling2D

    def ZeroPadding3D(self, size: Any) -> Layer:  # noqa: N802
        return lambda shape: (*(a + 2 * b for a, b in zip(shape, each(size, shape), strict=False)), shape[-1])

    def Concatenate(self) -> Layer:  # noqa: N802
        def apply(shapes: Sequence[Shape]) -> Shape:
            assert len({shape[:-1] for shape in shapes}) == 1
            return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))

        return apply


def each(size: Any, shape: Shape) -> Shape:
    """Return a size per dimension."""
    return (size,) * (len(shape) - 1) if isinstance(size, int) else size


def windows(shape: Shape, sizes: Shape, stride: int, padding: str) -> list[int]:
    """Return how many windows of these sizes there are along each dimension."""
    whole = padding == "same"
    return [-(-(a if whole else a - b + 1) // stride) for a, b in zip(shape, sizes, strict=False)]


def sequential(steps: Sequence[Any], **_: Any) -> Any:
    shape = steps[0]
    for layer in steps[1:]:
        shape = layer(shape)
    return shape


@pytest.fixture
def keras() -> Keras:
    return Keras()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, keras: Keras) -> Callable[[str], ModuleType]:
    """Return a function that imports a program of a definition; its models are the shapes of their outputs."""
    tensorflow = MagicMock()
    tensorflow.keras.layers = keras
    tensorflow.keras.Sequential = sequential
    tensorflow.keras.Model = lambda _, outputs, **__: outputs
    for name, module in (("tensorflow", tensorflow), ("horovod", MagicMock()), ("horovod.tensorflow", MagicMock())):
        monkeypatch.setitem(sys.modules, name, module)

    def load(path: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location("program", BUNDLES / path)
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_3dgan(program: Callable[[str], ModuleType], keras: Keras) -> None:
    app = program("3dgan/app/train.py")
    assert app.build_generator() == (25, 25, 25, 1)
    assert keras.parameters == app.GENERATOR == 872948
    keras.parameters = 0
    assert app.build_discriminator() == [(1,), (1,), (1,)]
    assert keras.parameters == app.DISCRIMINATOR == 73450
    assert (app.WEIGHTS, app.FLIPPED) == ((6.0, 0.2, 0.1), 0.05)


def test_downscaling(program: Callable[[str], ModuleType], keras: Keras) -> None:
    app = program("downscaling/app/train.py")
    assert app.build_model() == (117, 209, 3)
    assert keras.parameters == app.PARAMETERS == 1615671


def test_networks_of_the_benchmark(program: Callable[[str], ModuleType], keras: Keras) -> None:
    app = program("cnn-benchmark/app/benchmark.py")
    for network in ("AlexNet", "GoogLeNet"):
        side, parameters = app.NETWORKS[network]
        keras.parameters = 0
        assert app.build_model(network, side) == (1000,)
        assert keras.parameters == parameters
    known = {name: parameters for name, (_, parameters) in app.NETWORKS.items()}
    assert known.items() >= {"InceptionV3": 23851784, "ResNet50": 25636712, "ResNet101": 44707176}.items()


def test_the_paced_benchmark_without_a_line_ends_without_a_result(
    program: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app = program("cnn-benchmark/app/benchmark.py")
    model = MagicMock(**{"count_params.return_value": app.NETWORKS["ResNet50"][1]})
    monkeypatch.setattr(app, "build_model", lambda *_: model)
    monkeypatch.setattr(app, "paced", lambda: iter(()))
    monkeypatch.setattr(app, "hvd", horovod := MagicMock(**{"rank.return_value": 0}))
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--paced"])
    monkeypatch.setenv("DEPLOYER_RESULT", str(tmp_path / "result.json"))
    app.main()
    horovod.broadcast_variables.assert_called_once()
    horovod.allreduce.assert_not_called()
    assert list(tmp_path.iterdir()) == []


def test_showers_have_the_energy_and_the_profile_of_their_particles(program: Callable[[str], ModuleType]) -> None:
    app = program("3dgan/app/train.py")
    images, energies = app.showers(40, np.random.default_rng(1))
    assert images.shape == (40, 25, 25, 25, 1)
    assert energies.min() >= 1
    assert energies.max() <= 5
    assert images.sum(axis=(1, 2, 3, 4)) == pytest.approx(2 * energies, rel=0.15)
    along, across = images.sum(axis=(0, 1, 2, 4)), images.sum(axis=(0, 2, 3, 4))
    assert 7 <= along.argmax() <= 13  # radiation lengths: ln(E / Ec) + 0.5
    assert across.argmax() == 12
    assert across[12] > 5 * across[6] > 0
    assert 0.3 < (images == 0).mean() < 0.99


def test_precipitation_falls_on_a_part_of_the_cells(program: Callable[[str], ModuleType]) -> None:
    app = program("downscaling/app/train.py")
    fields, amount = app.day(np.random.default_rng(1))
    assert (fields.shape, amount.shape) == ((30, 53, 20), (117, 209))
    assert (amount > 0).mean() == pytest.approx(app.WET, abs=0.01)
    assert amount.min() == 0
    assert fields.std() == pytest.approx(1, abs=0.3)
