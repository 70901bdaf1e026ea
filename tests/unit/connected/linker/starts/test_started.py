"""What commands start is found as the shells of this machine start it; what is not certain is unclear."""

import posixpath
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from deployer.connected.linker import commands
from deployer.connected.linker.index import Index, Indexed
from deployer.connected.linker.job_filesystem import FILE, FOLDER, LINK, JobFilesystem, folders_of
from deployer.connected.linker.package_imports import PackageImports
from deployer.connected.linker.starts import started
from deployer.connected.linker.starts.python import python_path
from deployer.connected.linker.starts.python.python_packages import Around, MissingModule
from deployer.connected.linker.starts.removed import Removed
from deployer.connected.linker.starts.started import Started, Surroundings
from deployer.contract.elf.dynamic import Dynamic, Facts
from deployer.contract.site.plan import APP

ELF = Facts(Dynamic(62, "/lib64/ld.so", None, [], [], [], {}, [], False, None), [], [])
PROGRAMS = """
sh bash env nice numactl taskset timeout dirname cat mkdir sed find mpirun xargs seq ls python3 a b c
"""


def files(made: Mapping[str, Any]) -> Index:
    """Return files: None is a program, a text a script or text, a tuple a link."""
    entries, contents = {}, {}
    for path, what in made.items():
        if isinstance(what, tuple):
            entries[path] = Indexed(LINK, what[0])
            continue
        line = what[2:].partition("\n")[0] if what and what.startswith("#!") else ""
        entries[path] = Indexed(FILE, line, ELF if what is None else None, executable=True)
        if what is not None:
            contents[path] = what.encode("utf-8", "surrogateescape")
    return Index({**dict.fromkeys(folders_of(entries), Indexed(FOLDER)), **entries}, contents)


def follow(words: list[str], app: Mapping[str, Any] = {}, image: Mapping[str, Any] = {},
           packages: Mapping[str, PackageImports] = {}, **settings: Any) -> Started:  # fmt: skip
    whole = {f"/usr/bin/{name}": None for name in PROGRAMS.split()}
    found = files({**whole, **image})
    inner = files({f"/{name}": what for name, what in app.items()})
    view = JobFilesystem(found, [(APP, inner)])
    workdir, failing = settings.pop("workdir", APP), settings.pop("failing", None)
    place = commands.place(commands.in_bundle(found, {APP: inner}), ["PATH=/usr/bin:/bin"], workdir)
    environment = {"PATH": place.path, **settings}
    paths = {posixpath.basename(path).partition(".")[0]: path for path in [*found.entries, *inner.entries]}
    around = Around(packages, (), lambda name: paths.get(name, ""))
    at = Surroundings(view, place, "/usr/bin/python3", frozenset(["hvdrun"]), environment, around)
    return started.follow(words, at, failing=failing)


def names(found: Started) -> list[str]:
    return [" ".join(program.argv) for program in found.programs]


def script(text: str, *arguments: str, image: Mapping[str, Any] = {}, **settings: str) -> Started:
    """Follow a script of app/ in bash."""
    return follow(["bash", f"{APP}/run.sh", *arguments], {"run.sh": text}, image, **settings)


