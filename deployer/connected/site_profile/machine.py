"""The model of machines in a site profile: what login nodes and compute nodes have, and the shape of a node."""

import datetime as dt
import re
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from deployer.connected.ground.yaml_model import KeyPath, Model, Problems, form
from deployer.connected.site_profile import forms
from deployer.contract.site import speed

#: Runtime options for which a profile has its own keys, with or without a value; ``--`` would end the options.
_OURS = re.compile(
    r"-[Bbev]|--(bind|mount|volume|tmpfs|env|env-file|set-env|pass|nv|nvccli|rocm|overlay|home|device|gpus)?(=|$)"
)
#: The ways to start a file that make no copy of it.
_MOUNTED = ("kernel", "fuse")


class FactSource(Model):
    """Where facts come from.

    Attributes:
        kind: captured on the site, from a document, or unverified.
        where: the command, the document, or the person: ``capture on login1``.
        date: the day on which the facts were true, ``2026-11-23``; left out if the document has no date.
    """

    kind: Literal["captured", "document", "unverified"]
    where: str
    date: dt.date | None = None


class SiteRuntime(Model):
    """A container runtime on the site's nodes.

    Attributes:
        version: its version: ``1.3.4``.
        module: the module that provides it, ``apptainer/1.3``, if it is not in PATH, or several modules, in order.
        arguments: further words of its command line, before the image, each an option with its value
            (``--no-mount=hostfs``), but not for mounts, variables or devices.
        setuid: it has a setuid program, so that it needs no user namespaces (Apptainer, Singularity).
        starts: a folder of the user's own started as an image; with Apptainer, with targets that it lacks (tried).
        squashfs: how it starts a SquashFS file of the user's own: mounted, or unpacked first (Apptainer, Singularity;
            tried).
        sif: how it starts a SIF file of the user's own, as ``squashfs``; tried if folders do not start.
        failure: its last words if no folder started (tried): ``cannot find UID/GID for user``.
    """

    version: str | None = None
    module: forms.Names = []
    arguments: list[Annotated[str, form(r"^-.*$", "one option, with its value after =: --no-mount=hostfs")]] = []
    setuid: bool | None = None
    starts: bool | None = None
    squashfs: Literal["kernel", "fuse", "unpacked", "refused"] | None = None
    sif: Literal["kernel", "fuse", "unpacked", "refused"] | None = None
    failure: str | None = None

    @field_validator("arguments")
    @classmethod
    def _are_not_ours(cls, arguments: list[str]) -> list[str]:
        """Reject options that add what a plan lists and `check` verifies: mounts, variables, devices."""
        found: list[tuple[KeyPath, str]] = [
            ((str(at),), f"{word!r} is not valid: use mounts, environment or devices")
            for at, word in enumerate(arguments)
            if _OURS.match(word)
        ]
        if found:
            raise Problems(found)
        return arguments

    @property
    def mounts_squashfs(self) -> bool:
        """Return whether it is known to mount SquashFS files. Unpacking would give each rank its own copy."""
        return self.squashfs in _MOUNTED

    @property
    def only_sif(self) -> bool:
        """Return whether it is known to mount SIF files, and to start no folder."""
        return self.starts is False and self.sif in _MOUNTED


class Fabric(Model):
    """The network for MPI.

    Attributes:
        kind: the kind of network.
        provider: libfabric's provider to use: ``psm2``, ``verbs``, ``tcp``.
        providers: all providers of libfabric on the nodes: ``[psm2, tcp]``.
        devices: the kernel's names of the devices: ``hfi1_0``, ``mlx5_0``, ``cxi0``, ``eth0``.
        libraries: paths of the user-space libraries by soname: ``libpsm2.so.2: /usr/lib64/libpsm2.so.2``. They are
            psm2, verbs, UCX, cxi and xpmem; for GPUs, the plug-ins of NCCL and RCCL (``libnccl-net.so``), GDRCopy, and
            the site's own NCCL, RCCL or oneCCL.
        environment: variables that the site sets for its libraries for GPUs: ``NCCL_CROSS_NIC: "1"``.
        source: where these facts come from.
    """

    variables = frozenset({"environment"})

    kind: Literal["ethernet", "omni-path", "infiniband", "slingshot"] | None = None
    provider: str | None = None
    providers: list[str] = []
    devices: list[str] = []
    libraries: dict[str, forms.Absolute] = {}
    environment: dict[str, str] = {}
    source: FactSource | None = None


