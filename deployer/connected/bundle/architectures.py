"""The processors that a definition is built and packed for: those of options, of sites, or of the definition.

The processor of this machine never decides.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deployer.connected.image.definition.definition import Definition
from deployer.contract.elf.machines import SUPPORTED

if TYPE_CHECKING:  # slow to import, and unused without a site
    from deployer.connected.site_profile.profile import Profile


def definitions(definition: Definition, asked: Sequence[str], profiles: "Sequence[Profile]") -> list[Definition]:
    """Return the definition for each processor.

    Args:
        asked: the processors of options, which come first.
        profiles: the sites, whose nodes come next. A site whose nodes are unknown has the definition's own list.
    """
    own: list[str | None] = [*definition.architectures] or [definition.machine]
    of_sites = [machine for profile in profiles for machine in _of_nodes(profile) or own]
    machines = dict.fromkeys(asked or of_sites or own)
    if len(machines) > 1:
        machines.pop(None, None)
    return [definition.on(machine) for machine in machines]


def fitting(profile: "Profile", machine: str) -> "Profile | None":
    """Return the profile with only the partitions whose nodes have a processor, or may have it; None if none does."""
    names = [name for name in profile.partitions if profile.partition(name)[1].architecture in (None, machine)]
    why = f"its processor is not {machine}, which this bundle is for"
    return profile.selected(names, None, why=why) if names else None


def _of_nodes(profile: "Profile") -> list[str]:
    """Return the known processors of the first partition, or of all partitions that the user has selected."""
    names = list(profile.partitions) if profile.left_out else list(profile.partitions)[:1]
    found = [profile.partition(name)[1].architecture for name in names] or [profile.architecture]
    return [machine for machine in found if machine in SUPPORTED]
