"""Valid forms of texts and numbers in a site profile."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from deployer.connected.ground.yaml_model import form, unless_refused
from deployer.contract.base import placeholders, records
from deployer.contract.base.errors import UsageError
from deployer.contract.base.json_records import Fields
from deployer.contract.elf.dynamic import Facts
from deployer.contract.rules.batch_words import WORDS
from deployer.contract.site import mount_points
from deployer.contract.site.plan import NATIVE
from deployer.contract.site.runtime_table import NAMED


def _read_facts(value: Any) -> Facts:
    try:
        return records.read(Facts, Fields(value, "it"))
    except UsageError as error:
        raise ValueError(error.message) from error


def _mount(path: str) -> str:
    """Return a path whose form is that of a mount point. Raises UsageError."""
    mount_points.check_site(placeholders.sample(path))
    return path


_PLACEHOLDERS = unless_refused(placeholders.check)
_MOUNT = unless_refused(_mount)


def _several(value: Any) -> Any:
    """Return one text as a list, and null as an empty list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _few(names: list[str]) -> Any:
    """Return a list in the form for files: one name as text, none as null."""
    return names if len(names) > 1 else next(iter(names), None)


SiteName = Annotated[
    str,
    form(
        r"^[a-z0-9][a-z0-9._-]*$",
        "lower-case letters, digits, dots, dashes and underscores, and begin with a letter or digit: my-site",
    ),
]
#: ssh reads a word with a leading dash as an option, and passes the name to the shell of a ProxyCommand.
HostName = Annotated[
    str,
    form(r"^[A-Za-z0-9_\[][A-Za-z0-9._:@%/\[\]-]*$", "a host for ssh, without spaces: alice@login.example.org", 255),
]
Absolute = Annotated[str, form(r"^/[^\n:]*$", "an absolute path, without colon or line break: /opt/mpi")]
#: A site folder that jobs see on the same path. It may have placeholders.
SiteMount = Annotated[
    str,
    form(r"^[/$][^\n:]*$", "an absolute path, without colon or line break: /lustre/project, /scratch/$PROJECT"),
    _PLACEHOLDERS,
    _MOUNT,
]
#: A folder that may begin with the user's home and may have placeholders.
UsersFolder = Annotated[
    str,
    form(r"^[/$~][^\n:]*$", "an absolute path, or one that begins with ~ or a variable: $SCRATCH/deployer"),
    _PLACEHOLDERS,
]
#: A site folder that may have placeholders.
SiteFolder = Annotated[
    str,
    form(r"^[/$][^\n:]+$", "an absolute path, or one that begins with a variable: /proj/$PROJECT/inbox"),
    _PLACEHOLDERS,
]
Account = Annotated[
    str,
    form(r"^[A-Za-z0-9_$][A-Za-z0-9_.${}@%/+=-]*$", "an account without spaces: pn12ab, or a variable: $PROJECT"),
    _PLACEHOLDERS,
]
#: A requested PBS storage: gdata/ab12, scratch/$PROJECT.
Storage = Annotated[
    str, form(r"^[A-Za-z0-9_$][A-Za-z0-9_./${}-]*$", "a file system and a project: scratch/$PROJECT"), _PLACEHOLDERS
]
#: An option for a batch system. It may have placeholders.
Directive = Annotated[str, form(r"^-[^\n]*$", "one option of the batch system: --ear=off"), _PLACEHOLDERS]
#: A name in options of a batch system.
BatchName = Annotated[str, form(r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", "a name without spaces: normal")]
#: The name of a partition in the profile. It is also used as a file name.
PartitionName = Annotated[
    str,
    form(
        r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", "letters, digits and _ . @ + -, not first: gpu; queue has other names", 64
    ),
]
#: The batch system's name of a partition, or empty for its default.
QueueName = Annotated[
    str, form(r"^([A-Za-z0-9_][A-Za-z0-9_.@+-]*)?$", "a name without spaces, or empty for the default: normal")
]
#: Features of nodes, in the batch system's syntax.
Constraint = Annotated[
    str, form(r"^[A-Za-z0-9_(\[][A-Za-z0-9_.,&|*:=()\[\]-]*$", "features without spaces: gpu, or zen3&nvme")
]
#: A device node, or a device name in the Container Device Interface (CDI).
Device = Annotated[
    str,
    form(
        r"^(/dev/[A-Za-z0-9_./-]+|[a-z0-9.-]+/[A-Za-z0-9_-]+=[A-Za-z0-9_.:-]+)$",
        "a path below /dev, or a CDI name VENDOR/CLASS=NAME: /dev/kfd, nvidia.com/gpu=all",
    ),
]
#: One name or a list of names.
Names = Annotated[
    list[str],
    BeforeValidator(_several),
    PlainSerializer(_few),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
#: The kernel's name of an architecture.
Architecture = Literal["x86_64", "aarch64", "ppc64le", "riscv64", "s390x"]
GpuVendor = Literal["nvidia", "amd", "intel"]
Count = Annotated[int, Field(ge=1)]
#: The facts of a file for the dynamic loader: the record of ``deployer.contract.elf.dynamic.Facts``.
FileFacts = Annotated[
    Facts,
    PlainValidator(_read_facts),
    PlainSerializer(Facts.record, return_type=dict[str, Any]),
    WithJsonSchema(
        {"type": "object", "description": "facts of a file that the dynamic loader uses; capture writes them"}
    ),
]
#: Variables with which Open MPI and PMIx find their plugins, their help texts and the site's settings.
FolderVariable = Literal["OPAL_PKGLIBDIR", "OPAL_PKGDATADIR", "OPAL_SYSCONFDIR", "PMIX_PKGLIBDIR", "PMIX_PKGDATADIR"]
if TYPE_CHECKING:
    BatchKind: TypeAlias = str
    RuntimeName: TypeAlias = str
    Allowed: TypeAlias = str
else:
    BatchKind = Literal[tuple(WORDS)]
    RuntimeName = Literal[tuple(name for name in NAMED if name != NATIVE)]
    #: The runtimes that a policy can allow, including no container (native).
    Allowed = Literal[NAMED]