@pytest.mark.parametrize(
    ("text", "programs"),
    [
        ("a 1 2", ["a 1 2"]),
        ("cd /tmp && a; b || c", ["a", "b", "c"]),
        ("X=b; $X 1", ["b 1"]),
        ("X=b\nexport Y=c\n${X} 1; $Y \"$X\"", ["b 1", "c b"]),
        ("exec nice -n 5 env A=1 a", ["a"]),
        ("if [ $# -eq 0 ]; then a; else b; fi", ["a"]),
        ("if [ -f /x ]; then a; else b; fi", ["a", "b"]),
        ("f() { a \"$1\"; }\nf 5", ["a 5"]),
        ("f() { a; }", []),
        ("for i in 1 2; do a $i; done", ["a 1", "a 2"]),
        ("for i in $(seq 3); do a $i; done", ["a $i"]),
        ("while read x; do a; done < /x", ["a"]),
        ("out=$(a 1); echo `b` \"$(c)\"", ["a 1", "b", "c"]),
        ("cat <(a) > >(b)", ["b", "a"]),
        ("a | b & wait", ["a", "b"]),
        ("(cd /; a)\n{ b; }", ["a", "b"]),
        ("case x in y) a;; x) b;; *) c;; esac", ["b"]),
        ("case $Z$SLURM_X in y) a;; *) c;; esac", ["a", "c"]),
        ("time a", ["a"]),
        ("! a && b", ["a", "b"]),
        ("set -- b 1; \"$@\"", ["b 1"]),
        ("eval a 1", ["a 1"]),
        ("cmd=(a '1 2'); \"${cmd[@]}\" x", ["a 1 2 x"]),
        ("bash -c 'b \"$1\"' x c", ["b c"]),
        ("bash <<'E'\na 1\nE", ["a 1"]),
        ("exec a\nb", ["a"]),
        ("exit\nb", []),
        ("trap 'a' EXIT; b", ["a", "b"]),
        ("PATH=/opt/x:$PATH; a", ["a"]),
        ("numactl -m $((SLURM_LOCALID % 2)) a", ["a"]),
        ("A=1 B=2 a", ["a"]),
        ("R=${SLURM_LOCALID:-0}\nexec numactl --cpunodebind=${R} --membind=\"$R\" a", ["a"]),
        ("R=${X_RANK:=${PMI_RANK:=0}}; taskset -c $R a; env A=\"$HOSTNAME\" b", ["a", "b"]),
        ("command a; builtin cd /", ["a"]),
        (": ${X:=b}; $X", ["b"]),
        ("X=${Y:-a}; $X", ["a"]),
        ("a 'x y' \"q\\\"r\" z\\ z", ["a x y q\"r z z"]),
        ("a \\\n  1", ["a 1"]),
        ("pushd /usr/bin >/dev/null; ./a; popd; pushd /; cd usr; bin/b", ["./a", "bin/b"]),
    ],
)  # fmt: skip
def test_a_script_is_followed(text: str, programs: list[str]) -> None:
    found = script(text)
    assert names(found) == programs
    assert found.unclear == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "$SLURM_THING", "eval \"$(cat /x)\"", "$(cat x) 1", "source \"$HOME/x\"", ". /nowhere", "mpirun -n 2 a",
        "alias a=b; a", "find . -exec a {} +", "bash", "bash \"$1\" x; bash $SLURM_X", "if x; then", "a ((", "xargs a",
        "nice $SLURM_X a", "exec $SLURM_X", "bash -i -c a", "coproc $SLURM_X", "read X; $X", "PATH=$(cat x); a",
        "while true; do X=a; [ -f x ] && X=b; $X; done", "enable -n cd", "shopt -s expand_aliases; alias x=a",
        "trap \"$SLURM_X\" EXIT", "*", "~/prog", "{a,b}", "cd $SLURM_X; ./prog", "ls | bash", "bash < /x",
        "mapfile -C a x",
        "exec -c a", "./made", "b | time -p a", "numactl --membind=$SLURM_X a",
        "numactl -m$SLURM_LOCALID a", "timeout $SLURM_X a",
    ],
)  # fmt: skip
def test_what_is_not_certain_is_unclear(text: str) -> None:
    assert script(text).unclear


def test_scripts_start_scripts() -> None:
    app = {"run.sh": "#!/bin/sh\ncd \"$(dirname \"$0\")\"\n. ./vars.sh\n./inner.sh \"$@\"\n", "vars.sh": "PROG=b\n",
           "inner.sh": "#!/usr/bin/env -S bash -e\nexec a \"$@\" $PROG\n"}  # fmt: skip
    image = {"/bin": ("usr/bin",)}
    found = follow([f"{APP}/run.sh", "1", "2 3"], app, image)
    assert names(found) == ["a 1 2 3"]  # PROG is not exported
    assert found.programs[0].via == "run.sh line 4, env, inner.sh line 2"
    assert found.unclear == []


def test_what_is_certain() -> None:
    def certain(text: str) -> list[bool]:
        return [program.certain for program in script(text).programs]

    assert certain("a\nif [ -f x ]; then b; fi\nc") == [True, False, True]
    assert certain("[ -f x ] && a; cd / && b; b 1 || c") == [False, True, True, False]
    assert certain("if [ -f x ]; then exec a; fi; b") == [False, False]
    assert certain("if [ -f x ]; then exit 1; fi; b") == [True]
    assert certain("if [ -f x ]; then exit; fi; b") == [False]
    assert certain("for i in 1 2; do a $i; done; for i in $(ls); do b; done; c") == [True, True, False, True]
    assert certain("f() { b; }; [ -f x ] || f; a") == [False, True]
    assert certain("case $SLURM_X in 1) a;; esac; b") == [False, True]


def test_the_environment_of_a_program() -> None:
    found = script("export LD_LIBRARY_PATH=/opt/x:$LD_LIBRARY_PATH\nX=1 a; b; env -i a; Y=2; c", LD_LIBRARY_PATH="/l")
    seen = [(dict(program.environment), program.removed) for program in found.programs]
    assert [each.get("LD_LIBRARY_PATH") for each, _ in seen] == ["/opt/x:/l", "/opt/x:/l", None, "/opt/x:/l"]
    assert [each.get("X") for each, _ in seen] == ["1", None, None, None]
    assert [removed for _, removed in seen] == [frozenset(), frozenset(), {Removed("*", True, "env -i")}, frozenset()]
    assert "Y" not in seen[3][0]


