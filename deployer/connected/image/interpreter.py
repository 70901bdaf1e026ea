"""Inspect the Python of a built image: version, glibc, machine, and installed distributions."""

import docker
from docker.errors import APIError
from packaging.version import InvalidVersion, Version

from deployer.connected.ground import engine
from deployer.connected.image.wheelhouse.target import MACHINES, Target
from deployer.contract.base import json_records
from deployer.contract.base.errors import UsageError

_PATIENCE = 60

#: A script that runs on any Python 3 in the image. It uses only modules that minimal images keep. If a package is on
#: the path more than once, the first one counts, because Python imports that one.
_QUESTION = """
import json, os, re, sys
packages = {}
for folder in [path for path in sys.path if path and os.path.isdir(path)]:
    for name in sorted(os.listdir(folder)):
        kind = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}.get(os.path.splitext(name)[1])
        path = os.path.join(folder, name)
        if kind and os.path.isdir(path):
            path = os.path.join(path, kind)
        if kind and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as stream:
                lines = stream.read().split("\\n\\n")[0].splitlines()
            head = dict(line.split(": ", 1) for line in lines if ": " in line)
            if "Name" in head and "Version" in head:
                packages.setdefault(re.sub("[-_.]+", "-", head["Name"].strip()).lower(), head["Version"].strip())
try:
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (ValueError, OSError):
    glibc = ""
json.dump({"python": "%d.%d" % sys.version_info[:2], "implementation": sys.implementation.name,
    "glibc": glibc.split(" ")[-1], "machine": os.uname().machine, "packages": packages}, sys.stdout)
"""


def ask(client: docker.DockerClient, image: str, name: str) -> Target:
    """Return the Python of an image as a target for wheels.

    Args:
        name: the image's name for errors.

    Raises:
        UsageError: the image has no Python, or its Python is not supported for wheels.
    """
    # The container has no network, and is removed.
    unstarted = engine.container(client, image, ["-s", "-c", _QUESTION], entrypoint=["python3"], user="0")
    with engine.errors_named(client, f"start a container of {name}"), unstarted as container:
        try:
            client.api.start(container)
        except APIError as error:
            if "executable file not found" in str(error.explanation) or "no such file" in str(error.explanation):
                raise _none(name, "it has no python3 in its PATH") from error
            raise
        client.api.wait(container, timeout=_PATIENCE)
        output = bytes(client.api.logs(container, stdout=True, stderr=True)).decode("utf-8", "replace")
    try:
        last = (output.splitlines() or [""])[-1]
        fields = json_records.Fields(json_records.parse(last.encode(), "the answer"), "what the image's Python says")
    except UsageError:
        raise _none(name, f"its python3 printed: {output.strip()[-300:] or 'nothing'}") from None
    if fields.text("implementation") != "cpython" or not fields.text("glibc"):
        raise _none(name, "it is not CPython on glibc, and wheels are supported only for that")
    target = Target.read(fields)
    if target.machine not in MACHINES:
        raise _none(name, f"its machine is {target.machine}")
    return target._replace(packages={name: text for name, text in target.packages.items() if _is_version(text)})


def _is_version(text: str) -> bool:
    """Return whether a version is valid in requirements. Some Debian packages have invalid ones."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _none(name: str, reason: str) -> UsageError:
    hint = "install python3 in the Dockerfile's last stage, or leave `python` out of bundle.yaml"
    return UsageError(f"cannot make a wheelhouse for {name}: {reason}", hint)
