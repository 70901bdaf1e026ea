"""The build context: the files of a definition that are sent to the engine."""

from docker.utils.build import exclude_paths

from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.wheelhouse import lock as locks
from deployer.contract.base.errors import UsageError
from deployer.system import files

#: The Dockerfile of a definition without one. Its image is the base.
BASE_ALONE = "ARG BASE\nFROM ${BASE}\n"


def names(definition: Definition) -> list[str]:
    """Return all paths in the context, relative to the definition's folder, sorted."""
    if definition.dockerfile_path is None:
        return []
    folder = definition.context_folder
    try:
        with files.errors_named("read the build context"):
            return sorted(exclude_paths(str(folder), excluded(definition)))
    except RecursionError:  # of docker's walk
        hint = "remove them, or name them in .dockerignore"
        raise UsageError(f"the folders in {folder} are nested too deep for a build", hint) from None


def excluded(definition: Definition) -> list[str]:
    """Return the patterns of paths that a context leaves out. For each path, the last matching pattern decides.

    They are those in .dockerignore, and app, data, lock, conda environment and the base's archive. App and data are
    separate members of the bundle. The lock of the wheelhouse is made after the image.
    """
    patterns = []
    ignored = definition.context_folder / ".dockerignore"
    if files.is_file(str(ignored)):
        lines = [line.strip() for line in files.read_text(str(ignored)).splitlines()]
        patterns = [line for line in lines if line and not line.startswith("#")]
    top = definition.context_folder.resolve()
    base = definition.base.archive if definition.base else None
    parts = [definition.folder / base if base else None, definition.conda_file, definition.app_folder]
    apart = [*parts, *definition.data_folders.values()]
    for folder in (folder.resolve() for folder in apart if folder is not None):
        if folder != top and folder.is_relative_to(top):
            patterns.append(folder.relative_to(top).as_posix())
    return [*patterns, locks.FILE, "python-*.lock", f"!{definition.dockerfile}"]
