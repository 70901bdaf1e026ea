"""Only "does not exist" is absence: no new code of the site half may swallow another error of the system in silence.

Lint (``banned-api`` in pyproject.toml) forbids ``os.path.exists`` and its like. This test watches the handlers of
OSError: each that goes on must be in the table below, with the reason why an error there decides nothing.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "deployer"
#: Facts about a machine, and a program of its own: there, what cannot be looked at is as good as absent.
APART = ("site/capture/", "site/doctor/", "site/container/runtimes/udocker_start.py")
#: These cover all errors, so they also cover "may not be looked at".
WIDE = {"OSError", "IOError", "EnvironmentError", "PermissionError", "Exception", "BaseException"}
#: What a handler may call in place of ``raise``.
RAISING = {"raise_named", "refuse_unseen", "_not_started"}

#: Modules of the laptop that observe the programs of others.
OBSERVERS = [f"connected/rehearse/watch/{name}.py" for name in ("reach", "syscalls", "tracee", "usage")]
REVIEWED = {
    "site/install/receive.py::keep": "without a second name of the old bundle, the new one is flushed first",
    "site/run/run.py::submit": "there is no job, and the error says why; gc removes the rest of its folder",
    "site/storage/events.py::note": "the warning says why; the command itself is done",
    "site/storage/group.py::mark": "no folder for marks, or a name that another user took, who is then shown",
    "site/storage/inventory.py::_walk": "what is below is not said to be missing",
    "site/install/incoming.py::discard": "the image is installed; parts that stay are removed when they are old",
    "site/install/incoming.py::remove_stale": "another push was faster, or it is another user's; gc names it",
    "site/install/incoming.py::lock": "a file system without locks",
    "site/install/incoming.py::remove_unlocked": "another user's, or no file; what stays goes with its folder",
    "system/channel.py::callers": "a stranger that has gone again",
    "site/jobs/relay.py::run": "recorded: this node reads the shared file itself",
    "site/jobs/relay.py::_send": "the next node then reads the shared file itself and records it",
    "system/channel.py::connect": "the next address is tried, and all reasons are in the error",
    "site/inside/hub.py::_accept": "a connection that has gone again",
    "site/container/replay.py::_serve": "the job goes on, and the reason is printed",
    "site/container/replay_proxy.py::_answer": "a connection that has gone; others are answered",
    "site/container/replay_proxy.py::_copy": "either end has gone; the program sees it at its own connection",
    "site/container/replay_proxy.py::_pass_on": "the program gets 502, and the log a line",
    "site/container/caches.py::_only_warned": "printed: without a cache, programs only compile again",
    "site/container/caches.py::save": "a damaged archive is replaced",
    "site/container/home.py::_is_abandoned": "a home without a job: it goes an hour after its last change",
    "site/rank/payload_monitor.py::leave": "what stays is removed by the next job on the node",
    "site/notebook/notebook.py::_announce": "the job has ended: its status says why",
    "site/jobs/jobs.py::_unwritten": "the error is the answer",
    "system/observe/audit_hook.py::(module)": "the payload runs, unobserved",
    "system/observe/audit_hook.py::hook": "runs in the payload, which must not notice",
    "system/observe/audit_hook.py::quietly": "runs in the payload, which must not notice",
    "connected/rehearse/watch/reach.py::_connecting": "a process that is gone: its address is told all the same",
    "connected/rehearse/watch/reach.py::handle": "an observed program's own business: the kernel answers it",
    "connected/rehearse/watch/syscalls.py::__init__": "slower, on an older kernel",
    "connected/rehearse/watch/syscalls.py::announce": "the reason is returned",
    "connected/rehearse/watch/usage.py::own_share": "a process that is gone",
    "connected/rehearse/watch/usage.py::_ranks": "a process that is gone",
    "connected/rehearse/watch/usage.py::resident": "a process that is gone",
    "connected/rehearse/watch/usage.py::_size": "temporary files go while they are counted",
    "connected/rehearse/watch/usage.py::look_at_last": "a process that is gone",
    "connected/rehearse/watch/usage.py::_threads": "a process that is gone",
    "system/observe/observations.py::first_bytes": "the report does without the file, which is the job's",
    "system/payload.py::_execute": "the next folder is tried, then the reason is found again and printed",
    "system/payload.py::_read_from": "any error ends the rank",
    "site/run/command.py::_seen": "unknown, which is its own answer",
    "site/rank/interfaces.py::_ask": "an interface without an address is not used",
    "site/rank/interfaces.py::_is_free": "any error: the port is not used",
    "site/rank/meeting.py::_connect": "tried again, then raised",
    "site/rank/meeting.py::meet": "the record has the reason, which is a finding",
    "site/rank/meeting.py::_receive": "one that is no node, or ended; the others still come",
    "site/rank/observed/communication.py::connections": "a process that is gone, or not ours",
    "site/rank/observed/communication.py::nccl": "no report",
    "site/container/home.py::reap": "another start of ours removes it too",
    "site/rank/observed/mapped_mpi.py::_single_files": "one more place to look; the answer says unknown",
    "site/rank/observed/mapped_mpi.py::family": "a process that is gone",
    "site/rank/observed/mapped_mpi.py::kernel_data": "/proc, /sys and cgroups only: unknown",
    "site/rank/observed/mapped_mpi.py::send": "a process that is gone, or not ours",
    "site/rank/observed/mapped_mpi.py::identity": "the answer says unknown",
    "site/rank/observed/mapped_mpi.py::reopened": "the next path is tried; the answer says unknown",
    "site/rank/mpi.py::load": "the next library is tried; its reasons are raised",
    "site/rank/observed/outside.py::_search": "a process that is gone, or not ours",
    "site/rank/observed/outside.py::look": "a process that is gone, or not ours",
    "site/jobs/result.py::told": "only names causes of a failure that is reported anyway",
    "site/storage/space.py::_file_system": "/proc only; an unknown type decides nothing",
    "site/storage/space.py::available_memory": "/proc only; unknown",
    "site/jobs/result_reserve.py::release": "room that is not given back",
    "site/install/donor.py::_is_same": "the frame is unpacked",
    "site/install/donor.py::_link": "the frame is unpacked",
    "site/install/donor.py::_look": "the frame is unpacked",
    "site/install/donor.py::_newest": "the layer gives no files to others",
    "site/install/donor.py::link": "all frames are unpacked",
    "site/storage/frames.py::read": "the layer gives no files to others",
    "site/install/squash.py::_link": "a copy in place of a link",
    "site/install/mount_points.py::make_if_permitted": "run refuses a bind whose target is still missing",
    "site/run/stage.py::end_readers": "a process that is gone, or not ours",
    "site/run/stage.py::users": "a process that is gone, or not ours",
    "site/storage/layers.py::release": "another user's layer is theirs to remove; gc names it",
    "site/storage/unfinished.py::reap": "another user's rest is theirs to remove",
    "site/rank/payload_monitor.py::before": "a process that is gone, or not ours",
    "site/rank/node_records.py::node_name": "the host name alone: nodes with one name are refused",
    "site/rank/node_records.py::try_to_add": "reported in the log; the record is then missing, which is a finding",
    "site/rank/payload_monitor.py::_remove": "a mark that is gone, or stays",
    "site/rank/payload_monitor.py::_is_last": "ends the wait",
    "site/rank/payload_monitor.py::shared_memory": "unknown",
    "site/rank/payload_monitor.py::_leave_mark": "a mark that others look for; without it they do not wait",
    "site/rank/probe.py::main": "any error ends the probe, and is named",
    "site/rank/probe.py::_unnamed_file": "then the next folder is tried; last the job's, whose error is raised",
    "system/afterwards.py::_let_go": "the descriptor of the list itself",
    "system/afterwards.py::began": "a process that is gone",
    "system/codec.py::_load": "a library that is not here",
    "system/files.py::_new_part": "a file without a lock, which nobody then removes",
    "system/files.py::reap_parts": "another user's rest is theirs to remove",
    "system/payload.py::_become": "explained, then the process ends",
    "system/process.py::glance": "a process that is gone",
    "system/files.py::enlarge_pipe": "a smaller pipe",
    "system/tool/documents.py::topic": "the error itself is what matters",
    "system/tool/tool_bytecode.py::use": "the tool runs from its sources",
    "system/tool/tool_compiler.py::keep": "the next start compiles again",
    "system/workers.py::_serve": "the parent is gone, or the error travels to it",
    "site/rank/payload_monitor.py::_is_runtime": "then it is not sent the warning",
    "system/files.py::owner_of_new": "then the owner must be this user",
    "site/install/mount_points.py::_make_in": "tried again; the last error is raised",
    "system/files.py::begin_flush": "a later flush takes longer",
}


def swallowing(source: str) -> "list[str]":
    """Return the functions of a module that go on after any error of the system."""
    found = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.ExceptHandler) and names(node.type) & WIDE and not raises(node):
            found.append(function)
        suppressed = node.args if isinstance(node, ast.Call) and names(node.func) == {"suppress"} else []
        if any(names(word) & WIDE for word in suppressed):
            found.append(function)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "(module)")
    return found


def names(node: "ast.AST | None") -> "set[str]":
    if node is None:
        return {"BaseException"}
    if isinstance(node, ast.Tuple):
        return set().union(*map(names, node.elts))
    if isinstance(node, ast.Attribute):
        return {node.attr}
    return {node.id} if isinstance(node, ast.Name) else set()


def raises(handler: ast.ExceptHandler) -> bool:
    """Return whether the handler ends in an exception, or first raises for all but certain numbers (errno)."""
    first, last = handler.body[0], handler.body[-1]
    if isinstance(first, ast.If) and "errno" in ast.dump(first.test) and isinstance(first.body[-1], ast.Raise):
        return True
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return bool(names(last.value.func) & RAISING)
    return isinstance(last, ast.Raise)


@pytest.mark.thorough
def test_no_error_of_the_system_is_taken_for_absence():
    found = set()
    paths = [path for part in ("system", "site") for path in sorted((PACKAGE / part).rglob("*.py"))]
    for path in [*paths, *(PACKAGE / each for each in OBSERVERS)]:
        where = path.relative_to(PACKAGE).as_posix()
        if not where.startswith(APART):
            found |= {f"{where}::{function}" for function in swallowing(path.read_text())}
    new, gone = found - set(REVIEWED), set(REVIEWED) - found
    assert not new, f"raise for all but FileNotFoundError (files.refuse_unseen), or say in REVIEWED why not: {new}"
    assert not gone, f"remove these lines from REVIEWED: {gone}"


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    try:\n        g()\n    except OSError:\n        return None\n",
        "def f():\n    try:\n        g()\n    except (ValueError, PermissionError) as error:\n        log(error)\n",
        "def f():\n    try:\n        g()\n    except:\n        pass\n",
        "def f():\n    with contextlib.suppress(OSError):\n        g()\n",
    ],
)
def test_the_watch_sees(text):
    assert swallowing(text) == ["f"]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    try:\n        g()\n    except FileNotFoundError:\n        return None\n",
        "def f():\n    try:\n        g()\n    except OSError as error:\n        raise UsageError('no') from error\n",
        "def f():\n    try:\n        g()\n    except OSError as error:\n        files.refuse_unseen('p', error)\n",
        "def f():\n    with suppress(FileNotFoundError):\n        g()\n",
    ],
)
def test_the_watch_lets_pass(text):
    assert swallowing(text) == []
