"""Every configuration file of the lab, as text. Pure functions: what they are given is all they depend on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from tests import mixed
from tests.lab.site import (
    LOGIN,
    LOGIN_INNER_ADDRESS,
    LOGIN_OUTER_ADDRESS,
    USER,
    USER_ID,
    Site,
)

#: Where the site's software stands on the nodes.
INTEL_MPI_VERSION = "2021.15"
INTEL_MPI_PREFIX = f"/opt/intel/mpi/{INTEL_MPI_VERSION}"
OPENMPI_VERSION = "5.0.11"
OPENMPI_PREFIX = f"/opt/openmpi/{OPENMPI_VERSION}"
PYTHON36_PREFIX = "/opt/python/3.6"
MODULE_PATH = "/opt/modulefiles"

TASK_PROLOG = "/etc/slurm/task_prolog"


# ---------------------------------------------------------------- Slurm


def slurm_conf(site: Site) -> str:
    """Render slurm.conf. Each setting that is not Slurm's default has its reason here."""
    nodes = "\n".join(
        f"NodeName={node} NodeAddr={site.inner_address(node)} CPUs={len(site.cpus_of(node))}"
        f" Boards=1 SocketsPerBoard=1 CoresPerSocket={len(site.cpus_of(node))} ThreadsPerCore=1"
        f" RealMemory={site.memory_mb} State=UNKNOWN"
        for node in site.compute
    )
    all_real = len(site.host_cpus) <= max(site.host_cpus) + 1  # a node may have more cores than the machine
    settings = "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
    partitions = "PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    if site.mixed:
        nodes = mixed.slurm_nodes({node: site.inner_address(node) for node in site.compute})
        settings, partitions = mixed.SETTINGS, mixed.PARTITIONS
    return f"""\
ClusterName=lab
SlurmctldHost={LOGIN}({LOGIN_INNER_ADDRESS})
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
SlurmctldPort=6817
SlurmdPort=6818
SrunPortRange=60001-63000
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log

# No cgroup is mounted in the nodes, and none is needed to follow or to pin a task.
ProctrackType=proctrack/linuxproc
# task/none ignores --cpu-bind. The prolog moves what is pinned to the node's own cores of the host.
TaskPlugin=task/{"affinity" if all_real else "none"}
TaskProlog={TASK_PROLOG}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none

{settings}\
# A node is what is declared here, even if the machine below it is larger.
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
# Start a batch job at once, not up to 3 s after it was submitted.
SchedulerParameters=batch_sched_delay=0,bf_interval=5
MpiDefault=pmi2
# MPI pins memory; the limit of the shell that submits is not the site's will.
PropagateResourceLimitsExcept=MEMLOCK

# What can never run is refused when it is submitted.
EnforcePartLimits=ALL

# A node that comes back is used again without an admin; one that is gone is noticed within seconds.
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
# An allocation whose srun is gone, for instance with login1, must not hold its nodes for ever.
InactiveLimit=30
KillWait=30
MinJobAge=300

{nodes}
{partitions}"""


def cgroup_conf() -> str:
    """Render cgroup.conf: with no cgroup mounted, slurmd's own look for a version fails and it would not start."""
    return "CgroupPlugin=cgroup/v1\n"


def slurmd_topology(host_cpus: Sequence[int]) -> str:
    """Return the machine that slurmd is to see, in hwloc's words: one socket, one thread a core.

    So cores are numbered alike whether or not the machine below has hyperthreads or several sockets.
    """
    return f"pack:1 core:{max(*host_cpus, len(host_cpus) - 1) + 1} pu:1"


def task_prolog(cpus: Sequence[int]) -> str:
    """Render the script that moves each task of a node to the node's own cores of the host.

    Every slurmd counts its cores from 0, so task/affinity pins the first rank of each node to the host's core 0, and
    the ranks of all nodes would share it. Slurm runs this script as a child of the task, just before the task's
    program starts: it translates what the task was pinned to, core 0 into the node's first core and so on. A mask
    that holds other cores is one that was not set by Slurm (--cpu-bind=none: inherited from slurmd), and is right.
    """
    cases = "\n".join(f"        {index}) moved=$moved,{cpu} ;;" for index, cpu in enumerate(cpus))
    return f"""\
#!/bin/bash
expand() {{  # 0,2-4 -> 0 2 3 4
    local part
    for part in ${{1//,/ }}; do seq "${{part%-*}}" "${{part#*-}}"; done
}}
pinned=$(taskset --cpu-list --pid "$PPID") || exit 0
moved=
for cpu in $(expand "${{pinned##*: }}"); do
    case $cpu in
{cases}
        *) exit 0 ;;
    esac
done
taskset --cpu-list --pid "${{moved#,}}" "$PPID" >/dev/null
exit 0
"""


# ---------------------------------------------------------------- users and names


def accounts(file: str, host_text: str) -> str:
    """Return passwd, group or shadow of the nodes: the host's system users, and alice."""
    added = {
        "passwd": f"{USER}:x:{USER_ID}:{USER_ID}:Alice:/home/{USER}:/bin/bash",
        "group": f"{USER}:x:{USER_ID}:",
        # "*" is no password; "!" would be a locked account, which sshd refuses even with a key.
        "shadow": f"{USER}:*:19000:0:99999:7:::",
    }[file]
    kept = [line for line in host_text.splitlines() if not _is_user(line, file)]
    return "\n".join([*kept, added]) + "\n"


def _is_user(line: str, file: str) -> bool:
    fields = line.split(":")
    same_id = file != "shadow" and len(fields) > 2 and fields[2] == str(USER_ID)
    return fields[0] == USER or same_id


