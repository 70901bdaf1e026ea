#!/bin/bash -l
# Job hello-1: bundle hello:1 on lab, written by deployer VERSION.
# 1 node x 4 ranks x 1 thread; variant charliecloud-folder: first in the plan.
# To submit it by hand: sbatch job.sh (it may be edited, and submitted again).
#SBATCH --job-name=hello
#SBATCH --output=/home/alice/deployer/jobs/hello-1/output.log
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
#SBATCH --no-requeue
#SBATCH --mem=4000M
#SBATCH '--account=a b'

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

# Home: a folder of this job's own on each node, made in step 1. Only its owner can look into it.
home=/tmp/deployer-home-$UID-$unique
leave() {
    [ -z "$stopped" ] && timeout 30 srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
        rm -rf -- "$home" </dev/null >/dev/null 2>&1 || rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only, nothing of the host's environment but what the plan passes. Binds:
#   /deployer/job: the job's folder
container=(ch-run
    '--unset-env=!(SLURM_*|PMI_*)'
    --env-no-expand
    '--set-env=GREETING=it'"'"'s $5: cheap'
    --set-env=HOME="$home"
    --set-env=KMP_BLOCKTIME=0
    --set-env=OMP_NUM_THREADS=1
    --set-env=OMP_PLACES=cores
    --set-env=OMP_PROC_BIND=close
    --set-env=TF_NUM_INTEROP_THREADS=1
    --set-env=TF_NUM_INTRAOP_THREADS=1
    --set-env=TMPDIR="$home"
    --bind=/home/alice/deployer/jobs/hello-1:/deployer/job
    --cd=/work
)
image=/home/alice/deployer/images/aaaa/rootfs

# The ranks: srun starts them, 4 on each node, with 1 core each.
launch=(srun --mpi=pmix --nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=1 --distribution=block:cyclic
    --cpu-bind=cores --kill-on-bad-exit=1
)

# 1. Hosts: each node writes what it has, outside the container, into hosts/.
srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
    "${tool[@]}" probe --host --out "$job/hosts" --home "$home" </dev/null
result hosts $? || exit

# Root: on each node a container reads the image's canary. One that shows the host's root ends the job here.
srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
    --output=/home/alice/deployer/jobs/hello-1/hosts/%N.root \
    "${container[@]}" "$image" -- /bin/cat /deployer/canary </dev/null
result root $? || exit

# 2. Probe: each rank proves which MPI library, network and CPUs it gets in the container, into ranks/. A mismatch ends
#    the job here, before the payload.
"${launch[@]}" "${container[@]}" --join-ct=4 --join-tag="$unique"-probe "$image" -- \
    /usr/bin/python3 -I -S /deployer/deployer.pyz probe --rank --out /deployer/job/ranks </dev/null
result probe $? || exit

# 3. Payload: each rank, while `rank` notes which MPI library its processes use and how it ends.
"${launch[@]}" "${container[@]}" --join-ct=4 --join-tag="$unique"-payload "$image" -- \
    /usr/bin/python3 -I -S /deployer/deployer.pyz rank --out /deployer/job/ranks -- python3 train.py --name 'a b' </dev/null
result payload $?
exit
