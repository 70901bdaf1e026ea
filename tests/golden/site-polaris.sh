#!/bin/bash -l
# Job hello-1: bundle hello:1 on polaris, written by deployer VERSION.
# 1 node x 1 rank x 2 threads; variant apptainer-folder: first in the plan for 1 node that polaris can use.
# To submit this script by hand: qsub job.sh. You may edit it and submit it again.
#PBS -S /bin/bash
#PBS -N hello
#PBS -j oe
#PBS -o WORKSPACE/jobs/hello-1/batch-system.log
#PBS -r n
#PBS -l select=1:ncpus=4:mpiprocs=1:system=polaris
#PBS -l place=scatter
#PBS -l walltime=00:10:00
#PBS -q debug
#PBS -A project
#PBS -l filesystems=home:eagle

shopt -q login_shell || exec /bin/bash -l "$0"  # some batch systems ignore the first line

job=WORKSPACE/jobs/hello-1
tool=(/usr/bin/python3 -S WORKSPACE/deployer.pyz)
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
    (trap '' USR1 USR2; while kill -USR2 "$child" 2>/dev/null; do sleep 1; done) &
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
    next=$("${tool[@]}" start "$job" --script "$0" --id "$id") || {
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
if ((${#nodes[@]} != 1)); then
    echo "deployer: the job has ${#nodes[@]} nodes, not 1: ${nodes[*]}" >&2
    result hosts 1
    exit 1
fi

# each COMMAND...: run it on each node, at once; its exit code is the highest of all.
each() {
    mpiexec -n 1 --ppn 1 --hostfile "$job"/machines --pmi none --no-transfer --cpu-bind none "$@" </dev/null
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

module use /soft/modulefiles || { result hosts 1 --setup 'module use /soft/modulefiles'; exit 1; }

module load spack-pe-base || { result hosts 1 --module spack-pe-base; exit 1; }

module load apptainer || { result hosts 1 --module apptainer; exit 1; }

# Home: a private folder of this job on each node, created in step 1.
home=/tmp/deployer-home-$UID-$unique
leave() {
    each rm -rf -- "$home" >/dev/null 2>&1 || rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only; from the host's environment only what the plan passes. Binds:
#   /eagle/project: the site's folder, on the same path
#   /var/run/palsd: the site's folder, on the same path
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
    '--pass=PALS_*'
    '--pass=PMI_*'
    '--pass=PMIX_*'
    '--pass=SLINGSHOT_*'
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
    --set-env=PYTHONNOUSERSITE=1
    --set-env=TF_NUM_INTEROP_THREADS=2
    --set-env=TF_NUM_INTRAOP_THREADS=2
    --set-env=TMPDIR="$home"
    --cleanenv
    --no-home
    --no-mount=home,cwd,tmp,hostfs,bind-paths
    --home="$home"
    --bind=/tmp:/tmp
    --bind=/eagle/project:/eagle/project
    --bind=/var/run/palsd:/var/run/palsd
    --bind=WORKSPACE/images/aaaa/app:/deployer/app
    --bind=WORKSPACE/deployer.pyz:/deployer/deployer.pyz
    --bind=WORKSPACE/jobs/hello-1:/deployer/job
    --pwd=/work
    --fakeroot
)
image=WORKSPACE/images/aaaa/rootfs

# The ranks: pals starts 1 per node, with 2 cores per rank.
type -P mpiexec >/dev/null || { result hosts 127 --launcher mpiexec; exit 1; }
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
launch=(mpiexec -n 1 --ppn 1 --hostfile "$job"/machines --pmi pmix --no-transfer --cpu-bind list:0-1,32-33
)

# 1. Hosts: each node writes its facts into hosts/, from outside the container.
each \
    "${tool[@]}" probe --host --out "$job/hosts" --home "$home" </dev/null
result hosts $? || exit
read -r meet <"$job/hosts/meet"  # nodes, ranks per node, the first node's address, a free port, interface

# 2. Probe: each rank records its MPI library, network and CPUs in the container in ranks/. If they do not match the
#    plan, the job ends here, before the payload.
ranks "${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz probe --rank --out /deployer/job/ranks </dev/null
result probe $? || exit

# 3. Payload: each rank runs it; `rank` records which MPI library its processes use and how they end.
ranks "${launch[@]}" "${container[@]}" "$image" -- \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz rank --out /deployer/job/ranks --end --meet "$meet" -- python3 x.py </dev/null
result payload $?
exit
