"""Apptainer definition files, as the Dockerfile that means the same.

Source: Apptainer 1.4, User Guide, "Definition Files". What has no counterpart is listed, not translated.
"""

import json
import posixpath
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from deployer.connected.image.definition.dockerfile import shell_words
from deployer.connected.rootfs.sif import REFERENCE, assignments
from deployer.contract.base.errors import UsageError
from deployer.system import files

#: The file with the text of %post, beside the Dockerfile.
POST = "post.sh"
_PLACE = "/tmp/post.sh"  # noqa: S108  of the image
_ENGINES, _FILES = ("docker", "docker-daemon"), ("localimage", "docker-archive", "oci-archive")
_BOOTSTRAP = re.compile(r"^\s*bootstrap\s*:", re.MULTILINE | re.IGNORECASE)
_SECTION = re.compile(r"^%(\w+)[ \t]*(.*)$", re.MULTILINE)
_KEY = re.compile(r"^\s*(\w+)\s*:\s*(\S.*?)\s*$", re.MULTILINE)
_SHELL = re.compile(r"^(?:-c\s+(\S+)|\s*#!\s*(\S+))?")
_AT_BUILD = re.compile(r"\{\{.*?\}\}|\$\{?(?:APPTAINER|SINGULARITY)_\w+\}?")


class TranslatedRecipe(NamedTuple):
    """A definition file, translated.

    Attributes:
        base: the image that it starts from: a file, or a name for the engine.
        files: the texts of the Dockerfile, which starts FROM ${BASE}, and of ``POST`` if there is a %post, by name.
        copied: the files of %files, relative to the definition file; globs.
        command: the words of %runscript, empty without it.
        lost: what is not translated.
    """

    base: str | Path
    files: dict[str, str]
    copied: list[str]
    command: list[str]
    lost: list[str]


def hint(path: Path) -> str:
    """Return the command that translates a definition file of Apptainer, empty for any other file."""
    with files.errors_named(f"read {path}"), path.open("rb") as stream:
        text = stream.read(4096).decode("utf-8", "replace")
    found = _BOOTSTRAP.search(text.partition("\n%")[0])
    return f"write the Dockerfile that means the same: deployer init --from-image {path}" if found else ""


def translate(path: Path) -> TranslatedRecipe:
    """Return the translation of a definition file. Raises UsageError if it has several stages, or no image as base."""
    text = path.read_text("utf-8", "replace")
    header, *parts = _SECTION.split(text)
    keys = {key.lower(): value for key, value in _KEY.findall(header)}
    kind, base, stages = keys.pop("bootstrap", ""), keys.pop("from", ""), len(_BOOTSTRAP.findall(text))
    if stages != 1 or kind not in (*_ENGINES, *_FILES) or not base:
        shown = f"Bootstrap: {kind}" if stages == 1 else "a recipe with several stages"
        hint = f"start from one image: {', '.join(_ENGINES + _FILES)}"
        raise UsageError(f"{path}: {shown} cannot be translated", hint)
    lost, copied = [f"{key}:" for key in keys], list[tuple[str, str]]()
    first, steps, post, command = list[str](), list[str](), "", list[str]()
    for name, more, body in zip(*(iter(parts),) * 3, strict=True):
        body, lines = textwrap.dedent(body).strip("\n"), [line.strip() for line in body.splitlines() if line.strip()]
        shell = "".join(_SHELL.findall(f"{more} {body}")[0]) or "/bin/sh"
        if name == "post":
            post += body + "\n"
            first = [f"COPY {POST} {_PLACE}", f"RUN {json.dumps([shell, '-ex', _PLACE])}"]
        elif name == "environment":
            pairs, others = assignments(body)
            steps += [f'ENV {key}="{_for_docker(value)}"' for key, value in pairs]
            lost += [f"%environment: {line}" for line in others]
        elif name == "labels":
            pairs = [line.partition(" ")[::2] for line in lines]
            steps += [f"LABEL {json.dumps(key)}={json.dumps(value.strip())}" for key, value in pairs]
        elif name == "runscript":
            command = [shell, "-c", body, "runscript"]
            steps.append(f"ENTRYPOINT {json.dumps(command)}")
        elif name == "files" and not more:
            wanted = [words for words in map(shell_words, lines) if words]
            outside = [words for words in wanted if words[0].startswith("/") or ".." in words[0]]
            copied += [(words[0], _target(words[-1])) for words in wanted if words not in outside]
            lost += [f"%files: {' '.join(words)}" for words in outside]
        else:
            lost.append(f"%{name} {more}".strip())
    lost += sorted({f"{found} in it" for found in _AT_BUILD.findall("".join(parts))})
    told = [f"# Not translated: {line}" for line in lost]
    first = [*(f"COPY {json.dumps(pair)}" for pair in copied), *first]
    lines = [f"# Translated from {path.name} by deployer.", *told, "ARG BASE", "FROM ${BASE}", *first, *steps, ""]
    source = path.parent / base if kind in _FILES else base
    texts = {"Dockerfile": "\n".join(lines), **({POST: post} if post else {})}
    return TranslatedRecipe(source, texts, [pair[0] for pair in copied], command, lost)


def _target(name: str) -> str:
    """Return a path in the image; of a pattern, the folder."""
    return posixpath.join("/", re.sub(r"[^/]*[*?\[].*", "", name.removeprefix("./")))


def _for_docker(value: str) -> str:
    return REFERENCE.sub(r"${\1}", re.sub(r'[\\"$]', r"\\\g<0>", value))