class LinkSpeed(Model):
    """The speed of the connection between two nodes that nothing else uses.

    Attributes:
        latency_us: microseconds for 8 bytes in one direction: ``1.9``.
        bandwidth_mb_s: 10^6 bytes per second for messages of 4 MiB: ``23900``.
    """

    latency_us: Annotated[float, Field(ge=0.01, le=10**7)]
    bandwidth_mb_s: Annotated[float, Field(ge=0.01, le=10**7)]


class ExpectedSpeeds(Model):
    """The expected speed, by what the ranks send through.

    Attributes:
        mpi: the site's MPI.
        tcp: TCP, for jobs without MPI.
    """

    mpi: LinkSpeed | None = None
    tcp: LinkSpeed | None = None


class NodeNetwork(Model):
    """The speed of the network between nodes, which jobs on several nodes are compared with.

    Attributes:
        expected: the speed without a container; `doctor` on the site measures it.
        limit: the part of it below which a job stops: ``0.5``.
        source: where these facts come from.
    """

    expected: ExpectedSpeeds
    limit: Annotated[float, Field(ge=0.01, le=1)] = speed.LIMIT
    source: FactSource


class Driver(Model):
    """The driver of the GPUs.

    Attributes:
        kind: the vendor. AMD's and Intel's are parts of the kernel: their libraries (ROCm, level-zero) are the image's,
            and Intel's the site's if the image has none.
        version: its version: ``535.104.05``.
        libraries: paths of its libraries by soname: ``libcuda.so.1: /usr/lib64/libcuda.so.1``.
        smi: the path of NVIDIA's program: ``/usr/bin/nvidia-smi``.
        source: where these facts come from.
    """

    kind: forms.GpuVendor
    version: str | None = None
    libraries: dict[str, forms.Absolute] = {}
    smi: forms.Absolute | None = None
    source: FactSource | None = None


class Filesystem(Model):
    """A file system, by the path of its folder.

    Attributes:
        type: its type, as the kernel names it: ``lustre``.
        shared: all nodes see the same files.
        size_mb: its size in MiB: ``1048576`` is 1 TiB.
        inodes: how many files and folders it can have in all: ``500000000``.
        quota_mb: the most that a user's files may have, in MiB: ``102400``.
        quota_inodes: how many files and folders a user may have: ``1000000``.
        purge_days: days after which unused files are removed: ``30``.
        source: where these facts come from.
    """

    type: str | None = None
    shared: bool | None = None
    size_mb: int | None = None
    inodes: int | None = None
    quota_mb: int | None = None
    quota_inodes: int | None = None
    purge_days: int | None = None
    source: FactSource | None = None


class Machine(Model):
    """Facts that equal machines have in common.

    Attributes:
        architecture: the kernel's name of the architecture.
        os: the distribution: ``Rocky Linux 8.9``.
        kernel: the kernel's release: ``4.18.0-513.el8.x86_64``.
        page_size: bytes of a memory page, on other architectures than x86_64: ``65536``.
        glibc: the version of glibc: ``2.28``.
        libzstd: the version of libzstd: ``1.4.4``.
        pythons: versions of Python interpreters by path: ``/usr/bin/python3: 3.6.8``.
        user_namespaces: a user without privileges can make user namespaces (tested by making one).
        fuse: a user without privileges can mount with FUSE (tested by mounting).
        runtimes: container runtimes on the machine, by name: ``apptainer``.
        launchers: programs that start ranks: ``[srun, mpiexec.hydra]``.
        fabric: the network for MPI.
        network: its speed.
        devices: devices that a job needs and that a runtime does not show by itself, as paths or CDI names:
            ``/dev/kfd``.
        driver: the driver of the GPUs.
        filesystems: file systems by path: ``/scratch``.
        files: facts of system libraries that MPI, fabric or driver need, by path; capture writes them.
        links: targets of symbolic links to them, by path; capture writes them.
    """

    architecture: forms.Architecture | None = None
    os: str | None = None
    kernel: str | None = None
    page_size: forms.Count | None = None
    glibc: str | None = None
    libzstd: str | None = None
    pythons: dict[str, str] = {}
    user_namespaces: bool | None = None
    fuse: bool | None = None
    runtimes: dict[forms.RuntimeName, SiteRuntime] = {}
    launchers: list[str] = []
    fabric: Fabric | None = None
    network: NodeNetwork | None = None
    devices: list[forms.Device] = []
    driver: Driver | None = None
    filesystems: dict[forms.Absolute, Filesystem] = {}
    files: dict[forms.Absolute, forms.FileFacts] = {}
    links: dict[forms.Absolute, str] = {}


