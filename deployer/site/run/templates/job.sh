#= head
#!/bin/bash -l
# Job @job@: bundle @bundle@:@version@ on @site@, written by deployer @deployer@.
# @nodes@ x @ranks@ x @threads@; variant @variant@: @reason@.
@?directives@# To submit this script by hand: @by_hand@. You may edit it and submit it again.
@directives@@:@# To start this script by hand: ./job.sh. You may edit it and start it again.
@.@
#= ground
@?login_shell@shopt -q login_shell || exec /bin/bash -l "$0"  # some batch systems ignore the first line

@.@job=@folder@
tool=(@python@ -S @tool@)
@?group@array=1 task='' parameters=()
@.@started=$(date +%s)
stopped=
@id@@?cluster@id+=";$SLURM_CLUSTER_NAME"
@.@
@?agent@@trap@@:@# At a time limit or cancel, @who@ sends SIGTERM to the ranks and to this script. The script continues as long as it
# can, to write result.json.
trap 'stopped=TERM' TERM
@.@
# result STEP EXIT: check the evidence of the steps so far and write result.json; true if the job may continue.
result() {
    local code
    if { (($# == 2)) || [ "$3" = --reason ]; } && [ "$1" != payload ] && kill -0 "$judge_PID" 2>/dev/null; then
        trap '' PIPE  # a judge that has just ended does not end this script
        { echo "$1 $2 ${stopped:--} ${4-}" >&"${judge[1]}" &&
            read -r -t @patience@ code <&"${judge[0]}"; } 2>/dev/null || code=
        trap - PIPE
        [ -z "$code" ] || return "$code"
        disown "$judge_PID" 2>/dev/null  # bash would report its end in the log
        kill -KILL "$judge_PID" 2>/dev/null  # it hangs: its answer could come after another question
        judge_PID=
    fi
    "${tool[@]}" result "$job" --step "$1" --exit "$2" --id "$id" --started "$started" --signal "$stopped" "${@:3}"
}

# Each start of this script has a folder of its own: a later one, or another task of an array, makes one beside this.
@?batch@(set -C; echo "$id" >"$job/job_id") 2>/dev/null
[ "$(<"$job/job_id")" = "$id" ] && @.@{ mkdir "$job/hosts" 2>/dev/null || [ ! -d "$job/hosts" ]; } || {
    next=$("${tool[@]}" start "$job" --script "$0" --id "$id"@?group@ ${array:+--array "$array"}@.@) || @?batch@{
        code=$?
        [ -s "$job/job_id" ] || result hosts 6  # this is the first start, and the disk is full
        exit $code
    }
@:@exit $?
@.@@?opened@    mv "$job/@opened@" "$next" 2>/dev/null
@.@    exec /bin/bash -l "$next/job.sh"
}
@?opened@mv "$job/@opened@" "$job"/@log@ 2>/dev/null && chmod "$(umask -S | tr -d x)" "$job"/@log@
@.@@?own_log@exec >>"$job"/@log@ 2>&1
@.@chmod "$(umask -S)" "$job"  # as your login files say, however the job was submitted

@?steps@# After sbatch --export=NONE, Slurm would otherwise start the steps with an empty environment; and with the umask of the
# shell that submitted the job.
unset SLURM_EXPORT_ENV SLURM_UMASK
@.@export USER=${USER:-$(id -un)}  # ch-run needs USER
unique=$(</proc/sys/kernel/random/uuid)  # part of names on the nodes: other users cannot predict it

mkdir -p "$job/hosts" "$job/ranks" || { result hosts 6; exit; }
# The judge starts here, so that the ranks do not wait for its start. It ends before the payload.
coproc judge {
    trap '' TERM USR1 USR2
    exec "${tool[@]}" result "$job" --until @until@ --id "$id" --started "$started"
}
@ground@@modules@@?warn@
warn=$((started + @ahead@))  # then the ranks get SIGUSR1, to save their state
@.@@?home@
# Home: a private folder of this job on each node, created in step 1.
home=@home@$UID-$unique
@?keep@# Its caches of compiled code: where they are kept for later jobs, and their paths in it.
keep=(@keep@)
@.@leave() {
@?keep@    [ ! -d "$home" ] || "${tool[@]}" keep --home "$home" "${keep[@]}" </dev/null
@.@    @?steps@[ -z "$stopped" ] && timeout 30 @one_a_node@ \
        rm -rf -- "$home" </dev/null >/dev/null 2>&1 || @.@@?agent@each rm -rf -- "$home" >/dev/null 2>&1 || @.@rm -rf -- "$home"
}
trap leave EXIT
@.@
#= container
@?staging@# The image is staged: each node has its own copy here.
stage=@staging@$UID-$unique/image

@.@@?contained@# The container: read-only; from the host's environment only what the plan passes. Binds:
@:@# No container: the host's programs and environment. These paths replace the binds of a container:
@.@@binds@@?note@# Note: @note@.
@.@@arrays@@?contained@image=@rootfs@
@.@
#= ranks
# The ranks: @launcher@ starts @ranks@ per node, with @units@ per rank.
@?note@# Note: @note@.
@.@@?look@type -P @look@ >/dev/null || { result hosts 127 --launcher @look@; exit 1; }
@.@@exports@launch=(@words@
)
#= ranks-inside
# The ranks: in one container per node, the image's @launcher@ starts @ranks@ per node, with @units@ each.
# The first command connects the nodes; the second one runs on each of them, and starts its container.
@environment@launch=(@hub@ -- \
    @words@
)
# In the container of the first node: the image's launcher.
inside=(@inside@
)
#= hosts
# 1. Hosts: @?alone@this machine@:@each node@.@ writes its facts into hosts/, from outside the container.@?reader@
#    Then a container reads the image's marker file. If it shows the host's root instead, the job ends here.@.@
@?alone@@:@@one_a_node@ \
    @.@"${tool[@]}" probe --host --out "$job/hosts"@options@@?keep@ "${keep[@]}"@.@@?reader@ -- \
    "${container[@]}" "$image" -- @reader@@.@ </dev/null
result hosts $? || exit
read -r meet <"$job/hosts/meet"  # nodes, ranks per node, the first node's address, a free port, interface
#= network
# Network: the nodes find each other at the place where the ranks will, and measure the path between them. If one cannot
# reach the first one, the job ends here.
@one_a_node@ \
    "${tool[@]}" probe --network --out "$job/hosts" </dev/null
result network $? || exit
#= probe
# 2. Probe: each rank records its MPI library, network and CPUs@?contained@ in the container@.@ in ranks/. If they do not match the
#    plan, the job ends here, before the payload.
@step@@?staged@code=$?
collect
result probe $code || exit
@:@result probe $? || exit
@.@
#= payload
@?image_python@# 3. Payload: each rank runs it; `rank` records which MPI library its processes use and how they end.
@:@# 2. Payload: each rank runs it. The image has no Python, so `rank` observes it from outside the container.
watch=(@watch@
)
@.@@step@@?staged@code=$?
unstage
result payload $code
@:@result payload $?
@.@@?warn@code=$?
# If the ranks have saved their state (@saved@), the next job continues from it, but not after a cancel.
if ((code == @saved@)) && [ -z "$stopped" ]; then "${tool[@]}" again "$job" && code=0; fi
exit "$code"
@:@exit
@.@
#= step
@?agent@ranks @.@"${launch[@]}"@?watched@ "${watch[@]}"@.@ @?contained@"${container[@]}"@:@"${native[@]}"@.@@options@@?contained@ "$image" --@.@@?inside@ "${inside[@]}"@.@ \
    @command@@?parameters@ "${parameters[@]}"@.@ </dev/null
