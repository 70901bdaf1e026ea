"""Recognise what libraries download, from their source files, with a remedy for a site without internet. Pure.

``SOURCES`` is the only table. The places where libraries keep their files were taken from their code: keras
``file_utils.get_file``, ``torch.hub``, ``torchvision.datasets``, ``tensorflow_datasets.core.constants``,
``huggingface_hub.constants``, ``sklearn.datasets``, ``nltk.downloader``. Observations come from the payload, so a name
from them is used in a command or a definition only if it is plain; it is quoted nevertheless.
"""

import json
import posixpath
import re
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base.shell import quoted
from deployer.contract.rehearsal.observation import CodeFrame
from deployer.contract.site.links import HOME_ITSELF
from deployer.contract.site.plan import APP, DATA, JOB

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")
#: OWNER/NAME, with a branch for torch.hub.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,99}(/[A-Za-z0-9][\w.-]{0,99})?(:[A-Za-z0-9][\w./-]{0,99})?", re.ASCII)
_URL = re.compile(r"(?:https?|ftp)://[A-Za-z0-9.-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~/?=&%+@,:-]*")
_PROGRAM = re.compile(r"(?!.*\.\.)[\w-][\w./-]*", re.ASCII)
#: The package of a source file.
_OF_PACKAGE = re.compile(r"(?:/(?:site|dist)-packages|/deployer/(?:wheels|variant)/lib)/([^/]+?)(?:\.py)?(?:/|$)")
#: Python's own modules, which open a file or a connection only for other code.
STANDARD = re.compile(r"/lib/python[0-9.]*/(?!(site|dist)-packages/)|^<frozen ")
#: Packages that pass on what they read from a URL and keep no copy: the program itself chose the URL.
_CARRIERS = re.compile(
    "aiohttp|anyio|boto3|botocore|fsspec|geopandas|httpcore|httpx|imageio|numpy|pandas|polars|pyarrow|requests|s3fs|"
    "s3transfer|smart_open|urllib3|wget|xarray"
)
_SENDING = ("POST", "PUT", "PATCH", "DELETE")
_FETCHERS = ("curl", "wget", "git", "git-remote-http", "aria2c")
_FILE_PORTS = ("21", "80", "443", "8080", "ftp", "http", "https")

_NO_INTERNET = "nodes have no internet: "
_FILE = (
    "put the file in the bundle (`data:` in its definition; jobs see it at /deployer/data/NAME), and pass its path to "
    "the program"
)
_SERVICE = (
    "a bundle cannot carry a service. Switch it off, let a rank offer it (all know $MASTER_ADDR), or give the program "
    "an address that compute nodes reach"
)
_UPLOAD = "switch it off, or write the data to the job's folder and send them from the laptop after `deployer result`"
_ONCE = "let it download once on the laptop, with a HOME of its own, and link the files that it kept"
_ONCE_OR_NOTHING = _ONCE + ". If home/ stays empty, it keeps none: put the file in the bundle, and pass its path"

#: The local variables in which libraries keep the destination of a download.
_PLACES = ("download_target", "cached_file", "fpath")


class Wanted(NamedTuple):
    """What a program requested from a host.

    Attributes:
        host: the host's name or address; empty if only a URL without one is known.
        url: the URL, or empty.
        about: local variables of the library, by name, and the port.
        stack: where the request was made; the innermost frame first.
        home: the process's HOME, or empty.
        folder: the folder in which the process started, or empty.
        job: the name of the job, for the lines of its definition.
    """

    host: str
    url: str
    about: Mapping[str, str]
    stack: Sequence[CodeFrame]
    home: str = ""
    folder: str = ""
    job: str = "train"


class Offline(NamedTuple):
    """What a library wanted, and how to provide it without a network.

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
        packages: folders in the paths of its source files; a frame in one of them shows that the library made it.
        hosts: hosts that identify it without a frame, as in native programs; a leading dot: all below it.
        offline: creates the remedy; returns None if it was something else.
    """

    packages: Sequence[str]
    hosts: Sequence[str]
    offline: Callable[[Wanted], Optional[Offline]]


def recognise(wanted: Wanted) -> Optional[Offline]:
    """Return what a library wanted if it is known or shows where it keeps its files, else None."""
    # The outermost library is the one that the user calls: torchvision gets its models through torch.hub.
    for matches in (_asked, _is_at):
        for source in SOURCES:
            made = source.offline(wanted) if matches(source, wanted) else None
            if made is not None:
                return made
    return _kept_file(wanted) or _licence(wanted)


