"""The signal before the time limit: only who handles it gets it, once, and who saved its state is no failure."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from deployer.site.proof.rank_record import SAVED
from deployer.site.rank import payload_monitor
from tests.evidence import recorded

HANDLES = """
import signal, sys, time
times = []
signal.signal(signal.SIGUSR1, lambda *_: times.append(1))
print("ready", flush=True)
until = time.time() + 3
while not times and time.time() < until:
    time.sleep(0.02)
time.sleep(0.2)
sys.exit(%d if times == [1] else 1)
"""


def run(tmp_path, program, ahead, *words):
    warn = str(int(time.time()) + ahead)
    argv = [sys.executable, "-c", "import sys; from deployer.site.rank import rank; sys.exit(rank.main(sys.argv[1:]))"]
    argv += ["--out", str(tmp_path), "--warn", warn, *words, "--", sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=os.getcwd(), stdout=subprocess.DEVNULL, check=False)
    return done.returncode, json.loads(recorded(tmp_path, "payload-0.json"))["exit_code"]


@pytest.mark.thorough
@pytest.mark.parametrize("words", [(), ("--abort",)])
def test_a_payload_that_saves_is_no_failure_for_the_launcher(tmp_path, words):
    assert run(tmp_path, HANDLES % SAVED, 0, *words) == (0, SAVED)


def test_a_shell_can_handle_the_signal_under_a_launcher_that_ignores_it(tmp_path):
    """A shell cannot trap what is ignored at its start."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        shell = 'trap "exit %d" USR1; i=0; while [ $((i += 1)) -lt 100 ]; do sleep 0.05; done' % SAVED
        assert run(tmp_path, f"import os; os.execvp('bash', ['bash', '-c', {shell!r}])", 0) == (0, SAVED)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_payload_that_does_not_handle_the_signal_is_not_ended_by_it(tmp_path):
    assert run(tmp_path, "import time; time.sleep(0.5)", 0) == (0, 0)


@pytest.mark.thorough
def test_before_its_time_there_is_no_signal(tmp_path):
    program = (HANDLES % SAVED).replace("+ 3", "+ 0.3")
    code, recorded = run(tmp_path, program, 60)
    assert (code, recorded) == (1, 1)


def test_a_payload_is_not_warned_while_mpi_starts_in_it(monkeypatch):
    """Its handler would not be there yet: it would be MPI's."""
    sent, now = [], [1000.0]
    monkeypatch.setattr(payload_monitor.time, "time", lambda: now[0])
    monkeypatch.setattr(payload_monitor.mapped_mpi, "family", lambda pid: [7])
    monkeypatch.setattr(payload_monitor, "_handles", lambda pid, number: True)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    warning = payload_monitor._Warning(7, 900)
    for _ in range(2):
        assert (warning.before(60.0, True), sent) == (1030.0 - now[0], [])
        now[0] += 10
    now[0] = 1030.0
    assert (warning.before(60.0, True), sent) == (60.0, [(7, signal.SIGUSR1)])


def test_a_process_that_ends_before_the_signal_stops_neither_the_others_nor_rank(monkeypatch):
    sent = []

    def kill(pid, number):
        if pid == 1:
            raise ProcessLookupError
        sent.append(pid)

    monkeypatch.setattr(payload_monitor.mapped_mpi, "family", lambda pid: [1, 2])
    monkeypatch.setattr(payload_monitor, "_handles", lambda pid, number: True)
    monkeypatch.setattr(payload_monitor.os, "kill", kill)
    payload_monitor._Warning(1, 1).before(1)
    assert sent == [2]
