"""ch-run's argv: nothing of the host comes in unless it is listed, and values arrive as they are."""

import subprocess

import pytest

from deployer.contract.errors import UsageError
from deployer.contract.plan import Bind
from deployer.contract.shell import argv
from deployer.site.runtimes import RUNTIMES, charliecloud
from deployer.site.runtimes.interface import Container, Here
from tests import running

runtime = RUNTIMES["charliecloud"]


def test_argv_is_one_word_an_option_and_the_environment_comes_after_what_is_unset():
    binds = [Bind("/a b", "/data", "why")]
    made = Container("/i/rootfs", binds, {"B": "2", "A": "$x:y"}, ["SLURM_*", "PMI_RANK"], "/w")
    assert runtime.argv(made, ["sh", "-c", "true"]) == [
        "ch-run",
        "--unset-env=!(SLURM_*|PMI_RANK)",
        "--env-no-expand",
        "--set-env=A=$x:y",
        "--set-env=B=2",
        "--bind=/a b:/data",
        "--cd=/w",
        "/i/rootfs",
        "--",
        "sh",
        "-c",
        "true",
    ]


def test_joining_names_the_job():
    assert runtime.join_options(4, '"$X"') == ["--join-ct=4", '--join-tag="$X"']


def test_nothing_passes_where_nothing_is_listed():
    assert charliecloud.all_but([]) == "*"


@pytest.mark.parametrize("name", ["A|B", "A)", "", "A B", "!(X)", "[A]"])
def test_a_name_cannot_open_the_gate(name):
    with pytest.raises(UsageError):
        charliecloud.all_but([name])


@pytest.mark.parametrize(
    ("value", "written"), [("v", "v"), ("", ""), ("'v'", "''v''"), ("'", "'"), ("''", "''''"), ("it's", "it's")]
)
def test_quotes_survive(value, written):
    assert charliecloud.assignment("A", value) == "A=" + written


def test_a_colon_in_a_bind_is_refused():
    with pytest.raises(UsageError, match="has a colon"):
        runtime.options(Container("/i", [Bind("/a:b", "/data", "")], {}, [], "/"))


def test_veto():
    assert runtime.veto(Here(None, [], "")) == "no ch-run in PATH"
    assert runtime.veto(Here(None, ["charliecloud/0.38"], "")) is None
    assert runtime.veto(Here("/usr/bin/ch-run", [], "")) is None


@pytest.mark.parametrize("bare", [True, False])
def test_a_ch_run_that_joins_with_the_hosts_environment_gets_the_right_one(tmp_path, bare):
    """0.45.2 leaves the environment as it is with --join-pid; the holder has written that down, after the number."""
    (tmp_path / "pid").write_text("77 bare\n" if bare else "77\n")
    program = running.program(tmp_path, "ch-run", 'echo "$@" >"$0.words"; exec env -0\n')
    values = {"A": "x=y  z", "QUOTED": "'q'", "ODD": '$HOME "`id`" *', "LINES": "a\nb", "EMPTY": "", "PATH": "/usr/bin"}
    made = Container("/i", [], values, ["SLURM_*", "PMI_RANK"], "/w")
    words = argv(runtime.into_mounted(made, str(tmp_path)))
    words[words.index("ch-run")] = program
    host = {"PATH": "/usr/bin:/bin", "USER": "alice", "SLURM_A": "a b", "PMI_RANK": "1", "PMI_SIZE": "2", "A": "old"}
    host.update({"BASH_FUNC_ml%%": "() { :; }", "BASH_ENV": "/none", "LD_LIBRARY_PATH": "/none"})
    said = subprocess.check_output([*words, "/i", "--", "cmd", "--set-env=NOT=1"], env=host).decode()
    found = dict(entry.split("=", 1) for entry in said.split("\0") if entry)
    for name in ("PWD", "SHLVL", "_"):  # the shell's own
        found.pop(name, None)
    passed = {"USER": "alice", "SLURM_A": "a b", "PMI_RANK": "1"}
    assert found == ({**passed, **values} if bare else {k: v for k, v in host.items() if not k.startswith("BASH_FUNC")})
    with open(program + ".words") as stream:
        said = stream.read()
    assert said.startswith("--join-pid=77 --unset-env=!(SLURM_*|PMI_RANK) --env-no-expand ")
    assert said.endswith("--cd=/w /i -- cmd --set-env=NOT=1\n")
