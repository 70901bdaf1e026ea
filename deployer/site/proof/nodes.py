"""Nodes and ranks in texts: sort nodes by number, and group findings that differ only in the node or the rank.

No text grows with a job: it names a few nodes, and of the findings with one code a few are whole. The records of the
nodes and ranks in the job's folder have the rest.
"""

import re
from collections import OrderedDict
from typing import Container, Dict, Iterable, List, Sequence, Tuple

from deployer.contract.rules.findings import Finding
from deployer.site.proof.rank_record import render_numbers

_PARTS = re.compile(r"(\d+)")
_RANK = re.compile(r"rank [0-9]+$")
_NODES, _RANKS = "nodes", "ranks"
#: The most ranges of nodes or ranks in a text, and the most findings of one code with their own messages.
_MOST, _ALIKE = 16, 4
_OTHERS = "the same as above, but the details differ: see the files in hosts/ and ranks/ of the job's folder"


def order(name: str) -> List[Tuple[int, str]]:
    """Return a key that sorts cn4 before cn32."""
    return [(int(part) if part.isdecimal() else 0, part) for part in _PARTS.split(name)]


def shown(names: Iterable[str]) -> str:
    """Return names in order, with ranges shortened: cn1-cn4, cn7."""
    ranges: List[List[str]] = []
    for name in sorted(names, key=order):
        if ranges and _next(ranges[-1][-1]) == name:
            ranges[-1].append(name)
        else:
            ranges.append([name])
    texts = ["-".join(dict.fromkeys((names[0], names[-1]))) for names in ranges]
    return ", ".join(texts[:_MOST] + ["..."] * (len(texts) > _MOST))


def _next(name: str) -> str:
    """Return the name with the next number and the same number of digits; empty if the name has no number."""
    parts = _PARTS.split(name)
    if len(parts) < 2:
        return ""
    parts[-2] = str(int(parts[-2]) + 1).zfill(len(parts[-2]))
    return "".join(parts)


def rank(task: int) -> str:
    """Return the subject of findings about a rank, by its task."""
    return "rank %d" % task


def grouped(found: Iterable[Finding], nodes: Container[str]) -> List[Finding]:
    """Return findings in order, merging those that differ only in their rank, or in their node, one of ``nodes``."""
    groups: Dict[Finding, Dict[str, None]] = OrderedDict()
    alike: Dict[str, List[Finding]] = {}
    for item in found:
        kind = _NODES if item.subject in nodes else _RANKS if _RANK.match(item.subject) else item.subject
        merged, known = item._replace(subject=kind), alike.setdefault(item.code, [])
        if merged not in groups:
            known.append(merged)
            if len(known) > _ALIKE:
                merged = known.pop()._replace(message=_OTHERS, remedy=known[0].remedy)
        groups.setdefault(merged, OrderedDict())[item.subject] = None
    return [item._replace(subject=_subject(item.subject, list(subjects))) for item, subjects in groups.items()]


def _subject(kind: str, subjects: Sequence[str]) -> str:
    if len(subjects) == 1:
        return subjects[0]
    if kind == _RANKS:
        ranges = render_numbers({int(subject.partition(" ")[2]) for subject in subjects})
        return "ranks " + ",".join(ranges.split(",")[:_MOST] + ["..."] * (ranges.count(",") >= _MOST))
    return "%d nodes: %s" % (len(subjects), shown(subjects))
