"""The kit part udocker: a runtime for sites without user namespaces, and proot, its engine for mode P1.

udocker is a wheel. proot is compiled statically from Debian's copy of the source, because udocker fails with all of
Debian's own builds. One of them fails silently: its processes see the host's root. So the new build is kept only if
its processes see the right root.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from deployer.connected.bundle.kit import fetch
from deployer.connected.bundle.kit.recipe import Recipe
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import DeployerError, JobFailed
from deployer.contract.base.shell import quoted
from deployer.system import process

RECIPE = Recipe("udocker", 2, "or leave udocker out of policy.runtimes in the site's profile")
PROGRAM = "proot"

_PATCH = "proot.patch"


def make(made: Path, work: Path, host: BuildSettings, say: Callable[[str], None]) -> None:
    """Make the part.

    Args:
        made: the folder for the finished part.
        work: a folder for temporary files.

    Raises:
        MissingTool: no compiler, mmdebstrap or pip found.
        TransferError: a download failed.
        IntegrityError: a download does not match its pin.
        JobFailed: proot does not compile, or its processes see the wrong root.
    """
    pins = RECIPE.pins()
    say(f"kit: fetch udocker {pins['udocker']['version']}")
    wheel = fetch.wheel(RECIPE, "udocker", work, host)
    say(f"kit: fetch the source of proot {pins['proot']['version']}")
    source, talloc = fetch.debian(RECIPE, ["proot"], work, host, ["talloc"])
    say(f"kit: compile proot {pins['proot']['version']}")
    command = _compile(work, source, talloc)
    check_root(work / PROGRAM, work)
    for path in (wheel, source, RECIPE.folder / _PATCH):
        shutil.copyfile(path, made / path.name)
    RECIPE.finish(work / PROGRAM, made, command)


def _compile(work: Path, source: Path, talloc: Path) -> str:
    """Compile WORK/proot. Return the command as the README prints it."""
    top = RECIPE.unpack(source, work / "source")
    RECIPE.unpack(talloc, work / "talloc")
    patch = ["patch", "--strip=1", f"--input={RECIPE.folder / _PATCH}"]
    process.run(patch, 60, cwd=str(top), hint=RECIPE.compiler)
    [library] = (work / "talloc").rglob("libtalloc.a")
    words = {
        # Otherwise make runs git, which may find an unrelated repository above this folder.
        "VERSION": "",
        "CFLAGS": f"-O2 -I{work}/talloc/usr/include",
        "LDFLAGS": f"-L{library.parent} -ltalloc -static -Wl,-z,noexecstack",
    }
    argv = ["make", "-f", "GNUmakefile", *(f"{name}={value}" for name, value in words.items()), PROGRAM]
    RECIPE.compile(PROGRAM, argv, top / "src")
    RECIPE.strip(top / "src" / PROGRAM, work / PROGRAM)
    return quoted(argv).replace(str(work), ".")


def check_root(proot: Path, work: Path) -> None:
    """Raise JobFailed unless a process under ``proot`` sees the given root instead of the host's."""
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    (root / "canary").write_text("own\n")
    compiler = ["gcc", "-static", "-O1", "-o", str(root / "test"), str(RECIPE.folder / "own_root.c")]
    process.run(compiler, 60, hint=RECIPE.compiler)
    argv = [str(proot), "-k", os.uname().release, "-r", str(root), "-w", "/", "/test", "/canary"]
    try:
        done = process.run(argv, 60, {**process.base_environment(), "PROOT_TMP_DIR": str(work)}, check=False)
    except DeployerError as error:
        raise JobFailed(f"the kit's proot cannot be tested: {error.message}", RECIPE.leave_out) from error
    if done.returncode != 0:
        answer = done.last_words(1) or "it sees the host's root"
        hint = f"check that this user may use ptrace, {RECIPE.leave_out}"
        raise JobFailed(f"the kit's proot fails the test of its root: {answer}", hint)
