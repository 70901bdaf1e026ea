"""What commands print for people: it fits into 80 columns, and colour adds nothing to the text."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from deployer.cli.laptop import bundles as bundle_commands
from deployer.cli.laptop import deploy as deploy_command
from deployer.cli.laptop import main as laptop
from deployer.cli.site import common
from deployer.cli.site import main as site
from deployer.connected.deploy.packing import DeployStage
from deployer.contract.base import json_records
from deployer.contract.bundle.job import Job
from deployer.contract.rules.findings import ERROR, WARNING, Finding
from deployer.contract.rules.verdict import judged
from deployer.site.doctor import ladder
from deployer.site.doctor.climb import BROKEN, OK, SKIPPED, Climb, Step
from deployer.site.jobs.jobs import JobState
from tests import bundles
from tests.unit.connected.ground.reports.test_job_page import RESULT
from tests.unit.site.jobs.test_jobs import job

SGR = re.compile("\x1b\\[[0-9;]*m")
FINDINGS = [
    Finding("mpi.family", ERROR, "/usr/bin/x", "it is built for libmpi.so.40", "build it for MPICH"),
    Finding("fabric.tcp", WARNING, "/usr/bin/y", "it is slow", "accept it"),
]
STEPS = [
    Step("kernel", OK, "Linux 5.10, " + "user namespaces, " * 6, 0.1),
    Step("gpu", SKIPPED, "no GPU", 0.0),
    Step("mpi", BROKEN, "no library", 3.2, "load a module"),
]
#: Commands that print tables or lists, which fit; and those that also print paths, findings or programs whole.
TABLES = [
    (laptop, ["profile", "list"]),
    (laptop, ["cache", "prune", "--dry-run"]),
    (laptop, ["explain"]),
    (laptop, ["explain", "mpi.family"]),
    (laptop, ["report", "results"]),
    (laptop, ["inspect", "b.tar"]),
    (laptop, ["diff", "b.tar", "c.tar"]),
    (site, ["list", "--root", "root"]),
    (site, ["jobs", "--root", "root"]),
    (site, ["status", "--root", "root"]),
    (site, ["doctor", "--root", "root"]),
    (site, ["explain"]),
]
HEADED = [(laptop, ["profile", "list"]), (laptop, ["config"]), (site, ["jobs", "--root", "root"])]
HEADED += [(laptop, ["cache", "prune", "--dry-run"]), (site, ["list", "--root", "root"])]
OTHERS = [
    (laptop, ["cache", "list"]),
    (laptop, ["config"]),
    (laptop, ["profile", "validate", "lab"]),
    (laptop, ["profile", "show", "lab"]),
    (laptop, ["profile", "diff", "lab", "lab-openmpi"]),
    (laptop, ["init", "mine", "--dry-run"]),
    (laptop, ["check", "b.tar", "--site", "lab"]),
    (laptop, ["verify", "b.tar"]),
    (laptop, ["psuh"]),
    (site, ["verify", "b.tar"]),
    (site, ["receipt", "--root", "root", "-o", "receipt.json"]),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two bundles, a result, and the root folder of a site with an image and a job."""
    folder = tmp_path_factory.mktemp("outputs")
    train = Job("train", ["python3", "train.py"], 1, 1, 1, "00:10:00")
    (folder / "b.tar").write_bytes(bundles.build(jobs=[train]))
    (folder / "c.tar").write_bytes(bundles.build(version="2.0"))
    (folder / "results").mkdir()
    payload = {"workload": "digits", "unit": "images/s", "values": [10.0, 11.0, 12.0]}
    figures = {"schema": "deployer.result", "format": 1, "min_reader": 1, **RESULT, "payload": payload}
    (folder / "results" / "result.json").write_bytes(json_records.dumps(figures))
    assert site.main(["install", str(folder / "b.tar"), "--root", str(folder / "root")]) == 0
    job(SimpleNamespace(jobs=str(folder / "root" / "jobs")), "tiny-train-20261101T000000-0001", "11", exit_code=0)
    return folder


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(place / name))
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "DEPLOYER_COLOUR", "DEPLOYER_SITE"):
        monkeypatch.delenv(name, raising=False)
    running = JobState("RUNNING", "", "0:01", "cn1", True)
    monkeypatch.setattr("deployer.site.jobs.jobs.states", lambda known: {number: running for number, _ in known})
    monkeypatch.setattr("deployer.site.jobs.jobs.state", lambda *_: JobState("COMPLETED", "", "0:01", "cn1", False))

    def examine(ground: object, tell: Callable[[Step], None]) -> Climb:
        for step in STEPS:
            tell(step)
        return Climb(STEPS, None)

    monkeypatch.setattr(ladder, "examine", examine)


def twice(
    show: Callable[[], object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """Return what is printed without colour and with it, after both streams of each were joined."""
    said = []
    for name in ("NO_COLOR", "FORCE_COLOR"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "1")
            show()
        shown = capsys.readouterr()
        said.append(shown.out + shown.err)
    return said[0], said[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("front", "words"),
    [*TABLES, *OTHERS],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part.__name__.split(".")[2],
)
def test_output_fits_and_is_the_same_without_colour(
    front: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, coloured = twice(lambda: front.main(words), capsys, monkeypatch)
    assert plain.strip()
    assert "\x1b" not in plain
    assert SGR.sub("", coloured) == plain
    if (front, words) in TABLES:
        assert [line for line in plain.splitlines() if len(line) > 80] == []


@pytest.mark.thorough
def test_all_commands_with_a_table_have_a_heading_in_bold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for front, words in HEADED:
        _, coloured = twice(lambda: front.main(words), capsys, monkeypatch)  # noqa: B023
        lines = coloured.splitlines()
        assert any(re.fullmatch(r"\x1b\[1m[A-Z ]+\x1b\[0m", line) for line in lines[:2]), words


def pushed() -> None:
    done = SimpleNamespace(
        sent=10**6, folder="/r/images/x", seconds_transfer=1.0, seconds_install=2.0, python="3.6.15", squashfs=None
    )
    bundle_commands._show_pushed(SimpleNamespace(json=False, squashfs=False), done)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "show",
    [
        lambda: common.show(judged(FINDINGS, ["fabric.tcp"]), ["with MPICH 4.2, srun (pmi2), charliecloud"]),
        lambda: [deploy_command._show(DeployStage(name, "done", 1.2, "x")) for name in ("build", "rehearse")],
        pushed,
    ],
)
def test_parts_of_longer_outputs(
    show: Callable[[], object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, coloured = twice(show, capsys, monkeypatch)
    assert plain
    assert SGR.sub("", coloured) == plain


@pytest.mark.thorough
def test_programs_get_no_colour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for front, words in ((laptop, ["profile", "list", "--json"]), (site, ["list", "--root", "root", "--json"])):
        assert front.main(words) == 0
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        assert "next: " not in said.err


@pytest.mark.parametrize("words", [["-q", "check"], ["check", "--quiet"]])
def test_quiet_leaves_out_hints(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert laptop.main(["check", "b.tar", "--site", "lab"]) in (0, 3, 8)
    talks = capsys.readouterr()
    laptop.main([*words, "b.tar", "--site", "lab"])
    silent = capsys.readouterr()
    assert silent.err == ""
    assert set(silent.out.splitlines()) <= set(talks.out.splitlines())
    assert laptop.main([*words, "none.tar", "--site", "lab"]) != 0
    assert {line.split(":")[0] for line in capsys.readouterr().err.splitlines()} <= {"deployer", "hint"}
