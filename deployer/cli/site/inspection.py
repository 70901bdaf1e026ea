"""inspect: show the contents of a bundle, of a folder that push --to wrote, or of an installed image."""

import argparse
import json
import os
from contextlib import ExitStack, closing
from typing import Any, Dict, List, Optional, Sequence, Tuple

from deployer.cli.site import common
from deployer.contract.base.errors import IntegrityError
from deployer.contract.base.json_records import Fields, parse
from deployer.contract.base.shell import quoted
from deployer.contract.base.text import counted
from deployer.contract.bundle import plan_update
from deployer.contract.bundle.job import RANKS
from deployer.contract.bundle.manifest import DATA_PREFIX, OURS, PROVENANCE_MEMBER, SBOM_MEMBER, Manifest
from deployer.contract.bundle.scan import ON_MEDIUM, SUFFIX
from deployer.contract.bundle.sealed_file import TAIL, Seal, manifest_bytes, parse_manifest, small
from deployer.contract.bundle.sshsig import Key
from deployer.contract.site.plan import NO_MPI
from deployer.site.install import incoming
from deployer.site.install.receive import SegmentSources
from deployer.site.media import officer_page
from deployer.site.storage import scans, store
from deployer.site.storage.space import human
from deployer.system import files, terminal
from deployer.system.trust import trust
from deployer.system.trust.policy import Policy
from deployer.system.trust.verify import begin, opened, read_manifest_block, read_seal

#: Width of the column with a member's size.
_SIZE = 14


def add_parsers(subparsers: Any) -> None:
    """Register the command."""
    command = common.add_store_command(subparsers, "inspect", _inspect)
    common.add(command, "what", "WHAT", "a bundle, a folder that push --to wrote, or an installed image: see `list`")
    which = command.add_mutually_exclusive_group()
    common.flag(which, "--packages", "list the packages in the image instead: the sealed SBOM of the bundle")
    text = "write a page for a security officer: the scan, who signed, contents, packages, and how it was built"
    common.add(which, "--html", "FILE", text)


def _inspect(args: argparse.Namespace) -> None:
    is_path = files.exists(args.what) or "/" in args.what or args.what.endswith(".tar")
    image = None if is_path else store.locate(args.root).find(args.what)
    path = image.bundle if image else args.what
    where = image.store if image else store.Store(args.root or path)
    if args.packages:
        packages = _packages(_members(path, where, SBOM_MEMBER)[0])
        common.show_result(args, {"packages": packages}, *packages)
        return
    if args.html:
        files.write_text(args.html, _page(path, where, image))
        common.show_result(args, {"page": args.html}, f"wrote {args.html}")
        return
    keys: Optional[List[Key]] = None
    if image and not files.is_file(path):
        manifest, digest = image.manifest(), image.receipt.digest  # its bundle was not kept
    else:
        manifest, seal, known = _read(path, [])
        digest, keys = seal.digest, known.keys
    signers = None if keys is None else [key.fingerprint for key in keys]
    record = dict(manifest.record(), segments=len(manifest.segments), digest=digest, keys=signers)
    lines = [*manifest_lines(manifest), f"digest {digest}"]
    if keys is not None:
        others = "signed by " + ", ".join(signers or ()) if keys else "not signed"
        lines.append(trust.own(keys) or others)
    if image:
        lines.append(f"installed: {image.folder}")
    common.show_result(args, record, *lines)


def _read(path: str, policies: Optional[Sequence[Policy]]) -> Tuple[Manifest, Seal, trust.Trust]:
    """Return the manifest, seal and signers of a bundle or its parts, as ``trust.establish`` raises."""
    if files.is_folder(path):
        parcel = incoming.open_parcel(path)
        seal, block = parcel.seal, parcel.ending[:-TAIL]
    else:
        with opened(path) as stream:
            seal = read_seal(stream, path)
            block = read_manifest_block(stream, seal)
    data = manifest_bytes(block, seal)
    return parse_manifest(data, seal), seal, trust.establish(data, seal.signatures, policies)


