"""Facts from Slurm's own configuration: slurm.conf and gres.conf, as an administrator has them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from deployer.connected.ground.yaml_model import KeyPath
from deployer.connected.site_profile.importers.draft import Draft, FileLine
from deployer.contract.base.errors import UsageError

#: Valid names for partitions of a profile.
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")
#: The most nodes of a site, after all ranges are expanded.
_MAX_NODES = 200_000
_MAX_INCLUDES = 20
#: The most kinds of node in a partition that become partitions of the profile.
_MAX_KINDS = 16
#: The most members of all partitions together, and the most names of all node expressions together.
_MAX_MEMBERS = 4_000_000
#: The most characters of a node's name; each range counts as two.
_MAX_NAME = 256

_PAIR = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)\s*\+?=\s*(\"(?:[^\"\\]|\\.)*\"|\S*)")
_QUOTED = re.compile(r'^"(.*)"$')
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_INCLUDE = re.compile(r"include\s+(\S+)", re.IGNORECASE)
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_LOOKS = re.compile(r"(?im)^[ \t]*(NodeName|PartitionName|ClusterName|ControlMachine|SlurmctldHost)\s*=")
_LOOKS_GRES = re.compile(r"(?im)^[ \t]*((NodeName\s*=\s*\S+\s+)?Name\s*=\s*\w+\s|AutoDetect\s*=)")
#: Text that occurs only in a template of slurm.conf, never in a real one.
_TEMPLATES = ("{{", "{%", "<%", "${")
#: The vendors of GPUs that gres.conf detects with a vendor's library or by device files.
_VENDORS = {"nvml": "nvidia", "nvidia": "nvidia", "rsmi": "amd", "oneapi": "intel"}
#: Settings of a partition without an equivalent in a profile, by the text of their note.
_NOT_EXPRESSED = {
    "who may use a partition": "allowaccounts allowgroups allowqos denyaccounts denyqos rootonly reqresv",
    "a least number of nodes": "minnodes",
    "how jobs share nodes": "exclusiveuser oversubscribe shared",
    "limits of a partition in its own QoS": "qos",
    "a limit of cores per job": "maxcpuspernode",
    "a limit of memory": "maxmempernode maxmempercpu",
    "memory of jobs that name none": "defmempercpu defmempernode",
    "the time of jobs that name none": "defaulttime",
}


class _Record(NamedTuple):
    """A line of the file with its settings; keys are in lower case."""

    values: dict[str, str]
    origin: FileLine


#: The known facts that equal nodes have in common, by their places below ``node``.
_Kind = tuple[tuple[KeyPath, int | str], ...]
_GPUS = ("gpus", "count")


class _Node(NamedTuple):
    """A kind of node with its features and the line that describes it."""

    kind: _Kind
    features: frozenset[str]
    origin: FileLine


def is_configuration(text: str) -> bool:
    """Return whether a text is a slurm.conf, part of one, or a gres.conf."""
    return _LOOKS.search(text) is not None or is_gres_conf(text)


def is_gres_conf(text: str) -> bool:
    """Return whether a text is a gres.conf."""
    return _LOOKS_GRES.search(text) is not None


class SlurmConf:
    """The files of one cluster, read together: gres.conf and included files complete slurm.conf."""

    def __init__(self, draft: Draft, texts: Mapping[str, str]) -> None:
        """Read files.

        Args:
            texts: the contents by file name. An ``Include`` is followed if its file is among them.

        Raises:
            UsageError: the files describe too many nodes, or include each other endlessly.
        """
        self._draft = draft
        self._texts = texts
        self._general: dict[str, tuple[str, FileLine]] = {}
        self._nodes: dict[str, _Node] = {}
        self._sets: dict[str, list[str]] = {}
        self._partitions: list[_Record] = []
        self._vendors: set[tuple[str, FileLine]] = set()
        self._defaults: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}, "nodeset": {}}
        self._included: set[str] = set()
        self._members_read = 0
        self._names_read = 0

    def facts(self) -> None:
        """Write all facts to the draft."""
        lines = (line for name, text in self._texts.items() for line, _ in _lines(text, name))
        named = {include[1].rpartition("/")[2] for include in map(_INCLUDE.match, lines) if include}
        # An included file is read at its Include. A file that is still unread after the others is in a cycle.
        for name, text in sorted(self._texts.items(), key=lambda item: (item[0] in named, is_gres_conf(item[1]))):
            if name not in self._included:
                self._file(name, text, 0)
        self._site()
        for record in sorted(self._partitions, key=lambda each: each.values.get("default", "").upper() != "YES"):
            self._partition(record)

    # ------------------------------------------------------------------------------------------------------- reading

    def _file(self, name: str, text: str, depth: int) -> None:
        if depth > _MAX_INCLUDES:
            raise UsageError(f"{name} is included in a circle")
        self._included.add(name)
        for line, origin in _lines(text, name):
            include = _INCLUDE.match(line)
            other = include[1].rpartition("/")[2] if include else ""
            values = {key.lower(): _QUOTED.sub(r"\1", value) for key, value in _PAIR.findall(line)}
            first = next(iter(values), "")
            if include and other in self._texts:
                self._file(other, self._texts[other], depth + 1)
            elif include:
                self._draft.note("an included file that was not given", include[1], origin)
            elif any(sign in line for sign in _TEMPLATES):
                self._draft.note("a line of a template", line, origin)
            elif not values:
                self._draft.note("a line without a setting", line, origin)
            elif first in ("nodename", "partitionname", "nodeset") and "name" not in values:
                self._record(first, values, origin)
            elif "name" in values or first == "autodetect":
                self._gres_line(values, origin)
            else:
                for key, value in values.items():
                    self._general.setdefault(key, (value, origin))

    def _record(self, kind: str, values: dict[str, str], origin: FileLine) -> None:
        if values[kind].upper() == "DEFAULT":
            self._defaults[kind].update({key: value for key, value in values.items() if key != kind})
            return
        complete = {**self._defaults[kind], **values}
        if kind == "partitionname":
            self._partitions.append(_Record(complete, origin))
        elif kind == "nodeset":
            self._sets[values[kind]] = [
                *self._expanded(complete.get("nodes", ""), origin),
                *(f"feature:{name}" for name in complete.get("feature", "").split(",") if name),
            ]
        elif "autodetect" in values and len(values) <= 2 + ("gres" in values):
            self._gres_line(values, origin)
        else:
            self._nodes.update(dict.fromkeys(self._expanded(values[kind], origin), _node(complete, origin)))

    def _gres_line(self, values: dict[str, str], origin: FileLine) -> None:
        is_gpu = values.get("name", "").lower() == "gpu"
        by_file = "nvidia" if is_gpu and "/nvidia" in values.get("file", "") else None
        for vendor in filter(None, [_VENDORS.get(values.get("autodetect", "").lower()), by_file]):
            self._vendors.add((vendor, origin))
        if is_gpu:
            if "cores" in values or "cpus" in values:
                self._draft.note("which cores are near a GPU", values.get("cores") or values.get("cpus"), origin)
        elif "name" in values:
            self._draft.note("a resource that is not a GPU", values["name"], origin)

    def _expanded(self, text: str, origin: FileLine) -> list[str]:
        found = []
        for each in _words(text):
            found += _expand(each, origin)
            if len(found) + len(self._nodes) > _MAX_NODES:
                raise UsageError(f"{origin}: more than {_MAX_NODES} nodes")
        self._names_read += len(found)
        if self._names_read > _MAX_MEMBERS:
            raise UsageError(f"{origin}: the lines name more than {_MAX_MEMBERS} nodes together")
        return found

    # --------------------------------------------------------------------------------------------------------- facts

    def _site(self) -> None:
        origins = [each.origin for each in self._partitions] + [node.origin for node in self._nodes.values()]
        if origins:
            self._draft.set(("scheduler", "kind"), "slurm", origins[0])
        with_gpus = next((node for node in self._nodes.values() if _GPUS in dict(node.kind)), None)
        if with_gpus:
            self._draft.set(("scheduler", "gpu_request"), "gres", with_gpus.origin)
        for key, kind in (("prolog", "a program before each job"), ("taskprolog", "a program before each job"),
                          ("jobsubmitplugins", "a plugin that changes jobs")):  # fmt: skip
            if key in self._general:
                self._draft.note(kind, *self._general[key])

    def cluster(self) -> str | None:
        """Return the cluster's name, or None."""
        found = self._general.get("clustername")
        return found[0] if found else None

    def _partition(self, record: _Record) -> None:
        name = record.values["partitionname"]
        if not _NAME.fullmatch(name):
            self._draft.note("an invalid name of a partition", name, record.origin)
            return
        state = record.values.get("state", "UP").upper()
        if state != "UP":
            self._draft.note("a partition that is not in use", f"{name} State={state}", record.origin)
            return
        members, missing = self._members(record)
        if missing:
            text = f"{name}: {missing}; so its number and kind of nodes are not known"
            self._draft.note("nodes that the files do not describe", text, record.origin)
            members = []
        self._members_read += len(members)
        if self._members_read > _MAX_MEMBERS:
            raise UsageError(f"{record.origin}: the partitions have more than {_MAX_MEMBERS} nodes together")
        groups: dict[_Kind, list[_Node]] = {}
        for node in members:
            groups.setdefault(node.kind, []).append(node)
        features = _telling(groups)
        if len(groups) > 1 and features is None:
            text = f"{name}: {len(groups)} kinds, and no feature tells them apart"
            self._draft.note("a partition of different nodes", text, record.origin)
        if len(groups) == 1 or not features:
            self._write(name, record, members, {})
        else:
            for kind, feature in features.items():
                self._write(f"{name}-{feature}", record, groups[kind], {"queue": name, "constraint": feature})
        for key, words in ((key, words) for words, keys in _NOT_EXPRESSED.items() for key in keys.split()):
            value = record.values.get(key, "NO")
            if value.upper() not in ("ALL", "NO", "UNLIMITED"):
                self._draft.note(words, f"{name}: {key}={value}", record.origin)

    def _members(self, record: _Record) -> tuple[list[_Node], int]:
        """Return the known nodes of a partition, and the number of unknown ones."""
        text = record.values.get("nodes", "")
        if text.upper() == "ALL" and self._nodes:
            return list(self._nodes.values()), 0
        found: list[_Node] = []
        missing = 0
        for name in dict.fromkeys(self._expanded(text, record.origin)):
            for each in self._sets.get(name, [name]):
                if each.startswith("feature:"):
                    found += [node for node in self._nodes.values() if each[8:] in node.features]
                elif each in self._nodes:
                    found.append(self._nodes[each])
                else:
                    missing += 1
        return found, missing

    def _write(self, name: str, record: _Record, members: Sequence[_Node], more: Mapping[str, str]) -> None:
        draft, place = self._draft, ("partitions", name)
        draft.set(place, {}, record.origin)
        largest, time = _count(record.values.get("maxnodes")), _time(record.values.get("maxtime", ""))
        for key, fact in {**more, "nodes": len(members), "max_nodes": largest, "max_time": time}.items():
            if fact:
                draft.set((*place, key), fact, record.origin)
        kinds = list(dict.fromkeys(node.kind for node in members))
        for below, fact in kinds[0] if kinds else ():
            if all((below, fact) in kind for kind in kinds):
                draft.set((*place, "node", *below), fact, members[0].origin)
        if draft.get(*place, "node", *_GPUS):
            vendors = {vendor for vendor, _ in self._vendors}
            if len(vendors) == 1:
                vendor, origin = min(self._vendors)
                draft.set((*place, "node", "gpus", "kind"), vendor, origin)


