"""Recognise what programs ask of hosts outside, with a remedy for a site without internet. Pure.

A library that keeps what it downloads needs no entry here: `deployer fetch` records it. ``SOURCES`` lists services, and
what a bundle carries in another way. Observations come from the payload, so a name from them is used in a command or a
definition only if it is plain; it is quoted nevertheless.
"""

import json
import re
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base.shell import quoted
from deployer.contract.rehearsal.observation import CodeFrame
from deployer.contract.site.plan import JOB

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")
_URL = re.compile(r"(?:https?|ftp)://[A-Za-z0-9.-]+(?::[0-9]{1,5})?/[A-Za-z0-9._~/?=&%+@,:-]*")
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

#: Local variables of libraries that name what they download, and the form of such a name.
_NAMES = ("repo_id", "pretrained_model_name_or_path", "dataset_name", "repo_or_dir", "info_or_id", "class")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}(/[A-Za-z0-9][\w.-]{0,99})?(:[A-Za-z0-9][\w./-]{0,99})?", re.ASCII)

_NO_INTERNET = "nodes have no internet: "
_FILE = (
    "put the file in the bundle (`data:` in its definition; jobs see it at /deployer/data/NAME), and pass its path to "
    "the program"
)
_FILES = ("data: {files: {folder: data/files}}",)
_SERVICE = (
    "a bundle cannot carry a service. Switch it off, let a rank offer it (all know $MASTER_ADDR), or give the program "
    "an address that compute nodes reach"
)
_UPLOAD = "switch it off, or write the data to the job's folder and send them from the laptop after `deployer result`"
_FETCH = (
    "let it download once on the laptop (deployer fetch): then the job has the files where the library looks for them. "
    "If the library keeps none, put the file in the bundle (`data:`), and pass its path"
)


class Wanted(NamedTuple):
    """What a program requested from a host.

    Attributes:
        host: the host's name or address; empty if only a URL without one is known.
        url: the URL, or empty.
        about: local variables of the library, by name, and the port.
        stack: where the request was made; the innermost frame first.
        job: the name of the job, for the lines of its definition.
    """

    host: str
    url: str
    about: Mapping[str, str]
    stack: Sequence[CodeFrame]
    job: str = "train"


class Offline(NamedTuple):
    """What a library wanted, and how to provide it without a network.

    Attributes:
        what: the library and the data set or model.
        remedy: what to do, in one sentence.
        prepare: commands for the laptop, in the folder of the definition.
        definition: lines for ``bundle.yaml``.
        waits: whether it may be a library's download, which some repeat for longer than a rehearsal takes.
    """

    what: str
    remedy: str
    prepare: Tuple[str, ...] = ()
    definition: Tuple[str, ...] = ()
    waits: bool = False


class Source(NamedTuple):
    """A library that downloads.

    Attributes:
        packages: folders in the paths of its source files; a frame in one of them shows that the library made it.
        hosts: hosts that identify it without a frame, as in native programs; a leading dot: all below it.
        offline: creates the remedy.
    """

    packages: Sequence[str]
    hosts: Sequence[str]
    offline: Callable[[Wanted], Offline]


def recognise(wanted: Wanted) -> Optional[Offline]:
    """Return what a library wanted if it is known, else None."""
    known = next((source for matches in (_asked, _is_at) for source in SOURCES if matches(source, wanted)), None)
    return known.offline(wanted) if known else _licence(wanted)


def general(wanted: Wanted) -> Offline:
    """Return a generic remedy for a request that no library in the table made."""
    what = wanted.url or wanted.host
    if wanted.about.get("method", "").upper() in _SENDING:
        return Offline(f"{what}, to send data there", _NO_INTERNET + _UPLOAD)
    port = wanted.about.get("port", "")
    is_file = wanted.url or wanted.about.get("program", "") in _FETCHERS or port in _FILE_PORTS
    package = _package(wanted.stack)
    keeps = package and not _CARRIERS.fullmatch(package)
    if not is_file and not (keeps and not port):  # a port shows that it is a service: a queue, a clock or a licence
        told = _SERVICE if port else f"if it wants a file, {_FILE}; if it wants a service: {_SERVICE}"
        return Offline(what, _NO_INTERNET + told)
    if keeps:
        words = ("deployer", "fetch", "DEF", wanted.job)
        return Offline(f"{package}: {_named(wanted) or what}", _NO_INTERNET + _FETCH, (quoted(words),), waits=True)
    name = _file_name(wanted.url)
    if not name:
        return Offline(what, _NO_INTERNET + _FILE)
    return Offline(what, _NO_INTERNET + _FILE, _fetch(wanted.url, "data/files/" + name), _FILES)


def _file_name(url: str) -> str:
    name = url.partition("?")[0].partition("#")[0].rpartition("/")[2]
    return name if _PLAIN.fullmatch(name) else ""


def _named(wanted: Wanted) -> str:
    """Return the model, data set or file that a library wants: mirrors of it are one request. Empty: unknown."""
    values = (wanted.about.get(name, "") for name in _NAMES)
    return next(filter(_NAME.fullmatch, values), "") or _file_name(wanted.url)


def _package(stack: Sequence[CodeFrame]) -> str:
    """Return the package that the program itself called; empty if it belongs to Python or is unknown."""
    inner = ""
    for frame in stack:
        found = _OF_PACKAGE.search(frame.file)
        if found is None and not STANDARD.search(frame.file):
            break
        inner = found.group(1) if found else ""
    return inner if _PLAIN.fullmatch(inner) else ""


# ------------------------------------------------------------------------------------------------ the services


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


SOURCES: Sequence[Source] = (
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


def _fetch(url: str, target: str) -> Tuple[str, ...]:
    """Return the command that downloads a file on the laptop; empty if the URL has unusual characters."""
    if not _URL.fullmatch(url):
        return ()
    return (quoted(["curl", "-fL", "--create-dirs", "-o", target, url]),)


def _environment(job: str, **values: str) -> Tuple[str, ...]:
    shown = ", ".join(f"{name}: {json.dumps(value)}" for name, value in values.items())
    return ("jobs:", f"  {job}:", f"    environment: {{{shown}}}")
