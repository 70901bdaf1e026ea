"""The content of the site's root folder, and the search for installed images by name.

::

    ROOT/deployer.pyz               the site half that was installed first
        ROOT/tools/DIGEST/deployer.pyz  others, in the root folder of rehearsals
        ROOT/bundles/NAME-VERSION.tar   the last bundle of each name: the next push is a delta against it
        ROOT/images/DIGEST/             an installed image: app/ data/ plans/ kit/ engine/ bundle.json receipt.json, and
                                        links into layers: rootfs, wheels, variants, bytecode.tar; newer-plans/ has
                                        the plans that were sent later
        ROOT/layers/KEY-UID/            a layer: rootfs/, or the overlays wheels/ variants/, shared between images with
                                        the same content (layers.py)
    ROOT/caches-UID/                caches of compiled code that a user's jobs keep (container/caches.py)
    ROOT/jobs/JOB/                  a job: job.sh, job.json, logs, ranks/, result.json
    ROOT/scans/DIGEST.json          the scan of a bundle, as it was signed
    ROOT/incoming/                  arriving bundles; never read under a final name
    ROOT/logs/                      a log file per command
    ROOT/events.jsonl               who did what (events.py)
    ROOT/group-store.json, uses/    another root folder whose images this one uses too; who uses an image (group.py)
"""

import errno
import logging
import os
import re
from typing import TYPE_CHECKING, List, NamedTuple, Optional

from deployer.contract.base import dialogue, json_records, records
from deployer.contract.base.errors import IntegrityError, Refused, UsageError
from deployer.site.storage import group
from deployer.system import files

if TYPE_CHECKING:
    from deployer.contract.bundle.manifest import Manifest
    from deployer.contract.bundle.plan_update import PlanUpdate
    from deployer.contract.site.plan import Plan
    from deployer.site.storage.site_plans import SitePlans

log = logging.getLogger("deployer.store")

#: Number of digits of the bundle's digest in the name of an image's folder.
_DIGITS = 32
_FOLDER = re.compile("^[0-9a-f]{%d}$" % _DIGITS)
#: The prefix of a bundle's digest, and the minimum number of digits that a person may give: fewer could be ambiguous.
_ALGORITHM = "sha256:"
_FEWEST_DIGITS = 7
_DIGEST = re.compile("^[0-9a-f]{%d,64}\\Z" % _FEWEST_DIGITS)
#: The file name of a partition's plan.
_PLAN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*\.json\Z")
#: Number of digits in a digest for people.
_SHOWN_DIGITS = 12
#: The form in which people refer to an installed image.
REFERENCE = "NAME[:VERSION][@DIGEST]"

ROOTFS = "rootfs"
WHEELS = "wheels"
VARIANTS = "variants"
BYTECODE = "bytecode.tar"
#: The parts that images share, through links into layers.
SHARED = (ROOTFS, WHEELS, VARIANTS, BYTECODE)
LAYERS = "layers"
_LAYER_LINK = re.compile(r"\.\./\.\./{}/([0-9a-f]+-[0-9]+)/({})\Z".format(LAYERS, "|".join(map(re.escape, SHARED))))
RECEIPT = "receipt.json"
MANIFEST = "bundle.json"
ENGINE = "engine"
#: The folders of the bundle's plans, and of plans that were sent later.
PLANS, NEWER_PLANS = "plans", "newer-plans"


class Receipt(NamedTuple):
    """Proof of a finished install. It is written last, so an image without a receipt is not installed.

    Attributes:
        name: the bundle's name.
        version: the bundle's version.
        digest: the bundle's digest, ``sha256:`` and hexadecimal digits.
        installed: seconds since the epoch.
        files: number of files, folders and links.
        bytes: bytes of files.
    """

    name: str
    version: str
    digest: str
    installed: int
    files: int
    bytes: int

    @property
    def label(self) -> str:
        """Return NAME:VERSION."""
        return f"{self.name}:{self.version}"

    def record(self) -> json_records.Record:
        return json_records.stamped("receipt", records.plain(self))


