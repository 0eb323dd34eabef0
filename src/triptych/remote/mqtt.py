"""MQTT 3.1.1, quality of service 1: a letter is delivered when the broker has acknowledged it.

Needs ``paho-mqtt`` (used under the Eclipse Distribution License 1.0, BSD-3-Clause), the extra ``remote``; imported only
when this is used.
"""

from __future__ import annotations

import ssl
import threading
from contextlib import suppress
from typing import Any

from triptych.contract import ConfigError
from triptych.remote.courier import DeliveryError
from triptych.remote.queue import Letter

KEEPALIVE_S = 30
QOS = 1


class Mqtt:
    """One connection, made when needed and kept; given up after any failure.

    Args:
        host, port: of the broker.
        topic: to publish to.
        client_id: of this vehicle.
        login: user name and password; None: no login.
        tls: context that verifies the broker; None: no encryption.
        timeout_s: for the connection, and for the acknowledgement.

    Raises:
        ConfigError: paho-mqtt is not installed, or older than 2.
    """

    def __init__(
        self,
        host: str,
        port: int,
        topic: str,
        client_id: str,
        login: tuple[str, str] | None,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        try:
            from paho.mqtt import client as paho  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise ConfigError(
                "package paho-mqtt is not installed", remedy="pip install 'triptych-ros[remote]' or use a webhook"
            ) from None
        if not hasattr(paho, "CallbackAPIVersion"):
            raise ConfigError("package paho-mqtt is too old", remedy="pip install 'paho-mqtt>=2.1,<3'")
        self._paho: Any = paho
        self._host, self._port, self._topic, self._client_id = host, port, topic, client_id
        self._login, self._tls, self._timeout_s = login, tls, timeout_s
        self._client: Any = None
        self._closed = False
        self.name = f"mqtt {host}"

    def send(self, letter: Letter) -> None:
        """See :class:`triptych.remote.courier.Notifier`."""
        try:
            client = self._connected()
            sent = client.publish(self._topic, letter.body.encode(), QOS)
            sent.wait_for_publish(self._timeout_s)
            if not sent.is_published():
                raise DeliveryError("the broker did not acknowledge in time")
        except (OSError, ValueError, RuntimeError) as error:
            self._drop()
            raise DeliveryError(str(error) or type(error).__name__) from None
        except DeliveryError:
            self._drop()
            raise

    def _connected(self) -> Any:
        if self._client is not None and self._client.is_connected():
            return self._client
        self._drop()
        if self._closed:
            raise DeliveryError("closed")
        client = self._paho.Client(
            self._paho.CallbackAPIVersion.VERSION2, client_id=self._client_id, reconnect_on_failure=False
        )
        client.connect_timeout = self._timeout_s
        if self._login is not None:
            client.username_pw_set(*self._login)
        if self._tls is not None:
            client.tls_set_context(self._tls)
        answered, answers = threading.Event(), []

        def on_connect(_client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
            answers.append(reason)
            answered.set()

        client.on_connect = on_connect
        self._client = client
        client.connect(self._host, self._port, KEEPALIVE_S)
        client.loop_start()
        if not answered.wait(self._timeout_s):
            raise DeliveryError("the broker did not answer in time")
        if answers[0].is_failure:
            raise DeliveryError(f"the broker refused the connection: {answers[0]}")
        return client

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError, ValueError, RuntimeError):
                client.disconnect()
            client.loop_stop()

    def close(self) -> None:
        """See :class:`triptych.remote.courier.Notifier`."""
        self._closed = True
        client = self._client
        if client is not None:
            with suppress(OSError, ValueError, RuntimeError):
                client.disconnect()
