"""What capture writes on a site is a profile on the laptop."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deployer.cli.laptop.main import main
from deployer.connected.site_profile import drift, search
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.machine import Machine
from deployer.connected.site_profile.plan import make_plan
from deployer.contract.base.errors import Unknown
from deployer.site.capture.capture import CaptureRequest, capture
from deployer.site.capture.software import mpi
from deployer.site.jobs.schedulers import SCHEDULERS
from deployer.system import elf
from tests.running import program

LIBRARY = """
#include <string.h>
int MPI_Init(int *c, char ***v) { return %d; }
int MPI_Get_library_version(char *v, int *n) { strcpy(v, "Intel(R) MPI Library 2021.99"); *n = 28; return 0; }
"""


def compile_library(prefix: Path, number: int, name: str = "libmpi.so.12", build_id: str = "--build-id") -> None:
    (prefix / "lib").mkdir(parents=True, exist_ok=True)
    (prefix / "mpi.c").write_text(LIBRARY % number)
    target = prefix / "lib" / name
    argv = ["cc", "-shared", "-fPIC", f"-Wl,{build_id}", f"-Wl,-soname,{name}", "-o", target, prefix / "mpi.c"]
    subprocess.run(argv, check=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the prefix of an MPI of a site whose tools are fakes on PATH."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler: apt-get install gcc")
    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr(mpi, "_USUAL", ())
    for name in ("LMOD_CMD", "I_MPI_ROOT", "MPI_HOME"):
        monkeypatch.delenv(name, raising=False)
    program(
        tools,
        "sinfo",
        'case "$*" in *version*) echo slurm 23.02.1;; *) '
        'echo "batch*|2|2|24|2|96000|(null)|1:00|1-2|96|(null)|n[1-2]";; esac',
    )
    program(tools, "scontrol", "echo 'ClusterName             = phoenix'")
    program(tools, "srun", "printf 'pmi2\\npmix\\n'")
    program(tools, "bash", "exit 0")
    compile_library(tmp_path / "impi", 0)
    return tmp_path / "impi"


def decided(profile: Path) -> Path:
    """Return a profile with the decisions that a capture lacks."""
    decisions = {
        "format": 1,
        "extends": f"./{profile.name}",
        "workspace": "/scratch/$USER",
        "policy": {"runtimes": ["charliecloud"]},
        "runtimes": {"charliecloud": {"module": "charliecloud"}},
        "partitions": {"batch": {"mpi": "intel-2021.99", "pmi": "pmi2"}},
    }
    path = profile.with_name("phoenix.yaml")
    path.write_text(yaml.safe_dump(decisions))
    return path


@pytest.mark.thorough
def test_the_plan_has_the_identity_of_each_library_that_jobs_get_with_the_mpi(site: Path, tmp_path: Path) -> None:
    compile_library(site, 1, "libopen-pal.so.80", "--build-id")
    compile_library(site, 2, "libfabric.so.1", "--build-id=none")
    path = tmp_path / "phoenix-captured.json"
    capture(CaptureRequest(mpi=[str(site)]), SCHEDULERS.values()).write(str(path))
    mpi = make_plan(profiles.load(str(decided(path))), "tiny:1").mpi
    assert mpi is not None
    others = {str(site / "lib" / name) for name in ("libopen-pal.so.80", "libfabric.so.1")}
    assert {path: elf.identity(path) for path in others} == mpi.libraries
    assert mpi.libraries[str(site / "lib" / "libfabric.so.1")].startswith("sha256:")
    older = profiles.load(str(decided(path)))
    trees = older.mpi["intel-2021.99"].files
    for name, facts in trees.items():
        trees[name] = facts._replace(dynamic=facts.dynamic._replace(build_id=None), sha256=None)
    unknown = make_plan(older, "tiny:1").mpi
    assert unknown is not None
    assert (unknown.identity, unknown.libraries) == (mpi.identity, {})


@pytest.mark.thorough
def test_a_capture_is_a_profile_and_a_few_lines_over_it_make_a_plan(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "phoenix-captured.json"
    capture(CaptureRequest(mpi=[str(site)]), SCHEDULERS.values()).write(str(path))
    profile = profiles.load(str(path))
    assert (profile.name, profile.source.kind) == ("phoenix", "captured")
    assert list(profile.mpi) == ["intel-2021.99"]
    with pytest.raises(Unknown, match="lacks"):
        make_plan(profile, "tiny:1")
    whole = profiles.load(str(decided(path)))
    plan = make_plan(whole, "tiny:1")
    assert plan.mpi is not None
    assert plan.mpi.library == f"{site}/lib/libmpi.so.12"
    assert plan.mpi.identity == whole.mpi["intel-2021.99"].identity
    assert plan.mpi.identity is not None
    assert plan.modules_of("charliecloud") == ["charliecloud"]
    assert (plan.node.sockets, plan.node.cores, plan.node.memory_mb) == (2, 48, 96000)
    assert "MPI_Init" in whole.site_files().files[plan.mpi.library].exports


@pytest.mark.thorough
def test_what_changed_since_is_told(site: Path, tmp_path: Path) -> None:
    seen = []
    for number in (0, 1):
        compile_library(site, number)
        path = tmp_path / f"{number}.json"
        capture(CaptureRequest(mpi=[str(site)]), SCHEDULERS.values()).write(str(path))
        seen.append(profiles.comparable(profiles.load(str(path))))
    assert [each.place for each in drift.between(*seen) if each.severity == drift.ERROR] == [
        "mpi.intel-2021.99.files.lib/libmpi.so.12",
        "mpi.intel-2021.99.identity",
    ]


def test_both_sides_mean_the_same_by_what_holds_for_all_partitions() -> None:
    assert set(drift.SHARED) == set(Machine.model_fields)


# ------------------------------------------------------------------------------------------------ the command line


def test_show_tells_where_each_value_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show", "lab"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("workspace: ")]
    at = (profiles.CURATED / "lab.yaml").read_text().splitlines().index("workspace: ~/deployer") + 1
    assert line.split("#")[1].strip() == f"{os.path.relpath(profiles.CURATED / 'lab.yaml')}:{at}"
    assert main(["profile", "show", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workspace"] == "~/deployer"


def test_validate_takes_several_and_tells_all_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "validate", *search.names(skip_own=True)]) == 0
    for number in (1, 2):
        (tmp_path / f"{number}.yaml").write_text("format: 1\nname: A\n")
    capsys.readouterr()
    assert main(["profile", "validate", str(tmp_path / "1.yaml"), "lab", str(tmp_path / "2.yaml")]) == 2
    said = capsys.readouterr().err
    assert "4 errors" in said
    assert f"{tmp_path}/1.yaml:2: name: " in said
    assert f"{tmp_path}/2.yaml:1: source: is missing" in said


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.yaml").write_text('format: 1\nextends: lab\nglibc: "2.41"\n')
    assert main(["profile", "diff", "lab", str(tmp_path / "b.yaml")]) == 0
    assert "changed  partitions.batch.glibc: 2.36 -> 2.41" in capsys.readouterr().out
    assert main(["profile", "diff", "lab", str(tmp_path / "b.yaml"), "--json"]) == 0
    found, extends = json.loads(capsys.readouterr().out)["differences"]
    assert (extends["place"], extends["severity"]) == ("extends", "note")
    assert (found["was"], found["now"], found["severity"]) == ("2.36", "2.41", "warning")
