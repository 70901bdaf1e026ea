"""A conda channel made by hand, and an environment from it with rattler, which pixi and micromamba's peers use too."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What packages have where the prefix belongs. It is longer than any prefix.
PLACEHOLDER = "/placehold" * 20
#: Makes an environment as `micromamba create` does; rattler solves and installs. Run by a Python that has it.
MICROMAMBA = """\
import asyncio, os, re, sys
import rattler
options = dict(word[2:].split("=", 1) for word in sys.argv[2:] if "=" in word)
text = open(options["file"]).read()
channels = re.findall(r"file:\\S+", text)
wanted = re.findall(r"^  - (?!file:)(.+)$", text, re.MULTILINE)
async def main():
    try:
        records = await rattler.solve(channels, wanted, platforms=[options["platform"], "noarch"])
    except Exception as error:
        sys.exit(f"error    libmamba Could not solve for environment specs: {error}")
    await rattler.install(records, options["prefix"], cache_dir=options["prefix"] + "-cache")
asyncio.run(main())
os._exit(0)  # without the end of the interpreter, at which rattler's threads crashed once
"""


def package(
    channel: Path, name: str, files: Mapping[str, str], depends: Sequence[str] = (), subdir: str = "linux-64"
) -> None:
    """Add a package of version 1.2 with these executable files to a channel; PLACEHOLDER becomes the prefix."""
    folder, file = channel / subdir, f"{name}-1.2-0.tar.bz2"
    folder.mkdir(parents=True, exist_ok=True)
    (channel / "noarch").mkdir(exist_ok=True)
    (channel / "noarch" / "repodata.json").write_text(json.dumps({"info": {"subdir": "noarch"}, "packages": {}}))
    index = {"name": name, "version": "1.2", "build": "0", "build_number": 0, "depends": [*depends], "subdir": subdir}
    paths = []
    with tarfile.open(folder / file, "w:bz2") as archive:

        def add(path: str, data: bytes) -> None:
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))

        for path, text in files.items():
            add(path, text.encode())
            digest = hashlib.sha256(text.encode()).hexdigest()
            entry = {"_path": path, "path_type": "hardlink", "sha256": digest, "size_in_bytes": len(text)}
            if PLACEHOLDER in text:
                entry.update(prefix_placeholder=PLACEHOLDER, file_mode="binary" if "\0" in text else "text")
            paths.append(entry)
        add("info/index.json", json.dumps(index).encode())
        add("info/paths.json", json.dumps({"paths": paths, "paths_version": 1}).encode())
    data = (folder / file).read_bytes()
    record = {**index, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    known = folder / "repodata.json"
    found = json.loads(known.read_text())["packages"] if known.exists() else {}
    known.write_text(json.dumps({"info": {"subdir": subdir}, "packages": {**found, file: record}}))