class InstalledImage(NamedTuple):
    """An installed image.

    Attributes:
        folder: its folder.
        receipt: the proof of its install.
    """

    folder: str
    receipt: Receipt

    @property
    def store(self) -> "Store":
        """The store that it is in, which may be a group's."""
        return Store(os.path.dirname(os.path.dirname(self.folder)))

    @property
    def bundle(self) -> str:
        """The path of its bundle, if that was kept."""
        return self.store.bundle(self.receipt)

    @property
    def rootfs(self) -> str:
        return os.path.join(self.folder, ROOTFS)

    @property
    def layers(self) -> List[str]:
        """The folders of the layers that it shares, the rootfs first; empty if the links are lost."""
        parent = self.store.layers
        return [os.path.join(parent, name) for name in layer_links(self.folder)]

    @property
    def app(self) -> str:
        return os.path.join(self.folder, "app")

    @property
    def data(self) -> str:
        return os.path.join(self.folder, "data")

    @property
    def wheels(self) -> str:
        """The unpacked wheelhouse, a folder like a Python's prefix, if the bundle has one."""
        return os.path.join(self.folder, WHEELS)

    @property
    def engine(self) -> str:
        """The folder of the kit's runtime, ready to run, if the bundle has one."""
        return os.path.join(self.folder, ENGINE)

    def variant(self, abi: str) -> str:
        """Return the folder of the Horovod variant for an MPI's ABI, if the bundle has it."""
        return os.path.join(self.folder, VARIANTS, abi)

    def manifest(self) -> "Manifest":
        """Read the bundle's manifest; the folder was verified when it was installed."""
        from deployer.contract.bundle import manifest, sealed_file

        path = os.path.join(self.folder, MANIFEST)
        return manifest.read(files.read_bytes(path, limit=sealed_file.MAX_MANIFEST), path)

    def sites(self) -> List[str]:
        """Return the names of the sites for which the bundle contains a plan or received one later."""
        names = {name for part in (PLANS, NEWER_PLANS) for name in files.names(os.path.join(self.folder, part))}
        return sorted(name[: -len(".json")] for name in names if name.endswith(".json"))

    def newer_plan(self, site: str) -> str:
        """Return the path for the plan update of ``site``."""
        return os.path.join(self.folder, NEWER_PLANS, site + ".json")

    def update(self, site: str) -> "Optional[PlanUpdate]":
        """Return the plan update for ``site``, which was verified when it arrived; None if none was sent."""
        from deployer.contract.bundle import plan_update

        path = self.newer_plan(site)
        if not files.lexists(path):
            return None
        return plan_update.read(files.read_bytes(path, limit=plan_update.MAX_SIZE), path)

    def plan(self, site: Optional[str] = None, partition: Optional[str] = None) -> "Plan":
        """Return the plan for a partition of ``site``; see ``plans`` and ``SitePlans.find``."""
        return self.plans(site).find(partition)

    def plans(self, site: Optional[str] = None) -> "SitePlans":
        """Return the plans for ``site``, which may be None if there is only one; newer plans replace the bundle's.

        Raises:
            UsageError: there is no plan for the site, or one cannot be read.
        """
        from deployer.site.storage import site_plans

        known = self.sites()
        if site is None and len(known) == 1:
            site = known[0]
        if site is None or site not in known:
            asked = "%d plans" % len(known) if site is None else "no plan for site %s" % (site or "''")
            raise UsageError(
                f"{self.receipt.label} has {asked}",
                "plans here: %s; choose one with --plan SITE, or pack it with --site SITE"
                % (", ".join(known) or "none"),
            )
        update = self.update(site)
        return site_plans.of(self._carried(site), update.plans if update else [])

    def _carried(self, site: str) -> "List[Plan]":
        """Return the plans in the bundle for a site, with the plan for the default partition first."""
        from deployer.contract.site import plan

        folder = os.path.join(self.folder, PLANS)
        first, others = os.path.join(folder, site + ".json"), os.path.join(folder, site)
        paths = [first] if files.is_file(first) else []
        if paths and files.is_folder(others):
            paths += [os.path.join(others, name) for name in files.names(others) if _PLAN.match(name)]
        return [plan.read(files.read_text(path).encode(), path) for path in paths]


