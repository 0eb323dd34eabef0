"""From settings to a notifier: the scheme of the target decides. Secrets come from files or the environment only."""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from triptych.contract import ConfigError
from triptych.remote.courier import Notifier
from triptych.remote.message import MAX_VEHICLE_ID
from triptych.remote.mqtt import Mqtt
from triptych.remote.webhook import Webhook

SCHEMES = {"https": True, "mqtts": True, "http": False, "mqtt": False}
"""Scheme -> whether it is encrypted."""
USER_VARIABLE, PASSWORD_VARIABLE = "TRIPTYCH_REMOTE_USER", "TRIPTYCH_REMOTE_PASSWORD"
MAX_SECRET = 4096
_VEHICLE_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_VEHICLE_ID}}}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where messages go, as the parameters of the same names say."""

    vehicle_id: str
    target: str
    timeout_s: float = 10.0
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    secret_file: str = ""
    user: str = ""
    password_file: str = ""
    topic: str = ""
    allow_plain: bool = False


def notifier(settings: Settings, environment: Mapping[str, str] = os.environ) -> Notifier:
    """The way to the target.

    Raises:
        ConfigError: settings that cannot work, a file that cannot be read or that others may read.
    """
    if not _VEHICLE_ID.fullmatch(settings.vehicle_id):
        raise _wrong(
            f"must be 1 to {MAX_VEHICLE_ID} letters, digits, or any of . _ : -", "vehicle_id", settings.vehicle_id
        )
    parts = _target(settings)
    encrypted = SCHEMES[parts.scheme]
    tls = _tls(settings)
    if parts.scheme in ("https", "http"):
        secret = _secret(settings.secret_file, "secret_file") if settings.secret_file else b""
        return Webhook(settings.target, secret, tls, settings.timeout_s)
    user, password = settings.user or environment.get(USER_VARIABLE, ""), environment.get(PASSWORD_VARIABLE, "")
    if settings.password_file:
        password = _secret(settings.password_file, "password_file").decode(errors="replace")
    if password and not user:
        raise _wrong("is missing though there is a password", "user", remedy=f"set it or {USER_VARIABLE}")
    return Mqtt(
        parts.hostname or "",
        parts.port or (8883 if encrypted else 1883),
        settings.topic or f"triptych/{settings.vehicle_id}/notification",
        f"triptych-{settings.vehicle_id}",
        (user, password) if user else None,
        tls if encrypted else None,
        settings.timeout_s,
    )


def _wrong(problem: str, field: str, value: object = None, remedy: str | None = None) -> ConfigError:
    return ConfigError(problem, where="parameters of node remote", field=field, value=value, remedy=remedy)


def _target(settings: Settings) -> SplitResult:
    """The parts of the target. Its text is never repeated in an error: it may hold what is nobody's business."""
    try:
        parts = urlsplit(settings.target)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise _wrong("is no URL", "target") from None
    if parts.scheme not in SCHEMES or not usable:
        raise _wrong("must be https://host/path or mqtts://host", "target")
    if parts.username or parts.password:
        raise _wrong("must not hold a user or password", "target", remedy="use user and password_file")
    if not SCHEMES[parts.scheme] and not settings.allow_plain:
        raise _wrong(f"{parts.scheme} is not encrypted", "target", remedy="use https or mqtts, or set allow_plain")
    if re.search(r"[#+\x00]", settings.topic):
        raise _wrong("must not hold wildcards", "topic", settings.topic)
    return parts


def _tls(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(
            cafile=str(Path(settings.ca_file).expanduser()) if settings.ca_file else None
        )
    except (OSError, ssl.SSLError) as error:
        raise _wrong(f"cannot be used: {error.strerror or error}", "ca_file", settings.ca_file) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.certificate_file:
        key = str(Path(settings.key_file).expanduser()) if settings.key_file else None
        try:
            context.load_cert_chain(str(Path(settings.certificate_file).expanduser()), key)
        except (OSError, ssl.SSLError) as error:
            raise _wrong(
                f"cannot be used: {error.strerror or error}", "certificate_file", settings.certificate_file
            ) from None
    elif settings.key_file:
        raise _wrong("is missing though there is a key_file", "certificate_file")
    return context


def _secret(text: str, field: str) -> bytes:
    """The content of a secret file without the line feed at its end."""
    path = Path(text).expanduser()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_SECRET + 1)
    except OSError as error:
        raise _wrong(f"cannot be read: {error.strerror}", field, text) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _wrong("may be read by others than its owner", field, text, remedy=f"chmod 600 {path}")
    data = data.rstrip(b"\r\n")
    if not 0 < len(data) <= MAX_SECRET:
        raise _wrong(f"must hold 1 to {MAX_SECRET} bytes", field, text)
    return data
