"""Findings: the results of rules, each with a stable code that documents, tests and ``--accept`` rely on.

``RULES`` is the only table of the codes that a job can report. The connected ``check`` makes findings of the same form
with its own codes.
"""

import functools
from typing import Any, Dict, List, NamedTuple

from deployer.contract.base import records
from deployer.contract.base.errors import Refused
from deployer.contract.base.json_records import Record
from deployer.contract.base.text import printable
from deployer.contract.rules import batch_words
from deployer.contract.rules.hostfiles import of_system

ERROR = "error"  # the job stops, or counts as failed
WARNING = "warning"  # the job continues; a person should know
NOTE = "note"


class Finding(NamedTuple):
    """The result of a rule.

    Attributes:
        code: the rule's code.
        severity: ERROR, WARNING or NOTE.
        subject: the host, rank or file.
        message: what was observed.
        remedy: what to do.
        job: the only job that it concerns; empty: it concerns the bundle, the site or every job.
    """

    code: str
    severity: str
    subject: str
    message: str
    remedy: str
    job: str = ""

    @property
    def about(self) -> str:
        """Return the subject, with the job unless the subject already contains it."""
        of_job = f"job {self.job}"
        return f"{self.subject} ({of_job})" if self.job and self.subject != of_job else self.subject

    def record(self) -> Record:
        """Return the finding as a JSON object, with escaped control characters in text from programs and images."""
        return {name: printable(value) for name, value in records.short(self).items()}

    def __str__(self) -> str:
        return printable(f"{self.severity} {self.code}: {self.about}: {self.message}")


class Rule(NamedTuple):
    """What a code means; the texts have ``{placeholders}``.

    Attributes:
        severity: ERROR, WARNING or NOTE.
        message: what was observed.
        remedy: what to do.
    """

    severity: str
    message: str
    remedy: str

    def about(self, code: str, subject: str, **values: Any) -> Finding:
        """Return this rule's finding about ``subject``, with the rule's ``code``."""
        return Finding(code, self.severity, subject, self.message.format(**values), self.remedy.format(**values))


_error, _warning, _note = (functools.partial(Rule, severity) for severity in (ERROR, WARNING, NOTE))
CAPTURE_NODE = "python3 deployer.pyz capture --node"
#: The codes that `run --accept` turns into warnings.
ACCEPTABLE = ("network.slow",)
#: The codes for requests that a batch system refuses.
REQUESTS = ("queue.account", "queue.feature", "queue.nodes", "queue.partition", "queue.policy", "queue.time")

