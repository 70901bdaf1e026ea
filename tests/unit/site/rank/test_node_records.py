"""The ranks of a node write into one file: what is half-written or damaged harms no other record."""

import errno
import os

import pytest

from deployer.site.jobs import result
from deployer.site.proof import rank_record
from deployer.site.rank import node_records
from deployer.site.rank.node_records import NodeRecords, node_name


def test_the_last_whole_record_of_each_name_counts():
    text = b"".join(rank_record.line(*each) for each in (("a", "{}"), ("b", "[]"), ("a", '{"x": "y z"}'))).decode()
    assert rank_record.latest(text) == {"a": '{"x": "y z"}', "b": "[]"}
    assert rank_record.latest("") == {}


@pytest.mark.parametrize("cut", range(1, len(rank_record.line("a", '{"x": {}}')) - 1))
def test_a_line_of_which_a_part_was_written_harms_no_other(cut):
    part = rank_record.line("a", '{"x": {}}')[:cut]
    text = rank_record.line("a", "{}") + part + rank_record.line("b", "1")
    assert rank_record.latest(text.decode()) == {"a": "{}", "b": "1"}


@pytest.mark.parametrize("line", ["a", "a 2", "a 3 {}", "a x {}", "a 02 {}", "a -2 {}", "\0 2", " 2  {}"])
def test_other_lines_are_no_records(line):
    assert rank_record.latest(line) == {}


def test_many_writers_share_a_file_that_each_opens_once(tmp_path, monkeypatch):
    opened = []
    original = os.open
    monkeypatch.setattr(os, "open", lambda *args: opened.append(args[0]) or original(*args))
    ranks = [NodeRecords(str(tmp_path)) for _ in range(3)]
    for step in range(2):
        for task, records in enumerate(ranks):
            records.add(rank_record.PAYLOAD % task, '{"step": %d}' % step, last=step == 1)
    monkeypatch.undo()
    assert [path for path in opened if path == ranks[0].path] == [ranks[0].path] * 3
    assert os.listdir(str(tmp_path)) == [node_name() + ".records"]
    assert result.texts(str(tmp_path)) == {rank_record.PAYLOAD % task: '{"step": 1}' for task in range(3)}


def test_nodes_with_the_same_host_name_have_files_of_their_own(tmp_path, monkeypatch):
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(node_records, "_BOOT", str(boot))
    out = tmp_path / "ranks"
    out.mkdir()
    for task, own in enumerate(("0f8fad5b-d9cb-469f", "7c9e6679-7425-40de")):
        boot.write_text(own)
        NodeRecords(str(out)).add(rank_record.PAYLOAD % task, "{}", last=True)
    host = os.uname().nodename
    assert sorted(os.listdir(str(out))) == [host + ".0f8fad5b.records", host + ".7c9e6679.records"]
    assert sorted(result.texts(str(out))) == ["payload-0.json", "payload-1.json"]
    boot.unlink()
    assert node_name() == host


def test_a_log_is_read_as_it_was_printed(tmp_path):
    records = NodeRecords(str(tmp_path))
    records.add(rank_record.PROBE_LOG % 0, rank_record.dumps("one\nl\u00e4st\n"))
    records.add(rank_record.PROBE_LOG % 1, "not JSON")
    assert result.texts(str(tmp_path)) == {"probe-0.log": "one\nl\u00e4st\n", "probe-1.log": "not JSON"}


def test_a_full_disk_is_told_and_later_records_are_kept(tmp_path, monkeypatch, capsys):
    """A write may be short before the next one fails."""
    records = NodeRecords(str(tmp_path))
    original, answers = os.write, [5, OSError(errno.ENOSPC, "No space left on device")]

    def write(descriptor, data):
        answer = answers.pop(0) if answers else len(data)
        if isinstance(answer, OSError):
            raise answer
        return original(descriptor, data[:answer])

    monkeypatch.setattr(os, "write", write)
    records.try_to_add("a", "{}")
    monkeypatch.undo()
    assert capsys.readouterr().err == f"deployer: error: cannot write {records.path}: No space left on device\n"
    records.try_to_add("b", "[]", last=True)
    assert result.texts(str(tmp_path)) == {"b": "[]"}


def test_a_record_of_which_a_part_was_written_is_written_again_as_a_whole(tmp_path, monkeypatch):
    """Another rank may append in between."""
    ranks = [NodeRecords(str(tmp_path)) for _ in range(2)]
    ranks[1].add("b", "1")
    original, parts = os.write, [5]

    def write(descriptor, data):
        if not parts:
            return original(descriptor, data)
        written = original(descriptor, data[: parts.pop()])
        ranks[1].add("b", "2", last=True)
        return written

    monkeypatch.setattr(os, "write", write)
    ranks[0].add("a", "{}", last=True)
    assert result.texts(str(tmp_path)) == {"a": "{}", "b": "2"}
