"""How much of real configuration files ``profile import`` expresses, and which clusters' programs are supported."""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.site_profile import gaps
from deployer.connected.site_profile.importers import files as importers
from deployer.connected.site_profile.importers.draft import Draft
from deployer.connected.site_profile.plan import make_plan
from deployer.connected.site_profile.profile import Profile, load
from deployer.contract.errors import DeployerError
from deployer.contract.plan import MPICH_ABI
from deployer.contract.runtime_table import supported
from deployer.site.jobs.schedulers import SCHEDULERS

#: Files that an importer may read, by format; patterns of names.
_PATTERNS = {
    "nf-core": ("*.config",),
    "ReFrame": ("*.py",),
    "Spack": ("packages.yaml",),
    "Slurm": ("slurm*.conf", "gres*.conf"),
}
_REFRAME = "site_configuration"
_OTHER_DAEMON = "dbd"
#: nf-core's folder of settings of workflows, not of sites.
_WORKFLOWS = "pipeline"
_NO_BATCH = ("local", None)


class _Drafted(NamedTuple):
    """A draft and the profile that the loader made of it.

    Attributes:
        planned: a plan is made for each partition after examples are added for what only a site can tell: the login
            host, a workspace, the shape of nodes, a PMI or launcher.
    """

    format: str
    draft: Draft
    profile: Profile
    planned: bool


def main(words: Sequence[str] | None = None) -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(prog="import-count", description=__doc__)
    parser.add_argument("folders", metavar="FOLDER", nargs="+", type=Path)
    parser.add_argument("--batch", help="the supported batch systems; else those of this commit")
    args = parser.parse_args(words)
    drafted: list[_Drafted] = []
    refused: list[tuple[Path, str]] = []
    counts: Counter[str] = Counter()
    for kind, path in _files(args.folders):
        counts[kind] += 1
        try:
            drafted += [_drafted(kind, draft) for draft in _drafts(path)]
        except DeployerError as error:
            refused.append((path, error.message))
    for kind, count in counts.items():
        own = [each for each in drafted if each.format == kind]
        _print_format(kind, count, own)
    print(f"\nrefused, with one line each: {len(refused)}")
    for path, message in refused:
        print(f"  {path}: {message}")
    nextflow = [each for each in drafted if each.format == "nf-core"]
    if nextflow:
        _print_clusters(nextflow, args.batch.split(",") if args.batch else list(SCHEDULERS))
    return 0


def _files(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for kind, patterns in _PATTERNS.items():
        found = {path for folder in folders for pattern in patterns for path in folder.rglob(pattern)}
        for path in sorted(found):
            if kind == "ReFrame" and f"{_REFRAME} = " not in path.read_text(errors="replace"):
                continue
            if path.is_file() and _OTHER_DAEMON not in path.name and _WORKFLOWS not in path.parts:
                yield kind, path


def _drafts(path: Path) -> list[Draft]:
    """Return the drafts of a file: one of each system that it describes."""
    names = importers.systems(path) if path.suffix == ".py" else []
    return [importers.draft([path], system=name) for name in names] or [importers.draft([path])]


def _drafted(kind: str, draft: Draft) -> _Drafted:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "site.yaml")
        path.write_text(draft.yaml())
        profile = load(str(path))
        return _Drafted(kind, draft, profile, _is_planned(profile, path))


def _is_planned(profile: Profile, path: Path) -> bool:
    """Return whether each partition has a plan after the lines that `profile validate` prints are pasted."""
    if profile.scheduler is None or profile.policy is None:
        return False
    base, over = path.with_name("base.yaml"), path.with_name("over.yaml")
    own = "" if profile.scheduler.kind == "slurm" else "launchers: [mpiexec.hydra]\n"
    base.write_text(f"format: 1\nname: {profile.name}\nextends: {path.name}\n{own}")
    known = load(str(base))
    over.write_text("\n".join(gaps.lines(known, gaps.find(known), base.name)))
    whole = load(str(over))
    try:
        for name in whole.partitions:
            make_plan(whole, "bundle:1", (MPICH_ABI,), name)
    except DeployerError:
        return False
    return bool(whole.partitions)


def _print_format(kind: str, count: int, drafted: Sequence[_Drafted]) -> None:
    facts = sum(each.draft.count() for each in drafted)
    print(f"\n{kind}: {count} files, {len(drafted)} drafts that the loader accepts, {facts} facts")
    drafts: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for each in drafted:
        kinds = [_general(said.kind) for said in each.draft.unexpressed]
        drafts.update(set(kinds))
        lines.update(kinds)
    whole = sum(not each.draft.unexpressed for each in drafted)
    print(f"  {whole:4} drafts express all; the others do not express, in drafts (and lines):")
    for said, number in drafts.most_common():
        print(f"  {number:4} {said} ({lines[said]})")


def _general(kind: str) -> str:
    """Return the words of a note without the fact or file that they name."""
    if " differs from " in kind:
        return "another value than that of an earlier line"
    return kind.partition(": ")[0]


def _print_clusters(drafted: Sequence[_Drafted], batch: Sequence[str]) -> None:
    """Print the clusters with a batch system and a runtime, and how many of them are supported."""
    rows: Counter[tuple[str, str]] = Counter()
    others = planned = 0
    for profile, draft_planned in [(each.profile, each.planned) for each in drafted]:
        kind: str | None = profile.scheduler.kind if profile.scheduler else None
        runtimes = profile.policy.runtimes if profile.policy else []
        if kind in _NO_BATCH or not runtimes:
            others += 1
        else:
            best = next(filter(supported, runtimes), runtimes[0])
            rows[str(kind), best] += 1
            planned += draft_planned
    print(f"\n{rows.total()} clusters with a batch system and a container runtime ({others} others)")
    print(f"  {planned:4} have a plan for each partition, with examples for what only the site can tell")
    good = 0
    for (kind, runtime), number in sorted(rows.items()):
        ok = kind in batch and supported(runtime)
        good += number * ok
        print(f"  {number:4} {kind:12} {runtime:14} {'supported' if ok else 'not supported'}")
    print(f"  {good:4} of {rows.total()} with supported batch system and runtime ({', '.join(batch)})")


if __name__ == "__main__":
    raise SystemExit(main())
