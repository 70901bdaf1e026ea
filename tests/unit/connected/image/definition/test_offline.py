from deployer.connected.image.definition.offline import fetched

ARGUMENTS = {"BASE": "deployer/base:1", "BUILD_BASE": "deployer/build-base:1"}

DOCKERFILE = """\
ARG BASE
FROM ${BUILD_BASE} AS Tools
RUN echo FROM nowhere
COPY --from=registry.invalid/tool:1 /tool /tool
ADD local.tar /x
ADD --chown=0:0 https://files.invalid/x.tar /x
ADD git@git.invalid:x.git /x
FROM --platform=linux/amd64 debian:12 as other
FROM tools
FROM scratch
COPY --from=tools --chown=0:0 /tool /tool
COPY --from=0 /tool /tool
COPY --from=$BASE /tool /tool
from $BASE
"""


def test_what_the_engine_would_fetch_for_a_dockerfile() -> None:
    assert fetched(DOCKERFILE, ARGUMENTS) == [
        (2, "deployer/build-base:1", ""),
        (4, "registry.invalid/tool:1", ""),
        (6, "", "https://files.invalid/x.tar"),
        (7, "", "git@git.invalid:x.git"),
        (8, "debian:12", ""),
        (13, "deployer/base:1", ""),
        (14, "deployer/base:1", ""),
    ]


def test_variables_have_the_values_that_docker_gives_them() -> None:
    text = "ARG TAG=12\nFROM ${BASE:-debian}\nFROM debian:${TAG}\nFROM ${GONE:-alpine}\nFROM debian${TAG:+-slim}\n"
    images = [image for _, image, _ in fetched(text, ARGUMENTS)]
    assert images == ["deployer/base:1", "debian:12", "alpine", "debian-slim"]
