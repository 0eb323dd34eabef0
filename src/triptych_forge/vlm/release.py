"""From a trained model to a released engine: graphs, vocabulary, golden picture, manifest, figures, model card."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import yaml

from triptych.contract import ConfigError, Frame, Light, Road, SceneAdvice, Weather
from triptych.engines.load import load_engine
from triptych.engines.protocol import Engine
from triptych.language.engine import DECODER
from triptych_forge.common import sha256_of, write_atomically
from triptych_forge.detector_data import load_teacher
from triptych_forge.vlm import judge
from triptych_forge.vlm.export import export
from triptych_forge.vlm.model import Vlm
from triptych_forge.vlm.scenes import RIG, TICK_S, TICKS, Scenes
from triptych_forge.vlm.train import Recipe, parameters
from triptych_forge.vlm.words import truth_of, vocabulary_file

VERSION = "0.2.0"
BUDGET_MS = {"distilled": 80.0, "full": 800.0}
"""What ``engines check`` accepts: 80 of 200 ms and 0.8 of 2 s, so that a tier keeps its budget on a shared core."""
NOMINAL_MS = {"distilled": 15.0, "full": 60.0}
GOLDEN_SURE = 0.25
"""The golden picture is one the model is at least this sure about (uncertainty below)."""
CLIP_SCORE = 0.5
"""From which on a vehicle of the reference detector is taken for true."""
CLIP = "udacity_solidWhiteRight_960x540_25fps.mp4"


def vocabulary_bytes() -> bytes:
    """The vocabulary file's content."""
    return (json.dumps(vocabulary_file().model_dump(mode="json"), indent=1) + "\n").encode()


