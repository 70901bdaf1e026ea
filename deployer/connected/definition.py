"""A definition: ``bundles/NAME/bundle.yaml``, which says what goes into a bundle and how its jobs run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, StringConstraints, model_validator

from deployer.connected.yaml_model import Model, load_model
from deployer.contract.errors import UsageError
from deployer.contract.job import check_time

FILE = "bundle.yaml"

#: A name or version is part of an image's tag and of file names.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=100)]
Version = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.+-]+(:[a-z0-9-]+)?$")]


def _time(text: str) -> str:
    try:
        return check_time(text)
    except UsageError as error:  # pydantic collects ValueErrors: all errors of the file at once
        raise ValueError(f"{error.message} ({error.hint})") from error


class Base(Model):
    """The image that the Dockerfile starts from: a Debian suite and the packages to add to its smallest system."""

    debian: Literal["bullseye", "bookworm", "trixie"]
    include: list[Package] = Field(default=[], description="Debian packages to add")


class Python(Model):
    """The wheelhouse: Python packages beside the image, so that changing one ships only its wheel."""

    requirements: str = Field(
        description="a pip requirements file, relative to this one, with what is asked for by name"
    )


class Horovod(Model):
    """Horovod, compiled for each family of ``mpi`` against the framework in a stage of the Dockerfile."""

    version: Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)+$")]
    stage: str = Field(description="the stage of the Dockerfile that has the framework, whole")


class Data(Model):
    """Files that jobs read at ``/deployer/data/NAME``: a folder of this bundle, or another bundle with such a one."""

    folder: str | None = Field(default=None, description="relative to this file")
    bundle: Name | None = Field(default=None, description="the name of a bundle that carries it, installed beside")

    @model_validator(mode="after")
    def _one(self) -> "Data":
        if (self.folder is None) == (self.bundle is None):
            raise ValueError("data is either a folder or a bundle")
        return self


class Job(Model):
    """One way to run the bundle; the numbers hold unless the user of ``run`` gives others."""

    command: list[str] = Field(min_length=1, description="runs in the container, once a rank")
    nodes: int = Field(default=1, ge=1)
    ranks_per_node: int = Field(default=1, ge=1)
    threads: int = Field(default=1, ge=1, description="threads a rank")
    time: Annotated[str, AfterValidator(_time)] = Field(default="01:00:00", description="limit, [D-]HH:MM:SS")


class Definition(Model):
    """What ``bundle.yaml`` says. ``folder`` is where it stands: the build's context and the app lie there."""

    name: Name
    version: Version
    description: str = ""
    base: Base
    dockerfile: str = Field(default="Dockerfile", description="relative to this file")
    app: str | None = Field(default=None, description="folder of the training code; default: app, where it exists")
    python: Python | None = None
    framework: Literal["tensorflow", "pytorch"] | None = None
    horovod: Horovod | None = None
    mpi: list[Literal["mpich-abi", "openmpi"]] = Field(
        default=["mpich-abi"], min_length=1, description="MPI families to run on; the image's own is of the first"
    )
    data: dict[Name, Data] = {}
    jobs: dict[Name, Job] = Field(min_length=1, description="the first is the default")

    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _quoted_version(cls, raw: Any) -> Any:
        """Say what is wrong with ``version: 1.10``: YAML reads a number, and drops the zero."""
        if isinstance(raw, Mapping) and isinstance(raw.get("version"), int | float):
            raise ValueError(f'version must be text: write version: "{raw["version"]}" with quotes')
        return raw

    @property
    def folder(self) -> Path:
        """Return the folder of the definition."""
        return self._folder

    @property
    def app_folder(self) -> Path | None:
        """Return the folder of the training code, which is carried apart from the image; None when there is none."""
        folder = self._folder / (self.app or "app")
        return folder if self.app or folder.is_dir() else None

    @property
    def tag(self) -> str:
        """Return the name of the built image in the engine."""
        return f"deployer/{self.name}:{self.version}"


def load(path: str | Path) -> Definition:
    """Return the definition at ``path``, a folder with a ``bundle.yaml`` or that file itself.

    Raises UsageError: no such definition (the message names those that are there), broken YAML (with its line), or
    wrong content (all that is wrong in it, each with its place).
    """
    file = _find(Path(path))
    definition = load_model(Definition, file, "a definition (bundle.yaml)")
    definition._folder = file.parent
    problems = []
    if not (file.parent / definition.dockerfile).is_file():
        problems.append(f"dockerfile: there is no {file.parent / definition.dockerfile}")
    if definition.app is not None and not (file.parent / definition.app).is_dir():
        problems.append(f"app: there is no folder {file.parent / definition.app}")
    if problems:
        raise UsageError(f"{file}: " + "; ".join(problems))
    return definition


def _find(path: Path) -> Path:
    file = path if path.suffix in (".yaml", ".yml") else path / FILE
    if file.is_file():
        return file
    if path.is_dir():
        raise UsageError(f"there is no {FILE} in {path}", _others(path))
    raise UsageError(f"there is no definition {path}", _others(file.parent.parent))


def _others(folder: Path) -> str:
    """Return a hint that names the definitions near by: those in ``folder``, else those in ``bundles``."""
    for near in (folder, Path("bundles")):
        found = sorted(str(file.parent) for file in near.glob(f"*/{FILE}"))
        if found:
            return "definitions here: " + ", ".join(found)
    return f"a definition is a folder with a {FILE}"
