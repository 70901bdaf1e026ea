"""Lock, fetch and cache with the real uv and pip, on wheels made by hand and without network."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from deployer.connected.ground import caches
from deployer.connected.image.definition import definition as definitions
from deployer.connected.image.definition import settings
from deployer.connected.image.definition.definition import Definition
from deployer.connected.image.definition.settings import BuildSettings
from deployer.connected.image.wheelhouse import lock as locks
from deployer.connected.image.wheelhouse import wheelhouse
from deployer.connected.image.wheelhouse.indexes import Indexes, indexes, pip_values
from deployer.connected.image.wheelhouse.lock import Pin
from deployer.connected.image.wheelhouse.target import Target
from deployer.connected.image.wheelhouse.wheelhouse import Mode
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.system import files
from tests.wheels import wheel

TARGET = Target((3, 11), (2, 36), "x86_64", {})
OBEY = Mode()
BUNDLE = """\
name: demo
version: "1"
base: {debian: bookworm}
python: {requirements: requirements.txt}
jobs: {only: {command: ["true"]}}
"""


#: The index: NAME-VERSION-TAG to the wheel's content and dependencies.
RELEASES = {
    "demo-1.0-py3-none-any": [],
    "demo-1.1-py3-none-any": ["helper>=1"],
    "helper-1.0-py3-none-any": [],
    "helper-2.0-py3-none-any": [],
    "glued-1.0-py3-none-any": ["helper<2"],
    "marked-1.0-py3-none-any": ['helper==1.0; python_version < "3.12"', 'nothing; python_version >= "3.12"'],
    "newer-1.0-cp311-cp311-manylinux_2_39_x86_64": [],
    "native-1.0-cp311-cp311-manylinux_2_17_x86_64": [],
    "native-1.0-cp310-cp310-manylinux_2_17_x86_64": [],
    "same-1.0-py3-none-any": [],
}


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links")
    for release, requires in RELEASES.items():
        name, version = release.split("-")[:2]
        module = "demo" if name == "same" else name
        content = {f"{module}/__init__.py": f"version = '{release}'\n".encode()}
        (folder / f"{release}.whl").write_bytes(wheel(content, name, version, requires=requires))
    (folder / "source-1.0.tar.gz").write_bytes(b"a source distribution")
    return folder


@pytest.fixture
def sources(links: Path) -> Indexes:
    with indexes(BuildSettings(pip="[global]\nno-index = true\n"), [links]) as found:
        return found._replace(pip_environment={**found.pip_environment, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": ""})


@pytest.fixture
def definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Definition:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "bundle.yaml").write_text(BUNDLE)
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (folder / "requirements.txt").write_text("demo\n")
    return definitions.load(folder)


class Build:
    """Calls ``prepare`` and keeps what it says."""

    def __init__(self, definition: Definition, sources: Indexes) -> None:
        self.definition = definition
        self.sources = sources
        self.said: list[str] = []

    def __call__(self, asked: str = "", target: Target = TARGET, mode: Mode = OBEY) -> list[str]:
        """Return the names of the wheels."""
        if asked:
            (self.definition.folder / "requirements.txt").write_text(asked)
        self.said.clear()
        house = wheelhouse.prepare(self.definition, target, self.sources, mode, self.said.append)
        return [path.name for path in house.wheels]

    @property
    def lock(self) -> Path:
        return self.definition.folder / locks.FILE

    @property
    def pins(self) -> dict[str, str]:
        found = locks.read_lock(self.lock)
        return {pin.name: pin.version for pin in found.pins} if found else {}


@pytest.fixture
def build(definition: Definition, sources: Indexes, links: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return a build that gets its wheels without pip, whose start takes longer than all the rest."""

    def fetch(pins: Sequence[Pin], *_: object) -> None:
        caches.WHEELS.folder.mkdir(parents=True, exist_ok=True)
        for pin in pins:
            copy = shutil.copy(links / pin.wheel, definition.folder)
            wheelhouse._keep(Path(copy), pin)

    monkeypatch.setattr(wheelhouse, "_fetch", fetch)
    return Build(definition, sources)


