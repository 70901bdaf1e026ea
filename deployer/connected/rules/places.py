"""Rules of places: that the image has one for each thing that the plan binds. None can be made on the site."""

from collections.abc import Iterator

from deployer.connected.linker.view import View
from deployer.connected.rules.case import Case
from deployer.contract.findings import ERROR, Finding
from deployer.contract.hostfiles import FOLDER


def bound(case: Case) -> Iterator[Finding]:
    """bind.place: the image has no folder, or a link, where the plan binds one of the site's."""
    image = View(case.image)
    needed = {bind.target: f"pack it with --site {case.profile.name}" for bind in case.plan.binds}
    if case.plan.host:
        needed[FOLDER] = "pack it again with this deployer: images have had that folder since single files are bound"
    for target, remedy in needed.items():
        found = image.resolve(target)
        if found != target:
            text = f"it is a link to {found}" if found else "the image has no such folder"
            yield Finding("bind.place", ERROR, target, f"{text}, and the site's is to be bound there", remedy)
