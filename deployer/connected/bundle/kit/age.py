"""The kit part age: the program that decrypts media, for sites without it. `push --bring-age` puts it on media.

It is compiled statically from Debian's packages with their Go compiler, which needs nothing else from this machine.
"""

from pathlib import Path

from deployer.connected.bundle.kit import fetch
from deployer.connected.bundle.kit.recipe import Recipe, Say
from deployer.connected.ground import this_machine
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.shell import quoted
from deployer.contract.elf.machines import BY_KERNEL
from deployer.system import process

RECIPE = Recipe("age", 1, "or write the media without --bring-age", compiled=False)
PROGRAM, SOURCE = "age", "golang-filippo-age-dev"

_TIMEOUT = 1800


def make(made: Path, work: Path, host: BuildSettings, machine: str, say: Say) -> None:
    """Make the part, as ``KitPart.make``."""
    version = f"v{RECIPE.pins()[SOURCE]['version'].partition('-')[0]}"
    say(f"kit: fetch the source of age {version} and Debian's Go compiler")
    root = work / "root"
    for package in fetch.debian(RECIPE, [], work, host, list(RECIPE.pins()), this_machine.machine()):
        RECIPE.unpack(package, root)
    say(f"kit: compile age for {machine}")
    settings = {"GO111MODULE": "off", "CGO_ENABLED": "0", "GOARCH": BY_KERNEL[machine].oci}
    places = {"GOROOT": root / "usr/lib/go-1.19", "GOPATH": root / "usr/share/gocode", "GOCACHE": work / "cache"}
    argv = ["go", "build", "-trimpath", "-ldflags", f"-s -w -X main.Version={version}", "-o", PROGRAM]
    argv.append("filippo.io/age/cmd/age")
    environment = {**process.base_environment(), **settings, **{key: str(path) for key, path in places.items()}}
    program = [str(places["GOROOT"] / "bin/go"), *argv[1:]]
    process.run(program, _TIMEOUT, environment, cwd=str(work), hint=RECIPE.leave_out)
    process.run([str(work / PROGRAM), "--version"], 60, hint=RECIPE.tools(machine).untested)
    licences = sorted(root.glob("usr/share/doc/*/copyright"))
    command = " ".join(f"{key}={value}" for key, value in settings.items()) + f" {quoted(argv)}"
    text = RECIPE.readme(machine, command) + "\n\n".join(path.read_text() for path in licences)
    RECIPE.finish(work / PROGRAM, made, text)
