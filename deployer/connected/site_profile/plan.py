"""plan: resolve a site profile and a bundle to exact binds, environment and start options."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deployer.connected.site_profile.binds import bindmap, gpu
from deployer.connected.site_profile.launch import Way, choose, passed
from deployer.connected.site_profile.profile import Mpi, Partition, Profile, SiteScheduler, known
from deployer.connected.site_profile.staging import stagings
from deployer.contract.base import placeholders
from deployer.contract.base.errors import DeployerError, Refused, Unknown
from deployer.contract.bundle.image_launcher import OF_ABI
from deployer.contract.elf.machines import SUPPORTED
from deployer.contract.site import plan as plans
from deployer.contract.site import runtime_table
from deployer.contract.site.speed import ExpectedNetwork, Speed

#: The MPI whose ranks need no common user namespace.
_STARTS_ALONE = "intel"
#: What jobs request as a partition has it.
_SAME = ("queue", "qos", "cluster", "constraint", "account_suffix", "parallel_environment")


def make_plan(profile: Profile, bundle: str, abis: Sequence[str] = (), partition: str | None = None) -> plans.Plan:
    """Return the plan for a bundle on a partition.

    Args:
        bundle: NAME:VERSION.
        abis: the MPI families that the bundle's programs use, the image's own first; ``NO_MPI``; empty if unknown.
        partition: None: the first one in the profile.

    Raises:
        Refused: the site's MPIs belong to none of these families, no runtime can be used, or ranks start inside-out but
            the bundle has no MPI of a known family.
        UsageError: the site has no such partition.
        Unknown: the profile lacks a required fact.
    """
    without = plans.NO_MPI in abis
    name, chosen = profile.partition(partition, None if without else _fitting(profile, partition, abis))
    own = next(iter(abis), None)
    launcher = OF_ABI.get(own or "")
    inside = chosen.launch == plans.INSIDE and not without  # without MPI there is no launcher to choose
    if inside:
        chosen = chosen.model_copy(update={"mpi": []})
        if launcher is None:
            raise Refused(
                f"{bundle} cannot start inside-out on {profile.name}: no MPI of a known family was found in its image",
                "put an MPI with its launcher into the image and name it in the definition (mpi:), or pack it with "
                "--launch inside, which looks for it",
            )
    mpi = profile.mpi[chosen.mpi[0]] if chosen.mpi else None
    bound = bindmap.make(profile, name, chosen.model_copy(update={"mpi": []}) if without else chosen)
    host_mpi = _host_mpi(mpi, bound.identities) if mpi and not without else None
    if host_mpi and abis and host_mpi.abi not in abis:
        raise Refused(
            f"{bundle} cannot run on {profile.name}: the site's MPI, {host_mpi.says or host_mpi.family}, is of the "
            f"family {host_mpi.abi} ({plans.SONAMES.get(host_mpi.abi, 'unknown')}), and the bundle has programs for "
            f"{', '.join(abis)} only",
            f"build its programs for {host_mpi.abi} too, add {host_mpi.abi} to mpi in the definition, and pack again; "
            "or start the ranks with the image's MPI: --launch inside; or write mpi: [] if the ranks do without MPI",
        )
    abi = host_mpi.abi if host_mpi else own
    way = Way(launcher, "", None) if inside and launcher else choose(profile, name, chosen, mpi, abi)
    # Shared memory copies between processes work only within one user namespace; a setuid runtime makes none. Without
    # them, MPICH 5 does not start (4 does), and Open MPI is slow. For Intel MPI no clear gain was measured. Ranks
    # without MPI do not wait for each other, and a rank cannot join one that has already ended.
    join = not without and (host_mpi is None or host_mpi.family != _STARTS_ALONE)
    options = _start_options(profile, chosen, join, way)
    passed_by_launcher = [] if inside else passed(way, abi if host_mpi else None, mpi.family if mpi else None)
    scheduler = known(profile.scheduler, profile, "scheduler")
    policy = known(profile.policy, profile, "policy", "runtimes")
    return plans.Plan(
        site=profile.name,
        partition=name,
        bundle=bundle,
        workspace=known(profile.workspace, profile, "workspace"),
        python=profile.login.python,
        node=_node(profile, name, chosen),
        scheduler=scheduler.kind,
        directives=chosen.directives,
        modules=_modules(profile, chosen, mpi),
        mpi=host_mpi,
        binds=[*_mounts(profile, chosen, bound.binds), *bound.binds],
        environment=bound.environment,
        pass_environment=[*passed_by_launcher, *bound.passed],
        start_options=plans.inside_options(options, way.launcher) if inside else options,
        abi=abi,
        host=bound.host,
        account=chosen.account or scheduler.account,
        limits=plans.Limits(
            _most_nodes(profile, name, chosen),
            None if chosen.max_time == "infinite" else chosen.max_time,
            policy.account is True,
        ),
        against=_against(profile, chosen),
        namespaces=chosen.user_namespaces,
        batch=_batch(profile, name, scheduler, chosen),
        scripts=_distinct(profile.scripts, chosen.scripts),
        module_paths=_distinct(profile.module_paths, chosen.module_paths),
        mounts=tuple(path for path in _distinct(profile.mounts, chosen.mounts) if placeholders.names(path)),
        devices=tuple(chosen.devices) or gpu.devices(chosen.gpus),
        launch=plans.INSIDE if inside else plans.OUTSIDE,
        inside=_inside(profile, name, chosen, own, launcher) if launcher and own and not inside else None,
        network=_network(chosen),
        **_gpus(chosen),
    )


def _network(partition: Partition) -> ExpectedNetwork | None:
    """Return the speed that jobs of a partition are compared with; None if it is unknown."""
    own, fabric = partition.network, partition.fabric
    if own is None:
        return None
    mpi, tcp = (Speed(*each.model_dump().values()) if each else None for each in (own.expected.mpi, own.expected.tcp))
    fast = fabric.kind if fabric and fabric.kind != "ethernet" else None
    return ExpectedNetwork(mpi, tcp, own.limit, "the profile", fast)


def _most_nodes(profile: Profile, name: str, partition: Partition) -> int | None:
    """Return the largest number of nodes per job: the whole partition, unless another entry shares its queue."""
    own = {each: entry.queue for each, entry in profile.partitions.items()}
    others = {each: queue for each, (queue, _) in profile.left_out.items()}
    queues = [each if queue is None else queue for each, queue in {**others, **own}.items()]
    shared = queues.count(name if partition.queue is None else partition.queue) > 1
    return min((most for most in (partition.max_nodes, None if shared else partition.nodes) if most), default=None)


def _inside(profile: Profile, name: str, partition: Partition, abi: str, launcher: str) -> plans.InsideWay:
    """Return the changes if a user chooses the image's own launcher, for an image of the MPI family ``abi``.

    Variables of the batch system are not passed. Otherwise the launcher would detect the batch system, whose programs
    are not in the container.
    """
    bare = partition.model_copy(update={"mpi": []})
    bound = bindmap.make(profile, name, bare)
    return plans.InsideWay(
        launcher=launcher,
        abi=abi,
        modules=_modules(profile, bare, None),
        binds=[*_mounts(profile, bare, bound.binds), *bound.binds],
        environment=bound.environment,
        pass_environment=list(bound.passed),
        host=bound.host,
    )


def make_plans(profile: Profile, bundle: str, abis: Sequence[str] = ()) -> list[plans.Plan]:
    """Return the plans for a bundle on all partitions that can have one, in profile order.

    The first plan lists the other partitions with the reasons, also under their names in the batch system.

    Args:
        bundle, abis: as for ``make_plan``.

    Raises:
        Refused, Unknown: no partition can have a plan. The reason is the first partition's.
    """
    found: list[plans.Plan] = []
    against: dict[str, DeployerError] = {}
    for name in profile.partitions or [None]:
        try:
            found.append(make_plan(profile, bundle, abis, name))
        except (Refused, Unknown) as error:
            against[name or ""] = error
    if not found:
        raise next(iter(against.values()))
    reasons = {name: (profile.partitions[name].queue, error.message) for name, error in against.items()}
    return [found[0]._replace(without=by_queue(reasons, found)), *found[1:]]


def by_queue(reasons: Mapping[str, tuple[str | None, str]], others: Sequence[plans.Plan]) -> dict[str, str]:
    """Return the reasons against partitions. Queues are listed too, because users may know only these.

    Args:
        reasons: by partition, its name in the batch system if different, and the reason.
        others: the plans of the other partitions, which may have the same queue.
    """
    used = {name for plan in others for name in (plan.partition, plan.queue)}
    found = {name: reason for name, (_, reason) in reasons.items()}
    for queue, reason in reasons.values():
        if queue and queue not in used:
            found.setdefault(queue, reason)
    return found


def _gpus(partition: Partition) -> dict[str, Any]:
    """Return a plan's facts about which NUMA domain is near each GPU of a node."""
    node = partition.node
    places = [plans.GpuPlace(own, near.numa_domain) for near in (node.affinity if node else []) for own in near.gpus]
    if not (places and partition.gpus and partition.gpus.kind in gpu.ORDER):
        return {}
    return {"gpu_order": gpu.ORDER[partition.gpus.kind], "gpu_places": tuple(sorted(places))}


