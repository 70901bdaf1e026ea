"""capture with fakes on PATH: tools that are right, missing, hang or print garbage; and real ELF files."""

import errno
import grp
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys

import pytest

from deployer.contract.base.errors import IntegrityError, UsageError
from deployer.contract.base.shell import quoted
from deployer.contract.site import facts
from deployer.site.capture import apptainer, capture_files, filesystems, gpus, machine, node, redact
from deployer.site.capture.capture import CaptureRequest, capture
from deployer.site.capture.software import fabric, modules, mpi
from deployer.site.capture.software.libraries import Libraries
from deployer.site.capture.software.module_command import Module, parse
from deployer.site.capture.tools import Answer, Tools
from deployer.site.jobs.schedulers import SCHEDULERS, gridengine
from deployer.system import files
from tests import running as made

#: As it is: tests/unit/conftest.py lets all other tests have user namespaces.
USER_NAMESPACES = machine.user_namespaces

EMPTY = {"files": {}, "links": {}}
SOURCE = {"kind": "captured", "where": "login1", "date": "2026-11-21"}
SINFO = """\
small|2|2|24|2|96000|(null)|2-00:00:00|1-16|96|(null)|n[1-2]
batch*|792|2|24|2|96000|(null)|1-00:00:00|1-768|48|(null)|n[1-2]
gpu|3|2|20|1|192000|gpu:v100:4(S:0-1)|infinite|1-infinite|40|(null)|n[1-2]
gpu|1|2|20|1|384000|gpu:v100:2|infinite|1-infinite|40|(null)|n[1-2]
Socket timed out on send/recv operation
"""
#: What can be asked of by name; the fakes of the fault tests stand for all of them.
TOOLS = (
    "sinfo", "scontrol", "srun", "ldconfig", "bash", "nvidia-smi", "fi_info", "ch-run", "apptainer", "stat", "quota",
    "lfs",
)  # fmt: skip
MPI_C = r"""
#include <string.h>
int MPI_Init(int *c, char ***v) { return 0; }
int MPI_Get_library_version(char *v, int *n) {
  strcpy(v, "Intel(R) MPI Library 2021.99 for Linux* OS\n"); *n = (int)strlen(v); return 0; }
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a folder that stands first in PATH; no module command, and nothing of MPI in the environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(mpi, "_USUAL", ())  # what stands on this machine is nothing of these tests
    for name in ("LMOD_CMD", "MODULESHOME", "I_MPI_ROOT", "MPI_HOME", "SLURM_JOB_PARTITION", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def intel(tmp_path_factory):
    """Return the prefix of a small installation: a library with links, a provider, and a file that was cut off."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler: apt-get install gcc")
    prefix = tmp_path_factory.mktemp("intel")
    (prefix / "lib" / "prov").mkdir(parents=True)
    (prefix / "debug").mkdir()
    (prefix / "mpi.c").write_text(MPI_C)
    build(compiler, prefix, "lib/libmpi.so.12.0", "libmpi.so.12", "1")
    os.symlink("libmpi.so.12.0", str(prefix / "lib" / "libmpi.so.12"))
    shutil.copy(str(prefix / "lib" / "libmpi.so.12.0"), str(prefix / "lib" / "prov" / "libtcp-fi.so"))
    shutil.copy(str(prefix / "lib" / "libmpi.so.12.0"), str(prefix / "debug" / "libmpi.so.12"))
    (prefix / "lib" / "libcut.so").write_bytes((prefix / "lib" / "libmpi.so.12.0").read_bytes()[:200])
    (prefix / "lib" / "libtext.so").write_text("INPUT(libmpi.so.12)\n")
    return prefix


#: What the compiler made, by its input: most tests want the same libraries.
BUILT = {}


def of_node(partition):
    """Return the shape of this node, captured for a partition."""
    captured = capture(CaptureRequest(node=True, partition=partition), SCHEDULERS.values())
    return captured.profile["partitions"][partition]["node"]


def build(compiler, prefix, name, soname, version):
    compiled(
        prefix / name, prefix / "mpi.c", compiler, "-Wl,--build-id", "-Wl,-soname," + soname, "-DVERSION=" + version,
        f"-Wl,--defsym=version{version}=0",
    )  # fmt: skip


def compiled(path, source, compiler, *options):
    """Make the library of a C file; ``options`` name no file of this test."""
    key = (source.read_text(), options)
    if key not in BUILT:
        subprocess.check_call([compiler, "-shared", "-fPIC", "-o", str(path), str(source), *options])
        BUILT[key] = path.read_bytes()
    path.write_bytes(BUILT[key])
    path.chmod(0o755)


def find_mpi(prefix, described=()):
    tools = Tools()
    return tools, mpi.find(tools, Libraries(tools), list(described), [str(prefix)], SOURCE)


# ------------------------------------------------------------------------------------------------ tools that fail


def test_what_a_tool_does_wrong_is_noted(programs):
    made.program(programs, "hangs", "exec sleep 600")
    made.program(programs, "fails", "echo '\033[31mno\tway' >&2; exit 3")
    tools = Tools()
    assert tools.ask(["missing-tool"]) is None
    assert tools.notes == []  # that a tool is not there is nothing special
    assert tools.ask(["hangs"], seconds=0.2) is None
    assert tools.ask(["fails"]) is None
    assert tools.ask(["fails"], any_status=True).status == 3
    assert "hangs: it did not end within 0.2 s" in tools.notes[0]
    assert tools.notes[1] == "fails: exit 3: [31mno way"


def test_when_the_time_is_over_nothing_is_asked(programs):
    tools = Tools(seconds=0)
    assert tools.ask(["true"]) is None
    assert tools.notes == ["true: skipped, no time was left"]


@pytest.mark.thorough
@pytest.mark.parametrize("script", ["exec head -c 3000 /dev/urandom", "exec sleep 600", "exit 1", 'echo "{[|*=:"'])
def test_a_capture_is_a_capture_whatever_tools_do(programs, script):
    for name in TOOLS:
        made.program(programs, name, script)
    found = capture(CaptureRequest(seconds=0.5), SCHEDULERS.values())
    assert found.profile["format"] == 1
    assert found.profile["login"]["host"] == socket.gethostname()
    assert found.profile["login"]["kernel"] == os.uname().release
    assert "partitions" not in found.profile
    json.loads(capture_files.pretty(found.profile))


def test_a_capture_without_any_tool(programs, monkeypatch):
    monkeypatch.setenv("PATH", str(programs))
    found = capture(CaptureRequest(name="Big Iron!"), SCHEDULERS.values())
    assert found.profile["name"] == "big-iron-"
    assert "scheduler" not in found.profile
    assert found.profile["login"]["launchers"] == []
    assert found.profile["login"]["runtimes"] == {}
    assert found.profile["login"]["mksquashfs"] is False
    made.program(programs, "mksquashfs", "exit 1")
    assert capture(CaptureRequest(), SCHEDULERS.values()).profile["login"]["mksquashfs"] is True


# ------------------------------------------------------------------------------------------------ the topics


def test_slurm(programs):
    made.program(
        programs,
        "sinfo",
        f'case "$*" in *version*) echo "slurm-wlm 22.05.8" ;; *) cat <<EOF\n{SINFO}EOF\n;; esac',
    )
    made.program(
        programs, "scontrol", 'echo "ClusterName             = SuperMUC"; echo "MpiDefault              = pmi2"'
    )
    listed = "srun: MPI types are...\\nsrun: none\\nsrun: pmix\\nsrun: pmi2\\n"
    listed += "specific pmix plugin versions available: pmix_v4"
    made.program(programs, "srun", f"printf '{listed}\\n' >&2")
    tools = Tools()
    found = SCHEDULERS["slurm"].facts(tools)
    assert found.cluster == "SuperMUC"
    assert found.scheduler == {
        "kind": "slurm", "version": "22.05.8", "pmi": ["none", "pmi2", "pmix", "pmix_v4"],
    }  # fmt: skip
    assert list(found.partitions) == ["batch", "gpu", "small"]  # the default one first
    assert found.partitions["batch"] == {
        "nodes": 792,
        "max_nodes": 768,
        "max_time": "1-00:00:00",
        "node": {"sockets": 2, "cores": 48, "threads_per_core": 2, "cpus": 48, "memory_mb": 96000},
    }
    assert found.partitions["gpu"]["node"] == {
        "sockets": 2, "cores": 40, "threads_per_core": 1, "memory_mb": 192000, "gpus": {},
    }  # fmt: skip
    (note,) = tools.notes
    assert note.startswith("partition gpu: its nodes differ in gpus (")
    made.program(programs, "sinfo", "echo 'small|1|2|24|2|96000|gpu:2|1:00|1-16|96|(null)|n1'")
    assert SCHEDULERS["slurm"].own_node(tools, "n1")["gpus"] == {"count": 2}


QCONF = r"""case "$*" in
-sql) printf '%%s\n' all.q long 'down.q' ;;
-sc) ;;
"-sq all.q") printf '%%s\n' 'qname  all.q' 'pe_list  smp make,[@new=mpi \\' '    other] mpi-rr' 'h_rt  48:0:00' ;;
"-sq long") printf '%%s\n' 'pe_list  fill,mpi-rr' 'h_rt  INFINITY' ;;
-sq*) printf '%%s\n' 'pe_list  smp none' ;;
-spl) printf '%%s\n' smp make fill mpi-rr ;;
"-sp smp") printf '%%s\n' 'allocation_rule $pe_slots' 'control_slaves TRUE' ;;
"-sp make") printf '%%s\n' 'allocation_rule  $round_robin' 'control_slaves   FALSE' ;;
"-sp fill") printf '%%s\n' 'allocation_rule  $fill_up' 'control_slaves   TRUE' ;;
"-sp mpi-rr") printf '%%s\n' 'allocation_rule  $round_robin' 'control_slaves   TRUE' ;;
*) echo 'no such parallel environment' >&2; exit 1 ;;
esac""".replace("%%", "%")
#: As 8.1.9 prints it, shorter.
QHOST = """cat <<'EOF'
<qhost>
 <host name='global'>
   <hostvalue name='m_socket'>-</hostvalue>
 </host>
 <host name='n1'>
   <hostvalue name='m_socket'>2</hostvalue>
   <hostvalue name='m_core'>24</hostvalue>
   <hostvalue name='m_thread'>48</hostvalue>
 <queue name='all.q'>
   <queuevalue qname='all.q' name='slots'>24</queuevalue>
 </queue>
 <queue name='long'>
 </queue>
 </host>
 <host name='n2'>
   <hostvalue name='m_socket'>2</hostvalue>
   <hostvalue name='m_core'>16</hostvalue>
   <hostvalue name='m_thread'>32</hostvalue>
 <queue name='all.q'>
 </queue>
 </host>
</qhost>
EOF"""


