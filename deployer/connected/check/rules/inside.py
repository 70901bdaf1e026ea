"""Rules for jobs that start inside-out: with the image's own launcher, in one container per node."""

from collections.abc import Iterator, Sequence

from deployer.connected.check.rules.case import MISSING_FACTS, Case
from deployer.connected.linker import commands
from deployer.connected.linker.index import Index
from deployer.contract.bundle import image_launcher
from deployer.contract.bundle.image_launcher import OF_ABI
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.site.plan import INSIDE

#: Errors about the site's MPI, which needs the site's glibc, and its launcher: inside-out jobs use neither.
_CURED = ("mpi.", "pmi.", "link.version", "plan.refused")


def startable(case: Case) -> Iterator[Finding]:
    """launcher.missing: the image cannot start ranks itself, although its plan requires it."""
    launchers = dict.fromkeys(option.launcher for option in case.plan.containers)
    for launcher in launchers if case.plan.launch == INSIDE else ():
        lacks = image_lacks(launcher, case.manifest, case.image)
        if lacks:
            text = f"the image cannot start ranks by its own launcher: it has {lacks}"
            remedy = (
                "install the launcher of its MPI and a python3 in the image (Debian: mpich, or openmpi-bin), or start "
                "the ranks by the site's launcher: --launch outside"
            )
            yield Finding("launcher.missing", ERROR, case.plan.site, text, remedy)


def image_lacks(launcher: str, manifest: Manifest, image: Index) -> str | None:
    """Return what an image lacks to start ranks with its own launcher; None if nothing is missing."""
    place = commands.place(commands.in_bundle(image, {}), manifest.image.env, manifest.image.workdir)
    return image_launcher.lacks(launcher, place, manifest.image.python)


def suggested(findings: Sequence[Finding], site: str, manifest: Manifest, image: Index) -> Iterator[Finding]:
    """launch.inside: a job that is refused or uncertain due to the site's MPI may run with the image's, inside-out."""
    doubted = (finding.code for finding in findings if finding.severity in (ERROR, MISSING_FACTS))
    cured = dict.fromkeys(code for code in doubted if code.startswith(_CURED))
    launcher = OF_ABI.get(next(iter(manifest.mpi), ""))
    if cured and launcher and image_lacks(launcher, manifest, image) is None:
        text = f"the image has a launcher of its own, {launcher}, which needs neither MPI nor launcher of the site"
        remedy = "look at `deployer check --launch inside`; then `launch: inside` in the profile, and make a new plan"
        yield Finding("launch.inside", NOTE, site, f"{text} ({', '.join(cured)})", remedy)