def _lines(text: str, name: str) -> Iterator[tuple[str, FileLine]]:
    """Yield the lines without comments. Continued lines are joined."""
    parts: list[str] = []
    begin = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):  # the last line may be continued
        begin = begin if parts else number
        plain = re.split(r"(?<!\\)#", line, maxsplit=1)[0].rstrip()
        parts.append(plain.removesuffix("\\"))
        if not plain.endswith("\\"):
            if whole := "".join(parts).strip():
                yield whole, FileLine(name, begin)
            parts = []


def _words(text: str) -> list[str]:
    """Split at commas outside brackets of any kind."""
    found, depth, begin = [], 0, 0
    for sign in re.finditer(r"[,\[\]()]", text):
        depth = max(0, depth + (sign.group() in "[(") - (sign.group() in "])"))
        if sign.group() == "," and not depth:
            found.append(text[begin : sign.start()])
            begin = sign.end()
    return list(filter(None, [*found, text[begin:]]))


def _expand(name: str, origin: FileLine) -> list[str]:
    """Return the names of a node expression: ``r[1-2]n[01-16,20]``."""
    parts = _BRACKETS.split(name)
    found, length = [parts[0]], len(parts[0])
    for ranges, after in zip(parts[1::2], parts[2::2], strict=True):
        members: list[str] = []
        for each in ranges.split(","):
            bounds = _RANGE.fullmatch(each)
            if bounds is None:
                members.append(each)
                continue
            first, last = bounds[1], bounds[2] or bounds[1]
            if len(first) > 9 or len(last) > 9 or int(last) - int(first) >= _MAX_NODES:
                raise UsageError(f"{origin}: more than {_MAX_NODES} nodes: {name[:60]}")
            members += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
        length += max(map(len, members), default=0) + len(after) + 2
        if length > _MAX_NAME:
            break
        if len(found) * len(members) > _MAX_NODES:
            raise UsageError(f"{origin}: more than {_MAX_NODES} nodes: {name[:60]}")
        found = [before + member + after for before in found for member in members]
    if length > _MAX_NAME:
        raise UsageError(f"{origin}: a node's name has more than {_MAX_NAME} characters: {name[:60]}")
    return found


