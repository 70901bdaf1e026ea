#!/bin/bash -l
# Job hello-1: bundle hello:1 on lab, written by deployer VERSION.
# 1 node x 2 ranks x 2 threads; variant charliecloud-folder: first in the plan.
# To start this script by hand: ./job.sh. You may edit it and start it again.

job=/home/alice/deployer/jobs/hello-1
tool=(/opt/python/3.6/bin/python3 -S /home/alice/deployer/deployer.pyz)
started=$(date +%s)
stopped=
id=

# At a time limit or cancel, deployer sends SIGTERM to the ranks and to this script. The script continues as long as it
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
{ mkdir "$job/hosts" 2>/dev/null || [ ! -d "$job/hosts" ]; } || {
    next=$("${tool[@]}" start "$job" --script "$0" --id "$id") || exit $?
    exec /bin/bash -l "$next/job.sh"
}
chmod "$(umask -S)" "$job"  # as your login files say, however the job was submitted

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
    rm -rf -- "$home"
}
trap leave EXIT

# The container: read-only; from the host's environment only what the plan passes. Binds:
#   /deployer/job: the job's folder
container=(ch-run
    '--unset-env=*'
    --env-no-expand
    --set-env=FI_PROVIDER=tcp
    '--set-env=GREETING=it'"'"'s $5: cheap'
    --set-env=HOME="$home"
    --set-env=I_MPI_HYDRA_RMK=user
    --set-env=I_MPI_JOB_RESPECT_PROCESS_PLACEMENT=0
    --set-env=KMP_BLOCKTIME=0
    --set-env=LD_LIBRARY_PATH=/opt/intel/mpi/2021.15/lib
    --set-env=OMP_NUM_THREADS=2
    --set-env=OMP_PLACES=cores
    --set-env=OMP_PROC_BIND=close
    --set-env=TF_NUM_INTEROP_THREADS=2
    --set-env=TF_NUM_INTRAOP_THREADS=2
    --set-env=TMPDIR="$home"
    --bind=/home/alice/deployer/jobs/hello-1:/deployer/job
    --cd=/work
)
image=/home/alice/deployer/images/aaaa/rootfs

# The ranks: in one container per node, the image's mpiexec.hydra starts 2 per node, with 2 cores each.
# The first command connects the nodes; the second one runs on each of them, and starts its container.
launch=(/opt/python/3.6/bin/python3 /home/alice/deployer/deployer.pyz inside --serve "$job"/inside --nodes 1
    --image-python /usr/bin/python3 --passes-on -- \
    setsid /opt/python/3.6/bin/python3 /home/alice/deployer/deployer.pyz inside --node --hub deployer:hub
    --number deployer:number --key "$job"/inside/key --
)
# In the container of the first node: the image's launcher.
inside=(deployer:launcher /usr/bin/python3 -I -S /deployer/deployer.pyz inside --launch --hub deployer:hub --
    /usr/bin/mpiexec.hydra -bootstrap ssh -bootstrap-exec /deployer/job/inside/start -localhost
    deployer:first -hosts deployer:nodes -n 2 -ppn 2 deployer:ranks
)

# 1. Hosts: this machine writes its facts into hosts/, from outside the container.
#    Then a container reads the image's marker file. If it shows the host's root instead, the job ends here.
"${tool[@]}" probe --host --out "$job/hosts" --home "$home" -- \
    "${container[@]}" "$image" -- /bin/cat /deployer/canary </dev/null
result hosts $? || exit
read -r meet <"$job/hosts/meet"  # nodes, ranks per node, the first node's address, a free port, interface

# 2. Probe: each rank records its MPI library, network and CPUs in the container in ranks/. If they do not match the
#    plan, the job ends here, before the payload.
"${launch[@]}" "${container[@]}" "$image" -- "${inside[@]}" \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz probe --rank --out /deployer/job/ranks </dev/null
result probe $? || exit

# 3. Payload: each rank runs it; `rank` records which MPI library its processes use and how they end.
"${launch[@]}" "${container[@]}" "$image" -- "${inside[@]}" \
    /usr/bin/python3 -I -S -c 'import sys; parts = open(sys.argv[1], "rb").read(65536).split(bytes(1)); exec(parts[0])' /deployer/deployer.pyz rank --out /deployer/job/ranks --abort --meet "$meet" -- python3 train.py --name 'a b' </dev/null
result payload $?
exit
