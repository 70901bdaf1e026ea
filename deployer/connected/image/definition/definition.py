"""A definition, ``bundles/NAME/bundle.yaml``: the contents of a bundle and its jobs."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from deployer.connected.ground.yaml_model import KeyPath, Model, Problems, Sha256, form, load_model, unless_refused
from deployer.connected.image.definition import dockerfile as dockerfiles
from deployer.connected.image.definition import fetched
from deployer.contract.base import variables
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle.job import MOST_GPUS, Job, check_stdin, check_time, check_workdir
from deployer.contract.elf import machines
from deployer.contract.site import links as linked
from deployer.contract.site.caches import check as check_caches
from deployer.contract.site.plan import MPICH_ABI, NO_MPI
from deployer.system import files

FILE = "bundle.yaml"
DOCKERFILE = "Dockerfile"
_INIT = "deployer init NAME writes a new one"

Framework = Literal["tensorflow", "pytorch"]

#: A name or version is part of an image's tag and of file names.
BundleName = Annotated[
    str,
    form(
        r"^[a-z0-9]+([._-][a-z0-9]+)*$",
        "lower-case letters and digits, joined by single dots, dashes or underscores: resnet-50",
        100,
    ),
]
BundleVersion = Annotated[
    str,
    form(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        "letters, digits, dots, dashes and underscores, and begin with a letter or digit: 1.10",
        100,
    ),
]
Reference = Annotated[
    str,
    form(
        r"^[a-z0-9]+([._-][a-z0-9]+)*(:[A-Za-z0-9][A-Za-z0-9._-]*)?$",
        "the name of a bundle, or NAME:VERSION: imagenet:2",
    ),
]
DebianPackage = Annotated[
    str, form(r"^[a-z0-9][a-z0-9.+-]+(:[a-z0-9-]+)?$", "the name of a Debian package: python3-numpy")
]

_HUB = r"^(datasets/)?[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"

#: Arguments that ``build`` sets, that are settings of this machine, or that change what BuildKit does.
_OWN_ARGS = re.compile(r"(BASE|BUILD_BASE|(TARGET|BUILD)(PLATFORM|OS|ARCH|VARIANT)|BUILDKIT_.*|(?i:.*_proxy))$")

_IMAGE = re.compile(r"^[a-z0-9][a-zA-Z0-9._/:-]*@sha256:[0-9a-f]{64}$")


def _recipe_hint(path: Path) -> str:
    from deployer.connected.image.definition import recipe  # slow to load, and few paths need it

    return recipe.hint(path)


def _image(reference: str) -> str:
    """Require a digest in an image's name. A tag can change its meaning, so builds would not be repeatable."""
    if not _IMAGE.match(reference):
        text = f"{reference!r} does not name an image by its digest, and the meaning of a tag can change: "
        text += f"write NAME@sha256:HEX; deployer init --from-image {reference} finds it, or saves an image without one"
        raise ValueError(text)
    return reference


def _there(is_it: Callable[[Path], bool], what: str) -> AfterValidator:
    """Return a validator that requires an existing path, relative to the definition's folder."""

    def check(path: str, info: ValidationInfo) -> str:
        if isinstance(info.context, Path) and not is_it(info.context / path):
            raise ValueError(f"there is no {what} {info.context / path}")
        if isinstance(info.context, Path):
            _check_spelling(info.context, path)
        return path

    return AfterValidator(check)


def _check_spelling(folder: Path, path: str) -> None:
    """Raise ValueError if a path differs in case from the folders: a disk that ignores case finds it, others do not."""
    for part in Path(path).parts:
        if part not in ("..", "/"):
            names = files.names(str(folder))
            other = next((name for name in names if name.lower() == part.lower()), part)
            if part not in names and other != part:
                raise ValueError(f"{part!r} is spelled {other!r} in {folder}, and most machines distinguish them")
        folder /= part


ExistingFile = Annotated[str, _there(Path.is_file, "file")]
ExistingFolder = Annotated[str, _there(Path.is_dir, "folder")]


