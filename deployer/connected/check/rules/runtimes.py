"""Rules for runtimes: that one of the plan's start options can start a container on the nodes, and prove its ranks."""

import re
from collections.abc import Iterator

from deployer.connected.check.rules.case import CAPTURE, MISSING_FACTS, Case
from deployer.connected.linker.jobs import LinkedJob
from deployer.connected.site_profile.plan import mounts_squashfs, needs_namespaces, objections
from deployer.contract.base import version as versions
from deployer.contract.rules.findings import ERROR, NOTE, Finding
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import INSIDE, NATIVE, OPENMPI, PACKED, StartOption

#: The first version whose --no-mount supports ``bind-paths``.
_WITHOUT_BIND_PATHS = {"apptainer": "1.2", "singularity": "3.11"}

#: Arguments that give each container, and so each rank, its own /dev/shm or network.
_APPTAINER = ("apptainer", "singularity")
_OWN_MEMORY = re.compile(r"(--scratch=|-S=?)(.*,)?/dev(/shm)?/?(,|$)|(--contain|--containall|--compat|-c|-C)(=true)?$")
_OWN_NETWORK = re.compile(r"--net(=true)?$|--network(=(?!host$)|$)|-n$")
_MEMORY = "each rank has a /dev/shm of its own, so that ranks of one node, which send by it, hang or fail"
_NETWORK = "each rank has a network of its own, so that ranks find those of other nodes only by a fast network"
#: The remedy, by the code of the finding.
_REMEDIES = {
    "runtime.namespaces": "ask the site for user namespaces (user.max_user_namespaces)",
    "runtime.fuse": "ask the site for /dev/fuse (for Apptainer also squashfuse, or its setuid program)",
    "runtime.old": "ask the site for a newer one, or leave its version out of the profile if it has another module",
    "runtime.start": "see the capture's notes; ask the site for `allow container dir`, `user bind control` and an "
    "overlay or underlay in the runtime's configuration",
}
_OR = ", or allow udocker in the profile's policy"
#: The word for control groups of both versions in crun's messages.
_HYBRID = "hybrid"


def allowed(case: Case) -> Iterator[Finding]:
    """runtime.none, runtime.unsupported: no allowed runtime is on the nodes, or deployer cannot use one."""
    policy = case.profile.policy.runtimes if case.profile.policy else []
    options = [option.runtime for option in case.plan.containers]
    usable = any(map(runtime_table.supported, options))
    unsupported = [name for name in dict.fromkeys(policy) if not runtime_table.supported(name)]
    for name in unsupported:
        why, instead = runtime_table.refusal(name)
        text = f"deployer cannot use {name}, which the site allows: {why}"
        yield Finding("runtime.unsupported", NOTE if usable else ERROR, case.plan.partition, text, instead)
    if not usable and not unsupported:
        there = ", ".join(case.partition.runtimes) or "none"
        text = f"runtimes on its nodes: {there}; runtimes that the site allows: {', '.join(policy) or 'none'}"
        remedy = "ask the site to install one that it allows; udocker needs only the site's permission"
        yield Finding("runtime.none", ERROR, case.plan.partition, text, remedy)


def entering(case: Case) -> Iterator[Finding]:
    """runtime.bind-path: the runtime is too old to leave out the folders that its administrator added."""
    for name in dict.fromkeys(option.runtime for option in case.plan.containers):
        own = case.partition.runtimes.get(name)
        first = _WITHOUT_BIND_PATHS.get(name)
        if own and own.version and first and versions.is_older(own.version, first):
            text = f"{name} {own.version} cannot leave out the files and folders of `bind path` in its configuration"
            remedy = f"by default they are /etc/localtime and /etc/hosts; ask the site for {first} or newer"
            yield Finding("runtime.bind-path", NOTE, case.plan.partition, text, remedy)


