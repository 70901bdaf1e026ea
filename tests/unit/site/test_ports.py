"""Whether a login node reaches ports of nodes: both sides on this machine. They share no network, so use loopback."""

import json
import threading
import time

from deployer.site.capture import ports


def listening(path):
    node = threading.Thread(target=ports.listen, args=(str(path), []))
    node.start()
    while not path.exists():
        time.sleep(0.01)
    return node


def test_a_node_that_listens_is_reached_and_stops_listening(tmp_path):
    node = listening(tmp_path / "port")
    assert (tmp_path / "port").stat().st_mode & 0o777 == 0o600
    assert ports.reached(str(tmp_path / "port"), [])
    node.join(5)
    assert not node.is_alive()
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_refuses_is_not_reached(tmp_path):
    node = listening(tmp_path / "port")
    wanted = json.loads((tmp_path / "port").read_text())
    (tmp_path / "port").write_text(json.dumps(dict(wanted, port=1)))
    assert ports.reached(str(tmp_path / "port"), []) is False
    node.join(5)


def test_a_login_node_that_looks_too_late_finds_nothing_out(tmp_path, monkeypatch):
    monkeypatch.setattr(ports, "_LISTENS", 0.0)
    ports.listen(str(tmp_path / "port"), [])
    assert ports.reached(str(tmp_path / "port"), []) is None
