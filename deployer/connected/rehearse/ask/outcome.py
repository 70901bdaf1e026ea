"""Determine the outcome of a rehearsal from the files of the simulated site. Files of the job are not trusted."""

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deployer import __version__
from deployer.connected.rehearse.ask.crossing import LOG
from deployer.connected.rehearse.ask.judged import NAMESPACES, Judged
from deployer.connected.rehearse.ask.rehearse import Rehearsed
from deployer.connected.rehearse.world import machine
from deployer.connected.rehearse.world.node import NEEDED
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.text import printable
from deployer.contract.bundle.job import seconds
from deployer.contract.rehearsal import observation, rehearsal
from deployer.contract.rehearsal.rehearsal import FILES, NETWORK, PYTHON, Bounds, JobEnding, Reached, Rehearsal, Used
from deployer.contract.rules.findings import ERROR, Finding
from deployer.system import files
from deployer.system.observe import observations
from deployer.system.observe.observations import SEEN

#: Exit codes of ``timeout``: the time limit was reached; the command had to be killed.
_TIME_OVER, _KILLED = 124, 137
#: Bytes at the end of the log to search for the last line.
_LOG_TAIL = 16 * 1024
#: The prefix of codes that only report that the payload failed.
_OF_PAYLOAD = "payload."
#: The prefixes of deployer's own lines in the log.
_OWN_LINES = ("deployer: ", "hint: ")
#: The format of a code.
_CODE = re.compile(r"[a-z0-9-]{1,40}\.[a-z0-9-]{1,40}\Z")
#: The maximum size in bytes of the record and of the file list of an observer.
_MAX_USED = 1024 * 1024
_MAX_FILES = 64 * 1024 * 1024


def judge(rehearsed: Rehearsed, accepted: tuple[str, ...] = ()) -> Judged:
    """Return the outcome of a rehearsal in namespaces."""
    records = _records(rehearsed)
    opened = _opened(rehearsed, records)
    return Judged(_outcome(rehearsed, records, opened, accepted), rehearsed.folder, NAMESPACES)


def _outcome(
    rehearsed: Rehearsed, records: Mapping[str, Mapping[str, Any]], opened: list[str] | None, accepted: tuple[str, ...]
) -> Rehearsal:
    ending = _ending(rehearsed)
    kernel = list(observations.written(str(rehearsed.kernel)))
    # The job can change the hooks' files, so they are read last: even a flood cannot displace the observers' files.
    observed = observation.read(itertools.chain(kernel, observations.written(str(rehearsed.folder / SEEN))))
    addresses = machine.addresses(rehearsed.layout.nodes)
    bounds = Bounds(rehearsed.memory_mb, rehearsed.layout.threads, seconds(rehearsed.job.time))
    used = _used(rehearsed, records)
    own = {*addresses, *addresses.values()}
    own_files = {*rehearsed.job.command, *rehearsed.request.extra}
    had_input = opened is None or any(rehearsal.is_input(path) and path not in own_files for path in opened)
    reached = rehearsal.judge(observed, ending, used, bounds, own, rehearsed.job.name, had_input)
    watched = [PYTHON] if observed.has_python else []
    blind = [name for name, record in records.items() if record.get("whole") is not True]
    if not blind:
        watched += [NETWORK, FILES]
    return Rehearsal(
        bundle=f"{rehearsed.manifest.name}:{rehearsed.manifest.version}",
        image=rehearsed.manifest.image.layer_digest,
        job=rehearsed.job.name,
        site=rehearsed.request.site.site if rehearsed.request.site else "",
        date=int(time.time()),
        deployer=__version__,
        nodes=rehearsed.layout.nodes,
        ranks=rehearsed.layout.ranks,
        watched=tuple(watched),
        ending=ending,
        used=used,
        findings=(
            *_with_proof(reached, rehearsed, ending),
            *(rehearsal.unseen(rehearsal.NOT_WHOLE % name) for name in blind),
        ),
        requested=rehearsal.requested(observation.read(kernel).observations, own),
        accepted=accepted,
        command=(*rehearsed.job.command, *rehearsed.request.extra),
    )


