"""Courier and webhook: failures, slowness, certificates, signatures. The web server is a real one."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_rig import WebServer, certificate, letter, report, server_context, until

from triptych.contract import ConfigError
from triptych.remote import Backoff, Courier, DeliveryError, Letter, Outbox, Refused, Settings, notifier
from triptych.remote.courier import IDLE_S
from triptych.remote.target import PASSWORD_VARIABLE, USER_VARIABLE
from triptych.remote.webhook import SIGNATURE_HEADER

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates; not here")


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    yield server
    server.close()


def settings(target: str, **more: object) -> Settings:
    return Settings(**{"vehicle_id": "car", "target": target, "timeout_s": 5.0, "allow_plain": True, **more})  # type: ignore[arg-type]


class Script:
    """A notifier that fails as told."""

    name = "script"

    def __init__(self, *answers: Exception | None) -> None:
        self.answers, self.sent = list(answers), []

    def send(self, sent: Letter) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.sent.append(sent.number)

    def close(self) -> None:
        pass


# -- courier -----------------------------------------------------------------------------------------------------------


def test_the_courier_tries_again_until_the_far_end_has_it(tmp_path: Path) -> None:
    """Waits in between, longer each time; then everything in order, and nothing twice."""
    now_s = 0.0
    box, script = Outbox(tmp_path / "q", 8, "car"), Script(*[DeliveryError("down")] * 4)
    courier = Courier(box, script, Backoff(1.0, 60.0), lambda: now_s)
    assert courier.step() == IDLE_S
    for k in range(3):
        box.put(report(f"{k}"))
    waits = []
    for _ in range(4):
        waits.append(courier.step())
        assert courier.last_error == "down"
        tries = courier.failures
        now_s += waits[-1] * 0.99
        assert courier.step() == pytest.approx(waits[-1] * 0.01) and courier.failures == tries
        now_s += waits[-1] * 0.02
    assert all(2.0**k / 2 <= wait <= 2.0**k for k, wait in enumerate(waits))
    while courier.step() == 0.0:
        pass
    assert script.sent == [1, 2, 3] and len(box) == 0
    assert (courier.failures, courier.last_error, courier.delivered) == (0, "", 3)
    box.close()


def test_a_refused_message_does_not_keep_the_next_one_from_being_sent(tmp_path: Path) -> None:
    """The far end chokes on the first event for ever; the second one is delivered all the same."""
    now_s = 0.0
    box = Outbox(tmp_path / "q", 8, "car")
    first, second = box.put(report("a")), box.put(report("b"))

    class Choosy(Script):
        def send(self, sent: Letter) -> None:
            if sent.number == first.number:
                raise Refused("no")
            super().send(sent)

    script = Choosy()
    courier = Courier(box, script, Backoff(1.0, 60.0), lambda: now_s)
    for _ in range(6):
        now_s += courier.step() + 1.0
    assert script.sent == [second.number] and [x.number for x in box.letters] == [first.number]
    box.close()


# -- webhook -----------------------------------------------------------------------------------------------------------


def test_a_webhook_posts_signed_json(web: WebServer, tmp_path: Path) -> None:
    """The receiver can check the signature with the shared secret over the bytes it got."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"correct horse\n")
    secret.chmod(0o600)
    hook = notifier(settings(web.url(path="/hook?key=1"), secret_file=str(secret)))
    box = Outbox(tmp_path / "q", 8, "car")
    sent = box.put(report())
    hook.send(sent)
    (path, headers, body) = web.requests[0]
    assert path == "/hook?key=1" and headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == f"{sent.event_id}:1"
    assert headers[SIGNATURE_HEADER] == "sha256=" + hmac.new(b"correct horse", body, hashlib.sha256).hexdigest()
    assert json.loads(body)["event_id"] == sent.event_id
    box.close()


