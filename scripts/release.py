"""scripts/release: the files of a release, made from the tree of a commit. See scripts/release."""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".deployer/cache/release"
NAME = "deployer-hpc"
#: The namespace of the signature, for `ssh-keygen -Y verify -n`.
NAMESPACE = "deployer-release"
#: Begins a command line without a network.
ALONE = ("unshare", "--map-root-user", "--net")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


class Platform(NamedTuple):
    """A platform of the offline files.

    Attributes:
        tags: the platform tags of its wheels, the best first.
        system, machine: as Python's markers have them.
    """

    tags: tuple[str, ...]
    system: str
    machine: str


def _linux(machine: str) -> Platform:
    newer = [f"manylinux_2_{minor}_{machine}" for minor in (28, 27, 24, 17)]
    older = ["manylinux2014", *(["manylinux2010", "manylinux1"] if machine == "x86_64" else [])]
    return Platform((*newer, *(f"{name}_{machine}" for name in older), f"linux_{machine}"), "linux", machine)


PLATFORMS = {
    "linux-x86_64": _linux("x86_64"),
    "linux-aarch64": _linux("aarch64"),
    "macos-arm64": Platform(("macosx_11_0_arm64", "macosx_11_0_universal2"), "darwin", "arm64"),
    "macos-x86_64": Platform(("macosx_11_0_x86_64", "macosx_11_0_universal2"), "darwin", "x86_64"),
}


def main() -> int:
    """Write a release, or check how one is written."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("tag", nargs="?", help="the tag, for instance v0.2.0")
    parser.add_argument("--key", type=Path, help="the OpenSSH key that signs SHA256SUMS")
    parser.add_argument("--check", action="store_true", help="write the current commit's twice and compare them")
    args = parser.parse_args()
    if args.check:
        return _check()
    if not args.tag or not args.key:
        parser.error("TAG and --key KEY are needed")
    _check_tag(args.tag)
    if not args.key.is_file():
        sys.exit(f"deployer: error: there is no key {args.key}")
    output = ROOT / "dist" / args.tag
    write(args.tag, output, tuple(PLATFORMS), PYTHONS)
    sign(output, args.key)
    print(f"wrote {output}")
    return 0


def _check_tag(tag: str) -> None:
    """End with an error if ``tag`` is not a tag of a version with its own section in the changelog."""
    if not _git("tag", "--list", tag):
        sys.exit(f"deployer: error: there is no tag {tag}\nhint: git tag -s {tag}")
    version = re.search(r'__version__ = "([^"]+)"', _git("show", f"{tag}:deployer/__init__.py"))[1]  # type: ignore[index]
    if tag != f"v{version}":
        sys.exit(f"deployer: error: the tag {tag} has the version {version}")
    if f"\n## [{version}]" not in _git("show", f"{tag}:CHANGELOG.md"):
        sys.exit(f"deployer: error: CHANGELOG.md of {tag} has no section [{version}]")


def write(commit: str, output: Path, platforms: Sequence[str], pythons: Sequence[str]) -> None:
    """Write the files of a release, without a signature, into the new folder ``output``.

    Args:
        commit: a tag, or any other commit.
    """
    identity = _git("rev-parse", f"{commit}^{{commit}}")
    made = int(_git("log", "-1", "--format=%ct", identity))
    with tempfile.TemporaryDirectory() as work:
        tree, files = Path(work) / "tree", Path(work) / "files"
        files.mkdir()
        archive = subprocess.run(["git", "archive", identity], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(tree, filter="data")
        version = re.search(r'__version__ = "([^"]+)"', (tree / "deployer/__init__.py").read_text())[1]  # type: ignore[index]
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(made), "PYTHONPATH": str(tree), "TZ": "UTC"}
        _run([sys.executable, "-m", "hatchling", "build", "--directory", str(files)], tree, env)
        start = "import sys; from deployer.cli.laptop.main import main; sys.exit(main())"
        _run([sys.executable, "-c", start, "pyz", "--quiet", "-o", str(files / "deployer.pyz")], tree, env)
        (wheel,) = files.glob("*.whl")
        for platform in platforms:
            _offline(files / f"{NAME}-{version}-{platform}.tar", wheel, tree, PLATFORMS[platform], pythons, made)
        (files / "RELEASE_NOTES.md").write_text(_notes((tree / "CHANGELOG.md").read_text(), version))
        (files / "sbom.cdx.json").write_text(_json(_sbom(tree, version)))
        subjects = _digests(files)
        (files / "provenance.json").write_text(_json(_provenance(subjects, commit, identity, tree)))
        sums = "".join(f"{digest}  {name}\n" for name, digest in _digests(files).items())
        (files / "SHA256SUMS").write_text(sums)
        if output.exists():
            shutil.rmtree(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(files, output)


def sign(folder: Path, key: Path) -> None:
    """Sign SHA256SUMS with an OpenSSH key."""
    (folder / "SHA256SUMS.sig").unlink(missing_ok=True)
    _run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, "SHA256SUMS"], folder)


# ----------------------------------------------------------------------------------------------- the offline files


def _offline(path: Path, wheel: Path, tree: Path, platform: Platform, pythons: Sequence[str], made: int) -> None:
    """Write the offline file of a platform: the wheels of all Pythons, their hashes, a script that installs them."""
    pins = _pins(tree / "requirements/connected.txt")
    folder = _wheels(pins, platform, pythons)
    names = sorted(item.name for item in folder.iterdir())
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    lines = [line for pin in pins for line in _lines_of(pin, hashes)]
    own = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lines.append(f"{NAME}=={wheel.name.split('-')[1]} --hash=sha256:{own}")
    top = path.name.removesuffix(".tar")
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        _add(tar, f"{top}/install", (tree / "scripts/offline-install").read_bytes(), made, 0o755)
        _add(tar, f"{top}/requirements.txt", "".join(f"{line}\n" for line in lines).encode(), made)
        for source in sorted([*(folder / name for name in names), wheel], key=lambda item: item.name):
            _add(tar, f"{top}/wheels/{source.name}", source.read_bytes(), made)


def _add(tar: tarfile.TarFile, name: str, data: bytes, made: int, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(data), made, mode
    tar.addfile(member, io.BytesIO(data))


def _pins(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return each pin of a requirements file, with its marker, and its hashes."""
    text = path.read_text().replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        if line[:1].isalnum():
            requirement, *hashes = line.split(" --hash=")
            found.append((requirement.strip(), tuple(digest.split()[0] for digest in hashes)))
    return found


