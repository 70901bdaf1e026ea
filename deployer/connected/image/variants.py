"""Horovod variants: one wheel per MPI family, compiled outside the image, tested, and cached.

Only the wheel differs between sites, so it is not part of the image. A bundle contains all variants, and a plan selects
the one for the site's MPI. ``recipes/horovod/Dockerfile`` compiles a wheel in the definition's stage with the
framework, and tests it there with two ranks on each MPI of the family. Afterwards, the wheel's linked libraries are
checked here, and it is published with a rename as ``variants/KEY/{horovod-*.whl,variant.json}``.
"""

import hashlib
import io
import json
import logging
import os
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import docker

from deployer.connected.ground import caches, engine
from deployer.connected.image.definition.definition import Definition
from deployer.connected.rootfs import wheels
from deployer.connected.rootfs.entries import InMemory, reader_of
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.contract.elf import dynamic
from deployer.contract.site.plan import MPICH_ABI, OPENMPI, SONAMES
from deployer.system import files

_log = logging.getLogger("deployer.variants")

#: The MPIs of each family for compilation (the first) and tests (all). They are names of pin files in the recipe.
MPIS = {MPICH_ABI: ("mpich-4.2.3",), OPENMPI: ("openmpi-4.1.8", "openmpi-5.0.11")}

_RECIPE = Path(__file__).with_name("recipes") / "horovod"
_SHARED = ("Dockerfile", "cross.sh", "prove.py", "tools.txt", "unpack.py")
_OUT = "/variant/out"
_RECORD = "variant.json"

#: Builds a context and returns the image's id. Arguments: files by name, a name for messages, build arguments.
Build = Callable[[Mapping[str, bytes], str, Mapping[str, str]], str]


class HorovodVariant(NamedTuple):
    """A wheel in the cache.

    Attributes:
        abi: the MPI family.
        wheel: the file.
        sha256: its digest in hexadecimal.
        proofs: the test result per MPI.
        seconds: the duration of compilation and tests.
        cached: whether it was already in the cache.
    """

    abi: str
    wheel: Path
    sha256: str
    proofs: Mapping[str, Any]
    seconds: float
    cached: bool

    def record(self) -> json_records.Record:
        """Return the variant as a JSON object."""
        return {**self._asdict(), "wheel": str(self.wheel)}


def ensure(
    client: docker.DockerClient,
    definition: Definition,
    stage: str,
    build: Build,
    say: Callable[[str], None],
    families: Sequence[str] | None = None,
) -> list[HorovodVariant]:
    """Return the variant for each MPI family of a definition. Make the variants that the cache lacks.

    Args:
        stage: the image id of the definition's stage with the framework.
        build: builds a context.
        say: called with each step.
        families: only these families, and others that are in the cache; None: all.

    Raises:
        UsageError: there is no recipe for this version of Horovod.
        JobFailed: it does not compile, or a test fails.
        Refused: it is linked to libraries that a site may lack.
    """
    if definition.horovod is None or definition.framework is None:
        return []
    pin = f"horovod-{definition.horovod.version}"
    if not (_RECIPE / f"{pin}.txt").is_file():
        known = sorted(path.stem.removeprefix("horovod-") for path in _RECIPE.glob("horovod-*.txt"))
        hint = f"set horovod.version to one of: {', '.join(known)}"
        raise UsageError(f"{definition.name}: there is no recipe for Horovod {definition.horovod.version}", hint)
    found = []
    for abi in definition.families or ():
        contents = _contents([pin, *MPIS[abi]])
        key = variant_key(contents, stage, definition.framework, abi)
        kept = find(key)
        if kept is None and families is not None and abi not in families:
            say(f"horovod: {abi}: not compiled, because no partition of the site needs it")
            continue
        if kept is None:
            say(f"horovod: compile {pin} for {definition.framework} and {abi}, and prove it on {', '.join(MPIS[abi])}")
            began = time.monotonic()
            arguments = {
                "STAGE": stage, "MPIS": " ".join(MPIS[abi]), "SONAME": SONAMES[abi], "HOROVOD": pin,
                "FRAMEWORK": definition.framework, "CROSS": _emulator(client, stage),
            }  # fmt: skip
            image = build(contents, f"Horovod for {abi}", arguments)
            kept = _publish(key, abi, *_wheel_and_proofs(_outputs(client, image), abi), time.monotonic() - began)
        say(f"horovod: {abi}: {kept.wheel.name}, {kept.wheel.stat().st_size / 1e6:.1f} MB")
        found.append(kept)
    return found


def variant_key(contents: Mapping[str, bytes], stage: str, framework: str, abi: str) -> str:
    """Return the key of a variant, a short digest of everything that it depends on.

    Args:
        contents: the recipe and its pins (compiler flags, MPIs, Horovod, build tools).
        stage: the id of the image with the framework, Python, and the compilers' distribution, for one processor.
    """
    recipe = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    return caches.key(recipe, stage, framework, abi)


