"""What capture finds by modules: with a real Lmod's hierarchy, and with what Environment Modules 5.2.0 says."""

import os
import shutil
import subprocess

import pytest

from deployer.site.capture.capture import CaptureRequest, capture
from deployer.site.capture.software import module_command, modules, mpi
from deployer.site.capture.software.module_command import parse
from deployer.site.capture.tools import Tools
from deployer.site.jobs.schedulers import SCHEDULERS
from tests import running as made

LMOD = "/usr/share/lmod/lmod/libexec/lmod"
MPI_C = r"""
#include <string.h>
int MPI_Init(int *c, char ***v) { return 0; }
int MPI_Get_library_version(char *v, int *n) {
  strcpy(v, SAYS); *n = (int)strlen(v); return 0; }
"""
GCC = """family("compiler")
setenv("UCX_TLS", "rc,self")
prepend_path("LD_LIBRARY_PATH", "{sw}/gcc/12/lib64")
prepend_path("MODULEPATH", "{mf}/Compiler/gcc/12")
"""
#: Its text does not have the word MODULEPATH, as if a function of the site's wrote it: only Lmod's spider knows.
INTEL = 'family("compiler")\nprepend_path("MODULE" .. "PATH", "{mf}/Compiler/intel/2023")\n'
MPI = """family("mpi")
local prefix = "{sw}/{compiler}/{name}"
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("LD_LIBRARY_PATH", pathJoin(prefix, "lib"))
prepend_path("MODULEPATH", "{mf}/MPI/{compiler}/{name}")
"""


@pytest.fixture
def login(tmp_path, monkeypatch):
    """Return the file that login shells read; this shell has what they do not have."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(mpi, "_USUAL", ())
    for name in [*modules.MPI_VARIABLES, "LMOD_CMD", "MODULESHOME", "MODULEPATH", "LOADEDMODULES"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return home / ".bash_profile"


@pytest.fixture
def hierarchy(login, tmp_path):
    """Return the software of a site with Lmod: compilers, below each MPIs, and all of it outside of /opt."""
    if not os.path.exists(LMOD):
        pytest.skip("no Lmod: apt-get install lmod")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler: apt-get install gcc")
    sw, mf = tmp_path / "sw", tmp_path / "mf"
    core = {"Core/gcc/12": GCC, "Core/intel/2023": INTEL, "MPI/gcc/12/mpich/4.0/apptainer/1.3": ""}
    for name, text in core.items():
        write(mf, name, text.format(sw=sw, mf=mf))
    for key, name, says in (
        ("gcc/12", "mpich/4.0", "MPICH Version: 4.0"),
        ("gcc/12", "openmpi/4.1", "Open MPI v4.1.4"),
        ("intel/2023", "openmpi/4.1", "Open MPI v4.1.4"),
    ):
        write(mf, f"Compiler/{key}/{name}", MPI.format(sw=sw, mf=mf, compiler=key, name=name))
        soname = "libmpi.so.12" if "mpich" in name else "libmpi.so.40"
        folder = sw / key / name / "lib"
        folder.mkdir(parents=True)
        (tmp_path / "mpi.c").write_text(f'#define SAYS "{says}"\n{MPI_C}')
        argv = [compiler, "-shared", "-fPIC", "-Wl,-soname," + soname, "-o", str(folder / soname)]
        subprocess.check_call([*argv, str(tmp_path / "mpi.c")])
    login.write_text(f'export LMOD_CMD={LMOD} MODULEPATH={mf}/Core; module() {{ eval "$($LMOD_CMD bash "$@")"; }}\n')
    return sw


def write(folder, name, text):
    path = folder / (name + ".lua")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def entries(found):
    return {each["prefix"]: each for each in found.profile["mpi"].values()}


@pytest.mark.thorough
def test_an_mpi_behind_a_compiler_is_found_with_the_chain_that_a_login_shell_needs(hierarchy):
    found = capture(CaptureRequest(), SCHEDULERS.values())
    sw = str(hierarchy)
    assert {prefix: (each["family"], each["module"]) for prefix, each in entries(found).items()} == {
        sw + "/gcc/12/mpich/4.0": ("mpich", ["gcc/12", "mpich/4.0"]),
        sw + "/gcc/12/openmpi/4.1": ("openmpi", ["gcc/12", "openmpi/4.1"]),
        sw + "/intel/2023/openmpi/4.1": ("openmpi", ["intel/2023", "openmpi/4.1"]),
    }
    assert entries(found)[sw + "/gcc/12/mpich/4.0"]["environment"] == {"UCX_TLS": "rc,self"}  # the compiler's module
    assert found.profile["login"]["runtimes"]["apptainer"]["module"] == ["gcc/12", "mpich/4.0", "apptainer/1.3"]
    for each in entries(found).values():  # each chain is what a fresh login shell can load
        load = "for name in {}; do module load $name || exit; done; echo $LD_LIBRARY_PATH".format(
            " ".join(each["module"])
        )
        said = subprocess.check_output(["bash", "-l", "-c", load], stderr=subprocess.STDOUT)
        assert said.decode().startswith(each["prefix"] + "/lib")


@pytest.mark.thorough
def test_a_module_of_a_plug_in_for_nccl(hierarchy, tmp_path):
    """The plug-in is a copy of an MPI's library: what counts is its place, and the variables of its module."""
    folder = tmp_path / "sw/ofi/lib"
    folder.mkdir(parents=True)
    shutil.copy(str(hierarchy / "gcc/12/mpich/4.0/lib/libmpi.so.12"), str(folder / "libnccl-net.so"))
    text = 'setenv("NCCL_NET", "AWS Libfabric")\nprepend_path("LD_LIBRARY_PATH", "%s")\n' % folder
    write(tmp_path / "mf/Core", "aws-ofi-nccl/1.9.2", text)
    fabric = capture(CaptureRequest(), SCHEDULERS.values()).profile["login"]["fabric"]
    assert fabric["libraries"]["libnccl-net.so"] == str(folder / "libnccl-net.so")
    assert fabric["environment"] == {"NCCL_NET": "AWS Libfabric"}


