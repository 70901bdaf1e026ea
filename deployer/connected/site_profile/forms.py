"""The forms of texts and numbers in a site profile."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from deployer.connected.ground.yaml_model import form
from deployer.contract import mount_points
from deployer.contract.dynamic import Facts
from deployer.contract.errors import UsageError
from deployer.contract.json_records import Fields
from deployer.contract.plan import NATIVE
from deployer.contract.runtime_table import NAMED


def _read_facts(value: Any) -> Facts:
    try:
        return Facts.read(Fields(value, "it"))
    except UsageError as error:
        raise ValueError(error.message) from error


def _checked_mount(path: str) -> str:
    try:
        return mount_points.check_site(path)
    except UsageError as error:
        raise ValueError(f"{error.message} ({error.hint})") from error


SiteName = Annotated[
    str,
    form(
        r"^[a-z0-9][a-z0-9._-]*$",
        "lower-case letters, digits, dots, dashes and underscores, and begin with a letter or digit: my-site",
    ),
]
#: ssh reads a word that begins with a dash as an option, and passes the name to the shell of a ProxyCommand.
HostName = Annotated[
    str,
    form(
        r"^[A-Za-z0-9_\[][A-Za-z0-9._:@%/\[\]-]*$",
        "a host for ssh, without spaces: alice@login.example.org",
        255,
    ),
]
Absolute = Annotated[str, form(r"^/[^\n:]*$", "an absolute path, without colon or line break: /opt/mpi")]
#: A folder of the site that jobs see on the same path.
SiteMount = Annotated[Absolute, AfterValidator(_checked_mount)]
Count = Annotated[int, Field(ge=1)]
#: The facts of a file that the dynamic loader uses: the record of ``deployer.contract.dynamic.Facts``.
FileFacts = Annotated[
    Facts,
    PlainValidator(_read_facts),
    PlainSerializer(Facts.record, return_type=dict[str, Any]),
    WithJsonSchema(
        {"type": "object", "description": "facts of a file that the dynamic loader uses; capture writes them"}
    ),
]
if TYPE_CHECKING:
    RuntimeName: TypeAlias = str
    Allowed: TypeAlias = str
else:
    RuntimeName = Literal[tuple(name for name in NAMED if name != NATIVE)]
    #: The runtimes that a policy can allow, including none (native).
    Allowed = Literal[NAMED]
