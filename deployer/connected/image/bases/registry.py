"""Base images from a registry, identified by digest: the engine's copy if there is one, otherwise pulled."""

from collections.abc import Callable

import docker
from docker.errors import APIError

from deployer.connected.ground import engine, progress
from deployer.connected.image.bases.imported import REPOSITORY
from deployer.contract.base.errors import DeployerError, SpaceError, TransferError, UsageError
from deployer.contract.elf.machines import BY_KERNEL, X86_64

#: Texts in the errors of registries and engines if an image does not exist or access is denied.
_NO_SUCH = ("manifest unknown", "not found", "does not exist", "unauthorized", "denied")

_INSTEAD = (
    "docker image ls shows the engine's own images; without a registry: docker save on a machine that has one, then "
    "deployer init --from-image FILE"
)


def ensure(
    client: docker.DockerClient,
    reference: str,
    say: Callable[[str], None],
    offline: bool = False,
    machine: str | None = None,
) -> str:
    """Return the image's name in the engine. Pull the image if the engine lacks it.

    Args:
        reference: NAME@sha256:HEX. A tag before the digest is ignored.
        offline: download nothing.
        machine: the processor, with the kernel's name, if the digest is that of an index of images; None: x86_64.

    Raises:
        UsageError: the registry does not provide the image, or the engine lacks it and ``offline`` is set.
        TransferError: the registry does not respond.
        SpaceError: the engine's disk is full.
        MissingTool: the engine has stopped.
    """
    name, _, digest = reference.partition("@")
    folder, slash, last = name.rpartition("/")  # a colon before the last slash belongs to a port
    reference = f"{folder}{slash}{last.partition(':')[0]}@{digest}"
    wanted = BY_KERNEL[machine or X86_64.kernel].oci
    own = f"{REPOSITORY}:{digest.partition(':')[2][:16]}-{wanted}"
    if machine and engine.has_image(client, own):
        return own
    there = engine.has_image(client, reference)
    if there and machine and engine.image_config(client, reference)["Architecture"] != wanted:
        with engine.errors_named(client, f"remove the name {reference}"):  # it can be the name of only one of an index
            client.api.remove_image(reference, noprune=True)
        there = False
    if not there:
        if offline:
            raise UsageError(f"offline, and the engine does not have {reference}", "build once without --offline")
        say(f"base: pull {reference}")
        with engine.errors_named(client, f"pull {reference}"):
            pull(client, reference, f"linux/{wanted}")
    if machine is None:
        return reference
    engine.name(client, reference, own)
    return own


def pull(client: docker.DockerClient, reference: str, platform: str | None = None) -> None:
    """Pull an image by its digest, its tag, or the tag latest. Raises the same errors as ``ensure``.

    Args:
        platform: which image of an index; None: the one for the engine's machine.
    """
    try:
        with progress.parts_bar("pull") as tell:
            for message in client.api.pull(reference, stream=True, decode=True, platform=platform):
                if "error" in message:
                    raise _explained(reference, str(message["error"]))
                if message.get("status") == "Downloading":
                    detail = message.get("progressDetail") or {}
                    tell(str(message.get("id")), int(detail.get("current", 0)), int(detail.get("total", 0)))
    except APIError as error:
        raise _explained(reference, str(error.explanation or error)) from error


def _explained(reference: str, reason: str) -> DeployerError:
    if engine.is_full(reason):
        return SpaceError(f"cannot pull {reference}: {engine.FULL}", engine.FREE_SPACE)
    if any(words in reason.lower() for words in _NO_SUCH):
        hint = "check its name and digest, or log in with docker login"
        return UsageError(f"the registry does not provide the image {reference}: {reason}", hint)
    return TransferError(f"cannot pull {reference}: {reason}", _INSTEAD)
