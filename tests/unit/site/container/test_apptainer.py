"""Apptainer's argv, and the script that starts it, with a stand-in; the real one is in tests/integration."""

import subprocess

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import Program, Variable, Word, argv
from deployer.contract.site.plan import Bind
from deployer.site.container.runtimes import RUNTIMES
from deployer.site.container.runtimes.interface import Container, Staged

#: Prints its words, then its environment; ``HELP`` is what it prints about its options.
STAND_IN = """\
#!/bin/bash -p
if [ "$1 $2" = "exec --help" ]; then echo "%s"; exit; fi
printf '%%s\\0' "$@" "" && exec env -0
"""
ENVIRONMENT = {"HOME": Word(Variable("home")), "PATH": "/opt/bin:/bin", "A": "$HOME `id` \\n a\n'b' \"c\""}


def container(**changes):
    made = Container("/i/rootfs", [Bind("/opt/mpi", "/opt/hostmpi", "MPI")], ENVIRONMENT, ["SLURM_*", "PMI_FD"], "/w")
    return made._replace(**changes)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a container with a stand-in; it returns the stand-in's words and environment."""

    def run(made, name="apptainer", says="--no-eval", **environment):
        (tmp_path / name).write_text(STAND_IN % says)
        (tmp_path / name).chmod(0o755)
        known = {"PATH": f"{tmp_path}:/usr/bin:/bin", "home": "/tmp/own", **environment}
        words = argv(RUNTIMES[name].argv(made, ["prog", "a b", "--"]), known)
        out = subprocess.check_output(words, env=known, universal_newlines=True)
        said, _, after = out.partition("\0\0")
        return said.split("\0"), dict(line.split("=", 1) for line in after.split("\0") if line)

    return run


def test_argv_has_one_word_an_option_and_no_mount_of_the_host_but_the_binds(start):
    words, _ = start(container())
    assert words == [
        "--silent",
        "exec",
        "--cleanenv",
        "--no-home",
        "--no-mount=home,cwd,tmp,hostfs,bind-paths",
        "--home=/tmp/own",
        "--bind=/tmp:/tmp",
        "--bind=/opt/mpi:/opt/hostmpi",
        "--pwd=/w",
        "/i/rootfs",
        "prog",
        "a b",
        "--",
    ]


def test_only_what_is_passed_or_set_reaches_the_container(start):
    hostile = {
        "SLURM_PROCID": "3",
        "SLURM_X": "$x",
        "PMI_FD": "7",
        "PMI_FDX": "no",
        "APPTAINERENV_LD_PRELOAD": "/evil.so",
        "SINGULARITYENV_PREPEND_PATH": "/evil",
        "APPTAINER_BIND": "/:/mnt",
        "SINGULARITY_BINDPATH": "/:/mnt",
        "APPTAINER_WRITABLE": "1",
        "SINGULARITY_CONTAINALL": "1",
        "APPTAINERENV_a.b": "evil",
        "SINGULARITYENV_BASH_FUNC_f%%": "() { evil; }",
        "http_proxy": "evil",
        "HTTPS_PROXY": "evil",
        "TERM": "evil",
        "BASH_ENV": "/evil",
    }
    _, found = start(container(), **hostile)
    ours = {name: value for name, value in found.items() if name.startswith(("APPTAINER", "SINGULARITY"))}
    assert ours == {
        "APPTAINERENV_SLURM_PROCID": "3",
        "APPTAINERENV_SLURM_X": "$x",
        "APPTAINERENV_PMI_FD": "7",
        "APPTAINERENV_PATH": "/opt/bin:/bin",
        "APPTAINERENV_A": ENVIRONMENT["A"],
        "APPTAINER_NO_EVAL": "1",
        "APPTAINER_CONFIGDIR": "/proc/none",
        "APPTAINER_NO_NV": "1",
        "APPTAINER_NO_ROCM": "1",
        "APPTAINER_NO_OCI": "1",
    }
    assert not {"http_proxy", "HTTPS_PROXY", "TERM"} & set(found)


