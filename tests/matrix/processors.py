"""Compare what `check` says about instruction sets with what programs do on a processor that qemu simulates.

    python -m tests.matrix.processors CPU ROOT COUNT    COUNT programs of the root filesystem ROOT, drawn by chance
    python -m tests.matrix.processors CPU ROOT          all of them

CPU is Nehalem (x86-64), or cortex-a53, cortex-a72, a64fx or neoverse-n1 (AArch64); ROOT is for the same architecture.

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
from typing import NamedTuple

from deployer.connected.check.rules import cpu as rules
from deployer.connected.linker.code import instructions
from deployer.connected.linker.code.instructions import Instructions
from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.loader import Loader
from deployer.contract.rules.findings import ERROR
from deployer.system import file_identity
from tests.host_files import HostFiles

FOLDERS = ("opt/own", "usr/bin", "usr/sbin", "usr/games")

X86, ARM = "qemu-x86_64-static", "qemu-aarch64-static"


class Cpu(NamedTuple):
    """A simulated processor: the emulator, the ELF number of the machine, and the flags among those that are searched.

    Nehalem is of 2008 (x86-64-v2). Those of the others are from the kernel's names for AT_HWCAP.
    """

    qemu: str
    machine: int
    flags: tuple[str, ...] = ()


CPUS = {
    "Nehalem": Cpu(X86, 62),
    "cortex-a53": Cpu(ARM, 183),
    "cortex-a72": Cpu(ARM, 183),
    "a64fx": Cpu(ARM, 183, ("atomics", "fphp", "asimdhp", "asimdrdm", "fcma", "sve")),
    "neoverse-n1": Cpu(ARM, 183, ("atomics", "fphp", "asimdhp", "asimdrdm", "lrcpc", "asimddp")),
}
ARGUMENTS: tuple[list[str], ...] = (["--version"], ["--help"], [])
SIGILL, SEGMENTATION = 132, 139


def programs(root: Path, machine: int) -> list[str]:
    """Return the programs of a root filesystem of which all libraries are there."""
    view, found = JobFilesystem(HostFiles(str(root))), []
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.is_symlink() or not path.is_file() or path.read_bytes()[:6] != b"\x7fELF\x02\x01":
                continue
            loader = Loader(view, machine=machine)
            if loader.start("/" + str(path.relative_to(root))) and not loader.missing:
                found.append("/" + str(path.relative_to(root)))
    return found


@functools.cache
def used(path: Path) -> Instructions:
    """Return the instruction sets of a file."""
    with open(path, "rb") as stream:
        return instructions.of_file(file_identity.reader(stream.fileno()))


def verdict(root: Path, program: str, cpu: Cpu) -> str:
    """Return REFUSE, WARN or RUN, with the file that decides."""
    loader = Loader(JobFilesystem(HostFiles(str(root))), machine=cpu.machine)
    started, said = loader.start(program), []
    for each in loader.objects:
        severity, sets = rules.lacking(used(root / each.path[1:]), each.path, each is started, cpu.flags)
        if sets:
            said.append(f"{'REFUSE' if severity == ERROR else 'WARN'} {each.path} {' '.join(sorted(sets))}")
    return min(said, default="RUN")


def outcome(root: Path, program: str, name: str) -> str:
    """Return "fails" if the program ends by an illegal instruction, "runs" if it does not."""
    for words in ARGUMENTS:
        argv = ["unshare", "--net", "chroot", "--userspec=65534:65534", str(root)]
        argv += [f"/{CPUS[name].qemu}", "-cpu", name, program, *words]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=15, check=False)
        except subprocess.TimeoutExpired:
            continue
        ended = 128 - done.returncode if done.returncode < 0 else done.returncode
        needs = b"can only be run on AMD64 processors with" in done.stderr  # Go's own words
        if ended == SIGILL or needs or (ended == SEGMENTATION and b"llegal" in done.stderr):
            return "fails"
    return "runs"


def main(name: str, root: Path, count: int | None) -> None:
    cpu = CPUS[name]
    shutil.copy(shutil.which(cpu.qemu) or cpu.qemu, root / cpu.qemu)
    found = programs(root, cpu.machine)
    chosen = random.Random(29).sample(found, min(count or len(found), len(found)))
    table: Counter[tuple[str, str]] = Counter()
    begun = time.monotonic()
    for program in sorted(chosen):
        said, did = verdict(root, program, cpu), outcome(root, program, name)
        table[said.partition(" ")[0], did] += 1
        if (said != "RUN") or did != "runs":
            print(f"{program}: {did}: {said}", flush=True)
    for (said, did), number in sorted(table.items()):
        print(f"{said:7} {did:6} {number}")
    print(f"{len(chosen)} of {len(found)} programs, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve(), int(sys.argv[3]) if len(sys.argv) > 3 else None)
