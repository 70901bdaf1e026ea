#!/bin/bash -l
# Job hello-1: bundle hello:1 on lab, written by deployer VERSION.
# 2 nodes x 2 ranks x 2 threads; variant native-folder: first in the plan.
# To submit it by hand: sbatch job.sh (it may be edited, and submitted again).
#SBATCH --job-name=hello
#SBATCH --output=/home/alice/deployer/jobs/hello-1/output.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=00:30:00
#SBATCH --no-requeue
#SBATCH --partition=batch

job=/home/alice/deployer/jobs/hello-1
tool=(/opt/python/3.6/bin/python3 /home/alice/deployer/deployer.pyz)
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

module load intel-mpi/2021.15 || { result hosts 1 --module intel-mpi/2021.15; exit 1; }

# No container: the host's programs, in its environment. What a container would see stands here:
#   /opt/intel/mpi/2021.15 for /opt/intel/mpi/2021.15: the site's MPI, on the same path
#   /home/alice/deployer/jobs/hello-1 for /deployer/job: the job's folder
#   /home/alice/deployer/images/aaaa/app for /deployer/app: the bundle's app folder
#   /home/alice/deployer/deployer.pyz for /deployer/deployer.pyz: this tool
native=(env
    DEPLOYER_RESULT=/home/alice/deployer/jobs/hello-1/payload.json
    FI_PROVIDER=tcp
    'GREETING=it'"'"'s $5: cheap'
    I_MPI_PIN_DOMAIN=2:compact
    KMP_BLOCKTIME=0
    LD_LIBRARY_PATH=/opt/intel/mpi/2021.15/lib"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    OMP_NUM_THREADS=2
    OMP_PLACES=cores
    OMP_PROC_BIND=close
    TF_NUM_INTEROP_THREADS=2
    TF_NUM_INTRAOP_THREADS=2
)

# The ranks: srun starts them, 2 on each node, with 2 cores each.
launch=(srun --mpi=pmi2 --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=2 --distribution=block:cyclic
    --cpu-bind=cores --kill-on-bad-exit=1
)

# 1. Hosts: each node writes what it has, outside the container, into hosts/.
srun --mpi=none --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 \
    "${tool[@]}" probe --host --out "$job/hosts" --library /opt/intel/mpi/2021.15/lib/libmpi.so.12 </dev/null
result hosts $? || exit

# 2. Probe: each rank proves which MPI library, network and CPUs it gets, into ranks/. A mismatch ends
#    the job here, before the payload.
"${launch[@]}" "${native[@]}" \
    /opt/python/3.6/bin/python3 -I -S /home/alice/deployer/deployer.pyz probe --rank --out /home/alice/deployer/jobs/hello-1/ranks --library libmpi.so.12 </dev/null
result probe $? || exit

# 3. Payload: each rank, while `rank` notes which MPI library its processes use and how it ends.
"${launch[@]}" "${native[@]}" \
    /opt/python/3.6/bin/python3 -I -S /home/alice/deployer/deployer.pyz rank --out /home/alice/deployer/jobs/hello-1/ranks -- python3 /home/alice/deployer/images/aaaa/app/train.py 'a b' </dev/null
result payload $?
exit