def _fitting(profile: Profile, partition: str | None, abis: Sequence[str]) -> str | None:
    """Return a partition's first MPI from one of the families; otherwise its first MPI, if any."""
    own = profile.partition(partition)[1].mpi
    fits = [name for name in own if not abis or profile.mpi[name].abi in abis]
    return next(iter([*fits, *own]), None)


def _distinct(*groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for group in groups for each in group))


def gpu_word(scheduler: SiteScheduler, partition: Partition) -> str | None:
    """Return the word with which a partition's jobs request GPUs; None if it has GPUs but the word is unknown."""
    word = partition.gpu_request or scheduler.gpu_request
    needed = partition.gpus and scheduler.kind not in ("hosts", "local")
    return word or (None if needed and not any(map(plans.requests_gpus, partition.directives)) else plans.NO_REQUEST)


def _batch(profile: Profile, name: str, scheduler: SiteScheduler, partition: Partition) -> plans.Batch:
    """Return the resources that jobs of a partition request besides their layout."""
    gpus = partition.gpus
    word = known(gpu_word(scheduler, partition), profile, "partitions", name, "gpu_request")
    requested = word != plans.NO_REQUEST and (gpus or partition.gpu_request)
    request = plans.GpuRequest(word, (gpus.count if gpus else 0) or 0, gpus.type if gpus else None)
    return plans.Batch(
        **{key: getattr(partition, key) for key in _SAME},
        storage=_distinct(scheduler.storage, partition.storage),
        gpus=request if requested else None,
        hosts=tuple(partition.hosts),
        exclusive=partition.exclusive is True,
        request_memory=partition.request_memory is True,
    )


