"""A stand-in of the Hugging Face hub on loopback: the HTTP interface that huggingface_hub calls.

Repositories are folders in memory: commits of files, and branches that name commits; private and
gated ones need a token. It logs the files that it sent, and can interrupt a transfer.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_standintokenstandintoken"
Files = dict[str, bytes]


@dataclass
class Repository:
    commits: dict[str, Files] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)  # branch or tag -> commit
    access: str = "public"  # or private, or gated


@dataclass
class Hub:
    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)  # names of files
    ranges: list[str] = field(default_factory=list)  # Range headers of those requests
    tokens: set[str] = field(default_factory=set)  # tokens of the requests
    break_off_after: int | None = None  # bytes after which each answer is cut off
    broken: bool = False  # every answer is an internal error

    def commit(self, model: str, files: Files, *revisions: str, access: str = "public") -> str:
        """Adds a commit, which the revisions name from now on (default: main); returns its id."""
        repository = self.repositories.setdefault(model, Repository())
        repository.access = access
        commit = hashlib.sha1(repr((len(repository.commits), sorted(files))).encode()).hexdigest()
        repository.commits[commit] = files
        repository.revisions |= dict.fromkeys(revisions or ("main",), commit)
        return commit


def files_of(folder: Path) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def stand_in() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answered()

    def do_HEAD(self) -> None:
        self._answered()

    def _answered(self) -> None:
        path = unquote(urlsplit(self.path).path)
        try:
            if self.state.broken:
                raise _Refused(500, "")
            if found := re.fullmatch(r"/api/models/(.+?)/(revision|tree)/(.+)", path):
                self._listing(*found.groups())
            elif found := re.fullmatch(r"/api/models/([^/]+(?:/[^/]+)?)", path):
                self._listing(found[1], "revision", "main")
            elif found := re.fullmatch(r"/([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", path):
                self._file(*found.groups())
            else:
                raise _Refused(404, "RepoNotFound")
        except _Refused as refused:
            self._send(refused.status, b"{}", {"X-Error-Code": refused.code})

    def _commit(self, model: str, revision: str) -> tuple[str, Files]:
        header = self.headers.get("Authorization", "")
        token = header.removeprefix("Bearer ")
        self.state.tokens |= {token} if token else set()
        repository = self.state.repositories.get(model)
        if header and token != TOKEN:
            raise _Refused(401, "")
        if repository is None or (repository.access == "private" and not header):
            raise _Refused(404 if header else 401, "RepoNotFound")
        if repository.access == "gated" and not header:
            raise _Refused(401, "GatedRepo")
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            raise _Refused(404, "RevisionNotFound")
        return commit, repository.commits[commit]

    def _listing(self, model: str, kind: str, revision: str) -> None:
        commit, files = self._commit(model, revision)
        answer: Any
        if kind == "tree":
            answer = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in files.items()
            ]
        else:
            names = [{"rfilename": name} for name in files]
            answer = {"_id": commit, "id": model, "modelId": model, "sha": commit}
            answer |= {"siblings": names, "private": False, "tags": [], "downloads": 0, "likes": 0}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, model: str, revision: str, name: str) -> None:
        commit, files = self._commit(model, revision)
        if name not in files:
            raise _Refused(404, "EntryNotFound")
        data = files[name]
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if self.command == "GET":
            self.state.sent.append(name)
            self.state.ranges += [wanted] if wanted else []
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or ""):
            begin, end = int(found[1]), int(found[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            self._send(206, data[begin : end + 1], headers)
        else:
            self._send(200, data, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "GET":
            return
        limit = self.state.break_off_after
        if limit is not None and len(body) > limit:
            self.wfile.write(body[:limit])
            self.close_connection = True
        else:
            self.wfile.write(body)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
