"""Data that several bundles use, as a bundle of their own, from the laptop to a job on two nodes."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import ROOT, Site

READ = """\
import json, os
from mpi4py import MPI

def content(path):
    with open("/deployer/data/" + path) as stream:
        return stream.read()

def refused(path, mode):
    try:
        open("/deployer/data/" + path, mode).close()
    except OSError:
        return True
    return False

odd = "shared/sub/odd name"
found = [content(odd), content("own/x"), refused(odd, "w"), sorted(os.listdir("/deployer/data"))]
every = MPI.COMM_WORLD.gather(found)
if every:
    with open(os.environ["DEPLOYER_RESULT"], "w") as stream:
        json.dump(every, stream)
"""


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two definitions: data alone, and hello-mpi's image with a job that reads them."""
    folder = tmp_path_factory.mktemp("definitions")
    (folder / "shared-data" / "files" / "sub").mkdir(parents=True)
    (folder / "shared-data" / "files" / "sub" / "odd name").write_text("shared")
    record = {"name": "shared-data", "version": "1.0", "data": {"shared": {"folder": "files"}}}
    (folder / "shared-data" / "bundle.yaml").write_text(yaml.safe_dump(record))
    reader = folder / "reader"
    shutil.copytree(ROOT / "bundles" / "hello-mpi", reader)
    shutil.rmtree(reader / "app")
    for name in ("app", "own"):
        (reader / name).mkdir()
    (reader / "own" / "x").write_text("own")
    (reader / "app" / "read.py").write_text(READ)
    record = yaml.safe_load((reader / "bundle.yaml").read_text())
    record |= {"name": "reader", "data": {"shared": {"bundle": "shared-data"}, "own": {"folder": "own"}}}
    record["jobs"] = {"read": {"command": ["python3", "-m", "mpi4py", "/deployer/app/read.py"], "nodes": 2}}
    (reader / "bundle.yaml").write_text(yaml.safe_dump(record))
    return folder


def test_a_job_reads_the_data_of_another_bundle(site: Site, definitions: Path, tmp_path: Path) -> None:
    def push(name: str) -> dict[str, object]:
        site.cli("pack", definitions / name, *(["--site", "lab"] if name == "reader" else []), "-o", tmp_path / name)
        options = ["--ssh-config", site.lab.ssh_config, "--json"]
        pushed: dict[str, object] = json.loads(site.cli("push", tmp_path / name, "lab", *options).stdout)
        return pushed

    run = ["run", *site.options, "reader", "--wait"]
    site.cli("build", definitions / "reader")
    assert any("shared-data" in str(warning) for warning in push("reader")["warnings"])  # type: ignore[attr-defined]
    refused = site.cli(*run, code=3)
    assert "reader needs the data shared of the bundle shared-data, which is not installed" in refused.stderr
    assert "hint: push or install shared-data first" in refused.stderr

    push("shared-data")
    site.cli(*run)
    assert site.result()["payload"] == [["shared", "own", True, ["own", "shared"]]] * 2
    said = site.tool("exec", "reader", "--", "cat", "'/deployer/data/shared/sub/odd name'", "/deployer/data/own/x")
    assert said == "sharedown"
    assert "nothing can run in it" in site.tool("exec", "shared-data", "--", "true", code=2)

    assert "reader:1.0.0 needs the data of shared-data:1.0" in site.tool("remove", "shared-data", code=3)
    (definitions / "reader" / "app" / "read.py").write_text(READ.replace("gather", "allgather"))
    assert int(str(push("reader")["sent"])) < 100_000
    site.cli(*run)
    assert site.result()["payload"] == [["shared", "own", True, ["own", "shared"]]] * 2
    site.tool("remove", "reader", "--force")
    site.tool("remove", "reader")
    site.tool("remove", "shared-data")
    names = {image["name"] for image in json.loads(site.tool("list", "--json"))["images"]}
    assert names.isdisjoint({"reader", "shared-data"})
