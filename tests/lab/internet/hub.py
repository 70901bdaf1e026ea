"""The hub of models and data sets, huggingface.co, in the protocol of ``huggingface_hub`` 0.2x to 2.x.

As there, small files are answered by the hub itself and compressed; large ones and those of binary kinds lead to
another host, at an address with a signature.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote

import yaml

from tests.lab.internet.answers import Answer, Handler, Request, as_json, content, moved, text

HOST = "huggingface.co"
#: Where large files are.
CDN = "cdn-lfs-us-1.hf.co"
#: A token that may read the gated repositories.
TOKEN = "hf_" + "lab" * 11  # not a secret: the lab's own
_DATE = "2026-01-02T03:04:05.000Z"
_KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
_LARGE = 10 << 20  # bytes
_BINARY = re.compile(
    r".*\.(safetensors|bin|h5|pt|pth|ckpt|msgpack|parquet|arrow|zip|gz|npz|npy|model|onnx|png|jpg|wav)"
)
_API = re.compile(
    r"/api/(models|datasets|spaces)/([^/]+(?:/[^/]+)??)(?:/(revision|tree|paths-info|refs|commits)(/.*)?)?"
)
_RESOLVE = re.compile(r"/(?:(datasets|spaces)/)?([^/]+(?:/[^/]+)??)/(?:resolve|raw)/([^/]+)/(.+)")
_CACHED = re.compile(r"/api/resolve-cache/(models|datasets|spaces)/([^/]+(?:/[^/]+)??)/([0-9a-f]{40})/(.+)")


class _Refused(Exception):
    """An answer that ends the reading of a request."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        shown = {"X-Error-Code": code, "X-Error-Message": message, **headers}
        self.answer = as_json({"error": message}, status, shown)


@dataclass
class Repository:
    """A repository of the hub.

    Attributes:
        name: as ``OWNER/NAME``, or ``NAME``.
        kind: ``model``, ``dataset`` or ``space``.
        gated: only :data:`TOKEN` may read its files.
        branches: the newest revision of each.
        commits: the files of each revision, by path.
    """

    name: str
    kind: str = "model"
    gated: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes] | Path, branch: str = "main") -> str:
        """Add a revision with exactly these files, and return its name."""
        if isinstance(files, Path):
            every = sorted(path for path in files.rglob("*") if path.is_file())
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in every}
        digest = hashlib.sha1(f"{self.kind} {self.name} {len(self.commits)}".encode(), usedforsecurity=False)
        for path, body in sorted(files.items()):
            digest.update(path.encode() + b"\0" + hashlib.sha256(body).digest())
        revision = digest.hexdigest()
        self.commits[revision] = dict(files)
        self.branches[branch] = revision
        return revision

    def forget(self, revision: str) -> None:
        """Remove a revision, as after a rewritten history."""
        del self.commits[revision]
        for branch in [name for name, newest in self.branches.items() if newest == revision]:
            del self.branches[branch]

    def revision(self, name: str) -> str:
        """Return the full name of a revision, a branch, or a revision's beginning."""
        name = name.removeprefix("refs/heads/")
        found = self.branches.get(name) or next((each for each in self.commits if each.startswith(name)), "")
        if not found or (name not in self.branches and len(name) < 7):
            raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {name}")
        return found

    @property
    def title(self) -> str:
        """Return the name with what is before it in addresses."""
        return self.name if self.kind == "model" else f"{self.kind}s/{self.name}"


