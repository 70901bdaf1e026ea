import os

import pytest

from deployer.site.container import runtime_check
from deployer.site.install import bytecode
from deployer.system.trust import verify
from tests import bundles, running
from tests.wheels import wheel


@pytest.fixture
def folder(tmp_path):
    """Return the folder of an image with a wheelhouse and a variant."""
    for name in ("rootfs", "wheels/lib", "variants/openmpi/lib", "variants/empty"):
        (tmp_path / "image" / name).mkdir(parents=True)
    return str(tmp_path / "image")


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Put a ch-run into PATH that notes its words, one a line, and fails as the real one would; return its notes."""
    notes = tmp_path / "calls"
    running.program(tmp_path, "ch-run", f'[ "$1" = --version ] || printf "%s\\n" "$@" end >>{notes}\nexit 57\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(runtime_check.machine, "namespaces_denied", lambda: None)
    return lambda: notes.read_text().split("\nend\n")[:-1] if notes.exists() else []


def compiled(folder, image, jobs):
    bytecode.compile_overlays(folder, image, jobs, folder + "/rootfs", folder + "/engine")


@pytest.mark.thorough
def test_each_overlay_is_compiled_by_the_images_own_python(folder, calls):
    compiled(folder, running.IMAGE, 3)
    wheels, variant = (call.splitlines() for call in calls())
    command = ["/usr/bin/python3", "-I", "-S", "-m", "compileall", "-q", "-j", "3"]
    command += ["--invalidation-mode", "unchecked-hash", "/deployer/wheels/lib"]
    assert wheels[wheels.index("--") - 1 :] == [os.path.join(folder, "rootfs"), "--", *command]
    assert f"--bind={folder}/wheels:/deployer/wheels" in wheels
    assert f"--bind={folder}/variants/openmpi:/deployer/variant" in variant
    assert variant[-1] == "/deployer/variant/lib"


@pytest.mark.parametrize("installed", [True, False])
def test_what_the_bundle_brought_compiles_where_the_site_has_nothing(folder, calls, tmp_path, monkeypatch, installed):
    """Charliecloud is not there, or is of no use without user namespaces."""
    monkeypatch.setattr(runtime_check.machine, "namespaces_denied", lambda: "no user namespaces here")
    os.makedirs(folder + "/engine")
    os.rename(str(tmp_path / "ch-run"), folder + "/engine/run")
    if installed:
        running.program(tmp_path, "ch-run", "exit 1\n")
    compiled(folder, running.IMAGE, 3)
    wheels, _ = (call.splitlines() for call in calls())
    assert f"--bind={folder}/wheels:/deployer/wheels" in wheels
    assert wheels[-1] == "/deployer/wheels/lib"


def test_nothing_is_started_where_nothing_can_come_of_it(folder, calls, tmp_path, monkeypatch):
    compiled(folder, running.IMAGE._replace(python=None), 1)
    compiled(str(tmp_path), running.IMAGE, 1)
    monkeypatch.setenv("PATH", "/nowhere")
    compiled(folder, running.IMAGE, 1)
    assert calls() == []


@pytest.mark.parametrize(
    ("member", "namespaces", "possible"),
    [
        ("deployer/app/x", True, False),
        ("deployer/kit/charliecloud/run", True, True),
        ("deployer/kit/charliecloud/run", False, False),
        ("deployer/kit/udocker-1.3.17-py3-none-any.whl", False, True),
    ],
)
def test_whether_a_container_can_be_started_is_known_before_the_kit_is_unpacked(
    tmp_path, monkeypatch, member, namespaces, possible
):
    """Overlays that were installed where none can be started have no bytecode, and are not shared with others."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(runtime_check.machine, "namespaces_denied", lambda: None if namespaces else "none here")
    path = tmp_path / "b.tar"
    content = wheel({}) if member.endswith(".whl") else b"x"
    path.write_bytes(bundles.build(extra=[(member, content)], python="/usr/bin/python3"))
    with verify.opened(str(path)) as stream:
        assert bytecode.is_possible(verify.begin(stream, str(path)).manifest) is possible
    path.write_bytes(bundles.build(extra=[(member, content)]))
    with verify.opened(str(path)) as stream:
        assert not bytecode.is_possible(verify.begin(stream, str(path)).manifest)
