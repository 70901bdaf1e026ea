"""A process that becomes another program."""

import os
import signal

from deployer.system import payload


def test_a_request_to_end_is_not_lost_before_the_program_starts(monkeypatch):
    """Python would call the handler later, but then the process has become another program."""

    def become(command, environment, stdin):
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)

    monkeypatch.setattr(payload, "_become", become)
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        _, status = os.waitpid(payload.start(["true"], {}, set()), 0)
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert payload.exit_code(status) == 128 + signal.SIGTERM
