"""Node names in texts: sort them by number, and group findings that differ only in the node."""

import re
from collections import OrderedDict
from typing import Collection, Dict, Iterable, List, Sequence, Tuple

from deployer.contract.rules.findings import Finding

_PARTS = re.compile(r"(\d+)")


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
    return ", ".join("-".join(dict.fromkeys((each[0], each[-1]))) for each in ranges)


def _next(name: str) -> str:
    """Return the name with the next number and the same number of digits; empty if the name has no number."""
    parts = _PARTS.split(name)
    if len(parts) < 2:
        return ""
    parts[-2] = str(int(parts[-2]) + 1).zfill(len(parts[-2]))
    return "".join(parts)


def grouped(found: Sequence[Finding], nodes: Collection[str]) -> List[Finding]:
    """Return findings in order, merging those that differ only in their node, one of ``nodes``."""
    groups: Dict[Finding, List[str]] = OrderedDict()
    for item in found:
        alone = item._replace(subject="") if item.subject in nodes else item
        subjects = groups.setdefault(alone, [])
        if item.subject not in subjects:
            subjects.append(item.subject)
    return [
        item._replace(subject=subjects[0] if len(subjects) == 1 else "%d nodes: %s" % (len(subjects), shown(subjects)))
        for item, subjects in groups.items()
    ]
