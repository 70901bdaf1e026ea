#= trap
# At a time limit or cancel, @who@ sends a signal to this script, which sends SIGTERM to the ranks. The script
# continues as long as it can, to write result.json. A launcher that is asked twice kills the ranks at once.
child=
ending=
end() {
    [ -n "$child" ] && [ "$ending" != "$child" ] || return 0
    ending=$child
    @?signal@(trap '' USR1 USR2; while kill -@signal@ "$child" 2>/dev/null; do sleep 1; done) &
@:@# bash may lose a signal for a process that it has just started, until that has a session of its own.
    while kill -0 "$child" && ! kill -0 -- -"$child"; do sleep 0.1; done 2>/dev/null
    kill -TERM "$child" 2>/dev/null
@.@@?kills@    (sleep @patience@; pkill -KILL -s "$child") &
@.@}
trap 'stopped=TERM; end' @signals@
@?ignored@trap : @ignored@  # before the job is suspended
@.@
#= ground

# The nodes of this job, each once.
mapfile -t nodes < <(@list@ | awk '!seen[$0]++'@?chosen@ | head -n @nodes@@.@)
if ((${#nodes[@]} != @nodes@)); then
    echo "deployer: the job has ${#nodes[@]} nodes, not @nodes@: ${nodes[*]}" >&2
    result hosts 1
    exit 1
fi

# each COMMAND...: run it on each node, at once; its exit code is the highest of all.
each() {
@?steps@    @steps@ "$@" </dev/null
}
@:@    local node pid worst=0 pids=()
    for node in "${nodes[@]}"; do
        "$job"/@agent@ "$node" "$(printf '%q ' "$@")" </dev/null &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
        awaited "$pid" $?
        if ((code > worst)); then worst=$code; fi
    done
    return "$worst"
}
@.@
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
#= environment
# For the other nodes: the environment and the folder of this script, and the list of the nodes.
unset TMPDIR TMP  # a batch system's folder is not the same on all nodes, and not in the container
(
    mask=$(umask)
    umask 077
    printf 'unset TMPDIR TMP\numask %s\ncd -- %q\n' "$mask" "$PWD" >"$job"/@environment@
    unset @own@
    export -p >>"$job"/@environment@
    printf '%s\n' "${nodes[@]/%/@slots@}" >"$job"/@machines@
) || { result hosts 6; exit; }
#= program
#!/bin/bash
# Takes the place of ssh for launchers: agent [OPTIONS] NODE WORDS...: bash on NODE reads WORDS.
if [ "$1" = --here ]; then
@?here@@:@    [ -z "${3-}" ] || exec >>"$3" 2>&1
@.@    . @environment@ || exit
    trap '' USR1 USR2  # they are for job.sh
    exec @?session@setsid --wait @.@/bin/bash -c "$(base64 -d <<<"$2")"
fi
while [[ $1 == -* ]]; do shift; done
node=$1
shift
text=$(printf %s "$*" | base64 -w 0)
@?batch@read -r first _ <@machines@
[ "$node" != "$first" ] || exec /bin/bash @own@ --here "$text"
@.@exec @agent@ "$node" @?here@@here@"$text"
@:@/bin/bash @own@ --here "$text" @log@
@.@
