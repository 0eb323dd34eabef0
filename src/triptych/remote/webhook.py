"""HTTPS POST of the JSON, with an HMAC signature over the body (RFC 2104, SHA-256)."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ssl
import threading
from contextlib import suppress
from socket import SHUT_RDWR, socket
from urllib.parse import urlsplit

from triptych.remote.courier import DeliveryError, Refused
from triptych.remote.queue import Letter

SIGNATURE_HEADER = "X-Triptych-Signature"
REFUSALS = frozenset((400, 413, 415, 422))
"""Answers that are about the letter; all others are about the connection, the right to use it, or the far end."""


def signature(secret: bytes, body: bytes) -> str:
    """Value of the signature header: ``sha256=`` and the HMAC in hex."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


class Webhook:
    """One POST per letter, on a connection of its own; redirections are not followed.

    Args:
        url: https, or http where the caller allows it.
        secret: of the signature; empty: no signature.
        tls: context that verifies the far end; unused for http.
        timeout_s: of a whole delivery, once the name is resolved.
    """

    def __init__(self, url: str, secret: bytes, tls: ssl.SSLContext, timeout_s: float) -> None:
        self._parts = urlsplit(url)
        self._secret, self._tls, self._timeout_s = secret, tls, timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._closed = False
        self.name = f"webhook {self._parts.hostname}"

    def send(self, letter: Letter) -> None:
        """See :class:`triptych.remote.courier.Notifier`."""
        body = letter.body.encode()
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": f"{letter.event_id}:{letter.number}",
            "User-Agent": "triptych",
        }
        if self._secret:
            headers[SIGNATURE_HEADER] = signature(self._secret, body)
        connection = self._connection = self._connect()
        late = threading.Event()

        def cut() -> None:  # a far end that answers byte by byte never exceeds the timeout of one read
            late.set()
            _cut(connection)

        watch = threading.Timer(self._timeout_s, cut)
        watch.daemon = True
        watch.start()
        try:
            connection.connect()
            if late.is_set() or self._closed:
                raise TimeoutError
            path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
            connection.request("POST", path, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise DeliveryError("no answer in time" if late.is_set() else _why(error)) from None
        finally:
            watch.cancel()
            connection.close()
        if status in REFUSALS:
            raise Refused(f"refused with HTTP status {status}")
        if not 200 <= status < 300:
            raise DeliveryError(f"answered with HTTP status {status}")

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)

    def close(self) -> None:
        """See :class:`triptych.remote.courier.Notifier`."""
        self._closed = True
        if self._connection is not None:
            _cut(self._connection)


def _cut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            socket.shutdown(sock, SHUT_RDWR)  # an SSLSocket's own would pull the rug from under a read in progress


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
