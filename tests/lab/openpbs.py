"""An OpenPBS on the nodes of a lab, beside Slurm: a server on login1 and a MoM on each node.

No registry has packages of it. It is compiled once from the archive of its sources that $DEPLOYER_OPENPBS names, in a
root filesystem with compilers, and kept. Its database and the libraries that this machine may lack come from there too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import roots
from tests.lab.errors import LabError
from tests.lab.kept import kept
from tests.lab.site import LOGIN
from tests.lab.software import admins_umask
from tests.lab.state import write_atomically

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

#: Names the archive; which commit is good: docs/development.md.
SOURCES = "DEPLOYER_OPENPBS"
#: PBS_EXEC on the nodes.
PREFIX = "/home/apps/pbs"
_HOME = "/var/spool/pbs"
_SUITE = "bookworm"
_PACKAGES = (
    "autoconf", "automake", "g++", "gcc", "libc6-dev", "libcjson-dev", "libedit-dev", "libexpat1-dev", "libhwloc-dev",
    "libical-dev", "libncurses-dev", "libpq-dev", "libssl-dev", "libtool", "libtool-bin", "libx11-dev", "libxext-dev",
    "libxft-dev", "libxt-dev", "make", "perl", "pkg-config", "postgresql-15", "postgresql-server-dev-15",
    "python3", "python3-dev", "swig", "tcl-dev", "tk-dev", "zlib1g-dev",
)  # fmt: skip
_LIBRARIES = ("libcjson.so.1", "libical.so.3", "libpq.so.5")
_POSTGRES = "usr/lib/postgresql/15", "usr/share/postgresql/15"
#: With an rpath, each program and library finds those of _LIBRARIES.
_BUILD = f"""
set -e
mkdir /mnt/sources
tar -x --strip-components 1 -C /mnt/sources -f /mnt/archive
cd /mnt/sources
[ -x configure ] || ./autogen.sh
./configure --prefix={PREFIX} --with-pbs-server-home={_HOME} CFLAGS='-O1 -w' \\
    LDFLAGS='-Wl,-rpath,{PREFIX}/lib'
make -j"$(nproc)"
make install DESTDIR=/mnt/made
"""
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
        with admins_umask():
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(_tree(), target, symlinks=True)
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


def is_there() -> bool:
    """Return whether its sources are here."""
    return os.path.isfile(os.environ.get(SOURCES, ""))


def _tree() -> Path:
    if not is_there():
        raise LabError("no sources of OpenPBS", f"{SOURCES}=ARCHIVE: docs/development.md")
    archive = Path(os.environ[SOURCES])
    return kept("openpbs", "openpbs", [_BUILD, _CONF, _LIBRARIES, _PACKAGES, archive.read_bytes()], _make)


def _make(made: Path) -> None:
    root = roots.root(_SUITE, _PACKAGES, "openpbs")
    with admins_umask(), tempfile.TemporaryDirectory(prefix="openpbs-") as folder:
        shutil.copy(os.environ[SOURCES], Path(folder, "archive"))
        _compile(root, Path(folder))
        shutil.copytree(Path(folder, "made", PREFIX.lstrip("/")), made, symlinks=True, dirs_exist_ok=True)
        spec = Path(folder, "sources/openpbs.spec").read_text()
        version = next(line.split()[-1] for line in spec.splitlines() if line.startswith("%define pbs_version"))
        for library in _LIBRARIES:
            shutil.copy(next(root.glob(f"usr/lib/*/{library}")), made / "lib")
        for part in _POSTGRES:  # it finds its data by the place of its programs
            shutil.copytree(root / part, made / part, symlinks=True)
        (made / "pgsql").symlink_to(_POSTGRES[0])
        (made / "version").write_text(version + "\n")
        (made / "pbs.conf").write_text(_CONF)
        (made / "settings.sh").write_text(_SETTINGS)


def _compile(root: Path, folder: Path) -> None:
    """Compile the archive in a folder, into its folder ``made``; 10 minutes on 2 cores."""
    roots.run_inside(root, ["sh", "-c", _BUILD], [(folder, "/mnt")])
