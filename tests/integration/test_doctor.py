"""doctor on the lab, from the laptop and on the site; and an image that lost files, which it names and push mends."""

import json
from pathlib import Path

from tests.integration.conftest import WORKSPACE, Site

RUNGS = ["kernel", "python", "runtime", "image", "scheduler", "one node", "two nodes", "fabric", "horovod"]


def test_a_healthy_site_from_the_laptop(site: Site) -> None:
    before = site.alice(f"ls {WORKSPACE}/jobs 2>/dev/null | sort")
    found = json.loads(site.cli("doctor", *site.options, "hello-mpi", "--json").stdout)
    assert (found["schema"], found["healthy"], found["exit_code"]) == ("deployer.doctor", True, 0)
    steps = {rung["name"]: rung for rung in found["rungs"]}
    assert list(steps) == RUNGS
    assert {name for name in steps if steps[name]["state"] != "ok"} == {"horovod"}
    assert "sees its own root" in steps["image"]["saw"]
    assert "on cn1, cn2: Intel(R) MPI Library 2021.15" in steps["two nodes"]["saw"]
    assert "MB/s between the nodes" in steps["two nodes"]["saw"]
    assert steps["fabric"]["saw"].startswith("tcp, as the plan asks")
    assert "; without a container: " in steps["fabric"]["saw"]
    assert site.alice(f"ls {WORKSPACE}/jobs 2>/dev/null | sort") == before  # nothing of jobs that went well is left


def test_a_job_stops_on_a_network_that_is_slower_than_doctor_measured(site: Site) -> None:
    site.tool("doctor", "hello-mpi", "--plan", "lab")
    kept = json.loads(site.alice(f"cat {WORKSPACE}/network/batch.json"))
    expected = kept["partitions"]["batch"]["network"]["expected"]["mpi"]
    assert expected["bandwidth_mb_s"] > 50
    site.alice("""echo '{"name": "lab"}' >a.json""")
    site.tool("capture", "--merge", "~/a.json", f"{WORKSPACE}/network/batch.json", "-o", "~/b.json")
    assert json.loads(site.alice("cat b.json; rm a.json b.json"))["partitions"] == kept["partitions"]
    site.lab.fault("link-slow", "cn2", "20mbit")
    try:
        result = site.run("--nodes", "2", code=1)
        assert (result["exit_code"], [item["code"] for item in result["findings"]]) == (3, ["network.slow"])
        seconds = {step["name"]: step["seconds"] for step in result["steps"]}
        assert seconds["probe"] - seconds["hosts"] < 10
        shown = "{bandwidth_mb_s:g} MB/s and {latency_us:g} us".format(**expected)
        assert f"less than 0.5 of the expected {shown}" in result["findings"][0]["message"]
        result = site.run("--nodes", "2", "--accept", "network.slow")
        assert [(item["code"], item["severity"]) for item in result["findings"]] == [("network.slow", "warning")]
        assert result["network"]["bandwidth_mb_s"] < 5
    finally:
        site.lab.fault("link-up", "cn2")


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
