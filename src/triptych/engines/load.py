"""From a manifest to a loaded engine."""

from __future__ import annotations

from pathlib import Path

from triptych.engines.manifest import load_manifest
from triptych.engines.protocol import Engine


def load_engine(
    manifest_path: Path | str, device: str = "cpu", threads: int = 1, engine_dir: Path | str | None = None
) -> Engine:
    """Load and check the engine a manifest describes. It is loaded, not yet warmed up: see :func:`self_test`.

    Args:
        manifest_path: the YAML file or the folder it lies in as ``manifest.yaml``.
        device: ``cpu``, ``cuda``, ``tensorrt`` or ``openvino``.
        threads: threads per operator.
        engine_dir: folder of the engine files, if not beside the manifest (see also ``TRIPTYCH_ENGINE_DIR``).

    Raises:
        EngineError: one sentence saying what does not fit and what to do.
    """
    path = Path(manifest_path)
    path = path / "manifest.yaml" if path.is_dir() else path
    manifest = load_manifest(path)
    folder = Path(engine_dir) if engine_dir is not None else None
    if manifest.task == "detector":
        from triptych.engines.onnxruntime_engine import DetectorEngine

        return DetectorEngine(manifest, path, device, threads, folder)
    from triptych.language.engine import VlmEngine

    return VlmEngine(manifest, path, device, threads, folder)
