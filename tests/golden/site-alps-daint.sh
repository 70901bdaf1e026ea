#!/bin/bash -l
# Job hello-1: bundle hello:1 on alps-daint, written by deployer VERSION.
# 1 node x 1 rank x 2 threads; variant podman-folder: first in the plan for 1 node that alps-daint can use.
# To submit this script by hand: sbatch job.sh. You may edit it and submit it again.
#SBATCH --job-name=hello
#SBATCH --output=WORKSPACE/jobs/hello-1/batch-system-%j.log
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --no-requeue
#SBATCH --partition=normal
#SBATCH --gpus-per-node=4

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
# Note: the ranks of a node copy through shared memory, not from each other's memory (CMA): podman gives each of them a user namespace of its own.
container=(bash
    -p
    -c
    'export -n state passed values words image user gid keep name glob file oci short
export -n pair task children child other again left line turn found
state=$(mktemp -d "$1/podman.XXXXXX") && mkdir "$state/run" || exit 125
shift
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
printf '"'"'[engine]\nlock_type="file"\n'"'"' >"$state/containers.conf"
printf '"'"'[storage]\ndriver="vfs"\n'"'"' >"$state/storage.conf"
: >"$state/mounts.conf"
user=${USER:-$UID}; gid=$(id -g); keep=()
[ -z "$PMI_FD" ] || { exec 3<&"$PMI_FD"-; PMI_FD=3; keep+=(--preserve-fds=1); }
for name in $(compgen -e); do
    for glob in "${passed[@]}"; do
        [[ $name != $glob ]] || { keep+=(--env="$name"); continue 2; }
    done
    [ "$name" = PATH ] || [ "$name" = LD_LIBRARY_PATH ] || unset "$name" 2>/dev/null
done
for pair in "${values[@]}"; do keep+=(--env="$pair"); done
for file in /etc/hosts /etc/resolv.conf; do
    [ ! -e "$file" ] || [ ! -f "$image$file" ] || keep+=(--volume="$file:$file:ro")
done
if oci=$(type -P crun); then
    keep+=(--uidmap="$UID:0:1" --gidmap="$gid:0:1" --user="$UID:$gid" --group-add=keep-groups)
    keep+=(--passwd-entry="$user:x:$UID:$gid::/:/bin/sh")
else
    oci=runc; keep+=(--userns=host)
fi
if [ -t 0 ] && [ -t 1 ]; then keep+=(--tty --log-driver=none)
elif [ -t 0 ] || [ -t 1 ] || [ -t 2 ]; then keep+=(--log-driver=none)
else keep+=(--log-driver=passthrough); fi
export HOME=$state XDG_RUNTIME_DIR=$state/run TMPDIR=$state USER=$user
export CONTAINERS_CONF=$state/containers.conf CONTAINERS_STORAGE_CONF=$state/storage.conf
export _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID=$UID _CONTAINERS_ROOTLESS_GID=$gid
cd "$state" || exit 125; short=/proc/$$/cwd
(
    trap '"'"''"'"' HUP INT TERM
    while read -r line </proc/$$/stat && [[ ${line##*)} != " Z"* ]]; do sleep 1; done
    for ((turn = 5; turn; turn--)); do
        found=
        for task in /proc/[0-9]*; do
            task=${task##*/}
            [ "/proc/$task/cwd" -ef . ] && [ "$task" != "$BASHPID" ] || continue
            found=1
            children=(); read -r -a children <"/proc/$task/task/$task/children"; kill -KILL "$task"
            for child in "${children[@]}"; do
                exec 4<"/proc/$child/ns/mnt" || continue; kill -KILL "$child"
                [ /proc/self/fd/4 -ef /proc/self/ns/mnt ] && continue
                for ((again = 60; again; again--)); do
                    left=
                    for other in /proc/[0-9]*; do
                        [ "$other/ns/mnt" -ef /proc/self/fd/4 ] && left=1 && kill -KILL "${other##*/}"
                    done
                    [ "$left" ] && sleep 1 || break
                done
            done
        done
        [ "$found" ] && sleep 1 || break
    done
    rm -rf -- "$state"
) </dev/null >/dev/null 2>&1 3<&- &
exec unshare --user --map-root-user --mount --propagation=slave "$0" --log-level=error \
    --root="$short/root" --runroot="$short/runroot" --tmpdir="$short/tmp" --storage-driver=vfs \
    --cgroup-manager=cgroupfs --events-backend=none --default-mounts-file="$state/mounts.conf" --runtime="$oci" \
    run --rm --interactive --pull=never --read-only --read-only-tmpfs=false --network=host --pid=host --ipc=host \
    --no-hosts --dns=none --http-proxy=false --systemd=false --ulimit=host --umask="$(umask)" --unsetenv-all \
    --security-opt=seccomp=unconfined --security-opt=unmask=ALL --security-opt=label=disable \
    --tmpfs=/run --volume=/dev:/dev:rslave --volume=/sys:/sys:rslave --volume=/proc:/proc:rslave \
    --volume=/dev/shm:/dev/shm:rslave --volume=/tmp:/tmp:rslave "${keep[@]}" "${words[@]}" --rootfs "$image" "$@"'
    podman
    "$home"
    '--pass=SLURM_*'
    '--pass=SLURMD_*'
    '--pass=PMI_*'
    '--pass=PMI2_*'
    '--pass=PMIX_*'
    --pass=CUDA_VISIBLE_DEVICES
    --set-env=DEPLOYER_RESULT=/deployer/job/payload.json
    --set-env=GLOO_SOCKET_IFNAME=hsn0
    '--set-env=GREETING=it'"'"'s $5: cheap'
    --set-env=HOME="$home"
    --set-env=KMP_BLOCKTIME=0
    --set-env=MPICH_SMP_SINGLE_COPY_MODE=NONE
    --set-env=MPIR_CVAR_CH4_CMA_ENABLE=0
    --set-env=MV2_SMP_USE_CMA=0
    --set-env=NCCL_IB_DISABLE=1
    --set-env=NCCL_SOCKET_IFNAME==hsn0,hsn1,hsn2,hsn3
    --set-env=OMP_NUM_THREADS=2
    --set-env=OMP_PLACES=cores
    --set-env=OMP_PROC_BIND=close
    --set-env=PATH=/usr/bin:/bin
    --set-env=PMIX_MCA_psec=native
    --set-env=PYTHONNOUSERSITE=1
    --set-env=TF_NUM_INTEROP_THREADS=2
    --set-env=TF_NUM_INTRAOP_THREADS=2
    --set-env=TMPDIR="$home"
    --set-env=TP_SOCKET_IFNAME=hsn0
    --volume=WORKSPACE/images/aaaa/app:/deployer/app
    --volume=WORKSPACE/deployer.pyz:/deployer/deployer.pyz
    --volume=WORKSPACE/jobs/hello-1:/deployer/job
    --workdir=/work
    --device=nvidia.com/gpu=all
)
image=WORKSPACE/images/aaaa/rootfs

# The ranks: srun starts 1 per node, with 2 cores per rank.
launch=(srun --mpi=pmi2 --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=2 --distribution=block:cyclic
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
