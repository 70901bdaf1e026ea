"""Published scripts: a rehearsal names what each reaches for; with its remedy it is clean, and the job runs at once.

By hand: `DEPLOYER_CORPUS_GIT=CLONES .venv/bin/python -m pytest tests/integration/test_rehearse_corpus.py -m slow -s`.
Without clones only scikit-learn's scripts are tried, which Debian's mirror has. The table: docs/evidence/rehearsals.md.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.corpus import definitions, fetch
from tests.corpus.scripts import SCRIPTS, Script
from tests.integration.conftest import ROOT, Cli, Site
from tests.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(9000)]

KINDS = sorted({(script.image, script.mpi) for script in SCRIPTS})


@pytest.fixture(scope="module")
def standins(built: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with data of the same form, made in the image of scikit-learn's scripts, which need none."""
    folder = tmp_path_factory.mktemp("standins")
    (made,) = definitions.write(folder / "definitions", folder, False, _scripts("sklearn", False))
    built("build", made, timeout=1800)
    argv = ["docker", f"--host={built.environment['DOCKER_HOST']}", "run", "--rm", "--network=none"]
    argv += [f"--volume={ROOT}/tests/corpus:/corpus:ro", f"--volume={folder}:/out"]
    argv += [f"deployer/{made.name}:1.0.0", "python3", "/corpus/standins.py", "/out"]
    subprocess.run(argv, check=True, timeout=600)
    return folder


def _scripts(image: str, mpi: bool) -> list[Script]:
    return [each for each in SCRIPTS if (each.image, each.mpi) == (image, mpi) and fetch.available(each)]


@pytest.mark.parametrize(("image", "mpi"), KINDS)
def test_rehearse_remedy_run(built: Cli, lab: Lab, standins: Path, tmp_path: Path, image: str, mpi: bool) -> None:
    scripts = _scripts(image, mpi)
    if not scripts:
        pytest.skip(f"no clones of the sources: {fetch.CLONES} names their folder")
    bundles = []
    for remedied in (False, True):
        (folder,) = definitions.write(tmp_path / str(remedied), standins, remedied, scripts)
        built("build", folder, timeout=3000)
        bundles.append(tmp_path / f"{remedied}.tar")
        built("pack", folder, "--site", "lab", "-o", bundles[-1])
    for script in scripts:
        if script.reaches:
            wanted = [("rehearse.network", script.reaches)]
            assert _errors(_rehearsed(built, bundles[0], script, 3)) == wanted, script.name
        clean = _rehearsed(built, bundles[1], script, 0)
        assert _errors(clean) == [], script.name
        print(script.name, clean["ending"], [each["code"] for each in clean["findings"]], flush=True)
    built("push", bundles[1], "lab", "--ssh-config", lab.ssh_config)
    site = Site(built, lab)
    try:
        for script in scripts:
            limit = 60 * script.minutes
            built("run", *site.options, definitions.names(image, mpi), script.name, "--wait", timeout=limit)
            assert site.result()["exit_code"] == 0, script.name
    finally:
        built("remove", *site.options, definitions.names(image, mpi))


def _rehearsed(cli: Cli, bundle: Path, script: Script, code: int) -> dict[str, list[dict[str, str]]]:
    done = cli("rehearse", bundle, script.name, "--site", "lab", "--json", code=code, timeout=1200)
    record: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return record


def _errors(outcome: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
    """Return code and subject of the errors."""
    return [(each["code"], each["subject"]) for each in outcome["findings"] if each["severity"] == "error"]
