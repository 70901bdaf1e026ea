"""The parts of job.sh for a batch system that cannot start processes on other nodes, and the agent program. Pure.

Such a system has a command like ssh (``qrsh -inherit``, ``pbs_tmrsh``, ``blaunch``, or ssh itself). The agent is a
program that launchers call instead of ssh. It passes job.sh's environment and folder to the command.
"""

from typing import Sequence

from deployer.contract.base import shell
from deployer.contract.base.shell import Code, Value, code
from deployer.site.jobs.result import AGENT, ENVIRONMENT, LOG, MACHINES
from deployer.site.jobs.schedulers.interface import Scheduler
from deployer.site.run.templates import fill

#: Variables that describe the first node or a shell.
_OF_A_NODE = ("HOSTNAME", "PWD", "OLDPWD", "SHLVL", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "DISPLAY")


def trap(scheduler: Scheduler, asked_by: str) -> Code:
    """Return the lines that let the job end gracefully; ``asked_by`` is the launcher's signal."""
    return fill(
        "agent.sh",
        "trap",
        who=scheduler.title,
        signal="" if asked_by == "TERM" else asked_by,
        kills=scheduler.patience is not None,
        patience=scheduler.patience,
        signals=list(scheduler.ends),
        ignored=list(scheduler.ignores),
    )


def ground(scheduler: Scheduler, hosts: Sequence[str], nodes: int, steps: Sequence[Value] = ()) -> Code:
    """Return the lines that find the job's nodes and define how processes start on them: by ``steps``, or the agent."""
    words = code("{steps}", steps=steps) if steps else ""
    return fill(
        "agent.sh", "ground", list=scheduler.nodes(hosts), chosen=len(hosts), nodes=nodes, steps=words, agent=AGENT
    )


def environment(scheduler: Scheduler, slots: Code) -> Code:
    """Return the lines that write the files for the agent and the launcher."""
    return fill(
        "agent.sh",
        "environment",
        own=[*_OF_A_NODE, *scheduler.of_a_node],
        environment=ENVIRONMENT,
        slots=slots,
        machines=MACHINES,
    )


def agent(scheduler: Scheduler, folder: str) -> str:
    """Return the text of the agent program."""
    own = f"{folder}/{AGENT}"
    here = shell.for_any_login_shell(["/bin/bash", own, "--here"]) + " "
    return fill(
        "agent.sh",
        "program",
        environment=f"{folder}/{ENVIRONMENT}",
        session=scheduler.own_sessions,
        batch=bool(scheduler.prefix),  # such a system may count a second task on the first node, where job.sh runs
        machines=f"{folder}/{MACHINES}",
        own=own,
        agent=scheduler.agent,
        here=here if scheduler.agent_has_shell else "",
        log=f"{folder}/{LOG}",
    ).text
