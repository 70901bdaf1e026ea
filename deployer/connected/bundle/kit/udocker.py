"""The kit part udocker: a runtime for sites without user namespaces, and proot, its engine for mode P1.

udocker is a wheel. proot is compiled statically from Debian's copy of the source, because udocker fails with all of
Debian's own builds. One of them fails silently: its processes see the host's root. So the new build is kept only if
its processes see the right root, or, for another processor, if it starts (``check_start``).
"""

import os
import shutil
from pathlib import Path

from deployer.connected.bundle.kit import fetch
from deployer.connected.bundle.kit.recipe import Recipe, Say
from deployer.connected.bundle.kit.toolchain import Toolchain
from deployer.connected.ground import this_machine
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import DeployerError, JobFailed
from deployer.contract.base.shell import quoted
from deployer.system import process

RECIPE = Recipe("udocker", 2, "or leave udocker out of policy.runtimes in the site's profile")
PROGRAM = "proot"

_PATCH = "proot.patch"


def make(made: Path, work: Path, host: BuildSettings, machine: str, say: Say) -> None:
    """Make the part, as ``KitPart.make``."""
    pins, tools = RECIPE.pins(), RECIPE.tools(machine)
    say(f"kit: fetch udocker {pins['udocker']['version']}")
    wheel = fetch.wheel(RECIPE, "udocker", work, host)
    say(f"kit: fetch the source of proot {pins['proot']['version']}")
    source, talloc = fetch.debian(RECIPE, ["proot"], work, host, ["talloc"], machine)
    say(f"kit: compile proot {pins['proot']['version']} for {machine}")
    command = _compile(tools, work, source, talloc)
    tested = check_start(work / PROGRAM, tools) if tools.is_cross else check_root(work / PROGRAM, work)
    if tools.is_cross:
        say("kit: proot starts under emulation, which cannot trace processes; each node tests its root before a job")
    for path in (wheel, source, RECIPE.folder / _PATCH):
        shutil.copyfile(path, made / path.name)
    RECIPE.finish(work / PROGRAM, made, RECIPE.readme(machine, command, tested))


def _compile(tools: Toolchain, work: Path, source: Path, talloc: Path) -> str:
    """Compile WORK/proot. Return the command as the README prints it."""
    top = RECIPE.unpack(source, work / "source")
    RECIPE.unpack(talloc, work / "talloc")
    patch = ["patch", "--strip=1", f"--input={RECIPE.folder / _PATCH}"]
    process.run(patch, 60, cwd=str(top), hint=tools.hint)
    [library] = (work / "talloc").rglob("libtalloc.a")
    words = {
        # Otherwise make runs git, which may find an unrelated repository above this folder.
        "VERSION": "",
        "CROSS_COMPILE": tools.prefix,
        "CFLAGS": f"-O2 -I{work}/talloc/usr/include",
        "LDFLAGS": f"-L{library.parent} -ltalloc -static -Wl,-z,noexecstack",
    }
    argv = ["make", "-f", "GNUmakefile", *(f"{name}={value}" for name, value in words.items()), PROGRAM]
    tools.compile(PROGRAM, argv, top / "src")
    tools.strip(top / "src" / PROGRAM, work / PROGRAM)
    return quoted(argv).replace(str(work), ".")


def check_start(proot: Path, tools: Toolchain) -> str:
    """Return how a proot of another processor was tested. Raises JobFailed unless it starts under emulation.

    Emulation of programs has no ptrace, so its processes cannot be tested here. At the site, ``run`` reads the canary
    of the image on each node before the job (``runtime.root``).
    """
    try:
        process.run([str(proot), "--version"], 60)
    except DeployerError as error:
        raise JobFailed(f"the kit's proot does not start: {error.message}", tools.untested) from error
    return (
        "Before it was kept, it was started under emulation, which cannot trace processes. So `run` is the first to\n"
        "    test that they see their own root: it reads /deployer/canary on each node before the job."
    )


def check_root(proot: Path, work: Path) -> str:
    """Return how proot was tested. Raises JobFailed unless a process under it sees its own root, not the host's."""
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    (root / "canary").write_text("own\n")
    compiler = ["gcc", "-static", "-O1", "-o", str(root / "test"), str(RECIPE.folder / "own_root.c")]
    process.run(compiler, 60, hint=RECIPE.tools(this_machine.machine()).hint)
    argv = [str(proot), "-k", os.uname().release, "-r", str(root), "-w", "/", "/test", "/canary"]
    try:
        done = process.run(argv, 60, {**process.base_environment(), "PROOT_TMP_DIR": str(work)}, check=False)
    except DeployerError as error:
        raise JobFailed(f"the kit's proot cannot be tested: {error.message}", RECIPE.leave_out) from error
    if done.returncode != 0:
        answer = done.last_words(1) or "it sees the host's root"
        hint = f"check that this user may use ptrace, {RECIPE.leave_out}"
        raise JobFailed(f"the kit's proot fails the test of its root: {answer}", hint)
    return "Before it was kept, a process under it saw its own root."