def general(wanted: Wanted) -> Offline:
    """Return a generic remedy for a request that no library in the table made."""
    what = wanted.url or wanted.host
    if wanted.about.get("method", "").upper() in _SENDING:
        return Offline(f"{what}, to send data there", _NO_INTERNET + _UPLOAD)
    port = wanted.about.get("port", "")
    is_file = wanted.url or wanted.about.get("program", "") in _FETCHERS or port in _FILE_PORTS
    if not is_file:  # a port shows that it is a service, such as a queue, a clock or a licence
        told = _SERVICE if port else f"if it wants a file, {_FILE}; if it wants a service: {_SERVICE}"
        return Offline(what, _NO_INTERNET + told)
    package = _package(wanted.stack)
    if package and not _CARRIERS.fullmatch(package):
        return _once(wanted, f"{package}: {what}", ["python3", _program(wanted.stack)], _ONCE_OR_NOTHING)
    name = wanted.url.partition("?")[0].partition("#")[0].rpartition("/")[2]
    if not _PLAIN.fullmatch(name):
        return Offline(what, _NO_INTERNET + _FILE)
    return Offline(what, _NO_INTERNET + _FILE, _fetch(wanted.url, "data/files/" + name), _data("files"))


def _kept_file(wanted: Wanted) -> Optional[Offline]:
    """Return the remedy for one file if the library itself shows where it would keep it, else None."""
    url = wanted.about.get("origin", "") or wanted.url
    place = next(filter(None, (_key(wanted.about.get(name, ""), wanted) for name in _PLACES)), "")
    if not place:
        return None
    name = place.rpartition("/")[2]
    in_home = place.startswith("~/")
    source = "data/home/" + place[2:] if in_home else "data/files/" + place
    links = _home_links(wanted.job) if in_home else _links(wanted.job, "files", place, source)
    remedy = _NO_INTERNET + f"put {name} in the bundle, and link it to {place}, where the library keeps it"
    return Offline("{}: {}".format(_package(wanted.stack) or "a library", name), remedy, _fetch(url, source), links)


def _package(stack: Sequence[CodeFrame]) -> str:
    """Return the package that the program itself called; empty if it belongs to Python or is unknown."""
    inner = ""
    for frame in stack:
        found = _OF_PACKAGE.search(frame.file)
        if found is None and not STANDARD.search(frame.file):
            break
        inner = found.group(1) if found else ""
    return inner if _PLAIN.fullmatch(inner) else ""


def _program(stack: Sequence[CodeFrame]) -> str:
    """Return the path of the program in the definition's folder, or PROGRAM."""
    own = [frame.file[len(APP) + 1 :] for frame in stack if frame.file.startswith(APP + "/")]
    return "app/" + own[-1] if own and _PROGRAM.fullmatch(own[-1]) else "PROGRAM"


# ------------------------------------------------------------------------------------------------ the libraries


def _torch_hub(wanted: Wanted) -> Optional[Offline]:
    repository = wanted.about.get("repo_or_dir", "")
    if not repository or wanted.about.get("cached_file"):
        return _kept_file(wanted)
    remedy = (
        "fetch the repository and link its folder; torch.hub.load runs its code in the job, so read it first. "
        "Older torch asks for the branch all the same, unless the call names it (OWNER/NAME:BRANCH)"
    )
    return Offline(f"torch.hub: the repository {repository}", remedy, _clone(repository), _home_links(wanted.job))


def _clone(repository: str) -> Tuple[str, ...]:
    """Return the commands that fetch a repository to where torch.hub keeps it, without running its code."""
    name, _, branch = repository.partition(":")
    if not _is_repository(repository) or "/" not in name:
        return ()
    folder = "data/home/.cache/torch/hub/{}_{}".format(name.replace("/", "_"), (branch or "main").replace("/", "_"))
    only = ["--branch", branch] if branch else []
    return (
        quoted(["git", "clone", "--depth", "1", *only, "https://github.com/" + name, folder]),
        quoted(["rm", "-rf", folder + "/.git"]),
    )


def _torchvision(wanted: Wanted) -> Optional[Offline]:
    if _package(wanted.stack) not in ("", "torchvision"):  # medmnist and others call its functions with their own URLs
        return None
    name = wanted.about.get("class", "")
    name = name if _PLAIN.fullmatch(name) else ""
    root = wanted.about.get("root", "")
    what = f"torchvision: the data set {name}" if name else "torchvision: a data set"
    if not root:
        return Offline(what, "download it on the laptop, and link its folder to the program's `root`")
    where = posixpath.normpath(posixpath.join(wanted.folder or JOB, root))
    remedy = f"download it on the laptop, and link its folder to the program's `root`, {where}"
    code = 'from torchvision import datasets; datasets.%s("data/torchvision", download=True)' % (name or "NAME")
    place = _key(where, wanted)
    more: Tuple[str, ...] = ()
    beside = posixpath.relpath(where, APP)
    if not place and root.startswith("../") and not root.startswith("../.."):
        # The path is relative to the job's start folder, which becomes a folder below the job's own.
        remedy = "download it on the laptop, start the job in a folder below the job's, and link the data beside it"
        place, more = root[3:], (f"    workdir: {JOB}/work",)
    elif not place and _PROGRAM.fullmatch(beside):  # in the definition's app/, where nothing is linked
        code = code.replace("data/torchvision", "app/" + beside)
        remedy = f"the program looks beside itself: download it into app/{beside} of the definition on the laptop"
    elif not place and where != JOB:
        remedy, more = remedy + ", by the program's own option for it", _data("torchvision")
    lines = _links(wanted.job, "torchvision", place, "data/torchvision") if place else ()
    return Offline(what, remedy, ("python3 -c " + quoted([code]),), (*lines, *more))


