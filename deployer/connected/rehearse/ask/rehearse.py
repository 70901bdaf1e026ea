"""Rehearse a job: install the bundle in a private root folder, and run the site's program on a simulated site."""

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.ground import caches
from deployer.connected.ground.locked_folder import REHEARSAL, LockedFolder
from deployer.connected.rehearse.ask.crossing import LOG
from deployer.connected.rehearse.ask.request import RehearsalRequest, job_of
from deployer.connected.rehearse.world import doors, far_launcher, far_shell, limits, machine, own_paths, simulated_plan
from deployer.connected.rehearse.world.namespaces import SYSCTL
from deployer.connected.rehearse.world.node import OUT
from deployer.connected.rehearse.world.simulated_plan import SITE, RehearsedLayout
from deployer.connected.rehearse.world.world import END, NODE, READY, WorldOrder, WorldReport
from deployer.contract.base import dialogue, json_records
from deployer.contract.base.errors import BY_EXIT_CODE, DeployerError, Refused
from deployer.contract.base.text import counted
from deployer.contract.bundle import plan_update
from deployer.contract.bundle.job import Job
from deployer.contract.bundle.manifest import Manifest
from deployer.contract.bundle.plan_update import PlanUpdate
from deployer.contract.proof import evidence
from deployer.contract.site.plan import NOT_STAGED, Plan
from deployer.system import files, process, workers
from deployer.system.observe import observations
from deployer.system.trust.verify import begin, opened

