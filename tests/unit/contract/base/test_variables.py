"""Variables of jobs and users: what is possible, and what is refused with what to do instead."""

import pytest

from deployer.contract.base import variables
from deployer.contract.base.errors import UsageError


@pytest.mark.parametrize(
    "value",
    ["", "a=b", "a\nb", "'x'", '"', "$HOME `id` $(id)", ":$x", " ", "\u00e9\u6f22", "\x1b", "\udcff", "x" * 100_000],
)
def test_any_value_is_possible(value):
    assert variables.parse(["A=1", "A=" + value]) == {"A": value}


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("NCCL_DEBUG", "--env NCCL_DEBUG has no =", 'for your own value: --env NCCL_DEBUG="$NCCL_DEBUG"'),
        ("A B", "--env A B has no =", "write --env NAME=VALUE"),
        ("", "--env  has no =", "write --env NAME=VALUE"),
        ("=x", "--env : not a name for an environment variable", "letters, digits"),
        ("A-B=x", "--env A-B: not a name", "letters, digits"),
        ("1A=x", "--env 1A: not a name", "letters, digits"),
        ("A\n=x", "--env A\\n: not a name", "letters, digits"),
        ("BASH_FUNC_x%%=() { :; }", "--env BASH_FUNC_x%%: not a name", "letters, digits"),
        ("LD_LIBRARY_PATH=/x", "because the site's MPI is found by it", "$LD_LIBRARY_PATH:DIR"),
        ("PATH=/x", "because deployer adds the folders of the bundle's packages", "$PATH:DIR"),
        ("HOME=/x", "because a job has a private home on each node", "--home DIR"),
        ("UID=5", "because shells set it", "choose another name"),
        ("PREPEND_PATH=/x", "because Apptainer would change PATH by it", "choose another name"),
        ("PYTHONNOUSERSITE=", "because it keeps packages of the home out", "--user-site"),
        ("SLURM_PROCID=0", "because the launcher tells the ranks their numbers by it", "leave it out"),
        ("PMIX_RANK=0", "because the launcher", "leave it out"),
        ("DEPLOYER_RESULT=/x", "because deployer or the runtime uses it", "another name"),
        ("A=" + "x" * 131_072, "--env A: the value has 131074 bytes, more than a process", "into a file"),
        ("A=a\0b", "--env A: invalid value", "write it without"),
    ],
)
def test_what_cannot_be_set_is_refused_in_one_line(word, message, hint):
    with pytest.raises(UsageError) as error:
        variables.parse([word])
    assert message in error.value.message
    assert error.value.message.isprintable()
    assert hint in error.value.hint


def test_settings_of_open_mpi_s_components_are_the_user_s():
    names = ("OMPI_MCA_btl", "PMIX_MCA_gds", "I_MPI_DEBUG", "LD_PRELOAD", "TMPDIR", "CUDA_VISIBLE_DEVICES")
    assert set(variables.parse([name + "=x" for name in names])) == set(names)


def test_there_is_a_limit_for_all_together():
    with pytest.raises(UsageError, match="more than 1048576 bytes in all"):
        variables.parse(["A%d=%s" % (number, "x" * 120_000) for number in range(9)])


def test_a_variable_that_leads_to_the_site_s_files_is_the_plan_s():
    plan = {"I_MPI_ROOT": "/opt/mpi", "MANY": "a:/deployer/host/lib", "SCRATCH": "/scratch", "NEAR": "/opt/mpi-2"}
    folders = ["/opt/mpi", "/deployer/host"]
    variables.check_plan(["SCRATCH", "OTHER", "NEAR"], plan, folders)
    for name in ("I_MPI_ROOT", "MANY"):
        with pytest.raises(UsageError, match=f"--env {name}: .* the plan sets it to"):
            variables.check_plan([name], plan, folders)
