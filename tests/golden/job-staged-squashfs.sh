#!/bin/bash -l
# Job hello-1: bundle hello:1 on lab, written by deployer VERSION.
# 2 nodes x 2 ranks x 2 threads; variant charliecloud-folder: first in the plan.
# To submit this script by hand: sbatch job.sh. You may edit it and submit it again.
#SBATCH --job-name=hello
#SBATCH --output=/home/alice/deployer/jobs/hello-1/batch-system-%j.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=00:30:00
#SBATCH --no-requeue
#SBATCH --partition=batch

job=/home/alice/deployer/jobs/hello-1
tool=(/opt/python/3.6/bin/python3 -S /home/alice/deployer/deployer.pyz)
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

module load intel-mpi/2021.15 || { result hosts 1 --module intel-mpi/2021.15; exit 1; }

# Home: a private folder of this job on each node, created in step 1.
home=/tmp/deployer-home-$UID-$unique
leave() {
    [ -z "$stopped" ] && timeout 30 srun --mpi=none --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 \
        rm -rf -- "$home" </dev/null >/dev/null 2>&1 || rm -rf -- "$home"
}
trap leave EXIT

# The image is staged: each node has its own copy here.
stage=/dev/shm/deployer-stage-$UID-$unique/image

# The container: read-only; from the host's environment only what the plan passes. Binds:
#   /opt/intel/mpi/2021.15: the site's MPI, on the same path
#   /deployer/job: the job's folder
#   /deployer/node: local to the node: the evidence of its ranks
#   /deployer/deployer.pyz: this tool
mount=(ch-run
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
    --bind="$stage"/evidence:/deployer/node
    --bind="$stage"/deployer.pyz:/deployer/deployer.pyz
    --cd=/work
    "$stage"/image.sqfs
    --
)
container=(bash
    -p
    -c
    'read -r pid bare <"$0/pid"; run=$1; shift
if [ "$bare" ]; then
    shopt -s extglob; printf -v quote "\47"; unset LD_PRELOAD; words=()
    inside=(/usr/bin/env)
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        case $1 in
            --unset-env=*)
                for name in $(compgen -e); do
                    [[ $name != ${1#*=} || $name = USER ]] || inside+=(-u "$name")
                done ;;
            --set-env=*)
                value=${1#*=*=}; [[ $value != $quote*$quote ]] || value=${value:1:${#value}-2}
                name=${1#*=}; inside+=("${name%%=*}=$value") ;;
            *) words+=("$1") ;;
        esac
        shift
    done
    shift; set -- "${words[@]}" -- "${inside[@]}" "$@"
fi
exec "$run" --join-pid="$pid" "$@"'
    "$stage"
    ch-run
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
    --cd=/work
)
image="$stage"/rootfs

# The ranks: srun starts 2 per node, with 2 cores per rank.
launch=(srun --mpi=pmi2 --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=2 --distribution=block:cyclic
    --cpu-bind=cores --kill-on-bad-exit=1
)

# 1. Hosts and stage: each node writes its facts into hosts/, from outside the container, prints a line, and waits for
#    SIGUSR1, which this script sends if all nodes are right.
#    Then each node copies the SquashFS image into its memory and mounts it (2000 MiB).
#    The nodes send the file on to each other, so that only one in 32 reads the shared file.
#    The step runs beside the other steps and removes the image at the end. It prints a line when the image is ready,
#    and one when it has collected the evidence of its ranks (SIGUSR1); SIGUSR2 ends it. If a node fails, the job ends
#    here.
#    Before it prints that the image is ready, a container reads the image's marker file, which the host's root does
#    not have.
root=("${container[@]}" "$image" -- /bin/cat /deployer/canary)
overlap=$(srun --help | grep -o -m 1 -e --overlap)  # needed to share since Slurm 20.11
pipe=$(mktemp -d)/answers && mkfifo "$pipe" || exit 6
cd /  # becomes the ranks' working folder; on a shared file system, each rank would look it up
srun --mpi=none $overlap --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 --kill-on-bad-exit=1 \
    sh -c 'trap : TERM INT HUP USR1 USR2; "$@" || { code=$?; echo "staged $code $(uname -n) ended with exit code $code"; }' \
    sh "${tool[@]}" stage \
    --image /home/alice/images/aaaa \
    --source /home/alice/images/aaaa/image.sqfs \
    --abi mpich-abi \
    --home "$home" \
    --hosts "$job/hosts" --library /opt/intel/mpi/2021.15/lib/libmpi.so.12 \
    --tool "${tool[2]}" --into "$stage" --relay --out "$job/ranks" --reader "${#root[@]}" -- "${root[@]}" "${mount[@]}" </dev/null >"$pipe" &
holder=$!
exec 3<"$pipe"
rm -r "${pipe%/*}"

# answers: wait for a line from each node; false if one failed, with its exit code in $worst and its reason in $reason.
# After a failure, wait only two more seconds, for nodes that fail for the same reason.
answers() {
    local count=0 who status words end=
    worst=0 reason=
    while ((count < 2 && (!worst || SECONDS < end))); do
        read -r ${end:+-t 1} who status words <&3 || { ((worst)) || { worst=1 reason="the step ended early"; }; break; }
        [ "$who" = staged ] || continue
        count=$((count + 1))
        if ((status > worst)); then worst=$status reason=$words end=${end:-$((SECONDS + 2))}; fi
    done
    ((!worst)) || { cat <&3 >/dev/null & false; }  # so that later answers do not fill the pipe
}

collect() {
    worst=1 reason="the step ended early"
    kill -USR1 "$holder" 2>/dev/null && answers
}

unstage() {
    [ -n "$holder" ] || return
    kill -USR2 "$holder" 2>/dev/null
    while kill -0 "$holder" 2>/dev/null; do wait "$holder"; done
    holder=
}
trap unstage EXIT

answers
result hosts "$worst" ${reason:+--reason "$reason"} || exit
read -r meet <"$job/hosts/meet"  # nodes, ranks per node, the first node's address, a free port, interface
collect || { result stage "$worst" --reason "$reason"; exit; }
container[5]=$(type -P "${container[5]}" || echo "${container[5]}")  # looked up once, not per rank

# 2. Probe: each rank records its MPI library, network and CPUs in the container in ranks/. If they do not match the
#    plan, the job ends here, before the payload.
"${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz probe --rank --out /deployer/node --library libmpi.so.12 </dev/null
code=$?
collect
result probe $code || exit

# 3. Payload: each rank runs it; `rank` records which MPI library its processes use and how they end.
"${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz rank --out /deployer/node --shared /deployer/job/ranks --meet "$meet" -- python3 train.py --name 'a b' </dev/null
code=$?
unstage
result payload $code
exit