def _once(wanted: Wanted, what: str, words: Sequence[str], remedy: str, **variables: str) -> Offline:
    """Return how a library downloads on the laptop into a HOME whose files are then linked into the job's HOME."""
    folders = {"HOME": "", "XDG_CACHE_HOME": "/.cache", **variables}
    given = " ".join('{}="$PWD/home{}"'.format(*item) for item in folders.items())
    keep = "mkdir -p data/home && cp -RL home/. data/home && find data/home -name '*.lock' -delete"
    return Offline(what, remedy, (f"{given} {quoted(words)}", keep), _home_links(wanted.job))


#: Functions that keep the processed result of a download and check only for that result: a part of the file's path, a
#: word for the library, the function, and its relevant arguments.
_CALLS: Sequence[Tuple[str, str, str, Sequence[str]]] = (
    ("/tensorflow_datasets/", "TensorFlow Datasets", "tensorflow_datasets.load", ["dataset_name"]),
    ("/datasets/load.py", "Hugging Face datasets", "datasets.load_dataset", ["path", "name"]),
    ("/evaluate/loading.py", "Hugging Face evaluate", "evaluate.load", ["path"]),
    ("/nltk/", "NLTK", "nltk.download", ["info_or_id"]),
    ("/sklearn/datasets/_openml.py", "scikit-learn", "sklearn.datasets.fetch_openml", ["name"]),
    ("/sklearn/datasets/", "scikit-learn", "sklearn.datasets.", []),
)


def _called(wanted: Wanted) -> Optional[Offline]:
    for file, label, function, arguments in _CALLS:
        if any(file in frame.file for frame in wanted.stack):
            names = [name for name in (wanted.about.get(each, "") for each in arguments) if _is_repository(name)]
            given = ", ".join(map(json.dumps, names))
            if not arguments:
                functions = [frame.function for frame in wanted.stack if frame.function.startswith("fetch_")]
                names = [next(filter(_PLAIN.fullmatch, functions), "fetch_NAME")]
                function += names[0]
            code = "import {}; {}({})".format(function.rpartition(".")[0], function, given)
            what = "{}: {}".format(label, " ".join(names) or "a data set")
            return _once(wanted, what, ["python3", "-c", code], _ONCE + ". Call it with all arguments of the program")
    return None


def _hugging_face(wanted: Wanted) -> Offline:
    made = _called(wanted)
    if made is None:
        name = wanted.about.get("repo_id") or wanted.about.get("pretrained_model_name_or_path", "")
        known = name if _is_repository(name) else ""
        kind = ["--repo-type", "dataset"] if "/datasets/" in wanted.url else []
        words = ["hf", "download", *kind, known or "OWNER/NAME"]
        made = _once(wanted, "Hugging Face hub: %s" % (known or "a model or data set"), words, _ONCE)
    prepare = ("unset HF_HOME", *made.prepare, "rm -rf data/home/.cache/huggingface/hub/*/blobs")
    return made._replace(prepare=prepare, definition=(*made.definition, '    environment: {HF_HUB_OFFLINE: "1"}'))


def _tiktoken(wanted: Wanted) -> Offline:
    words = ["python3", _program(wanted.stack)]
    made = _once(wanted, "tiktoken: an encoding", words, _ONCE, TIKTOKEN_CACHE_DIR="/tiktoken")
    line = f"    environment: {{TIKTOKEN_CACHE_DIR: {DATA}/home/tiktoken}}"
    return made._replace(definition=(*made.definition, line))


def _kaggle(wanted: Wanted) -> Offline:
    remedy = _ONCE + ". Name the version in the handle (.../versions/1): else it asks for the latest one each time"
    return _once(wanted, f"kagglehub: {wanted.url}", ["python3", _program(wanted.stack)], remedy)


def _pip(_: Wanted) -> Offline:
    remedy = (
        "jobs do not install packages, such as spaCy's models: add them to the image, or to the definition's wheels"
    )
    return Offline("a Python package", remedy)


def _wandb(wanted: Wanted) -> Offline:
    remedy = "set WANDB_MODE=offline; copy the job's wandb folder back and upload it with `wandb sync`"
    return Offline("Weights & Biases", remedy, (), _environment(wanted.job, WANDB_MODE="offline"))


