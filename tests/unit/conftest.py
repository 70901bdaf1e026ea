"""What all unit tests share. Runs on pytest 7.0 and Python 3.6 too."""

import pytest


@pytest.fixture(scope="session")
def _empty_home(tmp_path_factory):
    return str(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _no_profile(_empty_home, monkeypatch):
    """Give login shells an empty home: a developer's own ``.profile`` may be slow, or wait for ever."""
    monkeypatch.setenv("HOME", _empty_home)
