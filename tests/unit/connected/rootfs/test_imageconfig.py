"""An image's configuration is read strictly: what no site could run is refused when it is packed."""

import re
from pathlib import Path
from typing import Any

import pytest

from deployer.cli.laptop import main as cli
from deployer.connected.bundle import pack as packing
from deployer.connected.rootfs import imageconfig
from deployer.connected.rootfs.archive import ArchiveImage
from deployer.contract.base.errors import UsageError
from deployer.site.install.install import install
from deployer.site.storage.store import Store
from tests.unit.connected.bundle.test_pack import contents


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"WorkingDir": 7}, "WorkingDir must be text, not 7"),
        ({"Cmd": ["a", ["b"]]}, r"Cmd must be text, not \['b'\]"),
        ({"Cmd": "python3 x"}, "Cmd must be a list of texts, not 'python3 x'"),
        ({"Entrypoint": {"a": 1}}, "Entrypoint must be a list of texts"),
        ({"Env": {"A": "1"}}, "Env must be a list of texts"),
        ({"Env": ["A=1", 7]}, "Env must be text, not 7"),
        ({"Env": ["X=\0(touch PWNED)\0"]}, r"Env: X=\\x00\(touch PWNED\)\\x00 has the control character \\x00"),
        ({"WorkingDir": "/\0(touch PWNED)\0"}, "WorkingDir: .* has the control character"),
        ({"WorkingDir": "/a\nb"}, "WorkingDir: .* has the control character"),
        ({"Cmd": ["\ud800"]}, r"half character \\ud800"),
        ({"Labels": ["a"]}, "Labels must be names and texts"),
        ({"Labels": {"a": 1}}, "Labels must be text"),
    ],
)
def test_what_no_site_could_run_is_refused(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    source = contents()

    def read(scratch: Any) -> ArchiveImage:
        assert source.read
        return source.read(scratch)._replace(config=config)

    with pytest.raises(UsageError, match=said) as caught:
        packing.pack(source._replace(read=read), [], tmp_path / "b.tar")
    assert caught.value.lines()[0].isprintable()
    assert list(tmp_path.iterdir()) == []


def test_null_is_nothing() -> None:
    nothing = dict.fromkeys(("Env", "WorkingDir", "Entrypoint", "Cmd", "Labels"))
    assert imageconfig.checked(nothing) == imageconfig.checked({})
    assert imageconfig.checked({}).kept() == {}


def test_variables_that_no_shell_knows_are_left_out_and_named(tmp_path: Path) -> None:
    """Some images have them; the others go on, and nobody executes a name."""
    source, said = contents(), list[str]()
    env = ["PATH=/usr/bin", "my.name=1", "X[$(touch PWNED)]=1", "I_MPI_x; touch PWNED; y=1", "ALONE", "LINES=a\nb"]

    def read(scratch: Any) -> ArchiveImage:
        assert source.read
        return source.read(scratch)._replace(config={"Env": env})

    packed = packing.pack(source._replace(read=read), [], tmp_path / "b.tar", say=said.append)
    assert packed.manifest.image.env == ["PATH=/usr/bin", "LINES=a\nb"]
    assert packed.manifest.changes["variables dropped"] == 4
    names = "my.name, X[$(touch PWNED)], I_MPI_x; touch PWNED; y, ALONE"
    assert said == ["variables of the image left out, because their names are not valid in a shell: " + names]
    assert install(str(packed.path), Store(str(tmp_path / "root"))).image.manifest() == packed.manifest


def test_what_no_site_could_read_is_not_sealed(tmp_path: Path) -> None:
    """Whatever a field holds that a reader refuses: the bundle is not made."""
    with pytest.raises(UsageError, match=r"no site could read the bundle: .*'mpi'"):
        packing.pack(contents()._replace(mpi=["mpich\n"]), [], tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('description: "a\\0b"', "description: .*control character"),
        ('notes: ["a\\eb", "c\\0"]', "notes.1: .*control character"),
        ('modules: ["a\\nb"]', "modules.0: .*control character"),
        ('partitions: {"a\\nb": {}}', r"partitions.a b: 'a\\nb' is not valid"),
        ("partitions: {batch: {environment: {A B: x}}}", "environment.A B: is not a name for a variable"),
        ("mpi: {m: {family: intel, prefix: /x, environment: {'A[$(x)]': x}}}", "is not a name for a variable"),
        ('partitions: {batch: {environment: {A: "a\\nb"}}}', "environment.A: .*control character"),
        ('login: {host: "-oProxyCommand=touch PWNED"}', "login.host: .*must be a host for ssh"),
        ('login: {transfer: "a;touch PWNED"}', "login.transfer: .*must be a host for ssh"),
    ],
)
def test_profiles_hold_no_control_characters(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("format: 1\nextends: lab\n" + text + "\n")
    assert cli.main(["profile", "validate", str(path)]) == 2
    shown = capsys.readouterr().err
    assert re.search(said, shown)
    assert all(line.isprintable() for line in shown.splitlines())
