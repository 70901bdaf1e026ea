#!/bin/bash -l
# Job 3dgan-1: bundle 3dgan:1 on my-supermuc, written by deployer VERSION.
# 768 nodes x 4 ranks x 12 threads; variant charliecloud-folder: first in the plan for 768 nodes that my-supermuc can use.
# To submit it by hand: sbatch job.sh (it may be edited, and submitted again).
#SBATCH --job-name=3dgan
#SBATCH --output=/dss/pn12ab/di34cde/deployer/jobs/3dgan-1/output.log
#SBATCH --nodes=768
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --time=12:00:00
#SBATCH --no-requeue
#SBATCH --partition=general
#SBATCH --account=pn12ab

job=/dss/pn12ab/di34cde/deployer/jobs/3dgan-1
tool=(/usr/bin/python3 /dss/pn12ab/di34cde/deployer/deployer.pyz)
started=$(date +%s)
stopped=

# Slurm asks for an end with SIGTERM (time limit, cancel), to the ranks and to this script alike. The script lives on
# for as long as it may, to write what happened into result.json.
trap 'stopped=TERM' TERM

# result STEP EXIT: judge what the steps so far have proven and write result.json; true if the job may go on.
result() {
    "${tool[@]}" result "$job" --step "$1" --exit "$2" --started "$started" --signal "$stopped" "${@:3}"
}

# With --export=NONE Slurm would start the steps with an empty environment.
unset SLURM_EXPORT_ENV
grep -qsx "$SLURM_JOB_ID" "$job/job_id" || echo "$SLURM_JOB_ID" >"$job/job_id"
export USER=${USER:-$(id -un)}  # ch-run does not start without it
unique=$(</proc/sys/kernel/random/uuid)  # in names on the nodes: no other user can know it beforehand

rm -rf "$job/hosts" "$job/ranks" "$job/result.json" "$job/payload.json"
mkdir "$job/hosts" "$job/ranks" || { result hosts 6; exit; }

module load slurm_setup || { result hosts 1 --module slurm_setup; exit 1; }

module load mpi.intel/2019 || { result hosts 1 --module mpi.intel/2019; exit 1; }

module load charliecloud || { result hosts 1 --module charliecloud; exit 1; }

# Home: a folder of this job's own on each node, made in step 1. Only its owner can look into it.
home=/tmp/deployer-home-$UID-$unique
leave() {
    [ -z "$stopped" ] && timeout 30 srun --mpi=none --nodes=768 --ntasks=768 --ntasks-per-node=1 --cpus-per-task=1 \
        rm -rf -- "$home" </dev/null >/dev/null 2>&1 || rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only, nothing of the host's environment but what the plan passes. Binds:
#   /lrz/sys: what the site's MPI needs, on the same path
#   /deployer/host: stubs for single files of the host
#   /deployer/app: the bundle's app folder
#   /deployer/deployer.pyz: this tool
#   /deployer/job: the job's folder
container=(ch-run
    '--unset-env=!(SLURM_*|SLURMD_*|PMI_*|HYDI_*|MPI_LOCAL*|I_MPI_PIN_INFO|I_MPI_PIN_MAPPING|I_MPI_INFO_*|I_MPI_HYDRA_UUID)'
    --env-no-expand
    --set-env=DEPLOYER_RESULT=/deployer/job/payload.json
    --set-env=FI_PROVIDER=psm2
    --set-env=FI_PROVIDER_PATH=/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/libfabric/lib/prov
    --set-env=HOME="$home"
    --set-env=I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
    --set-env=I_MPI_PIN_DOMAIN=24:compact
    --set-env=I_MPI_PIN_RESPECT_CPUSET=0
    --set-env=I_MPI_ROOT=/lrz/sys/intel/impi2019u6/impi/2019.6.154
    --set-env=KMP_AFFINITY=granularity=fine,compact,1,0
    --set-env=KMP_BLOCKTIME=0
    --set-env=LD_LIBRARY_PATH=/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/lib/release:/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/lib:/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/libfabric/lib:/deployer/host/lib
    --set-env=MPI4PY_MPIABI=mpich
    --set-env=OMP_NUM_THREADS=12
    --set-env=PATH=/usr/bin:/bin
    --set-env=PYTHONNOUSERSITE=1
    --set-env=TF_NUM_INTEROP_THREADS=2
    --set-env=TF_NUM_INTRAOP_THREADS=12
    --set-env=TMPDIR="$home"
    --bind=/lrz/sys:/lrz/sys
    --bind=/dss/pn12ab/di34cde/deployer/images/aaaa/host/c1e9d40cceaf3e25:/deployer/host
    --bind=/dss/pn12ab/di34cde/deployer/images/aaaa/app:/deployer/app
    --bind=/dss/pn12ab/di34cde/deployer/deployer.pyz:/deployer/deployer.pyz
    --bind=/dss/pn12ab/di34cde/deployer/jobs/3dgan-1:/deployer/job
    --cd=/
)
image=/dss/pn12ab/di34cde/deployer/images/aaaa/rootfs

# The ranks: mpiexec.hydra starts them, 4 on each node, with 12 cores each.
type -P mpiexec.hydra >/dev/null || { result hosts 127 --launcher mpiexec.hydra; exit 1; }
export I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS='--mpi=none --cpus-per-task=48 --cpu-bind=cores'
export I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
export I_MPI_PIN_DOMAIN=24:compact
export I_MPI_PIN_RESPECT_CPUSET=0
launch=(mpiexec.hydra -bootstrap slurm -n 3072 -ppn 4
)

# 1. Hosts: each node writes what it has, outside the container, into hosts/.
srun --mpi=none --nodes=768 --ntasks=768 --ntasks-per-node=1 --cpus-per-task=1 \
    "${tool[@]}" probe --host --out "$job/hosts" --library /lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/lib/release/libmpi.so.12 --home "$home" </dev/null
result hosts $? || exit

# 2. Probe: each rank proves which MPI library, network and CPUs it gets in the container, into ranks/. A mismatch ends
#    the job here, before the payload.
"${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S /deployer/deployer.pyz probe --rank --out /deployer/job/ranks --library libmpi.so.12 </dev/null
result probe $? || exit

# 3. Payload: each rank, while `rank` notes which MPI library its processes use and how it ends.
"${launch[@]}" "${container[@]}" --cd=/deployer/job "$image" -- \
    /usr/bin/python3 -I -S /deployer/deployer.pyz rank --out /deployer/job/ranks --abort -- python /deployer/app/train.py --intraop 12 --interop 2 </dev/null
result payload $?
exit