def _lines_of(pin: tuple[str, tuple[str, ...]], hashes: dict[str, str]) -> Iterator[str]:
    """Yield the line of a pin with the hashes of the wheels that are there."""
    there = [digest for digest in pin[1] if digest.removeprefix("sha256:") in hashes.values()]
    if there:
        yield " ".join([pin[0], *(f"--hash={digest}" for digest in there)])


def _wheels(pins: Sequence[tuple[str, tuple[str, ...]]], platform: Platform, pythons: Sequence[str]) -> Path:
    """Return the folder with the wheels of a platform; they are downloaded if they are not there."""
    folder = CACHE / hashlib.sha256(repr((pins, platform, pythons)).encode()).hexdigest()[:16]
    if not folder.exists():
        _download(folder, pins, platform, pythons)
    return folder


def _download(
    folder: Path, pins: Sequence[tuple[str, tuple[str, ...]]], platform: Platform, pythons: Sequence[str]
) -> None:
    """Fetch the wheels of a platform, by their hashes. pip judges markers by its own Python, so we judge them here."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        for python in pythons:
            wanted = [
                " ".join(
                    [
                        Requirement(text).name + "==" + text.partition("==")[2].split()[0],
                        *(f"--hash={h}" for h in hashes),
                    ]
                )
                for text, hashes in pins
                if _applies(text, platform, python)
            ]
            (Path(work) / "wanted.txt").write_text("\n".join(wanted) + "\n")
            argv = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
            argv += ["--require-hashes", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
            argv += [word for tag in platform.tags for word in ("--platform", tag)]
            where = f"{platform.system} on {platform.machine}, Python {python}"
            problem = f"pip found no wheel of a dependency for {where}; each needs one: pin another release of it"
            _run([*argv, "--dest", f"{work}/wheels", "-r", f"{work}/wanted.txt"], ROOT, problem=problem)
        (Path(work) / "wheels").rename(folder)


def _applies(text: str, platform: Platform, python: str) -> bool:
    marker = Requirement(text).marker
    values = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform.system,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[platform.system],
        "platform_machine": platform.machine,
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return marker is None or marker.evaluate(values)


# ------------------------------------------------------------------------------------------------------- documents


def _notes(changelog: str, version: str) -> str:
    """Return the changelog's section of a version, or of what is not released yet."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    own = [text for text in sections if text.startswith(f"[{version}]")]
    return f"# deployer {version}\n\n" + (own or sections)[0].partition("\n")[2].strip() + "\n"


