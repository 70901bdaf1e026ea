"""The kit's age, made by Debian's Go compiler: it needs no library, and decrypts what Debian's own age encrypted."""

import os
import subprocess
from pathlib import Path

import pytest

from deployer.connected.bundle import kit
from deployer.contract.elf import dynamic

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.needs("root", "mmdebstrap", "age")]


def test_it_decrypts_in_a_root_without_any_library(tmp_path: Path) -> None:
    members = kit.members("age", os.uname().machine, print)
    program, readme = (members[f"deployer/kit/{name}"] for name in ("age", "README.age"))
    content = program.read_bytes()
    facts = dynamic.read(lambda offset, size: content[offset : offset + size])
    assert facts is None or not (facts.interpreter or facts.needed)
    assert "Google LLC" in readme.read_text()
    (tmp_path / "age").write_bytes(content)
    (tmp_path / "age").chmod(0o755)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    encrypt = ["age", "--encrypt", "-R", tmp_path / "key.pub", "-o", tmp_path / "secret.age"]
    subprocess.run(encrypt, input=b"a bundle", check=True)
    decrypt = ["chroot", tmp_path, "/age", "--decrypt", "-i", "/key", "/secret.age"]
    assert subprocess.run(decrypt, check=True, capture_output=True).stdout == b"a bundle"