def _ending(rehearsed: Rehearsed) -> JobEnding:
    """Return how the job ended."""
    code, took = rehearsed.report.exit_code, rehearsed.report.seconds
    if rehearsed.report.stopped:
        return JobEnding(rehearsal.STOPPED, None, rehearsed.report.stopped, took)
    if any(node.get("memory") for node in rehearsed.report.nodes.values()):
        how = rehearsal.MEMORY
    elif code in (_TIME_OVER, _KILLED) and took >= rehearsed.request.seconds:  # the job may end with these codes, too
        return JobEnding(rehearsal.LIMIT, None, None, took)
    else:
        how = rehearsal.FAILED if code else rehearsal.DONE
    return JobEnding(how, code, _last_line(rehearsed.folder / LOG) if code else None, took)


def _with_proof(reached: tuple[Reached, ...], rehearsed: Rehearsed, ending: JobEnding) -> tuple[Reached, ...]:
    """Return the findings. If none explains why the job stopped, add what its ranks could not prove."""
    if not ending.failed or any(item.stopped and item.finding.code != "rehearse.ended" for item in reached):
        return reached
    proof = [item for item in _findings(rehearsed) if item.severity == ERROR and not item.code.startswith(_OF_PAYLOAD)]
    return (*(Reached(item, True) for item in proof), *reached)


def _findings(rehearsed: Rehearsed) -> Iterator[Finding]:
    listed = (rehearsed.result or {}).get("findings")
    for item in listed if isinstance(listed, list) else []:
        with contextlib.suppress(TypeError, KeyError):
            finding = Finding(**{name: str(item[name]) for name in Finding._fields if name in item})
            if _CODE.match(finding.code):  # the job can write any text, and codes are printed unescaped
                yield finding


def _records(rehearsed: Rehearsed) -> dict[str, dict[str, Any]]:
    """Return each node's record from its observer. It is empty if the job or something else ended the observer."""
    records = {}
    for name in machine.names(rehearsed.layout.nodes):
        data = observations.first_bytes(str(rehearsed.kernel / f"{name}.used.json"), _MAX_USED)
        record = None
        with contextlib.suppress(DeployerError):
            record = json_records.parse(data or b"", name)
        observed = rehearsed.report.nodes.get(name, {}).get("observed")
        records[name] = record if isinstance(record, dict) and observed else {}
    return records


def _used(rehearsed: Rehearsed, records: Mapping[str, Mapping[str, Any]]) -> Used:
    """Return what the job used: the largest values that any node measured."""
    known = {
        name: max((record[name] for record in records.values() if _is_number(record.get(name))), default=None)
        for name in Used._fields
    }
    needed = max((node.get(NEEDED) or 0 for node in rehearsed.report.nodes.values()), default=0)
    return Used(**known)._replace(node_memory=needed or None)


def _opened(rehearsed: Rehearsed, records: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """Return the container's files that the job opened, or None if a node's list is missing or incomplete."""
    listed: set[str] = set()
    for name, record in records.items():
        data = observations.first_bytes(str(rehearsed.kernel / f"{name}.files"), _MAX_FILES + 1)
        complete = record.get("whole") is True and record.get("all_files_listed") is True
        if data is None or not complete or len(data) > _MAX_FILES:
            return None
        listed.update(data.decode("utf-8", "surrogateescape").split("\n")[:-1])
    return sorted(listed)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15


def _last_line(path: Path) -> str | None:
    """Return the last line printed by the job itself."""
    lines = tail(path, _LOG_TAIL).decode("utf-8", "replace").splitlines()
    own = [line for line in lines if line.strip() and not line.startswith(_OWN_LINES)]
    return printable(own[-1][:500]) if own else None


def tail(path: Path, size: int) -> bytes:
    """Return the last bytes of a file of the job; none if it cannot be read. A link is not followed."""
    with contextlib.suppress(OSError, DeployerError), files.open_regular(str(path), follow=False) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
        return stream.read(size)
    return b""