@pytest.mark.thorough
@pytest.mark.parametrize(("text", "pattern", "certain"), [
    ("unset PMI_FD; a", "PMI_FD", True),
    ("unset -v PMI_FD; PMI_FD=3; a", "PMI_FD", True),
    ("f() { unset $1; }; f PMI_FD; a", "PMI_FD", True),
    ("sh -c 'unset PMI_FD; a'", "PMI_FD", True),
    ("env -u PMI_FD a", "PMI_FD", True),
    ("if test -f x; then unset PMI_FD; fi; a", "PMI_FD", False),
    ('unset "${!PMI@}"; a', "PMI*", False),
    ('for v in "${!PMI@}"; do unset "$v"; done; a', "PMI*", False),
    ('unset "PMI_$(id)"; a', "PMI_*", False),
    ("for v in $(env | grep -o '^SLURM_[^=]*'); do unset $v; done; a", "*", False),
    ("unset $(compgen -e | grep PMI); a", "*", False),
    ("while read v; do unset $v; done < x; a", "*", False),
    ("eval unset $(id); a", "*", False),
])  # fmt: skip
def test_variables_that_are_unset_before_a_program(text: str, pattern: str, certain: bool) -> None:
    (program,) = (each for each in script(text).programs if each.argv[0] == "a")
    assert program.certain
    assert [(each.pattern, each.certain) for each in program.removed] == [(pattern, certain)]


def test_what_an_unclear_unset_leaves() -> None:
    assert [each.removed for each in script("unset -f g; (unset X); a").programs] == [frozenset()]
    (program,) = script("X=1 Y=2; export X Y; unset X $(echo $Z); a", LD_LIBRARY_PATH="/l").programs
    assert program.environment["LD_LIBRARY_PATH"] == "/l"
    assert "X" not in program.environment


def test_env_alone_prints_the_variables() -> None:
    assert script("env; a").unclear == []


def test_python_and_what_it_runs() -> None:
    def scripts(*words: str) -> list[str | None]:
        return [program.script for program in follow(list(words), {"t.py": "#!/usr/bin/env python3\n"}).programs]

    assert scripts("python3", "-u", "t.py", "-x") == ["t.py"]
    assert scripts("python3", "-X", "dev", "-m", "mpi4py", "t.py") == ["t.py"]
    assert scripts("python3", "-uc", "import x") == ["-c import x"]
    assert scripts("python3") == [None]
    assert scripts(f"{APP}/t.py") == [f"{APP}/t.py"]
    assert scripts("hvdrun", "x") == ["hvdrun"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\nexec \"$0\" \"$@\"\n", ". \"$0\"\n", "f() { f; }; f\n", "eval 'eval \"$X\"'\n", "a\0b\n",
        "(" * 9000, "$(" * 3000 + ")" * 3000, "if a; then " * 4000, "\"$(" * 500, "x=" + "a" * 200_000, "a\n" * 60_000,
        "for i in 1 2 3 4 5 6 7 8 9; do " * 9 + "a;" + "done;" * 9,
        "while x; do " * 30 + "y=1; a;" + "done;" * 30, "X=aa; " + "X=$X$X$X$X;" * 40 + " $X", "é\udcff$'\\0'\n",
        "#!/usr/bin/env bash\n\"$BASH_SOURCE\"", "trap 'trap \"trap a 1\" 1' 1; " * 50,
    ],
)  # fmt: skip
def test_hostile_scripts_are_bounded(text: str) -> None:
    found = follow([f"{APP}/run.sh"], {"run.sh": "#!/bin/bash\n" + text}, {"/bin": ("usr/bin",)})
    assert len(found.programs) <= 200
    assert len(found.unclear) < 200


def test_names_with_line_ends() -> None:
    found = follow([f"{APP}/a\nb"], {"a\nb": "#!/bin/bash\n'./x\ny'\n"}, {"/bin": ("usr/bin",)})
    assert found.unclear
    assert all(reason.isprintable() for reason in found.unclear)
    (reason,) = script(f"'./\x1b[2J{'x' * 5000}'").unclear
    assert reason.isprintable()
    assert len(reason) < 400


SITE = "/usr/lib/python3/dist-packages"
VENV = "/opt/venv/lib/python3.11/site-packages"


PYTHON: dict[str, Any] = {
    "/usr/bin/python3": ("python3.11",), "/usr/bin/python3.11": None, "/usr/lib/python3.11/os.py": "",
    "/opt/venv/bin/python": ("/usr/bin/python3.11",), "/opt/venv/pyvenv.cfg": "home = /usr/bin\n",
}  # fmt: skip