KINDS = "write an entry for each kind, with the same queue and its own constraint"


@pytest.mark.thorough
def test_grid_engine(programs, monkeypatch):
    made.program(programs, "qconf", 'test "$SGE_ROOT" = /sge || exit 1\n' + QCONF)
    made.program(programs, "qhost", QHOST)
    made.program(programs, "qstat", "printf 'SGE 8.1.9\\nusage: qstat [options]\\n'; exit 1")
    assert SCHEDULERS["gridengine"].facts(Tools()) is None
    monkeypatch.setenv("SGE_ROOT", "/sge")
    tools = Tools(settings=SCHEDULERS["gridengine"].settings)
    found = SCHEDULERS["gridengine"].facts(tools)
    assert found.scheduler == {"kind": "gridengine", "version": "8.1.9"}
    assert found.partitions == {
        "all.q": {
            "nodes": 2, "max_time": "48:00:00", "node": {"sockets": 2, "cores": 16, "threads_per_core": 2},
            "parallel_environment": "mpi-rr",
        },
        "long": {
            "nodes": 1, "node": {"sockets": 2, "cores": 24, "threads_per_core": 2}, "parallel_environment": "mpi-rr",
        },
        "down.q": {},
    }  # fmt: skip
    assert tools.notes == [
        "partition all.q: its nodes differ in cores: " + KINDS,
        "partition long: parallel environment mpi-rr was chosen; others: fill ($fill_up)",
        "partition down.q: no parallel environment deals slots to several nodes and has control_slaves",
    ]
    monkeypatch.setenv("SGE_O_HOST", "login2")
    here = capture(CaptureRequest(node=True, partition="long"), SCHEDULERS.values())
    assert (list(here.profile["partitions"]), here.profile["login"]) == (["long"], {"host": "login2"})


@pytest.mark.parametrize(
    ("consumable", "word", "note"),
    [("YES", "gpu", None), ("JOB", None, "the resource gpu is not counted per slot: jobs request it with directives")],
)
def test_gpus_of_grid_engine(programs, consumable, word, note):
    complexes = "#name shortcut type relop requestable consumable default urgency\\n"
    complexes += f"gpu gpu INT <= YES {consumable} 0 0\\nmem_free mf MEMORY <= YES NO 0 0\\n"
    host = "hostname  n1\\ncomplex_values        gpu=4,slots=24\\n"
    more = f"-sc) printf '{complexes}' ;;\n'-se n1') printf '{host}' ;;\n-sql)"
    made.program(programs, "qconf", QCONF.replace("-sql)", more, 1))
    free = " <resourcevalue name='gpu' dominance='hc'>1.000000</resourcevalue>\n <queue name='long'>"  # 3 are in use
    asked = 'case "$*" in "-q -F gpu -xml"|"-q -xml") ;; *) exit 1 ;; esac\n'
    made.program(programs, "qhost", asked + QHOST.replace(" <queue name='long'>", free, 1))
    tools = Tools()
    scheduler, found = SCHEDULERS["gridengine"].facts(tools)[:2]
    assert scheduler.get("gpu_request") == word
    assert found["long"]["node"].get("gpus") == ({"count": 4} if word else None)
    assert found["all.q"]["node"].get("gpus") == ({} if word else None)  # n2 has none
    assert (note in tools.notes) == (note is not None)


#: As qstat.c and pbsnodes.c of OpenPBS write it; a long line goes on behind a tab.
QSTAT = r"""case "$*" in
--version) echo "pbs_version = 23.06.06" ;;
-Bf) printf '%%s\n' 'Server: pbs01' '    default_queue = workq' ;;
-Qf) cat <<'EOF'
Queue: gpu
    queue_type = Execution
    resources_max.nodect = 4
    resources_max.walltime = 24:00:00
    default_chunk.ncpus = 1
    default_chunk.mem = 2gb
    default_chunk.Qlist = gpu
    enabled = True

Queue: route
    queue_type = Route
    route_destinations = workq,gpu

Queue: workq
    queue_type = Execution
    default_chunk.Qlist = wor\tkq
    acl_users = someone@somewhere

EOF
esac""".replace("%%", "%").replace("\\t", "\n\t")
PBSNODES = """cat <<'EOF'
n1
     Mom = n1
     state = free
     resources_available.mem = 201326592kb
     resources_available.ncpus = 48
     resources_available.Qlist = workq

g1
     Mom = g1
     state = job-busy
     resources_available.mem = 256gb
     resources_available.ngpus = 4
     resources_available.Qlist = workq,gpu

own
     Mom = own
     queue = someones
     resources_available.Qlist = workq,gpu

EOF"""


def test_pbs(programs):
    assert SCHEDULERS["pbs"].facts(Tools()) is None
    made.program(programs, "qstat", "echo 'Version: 4.2.10'")  # Torque's
    assert SCHEDULERS["pbs"].facts(Tools()) is None
    made.program(programs, "qstat", QSTAT)
    made.program(programs, "pbsnodes", PBSNODES)
    tools = Tools()
    found = SCHEDULERS["pbs"].facts(tools)
    assert found.scheduler == {"kind": "pbs", "version": "23.06.06"}
    assert list(found.partitions) == ["workq", "gpu"]  # the default one first
    assert found.partitions["workq"] == {
        "nodes": 2, "gpu_request": "ngpus", "node": {"memory_mb": 196608, "gpus": {}},
    }  # fmt: skip
    assert found.partitions["gpu"] == {
        "nodes": 1, "max_time": "24:00:00", "max_nodes": 4, "gpu_request": "ngpus", "request_memory": True,
        "node": {"memory_mb": 262144, "gpus": {"count": 4}},
    }  # fmt: skip
    (note,) = tools.notes
    assert note == "partition workq: its nodes differ in cpus, gpus (0 or 4 per node), memory_mb: " + KINDS


@pytest.mark.thorough
def test_a_pbs_job_with_one_gpu_does_not_hide_the_others_of_its_node(programs):
    made.program(programs, "qstat", QSTAT)
    made.program(programs, "pbsnodes", PBSNODES)
    made.program(programs, "nvidia-smi", "echo 'Tesla V100-SXM2-16GB, 16384, 7.0'")
    found = of_node("gpu")["gpus"]
    assert (found["count"], found["kind"]) == (4, "nvidia")
    mixed = capture(CaptureRequest(node=True, partition="workq"), SCHEDULERS.values()).profile["partitions"]["workq"][
        "node"
    ]["gpus"]
    assert "count" not in mixed  # its nodes have different numbers
    assert mixed["capability"] == "7.0"


def test_pbs_queue_with_own_vnodes_and_hosts_of_several_vnodes(programs):
    queue = "    queue_type = Execution"
    listed = ["Queue: big", queue, "    hasnodes = True", "", "Queue: workq", queue, ""]
    vnodes = [
        ("n1", "", 0, 0, "workq"),
        ("n1[0]", "n1", 64, 2, "big"),
        ("n1[1]", "n1", 64, 2, "big"),
        ("n2", "", 32, 0, ""),
    ]
    lines = []
    for name, host, memory, count, own in vnodes:
        lines += [name, "     resources_available.host = %s" % (host or name)]
        lines += ["     resources_available.mem = %dgb" % memory, "     resources_available.ngpus = %d" % count]
        lines += ["     queue = " + own] if own == "big" else []
        lines += [""]
    version = "[ $1 != --version ] || exec echo pbs_version = 23.06.06; [ $1 = -Qf ] || exit 1\n"
    made.program(programs, "qstat", version + "cat <<'EOF'\n{}\nEOF".format("\n".join(listed)))
    made.program(programs, "pbsnodes", "cat <<'EOF'\n{}\nEOF".format("\n".join(lines)))
    partitions = SCHEDULERS["pbs"].facts(Tools()).partitions
    assert partitions["big"] == {
        "nodes": 1, "gpu_request": "ngpus", "node": {"memory_mb": 131072, "gpus": {"count": 4}},
    }  # fmt: skip
    assert "gpu_request" not in partitions["workq"]
    assert partitions["workq"]["nodes"] == 2  # n1's own vnode belongs to all queues without vnodes


def listed_queues(*queues):
    """Return a qstat with these queues, whose nodes are four hosts of two models that differ a little in memory."""
    lines = [
        "Queue: {}\n    queue_type = Execution\n{}\n".format(name, "\n".join("    " + one for one in own))
        for name, *own in queues
    ]
    return (
        "[ $1 != --version ] || exec echo pbs_version = 23.06.06; [ $1 = -Qf ] || exit 1\ncat <<'EOF'\n{}\nEOF".format(
            "\n".join(lines)
        )
    )


def listed_nodes(*nodes):
    return "cat <<'EOF'\n{}\nEOF".format(
        "\n".join("{}\n{}\n".format(name, "\n".join("     " + one for one in own)) for name, *own in nodes)
    )


