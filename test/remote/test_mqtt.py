"""MQTT against a real broker (amqtt, MIT) in a process of its own; skipped where it or paho-mqtt is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from remote_rig import certificate, letter, report, until

from triptych.contract import ConfigError
from triptych.remote import Backoff, Courier, DeliveryError, Outbox, Settings, notifier
from triptych.remote.target import PASSWORD_VARIABLE

PAHO, AMQTT = (importlib.util.find_spec(name) is not None for name in ("paho", "amqtt"))
needs_broker = pytest.mark.skipif(not (PAHO and AMQTT), reason="paho-mqtt or the broker amqtt is not installed")

_BROKER = """
import asyncio, json, sys
from amqtt.broker import Broker
async def main():
    broker = Broker(json.loads(sys.argv[1]))
    await broker.start()
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Broker:
    """A broker on a port; with a certificate it speaks TLS, with a password file it wants a login."""

    def __init__(self, port: int, tls: tuple[Path, Path] | None = None, passwords: Path | None = None) -> None:
        self.port = port
        listener: dict[str, Any] = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
        if tls is not None:
            listener |= {"ssl": True, "certfile": str(tls[0]), "keyfile": str(tls[1])}
        anonymous = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
        login = {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(passwords)}}
        config = {"listeners": {"default": listener}, "plugins": login if passwords else anonymous}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BROKER, json.dumps(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def stop(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker(free_port())
    yield made
    made.stop()


class Centre:
    """A subscriber that keeps what it hears."""

    def __init__(self, port: int, topic: str = "triptych/car/notification") -> None:
        from paho.mqtt import client as paho

        self.heard: list[tuple[int, dict[str, Any]]] = []
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="centre")
        subscribed = threading.Event()
        self._client.on_message = lambda _c, _d, m: self.heard.append((m.qos, json.loads(m.payload)))
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe(topic, 1)
        assert subscribed.wait(20)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def settings(port: int, scheme: str = "mqtt", **more: Any) -> Settings:
    target = f"{scheme}://localhost:{port}"
    return Settings(**{"vehicle_id": "car", "target": target, "timeout_s": 10.0, "allow_plain": True, **more})


@needs_broker
def test_messages_arrive_with_quality_of_service_1(broker: Broker, tmp_path: Path) -> None:
    """The subscriber gets the JSON of the queue, in order."""
    centre = Centre(broker.port)
    box = Outbox(tmp_path / "q", 8, "car")
    for k in range(3):
        box.put(report(f"{k}"))
    line = notifier(settings(broker.port))
    courier = Courier(box, line, Backoff(1.0, 60.0), time.monotonic)
    while courier.step() == 0.0:
        pass
    until(lambda: len(centre.heard) == 3)
    assert [(qos, body["sequence"]) for qos, body in centre.heard] == [(1, 1), (1, 2), (1, 3)]
    assert len(box) == 0 and courier.last_error == ""
    line.close()
    centre.close()
    box.close()


@needs_broker
def test_a_broker_that_dies_and_comes_back_gets_what_was_missed(tmp_path: Path) -> None:
    """Killed between two messages: a failure in bounded time, the message stays, the new broker gets it."""
    port = free_port()
    first = Broker(port)
    line = notifier(settings(port, timeout_s=3.0))
    line.send(letter(1))
    first.stop()
    with pytest.raises(DeliveryError):
        line.send(letter(2))
    with pytest.raises(DeliveryError):
        line.send(letter(2))
    second = Broker(port)
    centre = Centre(port)
    line.send(letter(2, body='{"n":2}'))
    until(lambda: centre.heard)
    assert centre.heard[-1][1] == {"n": 2}
    line.close()
    centre.close()
    second.stop()


@needs_broker
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates; not here")
def test_only_a_broker_with_a_trusted_certificate_of_its_name_is_talked_to(tmp_path: Path) -> None:
    """Unknown authority, wrong name, both right."""
    good, wrong = certificate(tmp_path, "localhost"), certificate(tmp_path, "elsewhere.test")
    for tls, ca_file, delivered in ((good, "", False), (wrong, str(wrong[0]), False), (good, str(good[0]), True)):
        broker = Broker(free_port(), tls)
        line = notifier(settings(broker.port, "mqtts", ca_file=ca_file))
        if delivered:
            line.send(letter())
        else:
            with pytest.raises(DeliveryError, match="certificate"):
                line.send(letter())
        line.close()
        broker.stop()


@needs_broker
def test_a_login_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """The right password is let in, a wrong one is a failure that does not repeat it."""
    from pwdlib import PasswordHash
    from pwdlib.hashers.argon2 import Argon2Hasher

    passwords = tmp_path / "passwords"
    passwords.write_text(f"car:{PasswordHash((Argon2Hasher(),)).hash('correct horse')}\n")
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    secret.chmod(0o600)
    broker = Broker(free_port(), passwords=passwords)
    line = notifier(settings(broker.port, user="car", password_file=str(secret)), {})
    line.send(letter())
    line.close()
    line = notifier(settings(broker.port, user="car"), {PASSWORD_VARIABLE: "correct horse"})
    line.send(letter())
    line.close()
    line = notifier(settings(broker.port, user="car"), {PASSWORD_VARIABLE: "hunter2"})
    with pytest.raises(DeliveryError) as caught:
        line.send(letter())
    assert "hunter2" not in str(caught.value)
    line.close()
    broker.stop()


@pytest.mark.skipif(not PAHO, reason="paho-mqtt is not installed")
def test_a_broker_that_says_nothing_costs_the_timeout() -> None:
    """It takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        line = notifier(settings(mute.getsockname()[1], timeout_s=0.5))
        with pytest.raises(DeliveryError, match="in time"):
            line.send(letter())
        line.close()
        with pytest.raises(DeliveryError):
            line.send(letter())


def test_an_old_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 has another interface; some distributions still ship it."""
    package, mqtt, client = ModuleType("paho"), ModuleType("paho.mqtt"), ModuleType("paho.mqtt.client")
    package.mqtt, mqtt.client = mqtt, client  # type: ignore[attr-defined]
    for module in (package, mqtt, client):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ConfigError, match="too old"):
        notifier(settings(1883))


@pytest.mark.skipif(PAHO, reason="paho-mqtt is installed")
def test_a_missing_library_is_named() -> None:
    """With what to install."""
    with pytest.raises(ConfigError, match=r"triptych-ros\[remote\]"):
        notifier(settings(1883))
