"""deployer inspect: show the contents of a bundle."""

import argparse
from pathlib import Path
from typing import Any

from deployer.cli.site import common
from deployer.cli.site.inspection import manifest_lines
from deployer.connected.bundle.about import sbom as sboms
from deployer.connected.bundle.about.listing import files_of
from deployer.connected.ground import progress
from deployer.contract.base.errors import UsageError
from deployer.contract.bundle import sealed_file
from deployer.contract.bundle.manifest import PROVENANCE_MEMBER, SBOM_MEMBER
from deployer.system import files, terminal
from deployer.system.trust.verify import begin, opened, size_of, verify

_KINDS = {"deb": "Debian", "pypi": "Python", "golang": "Go", "cargo": "Rust", "generic": "other"}


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_command(subparsers, "inspect", run)
    common.add(command, "bundle", "B.tar", "a bundle that `pack` wrote")
    which = command.add_mutually_exclusive_group()
    common.flag(which, "--files", "verify it and list each file of its root filesystem: mode, size, sha256, path")
    text = "verify it and write a page for a security officer: signatures, packages, scripts, verdicts, changes"
    common.add(which, "--html", "FILE", text, type=Path)
    common.add(command, "--since", "A.tar", "with --html: list the differences from this earlier bundle too")
    common.flag(which, "--sbom", "print its SBOM (CycloneDX JSON) unchanged")
    common.flag(which, "--provenance", "print how it was built (an in-toto statement with SLSA provenance) unchanged")


def run(args: argparse.Namespace) -> None:
    """Show one of the views of a bundle."""
    if args.since and not args.html:
        raise UsageError("--since requires --html FILE", "without a page: deployer diff A.tar B.tar")
    if args.html or args.files:
        (_page if args.html else _files)(args)
        return
    with opened(args.bundle) as stream:
        bundle = begin(stream, args.bundle, [])
        manifest = bundle.manifest
        sbom, made = (sealed_file.small(manifest, name, bundle.read) for name in (SBOM_MEMBER, PROVENANCE_MEMBER))
    document = sboms.parsed(sbom)
    if args.sbom or args.provenance:
        what, text = ("SBOM", sbom) if args.sbom else ("provenance", made)
        if text is None:
            hint = "an older version of deployer packed it, or provenance: it is not of a definition"
            raise UsageError(f"{args.bundle} has no {what}", hint)
        terminal.show_text(text.decode())
        return
    packages = sboms.counts(document)
    record = {**manifest.record(), "segments": len(manifest.segments), "packages": packages if sbom else None}
    if common.as_json(args, record):
        return
    terminal.show(*manifest_lines(manifest))
    counts = ", ".join(f"{count} {_KINDS.get(kind, kind)}" for kind, count in packages.items())
    terminal.show(f"packages: {counts or 'none known'}" if sbom else "packages: unknown, the bundle has no SBOM")


def _page(args: argparse.Namespace) -> None:
    """Write the HTML page of a bundle."""
    from deployer.connected.bundle.about import officer_page

    files.check_not_folder(str(args.html))  # fail before reading the bundle
    files.write_text(str(args.html), officer_page.make(args.bundle, args.since))
    common.show_result(args, {"page": str(args.html)}, f"wrote {args.html}")


def _files(args: argparse.Namespace) -> None:
    """Print one line per entry, or one record per entry with --json."""
    with opened(args.bundle) as stream:
        with progress.bar("verify", size_of(stream)) as advance:
            verify(stream, args.bundle, progress=advance)  # a partial list of a damaged bundle would mislead
        for listed in files_of(begin(stream, args.bundle)):
            common.show_result(args, listed.record(), listed.line())