def find(key: str) -> HorovodVariant | None:
    """Return the published variant of a key, or None if it is missing or damaged."""
    folder = caches.VARIANTS.folder / key
    try:
        record = json.loads((folder / _RECORD).read_bytes())
        wheel = folder / str(record["wheel"])
        if files.sha256_file(str(wheel)) != record["sha256"]:
            return None
        os.utime(folder)
        record = {name: record[name] for name in ("abi", "sha256", "proofs", "seconds")}
        return HorovodVariant(wheel=wheel, cached=True, **record)
    except (OSError, ValueError, KeyError, TypeError, DeployerError) as error:
        _log.debug("no variant %s: %s", key, error)
        return None


def check_wheel(name: str, data: bytes, abi: str) -> None:
    """Check that a wheel's libraries fit the MPI family ``abi``.

    At least one library must need the family's MPI library by its soname. No library may need another MPI library, such
    as MPI's C++ bindings, or list folders that the loader would search before the site's.

    Raises:
        Refused: the wheel does not fit.
        IntegrityError: the wheel contains a broken ELF file.
    """
    with wheels.named(name):
        wheel = wheels.Wheel(io.BytesIO(data), name)
        wheel.validate_record()
        contents = [(record[0], stream.read()) for record, stream, _ in wheel.get_contents()]
    uses = False
    for path, content in contents:
        if not content.startswith(b"\x7fELF"):
            continue
        try:
            elf = dynamic.read(reader_of(InMemory(content)))
        except dynamic.BadElf as error:
            raise IntegrityError(f"{name}: {path} is not a complete ELF file: {error}") from error
        if elf is None:
            continue  # an object file, which no loader reads
        mpi = {library for library in elf.needed if library.startswith("libmpi")}
        folders = [folder for folder in elf.rpath + elf.runpath if not folder.startswith("$ORIGIN")]
        uses = uses or SONAMES[abi] in mpi
        wrong = sorted(mpi - {SONAMES[abi]})
        if wrong:
            raise Refused(f"{name}: {path} needs {', '.join(wrong)}, which is not {SONAMES[abi]} of {abi}")
        if folders:
            raise Refused(f"{name}: {path} makes the loader search {', '.join(folders)} before the site's folders")
    if not uses:
        raise Refused(f"{name}: none of its libraries needs {SONAMES[abi]}: it was compiled without MPI")


# ------------------------------------------------------------------------------------------------ internal


def _contents(pins: Sequence[str]) -> dict[str, bytes]:
    """Return the build context: the recipe and the given pin files."""
    context = {name: (_RECIPE / name).read_bytes() for name in _SHARED}
    return {**context, **{f"pins/{pin}.txt": (_RECIPE / f"{pin}.txt").read_bytes() for pin in pins}}


def _emulator(client: docker.DockerClient, image: str) -> str:
    """Return Debian's name of the engine's processor if it emulates the image's; else an empty text."""
    own = engine.architecture(client)
    return "" if own == engine.image_config(client, image)["Architecture"] else own


def _outputs(client: docker.DockerClient, image: str) -> dict[str, bytes]:
    """Return the recipe's output files from its image, by name."""
    outputs = {}
    unstarted = engine.container(client, image, ["/never-run"])
    with engine.errors_named(client, "copy the variant of Horovod"), unstarted as container:
        chunks, _ = client.api.get_archive(container, _OUT)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                if stream is not None:
                    outputs[os.path.basename(member.name)] = stream.read()
    return outputs


def _wheel_and_proofs(outputs: Mapping[str, bytes], abi: str) -> tuple[tuple[str, bytes], dict[str, Any]]:
    missing = [mpi for mpi in MPIS[abi] if f"{mpi}.json" not in outputs]
    if missing:
        raise IntegrityError(f"Horovod for {abi} was not proven on {', '.join(missing)}")
    made = [(name, data) for name, data in outputs.items() if name.endswith(".whl")]
    if len(made) != 1:
        raise IntegrityError(f"the recipe made {len(made)} wheels of Horovod instead of one")
    return made[0], {mpi: json.loads(outputs[f"{mpi}.json"]) for mpi in MPIS[abi]}


def _publish(key: str, abi: str, wheel: tuple[str, bytes], proofs: Mapping[str, Any], seconds: float) -> HorovodVariant:
    name, data = wheel
    check_wheel(name, data, abi)
    folder = caches.VARIANTS.folder / key
    digest = hashlib.sha256(data).hexdigest()
    variant = HorovodVariant(abi, folder / name, digest, proofs, seconds=round(seconds, 1), cached=False)
    record = {**variant.record(), "wheel": name}
    del record["cached"]
    caches.VARIANTS.trim()
    with caches.VARIANTS.new_entry(key) as new:
        files.write_text(str(new / _RECORD), json_records.pretty(record))
        files.write_bytes(str(new / name), data)
        files.remove_tree(str(folder))  # an existing variant is damaged, because `find` did not return it
    return variant
