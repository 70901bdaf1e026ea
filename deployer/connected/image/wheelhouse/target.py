"""The target of wheels: an image's Python and its compatible tags."""

from collections.abc import Mapping
from typing import NamedTuple

from packaging import tags
from packaging.utils import parse_wheel_filename

from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused, UsageError

#: The names of manylinux platforms before PEP 600, by the minor version of glibc 2.
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST_GLIBC = 5
#: Supported machines, with the kernel's names.
MACHINES = ("x86_64", "aarch64", "ppc64le", "s390x")


class Target(NamedTuple):
    """The Python of an image.

    Attributes:
        python: its version as (major, minor).
        glibc: the version of glibc as (major, minor).
        machine: the kernel's name, ``x86_64``.
        packages: the distributions in the image, normalized name to version.
    """

    python: tuple[int, int]
    glibc: tuple[int, int]
    machine: str
    packages: Mapping[str, str]

    @property
    def interpreter(self) -> str:
        """Return the tag of interpreter and ABI, ``cp311``."""
        return f"cp{self.python[0]}{self.python[1]}"

    def __str__(self) -> str:
        return f"Python {_dotted(self.python)} on Linux {self.machine} with glibc {_dotted(self.glibc)}"

    def record(self) -> json_records.Record:
        """Return the fields as a JSON object."""
        return {
            "python": _dotted(self.python), "glibc": _dotted(self.glibc), "machine": self.machine,
            "packages": dict(sorted(self.packages.items())),
        }  # fmt: skip

    @staticmethod
    def read(fields: json_records.Fields) -> "Target":
        """Return the target from the output of ``record`` or of the script in an image. Raises errors of ``fields``."""
        return Target(
            version_pair(fields.text("python")), version_pair(fields.text("glibc")), fields.text("machine"),
            fields.mapping("packages"),
        )  # fmt: skip

    def platforms(self) -> list[str]:
        """Return the compatible platform tags, best first: each manylinux up to the glibc, then plain linux."""
        names = []
        for minor in range(self.glibc[1], _OLDEST_GLIBC - 1, -1):
            names.append(f"manylinux_{self.glibc[0]}_{minor}_{self.machine}")
            if minor in _OLD_NAMES:
                names.append(f"{_OLD_NAMES[minor]}_{self.machine}")
        return [*names, f"linux_{self.machine}"]

    def abis(self) -> list[str]:
        """Return the compatible ABI tags, best first."""
        return [self.interpreter, "abi3", "none"]

    def best(self, names: list[str]) -> str | None:
        """Return the best of several wheels of one release, or None if none fits."""
        platforms = self.platforms()
        order = [
            *tags.cpython_tags(self.python, [self.interpreter], platforms),
            *tags.compatible_tags(self.python, self.interpreter, platforms),
        ]
        fitting = tags.create_compatible_tags_selector(order)
        return next(fitting((name, parse_wheel_filename(name)[3]) for name in sorted(names)), None)

    def check(self, name: str) -> None:
        """Raise Refused if a wheel does not fit, according to its file name."""
        if self.best([name]):
            return
        needed = [glibc for tag in parse_wheel_filename(name)[3] if (glibc := _glibc_of(tag.platform))]
        if needed and min(needed) > self.glibc:
            hint = "pin a release whose wheels are for an older glibc, or use a newer base"
            raise Refused(f"{name} needs glibc {_dotted(min(needed))}, and the image has {_dotted(self.glibc)}", hint)
        raise Refused(f"{name} is not for {self}", "the wheelhouse is for the image's own Python: build again")


def version_pair(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version. Raises UsageError if it is invalid."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdigit()):
        raise UsageError(f"{text!r} is not a version")
    return int(major), int(minor)


def _glibc_of(platform: str) -> tuple[int, int] | None:
    """Return the glibc that a platform tag requires."""
    for minor, name in _OLD_NAMES.items():
        if platform.startswith(f"{name}_"):
            return 2, minor
    words = platform.split("_")
    if words[0] == "manylinux" and len(words) > 3 and words[1].isdecimal() and words[2].isdigit():
        return int(words[1]), int(words[2])
    return None


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
