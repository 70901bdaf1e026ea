"""The speed of the network between nodes that `doctor` measured without a container, kept for later jobs.

It is a file per partition in ``ROOT/network``: a part of a profile, which ``capture --merge`` inserts into a capture.
"""

import os
import socket
import time
from typing import Optional

from deployer.contract.base import json_records, records
from deployer.contract.site.speed import ExpectedNetwork, Speed
from deployer.site.storage.store import Store
from deployer.system import files


def path(store: Store, partition: str) -> str:
    """Return the path of a partition's file."""
    return os.path.join(store.root, "network", partition.replace("/", "_") + ".json")


def write(store: Store, site: str, partition: str, way: str, measured: json_records.Record) -> str:
    """Keep a measurement and return the file's path. Raises DeployerError.

    Args:
        way: a field of ``ExpectedNetwork``: mpi or tcp.
        measured: the fields of ``Speed``.
    """
    place = path(store, partition)
    with files.errors_named("make " + os.path.dirname(place)):
        os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    source = {"kind": "captured", "where": "doctor on " + socket.gethostname(), "date": time.strftime("%Y-%m-%d")}
    network = {"expected": {way: measured}, "source": source}
    profile = {"format": 1, "name": site, "source": source, "partitions": {partition: {"network": network}}}
    files.write_text(place, json_records.pretty(profile))
    return place


def read(store: Store, partition: str) -> Optional[ExpectedNetwork]:
    """Return the measurement of a partition, or None. Raises UsageError if its file is damaged."""
    place = path(store, partition)
    if not files.lexists(place):
        return None
    fields = json_records.Fields(json_records.parse(files.read_bytes(place), place, limit=1 << 16), place)
    network = fields.child("partitions").child(partition).child("network")
    expected, source = network.child("expected"), network.child("source")
    mpi, tcp = (records.read(Speed, expected.child(way)) if way in expected.record else None for way in ("mpi", "tcp"))
    return ExpectedNetwork(mpi, tcp, source="{}, {}".format(source.text("where"), source.text("date")))
