"""Rules for paths: that the image has a target for each of the plan's binds, and a folder for jobs to start in."""

import functools
from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.linker import job_filesystem
from deployer.connected.linker.index import Index
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.rules.hostfiles import FOLDER
from deployer.contract.site import mount_points
from deployer.contract.site.plan import MOUNT_FOLDERS


def bound(case: Case) -> Iterator[Finding]:
    """bind.place: where the plan binds a folder of the site, the image has no folder or has a link."""
    needed = {bind.target: f"pack it with --site {case.profile.name}" for bind in case.plan.binds}
    if case.plan.host:
        needed[FOLDER] = "pack it again with this version of deployer"
    for target, remedy in needed.items():
        part = mount_points.in_the_way(target, functools.partial(_is_folder, case.image))
        if part:
            text, remedy = _described(case.image, part), "make it a folder in the Dockerfile"
        elif case.image.kind(target) or any(
            (path + "/").startswith(target + "/") for path in case.manifest.mount_points
        ):
            continue
        else:
            text = "the image has no such folder"
        yield Finding("bind.place", ERROR, target, f"{text}, but the plan binds the site's folder there", remedy)


def _is_folder(image: Index, path: str) -> bool | None:
    kind = image.kind(path)
    return None if kind is None else kind == job_filesystem.FOLDER


def _described(image: Index, path: str) -> str:
    if image.kind(path) == job_filesystem.LINK:
        return f"{path} is a link in the image, to {JobFilesystem(image).resolve(path) or 'nothing'}"
    return f"{path} is a file in the image"


def working(case: Case) -> Iterator[Finding]:
    """workdir.missing, workdir.read-only: a job starts in a folder that is missing in the image, or is read-only."""
    image = JobFilesystem(case.image)
    own = case.manifest.image.workdir
    bound = {*MOUNT_FOLDERS, *(bind.target for bind in case.plan.binds)}
    folders = {job.workdir or own for job in case.manifest.jobs} or {own}
    for folder in sorted(folder for folder in folders if folder.strip("/")):
        if any(folder == target or folder.startswith(target + "/") for target in bound):
            continue
        if image.resolve(folder) is None:
            text, remedy = (
                "the image does not have this folder, but jobs start in it",
                "make it in the Dockerfile, or set ",
            )
            yield Finding("workdir.missing", ERROR, folder, text, remedy + "`workdir` in the job")
        else:
            text = "jobs start in this folder of the image, which is read-only: relative paths cannot be written"
            remedy = "write to absolute paths such as /deployer/job, or set `workdir: /deployer/job` in the job"
            yield Finding("workdir.read-only", NOTE, folder, text, remedy)
