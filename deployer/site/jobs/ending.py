"""The last lines of ``run --wait``: how the job ended, where its log is, warnings, the payload's result, the proof."""

import json
import os
from typing import Any, List

from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError
from deployer.contract.base.text import counted, printable
from deployer.contract.proof import in_words
from deployer.contract.rules.findings import WARNING
from deployer.site.jobs import result
from deployer.site.jobs.jobs import Status

#: The maximum number of fields to show of the payload's own result, and of characters of each.
_FIELDS, _WIDTH = 12, 60
#: The number of nested levels of lists and objects to show of it.
_DEPTH = 100


def lines(status: Status) -> List[str]:
    """Return the lines to print for a person about a job that has ended."""
    exit_code = "" if status.exit_code is None else "exit %d" % status.exit_code
    took = status.elapsed if status.seconds is None else "%d s" % status.seconds
    end = ", ".join(filter(None, (status.state, exit_code, took)))
    if status.tasks:
        return [f"job {status.launch.job} ({status.job_id}): {status.state}, {status.reason}"]
    shown = [f"job {status.launch.job} ({status.job_id}): {end}", f"log: {os.path.join(status.folder, result.LOG)}"]
    try:
        fields = result.read(status.folder)
        warnings = [finding for finding in result.findings(fields) if finding.severity == WARNING]
    except DeployerError as error:
        return [*shown, f"result: none: {error.message}"]
    shown.append(f"result: {os.path.join(status.folder, result.RESULT_FILE)}")
    shown += [f"{finding}; {printable(finding.remedy)}" for finding in warnings]
    return [*shown, *_payload(fields.record.get("payload")), in_words.line(fields.record)]


def _payload(payload: Any) -> List[str]:
    if payload is None:
        return ["payload: no result of its own (a program writes JSON to the file $DEPLOYER_RESULT)"]
    if json_records.is_deeper(payload, _DEPTH):
        return ["payload: nested deeper than %d levels" % _DEPTH]
    if not isinstance(payload, dict):
        return ["payload: " + _short(payload)]
    shown = [f"payload {_short(name)[1:-1]}: {_short(value)}" for name, value in list(payload.items())[:_FIELDS]]
    more = len(payload) - _FIELDS
    return [*shown, "payload: " + counted(more, "more field")] if more > 0 else shown


def _short(value: Any) -> str:
    """Return a value as JSON, which escapes control characters; a long value is truncated."""
    text = json.dumps(value)
    if len(text) <= _WIDTH:
        return text
    if isinstance(value, (list, dict)):
        kind, last = ("items", value[-1:]) if isinstance(value, list) else ("fields", [])
        shown = f", the last: {json.dumps(last[0])}" if last else ""
        return "%d %s%s" % (len(value), kind, shown if len(shown) <= _WIDTH else "")
    return text[:_WIDTH] + "..."
