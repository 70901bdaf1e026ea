"""Whether the programs of the kit in a bundle are for the processor of a site's nodes."""

from collections.abc import Iterator

from deployer.connected.linker.index import Bundle
from deployer.contract.bundle.manifest import KIT_PREFIX
from deployer.contract.bundle.sealed_file import contents
from deployer.contract.elf import machines
from deployer.contract.rules.findings import ERROR, Finding


def foreign(bundle: Bundle, partition: str, node: str) -> Iterator[Finding]:
    """node.architecture: a program or library of the kit is for another kind of processor than the nodes.

    Args:
        partition: the partition, for the message.
        node: the processor of its nodes, by the kernel's name; empty: unknown.
    """
    manifest = bundle.manifest
    for name, segments in contents(manifest.members, manifest.segments).items():
        own = machines.of_elf(bundle.read(segments[0])) if segments and name.startswith(KIT_PREFIX) else None
        if own and node and own.kernel != node:
            text = f"it is for {own.kernel}, and the nodes of {partition} are {node}"
            yield Finding("node.architecture", ERROR, name, text, "pack the bundle again")
            return  # the others are for the same