def test_the_container_s_own_variables_come_last(start):
    _, found = start(container(environment={"SLURM_X": "ours"}), SLURM_X="host's")
    assert found["APPTAINERENV_SLURM_X"] == "ours"


def test_a_passed_terminal_is_passed(start):
    _, found = start(container(passed=["TERM", "http_proxy"]), TERM="xterm", http_proxy="p")
    assert (found["APPTAINERENV_TERM"], found["APPTAINERENV_http_proxy"]) == ("xterm", "p")
    assert not {"http_proxy", "TERM"} & set(found)


def test_a_singularity_may_be_either_program(start):
    _, found = start(container(), "singularity")
    assert found["SINGULARITYENV_A"] == found["APPTAINERENV_A"] == ENVIRONMENT["A"]
    assert found["SINGULARITY_NO_EVAL"] == "1"


def test_an_old_version_takes_values_as_text_of_a_shell(start, tmp_path):
    values = {"A": ENVIRONMENT["A"], "B": "\\", "C": f"$(touch {tmp_path}/evil)`touch {tmp_path}/evil`\\$"}
    _, found = start(container(environment=values), "singularity", "--env")
    # What it does: internal/pkg/runtime/engine/singularity/process_linux.go of 3.8.4, injectEnvHandler.
    script = "".join(
        'export {}="{}"\n'.format(name, found["SINGULARITYENV_" + name].replace('"', '\\"')) for name in values
    )
    done = subprocess.check_output(["bash", "-c", script + 'printf "%s\\0" "$A" "$B" "$C"'], universal_newlines=True)
    assert done == "{}\0{}\0{}\0".format(values["A"], values["B"], values["C"])
    assert not (tmp_path / "evil").exists()


def test_names_that_no_shell_can_set_are_left_out(start):
    values = {"a.b": "1", "HOME": "/h", "PREPEND_PATH": "/evil", "UID": "0", "GOOD": "1"}
    words, found = start(container(environment=values))
    assert {name for name in found if name.startswith("APPTAINERENV_")} == {"APPTAINERENV_GOOD"}
    assert "--home=/h" in words


@pytest.mark.parametrize("name", ["SLURM_*;id", "A B", "$(id)", "[A]"])
def test_a_glob_that_is_none_is_refused(name):
    with pytest.raises(UsageError):
        RUNTIMES["apptainer"].options(container(passed=[name]))


def test_paths_with_separators_are_bound_by_quoted_fields():
    binds = [
        Bind("/a:b", "/data", "why"),
        Bind('/a,"b', "/x,y", "why"),
        Staged(Word(Variable("stage"), "/host:x"), "/deployer/host", "why"),
        Bind("/a b", "/c", "why"),
    ]
    words = RUNTIMES["apptainer"].binds(binds)
    assert argv(words, {"stage": "/s"}) == [
        '--mount=type=bind,"source=/a:b","destination=/data"',
        '--mount=type=bind,"source=/a,""b","destination=/x,y"',
        '--mount=type=bind,"source=/s/host:x","destination=/deployer/host"',
        "--bind=/a b:/c",
    ]


def test_a_process_starts_elsewhere_by_a_later_word():
    runtime = RUNTIMES["apptainer"]
    assert [*runtime.options(container()), *runtime.starting_in("/x")][-2:] == ["--pwd=/w", "--pwd=/x"]


def test_the_script_is_a_program_of_ours():
    words = RUNTIMES["singularity"].options(container())
    assert words[:3] == ["bash", "-p", "-c"]
    assert isinstance(words[3], Program)
    assert words[4] == "singularity"


@pytest.mark.parametrize("name", ["apptainer", "singularity"])
def test_no_warning_of_the_runtime_and_no_mode_that_starts_no_folder(start, name):
    """SingularityCE 3.10 warns of bind-paths at each start: this was in what the canary read, so each job failed."""
    words, environment = start(container(), name, SINGULARITY_OCI="1")
    assert words[:2] == ["--silent", "exec"]
    assert environment[name.upper() + "_NO_OCI"] == "1"
    assert "SINGULARITY_OCI" not in environment
