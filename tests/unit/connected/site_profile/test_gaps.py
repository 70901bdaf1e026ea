"""What a profile lacks for a plan is listed all at once, and the lines that are printed make it whole."""

import json
from pathlib import Path

import pytest
import yaml

from deployer.cli.laptop.main import main
from deployer.connected.site_profile import gaps, search
from deployer.connected.site_profile import profile as profiles
from deployer.connected.site_profile.plan import make_plan
from deployer.contract.site.plan import MPICH_ABI

BARE = "format: 1\nname: bare\nsource: {kind: document, where: a test}\n"


def printed(text: str) -> str:
    """Return the profile that is printed at the end of ``text``."""
    return text[text.rindex("format: 1\n") :]


def test_all_that_is_missing_is_listed_with_lines_that_make_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # its path is printed as it is seen from here, and whole
    bare = tmp_path / "bare.yaml"
    bare.write_text(BARE + "partitions: {cn.big: {nodes: 3}, gpu: {}}\nscheduler: {kind: slurm}\n")
    for command in (["profile", "validate"], ["profile", "show"]):
        assert main([*command, str(bare)]) == 0
        shown = capsys.readouterr().out
        for place in ("login.host", "workspace", "policy", "partitions.cn.big.node", "partitions.gpu.pmi"):
            assert f"  {place}\n" in shown
        pasted = tmp_path / "pasted.yaml"
        pasted.write_text(printed(shown))
        whole = profiles.load(str(pasted))
        assert gaps.find(whole) == []
        assert make_plan(whole, "x:1", (MPICH_ABI,), "cn.big").node.cores
        assert max(map(len, shown.replace(str(bare), "").splitlines())) <= 80


@pytest.mark.parametrize("kind", ["gridengine", "pbs", "lsf"])
def test_a_draft_of_a_site_without_slurm(tmp_path: Path, kind: str) -> None:
    """Nothing is known that could start ranks: plans cannot be made, and the other gaps are listed too."""
    bare = tmp_path / "bare.yaml"
    bare.write_text(f"{BARE}scheduler: {{kind: {kind}}}\npartitions: {{batch: {{}}}}\n")
    profile = profiles.load(str(bare))
    found = gaps.find(profile)
    places = [".".join(gap.place) for gap in found]
    assert {"workspace", "policy", "partitions.batch.launchers", "partitions.batch.node"} <= set(places)
    pasted = tmp_path / "pasted.yaml"
    pasted.write_text("\n".join(gaps.lines(profile, found, str(bare))))
    whole = profiles.load(str(pasted))
    assert gaps.find(whole) == []
    assert make_plan(whole, "x:1", (MPICH_ABI,), "batch").node.cores


def test_a_profile_without_partitions(tmp_path: Path) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text(BARE)
    profile = profiles.load(str(bare))
    found = gaps.find(profile)
    assert ("partitions",) in [gap.place for gap in found]
    pasted = tmp_path / "pasted.yaml"
    pasted.write_text("\n".join(gaps.lines(profile, found, str(bare))))
    assert gaps.find(profiles.load(str(pasted))) == []


def test_the_gaps_of_one_profile_are_not_those_of_the_next(tmp_path: Path) -> None:
    listed = []
    for kind, more in (("slurm", ""), ("gridengine", "launchers: [mpiexec.hydra]\n")):
        bare = tmp_path / f"{kind}.yaml"
        bare.write_text(f"{BARE}scheduler: {{kind: {kind}}}\n{more}")
        profile = profiles.load(str(bare))
        listed.append("\n".join(gaps.lines(profile, gaps.find(profile), str(bare))))
    assert "pmi: pmi2" in listed[0]
    assert "pmi:" not in listed[1]


def test_what_no_line_would_mend_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.yaml"
    mpi = "{family: openmpi, prefix: /usr}"
    lab = f"format: 1\nextends: lab\nmpi: {{c: {mpi}}}\npartitions: {{batch: {{mpi: c, pmi: pmix}}}}\n"
    own.write_text(lab)
    assert main(["profile", "validate", str(own)]) == 0
    shown = capsys.readouterr().out
    assert "it is among the system's own libraries in /usr" in shown
    assert "extends:" not in shown


@pytest.mark.thorough
@pytest.mark.parametrize("name", search.names(skip_own=True))
def test_of_each_curated_profile(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "validate", name, "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"][name]
    assert main(["profile", "validate", name]) == 0
    shown = capsys.readouterr().out
    assert all(each["place"] in shown for each in missing)
    if any(each["place"] for each in missing):
        (tmp_path / "mine.yaml").write_text(printed(shown))
        assert not [gap for gap in gaps.find(profiles.load(str(tmp_path / "mine.yaml"))) if gap.place]
        assert yaml.safe_load(printed(shown))["extends"] == name


def test_the_lab_lacks_nothing() -> None:
    assert gaps.find(profiles.load("lab")) == []