@pytest.mark.thorough
def test_what_this_shell_has_loaded_does_not_count(hierarchy, monkeypatch):
    here = 'module load gcc/12 mpich/4.0; printf "%s" "$MODULEPATH"'
    path = subprocess.check_output(["bash", "-l", "-c", here]).decode()
    assert "MPI/gcc/12" in path
    for name, value in (("MODULEPATH", path), ("LMOD_CMD", LMOD), ("LOADEDMODULES", "gcc/12:mpich/4.0")):
        monkeypatch.setenv(name, value)
    found = entries(capture(CaptureRequest(), SCHEDULERS.values()))
    assert found[str(hierarchy / "gcc/12/mpich/4.0")]["module"] == ["gcc/12", "mpich/4.0"]


@pytest.mark.thorough
def test_a_prefix_of_the_users_has_its_module_too(hierarchy):
    prefix = str(hierarchy / "gcc/12/mpich/4.0")
    captured = capture(CaptureRequest(mpi=[prefix]), SCHEDULERS.values())
    assert entries(captured)[prefix]["module"] == ["gcc/12", "mpich/4.0"]


@pytest.mark.thorough
def test_a_slow_module_command_cuts_the_search_short(login, tmp_path, monkeypatch):
    made.program(tmp_path, "lmod", "exec sleep 600")
    login.write_text(f"unset BASH_ENV; export LMOD_CMD={tmp_path}/lmod MODULEPATH=/mf\n")
    monkeypatch.setattr(module_command, "TOGETHER", 2.0)
    tools = Tools()
    assert modules.find(tools).mpi == []
    assert any("did not end within" in note for note in tools.notes)
    assert any(note.startswith("modules: the search ended") for note in tools.notes)


