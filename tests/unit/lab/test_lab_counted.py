"""counted.py on real programs of this machine, and what the bench makes of its lines."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import bench_staging, counted


@pytest.mark.skipif(platform.machine() != "x86_64", reason="counted.py has the calls of x86-64 alone")
def test_each_call_on_a_file_is_written_down_with_its_whole_path(tmp_path: Path) -> None:
    out, there = tmp_path / "out", tmp_path / "there"
    there.write_text("text")
    script = f"read word <there; : >copy; cat {tmp_path}/none 2>/dev/null; rm copy; exit 7"
    argv = [sys.executable, "-I", "-S", counted.__file__, str(out), "/bin/sh", "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, check=False, timeout=50)
    assert done.returncode == 7
    found = [(each.call, each.path) for each in bench_staging.operations(out.read_text(), [("/", "/image")])]
    assert found[0] == ("execve", "/bin/sh")
    calls = {(call.replace("at", ""), os.path.basename(path)) for call, path in found if path.startswith(str(tmp_path))}
    assert {("open", "there"), ("read", "there"), ("open", "copy"), ("open", "none"), ("unlink", "copy")} <= calls


def test_the_paths_of_a_container_are_led_back_to_the_hosts() -> None:
    binds = [("/deployer/job", "/home/alice/jobs/1"), ("/tmp", "/tmp"), ("/", "/node-local/rootfs")]
    trace = "openat 1 '/deployer/job/x'\nread 1 '/usr/bin/a b'\nopenat 0 '/deployer/job/x'\nclose 1 '/tmp/y'\n"
    assert [each.path for each in bench_staging.operations(trace, binds)] == [
        "/home/alice/jobs/1/x",
        "/node-local/rootfs/usr/bin/a b",
        "/deployer/job/x",
        "/tmp/y",
    ]
