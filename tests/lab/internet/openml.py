"""OpenML's API, as scikit-learn's ``fetch_openml`` uses it: data sets as ARFF files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.lab.internet.answers import Answer, Handler, Request, as_json, content, text

_WEB = "www.openml.org"


@dataclass(frozen=True)
class _Set:
    number: int
    name: str
    version: int
    columns: Mapping[str, str]
    target: str
    body: bytes


class OpenML:
    """The handlers of OpenML's hosts.

    Attributes:
        hosts: the handler of each host name.
    """

    def __init__(self) -> None:
        self._sets: list[_Set] = []
        self.hosts: dict[str, Handler] = {
            "api.openml.org": self._answer,
            _WEB: self._answer,
            "openml.org": self._answer,
        }

    def add(
        self,
        name: str,
        columns: Mapping[str, str],
        rows: Sequence[Sequence[object]],
        target: str,
        number: int = 0,
        version: int = 1,
    ) -> int:
        """Serve a data set and return its number.

        Args:
            columns: the type of each, ``NUMERIC``, ``STRING`` or ``{first,second}``.
            rows: their values; ``?`` is a missing one.
            target: the column that is to be predicted, or several, with commas between them.
            number: the data set's; otherwise the next one.
        """
        lines = [f"@RELATION {name}", *(f"@ATTRIBUTE {column} {kind}" for column, kind in columns.items()), "@DATA"]
        lines += [",".join(map(str, row)) for row in rows]
        made = _Set(
            number or 40_000 + len(self._sets), name, version, columns, target, "\n".join([*lines, ""]).encode()
        )
        self._sets.append(made)
        return made.number

    def _answer(self, request: Request) -> Answer:
        path = request.path.removeprefix("/api/v1/json")
        if match := re.match(r"/data/list/data_name/([^/]+)/", path):
            return self._list([each for each in self._sets if each.name == match.group(1).lower()])
        if match := re.match(r"/data(?:/(features|qualities))?(?:/v1/download)?/(\d+)", path):
            found = [each for each in self._sets if each.number == int(match.group(2))]
            if not found:
                return as_json({"error": {"code": "111", "message": "Unknown dataset"}}, 412)
            return self._of(request, found[0], "download" if "/download/" in path else match.group(1) or "")
        return text(404, "not found")

    def _list(self, found: Sequence[_Set]) -> Answer:
        if not found:
            return as_json({"error": {"code": "372", "message": "No results"}}, 412)
        rows = [{"did": each.number, "name": each.name, "version": each.version, "status": "active"} for each in found]
        return as_json({"data": {"dataset": rows}})

    def _of(self, request: Request, found: _Set, act: str) -> Answer:
        if act == "download":
            return content(request, found.body, {"Content-Type": "text/plain"})
        if act == "qualities":
            rows = found.body.split(b"@DATA\n")[1].count(b"\n")
            qualities = {"NumberOfInstances": rows, "NumberOfFeatures": len(found.columns)}
            made = [{"name": name, "value": float(value)} for name, value in qualities.items()]
            return as_json({"data_qualities": {"quality": made}})
        if act == "features":
            return as_json({"data_features": {"feature": _features(found)}})
        description = {
            "id": str(found.number),
            "name": found.name,
            "version": str(found.version),
            "description": "made for tests",
            "format": "ARFF",
            "file_id": str(found.number),
            "url": f"https://{_WEB}/data/v1/download/{found.number}/{found.name}.arff",
            "default_target_attribute": found.target,
            "status": "active",
            "licence": "Public",
            "md5_checksum": hashlib.md5(found.body, usedforsecurity=False).hexdigest(),
        }
        return as_json({"data_set_description": description})


def _features(found: _Set) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for index, (name, kind) in enumerate(found.columns.items()):
        feature: dict[str, object] = {
            "index": str(index),
            "name": name,
            "data_type": "nominal" if kind.startswith("{") else kind.lower(),
            "is_target": str(name in found.target.split(",")).lower(),
            "is_ignore": "false",
            "is_row_identifier": "false",
            "number_of_missing_values": "0",
        }
        if kind.startswith("{"):
            feature["nominal_value"] = kind.strip("{}").split(",")
        made.append(feature)
    return made
