"""The scripts of the corpus: where each comes from, how it is started, and the remedy for what it reaches for.

Nothing of others is in the repository: :mod:`tests.corpus.fetch` brings the files and compares their SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Source:
    """Where files come from.

    Attributes:
        repository: GitHub's OWNER/NAME, or empty if it is a Debian package.
        revision: the commit, or the package's version.
        package: a package of Debian 12 that has the files below ``folder``.
        folder: what is before each path.
        sha256: of the Debian package.
    """

    repository: str = ""
    revision: str = ""
    package: str = ""
    folder: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Script:
    """A published script.

    Attributes:
        image: which of the images has its libraries: ``tensorflow``, ``torch``, or ``sklearn``.
        files: path and SHA-256 of each of its files; the first is started.
        words: its own options, which make it short.
        mpi: its ranks call MPI. Without it the script is one process on each of the two nodes.
        links: the remedy: files of the stand-ins, by the places where the script looks for them.
        workdir: where the command starts: also a remedy.
        before: a shell command before it: also a remedy.
        reaches: what a rehearsal must name without the remedy; empty if it reaches for nothing.
        given: data folders that the first rehearsal has too, because the user gives them on the command line.
        minutes: the job's time limit on the lab.
    """

    name: str
    source: Source
    image: str
    files: tuple[tuple[str, str], ...]
    words: tuple[str, ...] = ()
    mpi: bool = False
    links: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    before: str = ""
    reaches: str = ""
    given: dict[str, str] = field(default_factory=dict)
    minutes: int = 20

    @property
    def start(self) -> str:
        """Return the file that is started, as a path below ``app``."""
        return f"{self.name}/{self.files[0][0]}"


HOROVOD = Source("horovod/horovod", "1d217b59949986d025f6db93c49943fb6b6cc78f", folder="examples")
KERAS = Source("keras-team/keras", "f295e8ee39d4ba841ac281a9337d69c7bc5e0eb6", folder="examples")
PYTORCH = Source("pytorch/examples", "76f01205d6fa998227c337ba5dafe052b3b17d55")
SKLEARN = Source(
    package="python-sklearn-doc",
    revision="1.2.1+dfsg-1",
    folder="usr/share/doc/python-sklearn-doc/examples",
    sha256="4e244556326064e87e7563e3e544c2288d44b5719db2d7b3a85c9a84ae93488d",
)

_KERAS_MNIST = {"~/.keras/datasets/mnist.npz": "corpus/keras/mnist.npz"}
_MNIST = {"data": "torchvision"}
_GOOGLE = "storage.googleapis.com"
_TORCHVISION = "ossci-datasets.s3.amazonaws.com"
_BELOW = "/deployer/job/work"

SCRIPTS = (
    # ---- Horovod 0.28.1
    Script(
        "hvd-tf2-synthetic",
        HOROVOD,
        "tensorflow",
        (
            (
                "tensorflow2/tensorflow2_synthetic_benchmark.py",
                "f59fdc77495f955ed22198a84e7d1127721b85731bb466427974069222aceb95",
            ),
        ),
        (
            "--no-cuda",
            "--batch-size",
            "2",
            "--num-warmup-batches",
            "1",
            "--num-batches-per-iter",
            "1",
            "--num-iters",
            "2",
        ),
        mpi=True,
    ),
    Script(
        "hvd-keras-synthetic",
        HOROVOD,
        "tensorflow",
        (
            (
                "tensorflow2/tensorflow2_keras_synthetic_benchmark.py",
                "01c441525291036ef7ce596bb9c3b4ca9faab96da94b52e8a97729b9d28705fd",
            ),
        ),
        (
            "--no-cuda",
            "--batch-size",
            "2",
            "--num-batches-per-iter",
            "1",
            "--num-iters",
            "2",
        ),
        mpi=True,
    ),
    Script(
        "hvd-tf2-mnist",
        HOROVOD,
        "tensorflow",
        (("tensorflow2/tensorflow2_mnist.py", "03e4ee433b240d67b075065c5dea7a33516cb555d59ad03c56fa8159de44b14d"),),
        mpi=True,
        links={f"~/.keras/datasets/mnist-{rank}.npz": "corpus/keras/mnist.npz" for rank in range(2)},
        reaches=_GOOGLE,
        minutes=120,  # 5,000 steps, and no option for fewer
    ),
    Script(
        "hvd-torch-mnist",
        HOROVOD,
        "torch",
        (("pytorch/pytorch_mnist.py", "60092fbb844fcdb83cf894f6be6d91caa61a596797b19f143e4b1625bf0f07f8"),),
        ("--epochs", "2"),
        mpi=True,
        links=_MNIST,
        reaches=_TORCHVISION,
    ),
    Script(
        "hvd-torch-synthetic",
        HOROVOD,
        "torch",
        (
            (
                "pytorch/pytorch_synthetic_benchmark.py",
                "020759fa7293888607afa14c39be08aecac5ee9bd07ac63c4fc497b975d6ae88",
            ),
        ),
        (
            "--no-cuda",
            "--model",
            "resnet18",
            "--batch-size",
            "2",
            "--num-warmup-batches",
            "1",
            "--num-batches-per-iter",
            "1",
            "--num-iters",
            "2",
        ),
        mpi=True,
    ),
    # ---- Keras 2.3.1, the last release with examples of its own
    Script(
        "keras-mnist-cnn",
        KERAS,
        "tensorflow",
        (("mnist_cnn.py", "201c27edd9547f921703507f1b1899dab7a3d3f1c1d4344d59126889519f6875"),),
        links=_KERAS_MNIST,
        reaches=_GOOGLE,
    ),
    Script(
        "keras-mnist-transfer",
        KERAS,
        "tensorflow",
        (("mnist_transfer_cnn.py", "209b60542526bcef0b25af7dbd24792c20b0d2d68a8bb83291c45a6c72bce1a9"),),
        links=_KERAS_MNIST,
        reaches=_GOOGLE,
    ),
    Script(
        "keras-reuters-mlp",
        KERAS,
        "tensorflow",
        (("reuters_mlp.py", "f7a240d1c484ca9e19913db80c1395745e7e4ca2300d93001575e9f9f1028be1"),),
        links={"~/.keras/datasets/reuters.npz": "corpus/keras/reuters.npz"},
        reaches=_GOOGLE,
    ),
    Script(
        "keras-imdb-fasttext",
        KERAS,
        "tensorflow",
        (("imdb_fasttext.py", "f3f50fe1c72cda87209efe8d62b5c6516a78dc917e476e9c06d2e838078515dc"),),
        links={"~/.keras/datasets/imdb.npz": "corpus/keras/imdb.npz"},
        reaches=_GOOGLE,
    ),
    # ---- PyTorch's examples of February 2023, for PyTorch 1.13
    Script(
        "torch-mnist",
        PYTORCH,
        "torch",
        (("mnist/main.py", "656fe852a7d938b115f211378f08b63145bd7879db537950aa19818c47423ab3"),),
        ("--epochs", "1"),
        links=_MNIST,
        workdir=_BELOW,
        reaches=_TORCHVISION,
    ),
    Script(
        "torch-vae",
        PYTORCH,
        "torch",
        (("vae/main.py", "6b48b66a6bc7799258175447e6219d629ba02f0a2d537d92dcd13f03e1319841"),),
        ("--epochs", "1"),
        links=_MNIST,
        workdir=_BELOW,
        before="mkdir -p results",
        reaches=_TORCHVISION,
    ),
    Script(
        "torch-mnist-rnn",
        PYTORCH,
        "torch",
        (("mnist_rnn/main.py", "1d3005243ccbcd2aad6211eefbd02bbcf6068ae82e1fc992ee109fc8176e1a24"),),
        ("--epochs", "1"),
        links=_MNIST,
        workdir=_BELOW,
        reaches=_TORCHVISION,
    ),
    Script(
        "torch-hogwild",
        PYTORCH,
        "torch",
        (
            ("mnist_hogwild/main.py", "fb48f6c5c85edcc10b4974d202e69c61e1ff205dda39186867a0b6d50fa85738"),
            ("mnist_hogwild/train.py", "f0bf273c747e4e9e2cdb96b459880d38b15d66ea2c57bde7037a1defeb00c8d7"),
        ),
        ("--epochs", "1"),
        links=_MNIST,
        workdir=_BELOW,
        reaches=_TORCHVISION,
    ),
    Script(
        "torch-super-resolution",
        PYTORCH,
        "torch",
        (
            ("super_resolution/main.py", "fc4a6f34b3a6603d0f4ac48e6733110afc577186160673f28f4187fcf56c8852"),
            ("super_resolution/model.py", "02edbd87555c4a99136572cc03e27a3b73ecef09127fb00c8ac2e3ac1f6c289c"),
            ("super_resolution/data.py", "7eebeb0f86e9b12d2e669d716143224016c75d1cefcb4817b541983706e21a14"),
            ("super_resolution/dataset.py", "a831be1fbd0bb37965e656e6d3768b199bebac9e3366ed038d886ae55ad3844a"),
        ),
        ("--upscale_factor", "3", "--batchSize", "4", "--testBatchSize", "4", "--nEpochs", "1", "--threads", "0"),
        links={"dataset": "bsds"},
        reaches="www2.eecs.berkeley.edu",
    ),
    Script(
        "torch-imagenet",
        PYTORCH,
        "torch",
        (("imagenet/main.py", "8336835b759a7feee0348616aa071df338cff1be151dab95c613392fe9fb9c35"),),
        ("--pretrained", "-a", "squeezenet1_1", "--epochs", "1", "-b", "4", "-j", "0", "/deployer/data/images"),
        links={"~/.cache/torch/hub/checkpoints/squeezenet1_1-b8a52dc0.pth": "corpus/squeezenet1_1-b8a52dc0.pth"},
        given={"images": "images"},
        reaches="download.pytorch.org",
    ),
    # ---- scikit-learn 1.2.1, as Debian packages it
    Script(
        "sklearn-faces-forest",
        SKLEARN,
        "sklearn",
        (
            (
                "ensemble/plot_forest_importances_faces.py",
                "f5e6f5fb304156c38846ee3a17932118165a898de95b7d8c86f7027fbe465fb4",
            ),
        ),
        links={"~/scikit_learn_data/olivetti_py3.pkz": "corpus/sklearn/olivetti_py3.pkz"},
        reaches="ndownloader.figshare.com",
    ),
    Script(
        "sklearn-faces-decomposition",
        SKLEARN,
        "sklearn",
        (
            (
                "decomposition/plot_faces_decomposition.py",
                "167754c2fc1b9a52b6dd5effdf08ed0f183995a007b20f65531c61dd67c59882",
            ),
        ),
        links={"~/scikit_learn_data/olivetti_py3.pkz": "corpus/sklearn/olivetti_py3.pkz"},
        reaches="ndownloader.figshare.com",
    ),
    Script(
        "sklearn-housing",
        SKLEARN,
        "sklearn",
        (("impute/plot_missing_values.py", "bb9f0159b9a1060bb32f6749293f0df31c96126288abcfe586ffdb860acf326f"),),
        links={"~/scikit_learn_data/cal_housing_py3.pkz": "corpus/sklearn/cal_housing_py3.pkz"},
        reaches="ndownloader.figshare.com",
    ),
    Script(
        "sklearn-newsgroups",
        SKLEARN,
        "sklearn",
        (
            (
                "linear_model/plot_sparse_logistic_regression_20newsgroups.py",
                "49fe01028a7168210d443906b686572ccf4f7e0c7a257860320ec6fc80e46a9d",
            ),
        ),
        links={"~/scikit_learn_data/20news-bydate_py3.pkz": "corpus/sklearn/20news-bydate_py3.pkz"},
        reaches="ndownloader.figshare.com",
    ),
)


def script(name: str) -> Script:
    """Return the script of this name.

    Raises:
        KeyError: there is none.
    """
    return {each.name: each for each in SCRIPTS}[name]