@pytest.mark.parametrize(
    ("own", "usable"),
    [
        (["acl_user_enable = True", "acl_users = bob,me@*"], True),
        (["acl_user_enable = True", "acl_users = -me@login1,+"], False),
        (["acl_user_enable = True", "acl_users = +,-bob"], True),
        (["acl_user_enable = True", "acl_users = bob"], False),
        (["acl_user_enable = True"], False),
        (["acl_user_enable = False", "acl_users = bob"], True),
        (["acl_group_enable = True", "acl_groups = hpc"], True),
        (["acl_group_enable = True", "acl_groups = others"], False),
        (["from_route_only = True"], False),
    ],
)
def test_queues_of_pbs_that_a_user_may_use(programs, own, usable):
    made.program(programs, "id", "case $1 in -un) echo me ;; -Gn) echo users hpc ;; esac")
    made.program(programs, "qstat", listed_queues(["q", *own]))
    tools = Tools()
    assert set(SCHEDULERS["pbs"].facts(tools).partitions) == ({"q"} if usable else set())
    assert any("queue q: left out" in note for note in tools.notes) != usable


def test_kinds_of_nodes_of_pbs(programs):
    made.program(programs, "qstat", listed_queues(["q"]))
    mem, model = "resources_available.mem = %dkb", "resources_available.model = %s"
    nodes = [("n1", 100000000, "old"), ("n2", 99999000, "old"), ("n3", 200000000, "new"), ("n4", 199000000, "new")]
    rows = [[name, mem % size, model % word, "sharing = default_excl"] for name, size, word in nodes]
    made.program(programs, "pbsnodes", listed_nodes(*rows))
    tools = Tools()
    one = {"nodes": 2, "exclusive": True, "queue": "q"}
    assert SCHEDULERS["pbs"].facts(tools).partitions == {
        "q-old": dict(one, constraint="model=old", node={"memory_mb": 97655}),
        "q-new": dict(one, constraint="model=new", node={"memory_mb": 194335}),
    }
    assert not any("differ" in note for note in tools.notes)
    # Two kinds would have one name.
    rows[2][2] = rows[3][2] = "resources_available.gpu = old"
    made.program(programs, "pbsnodes", listed_nodes(*rows))
    assert SCHEDULERS["pbs"].facts(Tools()).partitions == {
        "q": {"nodes": 4, "exclusive": True, "node": {"memory_mb": 97655}}
    }


BQUEUES = """cat <<'EOF'
QUEUE: long
  -- For jobs of days.

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV
 30    0  Open:Active       -    -    -    -     0     0     0     0     0    0

DEFAULT LIMITS:

 RUNLIMIT
 60.0 min

MAXIMUM LIMITS:

 RUNLIMIT
 2880.0 min of hostA

USERS: all
HOSTS:  all

-------------------------------------------------------------------------------

QUEUE: normal
  -- No description provided.  This is the default queue.

USERS: all
HOSTS:  group1/ hostB+2
EOF"""


def test_lsf(programs):
    made.program(programs, "lsid", "echo 'lsid: LSF is down'; exit 1")
    assert SCHEDULERS["lsf"].facts(Tools()) is None
    head = "IBM Spectrum LSF Standard 10.1.0.9, Oct 16 2019\\nMy cluster name is big\\nMy master name is m1\\n"
    made.program(programs, "lsid", f"printf '{head}'")
    made.program(programs, "bqueues", BQUEUES)
    found = SCHEDULERS["lsf"].facts(Tools())
    assert (found.scheduler, found.cluster) == ({"kind": "lsf", "version": "10.1.0.9"}, "big")
    assert list(found.partitions.items()) == [("normal", {}), ("long", {"max_time": "48:00:00"})]
    made.program(programs, "bqueues", BQUEUES.replace("2880.0 min of hostA", "0.5 min").replace("60.0", "0.5"))
    assert SCHEDULERS["lsf"].facts(Tools()).partitions["long"] == {"max_time": "00:00:30"}
    listed = "HOST_NAME            gpu_id       gpu_model   gpu_driver   gpu_factor      numa_id\\n"
    made.program(programs, "lshosts", f"printf '{listed}'")
    assert "gpu_request" not in SCHEDULERS["lsf"].facts(Tools()).partitions["normal"]
    first = "hostA                     0      TeslaV100    418.67         7.0            0\\n"
    made.program(programs, "lshosts", "printf '%s'" % (listed + first))
    assert SCHEDULERS["lsf"].facts(Tools()).partitions["normal"] == {"gpu_request": "gpu"}


@pytest.mark.parametrize(
    ("text", "time"),
    [("48:0:00", "48:00:00"), ("7200", "02:00:00"), ("0:90:5", "01:30:05"), (":30:", None), ("INFINITY", None)],
)
def test_the_limit_of_a_queue_of_grid_engine(programs, text, time):
    made.program(programs, "qconf", f"printf 'h_rt  {text}\\n'")
    found = gridengine._partition("q", [], {}, Tools())
    assert found == ({"max_time": time} if time else {})


LMOD_SHOW = """
------------------------------------------------------------------
   /opt/modulefiles/intel-mpi/2021.15.lua:
------------------------------------------------------------------
help([[Intel MPI]])
setenv("I_MPI_ROOT","/opt/intel/mpi")
setenv("FI_PROVIDER","psm2")
setenv("I_MPI_CC","icc")
prepend_path("PATH","/opt/intel/mpi/bin")
"""
TCL_SHOW = """
/sw/modules/openmpi/4.1.4:

module-whatis   {Open MPI}
setenv          MPI_HOME /sw/openmpi/4.1.4
setenv          OMPI_MCA_btl {^openib}
prepend-path    LD_LIBRARY_PATH /sw/openmpi/4.1.4/lib
"""


def test_what_modules_set():
    found = parse("intel-mpi/2021.15", LMOD_SHOW)
    assert found.sets == {"I_MPI_ROOT": "/opt/intel/mpi", "FI_PROVIDER": "psm2", "I_MPI_CC": "icc"}
    assert found.adds == [("PATH", "/opt/intel/mpi/bin")]
    found = parse("openmpi/4.1.4", TCL_SHOW)
    assert found.sets == {"MPI_HOME": "/sw/openmpi/4.1.4", "OMPI_MCA_btl": "^openib"}
    assert found.adds == [("LD_LIBRARY_PATH", "/sw/openmpi/4.1.4/lib")]