def _node(values: Mapping[str, str], origin: FileLine) -> _Node:
    sockets, per_socket = _count(values.get("sockets")), _count(values.get("corespersocket"))
    boards, per_board = _count(values.get("boards")), _count(values.get("socketsperboard"))
    sockets = sockets or (per_board * (boards or 1) if per_board else None)
    cores = sockets * per_socket if sockets and per_socket else None
    threads = _count(values.get("threadspercore")) or (1 if cores else None)
    cpus = _count(values.get("cpus") or values.get("procs"))
    if cores is None or threads is None or cpus == cores * threads:
        cpus = None
    count, kind = _gpus(values.get("gres", ""))
    names = values.get("features") or values.get("feature") or ""
    memory = _count(values.get("realmemory"))
    reserved = _count(values.get("memspeclimit")) or 0
    if memory is not None and reserved < memory:
        memory -= reserved
    facts = {
        ("sockets",): sockets,
        ("cores",): cores,
        ("threads_per_core",): threads,
        ("cpus",): cpus,
        ("memory_mb",): memory,
        _GPUS: count,
        ("gpus", "type"): kind,
    }
    shape = tuple((place, fact) for place, fact in facts.items() if fact is not None)
    return _Node(shape, frozenset(filter(None, names.split(","))), origin)


