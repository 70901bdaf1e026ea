"""The matrix as a table, and its sums. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from deployer.contract.rules.verdict import UNKNOWN, WARN
from tests.matrix import classify
from tests.matrix.app import App
from tests.matrix.classify import Outcome
from tests.matrix.pairs import RUNTIMES, Pair
from tests.matrix.wrappers import DIRECT

#: Of all pairs, how many may be refused wrongly, and how many may be left open.
FALSE_REFUSES, OPEN = 0.01, 0.08


class Line(NamedTuple):
    """A pair, what was said beforehand, and what was seen; ``proof`` are the codes of the product's own evidence."""

    pair: Pair
    verdict: str
    codes: list[str]
    seen: Outcome
    proof: list[str]
    seconds: float

    @property
    def judged(self) -> str:
        return classify.judge(self.verdict, self.codes, self.seen)

    def record(self) -> str:
        """Return the line as one of JSON, for what reads it later."""
        site = self.pair.site
        fields = {
            "image": self.pair.image.name, "wrapper": self.pair.wrapper, "site": site.name,
            "verdict": self.verdict, "codes": self.codes, "seen": self.seen.kind, "reason": self.seen.reason,
            "proof": self.proof, "judged": self.judged, "seconds": round(self.seconds, 1),
        }  # fmt: skip
        return json.dumps(fields)

    def row(self, number: int) -> str:
        """Return the line as a row of the table in Markdown."""
        image, site = self.pair.image, self.pair.site
        launcher = " ".join(filter(None, (site.launcher, site.pmi)))
        said = " ".join([self.verdict, *(f"`{code}`" for code in self.codes)])
        seen = self.seen.text.replace("|", "\\|").replace("`", "'")
        named = image.name if self.pair.wrapper == DIRECT else f"{image.name}, {self.pair.wrapper}"
        cells = (named, f"{site.mpi} ({site.lab})", launcher, site.runtime, said, seen, self.judged)
        return f"| {number} | " + " | ".join(cells) + " |"


HEAD = """\
| | image | site | launcher | runtime | predicted | seen | |
|---|---|---|---|---|---|---|---|"""


def render(lines: Sequence[Line]) -> str:
    """Return the table and the sums."""
    parts = {
        "Our own programs": [line for line in lines if not isinstance(line.pair.image, App)],
        "Applications of others": [line for line in lines if isinstance(line.pair.image, App)],
        "Of these set aside": [line for line in lines if line.pair.set_aside],
    }
    for runtime in dict.fromkeys(RUNTIMES):
        parts[f"With {runtime}"] = [line for line in lines if line.pair.site.runtime == runtime]
    counted = [f"{name}: {counts(part)}" for name, part in parts.items() if part]
    return "\n".join([HEAD, *(line.row(number) for number, line in enumerate(lines, 1)), "", *sums(lines), *counted])


def sums(lines: Sequence[Line]) -> list[str]:
    """Return the counts in words, and whether they hold."""
    return [counts(lines), "The matrix holds." if holds(lines) else "THE MATRIX DOES NOT HOLD."]


def counts(lines: Sequence[Line]) -> str:
    """Return the counts in words."""
    verdicts, kinds, judged = (
        Counter(line.verdict for line in lines),
        Counter(line.seen.kind for line in lines),
        Counter(line.judged for line in lines),
    )

    def shown(counts: Counter[str]) -> str:
        return ", ".join(f"{count} {name}" for name, count in counts.most_common())

    return f"{len(lines)} pairs. Predicted: {shown(verdicts)}. Seen: {shown(kinds)}. Judged: {shown(judged)}."


def holds(lines: Sequence[Line]) -> bool:
    """Return whether no verdict was false but for the few that may be, and few were left open."""
    judged = Counter(line.judged for line in lines)
    verdicts = Counter(line.verdict for line in lines)
    return (
        judged[classify.FALSE_RUN] == judged[classify.FALSE_WARN] == judged[classify.OTHER_REASON] == 0
        and judged[classify.FALSE_REFUSE] <= FALSE_REFUSES * len(lines)
        and verdicts[WARN] + verdicts[UNKNOWN] <= OPEN * len(lines)
    )
