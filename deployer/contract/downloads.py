"""What libraries download, recognised by their own code, each with its remedy for a site without internet. Pure.

``SOURCES`` is the only table. Where a library keeps its files was read in its code: keras ``file_utils.get_file``,
``torch.hub``, ``torchvision.datasets``, ``tensorflow_datasets.core.constants``, ``huggingface_hub.constants``,
``sklearn.datasets``, ``nltk.downloader``. Observations come from the payload: a name of theirs gets into a command or
a definition only if it is plain, and quoted all the same.
"""

import json
import posixpath
import re
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.observation import CodeFrame
from deployer.contract.plan import APP, JOB
from deployer.contract.shell import quoted

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")
#: OWNER/NAME, and for torch.hub a branch.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,99}(/[A-Za-z0-9][\w.-]{0,99})?(:[A-Za-z0-9][\w./-]{0,99})?", re.ASCII)
_URL = re.compile(r"(?:https?|ftp)://[A-Za-z0-9.-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~/?=&%+@,:-]*")
#: The local variables in which libraries keep the place of the file that they are about to download.
_PLACES = ("download_target", "cached_file", "fpath")


class Wanted(NamedTuple):
    """What a program asked a host for.

    Attributes:
        host: the host's name or address; empty if only a URL without one is known.
        url: the URL, or empty.
        about: local variables of the library, by name.
        stack: where it asked; the innermost frame first.
        home: the process's HOME, or empty.
        folder: the folder in which the process started, or empty.
        job: the name of the job, for the lines of its definition.
        port: the port of the host, or 0.
    """

    host: str
    url: str
    about: Mapping[str, str]
    stack: Sequence[CodeFrame]
    home: str = ""
    folder: str = ""
    job: str = "train"
    port: int = 0


class Offline(NamedTuple):
    """What a library wanted, and how it finds that without a network.

    Attributes:
        what: the library and the data set or model.
        remedy: what to do, in one sentence.
        prepare: commands for the laptop, in the folder of the definition.
        definition: lines for ``bundle.yaml``.
    """

    what: str
    remedy: str
    prepare: Tuple[str, ...] = ()
    definition: Tuple[str, ...] = ()


class Source(NamedTuple):
    """A library that downloads.

    Attributes:
        packages: folders in the paths of its source files; a frame in one of them shows that it asked.
        hosts: hosts that show it without a frame, for instance to a native program; a beginning dot: and those below.
        offline: makes the remedy.
    """

    packages: Sequence[str]
    hosts: Sequence[str]
    offline: Callable[[Wanted], Offline]


def recognise(wanted: Wanted) -> Optional[Offline]:
    """Return what a known library wanted, or None."""
    # The outermost library is the one that the user calls: torchvision's models come by torch.hub.
    for matches in (_asked, _is_at):
        for source in SOURCES:
            if matches(source, wanted):
                return source.offline(wanted)
    return _licence(wanted)


def general(wanted: Wanted) -> Offline:
    """Return the remedy for a library that is not in the table."""
    remedy = (
        "nodes have no internet: put the file in the bundle (`data:` in its definition; jobs see it at "
        "/deployer/data/NAME), and pass its path to the program"
    )
    name = _file_of(wanted.url)
    if not name:
        return Offline(wanted.url or wanted.host, remedy)
    place = _place(wanted)
    fetch = _fetch(wanted.url, "data/files/" + name)
    if place:
        remedy = "nodes have no internet: put the file in the bundle, and link it to where the program keeps it"
        return Offline(wanted.url, remedy, fetch, _links(wanted.job, "files", place, "data/files/" + name))
    return Offline(wanted.url, remedy, fetch, _data("files"))


# ------------------------------------------------------------------------------------------------ the libraries


def _keras(wanted: Wanted) -> Offline:
    name = wanted.about.get("fname", "")
    url = _url(wanted)
    if not _PLAIN.fullmatch(name):
        name = _file_of(url)
    kind = (
        "models" if "/applications/" in _files(wanted) or wanted.about.get("cache_subdir") == "models" else "datasets"
    )
    place = _place(wanted) or (posixpath.join("~/.keras", kind, name) if name else "")
    if not name or not place:
        return Offline("Keras: %s" % (url or wanted.host), "put its file in ~/.keras by `links` of the job")
    name = place.rpartition("/")[2]
    source = "data/keras/%s/%s" % (kind, name)
    remedy = (
        "put %s in the bundle and link it to %s; KERAS_HOME does not help, because Keras ignores a folder that is "
        "read-only" % (name, place)
    )
    return Offline("Keras: %s" % name, remedy, _fetch(url, source), _links(wanted.job, "keras", place, source))


