"""Rules for paths: that the image has a target for each of the plan's binds, and a folder for jobs to start in."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.linker import job_filesystem
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.rules.hostfiles import FOLDER
from deployer.contract.site import mount_points
from deployer.contract.site.plan import MOUNT_FOLDERS

_IS_FOLDER = {None: None, job_filesystem.FOLDER: True, job_filesystem.FILE: False, job_filesystem.LINK: False}


def bound(case: Case) -> Iterator[Finding]:
    """bind.place: where the plan binds a folder of the site, the image has no folder or has a link."""
    needed = {bind.target: f"pack it with --site {case.profile.name}" for bind in case.plan.binds}
    if case.plan.host:
        needed[FOLDER] = "pack it again with this version of deployer"
    for target, remedy_if_absent in needed.items():
        part = mount_points.in_the_way(target, lambda path: _IS_FOLDER.get(case.image.kind(path)))
        exists = case.image.kind(target) is not None
        exists = exists or any((path + "/").startswith(target + "/") for path in case.manifest.mount_points)
        if part and case.image.kind(part) == job_filesystem.LINK:
            text = f"{part} is a link in the image, to {JobFilesystem(case.image).resolve(part) or 'nothing'}"
        elif part:
            text = f"{part} is a file in the image"
        else:
            text = "the image has no such folder"
        remedy = "make it a folder in the Dockerfile" if part else remedy_if_absent
        if part or not exists:
            yield Finding("bind.place", ERROR, target, f"{text}, but the plan binds the site's folder there", remedy)


def working(case: Case) -> Iterator[Finding]:
    """workdir.missing, workdir.read-only: a job starts in a folder that is missing in the image, or is read-only."""
    image = JobFilesystem(case.image)
    own = case.manifest.image.workdir
    bound = {*MOUNT_FOLDERS, *(bind.target for bind in case.plan.binds)}
    folders = {job.workdir or own for job in case.manifest.jobs} or {own}
    for folder in sorted(folder for folder in folders if folder.strip("/")):
        if any(f"{folder}/".startswith(f"{target}/") for target in bound):
            continue
        if image.resolve(folder) is None:
            text = "the image does not have this folder, but jobs start in it"
            remedy = "make it in the Dockerfile, or set `workdir` in the job"
            yield Finding("workdir.missing", ERROR, folder, text, remedy)
        else:
            text = "jobs start in this folder of the image, which is read-only: relative paths cannot be written"
            remedy = "write to absolute paths such as /deployer/job, or set `workdir: /deployer/job` in the job"
            yield Finding("workdir.read-only", NOTE, folder, text, remedy)