class Hub:
    """The handlers of the hub and of its CDN, and the repositories.

    Attributes:
        hosts: the handler of each host name.
        xet: large files also show where the Xet storage has them, which is not a host of the lab.
        renamed: the new name of each repository that has moved.
    """

    def __init__(self) -> None:
        self.xet = True
        self.renamed: dict[str, str] = {}
        self.hosts: dict[str, Handler] = {HOST: self._hub, "hf.co": self._hub, CDN: self._cdn}
        # `datasets` reports downloads to the first host, and asks the second for a copy in parquet. It needs neither.
        self.hosts["s3.amazonaws.com"] = lambda _: text(
            403, "<Error><Code>AccessDenied</Code></Error>", "application/xml"
        )
        self.hosts["datasets-server.huggingface.co"] = lambda _: as_json({"error": "Not found."}, 404)
        self._repositories: dict[tuple[str, str], Repository] = {}
        self._signatures = itertools.count(1)

    def add(
        self,
        name: str,
        files: Mapping[str, bytes] | Path,
        kind: str = "model",
        license_: str = "mit",
        gated: bool = False,
    ) -> Repository:
        """Make a repository with one revision; a README.md with the licence is added where there is none."""
        made = self._repositories[kind, name] = Repository(name, kind, gated)
        revision = made.commit(files)
        if "README.md" not in made.commits[revision] and license_:
            card = f"---\nlicense: {license_}\n---\n\n# {name}\n\nMade for tests.\n"
            everything = {**made.commits.pop(revision), "README.md": card.encode()}
            made.commit(everything)
        return made

    def repository(self, name: str, kind: str = "model") -> Repository:
        """Return a repository that is there."""
        return self._repositories[kind, name]

    def remove(self, name: str, kind: str = "model") -> None:
        """Remove a repository."""
        del self._repositories[kind, name]

    # ------------------------------------------------------------------------------------------------------- the hub
    def _hub(self, request: Request) -> Answer:
        try:
            return self._routed(request)
        except _Refused as error:
            return error.answer

    def _routed(self, request: Request) -> Answer:
        path = request.quoted_path
        if path == "/api/whoami-v2":
            known = {"type": "user", "name": "lab", "auth": {"accessToken": {"displayName": "lab", "role": "read"}}}
            return as_json(known) if request.bearer else as_json({"error": "Invalid username or password."}, 401)
        if path.startswith("/api/telemetry/"):
            return text(200, "OK")
        if match := _CACHED.fullmatch(path):
            kind, name, revision, file = match.groups()
            return self._file(request, self._found(request, _KINDS[kind], name), unquote(revision), unquote(file))
        if match := _API.fullmatch(path):
            kind, name, act, rest = match.groups()
            return self._api(request, _KINDS[kind], unquote(name), act or "", (rest or "").lstrip("/"))
        if match := _RESOLVE.fullmatch(path):
            kind, name, revision, file = match.groups()
            repository = self._found(request, _KINDS[kind or "models"], unquote(name))
            return self._file(request, repository, unquote(revision), unquote(file))
        return text(404, "Not Found")

    def _found(self, request: Request, kind: str, name: str) -> Repository:
        if name in self.renamed:
            refused = _Refused(307, "", "moved")
            refused.answer = moved(request.target.replace(f"/{name}", f"/{self.renamed[name]}", 1), 307)
            raise refused
        if (kind, name) in self._repositories:
            return self._repositories[kind, name]
        if request.bearer:
            raise _Refused(404, "RepoNotFound", "Repository not found")
        raise _Refused(401, "RepoNotFound", "Invalid username or password.")

    def _api(self, request: Request, kind: str, name: str, act: str, rest: str) -> Answer:
        repository = self._found(request, kind, name)
        if act in ("", "revision"):
            return as_json(_info(repository, repository.revision(unquote(rest) or "main"), request))
        if act == "refs":
            every = repository.branches.items()
            branches = [{"name": key, "ref": f"refs/heads/{key}", "targetCommit": value} for key, value in every]
            return as_json({"tags": [], "branches": branches, "converts": [], "pullRequests": []})
        revision, _, folder = rest.partition("/")
        commit = repository.revision(unquote(revision))
        if act == "commits":
            return as_json([{"id": commit, "title": "lab", "message": "", "authors": [], "date": _DATE}])
        if act == "paths-info":
            asked = parse_qs(request.body.decode())
            return as_json(
                _paths_info(repository.commits[commit], [each.strip("/") for each in asked.get("paths", [])])
            )
        deep = request.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        return as_json(_tree(repository.commits[commit], unquote(folder).strip("/"), deep))

    def _file(self, request: Request, repository: Repository, revision: str, path: str) -> Answer:
        if repository.gated and request.bearer != TOKEN:
            message = f"Access to {repository.kind} {repository.title} is restricted. You must have access to it."
            raise _Refused(403 if request.bearer else 401, "GatedRepo", message)
        commit = repository.revision(revision)
        body = repository.commits[commit].get(path)
        if body is None:
            raise _Refused(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "Vary": "Origin, Accept"}
        if _is_large(path, body):
            return self._redirected(repository, path, body, headers)
        etag = f'"{_blob(body)}"'
        if not request.quoted_path.startswith("/api/resolve-cache/"):
            sent = {**headers, "X-Linked-Etag": etag, "X-Linked-Size": str(len(body))}
            query = f"?{quote(request.path, safe='')}=&etag={quote(etag)}"
            where = f"/api/resolve-cache/{repository.kind}s/{repository.name}/{commit}/{quote(path)}{query}"
            return moved(where, 307, sent)
        answer = content(request, body, {**headers, "ETag": etag, "Content-Type": "text/plain; charset=utf-8"})
        if answer.status == 200 and "gzip" in request.headers.get("accept-encoding", "") and request.method == "GET":
            answer.body, answer.chunked = gzip.compress(body, mtime=0), True
            answer.headers["Content-Encoding"] = "gzip"
        return answer

    def _redirected(self, repository: Repository, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        sha256 = hashlib.sha256(body).hexdigest()
        folder = hashlib.sha256(repository.title.encode()).hexdigest()
        shown = quote(f"inline; filename*=UTF-8''{path.rpartition('/')[2]}; filename=\"{path.rpartition('/')[2]}\";")
        number = next(self._signatures)
        query = f"response-content-disposition={shown}&Expires={1_800_000_000 + number}&Policy=eyJTdGF0ZW1lbnQi"
        query += f"&Signature=SECRET-{number}&Key-Pair-Id=LAB"
        sent = {**headers, "ETag": f'"{sha256}"', "X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(body))}
        if self.xet:
            xet = hashlib.blake2s(body).hexdigest()
            sent["X-Xet-Hash"] = xet
            refresh = f"https://{HOST}/api/{repository.kind}s/{repository.name}/xet-read-token/main"
            sent["Link"] = f'<{refresh}>; rel="xet-auth"'
        where = f"https://{CDN}/repos/{folder[:2]}/{folder[2:4]}/{folder}/{sha256}?{query}"
        return moved(where, 302, sent)

    # ------------------------------------------------------------------------------------------------------- the CDN
    def _cdn(self, request: Request) -> Answer:
        if not request.query.get("Signature", [""])[0].startswith("SECRET"):
            return text(403, "<Error><Code>MissingKey</Code></Error>", "application/xml")
        if "authorization" in request.headers:
            return text(400, "<Error><Code>InvalidArgument</Code></Error>", "application/xml")
        wanted = request.path.rpartition("/")[2]
        for repository in self._repositories.values():
            for files in repository.commits.values():
                for path, body in files.items():
                    if _is_large(path, body) and hashlib.sha256(body).hexdigest() == wanted:
                        disposition = request.query["response-content-disposition"][0]
                        return content(request, body, {"Content-Disposition": disposition})
        return text(404, "<Error><Code>NoSuchKey</Code></Error>", "application/xml")


def _info(repository: Repository, commit: str, request: Request) -> dict[str, object]:
    files = repository.commits[commit]
    card = _card(files.get("README.md", b""))
    siblings: list[dict[str, object]] = [{"rfilename": path} for path in sorted(files)]
    if request.query.get("blobs", [""])[0].lower() in ("true", "1"):
        siblings = [{"rfilename": path, **_file_info(path, files[path])} for path in sorted(files)]
    made: dict[str, object] = {
        "_id": hashlib.md5(repository.title.encode(), usedforsecurity=False).hexdigest()[:24],
        "id": repository.name,
        "author": repository.name.partition("/")[0],
        "sha": commit,
        "createdAt": _DATE,
        "lastModified": _DATE,
        "private": False,
        "disabled": False,
        "gated": "manual" if repository.gated else False,
        "downloads": 1,
        "likes": 0,
        "tags": [f"license:{card['license']}"] if "license" in card else [],
        "cardData": card,
        "siblings": siblings,
    }
    if repository.kind == "model":
        made.update(modelId=repository.name, library_name="transformers", config={})
    return made


def _card(readme: bytes) -> dict[str, object]:
    """Return the front matter of a README."""
    match = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", readme.decode(errors="replace"), re.DOTALL)
    found = yaml.safe_load(match.group(1)) if match else None
    return found if isinstance(found, dict) else {}


def _tree(files: Mapping[str, bytes], folder: str, deep: bool) -> list[dict[str, object]]:
    below = f"{folder}/" if folder else ""
    inside = [path for path in files if path.startswith(below)]
    if not inside:
        raise _Refused(404, "EntryNotFound", f"{folder} does not exist")
    folders: set[str] = set()
    found: list[dict[str, object]] = []
    for path in inside:
        parts = path[len(below) :].split("/")
        above = [below + "/".join(parts[:depth]) for depth in range(1, len(parts))]
        folders.update(above if deep else above[:1])
        if deep or len(parts) == 1:
            found.append(_entry(path, files[path]))
    return sorted([*found, *(_folder(each) for each in folders)], key=lambda entry: str(entry["path"]))


def _paths_info(files: Mapping[str, bytes], asked: list[str]) -> list[dict[str, object]]:
    found = [_entry(path, files[path]) for path in asked if path in files]
    folders = [path for path in asked if path not in files and any(each.startswith(f"{path}/") for each in files)]
    return found + [_folder(path) for path in folders]


def _folder(path: str) -> dict[str, object]:
    return {"type": "directory", "oid": _blob(path.encode()), "size": 0, "path": path}


def _entry(path: str, body: bytes) -> dict[str, object]:
    made: dict[str, object] = {"type": "file", "oid": _blob(body), "size": len(body), "path": path}
    if _is_large(path, body):
        made["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
    return made


def _file_info(path: str, body: bytes) -> dict[str, object]:
    made: dict[str, object] = {"blobId": _blob(body), "size": len(body)}
    if _is_large(path, body):
        made["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
    return made


def _is_large(path: str, body: bytes) -> bool:
    return len(body) >= _LARGE or _BINARY.fullmatch(path) is not None


def _blob(body: bytes) -> str:
    """Return the name that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
