"""Rules secrets.*: private data in files of an image or bundle, and in ENV and ARG."""

import os
import re
from collections.abc import Iterator

from deployer.connected.image.lint import finding
from deployer.connected.image.lint.source import DefinitionSource, text_of
from deployer.contract.rules.findings import Finding

_NAMES = {
    ".netrc": "logins for hosts",
    "_netrc": "logins for hosts",
    ".pypirc": "logins for package indexes",
    ".pgpass": "logins for databases",
    ".git-credentials": "logins for git",
    **dict.fromkeys(("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"), "a private ssh key"),
}
_PATHS = {".aws/credentials": "keys for AWS", ".docker/config.json": "logins for registries"}

_CONTENTS = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22})"),
    "a GitLab token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20}"),
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{34}"),
    "a Slack token": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10}"),
    "a Google API key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
    # A variable in place of the password is allowed.
    "an address with a password": re.compile(r"\b(?:https?|ftp)://[^\s/:@\"'$<>{}]+:[^\s/@\"'$<>{}]+@[\w.-]+"),
}
_LAST_WORDS = ("PASSWORD", "PASSWD", "SECRET", "TOKEN", "CREDENTIALS", "APIKEY")
_KEYS = ("API_KEY", "ACCESS_KEY", "SECRET_KEY", "PRIVATE_KEY", "ACCOUNT_KEY")


def in_files(source: DefinitionSource) -> Iterator[Finding]:
    """Check secrets.file: names and contents of files in the context and the app folder, and names in data folders."""
    for path in dict.fromkeys((*source.context, *source.app)):
        what = _NAMES.get(path.name) or _PATHS.get("/".join(path.parts[-2:])) or _by_content(text_of(path))
        if what and not path.match("fetched/*/replay/*"):  # only the job trusts this key
            yield finding("secrets.file", str(path), what=what)
    for data in source.definition.data.values():
        for folder, _, names in os.walk(source.definition.folder / data.folder) if data.folder else ():
            for name in sorted(_NAMES.keys() & set(names)):
                yield finding("secrets.file", os.path.join(folder, name), what=_NAMES[name])


def in_variables(source: DefinitionSource) -> Iterator[Finding]:
    """Check secrets.variable in ENV and ARG of all stages, and in build_args. All of them can be read in the image."""
    for name, value in source.definition.build_args.items():
        if value and (_names_a_secret(name) or _by_content(value)):
            yield finding("secrets.variable", source.bundle, instruction="build_args", name=name)
    for instruction in source.dockerfile.instructions():
        if instruction.name in ("ENV", "ARG"):
            for name, value in instruction.pairs():
                if _names_a_secret(name) and value and "$" not in value:
                    where = source.at(instruction)
                    yield finding("secrets.variable", where, instruction=instruction.name, name=name)


def _by_content(text: str) -> str:
    return next((what for what, pattern in _CONTENTS.items() if pattern.search(text)), "")


def _names_a_secret(name: str) -> bool:
    """Return whether a name indicates a secret, like DB_PASSWORD, unlike TOKENIZERS_PARALLELISM or SECRET_FILE."""
    upper = name.upper()
    return upper.rpartition("_")[2] in _LAST_WORDS or upper.endswith(_KEYS)
