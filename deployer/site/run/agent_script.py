"""The parts of job.sh for a batch system that starts no processes on other nodes itself, and the agent's program. Pure.

Such a system has a command like ssh (``qrsh -inherit``, ``pbs_tmrsh``, ``blaunch``, ssh itself). The agent makes one
program of it that launchers call in place of ssh: it gives the command job.sh's environment and folder.
"""

from typing import Sequence

from deployer.contract import shell
from deployer.contract.shell import Code, code
from deployer.site.jobs.result import AGENT, ENVIRONMENT, LOG, MACHINES
from deployer.site.jobs.schedulers.interface import Scheduler

#: Variables that describe the first node, or a shell.
_OF_A_NODE = ("HOSTNAME", "PWD", "OLDPWD", "SHLVL", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "DISPLAY")


def login_shell() -> Code:
    """Return the line that makes the script a login shell, which has the command ``module``."""
    return code('shopt -q login_shell || exec /bin/bash -l "$0"  # some batch systems ignore the first line\n\n')


def trap(scheduler: Scheduler, asked_by: str) -> Code:
    """Return the lines that let the job end in its own time; ``asked_by`` is the launcher's signal."""
    return code(
        """\
# At a time limit or cancel, {who} sends a signal to this script, which sends SIGTERM to the ranks. The script
# continues as long as it can, to write result.json. A launcher that is asked twice kills the ranks at once.
child=
ending=
end() {{
    [ -n "$child" ] && [ "$ending" != "$child" ] || return 0
    ending=$child
    {end}{kill}
}}
trap 'stopped=TERM; end' {signals}
{ignored}""",
        who=scheduler.title,
        end=_ask(asked_by),
        kill=code("""\n    (sleep {patience}; pkill -KILL -s "$child") &""", patience=scheduler.patience)
        if scheduler.patience is not None
        else code(""),
        signals=list(scheduler.ends),
        ignored=code("trap : {signals}  # before the job is suspended\n", signals=list(scheduler.ignores))
        if scheduler.ignores
        else code(""),
    )


def _ask(asked_by: str) -> Code:
    """Return the command that asks the launcher to end; a launcher that is starting may lose a signal but SIGTERM."""
    if asked_by == "TERM":
        return code(
            """\
# bash may lose a signal for a process that it has just started, until that has a session of its own.
    while kill -0 "$child" && ! kill -0 -- -"$child"; do sleep 0.1; done 2>/dev/null
    kill -TERM "$child" 2>/dev/null"""
        )
    return code(
        """(trap '' USR1 USR2; while kill -{signal} "$child" 2>/dev/null; do sleep 1; done) &""", signal=asked_by
    )


def ground(scheduler: Scheduler, hosts: Sequence[str], nodes: int) -> Code:
    """Return the lines that find the job's nodes and define how processes start on them."""
    return code(
        """
# The nodes of this job, each once.
mapfile -t nodes < <({list} | awk '!seen[$0]++'{first})
if ((${{#nodes[@]}} != {nodes})); then
    echo "deployer: the job has ${{#nodes[@]}} nodes, not {nodes}: ${{nodes[*]}}" >&2
    result hosts 1
    exit 1
fi

# each COMMAND...: run it on each node, at once; its exit code is the highest of all.
each() {{
    local node pid worst=0 pids=()
    for node in "${{nodes[@]}}"; do
        "$job"/{agent} "$node" "$(printf '%q ' "$@")" </dev/null &
        pids+=($!)
    done
    for pid in "${{pids[@]}}"; do
        wait "$pid"
        awaited "$pid" $?
        if ((code > worst)); then worst=$code; fi
    done
    return "$worst"
}}

# ranks COMMAND...: run the launcher in a session of its own: signals for this script do not reach it, except SIGTERM.
# Some batch systems send these two to all processes of the first node: they would end the launcher before SIGTERM does.
ranks() {{
    (trap '' USR1 USR2; exec setsid "$@") </dev/null &
    child=$!
    [ -z "$stopped" ] || end  # the signal came before
    wait "$child"
    awaited "$child" $?
    child=
    return "$code"
}}

# awaited PID CODE: set $code to the exit code of a process. A signal for this script ends a wait early.
awaited() {{
    code=$2
    while ((code > 128)) && kill -0 "$1" 2>/dev/null; do
        wait "$1"
        code=$?
    done
}}
""",
        list=scheduler.nodes(hosts),
        first=code(" | head -n {nodes}", nodes=nodes) if hosts else code(""),
        nodes=nodes,
        agent=AGENT,
    )


def environment(scheduler: Scheduler, slots: Code) -> Code:
    """Return the lines that write the files which the agent and the launcher read."""
    return code(
        """\
# For the other nodes: the environment and the folder of this script, and the list of the nodes.
unset TMPDIR TMP  # a batch system's folder is not the same on all nodes, and not in the container
(
    mask=$(umask)
    umask 077
    printf 'unset TMPDIR TMP\\numask %s\\ncd -- %q\\n' "$mask" "$PWD" >"$job"/{environment}
    unset {own}
    export -p >>"$job"/{environment}
    printf '%s\\n' "${{nodes[@]/%/{slots}}}" >"$job"/{machines}
) || {{ result hosts 6; exit; }}
""",
        own=[*_OF_A_NODE, *scheduler.of_a_node],
        environment=ENVIRONMENT,
        slots=slots,
        machines=MACHINES,
    )


def agent(scheduler: Scheduler, folder: str) -> str:
    """Return the text of the agent's program."""
    own = "%s/%s" % (folder, AGENT)
    return shell.script(
        code(
            """\
#!/bin/bash
# Takes the place of ssh for launchers: agent [OPTIONS] NODE WORDS...: bash on NODE reads WORDS.
if [ "$1" = --here ]; then
{log}    . {environment} || exit
    trap '' USR1 USR2  # they are for job.sh
    exec {session}/bin/bash -c "$(base64 -d <<<"$2")"
fi
while [[ $1 == -* ]]; do shift; done
node=$1
shift
text=$(printf %s "$*" | base64 -w 0)
{first}exec {agent} "$node" {command}
""",
            environment="%s/%s" % (folder, ENVIRONMENT),
            session=code("setsid --wait " if scheduler.own_sessions else ""),
            first=_first(own, "%s/%s" % (folder, MACHINES)) if scheduler.prefix else code(""),
            log=code("""    [ -z "${{3-}}" ] || exec >>"$3" 2>&1\n""") if not scheduler.agent_has_shell else code(""),
            agent=scheduler.agent(),
            command=_command(scheduler, own, folder),
        )
    )


def _command(scheduler: Scheduler, own: str, folder: str) -> Code:
    """Return the words with which the agent's command starts this program on another node."""
    if scheduler.agent_has_shell:
        here = shell.for_any_login_shell(["/bin/bash", own, "--here"])
        return code("""{here}"$text\"""", here=here + " ")
    return code("""/bin/bash {own} --here "$text" {log}""", own=own, log="%s/%s" % (folder, LOG))


def _first(own: str, machines: str) -> Code:
    """Return the line for the first node, on which job.sh runs: a batch system may count a second task there."""
    return code(
        """\
read -r first _ <{machines}
[ "$node" != "$first" ] || exec /bin/bash {own} --here "$text"
""",
        machines=machines,
        own=own,
    )