class NodeGpus(Model):
    """The GPUs of a node.

    Attributes:
        kind: the vendor.
        model: the model's name: ``Tesla V100-SXM2-16GB``.
        type: the batch system's word for the model in requests, if it requires one: ``v100``.
        count: GPUs per node, as the batch system counts them: ``4``.
        memory_mb: memory per GPU in MiB: ``16384``.
        capability: NVIDIA's compute capability: ``7.0``.
        target: AMD's name of the architecture: ``gfx90a``.
    """

    kind: forms.GpuVendor | None = None
    model: str | None = None
    type: forms.BatchName | None = None
    count: forms.Count | None = None
    memory_mb: forms.Count | None = None
    capability: str | None = None
    target: Annotated[str, form(r"^gfx[0-9a-f]{3,5}$", "AMD's name of an architecture: gfx90a")] | None = None


class Affinity(Model):
    """What is near a NUMA domain.

    Attributes:
        numa_domain: the domain's number, counted from 0: ``1``.
        gpus: the numbers of its GPUs, as the driver counts them: ``[2, 3]``.
        cpus: the CPUs that jobs may use, by the kernel's numbers: ``1-51,105-155``. PALS binds ranks to them.
    """

    numa_domain: Annotated[int, Field(ge=0)]
    gpus: list[Annotated[int, Field(ge=0)]] = []
    cpus: Annotated[str, form(r"^\d+(-\d+)?(,\d+(-\d+)?)*$", "numbers and ranges: 1-51,105-155")] | None = None


class Cpu(Model):
    """The processors of a node.

    Attributes:
        model: the model's name: ``Intel(R) Xeon(R) Platinum 8174 CPU @ 3.10GHz``.
        flags: instruction sets by the kernel's names, of those that `check` knows: ``[avx2, avx512f]``.
    """

    model: str | None = None
    flags: list[str] | None = None


class NodeHardware(Model):
    """The shape of a node.

    Attributes:
        sockets: processors (sockets) per node: ``2``.
        cores: physical cores per node: ``48``.
        threads_per_core: hardware threads per core: ``2``.
        numa_domains: NUMA domains per node: ``2``.
        cpus: CPUs per node that the scheduler counts, if they are not the hardware threads: ``48``.
        memory_mb: memory per node that a job may use, in MiB: ``81920``.
        memory_total_mb: all memory of a node, in MiB: ``96000``.
        cpu: the processors.
        gpus: the GPUs.
        affinity: what is near each NUMA domain. Ranks that have a GPU each then get the nearest.
    """

    sockets: forms.Count | None = None
    cores: forms.Count | None = None
    threads_per_core: forms.Count | None = None
    numa_domains: forms.Count | None = None
    cpus: forms.Count | None = None
    memory_mb: forms.Count | None = None
    memory_total_mb: forms.Count | None = None
    cpu: Cpu | None = None
    gpus: NodeGpus | None = None
    affinity: list[Affinity] = []

    @field_validator("affinity")
    @classmethod
    def _is_whole(cls, affinity: list[Affinity], info: ValidationInfo) -> list[Affinity]:
        """Check that each GPU of the node is near one domain, and that each domain is listed once."""
        domains, listed = [each.numa_domain for each in affinity], [gpu for each in affinity for gpu in each.gpus]
        gpus, known = info.data.get("gpus"), info.data.get("numa_domains")
        found: list[tuple[KeyPath, str]] = []
        if len(set(domains)) < len(domains):
            found.append(((), "a NUMA domain is listed twice"))
        if known is not None and domains and max(domains) >= known:
            found.append(((), f"domain {max(domains)} does not exist: numa_domains is {known}, and they count from 0"))
        if listed and gpus and gpus.count and sorted(listed) != list(range(gpus.count)):
            numbers = ", ".join(map(str, range(gpus.count)))
            found.append(((), f"gpus must list each of the node's GPUs once: {numbers}"))
        if found:
            raise Problems(found)
        return affinity