def imports(text: str, words: str = "python3 t.py", **files_: str | None) -> tuple[set[str], set[str], str]:
    """Return the names of packages that a script imports for certain, those that it may, and what is unclear."""
    image = dict(PYTHON)
    for name in ("mpi4py", "h5py", "numpy", "torch"):
        image |= {f"{SITE}/{name}/__init__.py": "", f"{VENV}/{name}/__init__.py": ""}
    data = {
        f"{SITE}/h5py": PackageImports(frozenset(["numpy"]), frozenset(["numpy", "mpi4py"])),
        "": PackageImports(frozenset(), frozenset(["torch"])),
    }
    app = {"t.py": text, **{name.replace("__", "/") + ".py": each for name, each in files_.items()}}
    found = follow(shlex.split(words), app, image, packages=data)
    (program,) = found.programs
    assert program.packages is not None
    packages = program.packages
    certain, possible = ({path.rpartition("/")[2] for path in each} for each in (packages.imported, packages.possible))
    return certain, possible, packages.unclear


@pytest.mark.parametrize(
    ("text", "certain", "possible"),
    [
        ("import mpi4py.MPI, os", {"mpi4py"}, {"torch"}),
        ("from mpi4py import MPI\nimport sys", {"mpi4py"}, {"torch"}),
        ("def f():\n import mpi4py\n", set(), {"mpi4py"}),
        ("def f():\n import mpi4py\nif __name__ == '__main__':\n f()", {"mpi4py"}, {"torch"}),
        ("try:\n import mpi4py\nexcept ImportError:\n pass", set(), {"mpi4py"}),
        ("import h5py", {"h5py", "numpy"}, {"mpi4py", "torch"}),
        ("import one", {"mpi4py"}, {"torch"}),
        ("from pkg.two import x", {"numpy"}, {"torch"}),
        ("import importlib\nimportlib.import_module('mpi4py')", set(), {"mpi4py"}),
        ("import nothing", set(), set()),
    ],
)
def test_what_a_script_imports(text: str, certain: set[str], possible: set[str]) -> None:
    more = {
        "one": "import mpi4py",
        "pkg____init__": "",
        "pkg__two": "from . import three",
        "pkg__three": "import numpy",
    }
    assert imports(text, **more) == (certain, possible, "")


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module(x)", "exec(x)", "a\0", "-" * 300_000,
        "import sys\nsys.path.insert(0, x)\nimport elsewhere", "from ctypes import *\ncdll.LoadLibrary(x)",
        "import ctypes\nctypes.CDLL('libx.so')",
        "a" + ".b" * 60_000, "#" * 2_000_000,
    ],
)  # fmt: skip
def test_imports_that_are_unclear(text: str) -> None:
    assert imports(text)[2]


def test_python_by_other_words() -> None:
    assert imports("", "python3 -c 'import mpi4py'")[0] == {"mpi4py"}
    assert imports("import numpy", "python3 -m mpi4py t.py")[0] == {"mpi4py", "numpy"}
    assert imports("import mpi4py", "python3 -m t x")[0] == {"mpi4py"}
    assert imports("import mpi4py", "python3 -m torch.distributed.run --nproc_per_node=2 t.py")[0] == {
        "mpi4py",
        "torch",
    }
    assert imports("", "python3 -m mpi4py.bench")[0] == {"mpi4py"}
    assert imports("", "python3 -m coverage run t.py")[2]


def test_scripts_of_setuptools() -> None:
    """As Debian's gpaw has it: the package is named by its entry point alone."""
    load = "sys.exit(load_entry_point('{}==1', 'console_scripts', '{}')())"
    text = "import sys\ndef load_entry_point(*words): pass\nif __name__ == '__main__':\n    " + load
    points = "[other]\nmy-tool = torch\n[console_scripts]\nhis = yaml.x:main\nmy-tool = numpy.cli : main\n"
    image = {**PYTHON, f"{SITE}/numpy/__init__.py": "", f"{SITE}/My_Tool-1.egg-info/entry_points.txt": points}

    def packages(*words: str) -> tuple[set[str], str]:
        (program,) = follow(["python3", "t.py"], {"t.py": text.format(*words)}, image).programs
        return set(program.packages.imported), program.packages.unclear

    assert packages("my-tool", "my-tool") == ({f"{SITE}/numpy"}, "")
    assert packages("my-tool", "none") == (set(), "t.py: it starts none of my-tool==1, which is not found")
    assert packages("gone", "my-tool")[1]


def test_a_venv_has_its_own_packages() -> None:
    image = {"/opt/venv/bin/python": ("/usr/bin/python3.11",), "/usr/bin/python3.11": None,
             "/opt/venv/pyvenv.cfg": "home = /usr/bin\n", f"{VENV}/mpi4py/__init__.py": "",
             f"{SITE}/mpi4py/__init__.py": "",
             "/opt/venv/bin/tool": "#!/opt/venv/bin/python\nimport mpi4py\n"}  # fmt: skip
    for words in (["/opt/venv/bin/python", "-c", "import mpi4py"], ["/opt/venv/bin/tool"]):
        (program,) = follow(words, {}, image).programs
        assert program.path == "/usr/bin/python3.11"
        assert program.packages.imported == {f"{VENV}/mpi4py"}


