"""All container runtimes that a site may have, by name: what each needs, and whether deployer can use it.

This table is the only list. A site profile accepts its names, a plan orders them, `check` evaluates them, and `capture`
searches for their programs. Each supported name has an adapter in ``deployer.site.container.runtimes``; every other
name has a refusal and an alternative.
"""

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

from deployer.contract.base import version as versions
from deployer.contract.site.plan import CHARLIECLOUD_KIT, DISK, MEMORY, NATIVE, NOT_STAGED, STAGINGS


class KnownRuntime(NamedTuple):
    """A container runtime.

    Attributes:
        name: its name in plans.
        program: its program in PATH.
        namespaces: whether an unprivileged user's container needs user namespaces on the node.
        carried: whether a bundle's kit can provide it to a site that lacks it.
        stagings: where the image can be while it runs, from ``plan.STAGINGS``.
        allowed_by: the name under which a policy allows it, if it belongs to another runtime; no profile uses its own.
        mounts: whether it starts a SquashFS file like a folder and mounts it for each process, if its installation
            can. Otherwise a node's holder mounts a staged file, and ranks join it.
        shares_memory: whether separately started processes on a node can read each other's memory, at least with its
            options for that. Otherwise each has its own user namespace.
        tried: whether `capture` starts a container, because capabilities depend on the build and configuration.
        version_words: the arguments with which its program prints its version; none: it is not asked.
        oldest: the oldest version that can be used; empty: any.
        refusal: why deployer cannot use it; empty if it can.
        instead: what to do if deployer cannot use it.
    """

    name: str
    program: str
    namespaces: bool = True
    carried: bool = False
    stagings: Tuple[str, ...] = (NOT_STAGED,)
    allowed_by: str = ""
    mounts: bool = False
    shares_memory: bool = True
    tried: bool = False
    version_words: Tuple[str, ...] = ("--version",)
    oldest: str = ""
    refusal: str = ""
    instead: str = ""

    @property
    def policy_name(self) -> str:
        """Return the name under which a policy allows it."""
        return self.allowed_by or self.name


#: Since 0.28, it reads the pattern for ``--unset-env``. This is the oldest version that was tested with deployer.
_OLDEST_CHARLIECLOUD = "0.31"

#: The oldest version that was tested with deployer. 4.0 and older lack options that every start uses, such as
#: --unsetenv-all.
_OLDEST_PODMAN = "4.3"

_VERSION = re.compile(r"\d+(?:\.\d+)+")

_UNPACKED = (NOT_STAGED, DISK, MEMORY)
_ASK = "allow one that bundles carry: udocker needs nothing but the site's permission"


def _refused(name: str, refusal: str, instead: str) -> KnownRuntime:
    return KnownRuntime(name, name, namespaces=False, refusal=refusal, instead=instead)


#: In display order.
TABLE = (
    KnownRuntime("charliecloud", "ch-run", stagings=STAGINGS, oldest=_OLDEST_CHARLIECLOUD),
    KnownRuntime(CHARLIECLOUD_KIT, "ch-run", carried=True, stagings=STAGINGS, oldest=_OLDEST_CHARLIECLOUD,
                 allowed_by="charliecloud"),
    # --sharens gives Apptainer's processes one user namespace, but its first process leaves the payload behind when it
    # receives SIGTERM (observed with 1.4.5).
    KnownRuntime("apptainer", "apptainer", stagings=STAGINGS, mounts=True, shares_memory=False, tried=True,
                 oldest="1.0"),
    KnownRuntime("singularity", "singularity", stagings=STAGINGS, mounts=True, shares_memory=False, tried=True,
                 oldest="3.8"),
    KnownRuntime("podman", "podman", stagings=_UNPACKED, shares_memory=False, tried=True, oldest=_OLDEST_PODMAN),
    KnownRuntime("podman-hpc", "podman-hpc", stagings=_UNPACKED, shares_memory=False, tried=True),
    KnownRuntime("enroot", "enroot", stagings=_UNPACKED, shares_memory=False, tried=True, oldest="3.0",
                 version_words=("version",)),
    _refused(
        "shifter",
        "it starts images that the site's image gateway has converted; a folder of the user's own only if the "
        "administrator sets allowLocalChroot, which is off by default",
        "allow podman-hpc where the site has it; or " + _ASK,
    ),
    _refused(
        "sarus",
        "it starts only images of its own repositories, into which `sarus load` copies them from an archive",
        "allow podman where the site has it; or " + _ASK,
    ),
    _refused(
        "uenv", "it mounts a SquashFS file into the host's root; an image does not become the root of a process", _ASK
    ),
    _refused(
        "docker",
        "a service starts its containers, of root or with ranges of extra user numbers, and only from the service's "
        "own store of images",
        "allow podman, which needs no service; or " + _ASK,
    ),
    # Querying udocker would create a folder in the home.
    KnownRuntime("udocker", "udocker", namespaces=False, carried=True, stagings=_UNPACKED, version_words=()),
    KnownRuntime(NATIVE, "env", namespaces=False),
)  # fmt: skip
RUNTIMES = {known.name: known for known in TABLE}

#: The runtimes that deployer can use, and those among them that a bundle's kit can provide.
SUPPORTED = tuple(known.name for known in TABLE if not known.refusal)
CARRIED = tuple(known.name for known in TABLE if known.carried)
#: The runtimes that a site profile can list.
NAMED = tuple(known.name for known in TABLE if not known.allowed_by)


def supported(name: str) -> bool:
    """Return whether this deployer can use a runtime; plans from another version may have unknown names."""
    return name in SUPPORTED


def needs_namespaces(name: str) -> bool:
    """Return whether an unprivileged user's container of a runtime needs user namespaces."""
    return name in RUNTIMES and RUNTIMES[name].namespaces


def too_old(name: str, version: Optional[str]) -> Optional[str]:
    """Return why a version cannot be used, or None; ``version`` may be a text that contains it, or unknown."""
    if name == "singularity" and "apptainer" in (version or ""):  # a link to Apptainer
        name = "apptainer"
    oldest = RUNTIMES[name].oldest
    found = _VERSION.search(version or "")
    if not oldest or found is None or not versions.is_older(found.group(), oldest):
        return None
    return f"{RUNTIMES[name].program} {found.group()} is too old: deployer uses {oldest} or newer"


def refusal(name: str) -> Tuple[str, str]:
    """Return why deployer cannot use a runtime, and what to do instead."""
    known = RUNTIMES.get(name)
    if known is None:
        return "this version of deployer does not know it", "use the version that made the plan; or " + _ASK
    return known.refusal, known.instead


def in_order(policy: Sequence[str]) -> List[str]:
    """Return the runtimes that a policy allows, in the order in which a plan tries them.

    The policy's order applies, with two exceptions. A runtime that bundles carry and that uses user namespaces comes
    before udocker, which makes each operation on a path much slower. The host's own programs come last.
    """
    fast = {known.policy_name for known in TABLE if known.carried and known.namespaces}
    slow = min(
        (place for place, name in enumerate(policy) if name in CARRIED and name not in fast), default=len(policy)
    )

    def place(known: KnownRuntime) -> Tuple[bool, int, bool]:
        own = policy.index(known.policy_name)
        ahead = known.policy_name in fast
        return known.name == NATIVE, min(own, slow) if ahead else own, not ahead

    return [known.name for known in sorted((each for each in TABLE if each.policy_name in policy), key=place)]