def _mlflow(wanted: Wanted) -> Offline:
    if wanted.host.endswith("mlflow-telemetry.io"):
        lines = _environment(wanted.job, MLFLOW_DISABLE_TELEMETRY="true")
        return Offline("MLflow's statistics of use", "switch them off", (), lines)
    remedy = "let it write to the job's folder (MLflow 3 must be allowed to), and copy the records back after the job"
    folder = f"file:{JOB}/mlruns"
    lines = _environment(wanted.job, MLFLOW_TRACKING_URI=folder, MLFLOW_ALLOW_FILE_STORE="true")
    return Offline("MLflow's tracking server", remedy, (), lines)


#: The usual ports of licence servers, and the variables that specify the servers.
_LICENCE_PORTS = {**dict.fromkeys(map(str, range(27000, 27010)), "LM_LICENSE_FILE"), "5053": "RLM_LICENSE"}


def _licence(wanted: Wanted) -> Optional[Offline]:
    """Return what to do about a licence server; None if nothing identifies one."""
    variable = wanted.about.get("licence", "") or _LICENCE_PORTS.get(wanted.about.get("port", ""), "")
    if not _PLAIN.fullmatch(variable):
        return None
    return Offline(
        f"a licence server ({variable})",
        "a licence cannot be put in a bundle: name the server that the compute nodes reach in the environment of the "
        f"site's profile, or with `run --env {variable}=PORT@HOST`",
    )


#: The order matters for stacks with several libraries: a library that others call comes later.
SOURCES: Sequence[Source] = (
    Source(("tensorflow_datasets/",), (), _called),
    Source(("torchvision/datasets/",), ("ossci-datasets.s3.amazonaws.com",), _torchvision),
    Source(("torch/hub.py",), ("download.pytorch.org",), _torch_hub),
    Source(
        ("huggingface_hub/", "transformers/", "/datasets/load.py", "evaluate/loading.py"),
        ("huggingface.co", ".huggingface.co", ".hf.co"),
        _hugging_face,
    ),
    Source(("sklearn/datasets/",), ("openml.org", ".openml.org", "ndownloader.figshare.com"), _called),
    Source(("nltk/",), (), _called),
    Source(("tiktoken/",), (), _tiktoken),
    Source(("kagglehub/",), (), _kaggle),
    Source(("pip/", "spacy/cli/"), (), _pip),
    Source(("wandb/",), ("api.wandb.ai", ".wandb.ai", "api.forge.coreweave.com"), _wandb),
    Source(("mlflow/",), (".mlflow-telemetry.io",), _mlflow),
)


def _asked(source: Source, wanted: Wanted) -> bool:
    return any("/" + package.lstrip("/") in frame.file for frame in wanted.stack for package in source.packages)


def _is_at(source: Source, wanted: Wanted) -> bool:
    host = wanted.host.lower().rstrip(".")
    return any(host.endswith(name) if name.startswith(".") else host == name for name in source.hosts)


# ------------------------------------------------------------------------------------------------ their parts


def _is_repository(name: str) -> bool:
    return _REPOSITORY.fullmatch(name) is not None


def _key(path: str, wanted: Wanted) -> str:
    """Return a path in the home or the job's folder as a key of ``links``; empty if it is elsewhere, or not plain."""
    path = posixpath.normpath(path)
    for folder, begin in ((wanted.home.rstrip("/"), "~/"), (JOB, "")):
        place = path[len(folder) + 1 :] if folder and path.startswith(folder + "/") else ""
        if place and all(_PLAIN.fullmatch(part.lstrip(".") or "-") for part in place.split("/")):
            return begin + place
    return ""


def _fetch(url: str, target: str) -> Tuple[str, ...]:
    """Return the command that downloads a file on the laptop; empty if the URL has unusual characters."""
    if not _URL.fullmatch(url):
        return ()
    return (quoted(["curl", "-fL", "--create-dirs", "-o", target, url]),)


def _data(name: str) -> Tuple[str, ...]:
    return (f"data: {{{name}: {{folder: data/{name}}}}}",)


def _links(job: str, data: str, place: str, source: str) -> Tuple[str, ...]:
    """Return the lines of a definition that add the folder ``data/DATA`` and link PLACE to its SOURCE."""
    lines: List[str] = [*_data(data), "jobs:", f"  {job}:"]
    return (*lines, f"    links: {{{json.dumps(place)}: {source}}}")


def _home_links(job: str) -> Tuple[str, ...]:
    return _links(job, "home", HOME_ITSELF, "data/home")


def _environment(job: str, **values: str) -> Tuple[str, ...]:
    shown = ", ".join(f"{name}: {json.dumps(value)}" for name, value in values.items())
    return ("jobs:", f"  {job}:", f"    environment: {{{shown}}}")
