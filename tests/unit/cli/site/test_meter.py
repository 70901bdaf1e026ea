import io
import sys

from deployer.cli.site import meter
from deployer.system import terminal


class _Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_line_has_rate_and_remaining_time():
    assert meter.line("install", 0, 2000000, 1) == "install   0 % of 2.0 MB"
    assert meter.line("install", 500000, 2000000, 10) == "install  25 % of 2.0 MB, 50.0 kB/s, 0:30 left"
    assert meter.line("verify", 10**9, 6 * 10**9, 100) == "verify  16 % of 6.0 GB, 10.0 MB/s, 8:20 left"


def test_it_is_shown_on_a_terminal_and_cleared(monkeypatch):
    monkeypatch.delenv("DEPLOYER_PROGRESS", raising=False)
    monkeypatch.setattr(sys, "stderr", _Screen())
    shown = meter.Meter("verify")
    shown(10, 100)
    shown.__exit__()
    assert sys.stderr.getvalue() == "\rverify  10 % of 100 B\r                     \r"
    with terminal.manners(True, False):
        silent = meter.Meter("verify")
    silent(10, 100)
    silent.__exit__()
    assert sys.stderr.getvalue().count("verify") == 1
