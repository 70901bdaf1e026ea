"""A rehearsal inside a container: ``python3 -m deployer.connected.rehearse.ask.in_container``, with only Python itself.

The container hosts the simulated site. Progress goes to standard error, and the answer to standard output as a tar.
Standard input ends when the command on the laptop ends. Then everything here ends as well.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import deployer
from deployer.connected.rehearse.ask import crossing, request
from deployer.connected.rehearse.ask.outcome import judge, tail
from deployer.connected.rehearse.ask.rehearse import SiteTools, no_bar, rehearse
from deployer.connected.rehearse.world import namespaces
from deployer.contract.base import dialogue, json_records
from deployer.contract.base.errors import DeployerError
from deployer.system import files

#: The age in seconds at which another rehearsal's copies are removed. By then, they are installed.
_OLD = 3600
_FREE = "see how much space the engine's machine has; `deployer cache prune rehearse --all` removes earlier rehearsals"


def main() -> int:
    """Run the ordered rehearsal and send the answer."""
    threading.Thread(target=_end_with_the_laptop, daemon=True).start()
    order = json_records.parse(files.read_bytes(crossing.ORDER), crossing.ORDER)
    try:
        try:
            answer = _answer(order)
        except OSError as error:
            what = f"use {error.filename}" if error.filename else "continue"
            files.raise_named(error, f"{what} in the container of the rehearsal", _FREE)
    except DeployerError as error:
        record = _json(code=error.exit_code, message=error.message, hint=error.hint, details=error.details)
        answer = {crossing.ERROR: record}
    _send(answer)
    return 0


def _end_with_the_laptop() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)  # this is the container's first process, so the kernel ends all others


def _answer(order: Mapping[str, Any]) -> dict[str, bytes]:
    forbidden = namespaces.forbidden()
    if forbidden:
        return {crossing.ERROR: _json(forbidden=forbidden)}
    wanted = request.read(order["request"])
    _remove_old(crossing.BUNDLES, {wanted.bundle, *wanted.others})
    programs = Path(deployer.__file__).parent.parent
    _remove_old(crossing.PROGRAMS, {str(programs)})
    tools = SiteTools((programs / crossing.PYZ).read_bytes(), Path(shutil.which("ch-run") or "/usr/bin/ch-run"))
    bar = _far_bar if order["progress"] else no_bar
    judged = judge(rehearse(wanted, tools, _tell, bar), tuple(order["accepted"]))
    log = tail(judged.folder / crossing.LOG, crossing.LIMITS[crossing.LOG])
    answer = {crossing.OUTCOME: _json(**judged.outcome.record()), crossing.LOG: log}
    with contextlib.suppress(DeployerError):
        answer[crossing.RESULT] = files.read_bytes(
            str(judged.folder / crossing.RESULT), limit=crossing.LIMITS[crossing.RESULT], follow=False
        )
    return answer


def _remove_old(folder: str, used: set[str]) -> None:
    """Remove bundles or programs that were copied for earlier rehearsals."""
    for name in sorted(files.names(folder), reverse=True):  # the marker of a complete copy first, then the copy
        path = os.path.join(folder, name)
        if path.removesuffix(crossing.WHOLE) not in used and os.lstat(path).st_mtime < time.time() - _OLD:
            with contextlib.suppress(FileNotFoundError):  # another rehearsal may remove it at the same time
                files.remove_tree(path) if files.is_folder(path) else os.unlink(path)


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _far_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Report progress on standard error while a block runs, as a site does. The laptop shows the bar."""
    del what
    yield lambda done, total: _tell(f"{dialogue.PROGRESS_LINE}{done} {total}")


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _send(answer: Mapping[str, bytes]) -> None:
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for name, data in answer.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
