"""What a payload without MPI uses to communicate, as the kernel and NCCL show it."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from deployer.contract.proof import evidence
from deployer.contract.proof.payload import PayloadRecord
from deployer.site.proof import rank_record
from deployer.site.rank import launched, payload_monitor
from deployer.site.rank.observed import communication, mapped_mpi
from tests.evidence import recorded

LOG = """\
cn1:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
NCCL version 2.21.5+cuda12.4
cn1:77:91 [0] NCCL INFO NET/IB : No device found.
cn1:77:91 [0] NCCL INFO Using network Socket
cn1:77:91 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
cn1:77:91 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via P2P/CUMEM/read
"""


def test_nccl_s_own_report(tmp_path):
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "other").write_text("cn1:78:78 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct")
    report = {"version": "2.21.5+cuda12.4", "network": "Socket", "via": ["NET/Socket", "P2P"]}
    logs = [str(tmp_path / name) for name in ("none", "log", "other")]
    assert communication.nccl(logs[:2]) == report
    assert communication.nccl(logs) == {**report, "via": ["NET/Socket", "P2P", "SHM"]}  # workers of one torchrun
    assert communication.nccl(logs[:1]) is None


@pytest.mark.thorough
def test_a_rank_records_the_network_that_its_nccl_chose(tmp_path):
    """With a file of that name in place of NCCL, and a log as NCCL 2.21 writes it."""
    (tmp_path / "libnccl.so.2").write_bytes(b"x" * 4096)
    (tmp_path / "log").write_text(LOG)
    payload = (
        "import mmap, os, shutil, sys, time; file = open(sys.argv[1], 'rb');"
        "kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ);"
        "name = os.environ['NCCL_DEBUG_FILE'].replace('%p', str(os.getpid()));"
        "shutil.copy(sys.argv[2], name); time.sleep(0.8)"
    )
    files = [str(tmp_path / "libnccl.so.2"), str(tmp_path / "log")]
    code = "import os, sys; from deployer.site.rank import rank; os._exit(rank.main(sys.argv[1:]))"
    words = ["--out", str(tmp_path), "--meet", "1,2,,,", "--", sys.executable, "-I", "-S", "-c", payload, *files]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True)
    found = evidence.read(PayloadRecord, recorded(tmp_path, "payload-0.json").encode(), "it").communication
    assert [os.path.basename(item.path) for item in found.libraries] == ["libnccl.so.2"]
    assert found.nccl == ("2.21.5+cuda12.4", "Socket", ("NET/Socket", "P2P"))


@pytest.mark.thorough
def test_a_world_of_one_is_seen_beside_an_mpi_library(tmp_path):
    """Debian's PyTorch maps Open MPI; the process group starts a while after the libraries are mapped."""
    for name in ("libmpi.so.40", "libgloo.so.0"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    payload = (
        "import mmap, socket, sys, time; files = [open(path, 'rb') for path in sys.argv[1:]];"
        "kept = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]; time.sleep(2);"
        "server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(1);"
        "ends = socket.create_connection(server.getsockname()), server.accept(); time.sleep(1)"
    )
    code = (
        "import os, sys; from deployer.site.rank import payload_monitor, rank;"
        "payload_monitor._GROWTH = 1000;"  # the longest pause at once
        "os._exit(rank.main(sys.argv[1:]))"
    )
    files = [str(tmp_path / "libmpi.so.40"), str(tmp_path / "libgloo.so.0")]
    words = ["--out", str(tmp_path), "--meet", "1,2,,,", "--", sys.executable, "-I", "-S", "-c", payload, *files]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True)
    found = evidence.read(PayloadRecord, recorded(tmp_path, "payload-0.json").encode(), "it")
    assert [os.path.basename(item.path) for item in found.libraries] == ["libmpi.so.40"]
    assert found.communication.itself


