"""A Grid Engine on the nodes of a lab, beside Slurm: Debian's 8.1.9, a master on login1 and a daemon on each node.

Its packages want a mail server, so they are not installed on this machine: their files go into a folder of the nodes'
/home, which replaces the folder that is fixed in the programs by one with a path of the same length.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.errors import LabError
from tests.lab.kept import kept
from tests.lab.site import LOGIN
from tests.lab.software import admins_umask
from tests.lab.state import write_atomically

if TYPE_CHECKING:
    from tests.lab.cluster import Lab

#: SGE_ROOT on the nodes.
PREFIX = "/home/apps/sge"
#: The parallel environment of the queue "batch": a slot of each node in turn.
ENVIRONMENT = "mpi"
_PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "gridengine-common", "libjemalloc2")
_FIXED, _OURS = b"/usr/lib/gridengine", b"/home/apps/sge/file"
_ARCH = "lx-amd64"
_SETTINGS = f"""\
export SGE_ROOT={PREFIX} SGE_CELL=default SGE_QMASTER_PORT=6444 SGE_EXECD_PORT=6445
PATH="$PATH:{PREFIX}/bin/{_ARCH}"
"""
_BOOTSTRAP = f"""\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {PREFIX}/default/common;/var/spool/gridengine/qmaster
binary_path {PREFIX}/bin
qmaster_spool_dir /var/spool/gridengine/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
#: A cluster's own settings, over the defaults: a queue on all nodes, decisions within a second, SIGUSR2 20 s ahead.
_SETUP = r"""
set -e
. /home/apps/sge/settings.sh
at=$(mktemp -d)
cd "$at"
rm -rf /var/spool/gridengine
mkdir -p /var/spool/gridengine/qmaster/job_scripts
spoolinit classic libspoolc "$SGE_ROOT/default/common;/var/spool/gridengine/qmaster" init
sed -e 's#^execd_spool_dir.*#execd_spool_dir /var/spool/gridengine/execd#' \
    -e 's#^load_report_time.*#load_report_time 0:0:2#' "$SGE_ROOT/default-configuration" >defaults
spooldefaults.bin configuration "$at/defaults"
spooldefaults.bin complexes "$SGE_ROOT/util/resources/centry"
spooldefaults.bin usersets "$SGE_ROOT/util/resources/usersets"
spooldefaults.bin managers root
sge_qmaster
for try in $(seq 50); do qconf -sh >/dev/null 2>&1 && break; sleep 0.2; done
for node in login1 "$@"; do qconf -ah "$node" || :; qconf -as "$node"; done
echo "group_name @nodes
hostlist $*" >group
qconf -Ahgrp group
echo 'pe_name mpi
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $round_robin
control_slaves TRUE
job_is_first_task TRUE
urgency_slots min
accounting_summary TRUE
qsort_args NONE' >environment
qconf -Ap environment
qconf -sq | sed -e 's/^qname.*/qname batch/' -e 's/^hostlist.*/hostlist @nodes/' -e 's/^pe_list.*/pe_list mpi/' \
    -e 's/^slots .*/slots 4/' -e 's/^notify.*/notify 0:0:20/' -e 's#^shell .*#shell \/bin\/sh#' \
    -e 's/^load_thresholds.*/load_thresholds NONE/' >queue
qconf -Aq queue
qconf -ssconf | sed -e 's/^schedule_interval.*/schedule_interval 0:0:1/' \
    -e 's/^flush_submit_sec.*/flush_submit_sec 1/' -e 's/^flush_finish_sec.*/flush_finish_sec 1/' \
    -e 's/^job_load_adjustments.*/job_load_adjustments NONE/' \
    -e 's/^load_adjustment_decay_time.*/load_adjustment_decay_time 0:0:0/' >scheduler
qconf -Msconf scheduler
"""
_NODE = ". /home/apps/sge/settings.sh; mkdir -p /var/spool/gridengine/execd && sge_execd"
_STOP = (
    "for each in /var/spool/gridengine/{qmaster/qmaster,execd/*/execd}.pid; do kill -KILL $(<$each); done 2>/dev/null"
)


def start(lab: Lab) -> None:
    """Install it on all nodes of a lab, in the PATH of a login shell, and start its daemons."""
    target = lab.home / Path(PREFIX).relative_to("/home")
    if not target.exists():
        with admins_umask():
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(_tree(), target, symlinks=True)
    write_atomically(lab.state.profile_d / "gridengine.sh", _SETTINGS)
    nodes = lab.definition().site.compute
    lab.sh(LOGIN, "root", ["bash", "-c", _SETUP, "bash", *nodes], timeout=60).check("start Grid Engine's master")
    for node in nodes:
        lab.sh(node, "root", _NODE).check(f"start Grid Engine on {node}")


def stop(lab: Lab) -> None:
    """End its daemons and take it from the nodes."""
    for node in (LOGIN, *lab.definition().site.compute):
        lab.sh(node, "root", _STOP)
    (lab.state.profile_d / "gridengine.sh").unlink(missing_ok=True)
    shutil.rmtree(lab.home / Path(PREFIX).relative_to("/home"), ignore_errors=True)


def _tree() -> Path:
    return kept("gridengine", "gridengine", [Path(__file__).read_bytes()], _make)


def _make(made: Path) -> None:
    with admins_umask(), tempfile.TemporaryDirectory(prefix="gridengine-") as folder:
        root = Path(folder, "root")
        for package in _download(Path(folder)):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True, timeout=60)
        programs, libraries = made / "bin" / _ARCH, made / "lib" / _ARCH
        libraries.mkdir(parents=True)
        shutil.copytree(root / "usr/lib/gridengine", programs, symlinks=True)
        shutil.copy(next(root.glob("usr/lib/*/libjemalloc.so.2")), libraries)
        for library in programs.glob("*.so"):
            shutil.copy(library, libraries)
        for file in [*programs.iterdir(), *libraries.iterdir()]:
            if file.is_file():
                file.write_bytes(file.read_bytes().replace(_FIXED, _OURS))
        (made / "utilbin").symlink_to("bin")
        (made / "file").symlink_to(f"bin/{_ARCH}")
        shutil.copytree(root / "usr/share/gridengine/util", made / "util", symlinks=True)
        shutil.copy(root / "usr/share/gridengine/default-configuration", made)
        common = made / "default/common"
        common.mkdir(parents=True)
        (common / "bootstrap").write_text(_BOOTSTRAP)
        (common / "act_qmaster").write_text(LOGIN + "\n")
        (made / "settings.sh").write_text(_SETTINGS)


def _download(folder: Path) -> list[Path]:
    argv = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *_PACKAGES]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:  # apt's lists may be old
        subprocess.run(["apt-get", "update"], capture_output=True, timeout=300, check=False)
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise LabError(f"cannot download Grid Engine: {done.stderr.strip()[-500:]}", "apt-get update")
    return sorted(folder.glob("*.deb"))
