"""Rules for commands: that the program exists in the image, or in what the bundle and the plan put over it."""

import re
from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.linker import commands
from deployer.connected.linker.jobs import search_of
from deployer.contract.bundle.manifest import DATA_PREFIX
from deployer.contract.rules.findings import ERROR, WARNING, Finding
from deployer.contract.site.plan import DATA

#: A literal path below the data folders in a word; the first part is the folder's name.
_DATA = re.compile(DATA + r"/([\w.-]+)((?:/[\w.+=@-]+)*)")


def startable(case: Case) -> Iterator[Finding]:
    """command.missing: according to the bundle's files, the command of a job cannot start."""
    place = search_of(case.manifest, case.plan, case.image, case.overlays)
    yield from commands.findings(case.manifest.jobs, place)


def readable(case: Case) -> Iterator[Finding]:
    """data.missing: an argument of a job is a path below /deployer/data that is in no data folder of the bundle."""
    has = [member.name[len(DATA_PREFIX) :] for member in case.manifest.members if member.name.startswith(DATA_PREFIX)]
    elsewhere = {need.data for need in case.manifest.needs}
    own = {name.partition("/")[0] for name in has}
    for job in case.manifest.jobs:
        for name, below in dict.fromkeys(match for word in job.command for match in _DATA.findall(word)):
            path, known = f"{DATA}/{name}{below}", ", ".join(sorted(own | elsewhere)) or "none"
            if name not in own | elsewhere:
                text = f"its command has {path}, but the bundle has no data folder {name}; its data folders: {known}"
            elif name in own and not any(path_in_folder.startswith(name + below) for path_in_folder in has):
                text = f"its command has {path}, but data folder {name} of the bundle has no such file or folder"
            else:
                continue
            remedy = "correct the job's command, or add the folder to `data` in bundle.yaml"
            yield Finding("data.missing", WARNING if name in own else ERROR, f"job {job.name}", text, remedy)
