"""The matrix at work: sites are brought up and captured, images packed, checked and installed, and each pair is run."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deployer.connected.check import check
from deployer.connected.linker import index
from deployer.contract import json_records
from deployer.contract.errors import Refused, Unknown
from tests.lab.site import USER_ID
from tests.matrix import apps, classify, images
from tests.matrix import run as running
from tests.matrix.apps import App
from tests.matrix.pairs import Pair
from tests.matrix.sites import Place
from tests.matrix.table import Line

Say = Callable[[str], None]


def matrix(
    drawn: Sequence[Pair], lab: str, work: Path, say: Say, output: Path | None = None, keep: bool = False
) -> list[Line]:
    """Return a line for each pair. The labs work side by side, each on its pairs one by one."""
    suites = list(dict.fromkeys(pair.site.lab for pair in drawn))
    writing = threading.Lock()
    lines: dict[Pair, Line] = {}

    def told(line: Line) -> None:
        with writing:
            lines[line.pair] = line
            say(f"{len(lines)}/{len(drawn)} {line.record()}")
            if output:
                with open(output, "a", encoding="utf-8") as stream:
                    stream.write(line.record() + "\n")

    places = {suite: Place(suite, lab, work) for suite in suites}
    try:
        for suite, place in places.items():
            say(f"site: {suite}")
            place.start({pair.site.mpi for pair in drawn if pair.site.lab == suite})
        with ThreadPoolExecutor(len(suites)) as pool:
            for _ in pool.map(lambda suite: _run_all(drawn, places[suite], work, say, told), suites):
                pass
    finally:
        for place in places.values():
            if not keep:
                place.lab.down(purge=True)
    return [lines[pair] for pair in drawn]


def _run_all(drawn: Sequence[Pair], place: Place, work: Path, say: Say, told: Callable[[Line], None]) -> None:
    """Run a lab's pairs: each bundle is installed there for its pairs, and removed after them."""
    mine = [pair for pair in drawn if pair.site.lab == place.suite]
    for image, wrapper in dict.fromkeys((pair.image, pair.wrapper) for pair in mine):
        say(f"image: {image.name}, {wrapper}, {place.suite}")
        with tempfile.TemporaryDirectory(dir=work) as making:
            packed = apps.bundle(image, wrapper, Path(making)) if isinstance(image, App) else images.bundle(image)
            folder = place.install(packed)
            for pair in mine:
                if (pair.image, pair.wrapper) == (image, wrapper):
                    verdict, codes = _check(pair, packed, place, folder, work)
                    seen = running.run(pair, place)
                    outcome = classify.outcome(seen, image if isinstance(image, App) else None)
                    told(Line(pair, verdict, codes, outcome, seen.proof, seen.seconds))
        place.remove(f"{image.name}:1")


def _check(pair: Pair, packed: Path, place: Place, folder: Path, work: Path) -> tuple[str, list[str]]:
    """Return the verdict and its codes, and put the plan beside the installed image."""
    profile = place.profile(pair.site, work)
    try:
        plan, checked = check.plan(str(packed), profile, cache=index.default_folder())
    except (Refused, Unknown):  # there is none, and not even force can run it
        checked = check.check(str(packed), profile).checked
    else:
        path = folder / "plans" / f"{pair.site.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json_records.pretty(plan.record()))
        for made in (path.parent, path):  # its user removes it
            os.chown(made, USER_ID, USER_ID)
    return checked.verdict, sorted({finding.code for finding in checked.against})
