"""The package sources of this host as options of pip and uv: indexes, certificates, proxies, folders."""

import configparser
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from deployer.connected.ground import caches
from deployer.connected.image.definition.settings import BuildSettings
from deployer.contract.base.errors import UsageError
from deployer.system import process


class Indexes(NamedTuple):
    """Options and environments for pip and uv. The files in them exist until the block of ``indexes`` ends.

    Attributes:
        pip_options: options of pip.
        pip_environment: variables for pip.
        uv_options: options of uv.
        uv_environment: variables for uv.
    """

    pip_options: list[str]
    pip_environment: dict[str, str]
    uv_options: list[str]
    uv_environment: dict[str, str]


@contextlib.contextmanager
def indexes(host: BuildSettings, folders: Sequence[Path] = ()) -> Iterator[Indexes]:
    """Yield the host's settings for pip and uv while the block runs. ``folders`` contain additional wheels.

    Raises:
        UsageError: a folder does not exist.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--find-links: folder {folder} does not exist")
    values = pip_values(host.pip)
    links = [*(str(folder.resolve()) for folder in folders), *host.find_links, *values.get("find-links", [])]
    with tempfile.TemporaryDirectory(prefix="deployer-indexes-") as name:
        certificates = Path(name) / "ca.crt"
        certificates.write_bytes(host.ca)
        settings = Path(name) / "pip.conf"
        settings.write_text(host.pip)
        shared = {**process.base_environment("NETRC"), **host.proxies}
        pip = {**shared, "PIP_CONFIG_FILE": str(settings)}
        uv = {**shared, "UV_CACHE_DIR": str(caches.RESOLVER.folder)}
        if values.get("proxy"):
            uv["HTTP_PROXY"] = uv["HTTPS_PROXY"] = values["proxy"][0]
        if host.ca:
            pip["PIP_CERT"] = uv["SSL_CERT_FILE"] = str(certificates)
        pip_options = [f"--find-links={link}" for link in links]
        # pip uses the best release in all indexes. By default, uv uses only the first index that has the package.
        uv_options = ["--system-certs", "--index-strategy=unsafe-best-match"]
        uv_options += [f"--default-index={url}" for url in values.get("index-url", [])[:1]]
        uv_options += [f"--index={url}" for url in values.get("extra-index-url", [])]
        uv_options += [f"--allow-insecure-host={name}" for name in values.get("trusted-host", [])]
        if values.get("no-index", ["no"])[0].lower() in ("1", "true", "yes"):
            uv_options.append("--no-index")
        yield Indexes(pip_options, pip, [*uv_options, *pip_options], uv)


def pip_values(text: str) -> dict[str, list[str]]:
    """Return the settings in a pip.conf, each as a list of words. Raises UsageError if it cannot be parsed."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise UsageError(f"cannot read pip.conf: {error}") from error
    sections = [section for section in ("global", "install", "download") if parser.has_section(section)]
    return {key: value.split() for section in sections for key, value in parser.items(section)}