def _sbom(tree: Path, version: str) -> dict[str, Any]:
    """Return the packages that the tool needs, as CycloneDX 1.6."""
    components = []
    for text, hashes in _pins(tree / "requirements/connected.txt"):
        requirement = Requirement(text)
        (pin,) = requirement.specifier
        component: dict[str, Any] = {
            "type": "library",
            "name": requirement.name,
            "version": pin.version,
            "purl": f"pkg:pypi/{requirement.name.lower()}@{pin.version}",
            "bom-ref": f"{requirement.name}@{pin.version}",
            "properties": [{"name": "pypi:sha256", "value": digest.removeprefix("sha256:")} for digest in hashes],
        }
        if requirement.marker:
            component["properties"].append({"name": "pypi:marker", "value": str(requirement.marker)})
        components.append(component)
    own = {
        "type": "application",
        "name": NAME,
        "version": version,
        "purl": f"pkg:pypi/{NAME}@{version}",
        "bom-ref": NAME,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, _json(components))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": serial.urn,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [{"ref": NAME, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _provenance(subjects: dict[str, str], commit: str, identity: str, tree: Path) -> dict[str, Any]:
    """Return an in-toto statement with SLSA's provenance. Nobody but the person who signs vouches for the builder."""
    lock = hashlib.sha256((tree / "requirements/connected.txt").read_bytes()).hexdigest()
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:deployer-hpc:scripts/release",
                "externalParameters": {"tag": commit},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": identity}},
                    {"name": "requirements/connected.txt", "digest": {"sha256": lock}},
                ],
            },
            "runDetails": {"builder": {"id": "urn:deployer-hpc:a-maintainers-machine"}},
        },
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _digests(folder: Path) -> dict[str, str]:
    return {item.name: hashlib.sha256(item.read_bytes()).hexdigest() for item in sorted(folder.iterdir())}


# ----------------------------------------------------------------------------------------------------- the check


def _check() -> int:
    """Write a release of the current commit in two clones, compare, and install from its offline file.

    The clones differ in folder, umask, locale and time zone, and neither they nor the installation have a network.
    """
    platform, python = f"linux-{os.uname().machine}", f"{sys.version_info[0]}.{sys.version_info[1]}"
    _wheels(_pins(ROOT / "requirements/connected.txt"), PLATFORMS[platform], [python])  # while there is a network
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        places = (("one", "022", "UTC", "C.UTF-8"), ("elsewhere/two", "077", "Asia/Tokyo", "C"))
        for folder, mask, zone, locale in places:
            _run(["git", "clone", "--quiet", "--shared", str(ROOT), str(work / folder)], work)
            (work / folder / ".deployer/cache").mkdir(parents=True)
            (work / folder / ".deployer/cache/release").symlink_to(CACHE)
            code = f"import release; release.write('HEAD', release.ROOT / 'dist', ['{platform}'], ['{python}'])"
            env = {**os.environ, "TZ": zone, "LC_ALL": locale, "PYTHONPATH": str(work / folder / "scripts")}
            _run([*ALONE, "sh", "-c", f'umask {mask}; exec "$@"', "-", sys.executable, "-sc", code], work, env)
        one, two = (work / folder / "dist" for folder, *_ in places)
        different = dict(_digests(one).items() ^ _digests(two).items())
        if different:
            sys.exit(f"deployer: error: two releases of one commit differ: {', '.join(sorted(different))}")
        _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], work)
        sign(one, work / "key")
        _install(one, work / "key", work)
    print("two clones make the same release without a network; its offline file works in an empty place")
    return 0


def _install(folder: Path, key: Path, work: Path) -> None:
    """Do what a person does with the files: check signature and sums, unpack, install, use."""
    (work / "allowed_signers").write_text("release " + key.with_suffix(".pub").read_text())
    (offline,) = folder.glob("*.tar")
    script = """
        set -eu
        cd "$1"
        ssh-keygen -q -Y verify -f "$2/allowed_signers" -I release -n deployer-release -s SHA256SUMS.sig <SHA256SUMS
        sha256sum --quiet --check SHA256SUMS
        tar -xf "$3" -C "$2"
        HOME=$2/home sh "$2"/deployer-hpc-*/install >/dev/null
        cd "$2"
        HOME=$2/home home/.local/bin/deployer --version
        HOME=$2/home home/.local/bin/deployer init job --template none --quiet >/dev/null
        HOME=$2/home home/.local/bin/deployer lint job --quiet >/dev/null
    """
    argv = [*ALONE, "sh", "-c", script, "-", str(folder), str(work), offline.name]
    env = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "LANG": "C.UTF-8"}
    (work / "home").mkdir()
    subprocess.run(argv, check=True, env=env)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _run(argv: Sequence[str], folder: Path, env: dict[str, str] | None = None, problem: str = "") -> None:
    """Run a program, which may ask for a passphrase; end with an error, ``problem``, if it fails."""
    done = subprocess.run(
        argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        sys.exit("deployer: error: " + (problem or f"{' '.join(argv[:4])} failed with exit code {done.returncode}"))


if __name__ == "__main__":
    sys.exit(main())