class Store:
    """The site's root folder, and the folders in it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.bundles = os.path.join(root, "bundles")
        self.images = os.path.join(root, "images")
        self.layers = os.path.join(root, LAYERS)
        self.caches = os.path.join(root, "caches-%d" % os.getuid())
        self.jobs = os.path.join(root, "jobs")
        self.incoming = os.path.join(root, "incoming")
        self.scans = os.path.join(root, "scans")
        self.logs = os.path.join(root, "logs")

    @property
    def tool(self) -> str:
        """Return the path of the .pyz that jobs call on the nodes.

        This is the running one if it is in its own folder below ``tools``, because different versions of deployer
        rehearse in one root folder.
        """
        running = running_archive() or ""
        is_own = os.path.dirname(os.path.dirname(running)) == os.path.join(self.root, dialogue.TOOLS)
        return running if is_own else os.path.join(self.root, "deployer.pyz")

    def room_of_tool(self) -> int:
        """Return how many bytes ``bring_tool`` will write."""
        archive = running_archive()
        return 0 if archive is None or files.lexists(self.tool) else os.path.getsize(archive)

    def bring_tool(self) -> None:
        """Copy the running .pyz into a root folder without one, because jobs call it on the nodes.

        An existing one is kept, because ``push`` updates it.
        """
        archive = running_archive()
        if archive is None or files.lexists(self.tool):
            return
        import shutil

        with files.errors_named("read " + archive), open(archive, "rb") as source, files.published(self.tool) as target:
            shutil.copyfileobj(source, target)

    def bundle(self, receipt: Receipt) -> str:
        """Return the path for the kept bundle of an image."""
        return os.path.join(self.bundles, f"{receipt.name}-{receipt.version}.tar")

    def image_folder(self, digest: str) -> str:
        """Return the folder for the image of the bundle with this digest."""
        return os.path.join(self.images, digest.rpartition(":")[2][:_DIGITS])

    @property
    def group(self) -> "Optional[Store]":
        """The group's store whose images this one uses too; None: it uses none. Raises Refused if it is not safe."""
        joined = group.read(self.root)
        if joined:
            group.check(joined, ())
        return Store(joined.folder) if joined else None

    def installed(self) -> List[InstalledImage]:
        """Return the installed images, also the group's, newest first."""
        shared = self.group
        images = self.own() + (shared.own() if shared else [])
        return sorted(images, key=lambda image: (image.receipt.installed, image.folder), reverse=True)

    def own(self) -> List[InstalledImage]:
        """Return the images in this root folder itself, newest first."""
        # A temporary folder already has its receipt shortly before it gets its final name.
        names = [name for name in files.names(self.images) if not name.startswith(".")]
        images = filter(None, (self.at(os.path.join(self.images, name)) for name in names))
        return sorted(images, key=lambda image: (image.receipt.installed, image.folder), reverse=True)

    def rests(self) -> List[str]:
        """Return the folders of damaged images, which have no readable receipt."""
        names = files.names(self.images)
        paths = [os.path.join(self.images, name) for name in names if _FOLDER.match(name)]
        return [path for path in paths if self.at(path) is None]

    def at(self, folder: str) -> Optional[InstalledImage]:
        """Return the installed image in ``folder``.

        Return None if the install was not finished or the receipt is damaged; the bundle must then be installed again.

        Raises:
            UsageError: a newer version of deployer wrote the receipt.
        """
        path = os.path.join(folder, RECEIPT)
        if not files.is_file(path):
            return None
        try:
            with files.open_regular(path) as stream:
                fields = json_records.loads(stream.read(), "receipt", path, IntegrityError)
            receipt = records.read(Receipt, fields)
        except IntegrityError as error:
            log.debug("no image: %s", error.message)
            return None
        return InstalledImage(folder, receipt)

    def newest(self, reference: str) -> Optional[InstalledImage]:
        """Return the image to which ``NAME[:VERSION][@DIGEST]`` refers, or None.

        It is the newest image with the name or version, or the one whose bundle's digest begins with DIGEST.

        Raises:
            UsageError: DIGEST is malformed or matches several images.
            Refused: it is the group's, and others than its owner can change it.
        """
        wanted, at, digest = reference.partition("@")
        name, _, version = wanted.partition(":")
        begin = digest.lower()
        begin = begin[len(_ALGORITHM) :] if begin.startswith(_ALGORITHM) else begin
        if at and not _DIGEST.match(begin):
            raise UsageError(
                f"{reference}: {digest!r} is not the beginning of a digest",
                "give %d to 64 hexadecimal digits; `list` shows them" % _FEWEST_DIGITS,
            )
        matching = [
            image
            for image in self.installed()
            if image.receipt.name == name
            and version in ("", image.receipt.version)
            and image.receipt.digest.rpartition(":")[2].startswith(begin)
        ]
        if at and len(matching) > 1:
            raise UsageError(
                "%s matches %d images: %s"
                % (reference, len(matching), ", ".join(image.receipt.digest for image in matching)),
                "give more digits",
            )
        return self._checked(matching[0]) if matching else None

    def carrying(self, digest: str) -> Optional[InstalledImage]:
        """Return the image of the bundle with this digest, which may be the group's. Raises Refused as ``newest``."""
        image = self.at(self.image_folder(digest))
        shared = None if image else self.group
        return self._checked(shared.at(shared.image_folder(digest))) if shared else image

    def _checked(self, image: Optional[InstalledImage]) -> Optional[InstalledImage]:
        """Return ``image``. Raises Refused if it is the group's, and others than its owner can change it."""
        joined = group.read(self.root)
        if image and joined and image.store.root == joined.folder:
            paths = [os.path.join(top, name) for top in (image.folder, *image.layers) for name in files.names(top)]
            group.check(joined, [*paths, *filter(files.lexists, [image.bundle])])
        return image

    def mark(self, digest: str) -> None:
        """Note that a further job of this user uses an image, if it is a group's. Raises Refused as ``newest``."""
        image = self.carrying(digest)
        group.mark([image.folder] if image else [])

    def check_own(self, image: InstalledImage) -> None:
        """Raise Refused for an image of the group, which only the store's owner may change."""
        if image.store.root != self.root:
            text = f"{image.receipt.label} is in the group's store {image.store.root}: only its owner can change it"
            raise Refused(text, "ask the owner; or install the bundle under your own root folder and change that")

    def find(self, reference: str) -> InstalledImage:
        """Return the image from ``newest``. Raises UsageError if there is no such image."""
        image = self.newest(reference)
        if image:
            return image
        name = reference.partition("@")[0].partition(":")[0]
        same = [image.receipt for image in self.installed() if image.receipt.name == name]
        if "@" in reference and same:
            known = [f"{receipt.name}@{short(receipt.digest)}" for receipt in same]
        else:
            known = sorted({image.receipt.label for image in self.installed()})
        raise UsageError(
            f"no image {reference} is installed under {self.root}",
            "installed: {}".format(", ".join(known)) if known else "install a bundle first: install BUNDLE.tar",
        )