def test_names_of_modules(programs, tmp_path, monkeypatch):
    listed = "/x:\nintel-mpi/\nintel-mpi/2021.15(default)\nmpi.intel/2019\nOpenMPI/4.1.4-GCC-11\n"
    listed += "gcc/12\nimpi/5\ncharliecloud/0.31"
    made.program(programs, "lmod", f"printf '{listed}\\n' >&2\nprintf 'MODULEPATH=/x;\\nexport MODULEPATH;\\n'")
    (tmp_path / ".bash_profile").write_text(f"unset BASH_ENV; export MODULEPATH=/x LMOD_CMD={programs}/lmod\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = modules.find(Tools()).chains
    assert sorted(modules.like_mpi(found)) == ["OpenMPI/4.1.4-GCC-11", "impi/5", "intel-mpi/2021.15", "mpi.intel/2019"]
    assert modules.runtimes(found) == {"charliecloud": ("charliecloud/0.31", "0.31")}
    assert modules.like_mpi(["gompi/2022a", "simpit/1", "hdf5/1.12-openmpi", "compiler/1"]) == ["hdf5/1.12-openmpi"]


def test_an_installation_of_mpi(programs, intel):
    described = Module("mpi/intel", {"I_MPI_ROOT": str(intel), "I_MPI_FABRICS": "shm:ofi", "I_MPI_CC": "icc"}, [])
    tools, found = find_mpi("/nowhere", [described])
    (name,) = [name for name, each in found.mpi.items() if each["prefix"] == str(intel)]
    assert name == "intel-2021.99"
    assert {key: value for key, value in found.mpi[name].items() if key not in ("identity", "source")} == {
        "family": "intel",
        "version": "2021.99",
        "prefix": str(intel),
        "library": "lib/libmpi.so.12",
        "libraries": ["lib"],
        "providers": "lib/prov",
        "says": "Intel(R) MPI Library 2021.99",
        "module": "mpi/intel",
        "environment": {"I_MPI_FABRICS": "shm:ofi"},
        "soname": "libmpi.so.12",
    }
    tree = found.trees[name]
    assert tree.links == {"lib/libmpi.so.12": "libmpi.so.12.0"}
    assert sorted(tree.files) == ["lib/libmpi.so.12.0", "lib/prov/libtcp-fi.so"]
    assert "MPI_Init" in tree.files["lib/libmpi.so.12.0"].exports
    assert found.mpi[name]["identity"] == "build-id:" + tree.files["lib/libmpi.so.12.0"].dynamic.build_id
    libc = [path for path in found.system.files if os.path.basename(path).startswith(("libc.so", "libc-2"))]
    assert len(libc) == 1
    assert any("libcut.so is not a complete ELF file" in note for note in tools.notes)


@pytest.mark.parametrize("folder", ["libfabric/lib", "lib/libfabric"])
def test_a_libfabric_that_is_not_beside_the_library(programs, intel, folder):
    """Intel MPI dlopens it by its name: where its folder is not searched, MPI_Init fails (seen with 2021.11)."""
    shutil.rmtree(str(intel / "lib" / "prov"))
    os.makedirs(str(intel / folder / "prov"))
    for inner in ("libfabric.so.1", "prov/libtcp-fi.so"):
        shutil.copy(str(intel / "lib" / "libmpi.so.12.0"), str(intel / folder / inner))
    _, found = find_mpi(intel)
    described = next(each for each in found.mpi.values() if each["prefix"] == str(intel))
    assert (described["libraries"], described["providers"]) == (["lib", folder], folder + "/prov")


@pytest.fixture
def packaged(programs, intel, tmp_path, monkeypatch):
    """Return a system in which a package put an Open MPI, and that stands where a test says."""
    usr, compiler = tmp_path / "usr", shutil.which("cc") or shutil.which("gcc")
    (usr / "lib" / "openmpi" / "plugins").mkdir(parents=True)
    (usr / "lib" / "pmix").mkdir()
    (usr / "bin").mkdir()
    (tmp_path / "etc" / "openmpi").mkdir(parents=True)
    (usr / "mpi.c").write_text(MPI_C.replace("Intel(R) MPI Library 2021.99 for Linux* OS", "Open MPI v4.1.4"))
    (usr / "mpich.c").write_text(MPI_C.replace("Intel(R) MPI Library 2021.99 for Linux* OS", "MPICH Version: 4.0.2"))
    (usr / "else.c").write_text("int other(void) { return 0; }\n")
    for name, needs in (("libpmix.so.2", ()), ("pmix/mca_a.so", ()), ("openmpi/plugins/mca_b.so", ()),
                        ("libother.so.1", ()), ("libmpi_mpifh.so.40", ("libmpi.so.40",)),
                        ("libmpich.so.12", ()), ("libmpi.so.40", ("libpmix.so.2",))):  # fmt: skip
        source = {"libmpi.so.40": "mpi.c", "libmpich.so.12": "mpich.c"}.get(name, "else.c")
        if not needs:
            soname = "-Wl,-soname," + name.rpartition("/")[2]
            compiled(usr / "lib" / name, usr / source, compiler, "-Wl,--build-id", soname)
            continue
        wanted = ["-Wl,--no-as-needed", f"-L{usr}/lib", *("-l:" + need for need in needs if need != "libmpi.so.40")]
        subprocess.check_call(
            [compiler, "-shared", "-fPIC", "-Wl,--build-id", f"-Wl,-rpath,{usr}/lib",
             "-Wl,-soname," + name.rpartition("/")[2], "-o", str(usr / "lib" / name), str(usr / source), *wanted]
        )  # fmt: skip
    wanted = ["-Wl,--no-as-needed", f"-L{usr}/lib", "-l:libmpi.so.40", "-Wl,-soname,libmpi_mpifh.so.40"]
    binding = str(usr / "lib" / "libmpi_mpifh.so.40")
    subprocess.check_call([compiler, "-shared", "-fPIC", "-o", binding, str(usr / "else.c"), *wanted])
    made.program(
        usr / "bin",
        "ompi_info",
        f'echo path:prefix:/usr; echo "path:pkglibdir:{usr}/lib/openmpi/plugins"\n'
        f'echo "path:sysconfdir:{tmp_path}/etc/openmpi"; echo "path:pkgdatadir:{usr}/share/openmpi"\necho '
        "path:localstatedir:/etc",
    )
    return usr


@pytest.mark.thorough
def test_an_open_mpi_among_the_system_s_libraries(programs, packaged, tmp_path, monkeypatch):
    monkeypatch.setattr(mpi, "_SYSTEM", (str(packaged),))
    _, found = find_mpi(packaged)
    described = found.mpi["openmpi-4.1.4"]
    assert described["folders"] == {  # share/openmpi is not there
        "OPAL_PKGLIBDIR": str(packaged / "lib/openmpi/plugins"),
        "OPAL_SYSCONFDIR": str(tmp_path / "etc/openmpi"),
        "PMIX_PKGLIBDIR": str(packaged / "lib/pmix"),
    }
    assert sorted(found.trees["openmpi-4.1.4"].files) == ["lib/libmpi.so.40", "lib/libmpi_mpifh.so.40"]
    assert found.mpi["mpich-4.0.2"]["library"] == "lib/libmpich.so.12"  # another package's, beside it
    assert sorted(found.trees["mpich-4.0.2"].files) == ["lib/libmpich.so.12"]
    inside = {os.path.relpath(path, str(packaged)) for path in found.system.files}
    assert {"lib/openmpi/plugins/mca_b.so", "lib/pmix/mca_a.so", "lib/libpmix.so.2"} <= inside
    assert "lib/libother.so.1" not in inside


def test_the_settings_of_an_open_mpi_outside_of_its_prefix(programs, packaged, tmp_path):
    _, found = find_mpi(packaged)
    assert found.mpi["openmpi-4.1.4"]["folders"] == {"OPAL_SYSCONFDIR": str(tmp_path / "etc/openmpi")}


@pytest.mark.thorough
def test_settings_among_those_of_other_programs_are_left_out(programs, packaged, tmp_path):
    program = packaged / "bin" / "ompi_info"
    program.write_text(program.read_text().replace("etc/openmpi", "etc"))
    _, found = find_mpi(packaged)
    assert "folders" not in found.mpi["openmpi-4.1.4"]


def test_cray_mpich_by_the_name_of_mpich_s_abi(programs, intel, tmp_path):
    prefix = tmp_path / "cray/pe/mpich/8.1.32/ofi/gnu/11.2"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib-abi-mpich").mkdir()
    (prefix / "mpi.c").write_text(
        MPI_C.replace(
            "Intel(R) MPI Library 2021.99 for Linux* OS", "MPI VERSION    : CRAY MPICH version 8.1.32.110 (ANL)"
        )
    )
    build(shutil.which("cc"), prefix, "lib/libmpi_gnu_112.so.12.0", "libmpi_gnu_112.so.12", "1")
    os.symlink("libmpi_gnu_112.so.12.0", str(prefix / "lib" / "libmpi_gnu_112.so.12"))
    os.symlink("../lib/libmpi_gnu_112.so.12", str(prefix / "lib-abi-mpich" / "libmpi.so.12"))
    _, found = find_mpi(prefix)
    described = found.mpi["cray-8.1.32.110"]
    assert described["library"] == "lib-abi-mpich/libmpi.so.12"
    assert described["libraries"] == ["lib-abi-mpich", "lib"]
    assert described["soname"] == "libmpi_gnu_112.so.12"
    assert described["says"] == "MPI VERSION : CRAY MPICH version 8.1.32.110"
    assert found.trees["cray-8.1.32.110"].links["lib-abi-mpich/libmpi.so.12"] == "../lib/libmpi_gnu_112.so.12"


def test_what_an_mpi_needs_in_other_prefixes(programs, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler: apt-get install gcc")
    for name in ("hwloc", "mpi"):
        (tmp_path / name / "lib").mkdir(parents=True)
    (tmp_path / "hwloc.c").write_text("int hwloc(void) { return 0; }\n")
    (tmp_path / "mpi.c").write_text(
        "int hwloc(void);\nint MPI_Init(int *c, char ***v) { return hwloc(); }\n"
        'const char *kind = "MPICH Version: of no version";\n'
        "int MPI_Get_library_version(char *v, int *n) { __builtin_trap(); }\n"
    )
    hwloc, library = tmp_path / "hwloc" / "lib" / "libhwloc.so.15", tmp_path / "mpi" / "lib" / "libmpi.so.12"
    subprocess.check_call(
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libhwloc.so.15", "-o", str(hwloc), str(tmp_path / "hwloc.c")]
    )
    subprocess.check_call(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "mpi.c"), str(hwloc),
         "-Wl,-rpath," + str(hwloc.parent), "-Wl,-soname,libmpi.so.12"]
    )  # fmt: skip
    (tmp_path / "mpi" / "bin").mkdir()
    made.program(tmp_path / "mpi" / "bin", "mpiexec.hydra", "exit 0")
    tools, found = find_mpi(tmp_path / "mpi")
    described = found.mpi["mpich"]  # which did not live to tell its version
    assert described["launcher"] == "bin/mpiexec.hydra"
    assert (described["family"], described["binds"]) == ("mpich", [str(tmp_path / "hwloc")])
    assert "says" not in described
    assert "version" not in described
    assert str(hwloc) in found.system.files
    assert any(note.startswith(f"MPI_Get_library_version of {library}: exit -") for note in tools.notes)


def test_a_prefix_without_mpi_is_noted(programs, tmp_path):
    tools, found = find_mpi(tmp_path)
    assert str(tmp_path) not in [each["prefix"] for each in found.mpi.values()]
    assert f"{tmp_path}: no MPI library below it" in tools.notes


@pytest.mark.parametrize(
    ("says", "family", "version", "beginning"),
    [
        ("Intel(R) MPI Library 2021.15 for Linux* OS", "intel", "2021.15", "Intel(R) MPI Library 2021.15"),
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "openmpi", "4.1.4", "Open MPI v4.1.4"),
        ("MPICH Version: 4.2.3", "mpich", "4.2.3", "MPICH Version: 4.2.3"),
        ("MVAPICH2 Version : 2.3.7", "mvapich", "2.3.7", "MVAPICH2 Version : 2.3.7"),
        (
            "MPI VERSION : CRAY MPICH version 8.1.4 (ANL)",
            "cray",
            "8.1.4",
            "MPI VERSION : CRAY MPICH version 8.1.4",
        ),
        ("something else", None, None, None),
    ],
)
def test_families(says, family, version, beginning):
    assert mpi._identified(says) == (family, version, beginning)


