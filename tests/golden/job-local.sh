#!/bin/bash -l
# Job hello-1: bundle hello:1 on lab, written by deployer VERSION.
# 1 node x 2 ranks x 2 threads; variant charliecloud-folder: first in the plan.
# To start it by hand: ./job.sh (it may be edited, and started again).

job=/home/alice/deployer/jobs/hello-1
tool=(/opt/python/3.6/bin/python3 /home/alice/deployer/deployer.pyz)
started=$(date +%s)
stopped=

# deployer asks for an end with SIGTERM (time limit, cancel), to the ranks and to this script alike. The script lives on
# for as long as it may, to write what happened into result.json.
trap 'stopped=TERM' TERM

# result STEP EXIT: judge what the steps so far have proven and write result.json; true if the job may go on.
result() {
    "${tool[@]}" result "$job" --step "$1" --exit "$2" --started "$started" --signal "$stopped" "${@:3}"
}

export USER=${USER:-$(id -un)}  # ch-run does not start without it
unique=$(</proc/sys/kernel/random/uuid)  # in names on the nodes: no other user can know it beforehand

rm -rf "$job/hosts" "$job/ranks" "$job/result.json" "$job/payload.json"
mkdir "$job/hosts" "$job/ranks" || { result hosts 6; exit; }

module load intel-mpi/2021.15 || { result hosts 1 --module intel-mpi/2021.15; exit 1; }

# Home: a folder of this job's own on each node, made in step 1. Only its owner can look into it.
home=/tmp/deployer-home-$UID-$unique
leave() {
    rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only, nothing of the host's environment but what the plan passes. Binds:
#   /opt/intel/mpi/2021.15: the site's MPI, on the same path
#   /deployer/job: the job's folder
container=(ch-run
    '--unset-env=!(SLURM_*|PMI_*)'
    --env-no-expand
    --set-env=FI_PROVIDER=tcp
    '--set-env=GREETING=it'"'"'s $5: cheap'
    --set-env=HOME="$home"
    --set-env=I_MPI_PIN_DOMAIN=2:compact
    --set-env=KMP_BLOCKTIME=0
    --set-env=LD_LIBRARY_PATH=/opt/intel/mpi/2021.15/lib
    --set-env=OMP_NUM_THREADS=2
    --set-env=OMP_PLACES=cores
    --set-env=OMP_PROC_BIND=close
    --set-env=TF_NUM_INTEROP_THREADS=2
    --set-env=TF_NUM_INTRAOP_THREADS=2
    --set-env=TMPDIR="$home"
    --bind=/opt/intel/mpi/2021.15:/opt/intel/mpi/2021.15
    --bind=/home/alice/deployer/jobs/hello-1:/deployer/job
    --cd=/work
)
image=/home/alice/deployer/images/aaaa/rootfs

# The ranks: mpiexec.hydra starts them, 2 on each node, with 2 cores each.
type -P mpiexec.hydra >/dev/null || { result hosts 127 --launcher mpiexec.hydra; exit 1; }
export I_MPI_PIN_DOMAIN=2:compact
launch=(mpiexec.hydra -bootstrap fork -n 2 -ppn 2
)

# 1. Hosts: this machine writes what it has, outside the container, into hosts/.
"${tool[@]}" probe --host --out "$job/hosts" --library /opt/intel/mpi/2021.15/lib/libmpi.so.12 --home "$home" </dev/null
result hosts $? || exit

# Root: a container reads the image's canary. One that shows the host's root ends the job here.
"${container[@]}" "$image" -- /bin/cat /deployer/canary >"$job/hosts/$(uname -n).root" 2>&1 </dev/null
result root $? || exit

# 2. Probe: each rank proves which MPI library, network and CPUs it gets in the container, into ranks/. A mismatch ends
#    the job here, before the payload.
"${launch[@]}" "${container[@]}" --join-ct=2 --join-tag="$unique"-probe "$image" -- \
    /usr/bin/python3 -I -S /deployer/deployer.pyz probe --rank --out /deployer/job/ranks --library libmpi.so.12 </dev/null
result probe $? || exit

# 3. Payload: each rank, while `rank` notes which MPI library its processes use and how it ends.
"${launch[@]}" "${container[@]}" --join-ct=2 --join-tag="$unique"-payload "$image" -- \
    /usr/bin/python3 -I -S /deployer/deployer.pyz rank --out /deployer/job/ranks --abort -- python3 train.py --name 'a b' </dev/null
result payload $?
exit
