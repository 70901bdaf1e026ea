#!/bin/bash -l
# Job hello-1: bundle hello:1 on lab, written by deployer VERSION.
# 1 node x 1 rank x 2 threads; variant charliecloud-folder: first in the plan.
# To submit it by hand: sbatch job.sh (it may be edited, and submitted again).
#SBATCH --job-name=hello
#SBATCH --output=/home/alice/deployer/jobs/hello-1/output.log
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
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

# Home: a folder of this job's own on each node, made in step 1. Only its owner can look into it.
home=/tmp/deployer-home-$UID-$unique
leave() {
    [ -z "$stopped" ] && timeout 30 srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
        rm -rf -- "$home" </dev/null >/dev/null 2>&1 || rm -rf -- "$home"
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

# The ranks: srun starts them, 1 on each node, with 2 cores each.
launch=(srun --mpi=pmi2 --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=2 --distribution=block:cyclic
    --cpu-bind=cores --kill-on-bad-exit=1
)

# 1. Hosts: each node writes what it has, outside the container, into hosts/.
srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
    "${tool[@]}" probe --host --out "$job/hosts" --library /opt/intel/mpi/2021.15/lib/libmpi.so.12 --home "$home" </dev/null
result hosts $? || exit

# 2. Payload: each rank. The image has no Python, so `rank` watches it from outside the container.
watch=(/opt/python/3.6/bin/python3 -I -S /home/alice/deployer/deployer.pyz rank --out
    /home/alice/deployer/jobs/hello-1/ranks --outside /opt/intel/mpi/2021.15/lib/libmpi.so.12 --
)
"${launch[@]}" "${watch[@]}" "${container[@]}" "$image" -- \
    python3 train.py --name 'a b' </dev/null
result payload $?
exit