RULES: Dict[str, Rule] = {
    # The result of `check` on the laptop, which the plan carries; its own codes are in docs/rules.md.
    "check.refused": _error(
        "`check` refuses the bundle for this site{by}: {codes}: {first}",
        "{remedy}; to run it anyway, use `run --force`",
    ),
    "check.accepted": _note("{message} ({rule}); accepted when the plan was made", "{remedy}"),
    "check.forced": _note("`check` refused the bundle, and `--force` overrode it: {message} ({rule})", "{remedy}"),
    # Before a job is submitted; `lint`, `pack` and `check` use the same code.
    "command.missing": _error("the command cannot start: {reason}", "{remedy}"),
    # What a job requests from its batch system, compared with the plan's limits or in the batch system's own words.
    **{code: _error("{reason}", "{remedy}") for code in REQUESTS},
    # The host step: the nodes, and a first container on each.
    "hosts.failed": _error(
        "the host step failed with exit code {exit}: {seen} of {asked} nodes reported{absent}{why}",
        "read the job's log: a node may lack the site's Python or shared folder; if it is one node, {batch.exclude}",
    ),
    "hosts.count": _error(
        "the job requested {asked} nodes, but {seen} took part: {hosts}{absent}",
        "read the job's log; if a node does not start, {batch.exclude}",
    ),
    "hosts.name": _error(
        "{count} nodes of the job have this host name",
        "ask the site to give each node its own host name; until then, for all of them but one: {batch.exclude}",
    ),
    "hosts.missing": _error(
        "the node has no {path}, which the plan binds into the container",
        "exclude this node; if all nodes lack the path, capture one of them again and make a new plan",
    ),
    "mpi.host-missing": _error(
        "the node has no {library}",
        "the site's MPI was moved, or this node lacks it: capture the site again and make a new plan",
    ),
    "mpi.host-differs": _error(
        "its {library} is {identity}, but {other} has {expected}",
        "the nodes have different MPI installations: ask the site, or exclude the node that differs",
    ),
    "mpi.host-drift": _error(
        "its {library} is {identity}, but the site was captured with {expected}",
        "the site's MPI was replaced: capture the site again, and on the laptop make a new plan (`deployer plan`) and "
        "send it (`deployer push --plan`); if it is so on some nodes only, tell the site",
    ),
    # The network step: the nodes of a job without MPI, before any container starts.
    "net.none": _error(
        "the nodes have {wanted} in common, so the ranks cannot find each other",
        "correct the interfaces in the site's profile (fabric.devices), name one with --env GLOO_SOCKET_IFNAME=NAME, "
        "or exclude a node whose interface is down; addresses must be IPv4",
    ),
    "net.unreachable": _error(
        "it cannot reach the first node at the address and port that the ranks would use: {reason}",
        "a firewall between nodes, a wrong network, or a node whose link is down: name another network with --env "
        "GLOO_SOCKET_IFNAME=NAME, or exclude the node",
    ),
    "net.port": _error(
        "nothing can listen where the ranks would find each other: {reason}",
        "another program took the port after the job had started: start the job again",
    ),
    "net.silent": _error(
        "it left no record of the network", "the site's Python did not start there: read the job's log"
    ),
    "net.count": _error(
        "{met} of {asked} nodes found each other",
        "read the job's log; the records of the nodes are hosts/*.network in the job's folder",
    ),
    "net.failed": _error("the network step failed with exit code {exit}", "read the job's log"),
    "net.world": _error(
        "the launcher started {size}, but the job requested {asked}", "see the plan's launcher and pmi"
    ),
    # The stage step: the image on its way to the nodes.
    "stage.failed": _error(
        "the image could not be staged: {reason}",
        "free space there, use fewer ranks per node, or run the installed image in place: --staging folder",
    ),
    "stage.read": _note(
        "it read the image from the shared file system, which a node before it should have sent: {reason}",
        "the job is right, but more nodes load the file system: are the ports between the nodes open?",
    ),
    # The container's root on each node, read by the first step.
    "runtime.root": _error(
        "{runtime} does not show the image's root: {said}",
        "the runtime or its engine does not work on this node: use another runtime, or exclude the node",
    ),
    "runtime.native": _note(
        "the job ran without a container: it used the host's programs and only the bundle's app, packages and job",
        "compare the result with a job of the same layout without --runtime native",
    ),
    "runtime.start": _error(
        "{runtime} cannot start the container: {said}",
        "read the message, and run `deployer.pyz capture --node` on the node; if the site has changed, make a new plan",
    ),
    "runtime.space": _error(
        "{runtime} cannot start the container, because a disk of the node is full: {said}",
        "usually /tmp or /dev/shm, with files of other jobs (`df`): exclude the node, and tell the site",
    ),
    "runtime.namespaces": _error(
        "{runtime} needs user namespaces, which the node does not allow: {said}",
        "capture a node (`{capture_node}`) and make a new plan, which uses udocker if "
        "the site's policy allows it; if the other nodes have user namespaces, exclude this one",
    ),
    # The probe step: MPI, CPUs and GPUs of each rank in the container.
    "probe.skipped": _warning("the ranks were not probed: nothing is proven", "add python3 to the image"),
    "proof.outside": _note(
        "the image has no Python, so the ranks were observed from outside the container: their MPI library, hosts and "
        "CPUs are verified; the number of ranks is the launcher's; network provider, thread level and a first "
        "MPI_Allreduce were not checked",
        "add python3 to the image for a full proof before the payload",
    ),
    "probe.failed": _error(
        "the probe step failed with exit code {exit}{why}",
        "read the job's log; the last lines of each rank are in ranks/ in the job's folder",
    ),
    "probe.silent": _error(
        "{count} of {asked} ranks left no record", "their containers did not start: read the job's log"
    ),
    "probe.unfinished": _error(
        "it stopped while {stage}; last output: {last}",
        "read ranks/ in the job's folder; a hang in MPI_Init points to the fabric or to the start option's PMI",
    ),
    "mpi.singletons": _error(
        "{count} ranks were started, but each one is rank 0 of 1",
        "the launcher and the MPI library use different kinds of PMI: see {batch.pmi}",
    ),
    "mpi.alone": _error(
        "its MPI library cannot find the other ranks, so each rank runs alone: {reason}", "see {batch.pmi}"
    ),
    "mpi.unset": _error(
        "its program that uses MPI was started without {names}, which the launcher gave to the rank: each such rank "
        "runs alone, as rank 0 of 1",
        "keep PMI_*, PMIX_* and SLURM_* where the job's script starts the program: look for `env -i`, `unset`, and "
        "loops over `env`",
    ),
    "mpi.static": _error(
        "{path} has an MPI library linked into it, so the host's {library} is not used",
        "link the program to a shared MPI library (libmpi.so.12, or libmpi.so.40 of Open MPI)",
    ),
    "mpi.twice": _error(
        "a process has several MPI libraries mapped: {paths}. Only one of them is initialized",
        "a library or module of the image finds another MPI than the program: look for its RPATH, or for a second MPI",
    ),
    "mpi.world-size": _error(
        "MPI_COMM_WORLD has {size}, but the job requested {asked}", "see the plan's launcher and pmi"
    ),
    "mpi.unmapped": _error(
        "no MPI library was found in the container: {reason}",
        "the plan's binds or its LD_LIBRARY_PATH do not match this site: capture the site again and make a new plan",
    ),
    "mpi.not-host-library": _error(
        "it uses {path} ({identity}), not the host's {library} ({expected})",
        "the image's own library is found before the bound one: a different soname, an RPATH in the "
        "image, or a missing bind; LD_DEBUG=libs in the program's environment shows each search",
    ),
    "mpi.version": _error(
        "MPI_Get_library_version returns {says!r}, but the plan expects {expected!r}",
        "capture the site again and make a new plan",
    ),
    "mpi.provider": _error(
        "libfabric uses the provider {provider!r}, but the plan expects {expected!r}",
        "the fast network is not used: check that the provider's library and devices are bound",
    ),
    "mpi.allreduce": _error(
        "MPI_Allreduce returned a wrong result: {wrong}",
        "MPI library, launcher and fabric do not match: try FI_PROVIDER=tcp in the profile's environment to test the "
        "fabric",
    ),
    "network.slow": _error(
        "the network from {start} to {end} is slow: {measured} (4 MiB and 8 bytes), less than {limit:g} of the "
        "expected {expected}; {cause}",
        "{remedy}; to run on this network, --accept network.slow",
    ),
    "limits.shm": _error(
        "{folder} of its node had {free} bytes free; the node's {ranks} ranks send messages to each other through it",
        "remove what other jobs have left there (`ls -l {folder}` on the node), or exclude the node",
    ),
    "limits.process": _error(
        "its processes were limited to {value} {limit} (`ulimit -{option}`)",
        "batch systems pass on limits of the shell that submits: correct `ulimit` in its login files, or ask the site",
    ),
    "limits.memlock": _error(
        "a process may lock {limit} bytes of memory, but {provider} needs at least {needed} for its buffers",
        "ask the site for `ulimit -l unlimited` in jobs (Slurm: PropagateResourceLimitsExcept=MEMLOCK, LimitMEMLOCK of "
        "slurmd)",
    ),
    "gpu.unusable": _error(
        "the GPUs cannot be used in the container: {reason}",
        "see the plan's binds of the driver's libraries and devices, and check that the job requests GPUs (directives)",
    ),
    "itex.inactive": _error(
        "the bundle has Intel's extension for TensorFlow, but it is not active: {reason}",
        "its version must match TensorFlow's, and the CPU needs AVX2; TensorFlow's messages are in the job's log",
    ),
    "layout.pinning": _warning("{threads} threads share {cpus} CPUs", "see {batch.cpus}"),
    "layout.numa": _note(
        "{reason}", "change the ranks per node or the threads per rank: memory of another NUMA domain is slower"
    ),
    "layout.crossing": _warning(
        "ranks {ranks} run across NUMA domains, although their CPUs would fit into one",
        "see how job.sh pins the ranks; Slurm knows sockets, but not the NUMA domains within them",
    ),
    "layout.overlap": _warning("ranks {ranks} share CPUs {cpus}", "see {batch.cpus}"),
    # The payload: the libraries that its processes loaded, and how they ended.
    "payload.mpi-unseen": _warning(
        "no process of the payload loaded an MPI library",
        "this is correct for a payload without MPI; otherwise the program ended before it was observed",
    ),
    "net.alone": _error(
        "none of the {count} ranks was connected to another one: each one computed alone",
        "initialize with the environment: torch.distributed.init_process_group() with init_method env://, "
        "jax.distributed.initialize(), or Horovod; RANK, WORLD_SIZE and MASTER_ADDR are set; Lightning's Trainer and "
        "Fabric need num_nodes and devices of the job",
    ),
    "net.sockets": _warning(
        "NCCL uses sockets between nodes, although they have {fast}",
        "read ranks/nccl-*.log in the job's folder; NCCL needs verbs (the image's libibverbs, /dev/infiniband), "
        "or on Slingshot and Omni-Path a network plugin in the image (aws-ofi-nccl)",
    ),
    "payload.failed": _error("{how}", "the traceback or message is in the job's log, which `logs` prints"),
    "payload.out-of-memory": _error(
        "{how}", "use fewer ranks per node, a smaller batch, or more nodes; --memory MIB asks for more memory per rank"
    ),
    "payload.read-only": _error(
        "it tried to write to the image, which is read-only: {line}",
        "write to the job's folder: /deployer/job, the default working folder; or set `workdir` in the job, or bind a "
        "folder with --bind SRC:DST",
    ),
    "payload.no-network": _error(
        "it tried to reach a host that the node cannot reach: {line}",
        "nodes have no internet: on the laptop, `deployer rehearse BUNDLE.tar` names what the program downloads, and "
        "the lines for bundle.yaml; or --bind a folder with the files; if the name is a node's, check MASTER_ADDR",
    ),
    "payload.result": _warning(
        "the file that DEPLOYER_RESULT names is not valid JSON: {reason}", "write one JSON object to it"
    ),
    # The image, examined when a step failed.
    "image.gone": _error(
        "the image was removed while the job used it: {image}",
        "install or push the bundle again; `gc`, and `remove` without --force, keep images that a job uses",
    ),
    "image.incomplete": _error(
        "{gone}", "install or push the bundle again, which creates the image again; the site removes old files there"
    ),
    # The job as a whole.
    "job.unfinished": _error(
        "the job ended before it could write its result{why}",
        "causes: the first node has no Python or does not see the job's folder, a full disk, or the batch system "
        "killed it; see the end of the job's log",
    ),
    "job.ended": _error("{why}", "{remedy}"),
    "job.space": _error(
        "the disk with the job's folder is full, so evidence and log may be incomplete: {reason}",
        "free space (`gc`, `remove`, old jobs and checkpoints), or request a larger quota; then run the job again",
    ),
    "job.time-limit": _error(
        "the job reached its time limit of {limit}{why}",
        "set a longer time limit (--time), or save checkpoints and continue in further jobs (--again)",
    ),
    "job.stopped": _error(
        "the job received SIG{signal} after {seconds} s: its owner or the site cancelled it{sure}",
        "run it again, unless that was intended; `status` shows the batch system's state",
    ),
    "job.launcher": _error(
        "the node has no {launcher}, which starts the ranks",
        "see the MPI's module and launcher in the site's profile; a new capture finds them",
    ),
    "job.setup": _error(
        "`{command}` failed on the node, which the site's profile requires before modules are loaded",
        "correct scripts and module_paths in the site's profile, and make a new plan",
    ),
    "job.module": _error(
        "`module load {module}` failed on the node",
        "see `module avail`; if the name has changed, capture the site again and make a new plan",
    ),
}


