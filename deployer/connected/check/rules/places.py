"""Rules of places: that the image has one for each thing that the plan binds, and a folder for jobs to start in. None
can be made on the site."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.findings import ERROR, NOTE, Finding
from deployer.contract.hostfiles import FOLDER
from deployer.contract.plan import MOUNT_FOLDERS


def bound(case: Case) -> Iterator[Finding]:
    """bind.place: the image has no folder, or a link, where the plan binds one of the site's."""
    image = JobFilesystem(case.image)
    needed = {bind.target: f"pack it with --site {case.profile.name}" for bind in case.plan.binds}
    if case.plan.host:
        needed[FOLDER] = (
            "pack it again with this version of deployer: older images lack this folder for single host files"
        )
    for target, remedy in needed.items():
        found = image.resolve(target)
        if found != target:
            text = f"it is a link to {found}" if found else "the image has no such folder"
            yield Finding("bind.place", ERROR, target, f"{text}, but the plan binds the site's folder there", remedy)


def working(case: Case) -> Iterator[Finding]:
    """workdir.missing, workdir.read-only: a job starts in a folder that the image lacks, or cannot write to."""
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