def private(linked: LinkedJob, case: Case) -> Iterator[Finding]:
    """runtime.private: an argument in the profile gives each rank its own shared memory or network.

    If one start option has no such argument, the site may choose that option.
    """
    job = linked.job
    if job is None or case.plan.launch == INSIDE or not any(process.uses_mpi for process in linked.processes):
        return
    private_words = [
        (option, list(_private_words(option, job.ranks_per_node > 1, job.nodes > 1))) for option in case.plan.containers
    ]
    fails = case.plan.abi != OPENMPI and all(words for _, words in private_words)  # Open MPI then sends through TCP
    for option, words in private_words:
        for word, effect in words:
            severity = ERROR if effect is _MEMORY and fails else MISSING_FACTS
            text = f"{option.runtime} is started with {word}: {effect}"
            remedy = f"remove it from runtimes.{option.runtime}.arguments in the site's profile"
            yield Finding("runtime.private", severity, option.name, text, remedy)


def _private_words(option: StartOption, memory: bool, network: bool) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a start option that separate its ranks, and how."""
    for word in option.arguments:
        if memory and option.runtime in _APPTAINER and _OWN_MEMORY.match(word):
            yield word, _MEMORY
        elif network and _OWN_NETWORK.match(word):
            yield word, _NETWORK


def startable(case: Case) -> Iterator[Finding]:
    """runtime.namespaces, runtime.fuse, facts.runtime, runtime.old: a start option cannot start.

    The kernel lacks what it needs, or the runtime is too old. This is a note if another start option can start, because
    the site then uses that option.
    """
    known = [option for option in case.plan.containers if runtime_table.supported(option.runtime)]
    of_options = [list(_against(case, option)) for option in known]
    for finding in (finding for findings in of_options for finding in findings):
        yield finding if all(of_options) else finding._replace(severity=NOTE)


def _against(case: Case, option: StartOption) -> Iterator[Finding]:
    has = case.partition
    for code, reason in objections(has, option.runtime):
        if code in _REMEDIES:
            text = f"{option.runtime} on the nodes of {case.plan.partition}: {reason}"
            yield Finding(code, ERROR, option.name, text, _remedy(code, option.runtime, reason))
    mounts = mounts_squashfs(has, option.runtime) if option.staging in PACKED else True
    namespaces = has.user_namespaces is not None or not needs_namespaces(has, option.runtime)
    needs = {"user namespaces": not namespaces, "a way to mount SquashFS files": mounts is None}
    for what in (what for what, is_unknown in needs.items() if is_unknown):
        text = f"{option.runtime} needs {what}, which has not been tested on the nodes of {case.plan.partition}"
        yield Finding("facts.runtime", MISSING_FACTS, option.name, text, CAPTURE)
    if mounts is False:
        text = f"{option.runtime} needs a way to mount SquashFS files, which users of {case.plan.partition} do not have"
        yield Finding("runtime.fuse", ERROR, option.name, text, _REMEDIES["runtime.fuse"] + _OR)


def proving(case: Case) -> Iterator[Finding]:
    """proof.outside: the image has no Python. This is a note: jobs run, but less is proven about them."""
    contained = any(option.runtime != NATIVE for option in case.plan.start_options)
    if case.manifest.image.python is None and contained:
        text = (
            "the image has no Python: there is no proof before the payload, whose ranks are watched from outside the "
            "container. They show their MPI library, hosts and CPUs, and what the launcher says of the world's size; "
            "network provider, thread level and a first MPI_Allreduce are not proven"
        )
        remedy = "add python3 to the image for a full proof before the payload"
        yield Finding("proof.outside", NOTE, case.plan.bundle, text, remedy)


def _remedy(code: str, runtime: str, reason: str) -> str:
    if code != "runtime.start" or runtime in _WITHOUT_BIND_PATHS:
        return _REMEDIES[code] + ("" if code == "runtime.old" else _OR)
    if _HYBRID in reason:
        return "ask the site for nodes with control groups of version 2 alone" + _OR
    return "ask the site about the reason, which the capture's notes have too" + _OR
