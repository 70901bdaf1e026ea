"""The other program called deployer is noticed if it shares our environment."""

import sys

import pytest

from deployer.cli.laptop import main, namesake


@pytest.mark.parametrize(
    ("name", "file", "text", "version"),
    [
        ("deployer-0.3.10.dist-info", "RECORD", "deployer/__init__.py,sha256=x,3\n", "0.3.10"),
        ("deployer-0.3.10.egg-info", "top_level.txt", "tests\ndeployer\n", "0.3.10"),
        ("deployer-0.1.0.dist-info", "RECORD", "_deployer.pth,sha256=x,3\n../../../bin/deployer,,\n", ""),
        ("deployer_hpc-0.2.0.dist-info", "RECORD", "deployer/__init__.py,sha256=x,3\n", ""),
        ("deployer-0.3.10.dist-info", "METADATA", "", ""),
    ],
)
def test_the_other_program_is_found_by_its_files(tmp_path, monkeypatch, capsys, name, file, text, version):
    packages = tmp_path / "site-packages"
    (packages / name).mkdir(parents=True)
    (packages / name / file).write_text(text)
    monkeypatch.setattr(sys, "path", [str(packages), str(tmp_path / "absent-packages")])
    assert namesake.version() == version
    main._warn_about_namesake()
    shown = capsys.readouterr().err
    assert ("deployer-hpc" in shown) == bool(version)