def write(top, tree):
    for path, text in tree.items():
        place = top / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def test_the_shape_of_a_node(programs, tmp_path):
    cpus = {}
    for number in range(8):
        folder = "sys/devices/system/cpu/cpu%d/topology/" % number
        cpus[folder + "physical_package_id"] = "%d\n" % (number % 4 // 2)
        cpus[folder + "core_id"] = "%d\n" % (number % 2)
    write(tmp_path, cpus)
    write(tmp_path, {"sys/devices/system/node/node%d/cpulist" % number: "%d\n" % number for number in range(4)})
    write(tmp_path, {"sys/devices/system/node/node%d/cpulist" % number: "\n" for number in (4, 5)})  # of memory only
    flags = "flags\t\t: fpu sse4_2 avx2 avx512f extra\n"
    write(
        tmp_path, {"proc/meminfo": "MemTotal:  98304000 kB\n", "proc/cpuinfo": "model name\t: Xeon 8174\n" + flags * 2}
    )
    made.program(
        programs, "nvidia-smi", "echo 'Tesla V100-PCIE-32GB, 32510, 7.0'; echo 'Tesla V100-PCIE-32GB, 32510, 7.0'"
    )
    assert node.node(Tools(), str(tmp_path / "sys"), str(tmp_path / "proc")) == {
        "sockets": 2,
        "cores": 4,
        "threads_per_core": 2,
        "numa_domains": 4,
        "memory_total_mb": 96000,
        "cpu": {"model": "Xeon 8174", "flags": ["sse4_2", "avx2", "avx512f"]},
        "gpus": {
            "kind": "nvidia",
            "model": "Tesla V100-PCIE-32GB",
            "count": 2,
            "memory_mb": 32510,
            "capability": "7.0",
        },
    }
    made.program(programs, "nvidia-smi", "echo 'NVIDIA-SMI has failed'")
    tools = Tools()
    assert node.node(tools, str(tmp_path / "none"), str(tmp_path / "none")) == {}
    assert tools.notes == ["nvidia-smi: no list of GPUs: NVIDIA-SMI has failed"]


@pytest.mark.parametrize(
    ("near", "affinity"),
    [
        ("10", [{"numa_domain": 0, "gpus": [1], "cpus": "0-1"}, {"numa_domain": 1, "gpus": [0], "cpus": "2-3"}]),
        ("11", [{"numa_domain": 0, "gpus": [], "cpus": "0-1"}, {"numa_domain": 1, "gpus": [0, 1], "cpus": "2-3"}]),
        ("1-", None),  # the firmware does not know: the kernel has -1
        ("101", None),  # the job has two GPUs of three
    ],
)
def test_which_gpus_are_near_a_numa_domain(near, affinity, programs, tmp_path):
    made.program(programs, "nvidia-smi", "echo 'A100, 40960, 8.0'; echo 'A100, 40960, 8.0'")
    tree = {"devices/system/node/node0/cpulist": "0-1\n", "devices/system/node/node1/cpulist": "2-3\n"}
    for at, domain in enumerate(near):
        device = "bus/pci/devices/0000:%02x:00.0/" % (7 + at)
        tree.update(
            {device + "vendor": "0x10de\n", device + "class": "0x030200\n", device + "numa_node": domain + "\n"}
        )
    other = "bus/pci/devices/0000:01:00.0/"
    tree.update({other + "vendor": "0x1a03\n", other + "class": "0x030000\n", other + "numa_node": "0\n"})  # the BMC's
    tree.update({"bus/pci/devices/0000:02:00.0/vendor": "0x10de\n", "bus/pci/devices/0000:02:00.0/class": "0x068000\n"})
    write(tmp_path, tree)
    found = node.node(Tools(), str(tmp_path), str(tmp_path / "none"))
    assert found.get("affinity") == affinity


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("mpiexec version 1.8.0 revision 2f8a", ["mpiexec", "ibrun", "pals"]),
        ("HYDRA build details:\n    Version: 4.0.2", ["mpiexec", "ibrun"]),
        ("mpiexec (OpenRTE) 4.1.4", ["mpiexec", "ibrun"]),
    ],
)
def test_launchers_of_a_site(said, known, programs, monkeypatch):
    monkeypatch.setenv("PATH", str(programs))
    for name in ("mpiexec", "ibrun"):
        made.program(programs, name, f"echo '{said}'")
    assert machine.launchers(Tools()) == known


#: ``amd-smi static --asic`` with an MI350X: ROCm/rocm-systems, pull request 2987; shorter.
AMD_SMI = """\
GPU: 0
    ASIC:
        MARKET_NAME: AMD Instinct MI350X
        VENDOR_ID: 0x1002
        NUM_COMPUTE_UNITS: 128
        TARGET_GRAPHICS_VERSION: gfx950
"""
#: ``rocm-smi --showproductname`` with MI300X in a virtual machine: a blog on ROCm; shorter.
ROCM_SMI = """\
============================ ROCm System Management Interface ============================
GPU[0]\t\t: Card Series: \t\tAMD Instinct MI300X VF
GPU[0]\t\t: Card Model: \t\t0x74b5
GPU[0]\t\t: GFX Version: \t\tgfx942
"""
#: ``xpu-smi discovery``: intel-gpu/intel-gpu-i915-backports, issue 167; shorter, with the data center GPU first.
XPU_SMI = """\
+-----------+--------------------------------------------------------------------------------------+
| Device ID | Device Information                                                                   |
+-----------+--------------------------------------------------------------------------------------+
| 1         | Device Name: Intel(R) Data Center GPU Flex 140                                       |
|           | Vendor Name: Intel(R) Corporation                                                    |
+-----------+--------------------------------------------------------------------------------------+
"""


def kfd(folder, versions):
    """Write what the kernel shows of a processor and GPUs of AMD (kfd_topology.c; values of MI250X and others)."""
    nodes = "sys/class/kfd/kfd/topology/nodes/%d/properties"
    write(folder, {nodes % 0: "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\ndrm_render_minor 0\n"})
    for number, version in enumerate(versions, 1):
        text = "simd_count 440\ngfx_target_version %d\nvendor_id 4098\ndrm_render_minor %d\n" % (version, 127 + number)
        write(folder, {nodes % number: text})
        device = "sys/class/drm/renderD%d/device/" % (127 + number)
        write(folder, {device + "mem_info_vram_total": "68702699520\n", device + "vendor": "0x1002\n"})


@pytest.mark.parametrize(
    ("versions", "programs_say", "version", "expected"),
    [
        ([90010] * 8, {}, "6.3.6", {"count": 8, "target": "gfx90a"}),
        ([90402], {"rocm-smi": ROCM_SMI}, "6.12.12",
         {"count": 1, "target": "gfx942", "model": "AMD Instinct MI300X VF"}),
        ([90500], {"amd-smi": AMD_SMI, "rocm-smi": ROCM_SMI}, None,
         {"count": 1, "target": "gfx950", "model": "AMD Instinct MI350X"}),
        ([110501], {"amd-smi": "AMD-SMI was not found"}, None, {"count": 1, "target": "gfx1151"}),
        ([90010, 90402], {}, None, {"count": 2}),
    ],
)  # fmt: skip
def test_gpus_of_amd(versions, programs_say, version, expected, programs, tmp_path):
    kfd(tmp_path, versions)
    for name, text in programs_say.items():
        write(tmp_path, {name: text})
        made.program(programs, name, f"cat {tmp_path}/{name}")
    if version:
        write(tmp_path, {"sys/module/amdgpu/version": version + "\n"})
    tools = Tools()
    assert gpus.gpus(tools, str(tmp_path / "sys")) == {"kind": "amd", "memory_mb": 65520, **expected}
    assert gpus.driver(tools, Libraries(tools), str(tmp_path / "sys")) == {
        "kind": "amd", **({"version": version} if version else {}),
    }  # fmt: skip
    assert tools.notes == (["the node's GPUs differ: gfx90a; gfx942"] if len(set(versions)) > 1 else [])


def test_gpus_of_intel(programs, tmp_path):
    """A data center GPU is a display controller of Intel; the graphics of a processor are not."""
    for number, (vendor, kind) in enumerate([("0x8086", "0x030000"), ("0x8086", "0x038000"), ("0x1a03", "0x038000")]):
        device = "sys/class/drm/renderD%d/device/" % (128 + number)
        write(tmp_path, {device + "vendor": vendor + "\n", device + "class": kind + "\n"})
    tools, sys = Tools(), str(tmp_path / "sys")
    assert gpus.gpus(tools, sys) == {"kind": "intel", "count": 1}
    assert gpus.listed("intel", sys) == [("renderD129", None)]
    write(tmp_path, {"said": XPU_SMI, "sys/module/i915/version": "I915_24.5.12_PSB_240603.18\n"})
    made.program(programs, "xpu-smi", f"cat {tmp_path}/said")
    assert gpus.gpus(tools, sys) == {"kind": "intel", "count": 1, "model": "Intel(R) Data Center GPU Flex 140"}
    made.program(
        programs, "ldconfig", "printf '\\tlibze_intel_gpu.so.1 (libc6,x86-64) => /usr/lib64/libze_intel_gpu.so.1\\n'"
    )
    assert gpus.driver(tools, Libraries(tools), sys) == {
        "kind": "intel", "version": "I915_24.5.12_PSB_240603.18",
        "libraries": {"libze_intel_gpu.so.1": "/usr/lib64/libze_intel_gpu.so.1"},
    }  # fmt: skip
    made.program(programs, "nvidia-smi", "echo 'NVIDIA H100, 81559, 9.0'")
    assert gpus.gpus(tools, sys)["kind"] == "nvidia"


#: Lines of /proc/cpuinfo, and of lscpu if known, in public reports, and what a profile has of them.
GRACE = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 "
    "sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 sveaes svepmull svebitperm "
    "svesha3 svesm4 flagm2 frint svei8mm svebf16 i8mm bf16 dgh bti"
)
GRAVITON_2 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
A64FX = "fp asimd evtstrm sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm fcma dcpop sve"
OLDEST = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"