def test_what_python_starts_is_followed() -> None:
    def started_by(text: str) -> tuple[list[str], bool]:
        found = follow(["python3", "t.py"], {"t.py": text})
        return names(found)[1:], bool(found.unclear)

    assert started_by("import subprocess\nsubprocess.run(['a', '1'])") == (["a 1"], False)
    assert started_by("import os\nos.system('a 1 && b')") == (["a 1", "b"], False)
    assert started_by("from subprocess import Popen\nPopen(x)") == ([], True)
    assert started_by("import re\nre.run(x)") == ([], False)
    assert started_by("from mpi4py import MPI\nMPI.COMM_SELF.Spawn('a')") == ([], True)


@pytest.mark.parametrize(
    ("words", "app", "programs"),
    [
        (["bash", f"{APP}/w.sh"], {"w.sh": '#!/bin/bash\nwhat=/usr/bin/a\neval "$what"\n'}, ["/usr/bin/a"]),
        (["bash", f"{APP}/s.sh", "x"], {"s.sh": 'set -euo pipefail\nP=a\nexec "$P" "$@"\n'}, ["a x"]),
        (["sh", "-c", "a 4 in.grf out.map -vmt"], {}, ["a 4 in.grf out.map -vmt"]),
        (["sh", f"{APP}/o.sh"], {"i.sh": 'exec "$@"\n', "o.sh": f"sh {APP}/i.sh sh -c 'a < /x'\n"}, ["a"]),
        (["bash", "-lc", "sh -c 'echo y | a aln.phy'"], {}, ["a aln.phy"]),
    ],
)
def test_wrappers_of_the_verdict_matrix(words: list[str], app: dict[str, str], programs: list[str]) -> None:
    profile = 'if [ "$(id -u)" -eq 0 ]; then\n  PATH="/usr/sbin:/usr/bin"\nelse\n  PATH="/usr/bin"\nfi\nexport PATH\n'
    found = follow(words, app, {"/etc/profile": profile})
    assert names(found) == programs
    assert found.unclear == []


def test_a_login_shell_that_sets_more_is_unclear() -> None:
    for file in ("/etc/profile", "/etc/profile.d/mpi.sh"):
        assert follow(["bash", "-lc", "a"], {}, {file: "export LD_LIBRARY_PATH=/opt/mpi/lib\n"}).unclear


def test_the_line_is_that_of_the_command() -> None:
    (program,) = script("X=$(\necho x\n)\na \\\n  $(\necho 1\n) 2\n").programs
    assert program.via == "run.sh line 4"


# ------------------------------------------------------------------------------------------- modules that are not there


def lacks(text: str, words: str = "python3 t.py", image: Mapping[str, Any] = {}, **settings: str) -> list[str]:
    """Return the modules that a script in app/ certainly lacks, each with the place that imports it."""
    missing = run_python(text, words, image, **settings)
    return [f"{each.place} {each.name}" for each in missing if not each.doubt]


def doubts(text: str, words: str = "python3 t.py", image: Mapping[str, Any] = {}, **settings: str) -> list[str]:
    """Return why modules may be found nevertheless that are nowhere in the job."""
    return [each.doubt for each in run_python(text, words, image, **settings) if each.doubt]


