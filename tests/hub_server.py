"""A model hub on 127.0.0.1 with the protocol that huggingface_hub uses, and a CDN beside it; both can misbehave.

Listings, search, renamed, private and gated repositories, HEAD and ranged GET of files, redirects to signed
addresses. `Hub.faults` says what goes wrong with which request. It counts every byte of a body that it sends.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from hub_contents import Body, Fault, Hub, Repo, etag_of, git_sha1, is_large, sha256

__all__ = ["Fault", "Hub", "Repo", "etag_of", "git_sha1", "serving"]

_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_CDN = re.compile(r"/cdn/([0-9a-f]{64})")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        return None

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def handle_one_request(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle_one_request()
            return
        self.close_connection = True

    # --- what is asked for ---

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        self.hub.headers.append(
            {"host": self.headers.get("Host", ""), **{k.lower(): v for k, v in self.headers.items()}}
        )
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.hub.status is not None:
            self._send(self.hub.status, b"out of order")
        elif match := _CDN.fullmatch(path):
            self._cdn(match[1])
        elif given and given != self.hub.token:
            self._send(401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path == "/api/models":
            self._search()
        elif match := _INFO.fullmatch(path):
            if not self._is_renamed(match[1]):
                self._info(match[1], match[2] or "main", given)
        elif match := _RESOLVE.fullmatch(path):
            if not self._is_renamed(match[1]):
                self._resolve(match[1], match[2], match[3], given)
        else:
            self._send(404, b"{}")

    def _is_renamed(self, name: str) -> bool:
        new = self.hub.renamed.get(name)
        if new is not None:
            self._send(307, b"", {"Location": self.path.replace(name, new)})
        return new is not None

    def _repo(self, name: str, revision: str, given: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.is_private and not given):
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return None
        if revision not in (*repo.revisions, repo.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return None
        return repo

    def _search(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        wanted, limit = query.get("search", [""])[0].lower(), int(query.get("limit", ["1000"])[0])
        found = [(name, repo) for name, repo in self.hub.repos.items() if wanted in name.lower()]
        found.sort(key=lambda pair: -pair[1].downloads)
        answer = [
            {
                "_id": name,
                "id": name,
                "downloads": repo.downloads,
                "likes": repo.likes,
                "lastModified": "2025-03-09T10:11:12.000Z",
                "gated": "manual" if repo.is_gated else False,
                "tags": ["license:mit", *sorted({f.rsplit(".", 1)[1] for f in repo.files if is_large(f)})],
                "safetensors": {"parameters": {"BF16": repo.num_parameters}, "total": repo.num_parameters},
            }
            for name, repo in found[:limit]
        ]
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _info(self, name: str, revision: str, given: str) -> None:
        if (repo := self._repo(name, revision, given)) is None:
            return
        siblings = []
        for file, data in repo.files.items():
            sibling: dict[str, object] = {"rfilename": file, "size": len(data), "blobId": git_sha1(data)}
            if is_large(file):
                digest = sha256(data)
                sibling["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
            siblings.append(sibling)
        answer = {"id": name, "sha": repo.commit, "gated": "auto" if repo.is_gated else False, "siblings": siblings}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str, given: str) -> None:
        if (repo := self._repo(name, revision, given)) is None:
            return
        if repo.is_gated and not given:
            self._send(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return
        if file not in repo.files:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.commit})
            return
        data = repo.files[file]
        etag = f'"{etag_of(file, data)}"'
        linked = {"X-Repo-Commit": repo.commit, "X-Linked-Size": str(len(data)), "X-Linked-ETag": etag}
        if self.hub.cdn and is_large(file):
            self._redirect_to_cdn(file, data, linked)
        else:
            self._file(file, data, {"ETag": etag, **linked})

    def _redirect_to_cdn(self, file: str, data: bytes, linked: dict[str, str]) -> None:
        number, digest = len(self.hub.requests), sha256(data)  # no two addresses are the same
        self._send(302, b"", {**linked, "Location": f"{self.hub.cdn_url}/cdn/{digest}?Number={number}&Name={file}"})

    def _cdn(self, digest: str) -> None:
        name = parse_qs(urlsplit(self.path).query)["Name"][0]
        for repo in self.hub.repos.values():
            data = repo.files.get(name, b"")
            if sha256(data) == digest:
                self._file(name, data, {"ETag": f'"{hashlib.md5(data).hexdigest()}-1"'})
                return
        self._send(404, b"gone")

    # --- files ---

    def _has_plain_fault(self, fault: Fault | None) -> bool:
        """Answer with a fault that needs no body, if it is one."""
        if fault is not None and fault.kind == "status":
            self._send(fault.status, b"no", fault.headers)
            return True
        if fault is not None and fault.kind == "circle":
            self._send(302, b"", {"Location": self.path})
            return True
        if fault is not None and fault.kind == "page":
            headers = {
                "Content-Type": "text/html",
                **({} if fault.at else {"Connection": "close", "Content-Length": ""}),
                **fault.headers,
            }
            self._send(200, b"<p>" * ((fault.at or 300) // 3), headers)
            self.close_connection = True
            return True
        if fault is not None and fault.kind == "slow":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not self.hub.ended.wait(0.02):
                self.wfile.write(b"X-More: to come\r\n")
            return True
        return False

    def _file(self, name: str, data: bytes, headers: dict[str, str]) -> None:
        fault = self.hub.take_fault(self.command, name)
        if self._has_plain_fault(fault):
            return
        kind = fault.kind if fault is not None else ""
        at = fault.at if fault is not None else 0
        if kind in ("flip", "flip whole"):
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        elif kind == "shorter":
            data = data[: len(data) - at]
        byte_range = self.headers.get("Range", "")
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", "" if kind.endswith("whole") else byte_range)
        status, start, end = 200, 0, len(data)
        if match:
            status, start = 206, int(match[1]) + (at if kind == "wrong range" else 0)
            end = min(len(data), int(match[2] or len(data)) + 1)
            if start >= len(data):
                self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            end = min(end, start + at) if kind == "piece" else end
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        part = data[start:end]
        if kind == "gzip":
            part, headers = gzip.compress(part), {**headers, "Content-Encoding": "gzip"}
        if kind == "longer":
            part += b"?" * at
        headers = {"Accept-Ranges": "bytes", **headers, **(fault.headers if fault is not None else {})}
        headers = {header: value for header, value in headers.items() if value}
        self._send_file(status, name, part, headers, kind, at)

    def _send_file(self, status: int, name: str, part: bytes, headers: dict[str, str], kind: str, at: int) -> None:
        has_length = kind != "longer"
        self.send_response(status)
        if has_length:
            headers = {"Content-Length": str(len(part)), **headers}
        else:
            self.close_connection = True
            headers = {"Connection": "close", **headers}
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = Body(name, self.path, self.headers.get("Range", ""), self.headers.get("Authorization", ""))
        self.hub.bodies.append(body)
        self._pour(part[:at] if kind in ("drop", "drop whole", "stall") else part, body)
        if kind == "stall":
            self.hub.ended.wait()
        if kind in ("drop", "drop whole", "stall"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _pour(self, part: bytes, body: Body) -> None:
        """Send a body at the speed that is set, then in small pieces through a small buffer: the count is right."""
        if self.hub.bytes_s:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        step = max(1, min(16384, self.hub.bytes_s // 50)) if self.hub.bytes_s else 2**20
        for start in range(0, len(part), step):
            piece = part[start : start + step]
            while self.hub.sent_bytes() >= self.hub.most_bytes:
                if self.hub.ended.wait(0.01):
                    return
            body.sent_bytes += len(piece)  # before it leaves: who has received it may ask at once how much was sent
            try:
                self.wfile.write(piece)
            except OSError:
                body.sent_bytes -= len(piece)
                raise
            if self.hub.bytes_s and self.hub.ended.wait(len(piece) / self.hub.bytes_s):
                return

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` and its CDN on two ports of 127.0.0.1 for as long as the block runs; `hub.url` is its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    threads = []
    for server in servers:
        server.daemon_threads = True
        server.block_on_close = False
        threads.append(threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True))
        threads[-1].start()
    hub.url, hub.cdn_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        hub.ended.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