def test_a_webhook_without_secret_is_not_signed(web: WebServer) -> None:
    """No header rather than one with an empty key."""
    notifier(settings(web.url())).send(letter())
    assert SIGNATURE_HEADER not in web.requests[0][1]


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 408, 429, 500, 503])
def test_answers_about_the_far_end_are_failures(web: WebServer, status: int) -> None:
    """A redirection is not followed: it could lead anywhere, without encryption."""
    web.statuses = [status]
    with pytest.raises(DeliveryError, match=str(status)) as caught:
        notifier(settings(web.url())).send(letter())
    assert not isinstance(caught.value, Refused) and len(web.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_answers_about_the_letter_are_refusals(web: WebServer, status: int) -> None:
    """The next letter may pass."""
    web.statuses = [status]
    with pytest.raises(Refused, match=str(status)):
        notifier(settings(web.url())).send(letter())


def test_failures_on_the_way_end_in_exactly_the_same_message(web: WebServer, tmp_path: Path) -> None:
    """503, 500, then taken: three POSTs with equal body and key, one message for whoever looks at the key."""
    web.statuses = [503, 500]
    now_s = 0.0
    box = Outbox(tmp_path / "q", 8, "car")
    box.put(report())
    courier = Courier(box, notifier(settings(web.url())), Backoff(1.0, 60.0), lambda: now_s)
    while len(box):
        now_s += courier.step()
    assert len({(headers["Idempotency-Key"], body) for _, headers, body in web.requests}) == 1
    assert len(web.requests) == 3
    box.close()


@pytest.mark.parametrize("manner", ["delay_s", "drip_s"])
def test_a_slow_far_end_costs_the_timeout_and_no_more(web: WebServer, manner: str) -> None:
    """Silent for long, or one byte after the other for ever: each byte would restart the timeout of a read."""
    setattr(web, manner, 30.0 if manner == "delay_s" else 0.1)
    hook = notifier(settings(web.url(), timeout_s=0.6))
    start = time.monotonic()
    with pytest.raises(DeliveryError, match="no answer in time"):
        hook.send(letter())
    assert 0.5 < time.monotonic() - start < 15.0


def test_closing_ends_a_delivery_in_progress(web: WebServer) -> None:
    """A node that is told to stop does not wait for the far end."""
    web.delay_s = 60.0
    hook = notifier(settings(web.url(), timeout_s=60.0))
    caught: list[Exception] = []

    def deliver() -> None:
        try:
            hook.send(letter())
        except DeliveryError as error:
            caught.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    until(lambda: web.requests)
    hook.close()
    thread.join(20.0)
    assert caught and not thread.is_alive()
    with pytest.raises(DeliveryError):
        hook.send(letter())


def test_nobody_there_is_a_failure_in_one_sentence() -> None:
    """A closed port, a name that does not exist."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DeliveryError, match="refused"):
        notifier(settings(f"http://127.0.0.1:{port}/")).send(letter())
    with pytest.raises(DeliveryError):
        notifier(settings("http://nobody.invalid/")).send(letter())


@needs_openssl
def test_only_a_trusted_certificate_of_the_right_name_is_talked_to(tmp_path: Path) -> None:
    """Unknown authority: refused; right authority, other name: refused; both right: delivered. Else no POST is made."""
    for name, host, trusted, delivered in (
        ("localhost", "localhost", False, False),
        ("elsewhere.test", "localhost", True, False),
        ("localhost", "localhost", True, True),
    ):
        cert, key = certificate(tmp_path, name)
        web = WebServer(server_context(cert, key))
        hook = notifier(settings(web.url(host), ca_file=str(cert) if trusted else ""))
        if delivered:
            hook.send(letter())
            assert len(web.requests) == 1
        else:
            with pytest.raises(DeliveryError, match="certificate is not trusted"):
                hook.send(letter())
            assert web.requests == []
        web.close()


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vehicle_id": ""}, "vehicle_id"),
        ({"vehicle_id": "a/b"}, "vehicle_id"),
        ({"vehicle_id": "x" * 65}, "vehicle_id"),
        ({"target": ""}, "target"),
        ({"target": "ftp://a"}, "target"),
        ({"target": "https://"}, "target"),
        ({"target": "https://a:b"}, "target"),
        ({"target": "https://[::1"}, "target"),
        ({"target": "http://a", "allow_plain": False}, "target"),
        ({"target": "mqtt://a", "allow_plain": False}, "target"),
        ({"target": "mqtts://a", "topic": "a/#"}, "topic"),
        ({"ca_file": "/nowhere"}, "ca_file"),
        ({"certificate_file": "/nowhere"}, "certificate_file"),
        ({"key_file": "/nowhere"}, "certificate_file"),
        ({"secret_file": "/nowhere"}, "secret_file"),
    ],
)
def test_settings_that_cannot_work_are_named(changes: dict[str, object], field: str) -> None:
    """Field and remedy, before anything is sent."""
    with pytest.raises(ConfigError) as caught:
        notifier(settings(**{"target": "https://a/", **changes}))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_secrets_are_never_repeated(tmp_path: Path) -> None:
    """Not in an error about the target, not in one about their file, not in a name for people."""
    for target in ("https://user:hunter2@host/", "ftp://host/hunter2", "https://[hunter2/"):
        with pytest.raises(ConfigError) as caught:
            notifier(settings(target))
        assert "hunter2" not in str(caught.value)
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="may be read by others") as caught:
        notifier(settings("https://a/", secret_file=str(secret)))
    assert "hunter2" not in str(caught.value)
    secret.chmod(0o600)
    hook = notifier(settings("https://a/x?token=hunter2", secret_file=str(secret)))
    assert hook.name == "webhook a"
    secret.write_text("\n")
    with pytest.raises(ConfigError, match="must hold"):
        notifier(settings("https://a/", secret_file=str(secret)))


def test_a_password_without_a_user_is_a_mistake() -> None:
    """Whoever sets one wants to log in."""
    with pytest.raises(ConfigError, match="user"):
        notifier(settings("mqtts://a"), {PASSWORD_VARIABLE: "hunter2"})
    assert USER_VARIABLE != PASSWORD_VARIABLE
