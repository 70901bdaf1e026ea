"""Which files changed: each file of a definition counts, caches of Python do not."""

from pathlib import Path

import pytest

from deployer.connected.deploy import watch
from deployer.connected.image.definition.definition import Definition, load
from deployer.connected.image.init import init


@pytest.fixture
def definition(tmp_path: Path) -> Definition:
    return load(init("model", "none", tmp_path).folder)


def test_an_untouched_definition_has_not_changed(definition: Definition) -> None:
    assert watch.changed(watch.snapshot(definition), watch.snapshot(definition)) == []


def test_changes_are_named(definition: Definition) -> None:
    before = watch.snapshot(definition)
    app = definition.app_folder
    assert app is not None
    (app / "new.py").write_text("pass")
    (definition.folder / "bundle.yaml").unlink()
    (app / "__pycache__").mkdir()
    (app / "__pycache__" / "new.pyc").write_text("")
    assert watch.changed(before, watch.snapshot(definition)) == [
        str(app / "new.py"),
        str(definition.folder / "bundle.yaml"),
    ]


def test_it_waits_until_the_files_are_still(definition: Definition, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout writes many files: the first of them is not all."""
    before = watch.snapshot(definition)
    writes = iter(["a", "b"])
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        assert len(looks) < 10
        name = next(writes, "")
        if name:
            (definition.folder / name).write_text("")

    monkeypatch.setattr("deployer.connected.deploy.watch.time.sleep", pause)
    assert watch.wait(definition, before) == [str(definition.folder / name) for name in "ab"]
    assert len(looks) == 3
    assert min(looks) >= 0.3