def _host_mpi(mpi: Mpi, identities: Mapping[str, str]) -> plans.HostMpi:
    others = {path: identity for path, identity in identities.items() if identity != mpi.identity}
    return plans.HostMpi(
        mpi.family, mpi.version or "", mpi.prefix, mpi.library_path, mpi.says or "", mpi.identity, others
    )


def _node(profile: Profile, name: str, partition: Partition) -> plans.NodeShape:
    """Return the shape of a node. Defaults: one socket, one thread per core, all memory available to jobs."""
    group = ("partitions", name, "node")
    node = known(partition.node, profile, *group)
    return plans.NodeShape(
        sockets=node.sockets or 1,
        cores=known(node.cores, profile, *group, "cores"),
        threads_per_core=node.threads_per_core or 1,
        memory_mb=known(node.memory_mb or node.memory_total_mb, profile, *group, "memory_mb"),
        numa_domains=node.numa_domains,
        cpus=node.cpus,
        gpus=gpus_per_node(partition),
        domain_cpus=tuple(near.cpus for near in sorted(node.affinity, key=lambda near: near.numa_domain) if near.cpus),
    )


def gpus_per_node(partition: Partition) -> int | None:
    """Return the number of GPUs per node; None if it is unknown or only a driver or request shows that GPUs exist."""
    if partition.gpus:
        return partition.gpus.count
    return None if partition.node is None or partition.driver or partition.gpu_request else 0


def _modules(profile: Profile, partition: Partition, mpi: Mpi | None) -> list[str]:
    """Return the modules to load before those of the runtime: from the site, the partition and the MPI."""
    return list(_distinct(profile.modules, partition.modules, mpi.module if mpi else ()))


def _mounts(profile: Profile, partition: Partition, others: Sequence[plans.Bind]) -> list[plans.Bind]:
    """Return the binds of the site's folders, outer ones first. ``others`` come later and may be inside them."""
    folders = {*profile.mounts, *partition.mounts} - {bind.target for bind in others}
    folders = {path for path in folders if not placeholders.names(path)}
    return [plans.Bind(path, path, plans.FOLDER_OF_SITE) for path in sorted(folders)]


