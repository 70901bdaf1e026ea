"""Placeholders in a plan for variables of the user's login shell: their values (see ``contract.base.placeholders``).

A command that arrives over ssh does not have the environment of a login shell. So values that its environment lacks
come from the user's login shell.
"""

import os
import pwd
from typing import Dict, Iterable, Mapping

from deployer.contract.base import placeholders
from deployer.contract.base.errors import DeployerError
from deployer.contract.site import mount_points
from deployer.contract.site.plan import Bind, Plan
from deployer.system import process

#: Seconds. The startup files of a login shell may wait for a slow file system.
_PATIENCE = 30.0


def expanded(plan: Plan, environment: Mapping[str, str]) -> Plan:
    """Return a plan with the values of its placeholders in the account, directives, storage requests, and mounts.

    Raises:
        UsageError: a variable is empty, or its value is unsafe.
    """
    texts = [*plan.mounts, *plan.batch.storage, *plan.directives, plan.account or ""]
    known = values((name for text in texts for name in placeholders.names(text)), environment)
    mounts = [mount_points.check_site(placeholders.expand(path, known, "mounts")) for path in plan.mounts]
    others = {bind.target for bind in plan.binds}
    added = [Bind(path, path, "the site's folder, on the same path") for path in sorted(set(mounts) - others)]
    storage = tuple(placeholders.expand(text, known, "scheduler.storage") for text in plan.batch.storage)
    return plan._replace(
        account=placeholders.expand(plan.account, known, "account") if plan.account else None,
        batch=plan.batch._replace(storage=storage),
        directives=[placeholders.expand(text, known, "directives") for text in plan.directives],
        binds=sorted([*added, *plan.binds], key=lambda bind: bind.target) if added else plan.binds,  # outer ones first
        mounts=tuple(mounts),
    )


def values(names: Iterable[str], environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the values of variables, without the unset ones."""
    wanted = sorted(set(names))
    known = {name: environment[name] for name in wanted if environment.get(name)}
    missing = [name for name in wanted if name not in known]
    if not missing:
        return known
    shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    try:
        answer = process.run([shell, "-l"], _PATIENCE, stdin=placeholders.question(missing), check=False).stdout
    except DeployerError:  # the login shell does not answer
        return known
    return {**known, **placeholders.answers(answer, missing)}