def run_python(text: str, words: str, image: Mapping[str, Any], **settings: str) -> list[MissingModule]:
    data = {
        f"{SITE}/plain": PackageImports(frozenset(), frozenset()),
        f"{SITE}/adder": PackageImports(frozenset(), frozenset(), frozenset(["path"])),
        f"{SITE}/hooker": PackageImports(frozenset(), frozenset(), frozenset(["hooks"])),
        f"{SITE}/six": PackageImports(frozenset(), frozenset(), frozenset(["hooks"])),
        f"{SITE}/mpi4py": PackageImports(frozenset(), frozenset(), frozenset(["hooks"])),
        f"{SITE}/_distutils_hack": PackageImports(frozenset(), frozenset(["setuptools"]), frozenset(["hooks"])),
        f"{SITE}/setuptools": PackageImports(frozenset(), frozenset(), frozenset(["hooks", "path"])),
        f"{SITE}/above": PackageImports(frozenset(["hooker"]), frozenset(["hooker"])),
    }
    whole = {**PYTHON, f"{VENV}/torch/__init__.py": ""}
    whole |= {f"/usr/lib/python3.11/{name}.py": "" for name in ("json", "contextlib")}
    whole |= {f"{path}/__init__.py": "" for path in data} | dict(image)
    app = {"t.py": text, "near.py": "import json\nimport gone", "space/inner.py": "", "run.sh": settings.pop("sh", "")}
    found = follow(shlex.split(words), app, whole, data, **settings)
    return [each for program in found.programs if program.packages for each in program.packages.missing]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("import json\n\nimport gone.part as x, json", ["t.py:3 gone"]),
        ("from gone import x", ["t.py:1 gone"]),
        ("import near", ["near.py:2 gone"]),
        ("import plain\nimport gone", ["t.py:2 gone"]),
        ("import torch", ["t.py:1 torch"]),  # it is in a venv that is not searched
        ("import six, adder\nimport gone", ["t.py:2 gone"]),  # which is nowhere, wherever adder leads
        ("def main():\n import gone\nif __name__ == '__main__':\n main()", ["t.py:2 gone"]),
        ("import tkinter", ["t.py:1 tkinter"]),  # Python's own, but not in this image
        ("import gone\nfrom mpi4py import MPI", ["t.py:1 gone"]),
        ("from mpi4py import MPI\nimport gone", ["t.py:2 gone"]),  # its hook finds only its own modules
        ("import gone\nimport hooker", ["t.py:1 gone"]),  # a hook changes nothing of what was imported before
        ("import gone\nif x:\n import hooker", ["t.py:1 gone"]),
        ("import gone\nimport near, above", ["t.py:1 gone", "near.py:2 gone"]),
        ("def main():\n import gone\nmain()\ndef later():\n import hooker", ["t.py:2 gone"]),
    ],
)
def test_modules_that_are_not_there(text: str, missing: list[str]) -> None:
    assert lacks(text) == missing


@pytest.mark.parametrize(
    "text",
    [
        "import json, math, sys, _ssl, space\nfrom space import inner",
        "try:\n import gone\nexcept ImportError:\n pass",
        "if x:\n import gone",
        "def main():\n import gone",
        "@command\ndef main():\n import gone\nmain()",
        "def main():\n import gone\n yield\nmain()",
        "import contextlib\nwith contextlib.suppress(ImportError):\n import gone",
        "import sys\nif len(sys.argv) < 2:\n sys.exit()\nimport gone",
        "def usage():\n raise SystemExit\nif x:\n usage()\nimport gone",
        "import sys\nsys.path.insert(0, x)\nimport gone",
        "from sys import path\npath.append(x)\nimport gone",
        "import sys as s\ns.modules['gone'] = s\nimport gone",
        "import hooker\nimport gone",
        "import adder\nimport torch",
        "import sys\ndef main():\n pass\nsys.exit(main())\nimport gone",
        "import plain.gone",
        "from sys import exit as bye\nif x:\n bye()\nimport gone",
    ],
)
def test_modules_that_may_be_found(text: str) -> None:
    assert lacks(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import hooker\nimport gone",
        "import above\nimport gone",
        "if x:\n import hooker\nimport gone",
        "try:\n from hooker import x\nexcept ImportError:\n x = None\nimport gone",
        "def f():\n import hooker\nfor x in y:\n f()\nimport gone",
        "def main():\n f()\n import gone\ndef f():\n if x:\n  import hooker\nmain()",
        "x = __import__('hooker')\nimport gone",
    ],
)
def test_a_hook_that_may_find_what_is_nowhere_is_a_doubt(text: str) -> None:
    assert doubts(text) == ["hooker changes how modules are found"]
    assert doubts(text, image={"/opt/src/gone.py": ""}) == []  # the hook may find this one
    assert doubts(text, image={"/usr/share/gone/README": ""}) == ["hooker changes how modules are found"]
    assert lacks(text) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import os\nprint 'a', os", 2),
        ("exec 'a'", 1),
        ("try:\n pass\nexcept OSError, error:\n pass", 3),
        ("x = 0777", 1),
        ("x = a <> b", 1),
        ("match x\n", 1),
        ("x =", 1),
        ("x = [" * 90, 1),
        ("# coding: nothing\n", 1),
        ("import plain\nimport old", 2),
    ],
)
def test_a_text_that_no_python_3_reads(text: str, line: int) -> None:
    image = {**PYTHON, f"{SITE}/plain/__init__.py": ""}
    (program,) = follow(["python3", f"{APP}/t.py"], {"t.py": text, "old.py": "\nprint 1"}, image).programs
    (found,) = program.packages.unreadable
    assert found.place == (f"t.py:{line}" if "old" not in text else f"old.py:{line}")


@pytest.mark.parametrize(
    "text", ["if x:\n import old", "try:\n import old\nexcept SyntaxError:\n pass", "import old.x"]
)
def test_a_text_that_may_not_be_read(text: str) -> None:
    app = {"t.py": text, "old.py" if "." not in text else "old/x/y.py": "print 1"}
    (program,) = follow(["python3", f"{APP}/t.py"], app, PYTHON).programs
    assert program.packages.unreadable == []


