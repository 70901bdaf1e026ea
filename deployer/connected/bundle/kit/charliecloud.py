"""The kit's part charliecloud: ch-run for sites whose nodes have user namespaces, but no ch-run or an old one.

It is Debian's ch-run with the loader and the libraries for which it was compiled, so it needs nothing of the site but
the kernel. Nothing is compiled here. Debian 12's is taken: the oldest version that deployer uses, with the fewest
libraries, in an archive that does not change any more. Its glibc runs on Linux 3.2 and later.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from deployer.connected.build.settings import BuildSettings
from deployer.connected.bundle.kit import fetch
from deployer.connected.bundle.kit.recipe import Recipe
from deployer.contract.errors import DeployerError, JobFailed
from deployer.contract.plan import CHARLIECLOUD_FOLDER, CHARLIECLOUD_START
from deployer.system import process

RECIPE = Recipe("charliecloud", 1, "or leave charliecloud out of policy.runtimes in the site's profile", compiled=False)
FOLDER = CHARLIECLOUD_FOLDER

_SOURCE = "lzo2-source"
_LOADER = "ld-linux-x86-64.so.2"
#: The files that are taken, by package. Names of libraries are their sonames. ch-run asks for the user's name, for
#: which the C library loads the host's modules: those of older hosts need the small libraries that glibc 2.34 merged.
_FILES: Mapping[str, tuple[str, ...]] = {
    "charliecloud-runtime": ("ch-run",),
    "libc6": (_LOADER, "libc.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2", "librt.so.1"),
    "libfuse3-3": ("libfuse3.so.3",),
    "libsquashfuse0": ("libsquashfuse_ll.so.0",),
    "liblz4-1": ("liblz4.so.1",),
    "liblzma5": ("liblzma.so.5",),
    "liblzo2-2": ("liblzo2.so.2",),
    "zlib1g": ("libz.so.1",),
    "libzstd1": ("libzstd.so.1",),
}
#: The SBOM's evidence of each package: the first of its files.
PROGRAMS = {f"{FOLDER}/{names[0]}": package for package, names in _FILES.items()}


def make(made: Path, work: Path, host: BuildSettings, say: Callable[[str], None]) -> None:
    """Make the part.

    Args:
        made: the folder for the finished part.
        work: a folder for temporary files.

    Raises:
        MissingTool: there is no mmdebstrap, or no package for this machine.
        TransferError: a download failed.
        IntegrityError: a download does not match its pin.
        JobFailed: it does not start.
    """
    pins = RECIPE.pins()
    say(f"kit: fetch Charliecloud {pins['charliecloud-runtime']['version']} and its libraries")
    source, *packages = fetch.debian(RECIPE, [_SOURCE], work, host, list(_FILES))
    folder, licences = made / FOLDER, made / f"{FOLDER}.licences"
    for new in (folder, licences):
        new.mkdir(mode=0o755)
    for package, (name, wanted) in zip(packages, _FILES.items(), strict=True):
        root = RECIPE.unpack(package, work / name)
        for each in wanted:
            _copy(root, each, folder)
        shutil.copyfile(root / "usr" / "share" / "doc" / name / "copyright", licences / name)
    shutil.copyfile(RECIPE.folder / CHARLIECLOUD_START, folder / CHARLIECLOUD_START)
    for program in (CHARLIECLOUD_START, "ch-run", _LOADER):
        (folder / program).chmod(0o755)
    shutil.copyfile(source, made / source.name)
    (made / f"README.{RECIPE.name}").write_text(RECIPE.readme(""))
    check(folder, pins["charliecloud-runtime"]["version"].partition("-")[0])


def _copy(root: Path, name: str, folder: Path) -> None:
    """Copy the file ``name`` of an unpacked package, to which links of the package may lead."""
    inside = root.resolve()
    [path] = {found for path in root.rglob(name) if (found := path.resolve()).is_relative_to(inside)}
    shutil.copyfile(path, folder / name)


def check(folder: Path, version: str) -> None:
    """Raise JobFailed unless the ch-run in ``folder`` starts with its own libraries only, and has this version."""
    loader = [str(folder / _LOADER), "--library-path", str(folder)]
    try:
        listed = process.run([*loader, "--list", str(folder / "ch-run")], 60).stdout
        asked = process.run(
            [str(folder / CHARLIECLOUD_START), "--version"], 60, {**process.base_environment(), "USER": "x"}
        )
    except DeployerError as error:
        raise JobFailed(f"the kit's ch-run does not start: {error.message}", RECIPE.leave_out) from error
    foreign = [line.split()[0] for line in listed.splitlines() if "=>" in line and f"=> {folder}/" not in line]
    if foreign:
        raise JobFailed(f"the kit's ch-run takes {', '.join(foreign)} from this machine", RECIPE.leave_out)
    said = (asked.stdout + asked.stderr).strip()
    if said != version:
        raise JobFailed(f"the kit's ch-run has the version {said[:100]}, not {version}", RECIPE.leave_out)