def _start_options(profile: Profile, partition: Partition, join: bool, way: Way) -> list[plans.StartOption]:
    """Return the ways to run that the site has and its policy allows, best first; without a container last."""
    policy = known(profile.policy, profile, "policy", "runtimes")
    steps = profile.scheduler is not None and profile.scheduler.kind == "slurm"
    unstaged = [
        plans.StartOption(
            name=f"{runtime}-{plans.SIF if partition.runtime(runtime).only_sif else plans.NOT_STAGED}",
            runtime=runtime,
            staging=plans.NOT_STAGED,
            launcher=way.launcher,
            pmi=way.pmi,
            max_nodes=None,
            join=join and runtime != plans.NATIVE and not partition.runtime(runtime).setuid,
            program=way.program,
            modules=tuple(partition.runtime(runtime).module),
            arguments=tuple(partition.runtime(runtime).arguments),
            sif=partition.runtime(runtime).only_sif,
        )
        for runtime in runtime_table.in_order(policy.runtimes)
        if runtime_table.supported(runtime) and _there(partition, runtime)
    ]
    mounts = {option: mounts_squashfs(partition, option.runtime) for option in unstaged}
    options = [each for option in unstaged for each in stagings(option, partition.filesystems, mounts[option])]
    # A copy on each node needs a batch step besides that of the ranks.
    return [option for option in options if steps or option.staging == plans.NOT_STAGED]


def _there(partition: Partition, runtime: str) -> bool:
    """Return whether nodes have a runtime, or need one that a bundle can include."""
    if runtime == plans.CHARLIECLOUD_KIT:
        version = partition.runtime(runtime_table.RUNTIMES[runtime].policy_name).version
        new = version is not None and not runtime_table.too_old(runtime, version)
        return not new and runs_kit(partition)
    carried = runtime in runtime_table.CARRIED and runs_kit(partition)
    return runtime in partition.runtimes or carried or runtime == plans.NATIVE


def runs_kit(partition: Partition) -> bool:
    """Return whether a kit may exist for a partition's nodes."""
    return partition.architecture in (None, *SUPPORTED)


def needs_namespaces(partition: Partition, runtime: str) -> bool:
    """Return whether a runtime needs user namespaces on a partition's nodes."""
    return runtime_table.needs_namespaces(runtime) and not partition.runtime(runtime).setuid


def mounts_squashfs(partition: Partition, runtime: str) -> bool | None:
    """Return whether a SquashFS file can be mounted on a partition's nodes; None if it is unknown."""
    if not runtime_table.RUNTIMES[runtime].mounts:
        return partition.fuse  # the namespace holder mounts it
    own = partition.runtime(runtime)
    return own.mounts_squashfs or own.only_sif if own.squashfs or own.sif else None


def _against(profile: Profile, partition: Partition) -> dict[str, str]:
    """Return the allowed runtimes that cannot be used on a partition, each with the reason, in plan order."""
    allowed = known(profile.policy, profile, "policy", "runtimes").runtimes
    first = {name: next(objections(partition, name), None) for name in runtime_table.in_order(allowed)}
    return {name: objection.reason for name, objection in first.items() if objection}


class Objection(NamedTuple):
    """A reason why a runtime cannot be used on a partition's nodes.

    Attributes:
        code: the code of the finding in ``check``.
        reason: a sentence that omits the runtime's name.
    """

    code: str
    reason: str


def objections(partition: Partition, runtime: str) -> Iterator[Objection]:
    """Yield the known reasons against a runtime on a partition's nodes. Plans and ``check`` both use them."""
    if not runtime_table.supported(runtime):
        yield Objection("runtime.unsupported", f"deployer cannot use it: {runtime_table.refusal(runtime)[0]}")
    if needs_namespaces(partition, runtime) and partition.user_namespaces is False:
        yield Objection("runtime.namespaces", "the nodes have no user namespaces")
    own = partition.runtime(runtime)
    age = runtime_table.too_old(runtime, own.version) if own.version else None
    if age:
        yield Objection("runtime.old", age)
    elif own.starts is False and not own.only_sif:
        last_words = f" ({own.failure})" if own.failure else ""
        nor = " or SIF file" if own.sif else ""
        yield Objection("runtime.start", f"it starts no folder{nor} of the user's own on the nodes{last_words}")
    if runtime not in partition.runtimes and runtime in runtime_table.CARRIED and not runs_kit(partition):
        yield Objection("runtime.none", f"no bundle can bring it for {partition.architecture}")
    elif runtime not in partition.runtimes and runtime not in (*runtime_table.CARRIED, plans.NATIVE):
        yield Objection("runtime.none", "it is not on the nodes, according to the profile")
