"""What is no longer so, and what that means."""

import pytest

from deployer.connected.site_profile import drift
from deployer.contract.rules.findings import ERROR, NOTE, WARNING

LIBRARY = {"dynamic": {"build_id": "aa"}, "imports": [], "exports": []}
BEFORE = {
    "name": "lab",
    "source": {"kind": "captured", "where": "login1", "date": "2026-01-01"},
    "workspace": "/work",
    "scheduler": {"kind": "slurm", "version": "22.05", "pmi": ["pmi2", "none"]},
    "mpi": {
        "intel-2021.15": {
            "version": "2021.15",
            "identity": "build-id:aa",
            "module": "intel-mpi/2021.15",
            "files": {"lib/libmpi.so.12": LIBRARY, "lib/libfabric.so.1": LIBRARY},
        }
    },
    "partitions": {
        "batch": {
            "glibc": "2.36",
            "user_namespaces": True,
            "node": {"cores": 48, "cpu": {"flags": ["avx2", "avx512f"]}},
            "filesystems": {"/scratch": {"type": "lustre", "size_mb": 1000000}},
        },
        "fat": {"nodes": 2},
    },
}


def changed(*words, **values):
    """Return BEFORE with other values below the keys ``words``; None takes one away."""
    import copy

    record = copy.deepcopy(BEFORE)
    inner = record
    for word in words:
        inner = inner[word]
    for key, value in values.items():
        if value is None:
            del inner[key]
        else:
            inner[key] = value
    return record


BATCH = ("partitions", "batch")
MPI = ("mpi", "intel-2021.15")


def test_the_same_is_no_drift():
    assert drift.between(BEFORE, changed()) == []


@pytest.mark.parametrize(
    ("after", "kind", "place", "severity"),
    [
        (changed(*MPI, identity="build-id:bb"), drift.CHANGED, "mpi.intel-2021.15.identity", ERROR),
        (changed(*MPI, version="2021.16"), drift.CHANGED, "mpi.intel-2021.15.version", ERROR),
        (changed(mpi={}), drift.GONE, "mpi.intel-2021.15", ERROR),
        (changed("scheduler", pmi=["none"]), drift.GONE, "scheduler.pmi", ERROR),
        (changed("scheduler", pmi=["none", "pmi2", "pmix"]), drift.NEW, "scheduler.pmi", WARNING),
        (changed(*BATCH, user_namespaces=False), drift.CHANGED, "partitions.batch.user_namespaces", ERROR),
        (changed(*BATCH, glibc="2.41"), drift.CHANGED, "partitions.batch.glibc", WARNING),
        (changed(*BATCH, "node", cores=40), drift.CHANGED, "partitions.batch.node.cores", WARNING),
        (changed(*BATCH, "node", "cpu", flags=["avx2"]), drift.GONE, "partitions.batch.node.cpu.flags", ERROR),
        (changed(*BATCH, filesystems={}), drift.GONE, "partitions.batch.filesystems./scratch", WARNING),
        (changed("partitions", fat=None), drift.GONE, "partitions.fat", WARNING),
        (changed("partitions", new={"nodes": 1}), drift.NEW, "partitions.new", NOTE),
    ],
)
def test_each_kind_of_drift(after, kind, place, severity):
    (found,) = drift.between(BEFORE, after)
    assert (found.kind, found.place, found.severity) == (kind, place, severity)
    assert found.meaning
    assert place in str(found)


def test_a_replaced_file_is_told_by_its_build_id():
    after = changed(*MPI, "files", **{"lib/libfabric.so.1": {"dynamic": {"build_id": "cc"}}})
    (found,) = drift.between(BEFORE, after)
    assert (found.place, found.severity) == ("mpi.intel-2021.15.files.lib/libfabric.so.1", ERROR)
    assert str(found).endswith("build id aa -> build id cc")


def test_the_gravest_comes_first():
    after = changed(*BATCH, glibc="2.41", os="other", kernel="6", user_namespaces=False)
    assert [found.severity for found in drift.between(changed(*BATCH, os="this", kernel="5"), after)] == [
        ERROR, WARNING, NOTE, NOTE,
    ]  # fmt: skip


def test_what_stands_at_the_top_holds_in_partitions():
    profile = {"glibc": "2.36", "partitions": {"a": {}, "b": {"glibc": "2.41"}}, "name": "x"}
    assert drift.resolved(profile) == {"name": "x", "partitions": {"a": {"glibc": "2.36"}, "b": {"glibc": "2.41"}}}