@pytest.mark.parametrize(
    ("features", "implementer", "part", "lscpu", "model", "flags"),
    [
        # NVIDIA Grace: a report to the kernel's mailing list on slow serial consoles
        (GRACE, "0x41", "0xd4f", "Vendor ID: ARM\n  Model name:  Neoverse-V2\n", "Neoverse-V2",
         "atomics fphp asimdhp asimdrdm asimddp asimdfhm fcma jscvt lrcpc paca sha3 sve sve2 bf16 i8mm"),
        # Graviton 2: archspec-json, tests/targets/linux-amazon-graviton2
        (GRAVITON_2, "0x41", "0xd0c", "BIOS Model name: AWS\nModel name: Neoverse-N1\n", "Neoverse-N1",
         "atomics fphp asimdhp asimdrdm asimddp lrcpc"),
        # A64FX, and what lscpu of RHEL 8 printed: archspec-json, issue 23
        (A64FX, "0x46", "0x001", "Vendor ID:  0x46\nModel:  0\nStepping:  0x1\n", "implementer 0x46, part 0x001",
         "atomics fphp asimdhp asimdrdm fcma sve"),
        # Cortex-A72: OpenHFT, issue 23; without lscpu
        (OLDEST, "0x41", "0xd08", "", "implementer 0x41, part 0xd08", ""),
        # Apple: lscpu does not know the name
        (OLDEST, "0x61", "0x000", "Model name:             -\n", "implementer 0x61, part 0x000", ""),
    ],
)  # fmt: skip
def test_arm_processors_have_the_name_that_lscpu_prints(
    features, implementer, part, lscpu, model, flags, programs, tmp_path
):
    lines = ["processor\t: {}", "BogoMIPS\t: 2000.00", f"Features\t: {features}", f"CPU implementer\t: {implementer}",
             "CPU architecture: 8", "CPU variant\t: 0x0", f"CPU part\t: {part}", "CPU revision\t: 0", ""]  # fmt: skip
    write(tmp_path, {"proc/cpuinfo": "\n".join("\n".join(lines).format(number) for number in range(2))})
    write(tmp_path, {"said": lscpu})
    made.program(programs, "lscpu", f'[ "$LC_ALL" = C ] && cat {tmp_path}/said')
    cpu = node.node(Tools(), str(tmp_path / "sys"), str(tmp_path / "proc"))["cpu"]
    assert cpu == {"model": model, "flags": flags.split()}


def test_the_fabric(programs, tmp_path):
    made.program(programs, "ldconfig", "printf '\\tlibpsm2.so.2 (libc6,x86-64) => /usr/lib64/libpsm2.so.2\\n'")
    made.program(programs, "nvidia-smi", "exit 9")
    made.program(programs, "fi_info", "printf 'psm2:\\n    version: 114.0\\ntcp;ofi_rxm:\\n    version: 1\\n'")
    write(tmp_path, {f"sys/class/net/{name}/x": "" for name in ("lo", "eth0", "docker0", "ib0")})
    tools = Tools()
    found = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"))
    assert found.fabric == {
        "kind": "ethernet",
        "devices": ["eth0", "ib0"],
        "providers": ["psm2", "tcp;ofi_rxm"],
        "libraries": {"libpsm2.so.2": "/usr/lib64/libpsm2.so.2"},
    }
    assert found.driver is None
    write(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n"})
    again = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"))
    assert (again.fabric["kind"], again.fabric["devices"]) == ("infiniband", ["mlx5_0"])
    write(tmp_path, {"sys/class/net/ib0/type": "32\n", "sys/class/net/eth0/type": "1\n"})
    over = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"))
    assert over.fabric["devices"] == ["ib0", "mlx5_0"]
    write(tmp_path, {"dev/hfi1_0": "", "sys/class/infiniband/hfi1_0/ports/1/link_layer": "InfiniBand\n"})
    last = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"))
    assert (last.fabric["kind"], last.fabric["devices"]) == ("omni-path", ["hfi1_0", "ib0", "mlx5_0"])


def test_slingshot(programs, tmp_path):
    write(tmp_path, {"sys/class/cxi/cxi%d/x" % number: "" for number in (0, 1)})
    write(tmp_path, {f"sys/class/net/{name}/x": "" for name in ("hsn0", "eth0")})
    tools = Tools()
    found = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"))
    assert (found.fabric["kind"], found.fabric["devices"]) == ("slingshot", ["cxi0", "cxi1", "hsn0"])


@pytest.mark.parametrize(
    ("setting", "expected"), [("/var/spool/slurmd", "/var/spool/slurmd"), ("/var/spool/slurmd.%n", None), ("", None)]
)
def test_the_folder_of_slurm_s_daemon(programs, setting, expected):
    made.program(programs, "sinfo", 'case "$*" in *version*) echo "slurm 23.11.1" ;; esac')
    made.program(programs, "scontrol", f'echo "SlurmdSpoolDir          = {setting}"')
    assert SCHEDULERS["slurm"].facts(Tools()).spool == expected


def test_what_fabrics_open_by_themselves_and_by_which_name(programs, intel, tmp_path):
    """A driver of verbs may be a link to a library beside its folder; UCX names its transports with a version."""
    made.program(programs, "nvidia-smi", "exit 9")
    lib = tmp_path / "lib"
    for name in (
        "libibverbs.so.1",
        "libmlx5.so.1.24",
        "libibverbs/librxe-rdmav34.so",
        "libucp.so.0",
        "ucx/libuct_ib.so.0.0",
    ):
        (lib / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(intel / "lib" / "libmpi.so.12.0"), str(lib / name))
    os.symlink("../libmlx5.so.1.24", str(lib / "libibverbs" / "libmlx5-rdmav34.so"))
    os.symlink("libuct_ib.so.0.0", str(lib / "ucx" / "libuct_ib.so.0"))
    cached = "".join(f"\\t{name} (libc6,x86-64) => {lib}/{name}\\n" for name in ("libibverbs.so.1", "libucp.so.0"))
    made.program(programs, "ldconfig", f"printf '{cached}'")
    tools = Tools()
    found = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"))
    assert found.system.links[str(lib / "libibverbs" / "libmlx5-rdmav34.so")] == str(lib / "libmlx5.so.1.24")
    assert found.system.links[str(lib / "ucx" / "libuct_ib.so.0")] == str(lib / "ucx" / "libuct_ib.so.0.0")
    assert str(lib / "libibverbs" / "librxe-rdmav34.so") in found.system.files
    assert found.driver is None


def test_libraries_between_gpus(programs, intel, tmp_path, monkeypatch):
    """A plug-in of this shell's, one of a module with its variables, and GDRCopy of the loader's cache."""
    made.program(programs, "nvidia-smi", "exit 9")
    for place in ("shell/libnccl-net.so", "ofi/lib/libnccl-net.so", "ofi/lib/libnccl-net-ofi.so", "libgdrapi.so.2"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(intel / "lib" / "libmpi.so.12.0"), str(tmp_path / place))
    made.program(programs, "ldconfig", f"printf '\\tlibgdrapi.so.2 (libc6,x86-64) => {tmp_path}/libgdrapi.so.2\\n'")
    sets = {"NCCL_NET": "AWS Libfabric", "FI_CXI_RX_MATCH_MODE": "software", "OFI_HOME": "/opt/ofi"}
    module = Module("aws-ofi-nccl/1.9", sets, [("LD_LIBRARY_PATH", str(tmp_path / "ofi/lib"))])

    def found():
        tools = Tools()
        facts_ = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"), [module])
        assert set(facts_.fabric["libraries"].values()) <= set(facts_.system.files)
        return facts_.fabric

    assert found() == {
        "libraries": {
            "libgdrapi.so.2": str(tmp_path / "libgdrapi.so.2"),
            "libnccl-net-ofi.so": str(tmp_path / "ofi/lib/libnccl-net-ofi.so"),
            "libnccl-net.so": str(tmp_path / "ofi/lib/libnccl-net.so"),
        },
        "environment": {"FI_CXI_RX_MATCH_MODE": "software", "NCCL_NET": "AWS Libfabric"},
    }
    monkeypatch.setenv("LD_LIBRARY_PATH", "%s::/none" % (tmp_path / "shell"))
    assert found()["libraries"]["libnccl-net.so"] == str(tmp_path / "shell/libnccl-net.so")


def test_cray_s_links_and_its_library_for_gpus(programs, tmp_path, monkeypatch):
    """PMI is found in the folder of links, though neither a module nor the loader's cache names it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler: apt-get install gcc")
    top = tmp_path / "pe"
    prefix, links = top / "mpich/8.1.32/ofi/gnu/11.2", top / "lib64"
    for folder in (prefix / "lib-abi-mpich", top / "mpich/8.1.32/gtl/lib", top / "pmi/6.1.15/lib", links):
        folder.mkdir(parents=True)
    (top / "mpi.c").write_text(
        MPI_C.replace("Intel(R) MPI Library 2021.99 for Linux* OS", "MPI VERSION    : CRAY MPICH version 8.1.32.110")
    )
    pmi, gtl = top / "pmi/6.1.15/lib/libpmi.so.0.6", top / "mpich/8.1.32/gtl/lib/libmpi_gtl_hsa.so.0"
    build(compiler, top, str(pmi.relative_to(top)), "libpmi.so.0", "3")
    build(compiler, top, str(gtl.relative_to(top)), "libmpi_gtl_hsa.so.0", "4")
    os.symlink(str(pmi), str(links / "libpmi.so.0"))
    library = prefix / "lib-abi-mpich" / "libmpi.so.12"
    options = ["-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-Wl,--no-as-needed"]
    subprocess.check_call([compiler, *options, "-o", str(library), str(top / "mpi.c"), str(pmi)])
    monkeypatch.setattr(mpi, "_CRAY_LINKS", str(links))
    made.program(programs, "ldconfig", "true")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(links))  # to call it
    _, found = find_mpi(prefix)
    ((_, entry),) = found.mpi.items()
    assert entry["family"] == "cray"
    assert str(pmi) in found.system.files
    assert found.system.links[str(links / "libpmi.so.0")] == str(pmi)
    assert str(gtl) in found.system.files
    assert entry["binds"] == sorted([str(top / "pmi/6.1.15"), str(top / "mpich/8.1.32/gtl")])  # not all of pe


def test_the_driver_s_program_and_libraries(programs, intel, tmp_path):
    cuda = tmp_path / "libcuda.so.550.54.15"
    shutil.copy(str(intel / "lib" / "libmpi.so.12.0"), str(cuda))
    os.symlink(cuda.name, str(tmp_path / "libcuda.so.1"))
    made.program(programs, "ldconfig", f"printf '\\tlibcuda.so.1 (libc6,x86-64) => {tmp_path}/libcuda.so.1\\n'")
    made.program(programs, "nvidia-smi", "exit 9")  # as where the kernel's part is not loaded
    tools = Tools()
    found = fabric.find(tools, Libraries(tools), str(tmp_path / "sys"), str(tmp_path / "dev"))
    assert found.driver == {
        "kind": "nvidia",
        "version": "550.54.15",
        "libraries": {"libcuda.so.1": str(tmp_path / "libcuda.so.1")},
        "smi": str(programs / "nvidia-smi"),
    }


def test_the_pmi_library_that_a_site_names(programs, intel, tmp_path):
    pmi = tmp_path / "libpmi2.so.0"
    shutil.copy(str(intel / "lib" / "libmpi.so.12.0"), str(pmi))
    described = Module("mpi/intel", {"I_MPI_ROOT": str(intel), "I_MPI_PMI_LIBRARY": str(pmi)}, [])
    _, found = find_mpi("/nowhere", [described])
    assert str(pmi) in found.system.files


@pytest.mark.thorough
def test_file_systems(programs, tmp_path, monkeypatch):
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, "/home/alice" if name == "HOME" else "/tmp")
    (tmp_path / "mounts").write_text(
        "rootfs / rootfs rw 0 0\nsysfs /sys sysfs rw 0 0\nnas:/h /home nfs4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
        "fs /scratch\\040x lustre rw 0 0\nx /dead nfs rw 0 0\n"
    )
    made.program(programs, "stat", 'case "$*" in */dead*) exec sleep 600 ;; *) echo "4096 1048576 5000" ;; esac')
    monkeypatch.setattr(filesystems, "_PATIENCE", 1.0)
    made.program(programs, "lfs", "echo ' /scratch  212 0 10485760 - 17 0 1000000 -'")
    made.program(programs, "quota", "exit 1")
    tools = Tools()
    found = filesystems.find(tools, str(tmp_path / "mounts"))
    assert found == {
        "/dead": {"type": "nfs", "shared": True},
        "/home": {"type": "nfs4", "shared": True, "size_mb": 4096, "inodes": 5000},
        "/scratch x": {
            "type": "lustre", "shared": True, "size_mb": 4096, "inodes": 5000, "quota_mb": 10240,
            "quota_inodes": 1000000,
        },
        "/tmp": {"type": "tmpfs", "shared": False, "size_mb": 4096, "inodes": 5000},
    }  # fmt: skip
    assert any("/dead: it did not end" in note for note in tools.notes)


#: Starts a folder, a SquashFS file or a SIF file and prints programs; fails as the real one does without overlay and
#: underlay. PACKED is what it does with a SquashFS file, AS_SIF with a SIF file, FOLDER with a folder.
@pytest.fixture(autouse=True)
def _forget_settings():
    apptainer.settings.cache_clear()


APPTAINER = """\
case $1 in --version) echo 'apptainer version 1.4.5'; exit ;; buildcfg) exit 1 ;; esac
[ -z "$REFUSES" ] || { echo "FATAL: destination /bin doesn't exist in container" >&2; exit 255; }
while [ "$2" != /bin/sh ]; do shift; done
echo Name: apptainer
if [ -f "$1" ]; then case $(head -c 41 "$1" | tr -d '\\0') in
    hsqs*) eval "$PACKED" ;; *SIF_MAGIC) eval "$AS_SIF" ;; *) exit 255 ;;
