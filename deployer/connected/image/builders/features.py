"""Parts of the Dockerfile format that not every builder knows, and the first version of each builder that does.

Sources: Dockerfile release notes (frontends 1.2 to 1.20), and the Docker Engine and buildah releases that contain them;
all but --security and env= were tried with Docker 20.10 and 26.1, buildah 1.28 and 1.39.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from deployer.connected.image.definition.dockerfile import Dockerfile, Instruction


class UnknownPart(NamedTuple):
    """A part of a Dockerfile that a builder cannot do.

    Attributes:
        line: its line, from 1.
        what: the part: ``RUN --mount``.
        able: the builders that can do it.
    """

    line: int
    what: str
    able: str


class Feature(NamedTuple):
    """A part of the format.

    Attributes:
        docker: the first Docker Engine whose BuildKit knows it; None: no release does.
        buildah: the first buildah that knows it; None: no release does.
    """

    docker: tuple[int, int] | None
    buildah: tuple[int, int] | None


HEREDOC, SECRET_ENV = "a here-document", "--mount=type=secret,env="
FEATURES: Mapping[str, Feature] = {
    "--mount": Feature((20, 10), (1, 24)),
    SECRET_ENV: Feature((27, 3), (1, 44)),
    "--chmod": Feature((20, 10), (1, 24)),
    "--network": Feature((23, 0), (1, 39)),
    "--checksum": Feature((24, 0), (1, 39)),
    HEREDOC: Feature((23, 0), (1, 35)),
    "--exclude": Feature((29, 0), (1, 38)),
    "--parents": Feature((29, 1), None),
    "--security": Feature(None, None),
    "--platform": Feature((18, 9), (1, 0)),
}


class Known(NamedTuple):
    """The release of Docker or of buildah that a builder corresponds to; (0, 0): it is of the other family."""

    docker: tuple[int, int] = (0, 0)
    buildah: tuple[int, int] = (0, 0)


def lacking(dockerfile: Dockerfile, known: Known) -> Sequence[UnknownPart]:
    """Return the parts of a Dockerfile that a builder does not know. A frontend given by digest may know all."""
    if known.docker != (0, 0) and "@sha256:" in dockerfile.directives.get("syntax", (0, ""))[1]:
        return []
    return [
        UnknownPart(instruction.line, f"{instruction.name} {name}", _able(FEATURES[name]))
        for instruction in dockerfile.instructions()
        for name in _used(instruction)
        if not _has(FEATURES[name], known)
    ]


def version(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version; zeros if it has none."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _used(instruction: Instruction) -> Iterator[str]:
    for flag in instruction.flags:
        yield from {flag.partition("=")[0]} & FEATURES.keys()
        options = flag.removeprefix("--mount=").split(",")
        if "type=secret" in options and any(option.startswith("env=") for option in options):
            yield SECRET_ENV
    if instruction.heredoc:
        yield HEREDOC


def _has(feature: Feature, known: Known) -> bool:
    pairs = ((feature.docker, known.docker), (feature.buildah, known.buildah))
    return any(since is not None and since <= have for since, have in pairs)


def _able(feature: Feature) -> str:
    able = []
    if feature.docker:
        able.append("BuildKit of Docker {}.{}".format(*feature.docker))
    if feature.buildah:
        able.append("buildah {}.{} (podman has one)".format(*feature.buildah))
    return " or ".join(able) or "no builder without an image for `# syntax=`"
