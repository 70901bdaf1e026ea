"""Rules of the runtime: that one of the plan's start options can start a container on the nodes."""

from collections.abc import Iterator

from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.contract.findings import ERROR, NOTE, Finding
from deployer.contract.plan import NATIVE, RUNTIME_NAMES, StartOption

#: Runtimes that make a user namespace to become root in it.
_NAMESPACES = ("charliecloud", "apptainer")


def allowed(case: Case) -> Iterator[Finding]:
    """runtime.none, runtime.unknown: no runtime that the policy allows is on the nodes, or none that ``run`` knows."""
    policy = case.profile.policy
    unknown = [
        name for name in case.partition.runtimes if policy and name in policy.runtimes and name not in RUNTIME_NAMES
    ]
    usable = any(option.runtime in RUNTIME_NAMES for option in case.plan.containers)
    if unknown:
        yield Finding(
            "runtime.unknown",
            NOTE if usable else ERROR,
            case.plan.partition,
            f"its nodes have {', '.join(unknown)}, which this version of deployer cannot use",
            f"ask the site for one of: {', '.join(name for name in RUNTIME_NAMES if name != NATIVE)}; "
            "udocker needs only the site's permission",
        )
    elif not usable:
        there = ", ".join(case.partition.runtimes) or "none"
        allows = ", ".join(policy.runtimes) if policy else "none"
        yield Finding(
            "runtime.none",
            ERROR,
            case.plan.partition,
            f"runtimes on its nodes: {there}; runtimes that the site allows: {allows}",
            "ask the site to install one that it allows; udocker needs only the site's permission",
        )


def startable(case: Case) -> Iterator[Finding]:
    """runtime.namespaces, runtime.fuse, facts.runtime: the kernel lacks what a start option needs.

    A note if another start option can start, because the site then uses that one.
    """
    known = [option for option in case.plan.containers if option.runtime in RUNTIME_NAMES]
    judged = [(option, list(_against(case, option))) for option in known]
    fine = any(not findings for _, findings in judged)
    for _, findings in judged:
        for finding in findings:
            yield finding._replace(severity=NOTE) if fine else finding


def _against(case: Case, option: StartOption) -> Iterator[Finding]:
    has = case.partition
    needs = []
    if option.runtime in _NAMESPACES:
        needs.append(("namespaces", has.user_namespaces, "user namespaces"))
    if option.runtime == "charliecloud" and option.staging == "squashfs":
        needs.append(("fuse", has.fuse, "FUSE, which mounts a SquashFS"))
    for code, there, what in needs:
        if there is None:
            text = f"{option.runtime} needs {what}, which has not been tested on the nodes of {case.plan.partition}"
            yield Finding("facts.runtime", MISSING_FACTS, option.name, text, CAPTURE)
        elif not there:
            yield Finding(
                f"runtime.{code}",
                ERROR,
                option.name,
                f"{option.runtime} needs {what}, which an unprivileged user of {case.plan.partition} does not have",
                "ask the site for it (user.max_user_namespaces, /dev/fuse), or allow udocker in the profile's policy",
            )
