"""GitHub's hosts: the pages, the API, archives, releases and raw files of repositories that tests make."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from tests.lab.internet.answers import Answer, Handler, Request, as_json, content, moved, text

_RAW = "raw.githubusercontent.com"
_RELEASES = "release-assets.githubusercontent.com"


class GitHub:
    """The handlers of GitHub's hosts.

    Attributes:
        hosts: the handler of each host name.
    """

    def __init__(self) -> None:
        self._trees: dict[str, dict[str, dict[str, bytes]]] = {}  # repository, branch or tag, path
        self._assets: dict[str, bytes] = {}
        self.hosts: dict[str, Handler] = {
            "github.com": self._page,
            "api.github.com": self._api,
            "codeload.github.com": self._archive,
            _RAW: self._raw,
            _RELEASES: self._asset,
        }

    def add(self, repository: str, files: Mapping[str, bytes], branch: str = "main") -> None:
        """Serve files of a branch or tag of ``OWNER/NAME``."""
        self._trees.setdefault(repository, {}).setdefault(branch, {}).update(files)

    def release(self, repository: str, tag: str, files: Mapping[str, bytes]) -> None:
        """Serve the files of a release."""
        self._assets.update({f"{repository}/{tag}/{name}": body for name, body in files.items()})

    def _page(self, request: Request) -> Answer:
        owner, name, act, rest = (request.path.lstrip("/").split("/", 3) + [""] * 4)[:4]
        repository = f"{owner}/{name}"
        if act == "releases" and rest.startswith("download/"):
            asset = f"{repository}/{rest.removeprefix('download/')}"
            where = f"https://{_RELEASES}/{asset}?sp=r&sig=SECRET"
            return moved(where) if asset in self._assets else text(404, "Not Found")
        if repository not in self._trees:
            return text(404, "Not Found")
        if act in ("zipball", "archive"):
            branch = rest.removeprefix("refs/heads/").removesuffix(".zip")
            return moved(
                f"https://codeload.github.com/{repository}/{'legacy.' if act == 'zipball' else ''}zip/{branch}"
            )
        if act == "raw" or (act == "blob" and request.query.get("raw") == ["true"]):
            return moved(f"https://{_RAW}/{repository}/{rest}")
        branch = rest.strip("/")
        if act == "tree" and branch not in self._trees[repository]:
            return text(404, "Not Found")
        names = "".join(f"<a>{path}</a>\n" for branches in self._trees[repository].values() for path in branches)
        return text(200, f"<html>{names}</html>", "text/html; charset=utf-8")

    def _api(self, request: Request) -> Answer:
        match = re.fullmatch(r"/repos/([^/]+/[^/]+)/(branches|tags)", request.path)
        if match is None or match.group(1) not in self._trees:
            return as_json({"message": "Not Found"}, 404)
        branches = self._trees[match.group(1)] if match.group(2) == "branches" else {}
        page = request.query.get("page", ["1"])[0]
        every = [
            {"name": name, "commit": {"sha": hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()}}
            for name in branches
        ]
        return as_json(every if page == "1" else [])

    def _archive(self, request: Request) -> Answer:
        match = re.fullmatch(r"/([^/]+)/([^/]+)/(?:legacy\.)?zip/(?:refs/heads/)?(.+)", request.path)
        files = self._trees.get(f"{match.group(1)}/{match.group(2)}", {}).get(match.group(3)) if match else None
        if match is None or files is None:
            return text(404, "404: Not Found")
        top = f"{match.group(1)}-{match.group(2)}-0123456"
        body = archive({f"{top}/{path}": data for path, data in files.items()}, [f"{top}/"])
        return Answer(200, body, {"Content-Type": "application/zip"})

    def _raw(self, request: Request) -> Answer:
        owner, name, rest = (request.path.lstrip("/").split("/", 2) + [""] * 3)[:3]
        rest = rest.removeprefix("refs/heads/")
        for branch, files in self._trees.get(f"{owner}/{name}", {}).items():
            path = rest.removeprefix(f"{branch}/")
            if path != rest and path in files:
                body = files[path]
                etag = f'W/"{hashlib.sha256(body).hexdigest()}"'
                kind = "application/zip" if path.endswith(".zip") else "text/plain; charset=utf-8"
                return content(request, body, {"ETag": etag, "Content-Type": kind})
        return text(404, "404: Not Found")

    def _asset(self, request: Request) -> Answer:
        body = self._assets.get(request.path.lstrip("/"))
        if body is None or request.query.get("sig") != ["SECRET"]:
            return text(403, "AuthenticationFailed")
        return content(request, body)


def archive(files: Mapping[str, bytes], folders: list[str] | None = None) -> bytes:
    """Return a zip file; equal files give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for folder in folders or []:
            made.writestr(zipfile.ZipInfo(folder), b"")
        for path, body in files.items():
            made.writestr(zipfile.ZipInfo(path), body, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def nltk_data(packages: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    """Return the files of the repository ``nltk/nltk_data``, branch ``gh-pages``.

    Args:
        packages: the files of each, by names as ``corpora/stopwords``.
    """
    made: dict[str, bytes] = {}
    lines = []
    for package, files in packages.items():
        folder, _, name = package.partition("/")
        body = archive({f"{name}/{path}": data for path, data in files.items()}, [f"{name}/"])
        made[f"packages/{package}.zip"] = body
        attributes = {
            "id": name,
            "name": name,
            "subdir": folder,
            "url": f"https://{_RAW}/nltk/nltk_data/gh-pages/packages/{package}.zip",
            "size": str(len(body)),
            "unzipped_size": str(sum(map(len, files.values()))),
            "unzip": "1",
            "checksum": hashlib.md5(body, usedforsecurity=False).hexdigest(),
            "sha256_checksum": hashlib.sha256(body).hexdigest(),
            "license": "made for tests",
        }
        lines.append(f"<package {' '.join(f'{key}={quoteattr(value)}' for key, value in attributes.items())} />")
    index = (
        "<?xml version='1.0'?>\n<nltk_data><packages>\n"
        + "\n".join(lines)
        + "\n</packages><collections/></nltk_data>\n"
    )
    made["index.xml"] = index.encode()
    return made
