#= step
# 1. Hosts and stage: each node writes its facts into hosts/, from outside the container, prints a line, and waits for
#    SIGUSR1, which this script sends if all nodes are right.
#    Then each node @does@ (@size@ MiB).
@?relay@#    The nodes send the file on to each other, so that only one in 32 reads the shared file.
@.@#    The step runs beside the other steps and removes the image at the end. It prints a line when the image is ready,
#    and one when it has collected the evidence of its ranks (SIGUSR1); SIGUSR2 ends it. If a node fails, the job ends
#    here.
@?reader@#    Before it prints that the image is ready, a container reads the image's marker file, which the host's root does
#    not have.
root=("${container[@]}" "$image" -- @reader@)
@.@overlap=$(srun --help | grep -o -m 1 -e --overlap)  # needed to share since Slurm 20.11
pipe=$(mktemp -d)/answers && mkfifo "$pipe" || exit 6
cd /  # becomes the ranks' working folder; on a shared file system, each rank would look it up
srun --mpi=none $overlap @options@ \
    sh -c @kept@ \
    sh "${tool[@]}" stage@what@@?keep@ \
    "${keep[@]}"@.@ \
    --hosts "$job/hosts"@?library@ --library @library@@.@ \
    --tool "${tool[2]}" --into "$stage"@?relay@ --relay@.@ --out "$job/ranks"@?reader@ --reader "${#root[@]}" -- "${root[@]}"@:@@?held@ --@.@@.@@?held@ "${mount[@]}"@.@ </dev/null >"$pipe" &
holder=$!
exec 3<"$pipe"
rm -r "${pipe%/*}"

# answers: wait for a line from each node; false if one failed, with its exit code in $worst and its reason in $reason.
# After a failure, wait only two more seconds, for nodes that fail for the same reason.
answers() {
    local count=0 who status words end=
    worst=0 reason=
    while ((count < @nodes@ && (!worst || SECONDS < end))); do
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
@network@collect || { result stage "$worst" --reason "$reason"; exit; }
container[@at@]=$(type -P "${container[@at@]}" || echo "${container[@at@]}")  # looked up once, not per rank
