"""The kit part charliecloud: ch-run for sites whose nodes have user namespaces, but no ch-run or an old one.

It consists of Debian's ch-run, and the loader and libraries that it was compiled for. It needs only the kernel from
the site. Nothing is compiled here. The part uses Debian 12: the oldest version that deployer supports, with the fewest
libraries, in an archive that no longer changes. Its glibc runs on Linux 3.2 and later.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from deployer.connected.bundle.kit import fetch
from deployer.connected.bundle.kit.recipe import Recipe, Say
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import DeployerError, JobFailed
from deployer.contract.elf.machines import AARCH64, X86_64
from deployer.contract.site.plan import CHARLIECLOUD_FOLDER, CHARLIECLOUD_START
from deployer.system import process

RECIPE = Recipe("charliecloud", 1, "or leave charliecloud out of policy.runtimes in the site's profile", compiled=False)
FOLDER = CHARLIECLOUD_FOLDER

_SOURCE = "lzo2-source"
_LOADERS = {X86_64.kernel: "ld-linux-x86-64.so.2", AARCH64.kernel: "ld-linux-aarch64.so.1"}
#: Files to take from each package. Libraries are listed by soname. ch-run looks up the user's name, for which the C
#: library loads NSS modules from the host. Modules of older hosts need the small libraries merged into glibc 2.34.
_FILES: Mapping[str, tuple[str, ...]] = {
    "charliecloud-runtime": ("ch-run",),
    "libc6": ("libc.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2", "librt.so.1"),
    "libfuse3-3": ("libfuse3.so.3",),
    "libsquashfuse0": ("libsquashfuse_ll.so.0",),
    "liblz4-1": ("liblz4.so.1",),
    "liblzma5": ("liblzma.so.5",),
    "liblzo2-2": ("liblzo2.so.2",),
    "zlib1g": ("libz.so.1",),
    "libzstd1": ("libzstd.so.1",),
}
#: For each package, the file that the SBOM lists as evidence: the first one.
PROGRAMS = {f"{FOLDER}/{names[0]}": package for package, names in _FILES.items()}


def make(made: Path, work: Path, host: BuildSettings, machine: str, say: Say) -> None:
    """Make the part, as ``KitPart.make``."""
    pins = RECIPE.pins()
    say(f"kit: fetch Charliecloud {pins['charliecloud-runtime']['version']} and its libraries for {machine}")
    source, *packages = fetch.debian(RECIPE, [_SOURCE], work, host, list(_FILES), machine)
    loader = _LOADERS[machine]
    folder, licences = made / FOLDER, made / f"{FOLDER}.licences"
    for new in (folder, licences):
        new.mkdir(mode=0o755)
    for package, (name, wanted) in zip(packages, _FILES.items(), strict=True):
        root = RECIPE.unpack(package, work / name)
        for file in (*wanted, loader) if name == "libc6" else wanted:
            _copy(root, file, folder)
        shutil.copyfile(root / "usr" / "share" / "doc" / name / "copyright", licences / name)
    start = (RECIPE.folder / CHARLIECLOUD_START).read_text()
    (folder / CHARLIECLOUD_START).write_text(start.replace("LOADER", loader))
    for program in (CHARLIECLOUD_START, "ch-run", loader):
        (folder / program).chmod(0o755)
    shutil.copyfile(source, made / source.name)
    (made / f"README.{RECIPE.name}").write_text(RECIPE.readme(machine))
    check(folder, pins["charliecloud-runtime"]["version"].partition("-")[0], machine)


def _copy(root: Path, name: str, folder: Path) -> None:
    """Copy the file ``name`` from an unpacked package, following links within the package."""
    inside = root.resolve()
    [path] = {found for path in root.rglob(name) if (found := path.resolve()).is_relative_to(inside)}
    shutil.copyfile(path, folder / name)


def check(folder: Path, version: str, machine: str) -> None:
    """Raise JobFailed unless ch-run in ``folder`` has this version and starts with only its own libraries."""
    loader, hint = [str(folder / _LOADERS[machine]), "--library-path", str(folder)], RECIPE.tools(machine).untested
    try:
        listed = process.run([*loader, "--list", str(folder / "ch-run")], 60).stdout
        asked = process.run(
            [str(folder / CHARLIECLOUD_START), "--version"], 60, {**process.base_environment(), "USER": "x"}
        )
    except DeployerError as error:
        raise JobFailed(f"the kit's ch-run does not start: {error.message}", hint) from error
    foreign = [line.split()[0] for line in listed.splitlines() if "=>" in line and f"=> {folder}/" not in line]
    if foreign:
        raise JobFailed(f"the kit's ch-run takes {', '.join(foreign)} from this machine", hint)
    answer = (asked.stdout + asked.stderr).strip()
    if answer != version:
        raise JobFailed(f"the kit's ch-run has the version {answer[:100]}, not {version}", hint)