def layer_links(folder: str) -> List[str]:
    """Return the names of the layers that the image in ``folder`` needs, the rootfs first.

    Raises:
        PermissionError: the folder cannot be searched.
    """
    names: List[str] = []
    for shared in SHARED:
        try:
            match = _LAYER_LINK.match(os.readlink(os.path.join(folder, shared)))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):  # EINVAL: not a link
                continue
            raise
        if match and match.group(1) not in names:
            names.append(match.group(1))
    return names


def short(digest: str) -> str:
    """Return the part of a digest that people read and type."""
    return digest.rpartition(":")[2][:_SHOWN_DIGITS]


def locate(option: Optional[str]) -> Store:
    """Return the store of ``--root`` or ``$DEPLOYER_ROOT``, else the one that contains this .pyz.

    The home folder is never the default, because homes are small at such sites.
    """
    archive = running_archive() or ""
    own = os.path.dirname(archive)
    is_installed = archive.endswith("deployer.pyz") and files.is_folder(os.path.join(own, "images"))
    root = option or os.environ.get("DEPLOYER_ROOT") or (own if is_installed else None)
    if not root:
        raise UsageError("no root folder is known", "give --root DIR or set DEPLOYER_ROOT to a folder with space")
    return Store(os.path.abspath(os.path.expanduser(root)))


def running_archive() -> Optional[str]:
    """Return the path of the running .pyz; None if deployer does not run from one."""
    import __main__

    path = os.path.dirname(os.path.abspath(getattr(__main__, "__file__", "") or ""))
    return path if files.is_file(path) else None
