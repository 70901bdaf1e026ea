"""reproduce with a real engine: hello-mpi is the same again, except for a file with the time of its build."""

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Cli

pytestmark = [pytest.mark.integration, pytest.mark.needs("root", "docker", "mmdebstrap"), pytest.mark.slow]
BUNDLES = Path(__file__).parents[2] / "bundles"


def test_a_file_with_a_time_is_the_only_difference(built: Cli, tmp_path: Path) -> None:
    folder, bundle = tmp_path / "hello", tmp_path / "hello.tar"
    shutil.copytree(BUNDLES / "hello-mpi", folder)
    (folder / "bundle.yaml").write_text((folder / "bundle.yaml").read_text().replace("hello-mpi", "hello-timed"))
    step, timed = "RUN sh /src/rootfs.sh /rootfs\n", "RUN date >/rootfs/etc/built-at\n"
    text = (folder / "Dockerfile").read_text()
    assert step in text
    (folder / "Dockerfile").write_text(text.replace(step, step + timed))
    built("build", folder)
    built("pack", folder, "-o", bundle)
    shutil.rmtree(folder)
    made = json.loads(built("reproduce", bundle, "--json", code=3, timeout=1800).stdout)
    assert made["files"] == [{"path": "/etc/built-at", "change": "changed", "reason": "times in its text"}]
    assert (made["reproduced"], made["packages"], made["settings"]) == (False, [], [])
    assert made["layer"] != made["layer_again"]
    assert made["builder"][0] == made["builder"][1] != ""