def _page(path: str, where: store.Store, image: Optional[store.InstalledImage]) -> str:
    """Return the officer's page of a bundle, of its parts, or of an installed image."""
    manifest, seal, known = _read(path, None)
    sbom, made = _members(path, where, SBOM_MEMBER, PROVENANCE_MEMBER)
    scan = os.path.join(path, ON_MEDIUM) if files.is_folder(path) else path + SUFFIX
    if image:
        scan = scans.path_of(where, seal.digest)
    data = files.read_bytes(scan, limit=plan_update.MAX_SIZE) if files.is_file(scan) else None
    keys = ", ".join(key.fingerprint for key in known.keys)
    signed = f"signed by {', '.join(known.signers) or 'UNKNOWN people'}, with the keys {keys}" if keys else "NOT SIGNED"
    checked = "Read from the sealed bundle at this site. `deployer.pyz verify` checks every byte of it."
    text = json.dumps(parse(made or b"{}", "the provenance", IntegrityError), indent=2)
    sections = [
        ("Known vulnerabilities, as the maker recorded them", officer_page.scan_lines(data, seal.digest)),
        ("What it is", [checked, f"digest {seal.digest}", signed, *manifest_lines(manifest)]),
        ("Packages, as the maker recorded them", _packages(sbom) if sbom else ["unknown"]),
        ("How it was built: the maker's word", text.split("\n")),
    ]
    return officer_page.page(f"Bundle {manifest.name} {manifest.version}", sections)


def _members(path: str, where: store.Store, *names: str) -> List[Optional[bytes]]:
    """Return small members of a bundle or of its parts; None: it has none. Their digests are checked."""
    with ExitStack() as opened_here:
        if files.is_folder(path):
            parcel = incoming.open_parcel(path)
            manifest, read = parcel.manifest, opened_here.enter_context(closing(SegmentSources(parcel, where))).content
        else:
            bundle = begin(opened_here.enter_context(opened(path)), path, [])
            manifest, read = bundle.manifest, bundle.read
        return [small(manifest, name, read) for name in names]


def _packages(sbom: Optional[bytes]) -> List[str]:
    """Return name and version of each component in an SBOM."""
    fields = Fields(parse(sbom or b"{}", "the SBOM", IntegrityError), "the SBOM", IntegrityError)
    return sorted(f"{each.text('name')} {each.maybe_text('version') or ''}" for each in fields.items("components"))


def manifest_lines(manifest: Manifest) -> List[str]:
    """Return the contents of a bundle in lines: its image, jobs, members and data."""
    image = manifest.image
    what = "only data" if manifest.is_data else "%d entries, %s" % (image.entries, human(image.raw_size))
    lines = list(common.wrapped(f"{manifest.name}:{manifest.version}  {what}, {manifest.codec['name']}"))
    if NO_MPI in manifest.mpi:
        lines.append("runs without MPI")
    elif manifest.mpi:
        lines.append(f"runs on MPI of {', '.join(manifest.mpi)}")
    for job in manifest.jobs:
        sizes = ((job.nodes, "node"), (job.ranks_per_node, "rank"), (job.threads, "thread"))
        layout = " x ".join(counted(number, what) for number, what in sizes)
        if job.gpus:
            layout += f" x {counted(job.gpus, 'GPU')}"
        if job.launch != RANKS:
            layout += f", launch {job.launch}"
        lines.extend(common.wrapped(f"job {job.name}: {layout}: {quoted(job.command)}", "", "    "))
    folders: Dict[str, List[int]] = {}
    for member in manifest.members:
        if member.name.startswith(DATA_PREFIX):
            folders.setdefault(member.name[len(DATA_PREFIX) :].partition("/")[0], []).append(member.size)
        else:
            lines.append("%12d  %s" % (member.size, common.shortened(member.name, _SIZE)))
    wheels = [f"{OURS[0]}{overlay.name}/{name}" for overlay in manifest.overlays for name in overlay.wheels]
    lines.extend(" " * 14 + common.shortened(wheel, _SIZE) for wheel in wheels)
    for name, in_folder in folders.items():
        label = common.shortened(name, terminal.columns() // 2)
        lines.append(f"data {label}: {counted(len(in_folder), 'file')}, {human(sum(in_folder))}")
    return lines + [f"data {need.data}: from the bundle {need.bundle}" for need in manifest.needs]
