"""Rule of what jobs start: that the program is in the image, or in what the bundle and the plan put over it."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.linker import commands
from deployer.connected.linker.commands import CODE
from deployer.contract.findings import Finding
from deployer.contract.plan import APP

__all__ = ["CODE", "startable"]


def startable(case: Case) -> Iterator[Finding]:
    """command.missing: the command of a job cannot start, as far as the bundle's files tell."""
    image = case.manifest.image
    brought = {name for overlay in case.overlays for name in overlay.files.programs}
    app = {overlay.target: overlay.files for overlay in case.overlays if overlay.target == APP}
    look = commands.in_bundle(case.image, app)
    yield from commands.findings(
        case.manifest.jobs, commands.place(look, image.env, image.workdir, [case.plan], brought)
    )
