"""What a real Python imports is found, in the packages of this environment."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from deployer.connected.linker.job_filesystem import JobFilesystem
from deployer.connected.linker.package_imports import Collector
from deployer.connected.linker.process import is_of
from deployer.connected.linker.starts.python import python_packages
from deployer.connected.linker.starts.python.python_packages import Around, Runs
from tests.host_files import HostFiles

_PRINT = "import sys, json; print(json.dumps([getattr(m, '__file__', None) for m in sys.modules.values()]))"


@pytest.mark.thorough
def test_all_that_is_imported_is_found() -> None:
    site = Path(sysconfig.get_paths()["purelib"]).resolve()
    collected = Collector()
    for path in site.rglob("*.py"):
        name, slash, rest = str(path.relative_to(site)).partition("/")
        collected.add(str(site), name, slash + rest, path.read_bytes)
    data, python = collected.packages(), str(Path(sys.executable).with_name("python"))
    for name in ("pydantic", "docker", "hypothesis", "cyclonedx", "requests", "jsonschema"):
        done = subprocess.run([python, "-c", f"import {name}; {_PRINT}"], check=True, capture_output=True, text=True)
        files = [os.path.realpath(file) for file in json.loads(done.stdout) if file]
        runs = Runs(python, os.path.realpath(python), f"-c import {name}", "/nowhere", [])
        found = python_packages.find(runs, JobFilesystem(HostFiles("/")), Around(data))
        below = [file for file in files if file.startswith(f"{site}/")]
        assert f"{site}/{name}" in found.imported
        assert found.unclear or [file for file in below if not is_of(file, found.imported | found.possible)] == []
        assert {path for path in found.imported if not any(file.startswith(path) for file in below)} == set()