@pytest.mark.parametrize(
    ("python", "text", "reads"),
    [
        ("python3.9", "match x:\n case 1: pass", False),
        ("python3.10", "match x:\n case 1: pass", True),
        ("python3.7", "if (x := 1): pass", False),
        ("python3.8", "if (x := 1): pass", True),
        ("python3.8", "with (a, b): pass", True),  # a tuple, which only the parser's own check takes for newer
        ("python3.10", "try:\n pass\nexcept* OSError:\n pass", False),
        ("python3.6", "async = 1", True),
        ("python2.7", "print 'a'", True),
        ("python3.99", "type X = (y for", True),  # newer than deployer's own Python: who knows
        ("python3.99", "print 'a'", False),
        ("python3.11", "PK\x03\x04", True),  # an archive
    ],
)
def test_a_python_reads_what_its_version_reads(python: str, text: str, reads: bool) -> None:
    image = {**PYTHON, "/usr/bin/python3": (python,), f"/usr/bin/{python}": None}
    (program,) = follow(["python3", f"{APP}/t.py"], {"t.py": text}, image).programs
    assert (program.packages.unreadable == []) == reads


def test_a_path_that_is_unknown_is_a_doubt() -> None:
    assert doubts("import sys\nsys.path.insert(0, x)\nimport gone") == ["sys.path is changed"]
    assert doubts("import gone", PYTHONPATH="/data/code") == [
        "/data/code of PYTHONPATH is only known on the site, or the job makes it"
    ]


@pytest.mark.parametrize(
    "image",
    [
        {f"{SITE}/extra.pth": "/opt/more\n", "/opt/more/gone/x.py": ""},
        {f"{SITE}/__editable__.pth": "import finder\n", "/opt/src/gone.py": ""},
        {f"{SITE}/more.pth": "/data/more\n"},
        {f"{SITE}/easy-install.pth": "./gone-1.egg\n", f"{SITE}/gone-1.egg": "PK"},
        {f"{SITE}/gone.cpython-311-x86_64-linux-gnu.so": None},
        {"/usr/lib/python3.11/gone.pyc": ""},
        {"/usr/lib/python311.zip": "PK"},
        {"/usr/lib/python3.11/os.py": ("/nowhere",)},
        {"/usr/lib/python3.11/sitecustomize.py": "import sys\nsys.path.append('/x')"},
    ],
)
def test_modules_that_are_found_in_other_ways(image: Mapping[str, Any]) -> None:
    assert lacks("import gone", image=image) == []


def test_a_module_that_an_earlier_step_may_build() -> None:
    """Only app/ can be written to, and only a script has earlier steps."""
    source = {f"{APP}/gone.pyx": ""}
    build = "python3 setup.py build_ext --inplace\nexec python3 t.py"
    assert lacks("import gone", "sh run.sh", source, sh=build) == []
    assert lacks("import gone", image=source) == ["t.py:1 gone"]
    assert lacks("import gone", "sh run.sh", {f"{APP}/lib/gone.py": ""}, sh=build) == ["t.py:1 gone"]
    assert lacks("import gone", "sh run.sh", {"/opt/src/gone.pyx": ""}, sh=build) == ["t.py:1 gone"]


#: As Debian's petsc4py has it.
PTH = (
    "import sys, os; d = '/usr/lib/petsc'; d = os.path.join(os.getenv('PETSC_DIR') or d, 'lib/python3/dist-packages'); "
    "d in sys.path or sys.path.append(d);\n"
)


def test_a_line_of_python_in_a_pth_file() -> None:
    top = "/usr/lib/petscdir/real"
    image = {f"{SITE}/petsc4py.pth": PTH, f"{top}/lib/python3/dist-packages/petsc4py/__init__.py": ""}
    assert lacks("import petsc4py", image=image) == ["t.py:1 petsc4py"]
    assert lacks("import petsc4py", image=image, PETSC_DIR=top) == []
    assert lacks("import petsc4py, gone", f"env PETSC_DIR={top} python3 t.py", image) == ["t.py:1 gone"]
    link = {**image, "/usr/lib/petsc": (top,)}
    assert lacks("import petsc4py", image=link) == []
    assert lacks("import petsc4py", "sh run.sh", image, sh="export PETSC_DIR=$(cat /x)\nexec python3 t.py") == []
    for line in (
        "import os; exec(x)", "import finder; sys.path.append('/x')", "import sys; sys.path = x",
        "import sys; sys.path.append(sys.prefix)", "import os, sys; x = 1 +", "import sys" + ";x" * 9000,
    ):  # fmt: skip
        assert lacks("import petsc4py", image={**image, f"{SITE}/petsc4py.pth": line}) == []


