"""capture on the lab, on its login node and in a job, as a user; what comes back is a profile of the lab."""

import json
from pathlib import Path

import pytest

from deployer.connected.site_profile import drift
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan
from deployer.contract.rules.findings import NOTE
from tests.integration.conftest import Alice, Cli
from tests.lab import Lab, versions

#: What the programs of another suite say otherwise than the curated profile, which is of Debian 12.
OF_THE_SUITE = ("glibc", ".version")


def test_the_capture_is_a_profile_that_the_curated_one_does_not_contradict(captured: Path, cli: Cli, lab: Lab) -> None:
    cli("profile", "validate", captured)
    found = json.loads(cli("profile", "diff", "lab", captured, "--json").stdout)["differences"]
    there, here = versions.versions(lab), lab.definition().site.root == "/"
    # How many cores a node has is the host's, which the lab deals out. A note is documentation, not a contradiction.
    changed = [each for each in found if each["kind"] == drift.CHANGED and each["severity"] != NOTE]
    other = [each for each in changed if ".node." not in each["place"]]
    assert [each for each in other if here or not each["place"].endswith(OF_THE_SUITE)] == []
    profile = profiles.load(str(captured))
    _, batch = profile.partition("batch")
    curated = profiles.load("lab")
    for name, mpi in curated.mpi.items():
        assert profile.mpi[name].prefix == mpi.prefix
        assert profile.mpi[name].identity is not None
        assert mpi.says is not None
        assert (profile.mpi[name].says or "").startswith(mpi.says)
        assert (profile.mpi[name].module, profile.mpi[name].library_path) == (mpi.module, mpi.library_path)
    assert batch.runtimes["charliecloud"].version == there["Charliecloud"]
    assert (batch.user_namespaces, batch.fuse, batch.glibc) == (True, True, there["glibc"])
    assert batch.node is not None
    assert batch.node.cores is not None
    assert batch.node.cpu is not None
    assert batch.node.cpu.flags
    assert batch.source is not None
    assert batch.source.where == "cn1"


def test_the_facts_are_of_the_whole_closure(captured: Path) -> None:
    profile = profiles.load(str(captured))
    mpi = profile.mpi["intel-2021.15"]
    tree = mpi.files
    assert mpi.links["lib/libmpi.so.12"]
    assert {"lib/libfabric.so.1", "lib/libtcp-fi.so", "lib/libpsmx2-fi.so"} <= set(tree)
    assert "libpsm2.so.2" in tree["lib/libpsmx2-fi.so"].dynamic.needed  # which the lab does not have
    system = profile.partition("batch")[1]
    assert any(path.endswith("/libc.so.6") for path in [*system.files, *system.links])
    assert "MPI_Init" in next(facts for path, facts in tree.items() if path.startswith("lib/libmpi.so.12")).exports


def test_a_few_decisions_over_the_capture_make_a_plan(captured: Path, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        f"format: 1\nextends: {captured}\nworkspace: ~/deployer\npolicy: {{runtimes: [charliecloud]}}\n"
        "partitions:\n  batch: {mpi: intel-2021.15, pmi: pmi2}\n"
    )
    plan = make_plan(profiles.load(str(tmp_path / "own.yaml")), "tiny:1")
    assert plan.mpi is not None
    assert (plan.mpi.library, plan.modules) == ("/opt/intel/mpi/2021.15/lib/libmpi.so.12", ["intel-mpi/2021.15"])
    assert plan.environment["FI_PROVIDER"] == "tcp"  # which the site's module sets


def test_a_capture_leaves_nothing_behind_and_submits_nothing(alice: Alice) -> None:
    look = "find $HOME /tmp /var/tmp /dev/shm -not -path '*/capture*' 2>/dev/null | sort; squeue --noheader"
    before = alice(look)
    alice("eval $tool capture -o again.json")
    assert alice(look) == before


def test_a_redacted_capture_names_nobody_and_is_still_a_profile(alice: Alice, captured: Path, cli: Cli) -> None:
    alice("eval $tool capture --merge site.json --redact --hide /opt/intel -o redacted.json")
    path = captured.with_name("redacted.json")
    text = path.read_text() + path.with_name("redacted.facts.json").read_text()
    assert not [word for word in ("alice", "login1", "cn1", "/opt/intel") if word in text]
    cli("profile", "validate", path)


@pytest.mark.parametrize(("mpi", "pmi"), [("intel-2021.15", "pmi2"), ("openmpi-5.0.11", "pmix")])
def test_check_says_that_it_runs_where_it_was_seen_to_run(
    captured: Path, bundle: Path, cli: Cli, tmp_path: Path, mpi: str, pmi: str
) -> None:
    """hello-mpi runs on two nodes with each MPI of the lab (test_path.py); the verdict comes from the capture alone."""
    decisions = {
        "format": 1,
        "name": "decided",
        "extends": str(captured),
        "workspace": "~/deployer",
        "login": {"host": "login1"},
        "policy": {"runtimes": ["charliecloud"]},
        "partitions": {"batch": {"mpi": mpi, "pmi": pmi}},
    }
    path = tmp_path / "decided.yaml"
    path.write_text(json.dumps(decisions))
    said = json.loads(cli("check", bundle, "--site", path, "--json").stdout)
    # A note: a library of a newer site, which the MPI can do without, needs a newer C++ library than the image's.
    assert (said["verdict"], {each["severity"] for each in said["findings"]} - {"note"}) == ("RUN", set())


def test_check_does_not_guess(bundle: Path, cli: Cli) -> None:
    said = json.loads(cli("check", bundle, "--site", "lab", "--json", code=8).stdout)
    assert (said["verdict"], [each["code"] for each in said["findings"]]) == ("UNKNOWN", ["facts.mpi"])
