"""The kit part squashfs-tools: mksquashfs for sites that can mount images but lack mksquashfs.

It is compiled statically from Debian's copy of the upstream source. It supports gzip, which every site can read, and
zstd, which takes a tenth of the time. Before it is kept, ``unsquashfs`` from the same source must read its output.
"""

import filecmp
import shutil
from collections.abc import Mapping
from pathlib import Path

from deployer.connected.bundle.kit import fetch
from deployer.connected.bundle.kit.recipe import Recipe, Say
from deployer.connected.bundle.kit.toolchain import Toolchain
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import DeployerError, JobFailed
from deployer.contract.base.shell import quoted
from deployer.contract.elf.machines import X86_64
from deployer.system import process

RECIPE = Recipe(
    "squashfs-tools", 1, "or pack without it: SquashFS images can then be made only at sites with mksquashfs"
)
PROGRAM = "mksquashfs"

_READER = "unsquashfs"
_COMPRESSIONS = ("gzip", "zstd")
_OTHERS = ("XZ", "LZO", "LZ4", "LZMA_XZ", "XATTR")
_LEFT_OUT_OF_ZSTD = ("LEGACY_SUPPORT", "LIB_DICTBUILDER", "LIB_DEPRECATED")


def make(made: Path, work: Path, host: BuildSettings, machine: str, say: Say) -> None:
    """Make the part, as ``KitPart.make``."""
    pins, tools = RECIPE.pins(), RECIPE.tools(machine)
    version = pins["squashfs-tools"]["version"]
    say(f"kit: fetch the source of squashfs-tools {version}")
    sources = fetch.debian(RECIPE, list(pins), work, host, [], X86_64.kernel)  # sources are for all
    say(f"kit: compile mksquashfs {version} for {machine}")
    command = _compile(tools, work, dict(zip(pins, sources, strict=True)))
    check(work / PROGRAM, work / _READER, work, tools.untested)
    # mksquashfs's licence requires the sources of all linked libraries.
    for path in sources:
        shutil.copyfile(path, made / path.name)
    RECIPE.finish(work / PROGRAM, made, RECIPE.readme(machine, command))


def _compile(tools: Toolchain, work: Path, sources: Mapping[str, Path]) -> str:
    """Compile mksquashfs and unsquashfs in ``work``. Return the commands as the README prints them."""
    tops = {name: RECIPE.unpack(path, work / name) for name, path in sources.items()}
    zlib, zstd, own = tops["zlib"], tops["zstd"] / "lib", tops["squashfs-tools"] / RECIPE.name
    compiler = [f"CC={tools.prefix}gcc", f"AR={tools.prefix}ar"]
    of_zlib = ["sh", "-c", f"CHOST={tools.prefix.rstrip('-')} ./configure --static && make libz.a"]
    of_zstd = ["make", "--jobs=4", "-C", "lib", "libzstd.a", "CFLAGS=-O2", *compiler]
    of_zstd += [f"ZSTD_{name}=0" for name in _LEFT_OUT_OF_ZSTD]
    words = [f"{name.upper()}_SUPPORT=1" for name in _COMPRESSIONS] + [f"{name}_SUPPORT=0" for name in _OTHERS]
    words += [f"EXTRA_CFLAGS=-I{zlib} -I{zstd}", f"EXTRA_LDFLAGS=-L{zlib} -L{zstd} -static -Wl,-z,noexecstack"]
    argv = ["make", "--jobs=4", *compiler, *words, PROGRAM, _READER]
    tools.compile("zlib", of_zlib, zlib)
    tools.compile("zstd", of_zstd, tops["zstd"])
    tools.compile(PROGRAM, argv, own)
    for name in (PROGRAM, _READER):
        tools.strip(own / name, work / name)
    return "\n        ".join(quoted(command).replace(str(work), "../..") for command in (of_zlib, of_zstd, argv))


def check(program: Path, reader: Path, work: Path, hint: str) -> None:
    """Test a compiled mksquashfs.

    Args:
        hint: the remedy if it fails.

    Raises:
        JobFailed: ``reader`` cannot read its output, or its output depends on the number of threads.
    """
    folder = work / "sample"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "file").write_bytes(b"some text\n" * 50_000)
    for name in _COMPRESSIONS:
        one, two = (work / f"{name}.{processes}" for processes in (1, 2))
        read = work / f"{name}.read"
        try:
            for image in (one, two):
                words = ["-comp", name, "-mkfs-time", "0", "-processors", image.suffix[1:]]
                process.run([str(program), str(folder), str(image), *words], 60)
            process.run([str(reader), "-dest", str(read), str(one)], 60)
        except DeployerError as error:
            raise JobFailed(f"the kit's mksquashfs fails its test: {error.message}", hint) from error
        if not filecmp.cmp(one, two, shallow=False):
            text = "the kit's mksquashfs fails its test: two runs on the same folder gave different bytes"
            raise JobFailed(text, hint)
        if not filecmp.cmp(folder / "file", read / "file", shallow=False):
            raise JobFailed("the kit's mksquashfs fails its test: a file was changed", hint)
