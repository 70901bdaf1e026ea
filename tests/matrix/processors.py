"""Compare what `check` says about instruction sets with what programs do on an old processor, simulated by qemu.

    python -m tests.matrix.processors ROOT COUNT    COUNT programs of the root filesystem ROOT, drawn by chance
    python -m tests.matrix.processors ROOT          all of them

It runs as root, in a chroot without network, as the user nobody. Needs qemu-user-static.
"""

import functools
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from deployer.connected.check.rules import cpu
from deployer.connected.linker.code import instructions
from deployer.connected.linker.code.instructions import Instructions
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.loader import Loader
from deployer.contract.rules.findings import ERROR
from deployer.system import file_identity
from tests.host_files import HostFiles

FOLDERS = ("opt/own", "usr/bin", "usr/sbin", "usr/games")
#: Of a processor of 2008 (x86-64-v2), of those that are looked for: none.
FLAGS: tuple[str, ...] = ()
QEMU = "qemu-x86_64-static"
ARGUMENTS: tuple[list[str], ...] = (["--version"], ["--help"], [])
SIGILL, SEGMENTATION = 132, 139


def programs(root: Path) -> list[str]:
    """Return the programs of a root filesystem of which all libraries are there."""
    view, found = JobFilesystem(HostFiles(str(root))), []
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.is_symlink() or not path.is_file() or path.read_bytes()[:6] != b"\x7fELF\x02\x01":
                continue
            loader = Loader(view)
            if loader.start("/" + str(path.relative_to(root))) and not loader.missing:
                found.append("/" + str(path.relative_to(root)))
    return found


@functools.cache
def used(path: Path) -> Instructions:
    """Return the instruction sets of a file."""
    with open(path, "rb") as stream:
        return instructions.of_file(file_identity.reader(stream.fileno()))


def verdict(root: Path, program: str) -> str:
    """Return REFUSE, WARN or RUN, with the file that decides."""
    loader = Loader(JobFilesystem(HostFiles(str(root))))
    started, said = loader.start(program), []
    for each in loader.objects:
        severity, sets = cpu.lacking(used(root / each.path[1:]), each.path, each is started, FLAGS)
        if sets:
            said.append(f"{'REFUSE' if severity == ERROR else 'WARN'} {each.path} {' '.join(sorted(sets))}")
    return min(said, default="RUN")


def outcome(root: Path, program: str) -> str:
    """Return "fails" if the program ends by an illegal instruction, "runs" if it does not."""
    for words in ARGUMENTS:
        argv = ["unshare", "--net", "chroot", "--userspec=65534:65534", str(root)]
        argv += [f"/{QEMU}", "-cpu", "Nehalem", program, *words]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=15, check=False)
        except subprocess.TimeoutExpired:
            continue
        ended = 128 - done.returncode if done.returncode < 0 else done.returncode
        needs = b"can only be run on AMD64 processors with" in done.stderr  # Go's own words
        if ended == SIGILL or needs or (ended == SEGMENTATION and b"llegal" in done.stderr):
            return "fails"
    return "runs"


def main(root: Path, count: int | None) -> None:
    shutil.copy(shutil.which(QEMU) or QEMU, root / QEMU)
    found = programs(root)
    chosen = random.Random(29).sample(found, min(count or len(found), len(found)))
    table: Counter[tuple[str, str]] = Counter()
    begun = time.monotonic()
    for program in sorted(chosen):
        said, did = verdict(root, program), outcome(root, program)
        table[said.partition(" ")[0], did] += 1
        if (said != "RUN") or did != "runs":
            print(f"{program}: {did}: {said}", flush=True)
    for (said, did), number in sorted(table.items()):
        print(f"{said:7} {did:6} {number}")
    print(f"{len(chosen)} of {len(found)} programs, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else None)
