"""No text of ours names the programs of one batch system, except where the site is known to have it."""

import ast
import functools
import re
from pathlib import Path

import pytest

import deployer
from tests.unit.contract.rules.test_batch_words import PROGRAMS

TOP = Path(deployer.__file__).parent
#: Files whose texts are for, or about, one batch system: each is reached only on its sites, or says whose words it has.
OF_ONE = (
    "contract/rules/batch_words.py",
    "site/jobs/schedulers/",
    "site/run/launchers/",
    "site/run/job_script/script.py",
    "site/run/job_script/staging_script.py",
    "site/run/job_script/submission.py",  # where the batch system is Slurm
    "site/jobs/jobs.py",  # states that Slurm alone has
    "site/proof/causes.py",  # patterns for outputs
    "site/proof/memory.py",
    "contract/rehearsal/remedies.py",  # the names of programs that a job looks for, of all batch systems
    "site/doctor/cluster.py",
    "contract/site/plan.py",  # a pattern for directives
    "connected/check/rules/pmi.py",  # plans that start ranks with srun
    "connected/check/rules/spawn.py",  # likewise
    "connected/site_profile/launch.py",  # sites with Slurm, or whose batch system is not known
    "connected/site_profile/gaps.py",  # the source of `pmi`, which Slurm alone has
    "connected/site_profile/summary.py",  # likewise
)


#: The words of a batch system whose meaning is in its class alone: its name, commands and variables.
WORDS_OF = {
    "lsf": r"\b(lsf|LSF|lsid|lshosts|b(sub|jobs|kill|hosts|queues|launch))\b|#BSUB|LSF_|LSB_",
    "pbs": r"\b(pbs|PBS|pbsnodes|pbs_\w+|qstat -[BQ]\w*)\b|#PBS|PBS_",
    "gridengine": r"\b(gridengine|Grid Engine|q(conf|host|rsh))\b|SGE_|PE_HOSTFILE",
}
#: The table of what the laptop needs to know, and the dict of all classes.
TABLES = ("contract/rules/batch_words.py", "site/jobs/schedulers/__init__.py")


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Return (file, text) of each text in the package that is not a documentation string."""
    found = []
    for path in TOP.rglob("*.py"):
        tree = ast.parse(path.read_text())
        documents = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in documents:
                found.append((str(path.relative_to(TOP)), text))
    return found


@pytest.mark.thorough
def test_no_text_names_the_programs_of_one_batch_system() -> None:
    found = {(file, text) for file, text in texts() if " " in text and PROGRAMS.search(text)}
    assert "contract/rules/batch_words.py" in {file for file, _ in found}  # it finds what there is
    assert sorted(each for each in found if not each[0].startswith(OF_ONE)) == []


@pytest.mark.parametrize("kind", WORDS_OF)
def test_no_other_module_has_the_words_of_a_batch_system(kind: str) -> None:
    found = {(file, text) for file, text in texts() if re.search(WORDS_OF[kind], text)}
    own = f"site/jobs/schedulers/{kind}.py"
    assert {own, *TABLES} <= {file for file, _ in found}  # it finds what there is
    assert sorted(each for each in found if each[0] not in (own, *TABLES)) == []