def _torch_hub(wanted: Wanted) -> Offline:
    url = _url(wanted)
    repository = wanted.about.get("repo_or_dir") or wanted.about.get("github", "")
    name = _file_of(wanted.about.get("cached_file", "")) or _file_of(url)
    if repository and not wanted.about.get("cached_file"):
        remedy = (
            "fetch the repository and link its folder; torch.hub.load runs its code in the job, so read it first. "
            "Older torch asks for the branch all the same, unless the call names it (OWNER/NAME:BRANCH)"
        )
        return Offline(
            "torch.hub: the repository %s" % repository,
            remedy,
            _clone(repository),
            _links(wanted.job, "torch", "~/.cache/torch", "data/torch"),
        )
    place = _place(wanted) or "~/.cache/torch/hub/checkpoints/" + name
    source = "data/torch/hub/checkpoints/" + name
    remedy = "put the weights in the bundle and link them to %s" % place
    if not name:
        return Offline("torch.hub", remedy)
    return Offline("torch.hub: %s" % name, remedy, _fetch(url, source), _links(wanted.job, "torch", place, source))


def _clone(repository: str) -> Tuple[str, ...]:
    """Return the commands that fetch a repository to where torch.hub keeps it, without running its code."""
    name, _, branch = repository.partition(":")
    if not _is_repository(repository) or "/" not in name:
        return ()
    folder = "data/torch/hub/%s_%s" % (name.replace("/", "_"), (branch or "main").replace("/", "_"))
    only = ["--branch", branch] if branch else []
    return (
        quoted(["git", "clone", "--depth", "1", *only, "https://github.com/" + name, folder]),
        quoted(["rm", "-rf", folder + "/.git"]),
    )


def _torchvision(wanted: Wanted) -> Offline:
    name = wanted.about.get("class", "")
    if not _PLAIN.fullmatch(name):
        name = _data_class(wanted.stack, "torchvision/datasets/")
    root = wanted.about.get("root", "")
    what = "torchvision: the data set %s" % name if name else "torchvision: a data set"
    if not root:
        return Offline(what, "download it on the laptop, and link its folder to the program's `root`")
    where = posixpath.normpath(posixpath.join(wanted.folder or JOB, root))
    remedy = "download it on the laptop, and link its folder to the program's `root`, %s" % where
    code = 'from torchvision import datasets; datasets.%s("data/torchvision", download=True)' % (name or "NAME")
    prepare = ("python3 -c " + quoted([code]),)
    below = posixpath.relpath(where, JOB)
    if not below.startswith(".."):
        lines = _links(wanted.job, "torchvision", below if below != "." else "", "data/torchvision")
        return Offline(what, remedy, prepare, lines if below != "." else ())
    if wanted.home and (where + "/").startswith(wanted.home.rstrip("/") + "/"):
        place = posixpath.join("~", posixpath.relpath(where, wanted.home))
        return Offline(what, remedy, prepare, _links(wanted.job, "torchvision", place, "data/torchvision"))
    if root.startswith("../") and not root.startswith("../.."):
        # Relative to the folder in which the job starts: that becomes one of the job's own folder.
        lines = _links(wanted.job, "torchvision", root[3:], "data/torchvision")
        return Offline(
            what,
            "download it on the laptop, start the job in a folder below the job's, and link the data beside it",
            prepare,
            (*lines, "    workdir: %s/work" % JOB),
        )
    beside = posixpath.relpath(where, APP)
    if re.fullmatch(r"[\w-][\w./-]*", beside):  # beside the program: app/ of the definition, which nothing is linked to
        code = code.replace("data/torchvision", "app/" + beside)
        text = "the program looks beside itself: download it into app/%s of the definition on the laptop" % beside
        return Offline(what, text, ("python3 -c " + quoted([code]),))
    return Offline(what, remedy + ", by the program's own option for it", prepare, _data("torchvision"))


def _tfds(wanted: Wanted) -> Offline:
    name = wanted.about.get("dataset_name") or wanted.about.get("name", "")
    name = name.partition("/")[0]
    shown = name if _PLAIN.fullmatch(name) else "NAME"
    code = 'import tensorflow_datasets as tfds; tfds.load("%s", data_dir="data/tfds")' % shown
    remedy = "prepare it once on the laptop, and link its folder to ~/tensorflow_datasets (or set TFDS_DATA_DIR)"
    return Offline(
        "TensorFlow Datasets: %s" % (name or "a data set"),
        remedy,
        ("python3 -c " + quoted([code]),),
        _links(wanted.job, "tfds", "~/tensorflow_datasets", "data/tfds"),
    )


