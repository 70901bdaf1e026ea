"""The matrix at work: sites are brought up and captured, images packed, checked and installed, and each pair is run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deployer.connected.check import check
from deployer.connected.linker import index
from deployer.contract import json_records
from deployer.contract.errors import Refused, Unknown
from tests.matrix import classify, images
from tests.matrix import run as running
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
        checked = _checked(drawn, places, work, say)
        with ThreadPoolExecutor(len(suites)) as pool:
            for _ in pool.map(lambda suite: _run_all(drawn, places[suite], checked, told), suites):
                pass
    finally:
        for place in places.values():
            if not keep:
                place.lab.down(purge=True)
    return [lines[pair] for pair in drawn]


def _checked(
    drawn: Sequence[Pair], places: dict[str, Place], work: Path, say: Say
) -> dict[Pair, tuple[str, list[str]]]:
    """Install each image where it is to run, check it for each of its sites, and put the plan for it there."""
    found: dict[Pair, tuple[str, list[str]]] = {}
    for image in dict.fromkeys(pair.image for pair in drawn):
        sites = [pair.site for pair in drawn if pair.image == image]
        say(f"image: {image.name}, {len(sites)} sites")
        bundle = images.bundle(image)
        folders = {suite: places[suite].install(bundle) for suite in {site.lab for site in sites}}
        for site in sites:
            profile = places[site.lab].profile(site, work)
            try:
                plan, checked = check.plan(str(bundle), profile, cache=index.default_folder())
            except (Refused, Unknown):  # there is none, and not even force can run it
                checked = check.check(str(bundle), profile).checked
            else:
                (folders[site.lab] / "plans").mkdir(exist_ok=True)
                (folders[site.lab] / "plans" / f"{site.name}.json").write_text(json_records.pretty(plan.record()))
            found[Pair(image, site)] = (checked.verdict, sorted({finding.code for finding in checked.against}))
    return found


def _run_all(
    drawn: Sequence[Pair], place: Place, checked: dict[Pair, tuple[str, list[str]]], told: Callable[[Line], None]
) -> None:
    for pair in drawn:
        if pair.site.lab == place.suite:
            seen = running.run(pair, place)
            verdict, codes = checked[pair]
            told(Line(pair, verdict, codes, classify.outcome(seen), seen.proof, seen.seconds))
