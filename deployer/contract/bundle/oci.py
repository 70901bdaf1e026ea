"""The OCI documents of a bundle, as pure functions, so that the site can build and compare the expected documents.

Source: OCI image-spec 1.0 (image-layout, manifest, config).
"""

import hashlib
from typing import Any, Dict, NamedTuple

from deployer.contract.base import json_records
from deployer.contract.base.json_records import Record

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
LAYOUT_FILE = "oci-layout"
INDEX_FILE = "index.json"
LAYOUT = json_records.dumps({"imageLayoutVersion": "1.0.0"})

LAYER_TYPES = {
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
}


class Blob(NamedTuple):
    """The descriptor of a blob.

    Attributes:
        digest: ``sha256:`` and hexadecimal digits.
        size: bytes.
    """

    digest: str
    size: int

    @property
    def member(self) -> str:
        """Return the blob's name in the layout."""
        return "blobs/" + self.digest.replace(":", "/")


def blob(data: bytes) -> Blob:
    """Return the descriptor of ``data``."""
    return Blob("sha256:" + hashlib.sha256(data).hexdigest(), len(data))


def config(architecture: str, settings: Dict[str, Any], raw_digest: str) -> bytes:
    """Return an image configuration with one layer whose uncompressed tar has the digest ``raw_digest``.

    ``settings`` contains the parts of the image's own configuration to keep: Env, WorkingDir, Entrypoint, Cmd, Labels.
    """
    return json_records.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [raw_digest]},
            "history": [{"created": "1980-01-01T00:00:00Z", "created_by": "deployer pack (flattened)"}],
        }
    )


def manifest(configuration: Blob, layer: Blob, codec: str) -> bytes:
    """Return the image manifest; ``codec`` names the layer's compression."""
    return json_records.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor("application/vnd.oci.image.config.v1+json", configuration),
            "layers": [_descriptor(LAYER_TYPES[codec], layer)],
        }
    )


def index(image_manifest: Blob, name: str, version: str, architecture: str) -> bytes:
    """Return the layout's index. Its only image is named NAME:VERSION, as podman and skopeo show it."""
    entry: Record = dict(_descriptor(MANIFEST_TYPE, image_manifest))
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    entry["annotations"] = {"org.opencontainers.image.ref.name": f"{name}:{version}"}
    return json_records.dumps({"schemaVersion": 2, "manifests": [entry]})


def _descriptor(media_type: str, item: Blob) -> Record:
    return {"mediaType": media_type, "digest": item.digest, "size": item.size}