def hosts(site: Site) -> str:
    """Render /etc/hosts: the only name service there is."""
    lines = ["127.0.0.1 localhost"]
    lines += [f"{site.inner_address(node)} {node}" for node in site.slurm_nodes]
    return "\n".join(lines) + "\n"


def nsswitch_conf() -> str:
    return "".join(f"{database}: files\n" for database in ("passwd", "group", "shadow", "hosts"))


# ---------------------------------------------------------------- ssh


def sshd_config() -> str:
    """Render login1's sshd_config: a key and nothing else, for alice and nobody else."""
    return f"""\
ListenAddress {LOGIN_OUTER_ADDRESS}
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /run/sshd.pid
AllowUsers {USER}
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
AllowTcpForwarding local
AllowAgentForwarding no
X11Forwarding no
# Tests open many connections at once; the default drops some of them at random.
MaxStartups 100
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


def ssh_config(laptop_dir: PurePath, laptop_pid: int) -> str:
    """Render the laptop's ssh_config, to be used with ``-F``.

    ssh itself runs in the root network namespace. Only its connection is made in the laptop's: dial.py opens the
    socket there and hands it over, so that ssh talks to login1 directly and no relay stands between them.
    """
    return f"""\
# Made by scripts/lab. It is right while this lab is up.
Host {LOGIN}
  HostName {LOGIN_OUTER_ADDRESS}
  User {USER}
  IdentityFile "{laptop_dir}/id_ed25519"
  IdentitiesOnly yes
  UserKnownHostsFile "{laptop_dir}/known_hosts"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 10
  ServerAliveInterval 3
  ServerAliveCountMax 3
  ProxyCommand nsenter --net=/proc/{laptop_pid}/ns/net /usr/bin/python3 -I "{laptop_dir}/dial.py" %h %p
  ProxyUseFdpass yes
"""


def dial_py() -> str:
    """Return the program behind ProxyCommand. ConnectTimeout does not hold for a proxy: its limit is here."""
    return """\
import array
import socket
import sys

try:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
except OSError as error:
    sys.exit(f"lab: the laptop cannot reach {sys.argv[1]} port {sys.argv[2]}: {error}")
connection.setblocking(True)
ssh = socket.socket(fileno=1)
ssh.sendmsg([b"\\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))])
"""


def known_hosts(public_key: str) -> str:
    kind, key = public_key.split()[:2]
    return f"{LOGIN},{LOGIN_OUTER_ADDRESS} {kind} {key}\n"


# ---------------------------------------------------------------- network


def login_firewall() -> str:
    """Render login1's rules for iptables-restore: from outside only ssh comes in, and nothing is opened outwards.

    There is no default route either. The rules are what stops a connection to the laptop, login1's one neighbour.
    """
    return """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -i ext0 -p tcp --dport 22 -j ACCEPT
-A INPUT -i ext0 -j DROP
-A OUTPUT -o ext0 -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A OUTPUT -o ext0 -j REJECT
COMMIT
"""


# ---------------------------------------------------------------- modules


def modulespath() -> str:
    """Render /etc/lmod/modulespath, from which Lmod's profile script takes MODULEPATH."""
    return f"{MODULE_PATH}\n"


def intel_mpi_modulefile(version: str = INTEL_MPI_VERSION, fabric: str = "") -> str:
    """Render the modulefile that a site's admin would write for Intel MPI.

    ``fabric`` is the folder of its libfabric, where that is not beside libmpi.
    """
    more = ""
    if fabric:
        more = f'''\
prepend_path("LD_LIBRARY_PATH", pathJoin(prefix, "{fabric}"))
setenv("FI_PROVIDER_PATH", pathJoin(prefix, "{fabric}/prov"))
'''
    return f"""\
help([[Intel MPI {version}, run time]])
whatis("Name: intel-mpi")
whatis("Version: {version}")
family("mpi")
local prefix = "/opt/intel/mpi/{version}"
setenv("I_MPI_ROOT", prefix)
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("LD_LIBRARY_PATH", pathJoin(prefix, "lib"))
{more}-- The cluster has no fast fabric: plain sockets between the nodes.
setenv("FI_PROVIDER", "tcp")
"""


def openmpi_modulefile(version: str = OPENMPI_VERSION) -> str:
    """Render the modulefile for Open MPI, which excludes the other MPI as theirs exclude each other."""
    return _mpi_modulefile("Open MPI", "openmpi", version)


def mpich_modulefile(version: str) -> str:
    """Render the modulefile for MPICH."""
    return _mpi_modulefile("MPICH", "mpich", version)


def _mpi_modulefile(title: str, name: str, version: str) -> str:
    return f"""\
help([[{title} {version}]])
whatis("Name: {name}")
whatis("Version: {version}")
family("mpi")
local prefix = "/opt/{name}/{version}"
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("LD_LIBRARY_PATH", pathJoin(prefix, "lib"))
"""


def python36_modulefile() -> str:
    return f"""\
help([[CPython 3.6, standard library alone]])
whatis("Name: python")
whatis("Version: 3.6")
prepend_path("PATH", "{PYTHON36_PREFIX}/bin")
"""


# ---------------------------------------------------------------- all together


def common_etc(site: Site) -> dict[str, str]:
    """Return the files that cover the host's /etc on every node, by their path below it."""
    return {
        "hosts": hosts(site),
        "nsswitch.conf": nsswitch_conf(),
        "resolv.conf": "",
        # The machine's own package indexes are no business of the site.
        "pip.conf": "",
        "environment": "",
        "motd": "",
        "lmod/modulespath": modulespath(),
        "slurm/slurm.conf": slurm_conf(site),
        "slurm/cgroup.conf": cgroup_conf(),
        **({"slurm/gres.conf": mixed.gres_conf()} if site.mixed else {}),
    }
