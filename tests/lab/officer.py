"""What the officer's questions cost, and how right the answers are: figures for docs/evidence/officer.md.

.venv/bin/python -m tests.lab.officer secrets FOLDER...   # alarms in unpacked software, also in files of packages
.venv/bin/python -m tests.lab.officer sbom ROOT SYFT      # our packages of a root folder, beside syft's
.venv/bin/python -m tests.lab.officer cost ROOT           # processor time of pack, with and without, in turn

The sets of software: ``pip download`` or apt, with dependencies, unpacked by zipfile and dpkg-deb. PyPI: airflow;
ansible; awscli, boto3; azure-cli; celery, django; dask; datasets, torch 2.13.0, transformers; docker, fabric, pytest;
flax, jax; gensim, nltk, spacy; google-cloud-storage; jupyterlab; anthropic, langchain, openai; matplotlib, pandas,
scikit-learn; mlflow; mkdocs-material, sphinx; ray; scrapy; tensorflow; comet-ml, wandb. Debian 12: golang; maven,
openjdk-17; nodejs, npm; then, not seen before: apache2, mariadb, php; gnuradio; nginx, postgresql; octave;
openmpi-bin; r-base-core; rails; texlive-base.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packageurl import PackageURL

from deployer.connected.linker.families import files_of
from deployer.connected.rootfs import folder, secrets
from deployer.connected.rootfs.merge import Rootfs

_MAIN = "import sys; from deployer.cli.laptop.main import main; sys.exit(main())"
_LAYER = "from deployer.connected.bundle.layer import layer_source as l; "
#: What a pack leaves out: statements before it.
_WAYS = {
    "pack": "",
    "without the search for secrets": _LAYER + "l.in_tree = lambda tree: []; ",
    "without modules and crates": "from deployer.connected.bundle.about import programs as p; "
    "p.components = lambda content: (); ",
    "without all packages": "from deployer.connected.bundle.about import packages as p; "
    "p.of_tree = lambda tree: p.PackageInventory(); ",
}
_ROUNDS = 5


def alarms(tops: list[str]) -> None:
    """Print each alarm, and the files, bytes and seconds of each folder."""
    for top in tops:
        root = Rootfs()
        root.apply(folder.entries_of(top), whiteouts=False)
        files = [(path.lstrip("/"), data) for path, data in files_of(root) if not path.endswith(".pyc")]
        started = time.process_time()
        found = list(secrets.in_files(files))
        seconds, size = time.process_time() - started, sum(data.size for _, data in files) / 1e6
        print(f"| {Path(top).name} | {len(files):,} | {size:,.0f} | {seconds:.1f} | {len(found)} |")
        for one in found:
            print(f"    {one.path}:{one.line}: {one.what}")


def _pack(before: str, top: str, output: str) -> float:
    """Pack a root folder, and return the processor's seconds."""
    words = ["pack", "--rootfs", top, "--name", "x", "--version", "1", "-o", output, "--no-cache", "--quiet"]
    argv = [sys.executable, "-c", before + _MAIN, *words, "--accept", "secrets.file"]
    started = os.times()
    subprocess.run(argv, check=True, capture_output=True)
    now = os.times()
    return now.children_user + now.children_system - started.children_user - started.children_system


def cost(top: str) -> None:
    """Print the median processor time of each way to pack, and of its ratio to a whole pack, round by round."""
    with tempfile.TemporaryDirectory() as work:
        rounds = [{name: _pack(code, top, f"{work}/x.tar") for name, code in _WAYS.items()} for _ in range(_ROUNDS)]
    for name in _WAYS:
        ratios = sorted(each["pack"] / each[name] for each in rounds)
        seconds = statistics.median(each[name] for each in rounds)
        print(f"| {name} | {seconds:.2f} s | {statistics.median(ratios):.3f} ({ratios[1]:.3f} to {ratios[-2]:.3f}) |")


def _purls(document: Any) -> Iterator[tuple[str, str, str]]:
    for item in document["components"]:
        if item.get("purl"):
            purl = PackageURL.from_string(item["purl"])
            name = "/".join(filter(None, (purl.namespace if purl.type == "golang" else "", purl.name, purl.subpath)))
            yield purl.type, name, (purl.version or "").removeprefix("go" if name == "stdlib" else "")


def compare(top: str, syft: str) -> None:
    """Print how many packages of each kind both list, and those that only one lists."""
    with tempfile.TemporaryDirectory() as work:
        _pack("", top, f"{work}/x.tar")
        argv = [sys.executable, "-c", _MAIN, "inspect", "--sbom", f"{work}/x.tar"]
        ours = {*_purls(json.loads(subprocess.run(argv, check=True, capture_output=True).stdout))}
    argv = [syft, "scan", f"dir:{top}", "-o", "cyclonedx-json", "-q"]
    theirs = {*_purls(json.loads(subprocess.run(argv, check=True, capture_output=True).stdout))}
    for kind in sorted({one[0] for one in ours | theirs}):
        mine, other = ({one for one in each if one[0] == kind} for each in (ours, theirs))
        print(f"| {kind} | {len(mine & other)} | {len(mine - other)} | {len(other - mine)} |")
        for one in sorted(mine ^ other):
            print(f"    {'ours' if one in mine else 'syft'}: {one[1]} {one[2]}")


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    {"secrets": lambda: alarms(words), "sbom": lambda: compare(*words), "cost": lambda: cost(*words)}[verb]()
