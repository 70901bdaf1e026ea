"""Rules for places: targets of the plan's binds, folders for jobs to start in, and space where the image is installed.

``push`` asks the site for the space that is free now.
"""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.connected.linker import job_filesystem
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.contract.bundle.manifest import OURS, Manifest
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.rules.hostfiles import FOLDER
from deployer.contract.site import mount_points
from deployer.contract.site.plan import MOUNT_FOLDERS

_IS_FOLDER = {None: None, job_filesystem.FOLDER: True, job_filesystem.FILE: False, job_filesystem.LINK: False}
_MIB = 1024 * 1024
#: Possible home folders, for a workspace that begins with "~".
_HOMES = ("/home", "/u", "/users", "/home1")


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


def room(case: Case) -> Iterator[Finding]:
    """space.size, space.files, space.purge: the workspace lacks space, or its file system removes unused files.

    Either the workspace's file system or the user's quota is too small.
    """
    workspace = case.plan.workspace
    places = _HOMES if workspace.startswith("~") else (workspace,)
    known = {**case.partition.filesystems, **case.profile.login.filesystems}
    paths = [path for path in known for place in places if f"{place}/".startswith(path.rstrip("/") + "/")]
    if not paths:
        return
    path = max(paths, key=len)  # the innermost one
    filesystem = known[path]
    size, files = demand(case.manifest, sum(len(overlay.files.entries) for overlay in case.overlays))
    for code, need, unit, limits in (
        ("space.size", -(-size // _MIB), "MiB", (("size", filesystem.size_mb), ("quota", filesystem.quota_mb))),
        ("space.files", files, "files", (("inodes", filesystem.inodes), ("quota", filesystem.quota_inodes))),
    ):
        for what, limit in limits:
            if limit is not None and limit < need:
                text = f"the bundle and its image need {need} {unit}, but its {what} is {limit} {unit}"
                remedy = "name another workspace in the profile, or ask the site for more"
                yield Finding(code, ERROR, path, text, remedy)
    if filesystem.purge_days:
        text = f"files unused for {filesystem.purge_days} days are removed, which would damage an installed image"
        remedy = "after a pause, install again before you start a job; or name another workspace"
        yield Finding("space.purge", NOTE, path, text, remedy)


def demand(manifest: Manifest, more: int = 0) -> tuple[int, int]:
    """Return the bytes and files that an install needs. The bytes are the bundle, with its parts or image beside it."""
    bundle = sum(segment.size for segment in manifest.segments)
    members = sum(member.name.startswith(OURS) for member in manifest.members)
    return bundle + max(bundle, manifest.unpacked), manifest.image.entries + members + more