#: Time limits in seconds for the site's program: for everything but an install, and for an install.
_QUICK, _INSTALL = 120.0, 7200.0
#: Seconds for a job to end after its time limit, and for a simulated site to begin and end.
_PATIENCE, _AROUND = 30, 60.0 + READY + END
#: The number of earlier job folders to keep, and the bytes of installed images. The longest unused are removed.
_KEPT_JOBS, _CAP = 5, 8 * 1024**3
_CH_RUN = "ch-run"
_WITHOUT_LAUNCHER = (
    "rehearse one rank: --ranks 1; or write `mpi: []` in bundle.yaml if the ranks do without MPI; or install the "
    "launcher of its MPI in the image (Debian: mpich, or openmpi-bin), and python3"
)
_TOOL, _DIGITS = "deployer.pyz", 16
_JOB = ("/bin/bash", "-l", "./job.sh")
#: Files of a job's folder that run outside the container, which nothing can change during the job; and files that
#: job.sh writes, which the nodes cannot change.
_JOB_PROGRAMS, _SCRIPTS_OWN = ("job.sh", "agent", "job.json"), ("environment", "machines")
#: Where distributions and Python's certifi keep CA certificates.
_CERTIFICATES = (
    *("etc/ssl/certs/ca-certificates.crt", "etc/ssl/ca-bundle.pem", "etc/pki/tls/certs/ca-bundle.crt"),
    *("etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "opt/*/lib/python3*/site-packages/certifi/cacert.pem"),
    *(f"usr/{place}/python3*/*-packages/certifi/cacert.pem" for place in ("lib", "local/lib")),
)
#: The folder with the observers' records, beside the private root folder.
_OBSERVED = "observed"
_MAX_RESULT = 64 * 1024 * 1024
#: The bytes of the job's log to keep if the job filled the disk.
_MAX_LOG = 64 * 1024 * 1024


class SiteTools(NamedTuple):
    """The programs for a simulated site.

    Attributes:
        pyz: the site's program.
        ch_run: the program that starts containers.
    """

    pyz: bytes
    ch_run: Path


class Online(NamedTuple):
    """The internet of a job, for `fetch`.

    Attributes:
        doors: the socket of the program that answers for the internet.
        home: the folder that is the job's HOME.
        certificates: a file in ``home`` with the CA certificates that the job's programs must trust.
        environment: variables of the job.
        until: end the job when it prints this text; empty: never.
    """

    doors: str
    home: str
    certificates: str
    environment: Mapping[str, str]
    until: str = ""


class Rehearsed(NamedTuple):
    """The result of a rehearsal.

    Attributes:
        folder: the job's folder.
        kernel: the folder with the observers' records. The job could not write there.
        layout: the layout of the ranks.
        job: the job.
        manifest: the bundle's manifest.
        report: what happened on the simulated site.
        result: the job's result.json; None: the job wrote none.
        memory_mb: MiB that a rank may use; None: no limit.
        request: the user's request.
    """

    folder: Path
    kernel: Path
    layout: RehearsedLayout
    job: Job
    manifest: Manifest
    report: WorldReport
    result: Mapping[str, Any] | None
    memory_mb: int | None
    request: RehearsalRequest


#: Shows a bar while a block runs, as ``progress.far_bar`` does.
_Bar = Callable[[str], contextlib.AbstractContextManager[Callable[[int, int], None] | None]]


def no_bar(what: str) -> contextlib.nullcontext[None]:
    """Show nothing while a block runs."""
    del what
    return contextlib.nullcontext()


def rehearse(
    request: RehearsalRequest, tools: SiteTools, tell: Any, bar: _Bar = no_bar, online: Online | None = None
) -> Rehearsed:
    """Run a job on a simulated site to its end or its time limit.

    Args:
        tools: the programs for the simulated site.
        tell: receives progress messages.
        bar: shows the progress of installs.
        online: the internet of the job, which has one node; None: there is none.

    Raises:
        UsageError: the bundle has no such job, or a number is invalid.
        Refused: the site's program refuses the job.
        MissingTool: this machine cannot simulate a site.
    """
    with opened(request.bundle) as stream:
        manifest = begin(stream, request.bundle).manifest
    job = job_of(manifest, request)
    if request.site and (lacking := job.lacks_gpus(request.site.node.gpus)):
        hint = "rehearse it for a partition with GPUs (--partition)"
        raise Refused(f"job {job.name}: {lacking} of {request.site.partition} at {request.site.site}", hint)
    cores = workers.cores()
    wanted = simulated_plan.layout(job, request.ranks, cores)
    memory_mb = job.memory
    if memory_mb is None and request.site:
        memory_mb = request.site.node.memory_mb // job.ranks_per_node
    root = caches.REHEARSE.folder / "root"
    own_paths.check_binds(request.binds, [str(tools.ch_run)])
    with LockedFolder(REHEARSAL, root.parent) as made, open(root.parent / "used", "w") as used:
        world = Path(made)
        site = _Site(root, world, tools, bar)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
            site.remove_old()
        fcntl.flock(used, fcntl.LOCK_SH)
        site.bring_tool()
        for each in request.others:
            site.install(each, tell)
        installed = site.install(request.bundle, tell)
        with _alone(root.parent / "lock"):
            site.take(manifest, wanted, request, installed, memory_mb)
            folder = site.prepare(request, wanted, manifest, job, installed, online)
        where = counted(wanted.nodes, "simulated node")
        tell(f"running {job.name} on {where}, {request.seconds} s at most")
        layered = _layered(Path(installed["folder"]), site.carriers(folder), request.site)
        report = site.run(request, wanted, folder, memory_mb, layered, online)
    if report.stopped.startswith(limits.FILLED):
        _clear(folder)
    return Rehearsed(
        folder=folder,
        kernel=_observed(root, folder),
        layout=wanted,
        job=job,
        manifest=manifest,
        report=report,
        result=_result(folder),
        memory_mb=memory_mb,
        request=request,
    )


def _observed(root: Path, folder: Path) -> Path:
    """Return the folder for the records of a job's observers."""
    return root.parent / _OBSERVED / folder.name


class _Site:
    """The site's program with the private root folder."""

    def __init__(self, root: Path, world: Path, tools: SiteTools, bar: _Bar) -> None:
        self._root = root
        self._bar = bar
        self._world = world
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The tool has its own folder, because another version of deployer may rehearse at the same time.
        self._tool = root / dialogue.TOOLS / hashlib.sha256(tools.pyz).hexdigest()[:_DIGITS] / _TOOL
        self._pyz, self._ch_run = tools
        for name in ("bin", "home", "sockets", "site", "machine"):
            (world / name).mkdir()
        own = world / "bin"
        _program(own / "ssh", Path(far_shell.__file__))
        _program(own / "mpiexec.hydra", Path(far_launcher.__file__))
        (own / _CH_RUN).write_text(f'#!/bin/sh\nexec {shlex.quote(str(tools.ch_run))} "$@"\n')
        (own / _CH_RUN).chmod(0o755)
        # Commands here have already compiled the tool's bytecode.
        (world / "home" / ".cache").mkdir()
        (world / "home" / ".cache" / "deployer").symlink_to(own_paths.bytecode().parent.absolute())

    def bring_tool(self) -> None:
        """Write the site's program. Other rehearsals remove it unless this one holds the lock."""
        if not self._tool.is_file():
            files.write_bytes(str(self._tool), self._pyz, 0o777)

    def install(self, bundle: str, tell: Any) -> dict[str, Any]:
        """Install a bundle, quickly if it is already installed. Rehearsals of the same image take turns."""
        tell(f"installing {bundle}")
        with opened(bundle) as stream:
            image = begin(stream, bundle).manifest.image.layer_digest
        with (
            _alone(self._root.parent / f"installing-{image.rpartition(':')[2][:_DIGITS]}"),
            self._bar("install") as show,
        ):
            found: dict[str, Any] = self._ask(["install", "--json", bundle], _INSTALL, dialogue.listener(show))
        os.utime(found["folder"])  # its last use, for ``remove_old``
        return found

    def remove_old(self) -> None:
        """Remove other versions' tools, old job folders, long unused images and the remains of interrupted installs.

        No other rehearsal may be running.
        """
        self.bring_tool()
        for name in files.names(str(self._root / dialogue.TOOLS)):
            if name != self._tool.parent.name:
                files.remove_tree(str(self._root / dialogue.TOOLS / name))
        jobs, images = self._root / "jobs", self._ask(["list", "--json"], _QUICK)["images"]
        found = sorted((jobs / name for name in files.names(str(jobs))), key=lambda path: path.lstat().st_mtime)
        for path in found[:-_KEPT_JOBS]:
            files.remove_tree(str(path))
            files.remove_tree(str(_observed(self._root, path)))
        images.sort(key=lambda image: os.stat(image["folder"]).st_mtime, reverse=True)
        total = 0
        for image in images:
            total += image["bytes"]
            if total > _CAP:
                self._call(["remove", f"{image['name']}@{image['digest'].rpartition(':')[2]}", "--force"], _QUICK)
        self._call(["gc", f"--keep={sys.maxsize}"], _INSTALL)

    def take(
        self, manifest: Manifest, wanted: RehearsedLayout, request: RehearsalRequest, installed: Mapping[str, Any],
        memory_mb: int | None,
    ) -> None:  # fmt: skip
        """Give the installed image this rehearsal's plan, and the launcher the variables for ranks."""
        of_this_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**2
        node_mb = memory_mb * wanted.ranks_per_node if memory_mb else of_this_machine
        plan = simulated_plan.make(manifest, wanted, request.site, sys.executable, node_mb, self._empty)
        rootfs = Path(installed["folder"], "rootfs")
        there = [bind for bind in plan.binds if Path(f"{rootfs}{bind.target}").is_dir()]
        update = PlanUpdate(installed["digest"], plan.bundle, int(time.time()), [plan._replace(binds=there)])
        self._call(["take-plan", "-"], _QUICK, plan_update.packed(update.text().encode()))
        of_slurm = simulated_plan.slurm(manifest, request.site)
        if of_slurm:
            (self._world / "bin" / far_launcher.SLURM).write_text(json.dumps(of_slurm))

    def prepare(
        self, request: RehearsalRequest, wanted: RehearsedLayout, manifest: Manifest, job: Job,
        installed: Mapping[str, Any], online: Online | None = None,
    ) -> Path:  # fmt: skip
        """Make the job's folder with the site's `run` and the rehearsal's folders, and return it."""
        minutes, seconds = divmod(request.seconds, 60)
        words = ["run", "--json", "--dry-run", "--plan", SITE, *(f"--bind={bind}" for bind in request.binds)]
        words += [f"--nodes={wanted.nodes}", f"--ranks-per-node={wanted.ranks_per_node}", f"--threads={wanted.threads}"]
        words += [f"--time={minutes // 60:02}:{minutes % 60:02}:{seconds:02}"]
        if online:
            words += [f"--home={online.home}", *(f"--env={name}={value}" for name, value in online.environment.items())]
            words += [
                f"--bind={online.certificates}:{path}" for path in _certificates_of(Path(installed["folder"], "rootfs"))
            ]
        image = f"{manifest.name}@{installed['digest'].rpartition(':')[2]}"
        words += [image, *([job.name] if manifest.jobs else []), "--", *request.extra]
        folder = Path(self._ask(words, _QUICK)["folder"])
        observations.prepare(str(folder))
        _observed(self._root, folder).mkdir(parents=True)
        for name in _SCRIPTS_OWN:
            (folder / name).touch(0o600)
        return folder

    def run(
        self, request: RehearsalRequest, wanted: RehearsedLayout, folder: Path, memory_mb: int | None,
        layered: Sequence[str], online: Online | None = None,
    ) -> WorldReport:  # fmt: skip
        """Run the job on the simulated site. Its changes in the folders of ``layered`` are discarded at the end."""
        writable = [str(folder), str(self._world / "site"), *map(own_paths.source, request.binds)]
        programs = (self._root, self._ch_run.parent, own_paths.bytecode(), *(folder / name for name in _JOB_PROGRAMS))
        order = WorldOrder(
            parent=os.getpid(),
            nodes=wanted.nodes,
            folder=str(self._world),
            readable=[*map(str, programs), *own_paths.python()],
            writable=[*([online.home] if online else []), *writable],
            fixed=[str(folder / name) for name in _SCRIPTS_OWN],
            seen=str(_observed(self._root, folder)),
            job=str(folder),
            words=["/usr/bin/timeout", f"--kill-after={_PATIENCE}", str(request.seconds), *_JOB],
            memory_mb=memory_mb * wanted.ranks_per_node if memory_mb else None,
            observer=_observer(folder, wanted.nodes, online),
            layered=layered,
            doors=online.doors if online else "",
            until=online.until if online else "",
        )
        own = process.base_environment("LC_CTYPE")
        own["PYTHONPATH"] = str(own_paths.package().parent)
        argv = [sys.executable, "-S", "-m", "deployer.connected.rehearse.world.world"]
        limit = request.seconds + _PATIENCE + _AROUND
        done = process.run(argv, limit, own, stdin=json.dumps(order._asdict()), check=False)
        try:
            report = WorldReport(**json_records.parse(done.stdout.encode(), "the report of the simulated site"))
        except (DeployerError, TypeError) as error:
            raise DeployerError(f"the simulated site ended without a report: {done.last_words()}") from error
        if report.exit_code is None:
            hint = f"allow user namespaces ({SYSCTL}), use --engine docker, or rehearse on another Linux machine"
            raise Refused(f"this machine cannot simulate a site: {report.error}", report.hint or hint)
        return report

    def carriers(self, folder: Path) -> list[Path]:
        """Return the installed images of other bundles whose data the prepared job reads."""
        digests = evidence.read_launch(files.read_bytes(str(folder / "job.json")), "job.json").data
        images = self._ask(["list", "--json"], _QUICK)["images"] if digests else []
        return [Path(image["folder"]) for image in images if image["digest"] in digests]

    def _empty(self, path: str) -> str:
        folder = self._world / "site" / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def _ask(self, words: Sequence[str], timeout: float, hear: Callable[[str], bool] | None = None) -> dict[str, Any]:
        """Return the answer of the site's program, a JSON object."""
        said = self._call(words, timeout, hear=hear).encode()
        answer: dict[str, Any] = json_records.parse(said, f"the answer of {words[0]}")
        return answer

    def _call(
        self,
        words: Sequence[str],
        timeout: float,
        stdin: bytes | None = None,
        hear: Callable[[str], bool] | None = None,
    ) -> str:
        """Run the site's program. Its errors are raised unchanged. ``hear`` receives the lines of its progress."""
        own = process.base_environment()
        if hear:
            own[dialogue.PROGRESS] = "1"
        own["PATH"] = f"{self._world / 'bin'}{os.pathsep}{own.get('PATH', os.defpath)}"
        verb, *rest = words
        argv = [sys.executable, str(self._tool), verb, "--root", str(self._root), *rest]
        done = process.run(argv, timeout, own, stdin=stdin, check=False, hear=hear)
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.splitlines()
        message = next((line.partition("deployer: error: ")[2] for line in lines if "deployer: error: " in line), "")
        hint = next((line.partition("hint: ")[2] for line in lines if line.startswith("hint: ")), "")
        if message.startswith("launcher.missing: "):  # the site's own hint is about a launcher that is not here
            hint = _WITHOUT_LAUNCHER
        raise BY_EXIT_CODE.get(done.returncode, Refused)(message or done.last_words(), hint)


def _program(path: Path, source: Path) -> None:
    """Write a program of the simulated site, a module that needs only Python's standard library."""
    path.write_text(f"#!{sys.executable} -IS\n{source.read_text()}")
    path.chmod(0o755)


def _layered(installed: Path, carriers: Sequence[Path], site: Plan | None) -> list[str]:
    """Return the folders of installed images in which a job can make files, as at the site.

    They are the data folders, including those of other bundles (``carriers``), and the app folder unless the site
    stages the image: then the app is part of the image.
    """
    staged = site is None or any(option.staging != NOT_STAGED for option in site.start_options)
    own = [installed / name for name in ("data", *(() if staged else ("app",)))]
    return [str(path) for path in (*own, *(carrier / "data" for carrier in carriers))]


def _clear(folder: Path) -> None:
    """Remove the files of a job that filled the disk, but keep the end of its log."""
    for name in files.names(str(folder)):
        path = folder / name
        if files.is_folder(str(path)) and not files.is_link(str(path)):
            files.remove_tree(str(path))
        elif name != LOG:
            path.unlink()
        else:
            _shorten(path)


def _shorten(path: Path) -> None:
    """Keep only the end of a file. This is done in place, because a copy may not fit. A link is not followed."""
    with contextlib.suppress(OSError), open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK), "r+b") as stream:
        state = os.fstat(stream.fileno())
        if stat.S_ISREG(state.st_mode) and state.st_size > _MAX_LOG:
            end = os.pread(stream.fileno(), _MAX_LOG, state.st_size - _MAX_LOG)
            stream.write(end)
            stream.truncate()