def manifest_of(model: Vlm, recipe: Recipe, folder: Path, golden: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's content for the files in ``folder``."""
    s = model.shape
    files = {"encoder": "encoder.onnx", "decoder": "decoder.onnx", "tokenizer": "vocabulary.json"}
    return {
        "schema_version": 1,
        "name": f"triptych-{recipe.model}",
        "version": VERSION,
        "task": "vlm",
        "decoder": DECODER,
        "files": {role: {"path": name, "sha256": sha256_of(folder / name)} for role, name in files.items()},
        "input": {
            "width": s.width_px,
            "height": s.height_px,
            "fit": "stretch",
            "colour": "bgr",
            "layout": "nhwc",
            "dtype": "uint8",
            "interpolation": "area",
        },
        "frames": s.frames,
        "latency": {"budget_ms": BUDGET_MS[recipe.model], "nominal_ms": NOMINAL_MS[recipe.model]},
        "language": {
            "layers": s.layers,
            "heads": s.heads,
            "head_size": s.head_size,
            "frame_spacing_s": 0.5 if s.frames > 1 else 0.0,
            "questions": recipe.groups > 1,
        },
        "golden": dict(golden),
        "provenance": {
            "source": "trained from scratch by triptych_forge.vlm",
            "licence": "Apache-2.0",
            "data": f"{recipe.drives} rendered drives of triptych.scenario (seeds 0 to {recipe.drives - 1}); "
            "12 real highway stills (MIT) and simulated CARLA frames (MIT) with partial labels",
            "recipe": "triptych forge build vlm, see MODEL_CARD.md",
            "seed": recipe.seed,
        },
    }


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write ``manifest.yaml`` into ``folder``."""
    text = "# Written by triptych forge; build again rather than edit.\n"
    text += yaml.safe_dump(dict(content), sort_keys=False, width=110)
    write_atomically(folder / "manifest.yaml", text.encode())


def golden_of(folder: Path, engine: Engine, scenes: Scenes) -> dict[str, Any]:
    """Write the first validation picture answered rightly and surely as ``golden.png``.

    Raises:
        ConfigError: there is none.
    """
    for drive, tick in judge.clips(scenes, 4):
        image, truth = scenes.frame(drive, tick), scenes.truths[drive][tick]
        if truth.road is not Road.HIGHWAY or truth.light is not Light.DAY or truth.weather is not Weather.CLEAR:
            continue
        output = engine.infer([Frame(image, 0, 1)])
        assert isinstance(output.payload, SceneAdvice)
        if output.uncertainty < GOLDEN_SURE and truth_of(output.payload) == truth:
            good, encoded = cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 9])
            assert good
            write_atomically(folder / "golden.png", encoded.tobytes())
            answer = {n: getattr(output.payload, n).name.lower() for n in ("road", "weather", "light", "advice")}
            entry = {"path": "golden.png", "sha256": sha256_of(folder / "golden.png")}
            return {"file": entry, "answer": answer}
    raise ConfigError(
        "no validation picture is answered rightly and surely enough for a golden one", remedy="train longer"
    )


def release(
    model: Vlm,
    recipe: Recipe,
    data: Path | None,
    out: Path,
    validation: Scenes,
    test: Scenes,
    facts: Mapping[str, Any],
    done: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write the model folder and return the figures of its card.

    Args:
        data: folder of the real pictures and the held-out clip, or None.
        out: folder of the model.
        validation: drives to pick the golden picture from.
        test: drives for the figures; seen by nothing before.
        facts: of the training run, for the card.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        place = Path(temporary)
        export(model, place)
        write_atomically(place / "vocabulary.json", vocabulary_bytes())
        write_manifest(
            place, manifest_of(model, recipe, place, {"pattern": "stop-sign", "answer": {"road": "unknown"}})
        )
        loose = load_engine(place)
        golden = golden_of(place, loose, validation)
        loose.close()
        write_manifest(place, manifest_of(model, recipe, place, golden))
        found = figures(place, model, recipe, test, data, facts, done)
        for name in ("encoder.onnx", "decoder.onnx", "vocabulary.json", "golden.png", "manifest.yaml"):
            write_atomically(out / name, (place / name).read_bytes())
    write_atomically(out / "figures.json", (json.dumps(found, indent=1) + "\n").encode())
    write_atomically(out / "MODEL_CARD.md", card(model, recipe, found).encode())
    return found


def figures(
    folder: Path,
    model: Vlm,
    recipe: Recipe,
    test: Scenes,
    data: Path | None,
    facts: Mapping[str, Any],
    done: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """What the engine in ``folder`` is worth, through the very engine the vehicle runs.

    Args:
        model: that it was exported from.
        test: drives seen by nothing before.
        data: folder with the held-out clip, or None.
        facts: of how it was made.
    """
    engine = load_engine(folder)
    counted = judge.judge(engine, test, done=done)
    found: dict[str, Any] = {
        "model": f"triptych-{recipe.model} {VERSION}",
        "parameters": parameters(model),
        "bytes": sum((folder / n).stat().st_size for n in ("encoder.onnx", "decoder.onnx", "vocabulary.json")),
        "test": counted.as_dict(),
        "dangerous_confusions": judge.dangerous(counted)[:6],
        "latency": judge.latency(engine),
        "training": dict(facts),
    }
    if recipe.groups > 1:
        found["questions"] = judge.judge_questions(engine, test)
    clip = data / "video" / CLIP if data is not None else None
    if data is not None and clip is not None and clip.is_file():
        found["clip"] = judge.on_clip(engine, clip)
        found["clip_vehicles"] = judge.vehicles_on_clip(engine, load_teacher(data, CLIP_SCORE), clip)
    engine.close()
    return found


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def card(model: Vlm, recipe: Recipe, figures: Mapping[str, Any]) -> str:
    """The model card in Markdown."""
    s, t, lat = model.shape, figures["test"], figures["latency"]
    budget = {"distilled": "200 ms", "full": "2 s"}[recipe.model]
    lines = [
        f"# triptych-{recipe.model} {VERSION}",
        "",
        f"Vision-language model of the {recipe.model} tier, made by `triptych forge build vlm`.",
        "",
        "## What it is",
        f"- Input: {s.frames} frame{'s of the last 1.5 s, with their ages' if s.frames > 1 else ''}, "
        f"{s.width_px}x{s.height_px} BGR uint8 (normalised in the graph).",
        f"- {'Dense' if s.dense else 'Depthwise-separable'} convolutional encoder to {s.tokens} picture tokens; "
        f"autoregressive decoder of {s.layers} layers, "
        f"width {s.size}, with cached keys and values; {figures['parameters'] / 1e6:.2f} M parameters, "
        f"{figures['bytes'] / 1e6:.1f} MB.",
        f"- Made for a camera of {RIG['camera_fov_deg'][0]:g} to {RIG['camera_fov_deg'][1]:g} degrees across, "
        f"{RIG['camera_height_m'][0]:g} to {RIG['camera_height_m'][1]:g} m above the road; another view makes "
        "distances, and what follows from them, wrong by its ratio.",
        "- Output: road, weather, light, counts of vehicles, two-wheelers and pedestrians, hazards, advice and a "
        "sentence, decoded greedily under the grammar in `vocabulary.json`; the sentence cannot contradict the fields.",
        "- Token probabilities are the softmax over the whole vocabulary before the grammar's mask; uncertainty is "
        "1 - their geometric mean over the field tokens.",
        "- Free questions from the vocabulary." if recipe.groups > 1 else "- The standing question only.",
        "",
        "## Data",
        f"- {recipe.drives} drives of `triptych.scenario` (seeds 0 to {recipe.drives - 1}), {TICKS} frames "
        f"{TICK_S} s apart each, with the scenario's ground truth.",
        "- 12 real highway stills (Udacity CarND, MIT), labelled by eye as highway, clear, day, nothing near, proceed; "
        "vehicles counted by YOLOX-nano; two further stills are frames of the held-out clip and are not used.",
        "- Simulated CARLA frames (MIT): weather and light by looking, road from the town where it is certain, "
        "vehicles and two-wheelers counted by their boxes; other fields unknown, no loss there.",
        "- Pictures without content (covered, black, noise), labelled unknown, low visibility, slow down.",
        "- Augmentation: geometry, mirror, colour curves, pull towards a real picture's colours, blur, noise, JPEG.",
        "",
        "## Recipe",
        f"`triptych forge build vlm --data DATA`: {json.dumps(figures['training'])}",
        "",
        "## Figures",
        f"Test drives of seeds never used before, {t['answers']} answers, through the engine as shipped:",
        "",
        "| road | weather | light | hazards (F1, all together) | hazards found | named falsely | counts within one "
        "| advice | advice within one level | all fields right | text as well |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        f"| {_percent(t['road'])} | {_percent(t['weather'])} | {_percent(t['light'])} | {t['hazard_f1']:.3f} "
        + " ".join(f"| {_percent(t[n])}" for n in ("hazards_found", "hazards_false", "counts_within_one"))
        + " "
        + " ".join(f"| {_percent(t[n])}" for n in ("advice", "advice_near", "fields", "exact"))
        + " |",
        "",
        f"Advice less careful than the truth (the dangerous direction): **{_percent(t['less_careful'])}**, by two "
        f"levels or more {_percent(t['less_careful_by_two'])}. Most frequent: "
        + "; ".join(f"{want} answered {got} ({n})" for want, got, n in figures["dangerous_confusions"][:4])
        + ".",
        "",
        "| hazard | F1 | hit | false | missed |",
        "|---|---|---|---|---|",
        *(f"| {h} | {c['f1']} | {c['hit']} | {c['false']} | {c['missed']} |" for h, c in t["hazards"].items()),
        "",
        f"A wrong answer is less sure than a right one with chance {t['uncertainty_auroc']} (AUROC).",
        "",
        f"Latency of a whole answer from 1280x720 frames, one thread, shared machine: p50 {lat['p50_ms']} ms, "
        f"p99 {lat['p99_ms']} ms, max {lat['max_ms']} ms (tier budget {budget}).",
    ]
    if "questions" in figures:
        lines += [
            "",
            "Questions: share of texts that answer the question as the answer's own fields demand, for a question it "
            "was trained on and one of the same topic kept from training.",
            "",
            "| topic | trained | kept back |",
            "|---|---|---|",
            *(
                f"| {n} | {_percent(q['trained'])} | {_percent(q['kept_back'])} |"
                for n, q in figures["questions"].items()
            ),
        ]
    if "clip" in figures:
        lines += [
            "",
            f"Held-out real clip (daytime highway). It agrees with YOLOX-nano about whether there is a vehicle to be "
            f"counted in {_percent(figures['clip_vehicles'])} of the frames. Every 4th frame, answers counted:",
            "",
        ]
        lines += [
            f"- {name}: " + ", ".join(f"{v} {n}" for v, n in sorted(c.items(), key=lambda x: -x[1]))
            for name, c in figures["clip"].items()
        ]
    lines += [
        "",
        "## Limits",
        "- It knows one renderer's world and a handful of real highway pictures; elsewhere treat its answers as a "
        "demonstration. Real pictures of towns, rain, fog, dusk and night were not in its data.",
        "- All real stills are labelled `proceed`: on real pictures it is biased towards free roads.",
        "- Speed is not an input; advice that hangs on the own speed (headway, time to collision) is guessed from the "
        "picture" + (" and its change." if s.frames > 1 else "."),
        "- Advice only ever makes the vehicle more careful; nothing may rely on it for less.",
        "",
    ]
    return "\n".join(lines)
