"""Rules for space: that the image fits where it is installed. ``push`` asks the site for the space that is free now."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import Case
from deployer.contract.bundle.manifest import OURS, Manifest
from deployer.contract.rules.findings import ERROR, NOTE, Finding

_MIB = 1024 * 1024
#: Possible home folders, for a workspace that begins with "~".
_HOMES = ("/home", "/u", "/users", "/home1")


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
