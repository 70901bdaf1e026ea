"""resolve: compute pins from requirements with uv for an image's Python (docs/adr/0010).

The packages of the image are kept. Each is represented by a wheel with only a name and a version, and no other release
of it is allowed. So the wheelhouse never duplicates a package of the image, and the resolver explains conflicts.
"""

import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import tomli
import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deployer.connected.image.wheelhouse import project
from deployer.connected.image.wheelhouse.indexes import Indexes
from deployer.connected.image.wheelhouse.lock import Lock, Pin, requirement_files, requirement_lines
from deployer.connected.image.wheelhouse.target import Target
from deployer.contract.base.errors import TransferError, UsageError
from deployer.system import process

_TIMEOUT = 600
#: The glibc versions that uv's platforms support. Other versions are rounded down, which is safe.
_GLIBC = (*range(31, 41), 28, 17)
#: Errors of uv if it cannot reach the index.
_NO_NETWORK = re.compile(
    r"Request failed|Failed to fetch|error sending request|dns error|tcp connect|invalid peer certificate",
    re.IGNORECASE,
)


def resolve(requirements: Path, digest: str, target: Target, sources: Indexes, kept: Sequence[Pin] = ()) -> Lock:
    """Return the lock of a requirements file.

    Args:
        digest: the digest of the requirements.
        kept: pins to keep if possible.

    Raises:
        UsageError: the resolver found no solution. The message has its reason.
        TransferError: no index responds.
    """
    project.check_python(requirements, target)
    pins, of_image = _pins_of(_compiled(requirements, target, sources, kept), target, _hashes(requirements))
    return Lock(target._replace(packages={}), digest, pins, of_image)


def _compiled(requirements: Path, target: Target, sources: Indexes, kept: Sequence[Pin]) -> str:
    """Return the pylock.toml written by uv. Raises UsageError, TransferError."""
    with tempfile.TemporaryDirectory(prefix="deployer-resolve-") as folder:
        output = Path(folder) / "pylock.toml"
        if kept:  # a minimal pylock.toml with the releases that uv should prefer
            packages = [f'[[packages]]\nname = "{pin.name}"\nversion = "{pin.version}"\n' for pin in kept]
            output.write_text("\n".join(['lock-version = "1.0"\ncreated-by = "deployer"\n', *packages]))
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(_stand_ins(Path(folder), target.packages)))
        asked = Path(requirements.name)
        if project.own_files(requirements):
            (asked := Path(folder) / "requirements.txt").write_text(project.exported(requirements))
        argv = [
            uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-config", "--no-header", "--format=pylock.toml",
            "--only-binary=:all:", "--no-python-downloads", f"--python={sys.executable}",
            f"--python-version={target.python[0]}.{target.python[1]}", f"--python-platform={platform(target)}",
            str(asked), f"--constraint={constraints}", f"--output-file={output}", *sources.uv_options,
        ]  # fmt: skip
        environment = process.base_environment("XDG_CACHE_HOME")
        environment |= {"UV_PYTHON_DOWNLOADS": "never", **sources.uv_environment}
        done = process.run(argv, _TIMEOUT, environment, cwd=str(requirements.parent), check=False)
        if done.returncode != 0:
            raise _unsolved(requirements, target, done.stderr)
        return output.read_text()


def platform(target: Target) -> str:
    """Return uv's name for a platform. Raises UsageError if its glibc is too old for uv."""
    known = [minor for minor in _GLIBC if minor <= target.glibc[1]]
    if target.glibc[0] != 2 or not known:
        raise UsageError(f"wheels for glibc {'.'.join(map(str, target.glibc))} cannot be resolved", "use a newer base")
    return f"{target.machine}-manylinux_2_{max(known)}"


