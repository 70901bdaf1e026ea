"""A program that a laptop lacks is named when it is first needed, with the command that installs it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deployer.connected.bundle import kit
from deployer.connected.bundle.kit import fetch
from deployer.connected.ground import engine, sign
from deployer.connected.ground.scratch import Scratch
from deployer.connected.image.bases import base
from deployer.connected.image.definition.definition import Base
from deployer.connected.image.definition.settings import BuildSettings
from deployer.connected.linker.starts.shell import shell_syntax
from deployer.connected.rehearse.world import machine
from deployer.connected.rootfs import archive
from deployer.connected.site_profile import profile
from deployer.connected.transfer.remote import Remote
from deployer.contract.base.errors import MissingTool
from deployer.system import process

_KIT = kit.PARTS["squashfs-tools"].recipe
_TOOLS = _KIT.tools(os.uname().machine)


def _connect() -> None:
    with Remote(profile.load("lab")):
        pass


def _debian() -> None:
    base.debian_tarball(Base(debian="bookworm"), BuildSettings(), print)


def _kit_packages() -> None:
    fetch.debian(_KIT, list(_KIT.pins()), Path("work"), BuildSettings(), [], "x86_64")


def _unpack(name: str) -> Callable[[], object]:
    return lambda: _KIT.unpack(Path(name), Path("unpacked"))


def _squashfs() -> None:
    Path("image").write_bytes(b"hsqs")
    with Scratch(Path()) as scratch:
        archive.read_image(Path("image"), scratch)


#: Each program, what needs it, and the words of the error and its hint that name the program and its installation.
_NEEDED: list[tuple[str, Callable[[], object], str]] = [
    ("ssh", _connect, "apt-get install openssh-client"),
    ("ssh-keygen", lambda: sign.made(b"message", Path("key")), "apt-get install openssh-client"),
    ("mmdebstrap", _debian, "apt-get install mmdebstrap"),
    ("mmdebstrap", _kit_packages, "apt-get install mmdebstrap"),
    ("gcc", lambda: _KIT.key(os.uname().machine), "apt-get install gcc"),
    ("make", lambda: _TOOLS.compile("mksquashfs", ["make"], Path()), "apt-get install gcc libc6-dev make"),
    ("strip", lambda: _TOOLS.strip(Path("key"), Path("stripped")), "apt-get install gcc"),
    ("dpkg-deb", _unpack("x.deb"), "apt-get install dpkg"),
    ("tar", _unpack("x.tar.gz"), "apt-get install tar"),
    ("ip", lambda: machine.ip(["link"]), "apt-get install iproute2"),
    ("shfmt", lambda: shell_syntax.statements("true", "bash"), "pip install shfmt-py"),
    ("sqfs2tar", _squashfs, "apt-get install squashfs-tools-ng"),
    ("Docker", engine.connect, "apt-get install docker.io"),
]


@pytest.mark.parametrize(("program", "need", "installed_by"), _NEEDED, ids=[name for name, *_ in _NEEDED])
def test_the_error_names_it_and_its_installation(
    program: str, need: Callable[[], object], installed_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    with pytest.raises(MissingTool) as caught:
        need()
    assert program in caught.value.message
    assert installed_by in caught.value.hint


def test_a_program_that_is_not_ours_has_a_general_hint(tmp_path: Path) -> None:
    with pytest.raises(MissingTool) as caught:
        process.run([os.path.join(str(tmp_path), "nothing")], 5)
    assert caught.value.hint == "is it installed, and in PATH?"
