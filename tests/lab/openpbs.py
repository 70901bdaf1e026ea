"""An OpenPBS on the nodes of a lab, beside Slurm: a server on login1 and a MoM on each node.

No registry has packages of it, so the archive of an installation at ``PREFIX`` that $DEPLOYER_OPENPBS names is
installed. PostgreSQL and the libraries that nodes may lack are in it (docs/development.md).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.site import LOGIN
from tests.lab.software import admins_umask, unpack
from tests.lab.state import write_atomically

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

#: The variable that names the archive. docs/development.md lists what the archive contains.
ARCHIVE = "DEPLOYER_OPENPBS"
#: PBS_EXEC on the nodes.
PREFIX = "/home/apps/pbs"
_HOME = "/var/spool/pbs"
_CONF = f"""\
PBS_EXEC={PREFIX}
PBS_HOME={_HOME}
PBS_SERVER={LOGIN}
PBS_START_SERVER=1
PBS_START_SCHED=1
PBS_START_COMM=1
PBS_START_MOM=0
PBS_CORE_LIMIT=0
PBS_SCP=/usr/bin/scp
"""
_SETTINGS = f"""\
export PBS_CONF_FILE={PREFIX}/pbs.conf
PATH="$PATH:{PREFIX}/bin"
"""
#: The owner of its database must be able to log in.
_OWNER = "alice"
_AS_ROOT = f"""
set -e
. {PREFIX}/settings.sh
PATH="$PATH:{PREFIX}/sbin:/usr/sbin:/sbin" PBS_VERSION=$(cat {PREFIX}/version)
export PBS_VERSION
"""
#: Jobs are remembered, and may ask for GPUs: each node says that it has two.
_SERVER = (
    _AS_ROOT
    + f"""
mkdir -p /run/postgresql
chmod 1777 /run/postgresql
{PREFIX}/libexec/pbs_postinstall server "$PBS_VERSION" {PREFIX} {_HOME} {_OWNER} sameconf
{PREFIX}/libexec/pbs_init.d start
for try in $(seq 150); do qstat -B >/dev/null 2>&1 && break; sleep 0.2; done
qmgr >/dev/null <<'END'
set server job_history_enable = True
set server flatuid = True
create resource ngpus type=long, flag=nh
END
sed -i 's/^resources: "/&ngpus, /' {_HOME}/sched_priv/sched_config
pkill -HUP pbs_sched
for node in "$@"; do
    qmgr >/dev/null <<END
create node $node
set node $node resources_available.ncpus = 4
set node $node resources_available.ngpus = 2
END
done
for try in $(seq 150); do
    [ "$(pbsnodes -a | grep -c 'state = free')" = $# ] && exit
    sleep 0.2
done
pbsnodes -a
exit 1
"""
)
_NODE = (
    _AS_ROOT
    + f"""
{PREFIX}/libexec/pbs_postinstall execution "$PBS_VERSION" {PREFIX} {_HOME} {_OWNER} sameconf
printf '%s\\n' '$clienthost {LOGIN}' '$usecp *:/home /home' >{_HOME}/mom_priv/config
. {PREFIX}/libexec/pbs_db_env
pbs_mom
"""
)
_STOP = f"""
for name in pbs_mom pbs_sched pbs_server.bin pbs_comm pbs_ds_monitor postgres; do pkill -KILL -x "$name"; done
rm -rf {_HOME}
"""


def start(lab: Lab) -> None:
    """Install it on all nodes of a lab, in the PATH of a login shell, and start its daemons."""
    target = lab.home / Path(PREFIX).relative_to("/home")
    if not target.exists():
        unpack(lab.home, ARCHIVE, PREFIX)
        with admins_umask():
            (target / "pbs.conf").write_text(_CONF)
            (target / "settings.sh").write_text(_SETTINGS)
            (target / "sbin/pbs_iff").chmod(0o4755)  # proves to the server who a user is
    write_atomically(lab.state.profile_d / "pbs.sh", _SETTINGS)
    nodes = lab.definition().site.compute
    for node in nodes:
        lab.sh(node, "root", ["bash", "-c", _NODE]).check(f"start PBS on {node}")
    lab.sh(LOGIN, "root", ["bash", "-c", _SERVER, "bash", *nodes], timeout=120).check("start the server of PBS")


def stop(lab: Lab) -> None:
    """End its daemons and take it from the nodes."""
    for node in (LOGIN, *lab.definition().site.compute):
        lab.sh(node, "root", _STOP)
    (lab.state.profile_d / "pbs.sh").unlink(missing_ok=True)
    shutil.rmtree(lab.home / Path(PREFIX).relative_to("/home"), ignore_errors=True)
