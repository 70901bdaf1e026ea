"""The folders of a rehearsal: the hook is whole, and nothing but files of observations is read from them."""

import os

from deployer.contract.rehearsal import observation
from deployer.system.observe import audit_hook, observations


def test_the_hook_is_the_module_itself(tmp_path):
    observations.prepare(str(tmp_path))
    with open(audit_hook.__file__, "rb") as stream:
        assert (tmp_path / observations.HOOK / "sitecustomize.py").read_bytes() == stream.read()
    assert list(observations.written(str(tmp_path / observations.SEEN))) == []


def test_nothing_is_followed_and_no_pipe_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(observation, "MAX_FILE", 3)
    observations.prepare(str(tmp_path))
    seen = tmp_path / observations.SEEN
    (seen / "a.jsonl").write_bytes(b"12345")
    (seen / "b.json").write_bytes(b"1")
    (seen / "c.jsonl").mkdir()
    os.symlink("/etc/passwd", str(seen / "d.jsonl"))
    os.mkfifo(str(seen / "e.jsonl"))
    other = b"unreadable"
    assert list(observations.written(str(tmp_path / observations.SEEN))) == [
        ("a.jsonl", b"1234"),
        ("c.jsonl", other),
        ("d.jsonl", other),
        ("e.jsonl", other),
    ]
    (tmp_path / "link").symlink_to(seen)
    assert list(observations.written(str(tmp_path / "link"))) == []
