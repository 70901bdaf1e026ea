"""check: will this bundle run on that site? Said on the laptop, from captured facts, before anything is shipped.

The image, the chosen variant's wheels and the site's libraries are linked dry, as the loader would do it in the
container, and the rules look at what would be mapped. Nothing is unpacked and nothing is run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from deployer.connected.linker import index, process
from deployer.connected.linker.process import Overlay, Process
from deployer.connected.linker.view import Captured, Files
from deployer.connected.plan import make_plan
from deployer.connected.profile import Profile
from deployer.connected.rules import linking, mpi
from deployer.contract import records
from deployer.contract.errors import UsageError
from deployer.contract.findings import ERROR, WARNING, Finding
from deployer.contract.manifest import VARIANTS_PREFIX, WHEELS_PREFIX, Manifest
from deployer.contract.plan import VARIANT, WHEELS, Plan
from deployer.system.verify import Verification, begin, opened

T = TypeVar("T")

Rule = Callable[[Process], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    linking.program, linking.missing, linking.versions, linking.broken,
    mpi.family, mpi.library, mpi.symbols, mpi.tree,
)  # fmt: skip

#: Every code that a finding can have; each has a section in docs/rules.md.
CODES = (
    "facts.mpi", "link.broken", "link.missing", "link.program", "link.version",
    "mpi.escape", "mpi.family", "mpi.mixed", "mpi.symbols",
)  # fmt: skip

RUN, WARN, UNKNOWN, REFUSE = "RUN", "WARN", "UNKNOWN", "REFUSE"
#: The severity of a finding that says which facts are missing.
MISSING_FACTS = "unknown"


class Verdict(NamedTuple):
    """What ``check`` says of a bundle at a site, and why. ``accepted`` are codes that the user takes upon them."""

    bundle: str
    site: str
    partition: str
    verdict: str
    findings: list[Finding]
    accepted: list[str]

    def record(self) -> records.Record:
        fields = dict(self._asdict())
        fields["findings"] = [finding.record() for finding in self.findings]
        return fields


def check(
    path: str,
    profile: Profile,
    partition: str | None = None,
    accept: Sequence[str] = (),
    cache: Path | None = None,
) -> Verdict:
    """Return the verdict on the bundle ``path`` at a site. Facts of files are kept in the folder ``cache``.

    Raises IntegrityError, UsageError for a partition or a code that there is not, Refused where no plan can be made.
    """
    unknown = set(accept) - set(CODES)
    if unknown:
        raise UsageError(f"no rule has the code {', '.join(sorted(unknown))}", f"codes: {', '.join(CODES)}")
    with opened(path) as stream:
        bundle = begin(stream, path)
        manifest = bundle.manifest
        plan = make_plan(profile, f"{manifest.name}:{manifest.version}", manifest.mpi, partition)
        host = host_files(profile, plan)
        if plan.mpi and not host:
            findings = [_no_facts(plan)]
        else:
            files = index.of_image(bundle, cache)
            overlays = _overlays(bundle, plan, cache)
            findings = []
            for command in _commands(manifest):
                linked = process.start(plan, manifest.image, files, overlays, host, command)
                findings += [finding for rule in RULES for finding in rule(linked)]
    unique = list(dict.fromkeys(findings))
    return Verdict(plan.bundle, plan.site, plan.partition, judge(unique, accept), unique, sorted(accept))


def judge(findings: Iterable[Finding], accepted: Sequence[str] = ()) -> str:
    """Return the verdict that follows from findings; one whose code was accepted counts as a warning."""
    severities = {WARNING if finding.code in accepted else finding.severity for finding in findings}
    if ERROR in severities:
        return REFUSE
    if MISSING_FACTS in severities:
        return UNKNOWN
    return WARN if WARNING in severities else RUN


def _commands(manifest: Manifest) -> list[str]:
    """Return what jobs start, each once: their programs; the image's Python where it has no job."""
    found = dict.fromkeys(job.command[0] for job in manifest.jobs)
    return list(found) or [manifest.image.python or "/bin/sh"]


def _overlays(bundle: Verification, plan: Plan, cache: Path | None) -> list[Overlay]:
    """Return the bundle's Python packages as the job will see them, the variant first."""
    found = []
    variant = f"{VARIANTS_PREFIX}{plan.abi}/" if plan.abi else None
    for prefix, target in ((variant, VARIANT), (WHEELS_PREFIX, WHEELS)):
        names = [m.name for m in bundle.manifest.members if prefix and m.name.startswith(prefix)]
        if names:
            found.append(Overlay(f"{target}/lib", index.of_wheels(bundle, names, cache)))
    return found


def host_files(profile: Profile, plan: Plan) -> Mapping[str, Files]:
    """Return the site's files that the plan binds, by where they are seen; nothing where the MPI was not captured."""
    captured = profile.site_files(plan.partition)
    if plan.mpi is None or plan.mpi.library not in captured.files.keys() | captured.links.keys():
        return {}
    return {
        bind.target: Captured(_below(captured.files, bind.source), _below(captured.links, bind.source))
        for bind in plan.binds
    }


def _below(found: Mapping[str, T], folder: str) -> dict[str, T]:
    """Return what stands below a folder, by its path there."""
    return {path[len(folder) :]: value for path, value in found.items() if path.startswith(folder + "/")}


def _no_facts(plan: Plan) -> Finding:
    return Finding(
        "facts.mpi",
        MISSING_FACTS,
        plan.site,
        f"nobody has captured the libraries of {plan.mpi.says if plan.mpi else 'the MPI'}",
        "run `python3 deployer.pyz capture` on the site, and merge what it writes into the profile",
    )