def _certificates_of(rootfs: Path) -> list[str]:
    """Return the files of an image with CA certificates, for programs that read no variable."""
    found = (path for pattern in _CERTIFICATES for path in sorted(rootfs.glob(pattern)))
    return [f"/{path.relative_to(rootfs)}" for path in found if path.is_file() and not path.is_symlink()]


def _observer(folder: Path, nodes: int, online: Online | None = None) -> list[str]:
    """Return the command that starts a node's observer."""
    peers = [word for address in machine.addresses(nodes).values() for word in ("--peer", address)]
    words = [sys.executable, "-S", "-m", "deployer.connected.rehearse.watch.observer", "--out", OUT, "--node", NODE]
    words += ["--answer", doors.ADDRESS] if online else []
    # /tmp is the node's own
    return [*words, *peers, "--log", str(folder / LOG), "--measure", "/tmp", "--measure", str(folder)]  # noqa: S108


def _result(folder: Path) -> Mapping[str, Any] | None:
    try:
        data = files.read_bytes(str(folder / "result.json"), limit=_MAX_RESULT, follow=False)
        result = json_records.parse(data, "result.json")
    except DeployerError:
        return None
    return result if isinstance(result, dict) else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock, because two rehearsals would change the same plan. The kernel releases it when this process ends."""
    with open(path, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