@pytest.mark.parametrize(
    ("seconds", "connected", "searching"), [(1, False, True), (59, False, True), (61, False, False), (1, True, False)]
)
def test_the_search_for_a_first_connection_ends(monkeypatch, seconds, connected, searching):
    watcher = communication.PayloadWatcher(None)
    assert not watcher.searching
    monkeypatch.setattr(watcher, "_since", 100.0)
    monkeypatch.setattr(watcher, "known", connected)
    monkeypatch.setattr(communication.time, "monotonic", lambda: 100.0 + seconds)
    assert watcher.searching is searching


def test_tensorflow_communicates_itself_unless_an_mpi_is_mapped(tmp_path, monkeypatch):
    library = tmp_path / "libtensorflow_framework.so.2"
    library.write_bytes(b"x")
    maps = "7f00-7f01 r-xp 0 00:00 %d %s\n" % (os.stat(str(library)).st_ino, library)
    monkeypatch.setattr(mapped_mpi, "maps", lambda pid: maps)
    monkeypatch.setattr(communication, "_PATIENCE", -1)
    options = launched.RankOptions({"--out": "/nowhere"})
    own, beside = (payload_monitor._Observer(os.getpid(), 0, options) for _ in range(2))
    own.look()
    assert [item["path"] for item in own.record["communication"]["libraries"]] == [str(library)]
    assert (own.record["communication"]["connected"], own.searching) == (False, True)
    for observer in (own, beside):  # Horovod is imported after it
        observer._libraries[("/libmpi.so.12", 1)] = {}
        observer.look()
        assert (observer.record["communication"], observer.searching) == (None, False)


def connected(family, address):
    """Return a listening socket and both ends of a connection to it."""
    server = socket.socket(family)
    server.bind((address, 0))
    server.listen(1)
    client = socket.create_connection(server.getsockname()[:2])
    return server, client, server.accept()[0]


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_connection_to_another_process_is_none_to_itself(tmp_path, family, address, monkeypatch):
    """PyTorch's first rank connects to its own store, also in a world of one."""
    library = tmp_path / "libgloo.so.0"
    library.write_bytes(b"x")
    maps = ["7f00-7f01 r-xp 0 00:00 %d %s\n" % (os.stat(str(library)).st_ino, library)]
    monkeypatch.setattr(communication, "_PATIENCE", 0)
    try:
        ends = connected(family, address)
    except OSError:
        pytest.skip("this machine has no IPv6")
    watcher = communication.PayloadWatcher(None)
    code = "import socket, sys; kept = socket.create_connection((sys.argv[1], int(sys.argv[2]))); sys.stdin.read()"
    place = [address, str(ends[0].getsockname()[1])]
    with closing(ends[0]) as server, closing(ends[1]), closing(ends[2]):
        watcher.look([os.getpid()], maps)
        time.sleep(0.01)
        record = watcher.record()
        assert (record["connected"], record["itself"], watcher.known) == (False, True, False)
        other = subprocess.Popen([sys.executable, "-I", "-c", code, *place], stdin=subprocess.PIPE)
        with closing(server.accept()[0]):
            watcher.look([os.getpid()], maps)
            other.communicate()
    record = watcher.record()
    assert (record["connected"], watcher.known) == (True, True)
    assert [item["path"] for item in record["libraries"]] == [str(library)]
    text = rank_record.dumps({**rank_record.begun(0, "cn1"), "communication": record})
    read = evidence.read(PayloadRecord, text.encode(), "it").communication
    assert (read.connected, read.libraries[0].path, read.nccl) == (True, str(library), None)
    assert json.loads(text)["communication"] == record


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("libnccl.so.2", True),
        ("libtorch_cpu.so.2.6", True),
        ("libtorch_cuda.so", True),
        ("libgloo.so.0", True),
        ("libjax_common.so", True),
        ("libtorch_python.so", False),
        ("libglob.so", False),
    ],
)
def test_names_of_libraries(name, is_one):
    assert bool(communication._LIBRARY.search("/usr/lib/x86_64-linux-gnu/" + name)) is is_one
