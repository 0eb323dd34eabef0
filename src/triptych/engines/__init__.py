"""Engines: manifest, loading, ONNX Runtime, checks. Start at :func:`load_engine`, :func:`self_test`, :func:`check`."""

from triptych.engines.check import CheckRow, EngineEntry, check, list_engines, self_test
from triptych.engines.load import load_engine
from triptych.engines.manifest import ENGINE_DIR_VARIABLE, Manifest, load_manifest
from triptych.engines.protocol import DeviceReport, Engine, EngineOutput
from triptych.engines.session import available_devices

__all__ = [
    "ENGINE_DIR_VARIABLE",
    "CheckRow",
    "DeviceReport",
    "Engine",
    "EngineEntry",
    "EngineOutput",
    "Manifest",
    "available_devices",
    "check",
    "list_engines",
    "load_engine",
    "load_manifest",
    "self_test",
]
