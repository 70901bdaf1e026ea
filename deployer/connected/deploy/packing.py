"""The deploy stages that make a definition's bundle: build and pack, each only if something changed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deployer.connected.bundle import architectures
from deployer.connected.bundle.contents import Contents
from deployer.connected.bundle.seal import BundleWriter
from deployer.connected.check.checking import Checking
from deployer.connected.deploy import last_deploy
from deployer.connected.deploy.last_deploy import LastDeploy
from deployer.connected.ground import caches
from deployer.connected.image.definition.definition import Definition
from deployer.connected.site_profile.profile import Profile
from deployer.contract.base import json_records
from deployer.contract.base.errors import DeployerError, IntegrityError, Refused, UsageError
from deployer.contract.site.plan import Plan

#: The stages in order.
BUILD, PACK, CHECK, PUSH, RUN = ("build", "pack", "check", "push", "run")
#: The outcomes of a stage.
DONE, UNCHANGED, WOULD = "done", "unchanged", "would"


class DeployRequest(NamedTuple):
    """What to deploy.

    Attributes:
        definition: the folder of the definition, or its bundle.yaml.
        site: a profile's name or path, or ssh:HOST.
        job: a job of the bundle; None: its first.
        words: options for the job, as the site's ``run`` accepts them.
        rest: words to add to the job's command.
        ssh_config: an ssh configuration.
        output: the bundle's file; None: a file in the cache.
        accept: codes of ``lint`` and ``check`` to treat as warnings.
        mpi: the MPI to use from the profile, for partitions with several.
        launch: how ranks start; None: as in the profile.
        force: send and submit a bundle that ``check`` refuses.
        key: a key to sign the bundle with.
        settings: files with settings of the build, by their names in ``BuildOptions``.
        dry_run: send no bundle and submit nothing.
    """

    definition: Path
    site: str
    job: str | None = None
    words: Sequence[str] = ()
    rest: Sequence[str] = ()
    ssh_config: Path | None = None
    output: Path | None = None
    accept: Sequence[str] = ()
    mpi: str | None = None
    launch: str | None = None
    force: bool = False
    key: Path | None = None
    settings: Mapping[str, Any] = {}
    dry_run: bool = False


class DeployStage(NamedTuple):
    """A finished stage.

    Attributes:
        name: build, pack, check, push or run.
        state: done, unchanged, or (in a dry run) would.
        seconds: its duration.
        text: its result.
    """

    name: str
    state: str
    seconds: float
    text: str

    def record(self) -> json_records.Record:
        return {**self._asdict(), "seconds": round(self.seconds, 3)}


class PackedBundle(NamedTuple):
    """A packed bundle.

    Attributes:
        path: its file.
        digest: its digest.
        plans: the plans that `pack` has just checked and written; empty: it was packed earlier.
    """

    path: Path
    digest: str
    plans: Sequence[Plan] = ()


class Packing:
    """A definition, and its bundle for a site.

    Args:
        site: the site's profile; None: the bundle has no plan.
        show: called with each finished stage.
        say: called with steps of the stages, for the user.

    Attributes:
        stages: the finished stages.
        definition: the definition.
    """

    def __init__(
        self,
        definition: Definition,
        site: Profile | None,
        request: DeployRequest,
        show: Callable[[DeployStage], None],
        say: Callable[[str], None],
    ) -> None:
        self._request, self._show, self._say = request, show, say
        self.stages: list[DeployStage] = []
        [self.definition, *_] = architectures.definitions(definition, [], [site] if site else [])
        self._sites = [site] if site else []
        self._follow: Callable[[BundleWriter], None] | None = None
        self._bundle = request.output or bundle_of(self.definition, site)

    def bundle(self) -> Path:
        """Return the bundle, built and packed as in a deploy. Raises as ``Deploy.run`` does."""
        contents = self._build()
        with last_deploy.alone(self._bundle):
            if contents:
                self._pack(contents)
        return self._bundle

    def _begin(self, name: str) -> Callable[[str, str], None]:
        """Begin a stage. The returned function ends it, with its state and its result."""
        started = time.monotonic()

        def end(state: str, text: str) -> None:
            stage = DeployStage(name, state, time.monotonic() - started, text)
            self.stages.append(stage)
            self._show(stage)

        return end

    def _build(self) -> Contents | None:
        """Return the contents of the bundle; None in a dry run that would build."""
        from deployer.connected.image.lint import lint

        end = self._begin(BUILD)
        lint.refuse(self.definition, self._request.accept)
        if self.definition.is_data:
            contents = self._contents()
            end(UNCHANGED, "only data: there is nothing to build")
            return contents
        try:
            contents = self._contents()
        except (Refused, UsageError, IntegrityError) as error:  # not built, or changed since the build
            if self._request.dry_run:
                end(WOULD, f"build it: {error.message}")
                return None
        else:
            end(UNCHANGED, self.definition.tag if self.definition.needs_engine else "its base alone")
            return contents
        from deployer.connected.bundle import sources
        from deployer.connected.check.check import CODES
        from deployer.connected.image.build import BuildOptions, build

        families = sources.families_for(self.definition, self._sites)
        accepted = tuple(code for code in self._request.accept if code not in CODES)
        with caches.in_use():
            options = BuildOptions(**self._request.settings, accept=accepted, families=families)
            built = build(self.definition, options, self._say)
        kept = f", {built.cached} of {built.steps} steps from the cache" if built.steps else ""
        contents = self._contents()
        end(DONE, f"{built.tag or built.base}{kept}")
        return contents

    def _contents(self) -> Contents:
        from deployer.connected.bundle import sources

        families = sources.families_for(self.definition, self._sites)
        return sources.from_definition(self.definition, families, self._request.accept)

    def _pack(self, contents: Contents) -> PackedBundle | None:
        """Return the bundle; None in a dry run that would pack."""
        from deployer.connected.bundle import pack
        from deployer.connected.check.check import CODES
        from deployer.connected.image.bases import alone

        request, path = self._request, self._bundle
        end = self._begin(PACK)
        image = None if self.definition.is_data else alone.ready(self.definition)
        options = [request.accept, str(request.key or "")]

        def inputs_now() -> str:
            return last_deploy.inputs_of(contents, image, self._sites, options)

        inputs = inputs_now()
        last = last_deploy.recorded(path)
        if last.inputs == inputs and list(last.file) == list(last_deploy.state_of(path)):
            end(UNCHANGED, f"{megabytes(path.stat().st_size)}: {path}")
            return PackedBundle(path, last.digest)
        if request.dry_run:
            end(WOULD, f"pack into {path}")
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        accepted = [code for code in request.accept if code in CODES]
        sites = [] if self.definition.is_data else self._sites
        checking = Checking(accepted, caches.LINK.folder)
        cache = caches.FRAMES.folder
        with caches.in_use():
            own = request.output is None
            packed = pack.pack(
                contents, sites, path, cache=cache, checking=checking, say=self._say, own=own, follow=self._follow
            )
        if inputs_now() != inputs:  # a file changed, so the packed content is uncertain
            inputs = ""  # so the next deploy packs again
        self._sign(path)
        self._record(path, last._replace(inputs=inputs, file=last_deploy.state_of(path), digest=packed.digest))
        end(DONE, f"{megabytes(packed.size)}: {path}")
        return PackedBundle(path, packed.digest, packed.plans)

    def _sign(self, path: Path) -> None:
        if self._request.key:
            from deployer.connected.ground.sign import sign

            with self._forgotten_if_damaged(path):
                sign(path, self._request.key)

    def _record(self, path: Path, last: LastDeploy) -> None:
        """Write the record. A failure does not stop the deploy."""
        with self._warned_if_full():
            last_deploy.write(path, last)

    @contextmanager
    def _warned_if_full(self) -> Iterator[None]:
        """Warn if the block cannot write a record."""
        try:
            yield
        except DeployerError as error:
            self._say(f"warning: not recorded, so the next deploy may do the same again: {error.message}")

    @contextmanager
    def _forgotten_if_damaged(self, path: Path, kind: type[IntegrityError] = IntegrityError) -> Iterator[None]:
        """If the block finds the bundle damaged, make the next deploy pack again. A dry run changes nothing."""
        try:
            yield
        except kind as error:
            if self._request.dry_run:
                raise
            self._record(path, last_deploy.recorded(path)._replace(inputs="", file=()))
            if self._request.output is None:  # the bundle in the frame cache may be damaged, too
                path.unlink(missing_ok=True)
            raise IntegrityError(error.message, "deploy again: it is packed anew") from error


def megabytes(size: int) -> str:
    """Return a size in MB as text."""
    return f"{size / 1e6:.2f} MB"


def bundle_of(definition: Definition, site: Profile | None) -> Path:
    """Return the cache file into which a definition is packed for a site, or for none."""
    words = [definition.name, definition.version, *([site.name] if site else [])]
    return caches.DEPLOY.folder / f"{'-'.join(words)}{definition.suffix}.tar"