esac; else eval "$FOLDER"; [ -d "$1/proc" ]; fi"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("podman", "found"),
    [
        ("exit 0", {"starts": True}),
        (
            "echo warning >&2; echo 'no  pods in  '$1 >&2; exit 3",
            {"starts": False, "failure": "no pods in FOLDER/image"},
        ),
        ("exit 3", {"starts": False, "failure": "exit 3"}),
    ],
)
def test_a_podman_is_tried(programs, tmp_path, monkeypatch, podman, found):
    """With the words of its adapter, which a layer above gives."""
    made.program(programs, "podman", '[ "$*" = --version ] && { echo podman version 4.3.1; exit; }\n' + podman)
    given = []

    def words(name, image, private, folders, command):
        given.append((name, sorted(os.listdir(image)), os.listdir(private), command))
        return ["podman", image]

    monkeypatch.setattr(os, "getuid", lambda: 1000)
    tools = Tools()
    assert machine.runtimes(tools, words)["podman"] == dict({"version": "4.3.1"}, **found)
    folders = sorted(
        {"dev", "proc", "sys", "etc", "tmp"}
        | {name for name in ("bin", "usr", "lib", "lib64") if os.path.isdir("/" + name)}
    )
    assert given == [("podman", folders, [], ["/bin/sh", "-c", ":"])]
    assert any("a folder: exit 3" in note for note in tools.notes) is not found["starts"]
    assert machine.runtimes(Tools())["podman"] == {"version": "4.3.1"}  # without words
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert machine.runtimes(Tools(), words)["podman"] == {"version": "4.3.1"}  # not for root


def test_a_trial_that_leaves_something_behind_does_not_end_the_capture(programs, monkeypatch):
    """As a container that was killed and still writes."""
    made.program(programs, "podman", '[ "$*" = --version ] && { echo podman version 4.3.1; exit; }; exit 3')
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    removed = files.remove_tree

    def fails(path):
        removed(path)
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(files, "remove_tree", fails)
    tools = Tools()
    found = machine.runtimes(tools, lambda name, image, *_: ["podman", image])["podman"]
    assert found["starts"] is False
    assert any("Directory not empty" in note for note in tools.notes)


def test_an_apptainer_that_starts_nothing(programs):
    made.program(programs, "apptainer", "REFUSES=1\n" + APPTAINER)
    tools = Tools()
    failure = "FATAL: destination /bin doesn't exist in container"
    expected = {"version": "1.4.5", "setuid": False, "starts": False, "failure": failure, "sif": "refused"}
    assert machine.runtimes(tools)["apptainer"] == expected
    assert any("doesn't exist in container" in note for note in tools.notes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("packed", "squashfs"),
    [
        ("exit 255", "refused"),
        ("echo Name: squashfuse_ll", "fuse"),
        ("echo 'Converting SIF file to temporary sandbox...' >&2", "unpacked"),
    ],
)
def test_how_an_apptainer_mounts(programs, packed, squashfs):
    made.program(programs, "apptainer", f"PACKED={quoted([packed])}\n" + APPTAINER)
    assert machine.runtimes(Tools())["apptainer"]["squashfs"] == squashfs


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("start", "sif", "failure"),
    [
        ("echo Name: squashfuse_ll", "fuse", "FATAL: no folders"),
        ("echo FATAL: unsigned >&2; exit 255", "refused", "FATAL: no folders; FATAL: unsigned"),
    ],
)
def test_where_folders_are_forbidden_a_sif_file_is_tried(programs, start, sif, failure):
    refuses = f"FOLDER='echo FATAL: no folders >&2; exit 255' AS_SIF={quoted([start])}\n"
    made.program(programs, "apptainer", refuses + APPTAINER)
    own = machine.runtimes(Tools())["apptainer"]
    assert own == {"version": "1.4.5", "setuid": False, "starts": False, "sif": sif, "failure": failure}


def test_only_a_setuid_installation_has_the_kernel_mount_a_file():
    text = "Name: starter\n"
    assert apptainer._way(Answer(text, text, 0), setuid=True) == "kernel"
    assert apptainer._way(Answer(text, text, 0), setuid=False) == "fuse"
    text += "Name: squashfuse_ll\n"
    assert apptainer._way(Answer(text, text, 0), setuid=True) == "fuse"


def test_what_can_mount_a_file_once_for_all_ranks(programs, tmp_path, monkeypatch):
    config, place = tmp_path / "a.conf", str(tmp_path)
    monkeypatch.setenv("PATH", str(programs))
    made.program(programs, "apptainer", f"echo APPTAINER_CONF_FILE={config}")
    config.write_text("")
    assert apptainer.mounter("apptainer", place) is None  # no fusermount3
    made.program(programs, "fusermount3", "exit 1")
    assert apptainer.mounter("apptainer", place) is None
    made.program(programs, "squashfuse_ll", "exit 1")
    assert apptainer.mounter("apptainer", place) == str(programs / "squashfuse_ll")
    own = programs.parent / "libexec" / "apptainer" / "bin"
    own.mkdir(parents=True)
    made.program(own, "squashfuse_ll", "exit 1")
    assert apptainer.mounter("apptainer", place) == str(own / "squashfuse_ll")
    monkeypatch.setattr(apptainer, "starter", lambda program: "/starter-suid")
    assert apptainer.mounter("apptainer", place) is None
    monkeypatch.setattr(apptainer, "starter", lambda program: None)
    config.write_text("allow container dir = no")
    apptainer.settings.cache_clear()
    assert apptainer.mounter("apptainer", place) is None
    assert apptainer.mounter("singularity", place) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a program of root; run as root")
