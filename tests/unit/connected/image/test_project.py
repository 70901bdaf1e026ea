"""uv.lock and pyproject.toml of a project as requirements, with the real uv on wheels made by hand."""

import subprocess
from pathlib import Path

import pytest
import uv

from deployer.connected.image.definition import definition as definitions
from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.wheelhouse import lock as locks
from deployer.contract.base.errors import UsageError
from tests.unit.connected.image.test_wheelhouse import (  # noqa: F401  fixtures
    BUNDLE,
    Build,
    build,
    definition,
    links,
    sources,
)

PROJECT = """\
[project]
name = "mine"
version = "1"
requires-python = "<3.12"
dependencies = ["demo<1.1", "marked; python_version < '3.12'", "newer; sys_platform == 'win32'"]
[dependency-groups]
dev = ["glued"]
"""


def of_project(definition: Definition, file: str, text: str = PROJECT) -> Definition:  # noqa: F811
    (definition.folder / "pyproject.toml").write_text(text)
    (definition.folder / "bundle.yaml").write_text(BUNDLE.replace("requirements.txt", file))
    return definitions.load(definition.folder)


def locked(definition: Definition, links: Path, text: str = PROJECT) -> Definition:  # noqa: F811
    """Let uv lock the project."""
    (definition.folder / "pyproject.toml").write_text(text)
    argv = [uv.find_uv_bin(), "lock", "--quiet", "--no-config", "--no-index", f"--find-links={links}"]
    subprocess.run([*argv, "--no-python-downloads"], cwd=definition.folder, check=True)
    return of_project(definition, "uv.lock", text)


def test_a_lock_gives_its_releases_and_no_others(build: Build, links: Path) -> None:  # noqa: F811
    build.definition = locked(build.definition, links)
    assert build() == ["demo-1.0-py3-none-any.whl", "helper-1.0-py3-none-any.whl", "marked-1.0-py3-none-any.whl"]
    assert "# requirements: sha256:" in build.lock.read_text()
    before = locks.requirements_digest(build.definition.folder / "uv.lock")
    path = build.definition.folder / "uv.lock"
    path.write_text(path.read_text() + "\n# changed\n")
    assert locks.requirements_digest(path) != before
    assert [each.name for each in locks.requirement_files(path)] == ["uv.lock", "pyproject.toml"]


def test_pyproject_alone_gives_the_newest_that_it_allows(build: Build) -> None:  # noqa: F811
    build.definition = of_project(build.definition, "pyproject.toml")
    assert build() == ["demo-1.0-py3-none-any.whl", "helper-1.0-py3-none-any.whl", "marked-1.0-py3-none-any.whl"]


def test_a_wheel_with_another_digest_than_the_requirements_list_is_refused(build: Build) -> None:  # noqa: F811
    with pytest.raises(UsageError, match=r"no wheel of demo 1.0 has a digest that the requirements list"):
        build(f"demo==1.0 --hash=sha256:{'0' * 64}")
    assert not build.lock.exists()


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("uv.lock", PROJECT, r"uv cannot read .*/uv.lock: .*expected"),
        ("pyproject.toml", "[project", "pyproject.toml is not TOML: "),
        ("pyproject.toml", '[tool.poetry]\nname = "x"\n', r"pyproject.toml has no list `dependencies` in \[project\]"),
        (
            "pyproject.toml",
            PROJECT.replace('"demo<1.1"', '"demo @ https://x.invalid/d.whl"'),
            "demo is requested by URL",
        ),
        ("pyproject.toml", PROJECT.replace("demo<1.1", "demo>9"), "has no solution: .*demo"),
        ("pyproject.toml", PROJECT.replace("<3.12", ">=3.12"), "is for Python >=3.12, and the image has 3.11"),
        ("pyproject.toml", PROJECT.replace("<3.12", "new"), "requires-python: Invalid specifier"),
    ],
)
def test_a_project_that_cannot_be_read_or_solved(build: Build, file: str, text: str, reason: str) -> None:  # noqa: F811
    (build.definition.folder / "uv.lock").write_text("not a lock")
    build.definition = of_project(build.definition, file, text)
    with pytest.raises(UsageError, match=reason):
        build()
    assert not build.lock.exists()


def test_a_lock_with_a_part_of_the_workspace(build: Build, links: Path) -> None:  # noqa: F811
    """Its files are not in any index: they belong into the app."""
    part = build.definition.folder / "part"
    part.mkdir()
    (part / "pyproject.toml").write_text('[project]\nname = "part"\nversion = "1"\n')
    text = PROJECT.replace("demo<1.1", "part") + '[tool.uv.sources]\npart = {path = "part"}\n'
    build.definition = locked(build.definition, links, text)
    with pytest.raises(UsageError, match=r"uv.lock, exported:\d+: './part' is not a requirement"):
        build()
