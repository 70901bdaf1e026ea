"""Links of a job: files of the bundle at the places where programs look for their downloads. Pure.

``~/.keras/datasets`` is in the job's private HOME on each node, ``data/MNIST`` in the job's folder. Libraries write
beside their files, so a variable that points to a read-only folder does not help. Therefore folders are real, and each
file is a link to the data or the app of the bundle.
"""

from typing import Dict, Iterable, List, Mapping, Tuple

from deployer.contract.base.errors import UsageError
from deployer.contract.site.plan import APP, DATA

#: The beginning of a place in the private HOME; the place of a folder whose files all belong in HOME.
HOME, HOME_ITSELF = "~/", "~"
#: The most links of one job, because every node creates them all.
MOST = 10_000
_SOURCES = {"data": DATA, "app": APP}
_MAX_PATH = 1000
#: Names in the job's folder that are not for the program.
OURS = (
    "job.sh", "job.json", "job_id", "result.json", "payload.json", "output.log", "checkpoint", "next", "hosts", "ranks",
    "inside", "agent", "environment", "machines", "rehearsal", "rehearsal-hook",
)  # fmt: skip
_HINT = "for instance links: {~/.keras/datasets: data/keras/datasets}"


def check(found: Mapping[str, str]) -> Mapping[str, str]:
    """Return the links of a job, SOURCE by PLACE. Raises UsageError if a link is impossible."""
    for place, source in found.items():
        check_place(place)
        check_source(source)
    places = sorted(place.split("/") for place in found)
    for one, other in zip(places, places[1:]):
        if other[: len(one)] == one:
            raise UsageError(
                "links: {} is within {}".format("/".join(other), "/".join(one)), "link the files of the inner one apart"
            )
    return found


def check_place(place: str) -> None:
    """Raise UsageError unless ``place`` is in the private HOME or the job's folder."""
    if place == HOME_ITSELF:
        return
    below = place[len(HOME) :] if place.startswith(HOME) else place
    if not is_below(below) or below.startswith("~"):
        raise UsageError(
            f"links: invalid place: {place!r}", "write ~, ~/PATH, or a path below the job's folder, without .."
        )
    first = below.split("/")[0]
    if not place.startswith(HOME) and (first in OURS or first.startswith(".")):
        raise UsageError(f"links: {first!r} is a name of the job's folder itself: {place!r}", "use another name")


def check_source(source: str) -> None:
    """Raise UsageError unless ``source`` is in the bundle's data or app."""
    kind, slash, below = source.partition("/")
    if kind not in _SOURCES or not is_below(below or ("" if slash or kind == "data" else "app")):
        raise UsageError(f"links: invalid source: {source!r}", "write data/NAME, data/NAME/PATH or app/PATH; " + _HINT)


def target(source: str) -> str:
    """Return a source's path in the container."""
    kind, slash, below = source.partition("/")
    return _SOURCES[kind] + slash + below


def split(links: Iterable[Tuple[str, str]]) -> Tuple[Dict[str, str], Dict[str, str]]:
    """Return the links in HOME and those in the job's folder, each by its path there. Raises UsageError."""
    by_place = dict(links)
    if HOME_ITSELF in by_place:
        problem = f"links: ~ leads to the file {by_place[HOME_ITSELF]}"
        raise UsageError(problem, "link a folder to ~, or the file to ~/NAME")
    home = {place[len(HOME) :]: path for place, path in by_place.items() if place.startswith(HOME)}
    return home, {place: path for place, path in by_place.items() if not place.startswith(HOME)}


def check_made(found: Dict[str, str]) -> Dict[str, str]:
    """Return the links in one folder, target by path, from a job's record. Raises UsageError."""
    for place, path in found.items():
        inside = any(path == top or path.startswith(top + "/") for top in _SOURCES.values())
        if not is_below(place) or not inside or ".." in path.split("/"):
            raise UsageError(
                f"invalid link: {place!r} to {path!r}",
                "rename the file: a path has printable characters, at most %d of them" % _MAX_PATH,
            )
    return found


def is_below(path: str) -> bool:
    """Return whether a path, as written, stays below its folder."""
    parts: List[str] = path.split("/")
    return path.isprintable() and len(path) <= _MAX_PATH and not {"", ".", ".."} & set(parts)
