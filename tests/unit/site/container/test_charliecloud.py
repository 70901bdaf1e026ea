"""ch-run's argv: nothing of the host comes in unless it is listed, and values arrive as they are."""

import subprocess

import pytest

from deployer.contract.base.errors import UsageError
from deployer.contract.base.shell import argv
from deployer.contract.site.plan import Bind
from deployer.site.container import runtime_check
from deployer.site.container.runtimes import RUNTIMES, charliecloud
from deployer.site.container.runtimes.interface import Container, Here
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


# --- the one of the kit ---

carried = RUNTIMES["charliecloud-kit"]


def engine(folder, script):
    """Return the engine of an image with a ch-run that is ``script``."""
    place = folder / "a b" / "engine"
    (place / "charliecloud").mkdir(parents=True)
    running.program(place / "charliecloud", "run", script)
    return str(place)


def test_the_kits_is_started_from_the_images_folder_with_the_same_words():
    made = Container("/i/rootfs", [], {"A": "1"}, [], "/w", "/i/a b/engine")
    assert carried.argv(made, ["true"]) == ["/i/a b/engine/charliecloud/run", *runtime.argv(made, ["true"])[1:]]
    joined = carried.into_mounted(made, "/stage")
    assert [word for word in joined if word == carried.starter(made.engine)] == [joined[5]]


def test_the_kits_is_used_if_the_bundle_has_it_and_it_starts(tmp_path):
    assert runtime_check.objection(carried, [], str(tmp_path), here=False) == (
        "the bundle was packed without Charliecloud's kit"
    )
    assert runtime_check.objection(carried, [], engine(tmp_path / "1", "echo 0.31"), here=False) is None
    broken = runtime_check.objection(carried, [], engine(tmp_path / "2", "echo libc.so.6: no >&2; exit 127"), False)
    assert broken.endswith("/charliecloud/run does not start: libc.so.6: no")
    foreign = engine(tmp_path / "3", "")
    with open(foreign + "/charliecloud/run", "wb") as stream:
        stream.write(b"\x7fELF of another processor")
    assert "cannot start" in runtime_check.objection(carried, [], foreign, here=False)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("echo 0.31 >&2", None),
        ("echo 0.38", None),
        ("echo 0.45.2~pre+1", None),
        ("echo unknown", None),
        ("echo 0.30", "ch-run 0.30 is too old: deployer uses 0.31 or newer"),
        ("echo 0.9.10", "ch-run 0.9.10 is too old: deployer uses 0.31 or newer"),
        ("echo no library >&2; exit 127", None),  # it may start on the nodes
    ],
)
def test_the_sites_is_used_if_it_is_new_enough(tmp_path, monkeypatch, said, expected):
    running.program(tmp_path, "ch-run", said)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert runtime_check.objection(runtime, ["intel-mpi/2021"], "", here=False) == expected
    # The module may bring another one.
    assert runtime_check.objection(runtime, ["charliecloud/0.38"], "", here=False) is None


#: Notes its words and its own environment, and becomes the command, with the host's environment as it is.
_CH_RUN = """\
echo "$@" >"$0.words"; env -0 >"$0.env"
while [ "$1" != -- ]; do shift; done
shift; exec "$@"
"""


def _variables(text):
    found = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
    for name in ("PWD", "SHLVL", "_"):  # of the shell that is ch-run here
        found.pop(name, None)
    return found


@pytest.mark.parametrize("bare", [True, False])
def test_a_ch_run_that_joins_with_the_hosts_environment_gets_the_right_one(tmp_path, bare):
    """0.45.2 leaves the environment as it is with --join-pid; the holder has written that down, after the number."""
    (tmp_path / "pid").write_text("77 bare\n" if bare else "77\n")
    running.program(tmp_path, "ch-run", _CH_RUN)
    values = {"A": "x=y  z", "QUOTED": "'q'", "ODD": '$HOME "`id`" *', "LINES": "a\nb", "EMPTY": "", "PATH": "/usr/bin"}
    made = Container("/i", [], values, ["SLURM_*", "PMI_RANK"], "/w")
    words = argv(runtime.into_mounted(made, str(tmp_path)))
    host = {"PATH": f"{tmp_path}:/usr/bin:/bin", "USER": "alice", "SLURM_A": "a b", "PMI_RANK": "1", "PMI_SIZE": "2"}
    host.update(
        {"A": "old", "BASH_FUNC_ml%%": "() { :; }", "BASH_ENV": "/none", "LD_LIBRARY_PATH": "/none", "run": "x"}
    )
    said = subprocess.check_output([*words, "/i", "--", "env", "-0"], env=host).decode()
    passed = {"USER": "alice", "SLURM_A": "a b", "PMI_RANK": "1"}
    outside = {name: value for name, value in host.items() if name not in ("BASH_FUNC_ml%%", "run")}
    found = {name: value for name, value in _variables(said).items() if bare or name != "run"}  # the script's own, too
    assert found == ({**passed, **values} if bare else outside)
    words = (tmp_path / "ch-run.words").read_text()
    start = "--join-pid=77 " + ("" if bare else "--unset-env=!(SLURM_*|PMI_RANK) ")
    assert words.startswith(start + "--env-no-expand ")
    assert words.endswith(" env -0\n")
    assert "--cd=/w /i -- " in words


#: What a loader, a shell or an interpreter obeys before a program's own first line.
_OBEYED = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "BASH_ENV",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "PYTHONPATH",
    "PATH",
]


def test_nothing_that_an_image_sets_applies_to_ch_run(tmp_path):
    """Not even its PATH, by which another ch-run would be found."""
    (tmp_path / "pid").write_text("77 bare\n")
    running.program(tmp_path, "ch-run", _CH_RUN)
    made = Container("/i", [], dict.fromkeys(_OBEYED, "/of/the/image"), [], "/w")
    host = {"PATH": f"{tmp_path}:/usr/bin:/bin", "USER": "alice", "LD_LIBRARY_PATH": "/of/the/host"}
    words = [*argv(runtime.into_mounted(made, str(tmp_path))), "/i", "--", "/usr/bin/env", "-0"]
    said = subprocess.run(words, env=host, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    inside = _variables(said.stdout.decode())
    assert inside == {**dict.fromkeys(_OBEYED, "/of/the/image"), "USER": "alice"}
    assert _variables((tmp_path / "ch-run.env").read_text()) == host


def test_a_word_of_the_command_is_not_obeyed(tmp_path):
    (tmp_path / "pid").write_text("77 bare\n")
    running.program(tmp_path, "ch-run", _CH_RUN)
    host = {"PATH": f"{tmp_path}:/usr/bin:/bin", "USER": "alice"}
    words = argv(runtime.into_mounted(Container("/i", [], {"PATH": "/usr/bin"}, [], "/w"), str(tmp_path)))
    words += ["/i", "--", "printf", "%s|", "--set-env=NOT=1", "--", "a  b", ""]
    assert subprocess.check_output(words, env=host) == b"--set-env=NOT=1|--|a  b||"
