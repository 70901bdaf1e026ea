"""explain: a page for every code that the program can print, in the checkout and in deployer.pyz."""

import re

import pytest

from deployer.cli.site import common
from deployer.cli.site.main import main
from deployer.contract.base import errors, pages
from deployer.contract.base.errors import DeployerError
from deployer.contract.rehearsal import rehearsal
from deployer.contract.rules.findings import RULES, Rule
from deployer.system.tool import documents

EVERY = documents.every_page()
LABELS = ["What", "Why", "Remedy", "Evidence", "Example"]
#: What `status` prints of a job's finding, and `rehearse` of its own.
FORMS = {"job": r"[^:]+: {message} \({code}\)", "rehearse": r"(error|warning|note) {code}: [^:]+: {message}"}


def codes(topic: str) -> set[str]:
    return {page.code for page in EVERY if page.topic == topic}


def test_every_code_of_a_job_and_a_rehearsal_has_a_page_and_no_other() -> None:
    assert codes("job") == set(RULES)
    assert codes("rehearse") == set(rehearsal.RULES)


def test_every_exit_code_has_a_page() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DeployerError)]
    assert {str(kind.exit_code) for kind in kinds} | {"0", "85", "130", "143"} == codes("exit codes")


def test_every_page_has_its_parts_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for page in EVERY:
        labels = [label for label, text in page.parts() if label and text]
        assert labels == [label for label in LABELS if label in labels], page.code
        assert {"What", "Remedy"} <= set(labels), page.code
        assert len(page.summary) > 3, page.code
        lines = "\n".join(page.lines(common.wrapped, common.table)).splitlines()
        assert not [line for line in lines if "**" in line or "``" in line]
        long = [line for line in lines if len(line) > 80]
        assert all(max(map(len, line.split())) > 40 for line in long), long  # only what cannot be split is longer


@pytest.mark.parametrize(("topic", "rules"), [("job", RULES), ("rehearse", rehearsal.RULES)])
def test_examples_are_what_the_program_prints(topic: str, rules: dict[str, Rule]) -> None:
    for page in EVERY:
        if page.topic == topic and page.code in rules:
            message = ".*".join(map(re.escape, re.split(r"\{[^}]*\}", rules[page.code].message)))
            wanted = FORMS[topic].format(code=page.code, message=message)
            example = " ".join(dict(page.parts()).get("Example", "").strip("`").split())
            assert not example or re.fullmatch(wanted, example), example


def test_a_code_of_two_topics_has_both_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "runtime.start"]) == 0
    out = capsys.readouterr().out
    assert "runtime.start (check)" in out
    assert "runtime.start (job)" in out


def test_the_list_has_every_code_once_per_topic_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [page.code for page in EVERY]
    assert max(map(len, lines)) <= 80


def test_an_unknown_code_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "mpi.famly"]) == 2
    assert "no page explains 'mpi.famly', perhaps you meant 'mpi.family'" in capsys.readouterr().err


def test_an_error_names_the_command_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["explain", "no-such"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "more: python3 deployer.pyz explain 2"
    monkeypatch.setenv("DEPLOYER_CALLER", "--site lab")  # the laptop started it
    assert main(["explain", "no-such"]) == 2
    assert capsys.readouterr().err.count("more: deployer explain 2\n") == 1


def test_an_error_with_the_code_of_a_finding_names_that() -> None:
    assert pages.mentioned(EVERY, "rank 1 failed first; see job.sh (payload.failed)") == "payload.failed"
    assert pages.mentioned(EVERY, "cannot read job.json") == ""
