"""The engine bundle: a folder with everything a vehicle needs of a model, and the evidence of how it came to be.

*Content* is what decides the vehicle's answers and comes out the same from the same inputs: manifest, engine files,
tokenizer, adapters, golden picture, recipe, hash of the calibration data. *Evidence* is what was found on the way and
holds timings: decision log, fidelity report, model card. :attr:`Bundle.content_sha256` covers the former only, so that
a bundle made again can be compared with the first by one number.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from triptych.contract import ConfigError
from triptych.engines.manifest import Manifest, load_manifest
from triptych_forge.decisions import read_decisions
from triptych_forge.files import sha256_of

BUNDLE_FILE = "bundle.json"
DECISIONS_FILE = "decisions.jsonl"
FIDELITY_FILE = "fidelity.json"
CARD_FILE = "MODEL_CARD.md"
RECIPE_FILE = "recipe.json"
EVIDENCE = (DECISIONS_FILE, FIDELITY_FILE, CARD_FILE)


class Bundle(BaseModel):
    """``bundle.json``."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = Field(1, description="of this format")
    name: str = Field(description="of the engine, as in its manifest")
    version: str = Field(description="of the engine, as in its manifest")
    content: dict[str, str] = Field(description="file -> SHA-256, of what decides the answers")
    evidence: dict[str, str] = Field(description="file -> SHA-256, of what was found on the way")
    calibration_sha256: str = Field(description="of the data that ranges were taken from; empty: none were")
    decisions: int = Field(description="lines of the decision log")
    content_sha256: str = Field(description="over the content and the calibration hash: equal for equal inputs")


def content_hash(content: Mapping[str, str], calibration_sha256: str) -> str:
    """One hash over file names, their hashes and the hash of the calibration data."""
    lines = [f"{name}\0{digest}\n" for name, digest in sorted(content.items())]
    return hashlib.sha256("".join([*lines, calibration_sha256]).encode()).hexdigest()


def write_bundle(out: Path, files: Mapping[str, Path | bytes], calibration_sha256: str = "") -> Bundle:
    """Write a bundle folder, whole or not at all; one that is there is replaced.

    Args:
        out: the folder.
        files: name in the bundle -> file or content; ``manifest.yaml``, what it names, :data:`RECIPE_FILE`,
            :data:`DECISIONS_FILE` and :data:`FIDELITY_FILE` must be among them.
        calibration_sha256: of the calibration data.

    Raises:
        ConfigError: something is missing, a name leaves the folder, or the decision log is damaged.
        EngineError: the manifest does not fit its files.
    """
    for name in ("manifest.yaml", RECIPE_FILE, DECISIONS_FILE, FIDELITY_FILE):
        if name not in files:
            raise ConfigError("is missing from the bundle", where=out, field=name)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        place = Path(temporary) / "bundle"
        for name, source in files.items():
            pure = PurePosixPath(name)
            if pure.is_absolute() or ".." in pure.parts or name == BUNDLE_FILE:
                raise ConfigError("is no name for a file of a bundle", where=out, value=name)
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source if isinstance(source, bytes) else source.read_bytes())
        manifest = load_manifest(place / "manifest.yaml")
        hashes = {name: sha256_of(place / name) for name in sorted(files)}
        _check_named(manifest, hashes, out)
        content = {name: digest for name, digest in hashes.items() if name not in EVIDENCE}
        bundle = Bundle(
            schema_version=1,
            name=manifest.name,
            version=manifest.version,
            content=content,
            evidence={name: digest for name, digest in hashes.items() if name in EVIDENCE},
            calibration_sha256=calibration_sha256,
            decisions=len(read_decisions(place / DECISIONS_FILE)),
            content_sha256=content_hash(content, calibration_sha256),
        )
        (place / BUNDLE_FILE).write_text(json.dumps(bundle.model_dump(mode="json"), indent=1) + "\n")
        old = Path(temporary) / "old"
        if out.exists():
            os.replace(out, old)
        os.replace(place, out)
        shutil.rmtree(old, ignore_errors=True)
    return bundle


def _check_named(manifest: Manifest, hashes: Mapping[str, str], where: Path) -> None:
    """Every file that the manifest names, adapters and golden picture included, is there as it says."""
    for file in [*manifest.engine_files().values(), *([manifest.golden.file] if manifest.golden.file else [])]:
        if file.path not in hashes:
            raise ConfigError("is named by the manifest and not in the bundle", where=where, field=file.path)
        if hashes[file.path] != file.sha256:
            raise ConfigError("has another SHA-256 than the manifest says", where=where, field=file.path)


def check_bundle(folder: Path) -> Bundle:
    """Read a bundle and check every file of it.

    Raises:
        ConfigError: no bundle, a file that is missing, changed or not listed, a damaged decision log.
        EngineError: the manifest is no manifest.
    """
    path = folder / BUNDLE_FILE
    try:
        bundle = Bundle.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot be read ({error.strerror})", where=path, remedy="give the folder of a bundle"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        raise ConfigError(first["msg"], where=path, field=field, remedy="make the bundle again") from None
    listed = {**bundle.content, **bundle.evidence}
    there = {f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()} - {BUNDLE_FILE}
    for name in sorted(set(listed) - there):
        raise ConfigError("is missing", where=folder, field=name, remedy="copy the whole bundle")
    for name in sorted(there - set(listed)):
        raise ConfigError("is not listed in bundle.json", where=folder, field=name, remedy="remove it")
    for name, digest in listed.items():
        if sha256_of(folder / name) != digest:
            raise ConfigError("was changed: its SHA-256 is another", where=folder, field=name, remedy="copy it again")
    if content_hash(bundle.content, bundle.calibration_sha256) != bundle.content_sha256:
        raise ConfigError("does not fit the list", where=path, field="content_sha256", remedy="make the bundle again")
    manifest = load_manifest(folder / "manifest.yaml")
    if (manifest.name, manifest.version) != (bundle.name, bundle.version):
        raise ConfigError("is not the manifest's", where=path, field="name", value=f"{bundle.name} {bundle.version}")
    _check_named(manifest, bundle.content, folder)
    if len(read_decisions(folder / DECISIONS_FILE)) != bundle.decisions:
        raise ConfigError("lines were added or removed", where=folder, field=DECISIONS_FILE)
    return bundle