#: The outputs of Environment Modules 5.2.0 (Debian 12), whose module files are in PATH/Core and PATH/GCC12.
TCL = r"""module() {
case "$MODULEPATH $*" in
*/Core" -t avail") cat >&2 <<'END'
PATH/Core:
gcc/12
gcc/13
intel/2023
openmpi/4.1
END
;;
*/GCC12" -t avail") printf 'PATH/GCC12:\nmpich/4.0\n' >&2 ;;
*/Core" show gcc/12"*) cat >&2 <<'END'
-------------------------------------------------------------------
PATH/Core/gcc/12:

setenv		GCC_HOME /sw/gcc/12
prepend-path	LD_LIBRARY_PATH /sw/gcc/12/lib64
module		use PATH/GCC12
-------------------------------------------------------------------
END
;;
*/Core" show openmpi/4.1") cat >&2 <<'END'
-------------------------------------------------------------------
PATH/Core/openmpi/4.1:

prereq		nvhpc intel
conflict	mpich
setenv		OMPI_MCA_btl {self,vader tcp}
setenv		MPI_HOME /sw/openmpi/4.1
prepend-path	PATH /sw/openmpi/4.1/bin
-------------------------------------------------------------------
END
;;
*/Core" show intel") cat >&2 <<'END'
-------------------------------------------------------------------
PATH/Core/intel/2023:

prepend-path	LD_LIBRARY_PATH /sw/intel/2023/lib
-------------------------------------------------------------------
END
;;
*/GCC12" show mpich/4.0") cat >&2 <<'END'
-------------------------------------------------------------------
PATH/GCC12/mpich/4.0:

conflict	openmpi
setenv		MPICH_HOME /sw/gcc/12/mpich/4.0
prepend-path	PATH /sw/gcc/12/mpich/4.0/bin
prepend-path	LD_LIBRARY_PATH /sw/gcc/12/mpich/4.0/lib:/sw/gcc/12/mpich/4.0/lib2
-------------------------------------------------------------------
END
;;
*" show"*) echo "ERROR: Unable to locate a modulefile for '$2'" >&2; return 1 ;;
esac
}
unset LMOD_CMD BASH_ENV
export MODULEPATH=PATH/Core MODULESHOME=/usr/share/modules LOADEDMODULES=openmpi/4.1
"""


@pytest.mark.thorough
def test_environment_modules(login, tmp_path):
    gcc = tmp_path / "Core" / "gcc" / "12"
    gcc.parent.mkdir(parents=True)
    gcc.write_text(f"#%Module1.0\nmodule use {tmp_path}/GCC12\n")
    login.write_text(TCL.replace("PATH/", f"{tmp_path}/"))
    tools = Tools()
    found = modules.find(tools)
    own = {each.chain[-1]: each for each in found.mpi}
    assert {name: each.chain for name, each in own.items()} == {
        "openmpi/4.1": ["intel/2023", "openmpi/4.1"],  # the default version of the first that it requires and is there
        "mpich/4.0": ["gcc/12", "mpich/4.0"],
    }
    assert own["openmpi/4.1"].sets["OMPI_MCA_btl"] == "self,vader tcp"
    assert own["openmpi/4.1"].added("LD_LIBRARY_PATH") == ["/sw/intel/2023/lib"]
    folders = ["/sw/gcc/12/mpich/4.0/lib", "/sw/gcc/12/mpich/4.0/lib2", "/sw/gcc/12/lib64"]
    assert own["mpich/4.0"].added("LD_LIBRARY_PATH") == folders
    assert tools.notes == ["module mpich/4.0 conflicts with openmpi/4.1, which a login shell loads"]
    assert found.chains["mpich/4.0"] == ("gcc/12", "mpich/4.0")


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ('prereq("gcc/12","cuda")', [["gcc/12"], ["cuda"]]),
        ('prereq_any("gcc/12","intel")', [["gcc/12", "intel"]]),
        ('prereq(atleast("gcc","12"))', []),  # a version that is not named is not guessed
        ("prereq\t\tgcc/12 intel", [["gcc/12", "intel"]]),
        ("prereq-all\tgcc/12 cuda", [["gcc/12"], ["cuda"]]),
    ],
)
def test_what_a_module_requires(line, needs):
    assert parse("mpich/4", line + "\n").needs == needs


def test_module_paths_of_all_forms():
    text = 'prepend_path{"MODULEPATH","/a",priority="10"}\n'
    text += "prepend-path\t--delim : MODULEPATH /b\nmodule\t\tuse --append /c"
    assert parse("gcc/12", text).added("MODULEPATH") == ["/a", "/b", "/c"]