def test_where_modules_are_searched() -> None:
    assert lacks("import gone", PYTHONPATH="/opt/nothing") == ["t.py:1 gone"]
    for path in ("/data/code", f"{APP}/x:relative", "/opt/archive.zip", ""):
        known = [] if path else ["t.py:1 gone"]
        assert lacks("import gone", image={"/opt/archive.zip": "PK"}, PYTHONPATH=path) == known
    assert lacks("", "python3 -c 'import gone'") == ["-c:1 gone"]
    assert lacks("", "python3 -c 'import os; os.chdir(os.environ[\"X\"]); import gone'") == []
    assert lacks("", "python3 -c 'import near'", workdir=APP) == ["near.py:2 gone"]
    assert lacks("", "python3 -m gone") == ["-m gone gone"]
    assert lacks("", "python3 -m space.gone") == []
    assert lacks("import torch", "/opt/venv/bin/python t.py") == []
    assert lacks("import plain", "/opt/venv/bin/python t.py") == ["t.py:1 plain"]
    assert lacks("import gone", "env PYTHONHOME=/opt/x python3 t.py") == []
    # A job's own folder is empty, until a script has put something there.
    assert lacks("", "python3 -c 'import gone'", workdir="/deployer/job") == ["-c:1 gone"]
    assert lacks("", "sh -c 'python3 -c \"import gone\"'", workdir="/deployer/job") == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "decisive"),
    [
        ("cd /\nenv A=1 python3 t.py", True),
        ("exec python3 t.py\necho", True),
        ("set -e\npython3 t.py\necho", True),
        ("set -euo pipefail\nf() { python3 t.py; echo; }\nf\necho", True),
        ("true && python3 t.py", True),
        ("if [ -d / ]; then python3 t.py; fi", False),
        ("if [ 1 = 1 ]; then python3 t.py; fi", True),
        ("python3 t.py | cat", False),
        ("set -o pipefail\npython3 t.py | cat", True),
        ("cat t.py | python3 t.py", True),
        ("while python3 t.py; do exit; done", False),
        ("sh -c 'python3 t.py'", True),
        ("sh -ec 'python3 t.py; echo'", True),
        ("(set -e; python3 t.py; echo)\necho", False),
        ("python3 t.py || exit 1\necho", True),
        ("die() { echo $1; exit 2; }\npython3 t.py || die it\necho", True),
        ("python3 t.py\nif [ $? -ne 0 ]; then exit 1; fi\necho", True),
        ("python3 t.py\nrc=$?\necho done\nexit $rc", True),
        ("trap 'exit 0' EXIT\npython3 t.py", False),
        ("x=$(python3 t.py)", True),
        ("set -e\nx=$(python3 t.py)\necho", True),
        ("set -e\nexport x=$(python3 t.py)\necho", False),
        ("set -e\necho $(python3 t.py)\necho", False),
        ("(exec python3 t.py) || true", False),
        ("set -e\ncd /x && python3 t.py\necho", True),
        ("set -e\ntest -f /x && python3 t.py\necho", False),
        ("for i in 1 2; do python3 t.py; done", True),
        ("python3 t.py\necho", False),
        ("set -e\npython3 t.py || echo", False),
        ("set -e\nif python3 t.py; then echo; fi", False),
        ("set -e\n! python3 t.py", False),
        ("python3 t.py &", False),
        ("set -e; set +e\npython3 t.py\necho", False),
        ("sh -c 'python3 t.py; echo'", False),
    ],
)
def test_whether_a_failure_is_the_job_s(text: str, decisive: bool) -> None:
    scripts = {"run.sh": text, "t.py": ""}
    found = follow(["bash", f"{APP}/run.sh"], scripts, PYTHON)
    (program,) = (each for each in found.programs if each.script)
    assert bool(follow(["bash", f"{APP}/run.sh"], scripts, PYTHON, failing=program.key).status) == decisive


def test_what_is_below_the_node_s_own_folders_is_not_the_image_s() -> None:
    for words in (["/tmp/solver"], ["sh", "-c", "/tmp/solver x"]):
        found = follow(words, {}, {"/tmp/solver": None})
        assert (names(found), len(found.unclear)) == ([], 1)


def test_a_script_with_windows_line_ends_is_not_followed() -> None:
    found = follow(["timeout", "9", "bash", f"{APP}/run.sh"], {"run.sh": "#!/bin/sh\r\nsolver\r\n"})
    text = f"timeout: the lines of {APP}/run.sh end with carriage returns, as on Windows: save it with Unix line ends"
    assert (found.unclear, found.has_windows_lines) == ([text], True)


def test_what_may_be_built_in_is_known_without_the_library_of_this_python() -> None:
    compiled = {name for name in sys.builtin_module_names if name in sys.stdlib_module_names}
    assert {name for name in compiled if not python_path.may_be_built_in(name)} == set()
    assert not python_path.may_be_built_in("tkinter")  # Debian has it in a package of its own