def _hashes(requirements: Path) -> dict[str, set[str]]:
    """Return the SHA-256 digests in requirements, by the name of the package. uv ignores them."""
    found: dict[str, set[str]] = {}
    texts = (
        [project.exported(requirements)]
        if project.own_files(requirements)
        else requirement_files(requirements).values()
    )
    for _, line in (each for text in texts for each in requirement_lines(text)):
        if hashes := re.findall(r"--hash=sha256:([0-9a-f]{64})", line):
            found.setdefault(canonicalize_name(Requirement(line.partition(" --hash=")[0]).name), set()).update(hashes)
    return found


def _pins_of(text: str, target: Target, allowed: Mapping[str, set[str]]) -> tuple[tuple[Pin, ...], dict[str, str]]:
    """Return the pins of a pylock.toml, and the image's packages that they depend on.

    Args:
        allowed: the digests of the wheels that may be used, by package; any, if it is not listed.

    Raises:
        UsageError: a package has no wheel for the target.
    """
    pins, of_image = [], {}
    for package in tomli.loads(text).get("packages", []):
        name = canonicalize_name(package["name"])
        if name in target.packages:
            of_image[str(name)] = target.packages[name]
            continue
        every = {_file_name(wheel): str(wheel["hashes"]["sha256"]) for wheel in package.get("wheels", [])}
        wheels = {file: digest for file, digest in every.items() if digest in allowed.get(name, {digest})}
        if every and not wheels:
            raise UsageError(f"no wheel of {name} {package.get('version', '')} has a digest that the requirements list")
        best = target.best(list(wheels))
        if best is None:
            raise UsageError(f"{name} {package.get('version', '')} has no wheel for {target}", _build_it(str(name)))
        pins.append(Pin(str(name), str(package["version"]), wheels[best], best))
    return tuple(pins), of_image


def _file_name(wheel: Mapping[str, Any]) -> str:
    return unquote(str(wheel.get("name") or urlsplit(str(wheel.get("url") or wheel["path"])).path)).rpartition("/")[2]


def _stand_ins(folder: Path, packages: Mapping[str, str]) -> Iterable[str]:
    """Write an empty wheel for each package of the image, and yield a constraint line for each."""
    for name, version in sorted(packages.items()):
        plain = str(Version(version))
        underscored = name.replace("-", "_")
        path = folder / f"{underscored}-{plain}-py3-none-any.whl"
        info = f"{underscored}-{plain}.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {plain}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        yield f"{name} @ {path.as_uri()}\n"


# ------------------------------------------------------------------------------------------------ errors of uv


def _unsolved(requirements: Path, target: Target, output: str) -> UsageError | TransferError:
    """Return the error that matches uv's stderr."""
    reason = explanation(output)
    if _NO_NETWORK.search(output) and "No solution" not in output:
        hint = "index and certificates come from pip's own settings: see `pip config list`, or give --ca-bundle"
        return TransferError(f"cannot resolve {requirements}: {reason}", hint)
    hints = [
        f"the image has its own {name} {version}"
        for name, version in sorted(target.packages.items())
        if re.search(rf"\b{re.escape(name)}(==|[<>@! ])", reason)
    ]
    blocked = re.search(r"([\w.-]+)==\S+ has no (?:usable )?wheels|Wheels are required for `([\w.-]+)`", output)
    if "platform tag" in output or "ABI tag" in output or "Python version tag" in output:
        hints.append(f"the image has {target}: require a release with wheels for that, or use another base")
    elif blocked:
        hints.append(_build_it(blocked[1] or blocked[2]))
    return UsageError(f"{requirements} has no solution: {reason}", "; ".join(hints) or "change the requirements")


def explanation(output: str) -> str:
    """Return uv's reason as one line, without decoration."""
    text = " ".join(
        re.sub(r"^(error|hint|  cause): ?", "", line).strip() for line in output.splitlines() if line.strip()
    )
    return re.sub(r"^No solution found when resolving dependencies:? ?", "", text) or "uv gave no reason"


def _build_it(name: str) -> str:
    instead = "build it in the Dockerfile, or name the folder of its wheel with --find-links"
    return f"{name} is available only as source: {instead}"