@pytest.fixture
def unfetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pip out: the test is about the lock, and the wheels need not be there."""
    monkeypatch.setattr(wheelhouse, "_fetch", lambda *_: None)
    monkeypatch.setattr(wheelhouse.wheels, "added", lambda *_: ())


@pytest.mark.thorough
def test_from_requirements_to_wheels_at_hand(build: Build, definition: Definition) -> None:
    assert build() == ["demo-1.1-py3-none-any.whl", "helper-2.0-py3-none-any.whl"]
    assert build.said[0].startswith("wheels: resolve requirements.txt for Python 3.11 on Linux x86_64 with glibc 2.36")
    text = build.lock.read_text()
    ready = wheelhouse.ready(definition)
    assert [path.name for path in ready] == ["demo-1.1-py3-none-any.whl", "helper-2.0-py3-none-any.whl"]
    for path in ready:
        assert path.parent.name == files.sha256_file(str(path)) in text
    # Again, with nothing to fetch from: the lock and the cache have all.
    build.sources = Indexes(["--no-index"], {}, ["--no-index"], {})
    for mode in (Mode(locked=True), Mode(offline=True), Mode()):
        assert build(mode=mode) == ["demo-1.1-py3-none-any.whl", "helper-2.0-py3-none-any.whl"]
        assert build.said == []
    assert build.lock.read_text() == text


@pytest.mark.thorough
def test_a_wheel_of_the_cache_with_other_content(build: Build, definition: Definition) -> None:
    build("helper\n")
    (kept,) = wheelhouse.ready(definition)
    good = kept.read_bytes()
    kept.write_bytes(good + b"x")
    for use in (lambda: build(mode=Mode(offline=True)), lambda: wheelhouse.ready(definition)):
        with pytest.raises(IntegrityError, match=r"helper-2\.0.* does not have the digest of the lock"):
            use()
    build()
    assert build.said == ["wheels: fetch helper-2.0-py3-none-any.whl"]
    assert kept.read_bytes() == good
    assert [path.name for path in caches.WHEELS.folder.iterdir()] == [kept.parent.name]


@pytest.mark.thorough
def test_pip_fetches_by_digest(definition: Definition, sources: Indexes) -> None:
    build = Build(definition, sources)
    assert build("helper\n") == ["helper-2.0-py3-none-any.whl"]
    assert [path.name for path in wheelhouse.ready(definition)] == ["helper-2.0-py3-none-any.whl"]
    text = build.lock.read_text()
    digest = text.split("sha256:")[2][:64]
    build.lock.write_text(text.replace(digest, "0" * 64))
    with pytest.raises(DeployerError, match=r"does not match the lock|cannot fetch wheels"):
        build()
    assert not list(caches.WHEELS.folder.glob("0*"))


@pytest.mark.thorough
def test_two_wheels_with_the_same_file_are_found_here(build: Build) -> None:
    with pytest.raises(UsageError, match=r"both contain lib/demo/__init__\.py"):
        build("demo==1.0\nsame\n")


@pytest.mark.thorough
@pytest.mark.usefixtures("unfetched")
def test_a_change_of_one_requirement_moves_no_other_pin(build: Build) -> None:
    build("demo==1.0\nhelper<2\n")
    build("demo==1.0\nhelper\n")
    assert build.said[0] == f"wheels: resolve requirements.txt for {TARGET}: the requirements changed"
    assert "wheels: helper" not in " ".join(build.said)
    assert build.pins == {"demo": "1.0", "helper": "1.0"}
    build("demo\nhelper\nmarked\n")
    assert build.pins == {"demo": "1.0", "helper": "1.0", "marked": "1.0"}
    build(mode=Mode(upgrade=True))
    assert build.pins["demo"] == "1.1"
    assert "wheels: demo 1.0 -> 1.1" in build.said


@pytest.mark.thorough
@pytest.mark.usefixtures("unfetched")
def test_the_target_is_the_images_python_not_this_one(build: Build) -> None:
    build("marked\nnative\n")
    assert build.pins == {"helper": "1.0", "marked": "1.0", "native": "1.0"}
    assert "native-1.0-cp311-cp311" in build.lock.read_text()
    build(target=TARGET._replace(python=(3, 10)))
    assert "the image has Python 3.10" in build.said[0]
    assert "native-1.0-cp310-cp310" in build.lock.read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("unfetched")
def test_what_the_image_has_is_not_in_the_wheelhouse_again(build: Build) -> None:
    image = TARGET._replace(packages={"helper": "1.5+local", "unrelated": "3"})
    build("demo\n", image)
    assert build.pins == {"demo": "1.1"}
    assert "# of the image: helper==1.5+local\n" in build.lock.read_text()
    build(target=image._replace(packages={"helper": "1.5+local"}))
    assert "resolve" not in " ".join(build.said)
    with pytest.raises(Refused, match=r"relies on helper 1\.5"):
        build(target=TARGET, mode=Mode(locked=True))
    with pytest.raises(UsageError) as caught:
        build("glued\n", TARGET._replace(packages={"helper": "2.0"}))
    assert "glued" in caught.value.message
    assert "the image has its own helper 2.0" in caught.value.hint


@pytest.mark.thorough
@pytest.mark.usefixtures("unfetched")
@pytest.mark.parametrize(
    ("asked", "reason", "hint"),
    [
        ("no-such-package", "no-such-package was not found", "change the requirements"),
        ("demo==9", "there is no version of demo==9", "change the requirements"),
        ("glued\nhelper>=2", "glued depend on helper<2", "change the requirements"),
        ("source", "source==1.0 has no usable wheels", "source is available only as source: build it in"),
        (
            "newer",
            "newer.*manylinux_2_36_x86_64.*manylinux_2_39_x86_64",
            "the image has .* glibc 2.36: require a release",
        ),
    ],
)
def test_without_a_solution_the_resolvers_reason_is_said(build: Build, asked: str, reason: str, hint: str) -> None:
    with pytest.raises(UsageError, match=rf"requirements\.txt has no solution: .*{reason}") as caught:
        build(asked + "\n")
    assert "\n" not in caught.value.message
    assert re.search(hint, caught.value.hint)
    assert not build.lock.exists()


def test_pack_says_what_a_build_has_to_do_first(build: Build, definition: Definition) -> None:
    with pytest.raises(UsageError, match=r"python\.lock does not match the requirements") as caught:
        wheelhouse.ready(definition)
    assert caught.value.hint == "run deployer build"
    build("helper\n")
    (kept,) = wheelhouse.ready(definition)
    kept.unlink()
    with pytest.raises(UsageError, match="not in the cache of wheels"):
        wheelhouse.ready(definition)
    with pytest.raises(UsageError, match=r"offline, and helper-2\.0-py3-none-any\.whl is not in the cache"):
        build(mode=Mode(offline=True))
    (definition.folder / "requirements.txt").write_text("demo\n")
    with pytest.raises(UsageError, match="does not match"):
        wheelhouse.ready(definition)
    with pytest.raises(UsageError, match=r"offline, and .* is not up to date: the requirements changed"):
        build(mode=Mode(offline=True))


# ------------------------------------------------------------------------------------------------ the host's settings


def test_pips_settings_in_uvs_words(tmp_path: Path) -> None:
    text = "[global]\nindex-url = https://a.invalid/simple\nextra-index-url = https://b.invalid/x\n    https://c.invalid/x\n"
    text += "trusted-host = a.invalid\nproxy = http://p.invalid:1\n"
    host = BuildSettings(b"-----BEGIN CERTIFICATE-----", text, {}, {"no_proxy": "x"}, find_links=(str(tmp_path),))
    with indexes(host) as found:
        certificates = Path(found.pip_environment["PIP_CERT"])
        assert certificates.read_bytes() == host.ca
        assert found.uv_environment["SSL_CERT_FILE"] == str(certificates)
        assert found.uv_environment["no_proxy"] == "x"
        assert Path(found.pip_environment["PIP_CONFIG_FILE"]).read_text() == text
        assert found.uv_environment["HTTPS_PROXY"] == "http://p.invalid:1"
        assert found.uv_options[2:] == [
            "--default-index=https://a.invalid/simple", "--index=https://b.invalid/x", "--index=https://c.invalid/x",
            "--allow-insecure-host=a.invalid", f"--find-links={tmp_path}",
        ]  # fmt: skip
        assert f"--find-links={tmp_path}" in found.pip_options
    assert not certificates.exists()
    with pytest.raises(UsageError, match="does not exist"), indexes(host, [tmp_path / "gone"]):
        pass
    with pytest.raises(UsageError, match=r"cannot read pip\.conf"):
        pip_values("index-url = x\n")


def test_find_links_of_the_host(tmp_path: Path) -> None:
    listing = (
        f"global.find-links='/no/such/folder'\n:env:.find-links='{tmp_path} https://x.invalid/'\nglobal.proxy='x'\n"
    )
    assert settings.find_links(listing) == (str(tmp_path), "https://x.invalid/")
    assert settings.find_links("") == ()
