"""doctor on the lab, from the laptop and on the site; and an image that lost files, which it names and push mends."""

import json
import re
import runpy
from pathlib import Path

from tests.integration.conftest import WORKSPACE, Site

RUNGS = ["kernel", "python", "runtime", "image", "scheduler", "one node", "two nodes", "fabric", "horovod"]


def test_a_healthy_site_from_the_laptop(site: Site, tmp_path: Path) -> None:
    before = site.alice(f"ls {WORKSPACE}/jobs 2>/dev/null | sort")
    report = tmp_path / "report.txt"
    found = json.loads(site.cli("doctor", *site.options, "hello-mpi", "--json", "--report", report).stdout)
    assert (found["schema"], found["healthy"], found["exit_code"]) == ("deployer.doctor", True, 0)
    steps = {rung["name"]: rung for rung in found["rungs"]}
    assert list(steps) == RUNGS
    assert {name for name in steps if steps[name]["state"] != "ok"} == {"horovod"}
    assert "sees its own root" in steps["image"]["saw"]
    assert "on cn1, cn2: Intel(R) MPI Library 2021.15" in steps["two nodes"]["saw"]
    assert "the site's own; Allreduce" in steps["two nodes"]["saw"]
    assert steps["fabric"]["saw"].startswith("tcp, as the plan asks")
    assert site.alice(f"ls {WORKSPACE}/jobs 2>/dev/null | sort") == before  # nothing of jobs that went well is left
    written = report.read_text()
    assert not re.search(r"\bcn\d|alice|hello|\blab\b|login\d|\d+\.\d+\.\d+\.\d+|/home/[^f]|" + WORKSPACE, written)
    assert "2 ranks on host-" in written
    record = json.loads("{" + written.partition("\n{")[2])
    assert record["proofs"][-1].startswith("2 of 2 ranks used the site's Intel MPI 2021.15")
    assert record["plan"]["check"]["verdict"] in ("RUN", "UNKNOWN")
    assert record["versions"]["batch"].startswith("slurm ")
    runpy.run_path("scripts/site_row.py")["row"](record)


def test_an_image_purged_by_age(site: Site, bundle: Path) -> None:
    """Sites remove what nobody read for weeks; what is left of an image still looks like one."""
    listed = json.loads(site.tool("list", "--json"))["images"]
    image = next(each["folder"] for each in listed if each["name"] == "hello-mpi")
    site.alice(f"find {image}/rootfs/etc {image}/app -type f -delete")
    try:
        for words in (("run", "hello-mpi", "--plan", "lab"), ("doctor", "hello-mpi", "--plan", "lab")):
            said = site.tool(*words, code=4)
            assert "files and folders are gone: app/hello.py, rootfs/etc/" in said
            assert f"hint: `install {WORKSPACE}/bundles/hello-mpi-1.0.0.tar` installs it again" in said
    finally:
        site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config)
    assert "ok       image" in site.tool("doctor", "hello-mpi", "--plan", "lab", "--dry-run")