def _hugging_face(wanted: Wanted) -> Offline:
    name = (
        wanted.about.get("repo_id") or wanted.about.get("pretrained_model_name_or_path") or wanted.about.get("path", "")
    )
    known = name if _is_repository(name) else _repository_of(wanted.url)
    kind = ["--repo-type", "dataset"] if "/datasets/" in wanted.url or "datasets/" in _files(wanted) else []
    download = quoted(["hf", "download", *kind, known or "OWNER/NAME"])
    remedy = (
        "download it on the laptop with HF_HOME, turn its links into files, link the folder to ~/.cache/huggingface, "
        "and set HF_HUB_OFFLINE=1"
    )
    return Offline(
        "Hugging Face hub: %s" % (known or "a model or data set"),
        remedy,
        (
            "HF_HOME=hf " + download,
            "mkdir -p data && cp -rL hf data/huggingface && rm -rf data/huggingface/hub/*/blobs",
        ),
        (
            *_links(wanted.job, "huggingface", "~/.cache/huggingface", "data/huggingface"),
            '    environment: {HF_HUB_OFFLINE: "1"}',
        ),
    )


def _scikit(wanted: Wanted) -> Offline:
    function = next((f.function for f in wanted.stack if f.function.startswith("fetch_")), "")
    given = wanted.about.get("data_id") or wanted.about.get("name", "")
    shown = function if _PLAIN.fullmatch(function) else "fetch_NAME"
    arguments = 'data_home="data/sklearn"'
    if function == "fetch_openml":
        name = wanted.about.get("name", "")
        arguments = "%s, %s" % (json.dumps(name) if _PLAIN.fullmatch(name) else "...", arguments)
        given = name
    code = "from sklearn.datasets import %s; %s(%s)" % (shown, shown, arguments)
    what = "scikit-learn: %s%s" % (function or "a data set", " " + given if given else "")
    remedy = (
        "fetch it once on the laptop, with the arguments of the program, and link the folder to ~/scikit_learn_data"
    )
    return Offline(
        what,
        remedy,
        ("python3 -c " + quoted([code]),),
        _links(wanted.job, "sklearn", "~/scikit_learn_data", "data/sklearn"),
    )


def _nltk(wanted: Wanted) -> Offline:
    name = wanted.about.get("info_or_id", "")
    shown = name if _PLAIN.fullmatch(name) else "NAME"
    return Offline(
        "NLTK: %s" % (name or "a package"),
        "download it once on the laptop, and link the folder to ~/nltk_data (or set NLTK_DATA)",
        (quoted(["python3", "-m", "nltk.downloader", "-d", "data/nltk", shown]),),
        _links(wanted.job, "nltk", "~/nltk_data", "data/nltk"),
    )


def _wandb(wanted: Wanted) -> Offline:
    return Offline(
        "Weights & Biases",
        "set WANDB_MODE=offline; copy the job's wandb folder back and upload it with `wandb sync`",
        (),
        _environment(wanted.job, WANDB_MODE="offline"),
    )


def _mlflow(wanted: Wanted) -> Offline:
    if wanted.host.endswith("mlflow-telemetry.io"):
        lines = _environment(wanted.job, MLFLOW_DISABLE_TELEMETRY="true")
        return Offline("MLflow's statistics of use", "switch them off", (), lines)
    return Offline(
        "MLflow's tracking server",
        "let it write to the job's folder (MLflow 3 must be allowed to), and copy the records back after the job",
        (),
        _environment(wanted.job, MLFLOW_TRACKING_URI="file:%s/mlruns" % JOB, MLFLOW_ALLOW_FILE_STORE="true"),
    )


#: The ports that licence servers usually have, and the variables that name them.
_LICENCE_PORTS = {**dict.fromkeys(range(27000, 27010), "LM_LICENSE_FILE"), 5053: "RLM_LICENSE"}


def _licence(wanted: Wanted) -> Optional[Offline]:
    """Return what to do about a licence server; None if nothing shows that it is one."""
    variable = wanted.about.get("licence", "") or _LICENCE_PORTS.get(wanted.port, "")
    if not _PLAIN.fullmatch(variable):
        return None
    return Offline(
        "a licence server (%s)" % variable,
        "a licence cannot be put in a bundle: name the server that the compute nodes reach in the environment of the "
        "site's profile, or with `run --env %s=PORT@HOST`" % variable,
    )


