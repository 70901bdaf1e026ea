#!/bin/bash -l
# Job hello-1: bundle hello:1 on jupiter, written by deployer VERSION.
# 1 node x 1 rank x 2 threads; variant apptainer-folder: first in the plan for 1 node that jupiter can use.
# To submit this script by hand: sbatch job.sh. You may edit it and submit it again.
#SBATCH --job-name=hello
#SBATCH --output=WORKSPACE/jobs/hello-1/batch-system-%j.log
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --no-requeue
#SBATCH --partition=booster
#SBATCH --gres=gpu:4

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

# Home: a private folder of this job on each node, created in step 1.
home=/tmp/deployer-home-$UID-$unique
leave() {
    [ -z "$stopped" ] && timeout 30 srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
        rm -rf -- "$home" </dev/null >/dev/null 2>&1 || rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only; from the host's environment only what the plan passes. Binds:
#   /deployer/app: the bundle's app folder
#   /deployer/deployer.pyz: this tool
#   /deployer/job: the job's folder
# Note: the ranks of a node copy through shared memory, not from each other's memory (CMA): apptainer gives each of them a user namespace of its own.
container=(bash
    -p
    -c
    '# Only what --pass and --set-env name reaches the container; the environment gives no options to the runtime.
shopt -s extglob; set -f
passed=() values=() words=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --pass=*) passed+=("${1#*=}") ;;
        --set-env=*) values+=("${1#*=}") ;;
        *) words+=("$1") ;;
    esac
    shift
done
shift; image=${words[-1]}; unset '"'"'words[-1]'"'"'
prefixes=(APPTAINER); [ "${0##*/}" = apptainer ] || prefixes+=(SINGULARITY)
found=() clean=()
# Bash cannot unset a name that is not its own kind, such as APPTAINERENV_a.b or APPTAINERENV_BASH_FUNC_f%%.
while IFS= read -r -d '"'"''"'"' pair; do
    name=${pair%%=*}
    case $name in @(APPTAINER|SINGULARITY)*[!A-Za-z0-9_]*) clean+=(-u "$name") ;; esac
done </proc/$$/environ
[ ${#clean[@]} = 0 ] || clean=(env "${clean[@]}")
for name in $(compgen -e); do
    for glob in "${passed[@]}"; do
        if [[ $name = $glob ]]; then found+=("$name=${!name}"); break; fi
    done
    case $name in
        APPTAINER*|SINGULARITY*|TERM|@(http|https|no|all|ftp)_proxy|@(HTTP|HTTPS|NO|ALL|FTP)_PROXY) unset "$name" ;;
    esac
done
values=("${found[@]}" "${values[@]}"); text=
case "${values[*]}" in *[\\\$\`]*) [[ $("$0" exec --help 2>&1) = *--no-eval* ]] || text=1 ;; esac
for pair in "${values[@]}"; do
    name=${pair%%=*} value=${pair#*=}
    if [ "$text" ]; then value=${value//\\/\\\\}; value=${value//\$/\\\$}; value=${value//\`/\\\`}; fi
    for prefix in "${prefixes[@]}"; do export "${prefix}ENV_$name=$value"; done
done
# SingularityCE'"'"'s OCI mode, which an administrator can make the default, starts no folder.
# Ranks read no settings from the home, which is shared: /proc has no such folder, and nobody can make one.
for prefix in "${prefixes[@]}"; do export ${prefix}_NO_{EVAL,NV,ROCM,OCI}=1 ${prefix}_CONFIGDIR=/proc/none; done
exec "${clean[@]}" "$0" --silent exec "${words[@]}" "$image" "$@"
'
    apptainer
    '--pass=SLURM_*'
    '--pass=SLURMD_*'
    '--pass=PMI_*'
    '--pass=PMI2_*'
    '--pass=PMIX_*'
    --pass=CUDA_VISIBLE_DEVICES
    --set-env=DEPLOYER_RESULT=/deployer/job/payload.json
    '--set-env=GREETING=it'"'"'s $5: cheap'
    --set-env=KMP_BLOCKTIME=0
    --set-env=OMPI_MCA_btl_vader_single_copy_mechanism=none
    '--set-env=OMPI_MCA_smsc=^cma'
    --set-env=OMP_NUM_THREADS=2
    --set-env=OMP_PLACES=cores
    --set-env=OMP_PROC_BIND=close
    --set-env=PATH=/usr/bin:/bin
    --set-env=PMIX_SECURITY_MODE=native
    --set-env=PYTHONNOUSERSITE=1
    --set-env=TF_NUM_INTEROP_THREADS=2
    --set-env=TF_NUM_INTRAOP_THREADS=2
    --set-env=TMPDIR="$home"
    --cleanenv
    --no-home
    --no-mount=home,cwd,tmp,hostfs,bind-paths
    --home="$home"
    --bind=/tmp:/tmp
    --bind=WORKSPACE/images/aaaa/app:/deployer/app
    --bind=WORKSPACE/deployer.pyz:/deployer/deployer.pyz
    --bind=WORKSPACE/jobs/hello-1:/deployer/job
    --pwd=/work
)
image=WORKSPACE/images/aaaa/rootfs

# The ranks: srun starts 1 per node, with 2 cores per rank.
launch=(srun --mpi=pspmix --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=2 --distribution=block:cyclic
    --cpu-bind=cores --kill-on-bad-exit=1
)

# 1. Hosts: each node writes its facts into hosts/, from outside the container.
srun --mpi=none --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 \
    "${tool[@]}" probe --host --out "$job/hosts" --home "$home" </dev/null
result hosts $? || exit
read -r meet <"$job/hosts/meet"  # nodes, ranks per node, the first node's address, a free port, interface

# 2. Probe: each rank records its MPI library, network and CPUs in the container in ranks/. If they do not match the
#    plan, the job ends here, before the payload.
"${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz probe --rank --out /deployer/job/ranks --home "$home" </dev/null
result probe $? || exit

# 3. Payload: each rank runs it; `rank` records which MPI library its processes use and how they end.
"${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz rank --out /deployer/job/ranks --home "$home" --meet "$meet" -- python3 x.py </dev/null
result payload $?
exit
