"""What the tests of remote notification share: reports, a real web server, certificates."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from triptych.contract import DegradationState, MotionConstraint
from triptych.contract.supervision import StateRecord
from triptych.remote import Event, Letter
from triptych.remote.reporter import Report

S = DegradationState
STAMP_NS = 1_700_000_000_123_456_789


def report(event: str = "e", state: str = "MRC", kind: str = "entered") -> Report:
    made = Event(str(uuid5(NAMESPACE_URL, event)), state, STAMP_NS, "the vehicle stands", ("detector.lost",), True)
    return Report(made, kind, None, STAMP_NS, STAMP_NS)


def letter(number: int = 1, body: str = '{"a":1}', event: str = "e", state: str = "MRC", urgent: bool = True) -> Letter:
    return Letter(number, event, state, urgent, body)


def constraint(state: DegradationState, remote: bool | None = None) -> MotionConstraint:
    told = state in (S.L1_MINIMAL_RISK_MANOEUVRE, S.MRC) if remote is None else remote
    return MotionConstraint(STAMP_NS, 0.0, 2.0, told, False, told, state, f"reason of {state.name}")


def record(state: DegradationState, since_s: float = 0.0, faults: tuple[str, ...] = ()) -> StateRecord:
    since_ns = STAMP_NS + round(since_s * 1e9)
    return StateRecord(since_ns, state, S.NOMINAL, since_ns, f"reason of {state.name}", faults)


class WebServer:
    """A web server in a thread. ``answer`` decides on each POST: a status, after waiting ``delay_s``.

    Attributes:
        requests: (path, headers, body) of each POST, in order.
        statuses: to answer with, one per POST; 200 when they are used up.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.delay_s = 0.0
        self.drip_s = 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), body))
                status = outer.statuses.pop(0) if outer.statuses else 200
                time.sleep(outer.delay_s)
                try:
                    if outer.drip_s:
                        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000:
                            self.wfile.write(bytes([byte]))
                            time.sleep(outer.drip_s)
                    self.send_response(status)
                    if 300 <= status < 400:
                        self.send_header("Location", "/elsewhere")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:
                    pass

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:  # a client that hangs up is what we test
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "http" if tls is None else "https"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, host: str = "localhost", path: str = "/hook") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for a host name, and its key, made by openssl."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "30", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
