"""Make data of the same form as the published sets, which cannot be had without internet. Runs in the image "torch".

    python3 standins.py OUTPUT

Images are the 1,797 handwritten digits that scikit-learn has, enlarged; the rest is drawn by a generator with a seed.
Sizes are small, so that trainings end within a minute; names, keys, types and shapes are those of the originals.
"""

import codecs
import os
import pickle
import struct
import sys

import joblib
import numpy as np
from PIL import Image
from sklearn import datasets

TRAIN, TEST = 1536, 256
random = np.random.RandomState(18)


def digits():
    """Return images of 28 x 28 pixels and their labels, as many as TRAIN and TEST ask for."""
    small = datasets.load_digits()
    large = np.kron(small.images, np.ones((3, 3)))  # 8 x 8 to 24 x 24
    large = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    return (large * 255 / 16).astype("uint8"), small.target.astype("uint8")


def idx(path, array):
    """Write an array as MNIST's own files are: magic number, sizes, bytes."""
    with open(path, "wb") as stream:
        stream.write(struct.pack(">I", 0x0800 + array.ndim) + struct.pack(f">{array.ndim}I", *array.shape))
        stream.write(array.tobytes())


def mnist(out):
    images, labels = digits()
    parts = {"train": slice(0, TRAIN), "t10k": slice(TRAIN, TRAIN + TEST)}
    raw = os.path.join(out, "torchvision", "MNIST", "raw")
    os.makedirs(raw)
    for name, part in parts.items():
        idx(os.path.join(raw, f"{name}-images-idx3-ubyte"), images[part])
        idx(os.path.join(raw, f"{name}-labels-idx1-ubyte"), labels[part])
    train, test = parts["train"], parts["t10k"]
    np.savez_compressed(
        os.path.join(out, "corpus", "keras", "mnist.npz"),
        x_train=images[train],
        y_train=labels[train],
        x_test=images[test],
        y_test=labels[test],
    )


def texts(out):
    """Reuters' and IMDB's reviews as lists of numbers: a class prefers its own numbers, so it can be learned."""
    for name, classes, count in (("reuters", 46, 1000), ("imdb", 2, 400)):
        labels = np.arange(2 * count) % classes
        words = [list(random.randint(4 + 20 * label, 400 + 20 * label, random.randint(20, 120))) for label in labels]
        x = np.array(words, dtype=object)
        path = os.path.join(out, "corpus", "keras", f"{name}.npz")
        if name == "reuters":
            np.savez_compressed(path, x=x, y=labels)
        else:
            np.savez_compressed(
                path, x_train=x[:count], y_train=labels[:count], x_test=x[count:], y_test=labels[count:]
            )


def sklearn(out):
    folder = os.path.join(out, "corpus", "sklearn")
    people = random.rand(40, 1, 64, 64)
    faces = np.clip(people + 0.1 * random.rand(40, 10, 64, 64), 0, 1).reshape(400, -1).astype("float32")
    joblib.dump(faces, os.path.join(folder, "olivetti_py3.pkz"), compress=6)
    housing = np.abs(random.randn(20640, 9)) + 0.5  # the value of the houses first, as fetch_california_housing has it
    housing[:, 0] = 100000 * housing[:, 1]
    joblib.dump(housing, os.path.join(folder, "cal_housing_py3.pkz"), compress=6)
    names = [f"group.{number}" for number in range(20)]
    groups = {}
    for part, each in (("train", 260), ("test", 40)):
        target = np.repeat(np.arange(20), each)
        data = [" ".join(f"word{w}" for w in random.randint(30 * t, 30 * t + 200, 60)) for t in target]
        groups[part] = datasets._base.Bunch(
            data=data, target=target, target_names=names, filenames=np.array([f"{part}/{n}" for n in range(len(data))])
        )
    packed = codecs.encode(pickle.dumps(groups), "zlib_codec")
    with open(os.path.join(folder, "20news-bydate_py3.pkz"), "wb") as stream:
        stream.write(packed)


def pictures(out):
    """Write photographs' stand-ins: for BSDS300, and two classes as ImageNet's folders."""
    places = {"bsds/BSDS300/images/train": 8, "bsds/BSDS300/images/test": 4}
    places.update({f"images/{part}/class{number}": 4 for part in ("train", "val") for number in (1, 2)})
    for place, count in places.items():
        folder = os.path.join(out, place)
        os.makedirs(folder)
        for number in range(count):
            coarse = random.randint(0, 256, (20, 20, 3)).astype("uint8")
            Image.fromarray(coarse).resize((320, 320), Image.BICUBIC).save(os.path.join(folder, f"{number}.jpg"))


def weights(out):
    import torch
    from torchvision import models

    torch.manual_seed(18)
    torch.save(models.squeezenet1_1().state_dict(), os.path.join(out, "corpus", "squeezenet1_1-b8a52dc0.pth"))


def main():
    out = sys.argv[1]
    for name in ("keras", "sklearn"):
        os.makedirs(os.path.join(out, "corpus", name))
    for make in (mnist, texts, sklearn, pictures, weights):
        make(out)


main()
