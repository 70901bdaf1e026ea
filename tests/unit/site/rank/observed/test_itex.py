"""Intel's extension in a stand-in for TensorFlow: files of the right names, mapped by a payload."""

import json
import os
import subprocess
import sys

import pytest

from deployer.site.rank.observed import itex
from tests.evidence import recorded

#: With less time for last words than in a job.
RANK = """
import sys
from deployer.site.rank import rank, payload_monitor as watch
watch._LAST_WORDS = 0.1
sys.exit(rank.main(sys.argv[1:]))
"""
#: Maps the files that it is given, and then trains for so many seconds.
PAYLOAD = """
import mmap, os, sys, time
kept = []
for path in sys.argv[2:]:
    with open(path, "rb") as stream:
        kept.append(mmap.mmap(stream.fileno(), 4096, access=mmap.ACCESS_READ))
time.sleep(float(sys.argv[1]))
print("trained")
"""
TENSORFLOW = "tensorflow/python/_pywrap_tensorflow_internal.so"
LOADER = "tensorflow-plugins/libitex_cpu.so"
KERNELS = "intel_extension_for_tensorflow/libitex_cpu_internal_avx512.so"
HOROVOD = "horovod/tensorflow/mpi_lib.cpython-311-x86_64-linux-gnu.so"


def run(folder, seconds, *names, **options):
    """Run a rank and return (exit code, output, its record)."""
    command = [sys.executable, "-c", PAYLOAD, str(seconds)]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 4096)
        command.append(str(path))
    words = ["--out", str(folder), *options.get("options", ["--itex"]), "--", *options.get("before", []), *command]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "SLURM_PROCID": "5"}
    done = subprocess.run(
        [sys.executable, "-c", RANK, *words], env=env, stdout=subprocess.PIPE, timeout=50, check=False
    )
    return done.returncode, done.stdout.decode(), json.loads(recorded(folder, "payload-5.json"))


@pytest.mark.thorough
def test_its_kernels_are_seen(tmp_path):
    code, out, record = run(tmp_path, 0.6, TENSORFLOW, LOADER, KERNELS, HOROVOD)
    assert (code, out) == (0, "trained\n")
    assert record["itex"] == {"library": "libitex_cpu_internal_avx512.so", "reason": None}


def test_a_tensorflow_without_it_is_ended_when_horovod_joins(tmp_path):
    """In a shell, as many payloads are; what comes after in the script does not begin."""
    code, out, record = run(tmp_path, 45, TENSORFLOW, LOADER, HOROVOD, before=["sh", "-c", '"$@"; echo next', "sh"])
    assert (code, out) == (3, "")
    assert (record["exit_code"], record["signal"], record["itex"]["library"]) == (3, None, None)
    assert record["itex"]["reason"] == "TensorFlow maps no libitex_*_internal*.so, and Horovod has joined it"


@pytest.mark.thorough
def test_one_that_ended_before_it_could_be_ended_is_judged_too(tmp_path):
    code, out, record = run(tmp_path, 0.6, TENSORFLOW)
    assert (code, out) == (3, "trained\n")
    assert record["itex"]["reason"].endswith("the payload has ended")


@pytest.mark.thorough
@pytest.mark.parametrize(("names", "options"), [([], ["--itex"]), ([TENSORFLOW, HOROVOD], [])])
def test_nothing_is_judged_without_tensorflow_or_when_it_was_not_asked(tmp_path, names, options):
    code, out, record = run(tmp_path, 0.6, *names, options=options)
    assert (code, out, record["itex"]) == (0, "trained\n", None)


def test_a_payload_that_failed_in_its_imports_is_its_own_failure(tmp_path):
    code, _, record = run(tmp_path, "no number", TENSORFLOW)
    assert (code, record["exit_code"], record["itex"]) == (1, 1, None)


def test_cpu_time_tells_that_the_import_is_over(monkeypatch):
    used = [4.0]
    monkeypatch.setattr(itex, "cpu_seconds", lambda pid: used[0])
    sight = itex.Sight()
    maps = "7f-80 r-xp 0 08:01 7 /x/%s\n"
    sight.look(1, maps % TENSORFLOW)
    used[0] = 23.0
    sight.look(1, maps % TENSORFLOW)
    assert sight.verdict is None
    used[0] = 25.0
    sight.look(2, maps % TENSORFLOW)  # another process has just begun
    assert sight.verdict is None
    sight.look(1, maps % TENSORFLOW)
    assert sight.verdict.reason.endswith("it has computed for 20 s")


def test_cpu_time_of_a_process():
    assert itex.cpu_seconds(os.getpid()) > 0
    assert itex.cpu_seconds(2**22 + 1) == 0
