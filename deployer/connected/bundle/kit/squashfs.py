"""The kit part squashfs-tools: mksquashfs for sites that can mount images but lack mksquashfs.

It is compiled statically from Debian's copy of the upstream source. It supports gzip, which every site can read, and
zstd, which takes a tenth of the time. Before it is kept, ``unsquashfs`` from the same source must read its output.
"""

import filecmp
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from deployer.connected.bundle.kit import fetch
from deployer.connected.bundle.kit.recipe import Recipe
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import DeployerError, JobFailed
from deployer.contract.base.shell import quoted
from deployer.system import process

RECIPE = Recipe(
    "squashfs-tools", 1, "or pack without it: SquashFS images can then be made only at sites with mksquashfs"
)
PROGRAM = "mksquashfs"

_READER = "unsquashfs"
_COMPRESSIONS = ("gzip", "zstd")
_OTHERS = ("XZ", "LZO", "LZ4", "LZMA_XZ", "XATTR")
#: Commands in each library's source folder. zstd excludes legacy formats and the dictionary builder.
_ZLIB = ["sh", "-c", "./configure --static && make libz.a"]
_ZSTD = ["make", "--jobs=4", "-C", "lib", "libzstd.a", "CFLAGS=-O2"]
_ZSTD += [f"ZSTD_{name}=0" for name in ("LEGACY_SUPPORT", "LIB_DICTBUILDER", "LIB_DEPRECATED")]


def make(made: Path, work: Path, host: BuildSettings, say: Callable[[str], None]) -> None:
    """Make the part.

    Args:
        made: the folder for the finished part.
        work: a folder for temporary files.

    Raises:
        MissingTool: no compiler or mmdebstrap found.
        TransferError: the sources cannot be downloaded.
        IntegrityError: a source does not match its pin.
        JobFailed: the compilation or the test failed.
    """
    pins = RECIPE.pins()
    version = pins["squashfs-tools"]["version"]
    say(f"kit: fetch the source of squashfs-tools {version}")
    sources = fetch.debian(RECIPE, list(pins), work, host)
    say(f"kit: compile mksquashfs {version}")
    command = _compile(work, dict(zip(pins, sources, strict=True)))
    check(work / PROGRAM, work / _READER, work)
    # mksquashfs's licence requires the sources of all linked libraries.
    for path in sources:
        shutil.copyfile(path, made / path.name)
    RECIPE.finish(work / PROGRAM, made, command)


def _compile(work: Path, sources: Mapping[str, Path]) -> str:
    """Compile mksquashfs and unsquashfs in ``work``. Return the commands as the README prints them."""
    tops = {name: RECIPE.unpack(path, work / name) for name, path in sources.items()}
    zlib, zstd, tools = tops["zlib"], tops["zstd"] / "lib", tops["squashfs-tools"] / RECIPE.name
    words = [f"{name.upper()}_SUPPORT=1" for name in _COMPRESSIONS] + [f"{name}_SUPPORT=0" for name in _OTHERS]
    words += [f"EXTRA_CFLAGS=-I{zlib} -I{zstd}", f"EXTRA_LDFLAGS=-L{zlib} -L{zstd} -static -Wl,-z,noexecstack"]
    argv = ["make", "--jobs=4", *words, PROGRAM, _READER]
    RECIPE.compile("zlib", _ZLIB, zlib)
    RECIPE.compile("zstd", _ZSTD, tops["zstd"])
    RECIPE.compile(PROGRAM, argv, tools)
    for name in (PROGRAM, _READER):
        RECIPE.strip(tools / name, work / name)
    return "\n        ".join(quoted(command).replace(str(work), "../..") for command in (_ZLIB, _ZSTD, argv))


def check(program: Path, reader: Path, work: Path) -> None:
    """Test a compiled mksquashfs.

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
            raise JobFailed(f"the kit's mksquashfs fails its test: {error.message}", RECIPE.leave_out) from error
        if not filecmp.cmp(one, two, shallow=False):
            text = "the kit's mksquashfs fails its test: two runs on the same folder gave different bytes"
            raise JobFailed(text, RECIPE.leave_out)
        if not filecmp.cmp(folder / "file", read / "file", shallow=False):
            raise JobFailed("the kit's mksquashfs fails its test: a file was changed", RECIPE.leave_out)
