"""A site that demands signatures, as the laptop and as alice meet it: real ssh, ssh-keygen and Python of the site."""

import shutil
import subprocess
from pathlib import Path

from tests.integration.conftest import WORKSPACE, Site


def test_a_root_that_pinned_its_signers(site: Site, bundle: Path, tmp_path: Path) -> None:
    """The first install pins; the same bundle unsigned, and a push of it, are refused with exit code 3."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=30)
    home = site.lab.home / "alice"
    for name in ("unsigned.tar", "signed.tar"):
        shutil.copy(bundle, home / name)
    site.cli("sign", home / "signed.tar", "--key", key)
    (home / "signers").write_text("stager@laptop " + key.with_suffix(".pub").read_text())
    (home / "stranger").write_text("stager@laptop ssh-ed25519 " + "AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43 + "\n")
    for name in ("unsigned.tar", "signed.tar", "signers", "stranger"):
        shutil.chown(home / name, *_owner(home))

    assert "signed by stager@laptop" in site.tool("verify", "signed.tar", "--signers", "signers")
    assert "not among the allowed signers" in site.tool("verify", "signed.tar", "--signers", "stranger", code=3)
    assert "is not signed" in site.tool("verify", "unsigned.tar", "--signers", "signers", code=3)
    try:
        # hello-mpi is installed in the workspace by push: with --signers it is verified and judged all the same.
        said = site.tool("install", "signed.tar", "--root", WORKSPACE, "--signers", "signers")
        assert "requires one of these signers" in said
        assert "is not signed" in site.tool("verify", "unsigned.tar", code=3)
        site.alice(f"mv {WORKSPACE}/images {WORKSPACE}/aside")
        done = site.cli("push", bundle, "lab", "--ssh-config", site.lab.ssh_config, code=3)
        assert "policy.json demands it" in done.stderr
        assert site.alice(f"ls {WORKSPACE}/images") == ""
    finally:
        site.alice(
            f"rm -f {WORKSPACE}/policy.json {WORKSPACE}/allowed_signers signed.tar unsigned.tar; "
            f"if [ -d {WORKSPACE}/aside ]; then rm -rf {WORKSPACE}/images; mv {WORKSPACE}/aside {WORKSPACE}/images; fi"
        )


def _owner(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_uid, state.st_gid