def finding(code: str, subject: str, scheduler: str = "", **values: Any) -> Finding:
    """Return the finding of rule ``code`` about ``subject``; ``values`` fill the placeholders of its texts.

    Args:
        scheduler: the site's batch system, whose words replace ``{batch...}``; if empty, words that apply to all.
    """
    batch = batch_words.words(scheduler)
    return RULES[code].about(code, subject, batch=batch, capture_node=batch.on_node % CAPTURE_NODE, **values)


def refused(item: Finding) -> Refused:
    """Return a finding as the error that stops a command; it contains the code for ``explain``."""
    return Refused(coded(item.message, item.code), item.remedy)


def coded(message: str, code: str) -> str:
    """Return a message with its code, for use with `explain`."""
    return f"{message} ({code})"


def drifted(subject: str, path: str, identity: str, expected: str) -> Finding:
    """Return the finding about a library that has changed since the capture.

    Most updates of system libraries are compatible, so for these it is a warning.
    """
    drift = finding("mpi.host-drift", subject, library=path, identity=identity, expected=expected)
    return drift._replace(severity=WARNING) if of_system(path) else drift


def errors(findings: List[Finding]) -> List[Finding]:
    """Return the findings that stop a job or make it fail."""
    return [item for item in findings if item.severity == ERROR]