@pytest.mark.parametrize("folder", ["libexec/apptainer", "lib/x86_64-linux-gnu/singularity"])
def test_a_setuid_installation(tmp_path, folder):
    program, starter = tmp_path / "bin" / "apptainer", tmp_path / folder / "bin" / "starter-suid"
    for path, mode in ((program, 0o755), (starter, 0o755)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.chmod(mode)
    assert apptainer.starter(str(program)) is None  # without the bit it starts nothing
    starter.chmod(0o4755)
    nosuid = bool(os.statvfs(str(starter)).f_flag & os.ST_NOSUID)
    assert apptainer.starter(str(program)) == (None if nosuid else str(starter))
    config = tmp_path / "apptainer.conf"
    made.program(program.parent, "apptainer", f"echo PREFIX=/usr; echo APPTAINER_CONF_FILE={config}")
    first = "x = y\nallow setuid = no\n"  # of two lines, the first one counts
    for text, forbidden in (("# " + first[6:], False), (first + "allow setuid = yes\n", True)):
        config.write_text(text)
        apptainer.settings.cache_clear()
        assert apptainer.starter(str(program)) == (None if nosuid or forbidden else str(starter))
    os.chown(str(starter), 1234, 1234)
    starter.chmod(0o4755)
    assert apptainer.starter(str(program)) is None
    assert apptainer.starter(None) is None


def test_the_administrator_s_limits_of_an_apptainer(programs, tmp_path):
    config, inside, outside = tmp_path / "a.conf", tmp_path / "in" / "image", tmp_path / "out"
    made.program(programs, "apptainer", f"echo APPTAINER_CONF_FILE={config}")
    alice = pwd.getpwuid(os.getuid())
    me = (alice.pw_uid, alice.pw_gid)
    group = grp.getgrgid(alice.pw_gid).gr_name

    def refusals(text):
        apptainer.settings.cache_clear()
        config.write_text(text)
        places = ((inside, "folder"), (outside, "memory"), (outside, "squashfs"))
        return [apptainer.refusal("apptainer", str(path), form, me) for path, form in places]

    assert refusals("bind path = /etc/hosts\n") == [None] * 3
    no = "the site sets `allow container dir = no`"
    assert refusals("#allow container dir = no\n allow container dir=no\nallow container dir = yes\n") == [no, no, None]
    paths = f"limit container paths = /nowhere,  {tmp_path}/in"
    wrong = f"the site sets `limit container paths = /nowhere, {tmp_path}/in`, not {outside}"
    assert refusals(paths) == [None, wrong, wrong]
    assert refusals(f"limit container owners = {alice.pw_name}\nlimit container groups = x, {group}") == [None] * 3
    assert (
        refusals("limit container owners = x")[0] == f"the site sets `limit container owners = x`, not {alice.pw_name}"
    )
    assert refusals("limit container groups = x")[0] == f"the site sets `limit container groups = x`, not {group}"
    assert refusals("allow container sif = no") == [None] * 3
    assert apptainer.refusal("apptainer", str(outside), "sif", me) == "the site sets `allow container sif = no`"
    for text, expected in (("activated = true", True), ("activated = false", False), ("#activated = true", False)):
        (tmp_path / "ecl.toml").write_text(text + '\n[[execgroup]]\n  mode = "whitelist"\n')
        assert refusals("allow container sif = yes") == [None] * 3
        found = apptainer.refusal("apptainer", str(outside), "sif", me)
        assert bool(found and "`activated = true` in ecl.toml" in found) is expected
        assert apptainer.refusal("apptainer", str(outside), "sif", me, signed=True) is None
    apptainer.settings.cache_clear()
    made.program(programs, "apptainer", "exit 1")
    assert apptainer.refusal("apptainer", str(outside), "sif", me) is None
    assert apptainer.refusal("apptainer", str(outside), "squashfs", (4040404, 4040404)) is None


def test_an_apptainer_is_tried_where_images_may_be(programs, tmp_path, monkeypatch):
    config, seen, allowed, other = (tmp_path / name for name in ("a.conf", "seen", "allowed", "other"))
    allowed.mkdir()
    other.mkdir()
    config.write_text(f"limit container paths = {allowed}")
    script = f'[ "$1" != buildcfg ] || {{ echo APPTAINER_CONF_FILE={config}; exit; }}; echo "$@" >>{seen}; '
    made.program(programs, "apptainer", script + APPTAINER)
    monkeypatch.chdir(allowed)
    monkeypatch.setattr(apptainer.tempfile, "tempdir", str(other))
    assert machine.runtimes(Tools())["apptainer"]["starts"] is True
    assert f" {allowed}/tmp" in seen.read_text()


def test_this_machine(programs, monkeypatch):
    monkeypatch.setattr(machine, "user_namespaces", USER_NAMESPACES)
    made.program(programs, "ch-run", "echo 0.31 >&2")
    for program in ("apptainer", "singularity"):  # a link to apptainer
        made.program(programs, program, "echo 'apptainer version 1.4.5'")
    made.program(programs, "apptainer", APPTAINER)
    made.program(programs, "podman", "echo 'podman version 4.3.1'")
    made.program(programs, "docker", "exit 1")
    made.program(programs, "enroot", '[ "$*" = version ] && mkdir "$XDG_DATA_HOME/enroot" && echo 3.5.0')
    made.program(programs, "udocker", f"touch {programs}/was-run")
    found = machine.machine(Tools())
    versions = {"charliecloud": "0.31", "apptainer": "1.4.5", "podman": "4.3.1", "enroot": "3.5.0"}
    expected = {**{name: {"version": versions[name]} for name in versions}, "udocker": {}}
    expected["apptainer"].update(setuid=False, starts=True, squashfs="fuse")
    assert found["runtimes"] == expected
    assert found.get("page_size") == (None if os.uname().machine == "x86_64" else os.sysconf("SC_PAGE_SIZE"))
    assert machine.page_size("aarch64") == os.sysconf("SC_PAGE_SIZE")
    assert not (programs / "was-run").exists()
    assert found["pythons"][sys.executable] == "%d.%d.%d" % sys.version_info[:3]
    assert isinstance(found["user_namespaces"], bool)


@pytest.mark.parametrize(("code", "expected"), [(0, True), (1, False)])
def test_where_python_has_a_strange_thread_unshare_is_asked(programs, monkeypatch, code, expected):
    monkeypatch.setattr(machine, "user_namespaces", USER_NAMESPACES)
    monkeypatch.setattr(sys, "executable", made.program(programs, "emulated", f"exit {errno.EINVAL}"))
    made.program(programs, "unshare", f"exit {code}")
    assert machine.user_namespaces(Tools()) is expected


# ------------------------------------------------------------------------------------------------ the whole


def captured(**more):
    profile = {
        "format": 1, "name": "lab", "description": "", "source": dict(SOURCE, where="login1.cluster.example.org"),
        "login": {"host": "login1.cluster.example.org", "kernel": "6.1"},
        "mpi": {"i": {"prefix": os.path.expanduser("~/mpi"), "identity": "build-id:aa", "source": SOURCE}},
    }  # fmt: skip
    profile.update(more)
    return capture_files.SiteCapture(profile, facts.record(EMPTY, {}, {"i": {"files": {}, "links": {"a": "b"}}}))


def test_what_is_written_is_read_again(tmp_path):
    path = str(tmp_path / "site.json")
    captured().write(path)
    found = capture_files.read(path)
    assert found.profile["login"] == captured().profile["login"]
    assert found.facts == captured().facts
    assert sorted(os.listdir(str(tmp_path))) == ["site.facts.json", "site.json"]
    (tmp_path / "site.facts.json").write_text("{}")
    with pytest.raises(IntegrityError, match="not the file of facts"):
        capture_files.read(path)
    (tmp_path / "x.yaml").write_text("format: 1\n")
    with pytest.raises(UsageError, match="is not valid JSON") as caught:
        capture_files.read(str(tmp_path / "x.yaml"))
    assert "profile show" in caught.value.hint


def test_captures_of_login_and_node_are_put_together():
    login = captured(notes=["one"])
    there = {"i": {"prefix": "/p", "identity": "build-id:bb", "source": dict(SOURCE, where="cn1")}}
    of_node = capture_files.SiteCapture(
        {"format": 1, "name": "lab", "source": dict(SOURCE, where="cn1"), "login": {"host": "login1"}, "mpi": there,
         "partitions": {"batch": {"glibc": "2.36"}}, "notes": ["one", "two"]},
        facts.record(None, {"batch": EMPTY}, {"i": {"files": {}, "links": {"c": "d"}}}),
    )  # fmt: skip
    found = capture_files.merge([login, of_node])
    assert found.profile["source"]["where"] == "login1.cluster.example.org"
    assert found.profile["login"]["kernel"] == "6.1"
    assert found.profile["partitions"] == {"batch": {"glibc": "2.36"}}
    assert found.profile["mpi"]["i"]["identity"] == "build-id:bb"
    assert found.profile["notes"] == ["one", "two", "mpi.i: login1 and cn1 have different files of it"]
    assert found.facts["mpi"]["i"]["links"] == {"c": "d"}


def test_redaction_is_the_same_everywhere(monkeypatch):
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("HOME", "/home/alice")
    found = captured(notes=["login1 asked 10.1.2.3 and 10.9.9.9 for /sw/secret/x, 10.1.2.3 did not answer; 1.2.3.400"])
    hide = redact.of(found.profile, ["/sw/secret"])
    profile = hide(found.profile)
    text = json.dumps(profile)
    for word in ("login1", "example.org", "alice", "secret", "10.1.2.3", "10.9.9.9"):
        assert word not in text
    assert profile["login"]["host"] == profile["source"]["where"]
    assert profile["mpi"]["i"]["prefix"] == "/home/user-1/mpi"
    assert "address-1 and address-2 for /hidden-1/x, address-1 did" in profile["notes"][0]
    assert hide(found.facts)["mpi"]["i"]["links"] == {"a": "b"}
    assert hide({"any": ("of alice", 1)}) == {"any": ["of user-1", 1]}


def test_redaction_keeps_the_keys_of_a_profile(monkeypatch):
    """A host may have the name of one, as login.example.org has; addresses of all kinds go."""
    monkeypatch.setenv("USER", "mpi")
    where = "login at fe80::1:2ff:fe03:405, 2001:db8::7 and 00:1b:44:11:3a:b7, 010.009.9.09. For mpi: 1-00:10:00"
    profile = {"login": {"host": "login.example.org"}, "mpi": {}, "name": where}
    redacted = redact.of(profile)(profile)
    assert list(redacted) == list(profile)
    assert redacted["login"]["host"].startswith("host-")
    hidden = r"host-\d at address-1, address-2 and address-3, address-4\. For user-1: 1-00:10:00"
    assert re.fullmatch(hidden, redacted["name"])


@pytest.mark.thorough
def test_a_node_needs_a_partition(programs):
    with pytest.raises(UsageError, match="partition"):
        capture(CaptureRequest(node=True), SCHEDULERS.values())
    found = capture(CaptureRequest(node=True, partition="fat"), SCHEDULERS.values())
    assert list(found.profile["partitions"]) == ["fat"]
    assert found.profile["partitions"]["fat"]["node"]["cores"] >= 1
    assert "login" not in found.profile
