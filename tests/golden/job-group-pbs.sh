#!/bin/bash -l
# Job hello-1: bundle hello:1 on lab, written by deployer VERSION.
# 2 nodes x 2 ranks x 2 threads; variant charliecloud-folder: first in the plan.
# To submit this script by hand: qsub -r y -J 1-3%2 job.sh. You may edit it and submit it again.
#PBS -S /bin/bash
#PBS -N hello
#PBS -j oe
#PBS -o /home/alice/deployer/jobs/hello-1/batch-system.log
#PBS -r n
#PBS -l select=2:ncpus=4:mpiprocs=2:mem=2000mb:ngpus=4:gpu_type=v100:cpu_type=haswell
#PBS -l place=scatter
#PBS -l walltime=00:30:00
#PBS -q course
#PBS -A physics
#PBS -l scratch=1

shopt -q login_shell || exec /bin/bash -l "$0"  # some batch systems ignore the first line

job=/home/alice/deployer/jobs/hello-1
tool=(/opt/python/3.6/bin/python3 -S /home/alice/deployer/deployer.pyz)
array=1 task='' parameters=()
started=$(date +%s)
stopped=
id=$PBS_JOBID

# At a time limit or cancel, PBS sends a signal to this script, which sends SIGTERM to the ranks. The script
# continues as long as it can, to write result.json. A launcher that is asked twice kills the ranks at once.
child=
ending=
end() {
    [ -n "$child" ] && [ "$ending" != "$child" ] || return 0
    ending=$child
    # bash may lose a signal for a process that it has just started, until that has a session of its own.
    while kill -0 "$child" && ! kill -0 -- -"$child"; do sleep 0.1; done 2>/dev/null
    kill -TERM "$child" 2>/dev/null
    (sleep 8; pkill -KILL -s "$child") &
}
trap 'stopped=TERM; end' TERM

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
    next=$("${tool[@]}" start "$job" --script "$0" --id "$id" ${array:+--array "$array"}) || {
        code=$?
        [ -s "$job/job_id" ] || result hosts 6  # this is the first start, and the disk is full
        exit $code
    }
    exec /bin/bash -l "$next/job.sh"
}
exec >>"$job"/output.log 2>&1
chmod "$(umask -S)" "$job"  # as your login files say, however the job was submitted

export USER=${USER:-$(id -un)}  # ch-run needs USER
unique=$(</proc/sys/kernel/random/uuid)  # part of names on the nodes: other users cannot predict it

mkdir -p "$job/hosts" "$job/ranks" || { result hosts 6; exit; }
# The judge starts here, so that the ranks do not wait for its start. It ends before the payload.
coproc judge {
    trap '' TERM USR1 USR2
    exec "${tool[@]}" result "$job" --until probe --id "$id" --started "$started"
}

# The nodes of this job, each once.
mapfile -t nodes < <(cat "${PBS_NODEFILE:-/dev/null}" | awk '!seen[$0]++')
if ((${#nodes[@]} != 2)); then
    echo "deployer: the job has ${#nodes[@]} nodes, not 2: ${nodes[*]}" >&2
    result hosts 1
    exit 1
fi

# each COMMAND...: run it on each node, at once; its exit code is the highest of all.
each() {
    local node pid worst=0 pids=()
    for node in "${nodes[@]}"; do
        "$job"/agent "$node" "$(printf '%q ' "$@")" </dev/null &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
        awaited "$pid" $?
        if ((code > worst)); then worst=$code; fi
    done
    return "$worst"
}

# ranks COMMAND...: run the launcher in a session of its own: signals for this script do not reach it, except SIGTERM.
# Some batch systems send these two to all processes of the first node: they would end the launcher before SIGTERM does.
ranks() {
    (trap '' USR1 USR2; exec setsid "$@") </dev/null &
    child=$!
    [ -z "$stopped" ] || end  # the signal came before
    wait "$child"
    awaited "$child" $?
    child=
    return "$code"
}

# awaited PID CODE: set $code to the exit code of a process. A signal for this script ends a wait early.
awaited() {
    code=$2
    while ((code > 128)) && kill -0 "$1" 2>/dev/null; do
        wait "$1"
        code=$?
    done
}

module load intel-mpi/2021.15 || { result hosts 1 --module intel-mpi/2021.15; exit 1; }

# Home: a private folder of this job on each node, created in step 1.
home=/tmp/deployer-home-$UID-$unique
leave() {
    each rm -rf -- "$home" >/dev/null 2>&1 || rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only; from the host's environment only what the plan passes. Binds:
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

# The ranks: mpiexec.hydra starts 2 per node, with 2 cores per rank.
type -P mpiexec.hydra >/dev/null || { result hosts 127 --launcher mpiexec.hydra; exit 1; }
export I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
export I_MPI_PIN_DOMAIN=2:compact
# For the other nodes: the environment and the folder of this script, and the list of the nodes.
unset TMPDIR TMP  # a batch system's folder is not the same on all nodes, and not in the container
(
    mask=$(umask)
    umask 077
    printf 'unset TMPDIR TMP\numask %s\ncd -- %q\n' "$mask" "$PWD" >"$job"/environment
    unset HOSTNAME PWD OLDPWD SHLVL SSH_CLIENT SSH_CONNECTION SSH_TTY DISPLAY PBS_NODEFILE PBS_NODENUM PBS_TASKNUM PBS_JOBDIR PBS_MOMPORT
    export -p >>"$job"/environment
    printf '%s\n' "${nodes[@]/%/}" >"$job"/machines
) || { result hosts 6; exit; }
launch=(mpiexec.hydra -bootstrap ssh -bootstrap-exec "$job"/agent -f "$job"/machines -n 4 -ppn 2
)

# 1. Hosts: each node writes its facts into hosts/, from outside the container.
#    Then a container reads the image's marker file. If it shows the host's root instead, the job ends here.
each \
    "${tool[@]}" probe --host --out "$job/hosts" --library /opt/intel/mpi/2021.15/lib/libmpi.so.12 --home "$home" -- \
    "${container[@]}" "$image" -- /bin/cat /deployer/canary </dev/null
result hosts $? || exit
read -r meet <"$job/hosts/meet"  # nodes, ranks per node, the first node's address, a free port, interface

# 2. Probe: each rank records its MPI library, network and CPUs in the container in ranks/. If they do not match the
#    plan, the job ends here, before the payload.
ranks "${launch[@]}" "${container[@]}" --join-ct=2 --join-tag="$unique"-probe "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz probe --rank --out /deployer/job/ranks --library libmpi.so.12 </dev/null
result probe $? || exit

# 3. Payload: each rank runs it; `rank` records which MPI library its processes use and how they end.
ranks "${launch[@]}" "${container[@]}" --join-ct=2 --join-tag="$unique"-payload "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz rank --out /deployer/job/ranks --abort --meet "$meet" -- python3 train.py --name 'a b' "${parameters[@]}" </dev/null
result payload $?
exit
