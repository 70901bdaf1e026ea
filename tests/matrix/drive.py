"""The matrix at work: sites are brought up and captured, images packed, checked and installed, and each pair is run."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deployer.connected.check import check
from deployer.connected.check.checking import Checking
from deployer.connected.ground import caches
from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused, Unknown
from tests.lab.site import USER_ID
from tests.matrix import apps, classify, images
from tests.matrix import run as running
from tests.matrix.app import App
from tests.matrix.images import Image
from tests.matrix.pairs import Pair
from tests.matrix.sites import Place
from tests.matrix.table import Line

Say = Callable[[str], None]


def matrix(
    drawn: Sequence[Pair],
    lab: str,
    work: Path,
    say: Say,
    output: Path | None = None,
    keep: bool = False,
    lanes: int = 1,
) -> list[Line]:
    """Return a line for each pair. The labs, ``lanes`` of each suite, work side by side, pair by pair."""
    writing = threading.Lock()
    lines: dict[Pair, Line] = {}

    def told(line: Line) -> None:
        with writing:
            lines[line.pair] = line
            say(f"{len(lines)}/{len(drawn)} {line.record()}")
            if output:
                with open(output, "a", encoding="utf-8") as stream:
                    stream.write(line.record() + "\n")

    shared: dict[Place, list[Pair]] = {}
    for suite in dict.fromkeys(pair.site.lab for pair in drawn):
        mine = [pair for pair in drawn if pair.site.lab == suite]
        together = list(dict.fromkeys((pair.image, pair.wrapper) for pair in mine))  # of one bundle, for one lab
        for lane in range(min(lanes, len(together))):
            part = [pair for pair in mine if together.index((pair.image, pair.wrapper)) % lanes == lane]
            shared[Place(suite, f"{lab}-{lane}" if lane else lab, work / str(lane))] = part
    try:
        for place in shared:
            say(f"site: {place.suite}")
            place.start({pair.site.mpi for pair in drawn})
        with ThreadPoolExecutor(len(shared)) as pool:
            for _ in pool.map(lambda place: _run_all(shared[place], place, say, told), shared):
                pass
    finally:
        for place in shared:
            if not keep:
                place.lab.down(purge=True)
    return [lines[pair] for pair in drawn]


def _run_all(mine: Sequence[Pair], place: Place, say: Say, told: Callable[[Line], None]) -> None:
    """Run a lab's pairs: each bundle is installed there for its pairs, and removed after them.

    Raises what the last bundle that could not be run raised, after all others.
    """
    failed: Exception | None = None
    for image, wrapper in dict.fromkeys((pair.image, pair.wrapper) for pair in mine):
        say(f"image: {image.name}, {wrapper}, {place.suite}")
        try:
            _run_bundle(image, wrapper, [pair for pair in mine if pair[::2] == (image, wrapper)], place, told)
        except Exception as error:  # noqa: BLE001 (the others are run first)
            say(f"{image.name}, {wrapper}, {place.suite}: {error!r}")
            failed = error
    if failed:
        raise failed


def _run_bundle(
    image: Image | App, wrapper: str, mine: Sequence[Pair], place: Place, told: Callable[[Line], None]
) -> None:
    app = image if isinstance(image, App) else None
    with tempfile.TemporaryDirectory(dir=place.work) as making:
        packed = apps.bundle(image, wrapper, Path(making)) if isinstance(image, App) else images.bundle(image)
        folder = place.install(packed)
        for pair in mine:
            verdict, codes = _check(pair, packed, place, folder)
            seen = running.run(pair, place)
            told(Line(pair, verdict, codes, classify.outcome(seen, app), seen.proof, seen.seconds))
    place.remove(f"{image.name}:1")


def _check(pair: Pair, packed: Path, place: Place, folder: Path) -> tuple[str, list[str]]:
    """Return the verdict and its codes, and put the plan beside the installed image."""
    profile = place.profile(pair.site)
    try:
        [plan] = check.all_plans(str(packed), profile, Checking(cache=caches.LINK.folder))
    except (Refused, Unknown):  # there is none, and not even force can run it
        checked = check.check_all(str(packed), profile)[0].checked
    else:
        assert plan.checked
        checked = plan.checked
        path = folder / "plans" / f"{pair.site.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json_records.pretty(plan.record()))
        for made in (path.parent, path):  # its user removes it
            os.chown(made, USER_ID, USER_ID)
    return checked.verdict, sorted({finding.code for finding in checked.against})
