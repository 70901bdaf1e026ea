"""The files that the tools read agree with each other and hold nothing of the machine that made them."""

import re
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:  # with import-linter and mypy, which need it too
    import tomli as tomllib

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PINNED = sorted((ROOT / "requirements").glob("*.txt"))
#: The folders of the package, in a pattern.
_HALVES = "cli|connected|contract|site|system"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def entries(file: Path) -> dict[str, str]:
    """Return the text of each entry of a requirements file by the package's name, continuation lines and all."""
    found: dict[str, str] = {}
    text = re.sub(r"^ *#.*\n?", "", file.read_text(), flags=re.MULTILINE)
    for entry in text.replace("\\\n", " ").splitlines():
        if entry.strip() and not entry.startswith("-"):
            name = re.match(r"[\w.-]+", entry)
            assert name, f"{file.name}: {entry}"
            found[name[0].lower()] = found.get(name[0].lower(), "") + entry
    return found


@pytest.mark.parametrize("file", PINNED, ids=lambda file: file.name)
def test_every_requirement_is_pinned_and_hashed(file: Path) -> None:
    found = entries(file)
    assert found
    for name, entry in found.items():
        assert "==" in entry, name
        assert "--hash=sha256:" in entry, name


@pytest.mark.parametrize("file", PINNED, ids=lambda file: file.name)
def test_requirements_name_no_index_and_no_path(file: Path) -> None:
    assert not re.findall(r"://|--(?:extra-)?index-url|--find-links|(?<![\w.])/\w+", file.read_text())


def test_the_tests_environment_holds_the_connected_side_at_the_same_pins() -> None:
    connected, dev = entries(ROOT / "requirements/connected.txt"), entries(ROOT / "requirements/dev.txt")
    assert connected.items() <= dev.items()


def test_dependencies_are_in_step_with_their_requirements() -> None:
    declared = {re.split(r"[ <>=]", dependency)[0] for dependency in PYPROJECT["project"]["dependencies"]}
    assert declared | {"hatchling"} == set(entries(ROOT / "requirements/connected.in"))


def test_pytest_on_36_is_configured_as_the_newest_is() -> None:
    old = ConfigParser()
    old.read(ROOT / "tests/site36.ini")
    new = PYPROJECT["tool"]["pytest"]["ini_options"]
    assert old["pytest"]["markers"].strip().splitlines() == new["markers"]
    assert old["pytest"]["filterwarnings"] == "\n".join(new["filterwarnings"])
    assert int(old["pytest"]["timeout"]) == new["timeout"]


def _exists(path: str) -> bool:
    roots = ROOT, ROOT / "deployer", ROOT / "tests", ROOT / "tests/unit"
    return any((root / path).exists() for root in roots)


def _defines(dotted: str) -> bool:
    """Return whether a dotted name is a module or package, or is defined in one."""
    path = dotted.replace(".", "/")
    module, _, name = path.rpartition("/")
    files = [ROOT / f"{module}.py", ROOT / module / "__init__.py"]
    defined = rf"^(?:def |class )?{name}\b"
    return (
        (ROOT / f"{path}.py").exists()
        or (ROOT / path).is_dir()
        or any(file.exists() and re.search(defined, file.read_text(), re.MULTILINE) for file in files)
    )


@pytest.mark.thorough
def test_documents_and_docstrings_name_modules_that_exist() -> None:
    named = 0
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "pyproject.toml", ROOT / "scripts/test"]
    for file in [*sources, *(ROOT / "deployer").rglob("*.py")]:
        text = file.read_text()
        paths = re.findall(rf"(?<![\w/.])(?:deployer/)?(?:{_HALVES})/[a-z0-9_/]+(?:\.(?:py|yaml|json)\b|(?=`))", text)
        modules = re.findall(rf"(?<![\w.])deployer\.(?:{_HALVES})(?:\.[A-Za-z_]\w*)+", text)
        modules += [f"deployer.{name}" for name in re.findall(rf"`((?:{_HALVES})\.(?!py`)\w+(?:\.\w+)*)`", text)]
        wrong = [path for path in paths if not _exists(path)] + [name for name in modules if not _defines(name)]
        assert not wrong, f"{file.relative_to(ROOT)} names {', '.join(wrong)}"
        named += len(paths) + len(modules)
    assert named > 1000


def test_a_folder_has_at_most_15_modules_and_folders() -> None:
    # Commands and rules, one module each, may be more.
    many = {ROOT / "deployer/cli/laptop", ROOT / "deployer/connected/check/rules"}
    for folder in {file.parent for file in (ROOT / "deployer").rglob("__init__.py")} - many:
        inside = {*folder.glob("[!_]*.py"), *(file.parent for file in folder.glob("*/__init__.py"))}
        assert len(inside) <= 15, folder


def test_every_debian_package_says_why() -> None:
    for line in (ROOT / "scripts/debian-packages.txt").read_text().splitlines():
        assert not line or re.fullmatch(r"(?:[a-z0-9][a-z0-9+.-]+ +)?# .+", line), line


def test_a_laptop_gets_no_cluster() -> None:
    """scripts/setup reads the headers of the sections, in this order."""
    text = (ROOT / "scripts/debian-packages.txt").read_text()
    laptop, lab = text.index("\n# the laptop\n"), text.index("\n# the lab:")
    tests = text.index("\n# what tests")
    assert laptop < lab < tests
    for name in ("slurm-wlm", "munge", "openssh-server", "podman"):
        assert lab < text.index(f"\n{name} ") < tests
    for name in ("docker.io", "openssh-client", "mmdebstrap", "iproute2"):
        assert laptop < text.index(f"\n{name} ") < lab


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("option", "outcome"), [((), "1 passed, 2 skipped"), (("--require-engines",), "1 passed, 2 error")]
)
def test_a_missing_engine_skips_with_its_remedy_or_fails_where_engines_are_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], outcome: str
) -> None:
    tests = pytester.path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (tests / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.needs('python3.6')\n"
        "def test_marked(): raise AssertionError\n"
        "@pytest.mark.needs('python3.6')\n"
        "def test_marked_too(): raise AssertionError\n"
        "def test_unmarked(): pass\n"
    )
    for name in ("PYTEST_XDIST_WORKER", "DEPLOYER_TEST_COUNTS"):  # those of the tests around it
        monkeypatch.delenv(name, raising=False)
    argv = ["-c", ROOT / "tests/site36.ini", "--rootdir", pytester.path, "-o", f"cache_dir={pytester.path}/cache"]
    ran = pytester.runpytest_inprocess(*argv, *option, tests)
    said = ran.stdout.str()
    assert outcome in said
    assert "pyenv install 3.6" in said
    assert re.search(r"engines: 2 tests (skipped|failed) without python3.6", said)
    assert (ran.ret == 0) is (not option)
