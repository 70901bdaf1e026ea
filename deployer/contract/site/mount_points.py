"""Mount points: empty folders that a bundle requests in its image, over which the site binds its folders. Pure.

They are listed in bundle.json and created when the image is unpacked. They are not part of the layer, so bundles of one
image for several sites share the same layer.
"""

from typing import Callable, Iterable, List, Optional

from deployer.contract.base.errors import UsageError

#: Folders that a runtime takes from the host, whatever the image has there.
OF_THE_NODE = ("/dev", "/proc", "/sys", "/tmp")  # noqa: S108  named, not used here
#: Folders with the image's own system. A folder bound there would hide it.
_OF_THE_IMAGE = (
    "/", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/root", "/run", "/sbin", "/srv",
    "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/sbin", "/usr/share", "/var",
)  # fmt: skip
_OURS = "/deployer"


def check(path: str, of_site: bool = False) -> str:
    """Return ``path`` if an image can have a mount point there. Raises UsageError.

    Args:
        of_site: a folder of the site will be bound there, which must not hide image content.
    """
    problem = _problem(path, of_site)
    if problem:
        raise UsageError(f"invalid mount point: {path!r}: {problem[0]}", problem[1])
    return path


def check_site(path: str) -> str:
    """Return ``path`` if a folder of the site can be bound there without hiding image content. Raises UsageError."""
    return check(path, of_site=True)


def possible(paths: Iterable[str]) -> List[str]:
    """Return those paths that ``check_site`` accepts."""
    return [path for path in paths if not _problem(path, of_site=True)]


def in_the_way(path: str, is_folder: Callable[[str], Optional[bool]]) -> Optional[str]:
    """Return the part of an absolute path that exists in an image but is not a folder, or None.

    Args:
        is_folder: returns whether a path in the image is a folder itself, not a link; None: nothing is there.
    """
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        part = "/" + "/".join(parts[:count])
        found = is_folder(part)
        if found is None:
            return None
        if not found:
            return part
    return None


def _problem(path: str, of_site: bool) -> Optional[List[str]]:
    """Return why no image can have a mount point at a path, and what to do; None if it can."""
    if not path.startswith("/") or ":" in path or not path.isprintable():
        return ["it is not an absolute path without colon and line break", "for instance /lustre/project"]
    if path == "/" or any(part in ("", ".", "..") for part in path[1:].split("/")):
        return ["it is /, or has an empty part, . or ..", "for instance /lustre/project"]
    for top in (*OF_THE_NODE, _OURS):
        if path == top or path.startswith(top + "/"):
            whose = "deployer's own" if top == _OURS else "the node's own in each container"
            return [f"{top} is {whose}", "leave it out"]
    if of_site and path in _OF_THE_IMAGE:
        return ["the image has its own programs and files there, which it would hide", "name a folder below it"]
    return None
