"""A model hub on 127.0.0.1 with the protocol that huggingface_hub uses: listings, HEAD and ranged GET of files."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repo:
    """One repository at one commit. gated: files want `token`. private: nothing is there without it."""

    files: dict[str, bytes]
    is_gated: bool = False
    is_private: bool = False
    revisions: tuple[str, ...] = ("main",)

    @property
    def commit(self) -> str:
        text = "".join(f"{name}{hashlib.sha1(data).hexdigest()}" for name, data in sorted(self.files.items()))
        return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Hub:
    """What the server has, and what was asked of it. status: answer everything with this error instead."""

    repos: dict[str, Repo] = field(default_factory=dict)
    token: str = "hf_right"
    status: int | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def fetched(self) -> list[str]:
        """The files whose bodies were asked for, in order."""
        return [path.rsplit("/", 1)[1] for method, path in self.requests if method == "GET" and "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        return None

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.hub.status is not None:
            self._send(self.hub.status, b"out of order")
        elif given and given != self.hub.token:
            self._send(401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif match := _INFO.fullmatch(path):
            self._info(match[1], match[2] or "main", given)
        elif match := _RESOLVE.fullmatch(path):
            self._file(match[1], match[2], match[3], given)
        else:
            self._send(404, b"{}")

    def _repo(self, name: str, revision: str, given: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.is_private and not given):
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return None
        if revision not in (*repo.revisions, repo.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return None
        return repo

    def _info(self, name: str, revision: str, given: str) -> None:
        if (repo := self._repo(name, revision, given)) is None:
            return
        siblings = []
        for file, data in repo.files.items():
            sibling: dict[str, object] = {"rfilename": file, "size": len(data)}
            if file.endswith((".gguf", ".safetensors")):
                digest = hashlib.sha256(data).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
            siblings.append(sibling)
        answer = {"id": name, "sha": repo.commit, "gated": "auto" if repo.is_gated else False, "siblings": siblings}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, file: str, given: str) -> None:
        if (repo := self._repo(name, revision, given)) is None:
            return
        if repo.is_gated and not given:
            self._send(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return
        if file not in repo.files:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.commit})
            return
        data = repo.files[file]
        digest = hashlib.sha256(data).hexdigest()
        headers = {
            "ETag": f'"{digest}"',
            "X-Repo-Commit": repo.commit,
            "X-Linked-Size": str(len(data)),
            "X-Linked-ETag": f'"{digest}"',
            "Accept-Ranges": "bytes",
        }
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(206, data[start:], headers)
        else:
            self._send(200, data, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a port of 127.0.0.1 for as long as the block runs; `hub.url` is its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