#: The order matters for stacks with several of them: who is called by others comes later.
SOURCES: Sequence[Source] = (
    Source(("tensorflow_datasets/",), (), _tfds),
    Source(("torchvision/datasets/",), ("ossci-datasets.s3.amazonaws.com",), _torchvision),
    Source(("torch/hub.py",), ("download.pytorch.org",), _torch_hub),
    Source(
        ("huggingface_hub/", "transformers/", "/datasets/load.py"),
        ("huggingface.co", ".huggingface.co", ".hf.co"),
        _hugging_face,
    ),
    Source(("sklearn/datasets/",), ("openml.org", ".openml.org", "ndownloader.figshare.com"), _scikit),
    Source(("nltk/",), (), _nltk),
    Source(("wandb/",), ("api.wandb.ai", ".wandb.ai", "api.forge.coreweave.com"), _wandb),
    Source(("mlflow/",), (".mlflow-telemetry.io",), _mlflow),
    Source(("keras/", "keras_applications/"), (), _keras),
)


def _asked(source: Source, wanted: Wanted) -> bool:
    return any("/" + package.lstrip("/") in frame.file for frame in wanted.stack for package in source.packages)


def _is_at(source: Source, wanted: Wanted) -> bool:
    host = wanted.host.lower().rstrip(".")
    return any(host.endswith(name) if name.startswith(".") else host == name for name in source.hosts)


# ------------------------------------------------------------------------------------------------ their parts


def _files(wanted: Wanted) -> str:
    return "\n".join(frame.file for frame in wanted.stack)


def _url(wanted: Wanted) -> str:
    return wanted.about.get("origin") or wanted.url or wanted.about.get("url", "")


def _file_of(url: str) -> str:
    """Return the name of the file that a URL or a path ends with; empty if it is not plain."""
    name = url.partition("?")[0].partition("#")[0].rpartition("/")[2]
    return name if _PLAIN.fullmatch(name) else ""


def _is_repository(name: str) -> bool:
    return _REPOSITORY.fullmatch(name) is not None


def _repository_of(url: str) -> str:
    """Return OWNER/NAME of a URL of Hugging Face's hub, or an empty text."""
    found = re.search(r"//[^/]+/(?:api/)?(?:models/|datasets/)?([^/]+(?:/[^/]+)?)/(?:resolve|tree|revision)/", url)
    return found.group(1) if found and _is_repository(found.group(1)) else ""


def _data_class(stack: Sequence[CodeFrame], package: str) -> str:
    """Return the module of a package of data sets that asked, in capitals: mnist.py has MNIST."""
    for frame in stack:
        module = frame.file.rpartition("/")[2].partition(".")[0]
        if package in frame.file and module not in ("utils", "vision", "_utils", "folder"):
            return module.upper() if _PLAIN.fullmatch(module) else ""
    return ""


def _place(wanted: Wanted) -> str:
    """Return where the library keeps its file, as a key of ``links``; empty if it is not in the home or the job."""
    for name in _PLACES:
        path = posixpath.normpath(wanted.about.get(name, ""))
        for folder, begin in ((wanted.home, "~/"), (JOB, "")):
            if folder and path.startswith(folder.rstrip("/") + "/"):
                place = path[len(folder.rstrip("/")) + 1 :]
                if place and all(_PLAIN.fullmatch(part.lstrip(".") or "-") for part in place.split("/")):
                    return begin + place
    return ""


def _fetch(url: str, target: str) -> Tuple[str, ...]:
    """Return the command that downloads a file on the laptop; none if the URL has characters that are not usual."""
    if not _URL.fullmatch(url):
        return ()
    return (quoted(["curl", "-fL", "--create-dirs", "-o", target, url]),)


def _data(name: str) -> Tuple[str, ...]:
    return ("data: {%s: {folder: data/%s}}" % (name, name),)


def _links(job: str, data: str, place: str, source: str) -> Tuple[str, ...]:
    """Return the lines of a definition that carry the folder ``data/DATA`` and link SOURCE of it to PLACE."""
    lines: List[str] = [*_data(data), "jobs:", "  %s:" % job]
    return (*lines, "    links: {%s: %s}" % (json.dumps(place), source))


def _environment(job: str, **values: str) -> Tuple[str, ...]:
    shown = ", ".join("%s: %s" % (name, json.dumps(value)) for name, value in values.items())
    return ("jobs:", "  %s:" % job, "    environment: {%s}" % shown)
