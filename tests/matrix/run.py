"""One pair, run whatever the verdict: the product's own batch script, changed so that nothing but the job ends it."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.site import USER, USER_ID
from tests.matrix import apps
from tests.matrix.app import App
from tests.matrix.images import JOB
from tests.matrix.machine import EMULATED
from tests.matrix.pairs import Pair
from tests.matrix.sites import Place
from tests.matrix.watch import Watch, Watched

#: Seconds that a step of the job may take: about two, but the machine may be busy with other work.
STEP_S = 120
_JOB_S = 4 * STEP_S
_EXIT = re.compile(r"^matrix-exit: (\d+) after (\d+) s$", re.MULTILINE)


#: What is changed in a job's script: a pattern, its replacement, and how often it must be there at least.
_CHANGES = (
    (r"^(result (?!payload)\w+ .*) \|\| exit$", r"\1 || true\nSECONDS=0", 2),
    (r'^(srun|"\$\{launch\[@\]\}")(?= )', rf"timeout -k 10 {STEP_S} \1", 3),
    # The lab's nodes are one machine, and Open MPI's daemons bind the first rank of each to the same core: docs/lab.md.
    (r":PE=\d+(?=\s)", "", 0),
    (r"--bind-to (?:core|hwthread)\b", "--bind-to none", 0),
    *(((r"-bind-to core:\d+", "-bind-to none", 0),) if EMULATED else ()),  # qemu has no mbind
    (r"^result payload \$\?$", 'code=$?\necho "matrix-exit: $code after $SECONDS s"\nresult payload $code', 1),
)


class Seen(NamedTuple):
    """What a job left: the exit code of its payload (None: it was never started, or never ended), whether its time was
    up, what its ranks wrote of themselves, the inodes of the site's MPI, the job's log with what the program left, the
    codes of the product's own proof, and what was seen from outside of the processes of a program that is not ours."""

    exit_code: int | None
    timed_out: bool
    ranks: list[dict[str, Any]]
    inodes: frozenset[int]
    log: str
    proof: list[str]
    seconds: float
    watched: list[Watched] = []  # noqa: RUF012 (never changed)


def run(pair: Pair, place: Place) -> Seen:
    """Run a pair's job to its end, or to its time limit, and return what was seen."""
    began = time.monotonic()
    words = f"tool run {pair.image.name} {JOB} --plan {pair.site.name} --time 00:10:00 --force --dry-run --json"
    said = place.lab.sh("login1", USER, place.script(words), timeout=60)
    if said.returncode != 0:
        return Seen(None, False, [], frozenset(), said.stderr, [], time.monotonic() - began)
    inside = Path(json.loads(said.stdout)["folder"])
    folder = place.lab.home / inside.relative_to("/home")
    script = folder / "job.sh"
    script.write_text(unstopped(script.read_text()))
    watch = Watch(place.lab, ("cn1", "cn2"))
    if isinstance(pair.image, App):
        _put_inputs(pair.image, folder)
        with watch:
            _submit(place, inside)
    else:
        _submit(place, inside)
    log = (folder / "output.log").read_text(errors="replace")
    if isinstance(pair.image, App) and pair.image.leaves and (folder / pair.image.leaves).is_file():
        log += (folder / pair.image.leaves).read_text(errors="replace")
    found = _EXIT.search(log)
    texts = [path.read_text() for path in sorted(folder.glob("matrix-*.json"))]
    ranks = [json.loads(text) for text in texts if text]  # empty: the rank was killed before it knew
    proof = _codes(folder / "result.json")
    code = int(found[1]) if found else None
    timed_out = found is None or int(found[2]) >= STEP_S
    seconds = time.monotonic() - began
    return Seen(code, timed_out, ranks, place.inodes(pair.site), log, proof, seconds, watch.seen)


def _put_inputs(app: App, folder: Path) -> None:
    """Put an application's inputs where it starts, as its user would."""
    for name, content in apps.input_files(app).items():
        (folder / name).write_bytes(content)
        os.chown(folder / name, USER_ID, USER_ID)


def _submit(place: Place, inside: Path) -> None:
    _wait(place, place.alice(f"sbatch --parsable {inside}/job.sh").strip())


def unstopped(script: str) -> str:
    """Return a job's script in which no proof ends the job before the payload, and a step that hangs is ended.

    Raises ValueError where the script is not as expected: the matrix would then prove nothing.
    """
    for pattern, text, least in _CHANGES:
        script, count = re.subn(pattern, text, script, flags=re.MULTILINE)
        if count < least:
            raise ValueError(f"job.sh has changed: {pattern!r} is there {count} times, not {least}")
    return script


def _wait(place: Place, job: str) -> None:
    until = time.monotonic() + _JOB_S
    while time.monotonic() < until:
        left = place.lab.sh("login1", "root", ["squeue", "--noheader", "--jobs", job], timeout=30)
        if not left.stdout.strip():
            return
        time.sleep(0.5)
    place.lab.sh("login1", "root", ["scancel", "--signal=KILL", "--full", job], timeout=30)
    place.lab.sh("login1", "root", ["scancel", job], timeout=30)


def _codes(path: Path) -> list[str]:
    """Return the codes of what the product's own proof found."""
    if not path.is_file():
        return ["no result"]
    return [finding["code"] for finding in json.loads(path.read_text())["findings"]]
