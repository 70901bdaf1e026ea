"""Rules for a job's programs. Each program is checked separately; a program that only may start refuses nothing."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from deployer.connected.check.rules import pmi
from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.linker.process import Overlay, Process
from deployer.contract.base.text import counted
from deployer.contract.rules.findings import ERROR, NOTE, WARNING, Finding, errors
from deployer.contract.site.plan import APP

Rules = Sequence[Callable[[Process], Iterator[Finding]]]

_SHOWN = 3
#: Python packages whose ranks find each other without MPI: through MASTER_ADDR, or JAX's coordinator.
_RENDEZVOUS = frozenset(("torch", "jax"))
#: Words in Python source text that may open a library by name.
_BY_NAME = re.compile(r"\b(?:ctypes|cffi|CDLL|dlopen|libmpi\w*)\b")
#: Programs that load libraries as the user's script requires, which is not followed.
_INTERPRETERS = re.compile(
    r"^(?:julia|lua|luajit|R|Rscript|perl|ruby|node|java|guile|tclsh|octave|octave-cli|php|mono|dotnet|sbcl|racket|"
    r"scilab|gap|sage|erl|ocaml|swipl|root)[0-9.-]*(?:\.exe)?$"
)


def of_job(linked: LinkedJob, case: Case, rules: Rules) -> Iterator[Finding]:
    """Return the findings of ``rules`` on the programs of a job, and those on which programs it starts."""
    findings = {id(process): list(_of_process(process, rules)) for process in linked.processes}
    findings = {id(process): _as_it_decides(process, findings, linked) for process in linked.processes}
    fits = any(process.uses_mpi and not errors(findings[id(process)]) for process in linked.processes)
    certain = [finding for process in linked.processes for finding in findings[id(process)]]
    # Without a job, the user may start a program that works.
    yield from map(_unsure, certain) if linked.job is None and fits else certain
    for process in linked.conditional:
        yield from (_unsure(finding) for finding in _of_possible(process, case, rules) if finding not in certain)
    yield from _imports(linked)
    yield from _unclear(linked, case, rules)
    yield from _unused(linked, case)


def _as_it_decides(process: Process, findings: Mapping[int, list[Finding]], linked: LinkedJob) -> list[Finding]:
    """Return the findings on a program with their severity for the job, which may continue without it.

    This is the only place that knows whether a program is decisive for its job. If it is not, its error is a note, or a
    warning if no other program of the job can do its work. If it loads a wrong MPI library, the job fails anyway,
    because the processes of its ranks are watched.
    """
    own = findings[id(process)]
    if not any(map(_may_end_it, own)) or linked.decides(process):
        return own
    loads_mpi = process.library is not None or (process.program is not None and process.program.facts.linked)
    others = [other for other in linked.processes if not errors(findings[id(other)])]
    others = [other for other in [*others, *linked.conditional] if other.program]
    replaced = linked.unclear or any(other.uses_mpi or not process.uses_mpi for other in others)
    severity = NOTE if replaced else WARNING
    return [
        finding._replace(severity=severity, message=f"{finding.message}; the job may go on without it")
        if _may_end_it(finding) and not (loads_mpi and finding.code.startswith("mpi."))
        else finding
        for finding in own
    ]


def _may_end_it(finding: Finding) -> bool:
    """Return whether a finding means that its program may fail."""
    return finding.severity == ERROR or (finding.severity == MISSING_FACTS and finding.code == "import.missing")


def _unclear(linked: LinkedJob, case: Case, rules: Rules) -> Iterator[Finding]:
    """command.unclear: some programs that a job starts cannot be known; all candidates are checked instead."""
    if not linked.unclear or linked.job is None:
        return
    subject = f"job {linked.job.name}"
    text = f"cannot tell all that it starts: {_some(linked.unclear)}"
    remedy = "name the program in the job's command, or by plain words in its script"
    failed = False
    for program in linked.candidates:
        for finding in errors(_of_possible(program, case, rules)):
            failed = True
            message = f"{text}; if it starts {program.name}: {finding.subject}: {finding.message} ({finding.code})"
            yield Finding("command.unclear", MISSING_FACTS, subject, message, f"{remedy}; for it: {finding.remedy}")
    callers = [program.name for program in (*linked.possible, *linked.candidates) if program.uses_mpi]
    if not callers and case.plan.mpi:
        message = f"{text}; no program that was found calls MPI"
        yield Finding("command.unclear", MISSING_FACTS, subject, message, remedy)
    elif not failed:
        would = f"; each of the bundle's programs that call MPI would run: {_some(callers)}" if callers else ""
        severity = MISSING_FACTS if linked.has_windows_lines else NOTE
        yield Finding("command.unclear", severity, subject, text + would, remedy)


def _imports(linked: LinkedJob) -> Iterator[Finding]:
    """command.unclear: whether a job calls MPI at all depends on Python imports, or on modules that R or Ruby loads.

    The former is a note. The latter is not, because Rmpi opens ``libmpi.so``: the image's library, beside the site's.
    """
    if linked.job is None or any(program.uses_mpi for program in linked.processes):
        return
    for process in linked.conditional:
        if process.may_import:
            text = f"cannot tell whether {process.name} imports the packages that call MPI: {process.may_import}"
            remedy = "import them at the top of the job's script, by their names"
            yield Finding("command.unclear", NOTE, f"job {linked.job.name}", text, remedy)
        elif process.may_load:
            text = f"cannot tell whether {process.name} loads {process.may_load}, which calls MPI, and what that opens"
            remedy = "try the job with two ranks: only Python's imports are followed, not those of R, Ruby or Perl"
            yield Finding("command.unclear", MISSING_FACTS, f"job {linked.job.name}", text, remedy)


def _unused(linked: LinkedJob, case: Case) -> Iterator[Finding]:
    """mpi.unused: a job with several ranks starts no program that calls MPI or has its own rendezvous."""
    job = linked.job
    if job is None or linked.unclear or not case.plan.mpi or job.nodes * job.ranks_per_node == 1:
        return
    processes, subject = [], f"job {job.name}"
    for process in linked.possible:
        runs = process.program and not process.missing and not process.unreadable
        if process.uses_mpi or (not runs and linked.decides(process)):
            return
        processes += [process] if runs else []
    packages = {posixpath.basename(path) for process in processes for path in process.packages or ()}
    if not processes or not _RENDEZVOUS.isdisjoint(packages):
        return
    remedy = "name a program that calls MPI in the job's command; accept it if the ranks do not need each other"
    for process in processes:
        how = _may_open_mpi(process, case.overlays)
        if how:
            text = f"cannot tell whether {process.name} calls MPI, which no other program of the job does: {how}"
            yield Finding("mpi.unused", MISSING_FACTS, subject, text, remedy)
            return
    text = f"{_some([process.name for process in processes])} does not call MPI, as far as its files show: "
    text += f"each of the {counted(job.nodes * job.ranks_per_node, 'rank')} would run by itself"
    yield Finding("mpi.unused", WARNING, subject, text, remedy)


def _may_open_mpi(process: Process, overlays: Sequence[Overlay]) -> str:
    """Return why a program may open an MPI library by name; empty if it does not."""
    if process.is_python:
        return _python(process, overlays)
    name = posixpath.basename(process.name)
    if _INTERPRETERS.match(name):
        return f"what {name} loads is not followed"
    if process.program and process.program.facts.opens:
        return "it opens libraries by name"
    named = (posixpath.basename(loaded.path) for loaded in process.loader.objects if loaded is not process.program)
    return next((f"{library} may open an MPI library" for library in named if "mpi" in library.lower()), "")


def _python(process: Process, overlays: Sequence[Overlay]) -> str:
    if not process.text:
        return "its text is not known"
    packages = [posixpath.basename(path) for path in process.packages or ()]
    package = next((name for name in packages if "mpi" in name.lower()), "")
    if package:
        return f"it imports {package}"
    texts = {"its text": process.text}
    for overlay in overlays if not process.text.startswith("-c ") else ():  # the bundle's own modules
        for path in overlay.files.entries if overlay.target == APP else ():
            if path.endswith(".py"):
                texts[APP + path] = process.view.content(APP + path).decode("utf-8", "replace")
    matches = ((name, _BY_NAME.search(text)) for name, text in texts.items())
    return next((f"{name} has {match[0]}" for name, match in matches if match), "")


def _of_process(process: Process, rules: Rules) -> Iterator[Finding]:
    """Yield the findings on a program, with how it is started."""
    for rule in rules:
        for finding in rule(process):
            how = f" ({process.name} is started by {process.via})" if process.via else ""
            yield finding._replace(message=finding.message + how)


def _of_possible(process: Process, case: Case, rules: Rules) -> list[Finding]:
    """Return the findings on a program that may start; empty if the program does not exist."""
    if process.program is None:
        return []
    alone = case._replace(processes=[process])
    return [*_of_process(process, rules), *pmi.spoken(alone), *pmi.truncated(alone)]


def _unsure(finding: Finding) -> Finding:
    return finding._replace(severity=MISSING_FACTS) if finding.severity == ERROR else finding


def _some(texts: Sequence[str]) -> str:
    shown = ", ".join(texts[:_SHOWN])
    return shown if len(texts) <= _SHOWN else f"{shown} and {len(texts) - _SHOWN} more"
