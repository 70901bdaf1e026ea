#!/bin/bash -l
# Job hello-1: bundle hello:1 on supermuc-ng, written by deployer VERSION.
# 1 node x 1 rank x 2 threads; variant charliecloud-folder: first in the plan for 1 node that supermuc-ng can use.
# To submit this script by hand: sbatch job.sh. You may edit it and submit it again.
#SBATCH --job-name=hello
#SBATCH --output=WORKSPACE/jobs/hello-1/batch-system-%j.log
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --no-requeue
#SBATCH --partition=general
#SBATCH --account=project

job=WORKSPACE/jobs/hello-1
tool=(/usr/bin/python3 -S WORKSPACE/deployer.pyz)
started=$(date +%s)
stopped=
id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}

# At a time limit or cancel, Slurm sends SIGTERM to the ranks and to this script. The script continues as long as it
# can, to write result.json.
trap 'stopped=TERM' TERM

# result STEP EXIT: check the evidence of the steps so far and write result.json; true if the job may continue.
result() {
    local code
    if { (($# == 2)) || [ "$3" = --reason ]; } && [ "$1" != payload ] && kill -0 "$judge_PID" 2>/dev/null; then
        trap '' PIPE  # a judge that has just ended does not end this script
        { echo "$1 $2 ${stopped:--} ${4-}" >&"${judge[1]}" &&
            read -r -t 300 code <&"${judge[0]}"; } 2>/dev/null || code=
        trap - PIPE
        [ -z "$code" ] || return "$code"
        disown "$judge_PID" 2>/dev/null  # bash would report its end in the log
        kill -KILL "$judge_PID" 2>/dev/null  # it hangs: its answer could come after another question
        judge_PID=
    fi
    "${tool[@]}" result "$job" --step "$1" --exit "$2" --id "$id" --started "$started" --signal "$stopped" "${@:3}"
}

# Each start of this script has a folder of its own: a later one, or another task of an array, makes one beside this.
(set -C; echo "$id" >"$job/job_id") 2>/dev/null
[ "$(<"$job/job_id")" = "$id" ] && { mkdir "$job/hosts" 2>/dev/null || [ ! -d "$job/hosts" ]; } || {
    next=$("${tool[@]}" start "$job" --script "$0" --id "$id") || {
        code=$?
        [ -s "$job/job_id" ] || result hosts 6  # this is the first start, and the disk is full
        exit $code
    }
    mv "$job/batch-system-$SLURM_JOB_ID.log" "$next" 2>/dev/null
    exec /bin/bash -l "$next/job.sh"
}
mv "$job/batch-system-$SLURM_JOB_ID.log" "$job"/output.log 2>/dev/null && chmod "$(umask -S | tr -d x)" "$job"/output.log
chmod "$(umask -S)" "$job"  # as your login files say, however the job was submitted

# After sbatch --export=NONE, Slurm would otherwise start the steps with an empty environment; and with the umask of the
# shell that submitted the job.
unset SLURM_EXPORT_ENV SLURM_UMASK
export USER=${USER:-$(id -un)}  # ch-run needs USER
unique=$(</proc/sys/kernel/random/uuid)  # part of names on the nodes: other users cannot predict it

mkdir -p "$job/hosts" "$job/ranks" || { result hosts 6; exit; }
# The judge starts here, so that the ranks do not wait for its start. It ends before the payload.
coproc judge {
    trap '' TERM USR1 USR2
    exec "${tool[@]}" result "$job" --until probe --id "$id" --started "$started"
}

module load slurm_setup || { result hosts 1 --module slurm_setup; exit 1; }

module load mpi.intel/2019 || { result hosts 1 --module mpi.intel/2019; exit 1; }

module load charliecloud || { result hosts 1 --module charliecloud; exit 1; }

# Home: a private folder of this job on each node, created in step 1.
home=/tmp/deployer-home-$UID-$unique
leave() {
    [ -z "$stopped" ] && timeout 30 srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
        rm -rf -- "$home" </dev/null >/dev/null 2>&1 || rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only; from the host's environment only what the plan passes. Binds:
#   /lrz/sys: what the site's MPI needs, on the same path
#   /deployer/host: placeholders for single files of the host
#   /deployer/app: the bundle's app folder
#   /deployer/deployer.pyz: this tool
#   /deployer/job: the job's folder
container=(ch-run
    '--unset-env=!(SLURM_*|SLURMD_*|PMI_*|HYDI_*|MPI_LOCAL*|I_MPI_PIN_INFO|I_MPI_PIN_MAPPING|I_MPI_INFO_*|I_MPI_HYDRA_UUID)'
    --env-no-expand
    --set-env=DEPLOYER_RESULT=/deployer/job/payload.json
    --set-env=FI_PROVIDER=psm2
    --set-env=FI_PROVIDER_PATH=/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/libfabric/lib/prov
    '--set-env=GREETING=it'"'"'s $5: cheap'
    --set-env=HOME="$home"
    --set-env=I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
    --set-env=I_MPI_PIN_DOMAIN=4:compact
    --set-env=I_MPI_PIN_RESPECT_CPUSET=0
    --set-env=I_MPI_ROOT=/lrz/sys/intel/impi2019u6/impi/2019.6.154
    --set-env=KMP_AFFINITY=granularity=fine,compact,1,0
    --set-env=KMP_BLOCKTIME=0
    --set-env=LD_LIBRARY_PATH=/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/lib/release:/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/lib:/lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/libfabric/lib:/deployer/host/lib
    --set-env=MPI4PY_MPIABI=mpich
    --set-env=OMP_NUM_THREADS=2
    --set-env=PATH=/usr/bin:/bin
    --set-env=PYTHONNOUSERSITE=1
    --set-env=TF_NUM_INTEROP_THREADS=2
    --set-env=TF_NUM_INTRAOP_THREADS=2
    --set-env=TMPDIR="$home"
    --bind=/lrz/sys:/lrz/sys
    --bind=WORKSPACE/images/aaaa/host/c1e9d40cceaf3e25:/deployer/host
    --bind=WORKSPACE/images/aaaa/app:/deployer/app
    --bind=WORKSPACE/deployer.pyz:/deployer/deployer.pyz
    --bind=WORKSPACE/jobs/hello-1:/deployer/job
    --cd=/work
)
image=WORKSPACE/images/aaaa/rootfs

# The ranks: mpiexec.hydra starts 1 per node, with 2 cores per rank.
type -P mpiexec.hydra >/dev/null || { result hosts 127 --launcher mpiexec.hydra; exit 1; }
export I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS='--mpi=none --cpus-per-task=2 --cpu-bind=cores'
export I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
export I_MPI_PIN_DOMAIN=4:compact
export I_MPI_PIN_RESPECT_CPUSET=0
launch=(mpiexec.hydra -bootstrap slurm -n 1 -ppn 1
)

# 1. Hosts: each node writes its facts into hosts/, from outside the container.
srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
    "${tool[@]}" probe --host --out "$job/hosts" --library /lrz/sys/intel/impi2019u6/impi/2019.6.154/intel64/lib/release/libmpi.so.12 --home "$home" </dev/null
result hosts $? || exit
read -r meet <"$job/hosts/meet"  # nodes, ranks per node, the first node's address, a free port, interface

# 2. Probe: each rank records its MPI library, network and CPUs in the container in ranks/. If they do not match the
#    plan, the job ends here, before the payload.
"${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz probe --rank --out /deployer/job/ranks --library libmpi.so.12 --home "$home" </dev/null
result probe $? || exit

# 3. Payload: each rank runs it; `rank` records which MPI library its processes use and how they end.
"${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz rank --out /deployer/job/ranks --abort --home "$home" --meet "$meet" -- python3 x.py </dev/null
result payload $?
exit
