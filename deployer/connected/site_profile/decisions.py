"""Decisions about a captured site that only a person can make, as a short profile that extends the capture.

Each decision has a value that makes the profile valid, and the reason why a person must review it. Captured facts are
never repeated: a new capture replaces them and leaves this file unchanged.
"""

import json
from typing import Any, NamedTuple

import yaml

from deployer.connected.site_profile import gaps
from deployer.connected.site_profile.plan import gpu_word
from deployer.connected.site_profile.profile import Profile
from deployer.contract.site import runtime_table
from deployer.contract.site.plan import CHARLIECLOUD_KIT, NO_REQUEST

#: Why a person must review the request for GPUs.
_GPU_REQUEST = (
    "the batch system lists no GPUs on these nodes, which have some: the word with which jobs request them "
    "(docs/batch.md), or none: jobs see them without a request"
)


class Decision(NamedTuple):
    """A decision.

    Attributes:
        place: the keys in the profile.
        value: the value that was written.
        why: the points to consider, in one line.
    """

    place: tuple[str, ...]
    value: Any
    why: str

    @property
    def key(self) -> str:
        return ".".join(self.place)


class Access(NamedTuple):
    """How the capture connected to the site.

    Attributes:
        host: the login host for ssh.
        python: the site's Python.
        workspace: the root folder that the user chose, or None.
    """

    host: str
    python: str
    workspace: str | None = None


def decide(profile: Profile, access: Access) -> list[Decision]:
    """Return the decisions for a capture."""
    room = ", ".join(
        f"{path} ({_room(each.size_mb)})"
        for path, each in profile.login.filesystems.items()
        if each.size_mb and each.shared is not False and each.type != "tmpfs"
    )
    where = _sentence(f"a folder of all nodes with room for images; found: {room}")
    decisions = [
        Decision(("workspace",), access.workspace or "~/deployer", where),
        Decision(("policy", "runtimes"), *_runtimes(profile)),
    ]
    for name, partition in profile.partitions.items():
        if profile.mpi and partition.node and partition.source:
            others = ", ".join(profile.mpi)
            why = f"the MPI of its jobs, or a list of those to choose from; found: {others}; null: the image's own"
            decisions.append(Decision(("partitions", name, "mpi"), next(iter(profile.mpi)), why))
        if profile.scheduler and gpu_word(profile.scheduler, partition) is None:
            decisions.append(Decision(("partitions", name, "gpu_request"), NO_REQUEST, _GPU_REQUEST))
    return decisions


def lacking(profile: Profile) -> list[Decision]:
    """Return an example for each fact that plans need but neither the capture nor a decision has."""
    return [
        Decision(tuple(map(str, gap.place)), gap.example, _sentence(f"an example, not a fact: {gap.message}"))
        for gap in gaps.find(profile)
        if gap.place
    ]


def text(name: str, extends: str, access: Access, decisions: list[Decision], heading: str) -> str:
    """Return the profile with these decisions. A comment gives the reason for each."""
    login = {"host": access.host, **({} if access.python == "python3" else {"python": [access.python, "python3"]})}
    lines = [f"# {heading}", "format: 1"]
    lines += [f"{key}: {_flow(value)}" for key, value in (("name", name), ("extends", extends), ("login", login))]
    tree: dict[str, Any] = {}
    for each in decisions:
        inner = tree
        for word in each.place[:-1]:
            below = inner.setdefault(word, {})
            if isinstance(below, Decision):  # an example with further facts: one line per key
                below = {key: Decision((*below.place, key), value, below.why) for key, value in below.value.items()}
                inner[word] = below
            inner = below
        inner[each.place[-1]] = each
    return "\n".join([*lines, *_lines(tree, "")]) + "\n"


def _lines(tree: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for key, value in tree.items():
        if isinstance(value, Decision):
            lines += [f"{indent}# decide: {value.why}", f"{indent}{_key(key)}: {_flow(value.value)}"]
        else:
            lines += [f"{indent}{_key(key)}:", *_lines(value, indent + "  ")]
    return lines


def _runtimes(profile: Profile) -> tuple[list[str], str]:
    """Return the runtimes to allow, and the findings about them."""
    there = gaps.runtimes(profile)
    usable = [name for name in there if runtime_table.supported(name)]
    namespaces = [each.user_namespaces for each in profile.partitions.values()] or [profile.login.user_namespaces]
    carried = [runtime_table.RUNTIMES[CHARLIECLOUD_KIT].policy_name] if all(namespaces) else ["udocker"]
    why = f"what users may use; found: {', '.join(there) or 'none'}; bundles can bring charliecloud and udocker"
    return list(dict.fromkeys([*usable, *carried])), why


def _room(megabytes: int) -> str:
    return f"{megabytes / 1024:.0f} GiB" if megabytes >= 1024 else f"{megabytes} MiB"


def _sentence(words: str) -> str:
    return words.removesuffix("; found: ").rstrip("; ")


def _key(word: str) -> str:
    """Return a key, quoted if YAML would misread it, for example a partition named ``on``."""
    try:
        return word if yaml.safe_load(word) == word else _flow(word)
    except yaml.YAMLError:
        return _flow(word)


def _flow(value: Any) -> str:
    """Return a value as JSON, which is valid YAML."""
    return json.dumps(value, ensure_ascii=False)
