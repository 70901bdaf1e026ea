"""A real disk of a chosen size: an ext4 file system in a file, mounted on one node or, as the same one, on several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.lab.command import run

if TYPE_CHECKING:
    from tests.lab.cluster import Lab


@contextmanager
def disk(lab: Lab, nodes: Sequence[str], place: str, size_mb: int) -> Iterator[None]:
    """Mount a new disk at the folder ``place`` of ``nodes`` for the time of the block; everybody may write to it.

    One kernel serves all nodes, so that what one writes the others see at once: a shared disk.
    """
    name = f"disk-{nodes[0]}-{place.strip('/').replace('/', '-')}"
    image = lab.state.path / f"{name}.img"
    with image.open("wb") as file:
        file.truncate(size_mb * 1024 * 1024)
    try:
        run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], timeout=60).check("cannot make a file system")
        device = run(["losetup", "--find", "--show", str(image)], timeout=20).check("no loop device").stdout.strip()
        try:
            number = os.stat(device).st_rdev
            for node in nodes:
                script = f"""mkdir -p {place} && rm -f /dev/{name} &&
                    mknod -m 600 /dev/{name} b {os.major(number)} {os.minor(number)} &&
                    mount -t ext4 /dev/{name} {place} && chmod 1777 {place}"""
                lab.sh(node, "root", script).check(f"cannot mount a disk on {node}")
            yield
        finally:
            for node in nodes:
                lab.sh(node, "root", f"umount -l {place}; rm -f /dev/{name}")
            run(["losetup", "--detach", device], timeout=20)
    finally:
        image.unlink()