@lru_cache(maxsize=16)  # many lines inherit the Gres of a DEFAULT line
def _gpus(gres: str) -> tuple[int | None, str | None]:
    """Return the number and type of the GPUs in a node's ``Gres``. The type is None if there are several types."""
    count, kinds = 0, set()
    for each in _words(gres):
        name, *rest = re.sub(r"\([^()]*\)", "", each).split(":")
        if name.lower() != "gpu":
            continue
        number = rest[-1] if rest else ""
        count += 0 if number == "0" else _count(number) or 1
        kinds |= {word for word in rest[:1] if word != "no_consume" and not word.isdecimal()}
    return count or None, kinds.pop() if len(kinds) == 1 else None


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and 0 < len(text) < 12 and int(text) else None


def _time(text: str) -> str | None:
    """Return a time limit in the form of a profile. Slurm's forms: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    if text.upper() in ("INFINITE", "UNLIMITED"):
        return "infinite"
    found = _TIME.fullmatch(text)
    if found is None or len(text) > 20:
        return None
    days, first, second, third = (int(each or 0) for each in found.groups())
    hours = found[1] or found[4]  # otherwise the first number is minutes
    seconds = days * 86400 + (first * 3600 + second * 60 + third if hours else first * 60 + second)
    days, rest = divmod(seconds, 86400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}" if seconds else None


def _telling(groups: Mapping[_Kind, Sequence[_Node]]) -> dict[_Kind, str] | None:
    """Return for each kind of node a feature that all its nodes and no others have; None if a kind has none."""
    if len(groups) > _MAX_KINDS:
        return None
    found: dict[_Kind, str] = {}
    for kind, nodes in groups.items():
        own = frozenset.intersection(*(node.features for node in nodes))
        others = [node.features for each, members in groups.items() if each != kind for node in members]
        telling = sorted(name for name in own if _NAME.fullmatch(name) and not any(name in each for each in others))
        if not telling:
            return None
        found[kind] = telling[0]
    return found
