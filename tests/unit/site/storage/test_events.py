"""Who did what is appended to one file, and is shown again."""

import json
import os

import pytest

from deployer.cli.site import main
from deployer.contract.base.errors import EXIT_DONE
from deployer.site.storage import events, group
from tests import bundles

ME = group.user(os.getuid())


def call(store, *words):
    return main.main([*words, "--root", store.root])


def lines(store):
    with open(os.path.join(store.root, events.FILE)) as stream:
        return [json.loads(line) for line in stream]


def test_what_commands_did_is_noted_without_their_arguments(tmp_path, store, capsys):
    os.makedirs(store.root, exist_ok=True)
    paths = [str(bundles.write(tmp_path / f"{number}.tar", version=f"{number}.0")) for number in (1, 2, 3)]
    for path in [*paths, paths[0]]:  # the last one is there already
        assert call(store, "install", path) == EXIT_DONE
    assert call(store, "remove", "tiny:3.0") == EXIT_DONE
    assert call(store, "gc", "--keep", "1") == EXIT_DONE
    noted = lines(store)
    done = [(event["action"], event["bundle"]) for event in noted]
    assert done[:4] == [("install", f"tiny:{number}.0") for number in (1, 2, 3)] + [("remove", "tiny:3.0")]
    assert [action for action, _ in done[4:]] == ["gc"]
    assert {(event["user"], event["uid"], event["schema"]) for event in noted} == {(ME, os.getuid(), "deployer.event")}
    assert set(noted[0]) - {"login"} == {
        *("schema", "format", "min_reader", "time", "action", "user", "uid", "host", "bundle", "digest")
    }
    capsys.readouterr()
    assert call(store, "log", "--json") == EXIT_DONE
    shown = json.loads(capsys.readouterr().out)["events"]
    assert [each["digest"] for each in shown] == [each["digest"] for each in noted]
    assert call(store, "log") == EXIT_DONE
    table = capsys.readouterr().out
    assert f"{ME}  " in table
    assert "  remove " in table
    assert call(store, "remove", "--all") == EXIT_DONE
    assert lines(store)[-1]["action"] == "remove --all"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_not_a_file_is_not_written_to(tmp_path, store, kind, capsys):
    os.makedirs(store.root, exist_ok=True)
    path, other = os.path.join(store.root, events.FILE), tmp_path / "other"
    {"link": lambda: os.symlink(str(other), path), "pipe": lambda: os.mkfifo(path), "folder": lambda: os.mkdir(path)}[
        kind
    ]()
    events.note(store.root, "install")
    assert f"warning: cannot write to {path}: " in capsys.readouterr().err
    assert not other.exists()


def test_lines_of_others_are_left_out_and_reported(store, capsys):
    os.makedirs(store.root, exist_ok=True)
    events.note(store.root, "install", bundle="a:1")
    with open(os.path.join(store.root, events.FILE), "ab") as stream:
        stream.write(b'{"schema": "deployer.event"}\n\xff\n{"action": "\\u001b[31m"}\n')
    events.note(store.root, "remove", bundle="a:1")
    assert call(store, "log") == EXIT_DONE
    shown = capsys.readouterr()
    assert "left out 3 lines that are not events" in shown.err
    assert ("install" in shown.out, "remove" in shown.out, "\x1b" in shown.out) == (True, True, False)


def test_a_new_root_folder_has_no_events(store, capsys):
    os.makedirs(store.root, exist_ok=True)
    assert call(store, "log") == EXIT_DONE


@pytest.mark.parametrize(("name", "first"), [("SLURM_PROCID", False), ("PMI_RANK", False), ("OTHER", True)])
def test_one_process_of_a_step_is_noted(monkeypatch, name, first):
    monkeypatch.setenv(name, "1")
    assert events.is_first() == first