class Base(Model):
    """The image that the Dockerfile starts from; exactly one of ``debian``, ``image`` and ``archive``.

    Attributes:
        debian: a Debian suite: its smallest system, made by mmdebstrap from this machine's mirror
        include: Debian packages to add to it: ``[libgomp1, python3]``
        image: a registry's image by digest, NAME@sha256:HEX; pulled if the engine lacks it
        archive: a docker save or OCI archive, a flat tar (plain, gzip or zstd) or a SIF or SquashFS file, relative to
            this file: ``image.sif``
        sha256: the SHA-256 that the archive must have, as ``sha256sum`` prints it
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [kind]} for kind in ("debian", "image", "archive")]}
    )

    debian: Literal["bullseye", "bookworm", "trixie"] | None = None
    include: list[DebianPackage] = []
    image: Annotated[str, AfterValidator(_image)] | None = None
    archive: ExistingFile | None = None
    sha256: Sha256 | None = None

    _machine: str | None = PrivateAttr(default=None)
    _again: bool = PrivateAttr(default=False)

    @property
    def again(self) -> bool:
        """Return whether it is made although the cache has it."""
        return self._again

    @property
    def machine(self) -> str | None:
        """Return the kernel's name of the processor that it is for; None: the archive or the image decides."""
        return self._machine or (machines.X86_64.kernel if self.debian else None)

    @model_validator(mode="after")
    def _one(self) -> "Base":
        given = [kind for kind in ("debian", "image", "archive") if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of debian, image and archive, not {' and '.join(given) or 'none of them'}")
        for option, kind in (("include", "debian"), ("sha256", "archive")):
            if getattr(self, option) and given != [kind]:
                raise Problems([((option,), f"goes with {kind}, not with {given[0]}")])
        return self


class Python(Model):
    """The wheelhouse: Python packages beside the image, so that changing one ships only its wheel.

    Attributes:
        requirements: a pip requirements file, a project's ``uv.lock`` or its ``pyproject.toml``, relative to this
            file: ``requirements.txt``
    """

    requirements: ExistingFile


class Horovod(Model):
    """Horovod, compiled for each family of ``mpi`` against the framework in a stage of the Dockerfile.

    Attributes:
        version: the release of Horovod: ``0.28.1``
        stage: the stage of the Dockerfile with the complete framework: ``framework``
    """

    version: Annotated[str, form(r"^\d+(\.\d+)+$", "numbers with dots between them: 0.28.1")]
    stage: str


class DataFolder(Model):
    """Files that jobs read at ``/deployer/data/NAME``: a folder, another bundle's, or a repository of a hub.

    Attributes:
        folder: a folder of this bundle, relative to this file: ``data``
        bundle: NAME or NAME:VERSION of another installed bundle with a data folder of this name:
            ``mnist:1.0.0``
        hub: a model of the Hugging Face hub, ``org/name``, or ``datasets/org/name``; ``deployer fetch`` downloads it
        revision: the commit of that repository, in 40 digits, because a branch changes:
            ``0123456789abcdef0123456789abcdef01234567``
        include: patterns of the files to download: ``["*.safetensors", "*.json"]``; default: all, without other
            formats of weights beside safetensors
    """

    folder: ExistingFolder | None = None
    bundle: Reference | None = None
    hub: Annotated[str, form(_HUB, "a repository of the hub: org/name, or datasets/org/name")] | None = None
    revision: Annotated[str, form(r"^[0-9a-f]{40}$", "a commit, in 40 hexadecimal digits")] | None = None
    include: list[str] = []

    @model_validator(mode="after")
    def _one(self) -> "DataFolder":
        if [self.folder, self.bundle, self.hub].count(None) != 2:
            raise ValueError("data is either a folder, a bundle, or a repository of a hub")
        if (self.hub is None) != (self.revision is None) or (self.include and not self.hub):
            raise ValueError("hub and revision go together, and include goes with them")
        return self

    @property
    def pin(self) -> str:
        """Return the repository with its revision."""
        return f"{self.hub}@{self.revision}"

    @property
    def choice(self) -> str:
        """Return the repository with its revision and the chosen files."""
        return " ".join([self.pin, *self.include])


class JobDefinition(Model):
    """One way to run the bundle. The options of ``run`` can replace the numbers.

    Attributes:
        command: runs in the container, once per rank: ``[python3, /deployer/app/train.py]``
        nodes: number of nodes: ``2``
        ranks_per_node: ranks (processes) per node: ``4``
        threads: threads per rank: ``12``
        time: time limit, [D-]HH:MM:SS or 90m, 24h, 2d: ``1-12:00:00``
        workdir: absolute path in the container that the command starts in; default: the image's WORKDIR, and
            without one the job's folder, ``/deployer/job``
        stdin: absolute path of a file in the container, ``/deployer/app/in.txt``: every rank reads it from its
            beginning as standard input; default: empty input
        memory: memory that one rank needs, in MiB: ``4096``; the batch system is asked for it; default: its own
        environment: variables of every rank, ``OMP_PROC_BIND: close``, over the image's and under the site's;
            ``run --env`` replaces them
        launch: what starts on a node: a process per rank; ``torchrun``, which starts the command
            ``ranks_per_node`` times; or one process, with the CPUs and the memory of ``ranks_per_node`` ranks
        gpus: number of GPUs that each rank sees, ``1``, with ``launch: ranks``; ``0``: none are requested; default:
            all of the job's on its node
        fetch: the command that `deployer fetch` runs, instead of ``command``: ``[python3, /deployer/app/download.py]``
        links: files and folders of the bundle where the program looks for them: ``~/PATH`` in the private HOME
            (``~``: a folder with all its files), or a path below the job's folder; each leads to
            ``data/NAME/PATH`` or ``app/PATH``
        keep: caches of compiled code that later jobs of the image find again: ``[triton, ~/.cache/mine]``; names set
            the library's variable: cuda, cupy, numba, torch-inductor, triton; others are folders in the private
            HOME
    """

    many_lines = frozenset({"command", "environment", "fetch"})
    variables = frozenset({"environment"})

    command: list[str] = Field(min_length=1)
    nodes: int = Field(default=1, ge=1)
    ranks_per_node: int = Field(default=1, ge=1)
    threads: int = Field(default=1, ge=1)
    time: Annotated[str, unless_refused(check_time)] = "01:00:00"
    workdir: Annotated[str, unless_refused(check_workdir)] | None = None
    stdin: Annotated[str, unless_refused(check_stdin)] | None = None
    memory: int | None = Field(default=None, ge=1)
    environment: dict[str, str] = {}

    launch: Literal["ranks", "torchrun", "node"] = "ranks"
    gpus: int | None = Field(default=None, ge=0, le=MOST_GPUS)

    fetch: list[str] = []
    links: Annotated[dict[str, str], unless_refused(linked.check)] = {}
    keep: Annotated[list[str], unless_refused(check_caches)] = []

    @model_validator(mode="after")
    def _ranks_have_gpus(self) -> "JobDefinition":
        if self.gpus and self.launch != "ranks":
            raise Problems([(("gpus",), f"goes with launch: ranks, not {self.launch}: its one process sees all GPUs")])
        return self

    @field_validator("environment")
    @classmethod
    def _possible(cls, environment: dict[str, str]) -> dict[str, str]:
        """Refuse variables that a job cannot have."""
        problems: list[tuple[KeyPath, str]] = []
        for name, value in environment.items():
            try:
                variables.check({name: value})
            except UsageError as error:
                problems.append(((name,), f"{error.message.partition(': ')[2]} ({error.hint})"))
        if problems:
            raise Problems(problems)
        variables.check(environment)
        return environment


class Definition(Model):
    """The contents of a bundle, and its jobs. The folder of this file is the build context.

    Without a base, the bundle has only data: folders that other bundles use.

    Attributes:
        name: part of the image's tag and of the bundle's name: ``my-model``
        version: in quotes if YAML would read a number: ``"1.10"``
        description: one line of text: ``ResNet50 on ImageNet``
        base: without it, the bundle has only data folders
        architectures: the processors to build and pack for, as ``lscpu`` prints them, if no option and no site says:
            ``[x86_64, aarch64]``; default: an archive's or image's own, and x86_64 for Debian
        context: folder with the Dockerfile and the files that it copies, relative to this file; definitions with one
            context and base share an image: ``../shared``; default: the folder of this file
        dockerfile: relative to the context: ``Dockerfile.gpu``; without a Dockerfile, the image is the base
        build_args: values for the Dockerfile's ARG lines, in the image's history like any ARG: ``CUDA: "12.4"``;
            secrets are for ``build --secret``
        conda: an environment for ``/opt/conda`` in the image, there before the Dockerfile's own steps: an archive of
            conda-pack or pixi-pack, or a file for micromamba, relative to this file: ``environment.tar.gz``
        lean: leave out tests of Python packages, manuals, copies of large files (they become links), and, if the image
            has no compiler, headers and static libraries; `deployer rehearse` shows whether a job misses them
        app: folder of the files that jobs use, relative to this file: programs, scripts, input; default:
            ``app``, if it exists
        python: Python packages beside the image
        framework: what Horovod is built for
        horovod: Horovod, compiled for each family of ``mpi``
        mpi: MPI families to run on, the family of the image's own MPI first; empty: the ranks do without MPI;
            default: ``pack`` finds them in the image, and with Horovod mpich-abi
        data: folders that jobs read at /deployer/data/NAME
        jobs: ways to run it; the first is the default; at least one if there is a base
    """

    many_lines = frozenset({"description"})
    variables = frozenset({"build_args"})

    # The order of the fields matters: a validator has access only to the fields before its own.
    name: BundleName
    version: BundleVersion
    description: str = ""
    base: Base | None = None
    architectures: list[Literal["x86_64", "aarch64"]] = []
    context: ExistingFolder | None = None
    dockerfile: str = DOCKERFILE
    build_args: dict[str, str] = {}
    conda: ExistingFile | None = None
    lean: bool = False
    app: ExistingFolder | None = None
    python: Python | None = None
    framework: Framework | None = None
    horovod: Horovod | None = None
    mpi: list[Literal["mpich-abi", "openmpi"]] | None = None
    data: dict[BundleName, DataFolder] = {}
    jobs: dict[BundleName, JobDefinition] = {}

    _file: Path = PrivateAttr(default=Path(FILE))
    _fetched: dict[str, fetched.FetchedJob] = PrivateAttr(default={})

    @field_validator("dockerfile")
    @classmethod
    def _in_the_context(cls, name: str, info: ValidationInfo) -> str:
        """Refuse a named Dockerfile that does not exist or is outside the build context."""
        if isinstance(info.context, Path):
            context = info.context / (info.data.get("context") or "")
            path = context / name
            if not path.is_file():
                raise ValueError(f"there is no file {path}")
            if hint := _recipe_hint(path):
                raise ValueError(f"{path} is a definition file of Apptainer: {hint}")
            if not path.resolve().is_relative_to(context.resolve()):
                what = "definition's folder" if context == info.context else "context"
                raise ValueError(f"{path} is outside the {what}, which is all that a build can read")
        return name

    @field_validator("build_args")
    @classmethod
    def _args_of_the_dockerfile(cls, given: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        """Refuse values that the Dockerfile does not read, and those of ``build`` and of builders."""
        own = [((name,), "is set by build itself, not by a definition") for name in given if _OWN_ARGS.match(name)]
        known = set(given)
        if isinstance(info.context, Path) and "dockerfile" in info.data:
            steps = _parsed(info.context, info.data).instructions()
            known = {name for step in steps if step.name == "ARG" for name, _ in step.pairs()}
        words = f"is not an ARG of the Dockerfile; it has: {', '.join(sorted(known)) or 'none'}"
        if problems := own + [((name,), words) for name in given if name not in known]:
            raise Problems(problems)
        return given

    @field_validator("horovod")
    @classmethod
    def _has_what_it_needs(cls, horovod: Horovod | None, info: ValidationInfo) -> Horovod | None:
        """Refuse Horovod without a framework, or with a stage that is not in the Dockerfile."""
        if horovod is None:
            return None
        problems: list[tuple[KeyPath, str]] = []
        if "framework" in info.data and info.data["framework"] is None:
            problems.append(((), "needs a framework: write framework: tensorflow, or pytorch"))
        if isinstance(info.context, Path) and "dockerfile" in info.data:
            stages = [stage.name for stage in _parsed(info.context, info.data).stages if stage.name]
            if horovod.stage not in stages:
                known = ", ".join(stages) or "none"
                problems.append((("stage",), f"the Dockerfile has no stage {horovod.stage!r}; it names: {known}"))
        if problems:
            raise Problems(problems)
        return horovod

    @field_validator("mpi")
    @classmethod
    def _families(cls, families: list[str] | None, info: ValidationInfo) -> list[str] | None:
        """Refuse duplicate families, and an empty list with Horovod."""
        given = families or []
        twice = [((str(number),), "is given twice") for number, name in enumerate(given) if name in given[:number]]
        if twice:
            raise Problems(twice)
        if families == [] and info.data.get("horovod"):
            raise ValueError("must not be empty with horovod: its ranks find each other by MPI")
        return families

    @model_validator(mode="after")
    def _links_lead_somewhere(self, info: ValidationInfo) -> "Definition":
        """Refuse links to data and files that are not in the bundle."""
        folder = info.context if isinstance(info.context, Path) else None
        problems = [
            (("jobs", name, "links", place), problem)
            for name, job in self.jobs.items()
            for place, source in job.links.items()
            if (problem := self._unlinked(source, folder))
        ]
        if problems:
            raise Problems(problems)
        return self

    def _unlinked(self, source: str, folder: Path | None) -> str | None:
        """Return why a link cannot lead to ``source``, or None."""
        kind, _, below = source.partition("/")
        if kind == "app":
            top: Path | str | None = self.app or "app"
        else:
            name, _, below = below.partition("/")
            if name not in self.data:
                return f"there is no data {name!r}; known: {', '.join(sorted(self.data)) or 'none'}"
            top = self.data[name].folder
        if folder is None or top is None or (folder / top / below).exists():
            return None
        return f"there is no {folder / top / below}"

    @model_validator(mode="after")
    def _image_or_data(self) -> "Definition":
        """Require one of the two kinds of definition: an image with jobs, or data only."""
        for name, data in self.data.items():
            if data.bundle and data.bundle.partition(":")[0] == self.name:
                raise Problems([(("data", name, "bundle"), "is this bundle itself: give its folder")])
        if self.base is not None:
            if not self.jobs:
                raise Problems([(("jobs",), "must not be empty: with a base there is at least one job")])
            return self
        image = self.model_fields_set - {"name", "version", "description", "base", "data"}
        if image or not self.data or any(data.bundle for data in self.data.values()):
            also = f", and has {', '.join(sorted(image))}" if image else ""
            message = "either give a base (base: {debian: bookworm}), or data folders alone, for others to use"
            raise ValueError(f"it has no base{also}: {message}")
        return self

    @property
    def is_data(self) -> bool:
        """Return whether the bundle has only data. In this case, there is nothing to build."""
        return self.base is None

    @property
    def needs_engine(self) -> bool:
        """Return whether the Docker engine is needed because the base is not used unchanged."""
        of_the_engine = self.base is not None and self.base.image is not None
        return of_the_engine or bool(self.dockerfile_path or self.conda or self.python or self.horovod)

    @property
    def families(self) -> Sequence[str] | None:
        """Return the MPI families that its programs run on, or ``NO_MPI``; None: determined from the image."""
        if self.mpi is None:
            return [MPICH_ABI] if self.horovod else None
        return self.mpi or [NO_MPI]

    @property
    def own_jobs(self) -> list[Job]:
        """Return the jobs in the form that a bundle contains, with links to their fetched files."""
        made = []
        for name, job in self.jobs.items():
            fields = job.model_dump(exclude={"fetch"})
            if known := self._fetched.get(name):
                fields["links"] = linked.check({**known.links(name), **job.links})
                fields["environment"] = {**known.environment, **job.environment}
            made.append(Job(name, **fields))
        return made

    @property
    def data_folders(self) -> dict[str, Path]:
        """Return the data folders that the bundle contains, by name."""
        own = {name: self.folder / data.folder for name, data in self.data.items() if data.folder is not None}
        own.update({name: self.folder / fetched.DATA / name for name in self.hub_data})
        return {**own, **({fetched.FOLDER: self.folder / fetched.FOLDER} if self._fetched else {})}

    @property
    def hub_data(self) -> dict[str, DataFolder]:
        """Return the data that `fetch` downloads from a hub, by name."""
        return {name: data for name, data in self.data.items() if data.hub is not None}

    @property
    def fetched(self) -> dict[str, fetched.FetchedJob]:
        """Return what was fetched, by job."""
        return self._fetched

    def to_fetch(self, job: str) -> "Definition":
        """Return the definition with one job, as `fetch` runs it: with its command for that, without fetched files."""
        own = self.jobs[job]
        made = self.model_copy(update={"jobs": {job: own.model_copy(update={"command": own.fetch or own.command})}})
        made._fetched = {}
        return made

    @property
    def file(self) -> Path:
        """Return the file of the definition."""
        return self._file

    @property
    def folder(self) -> Path:
        """Return the folder of the definition."""
        return self._file.parent

    @property
    def context_folder(self) -> Path:
        """Return the folder with the files that a build can read."""
        return self.folder / self.context if self.context else self.folder

    @property
    def dockerfile_path(self) -> Path | None:
        """Return the Dockerfile, or None if there is none. In this case, the image is the base."""
        path = self.context_folder / self.dockerfile
        return path if files.is_file(str(path)) else None

    @property
    def conda_file(self) -> Path | None:
        """Return the file of the conda environment, or None if there is none."""
        return self.folder / self.conda if self.conda else None

    @property
    def app_folder(self) -> Path | None:
        """Return the app folder, which is not part of the image, or None if there is none."""
        folder = self.folder / (self.app or "app")
        return folder if self.app or files.is_folder(str(folder)) else None

    def on(self, machine: str | None, again: bool = False) -> "Definition":
        """Return the definition for one processor, with the kernel's name; None: whatever its base is for.

        Args:
            again: make its base although the cache has it.
        """
        if self.base is None or (machine is None and not again):
            return self
        base = self.base.model_copy()
        base._machine, base._again = machine, again
        return self.model_copy(update={"base": base})

    @property
    def machine(self) -> str | None:
        """Return the kernel's name of the processor; None: an archive or an image decides, or it has only data."""
        return self.base.machine if self.base else None

    @property
    def suffix(self) -> str:
        """Return what marks names of this processor's results; empty for x86_64, and if the base decides."""
        return "" if self.machine in (None, machines.X86_64.kernel) else f"-{self.machine}"

    @property
    def again(self) -> str:
        """Return the command that builds it."""
        option = f" --architecture {self.machine}" if self.suffix else ""
        return f"deployer build {self.folder}{option}"

    @property
    def tag(self) -> str:
        """Return the name of the built image in the engine."""
        return f"deployer/{self.name}:{self.version}{self.suffix}"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a definition, for completion in editors."""
    return Definition.model_json_schema()


def load(path: str | Path) -> Definition:
    """Return the definition at ``path``, which is a ``bundle.yaml`` or its folder.

    Raises:
        UsageError: the definition does not exist (the hint lists those nearby), or has errors (all are listed).
    """
    file = _find(Path(path))
    definition = load_model(Definition, file, "a definition (bundle.yaml)")
    definition._file = file
    definition._fetched = {name: job for name, job in fetched.read(file.parent).items() if name in definition.jobs}
    if definition._fetched and fetched.FOLDER in definition.data:
        raise UsageError(f"{file}: data: {fetched.FOLDER} is the name of what `fetch` downloaded", "rename it")
    if definition.dockerfile_path is None:
        # Refuse a context without a Dockerfile, or another name of it, because only the base would be built.
        if definition.context:
            hint = "name the folder of another definition's Dockerfile, or remove the line"
            raise UsageError(f"{file}: context: there is no {DOCKERFILE} in {definition.context_folder}", hint)
        for name in sorted(os.listdir(file.parent)):
            if name.lower() in ("dockerfile", "containerfile") or name.lower().endswith(".dockerfile"):
                hint = f"add `dockerfile: {name}` to it"
                raise UsageError(f"{file}: there is no {DOCKERFILE}, but there is a {name}", hint)
    return definition


def _parsed(folder: Path, fields: Mapping[str, Any]) -> dockerfiles.Dockerfile:
    """Return the Dockerfile of a definition with these fields, an empty one if it cannot be read."""
    try:
        return dockerfiles.parse((folder / (fields.get("context") or "") / fields["dockerfile"]).read_text("utf-8"))
    except (OSError, ValueError):
        return dockerfiles.parse("")


def _find(path: Path) -> Path:
    file = path if path.suffix in (".yaml", ".yml") else path / FILE
    if file.is_file():
        return file
    if path.is_dir():
        raise UsageError(f"there is no {FILE} in {path}", _others(path))
    if path.is_file() and (hint := _recipe_hint(path)):
        raise UsageError(f"{path} is a definition file of Apptainer", hint)
    raise UsageError(f"there is no definition {path}", _others(file.parent.parent))


def _others(folder: Path) -> str:
    """Return a hint that lists the definitions in ``folder``, or in its subfolder ``bundles`` if there are none."""
    for near in (folder, Path("bundles")):
        folders = sorted(str(file.parent) for file in near.glob(f"*/{FILE}"))
        if folders:
            return f"definitions here: {', '.join(folders)}; {_INIT}"
    return f"a definition is a folder with a {FILE}: {_INIT}"
