"""Steps that adapt the student, prove what it says, and pack it: adapt, verify, bundle."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from triptych.engines.check import check
from triptych.engines.session import OnnxSession
from triptych.language.adapters import AdaptedSession, AdapterStore, measure
from triptych_forge.adapt.export import export_switchable, write_adapter
from triptych_forge.adapt.lora import SCENES as WHEN
from triptych_forge.adapt.lora import Adapter, attach, merge, model_sha256, save_adapter, train_adapter
from triptych_forge.bundle import CARD_FILE, DECISIONS_FILE, FIDELITY_FILE, RECIPE_FILE, check_bundle, write_bundle
from triptych_forge.decisions import DecisionLog, canonical, joined_log
from triptych_forge.demo.context import Context, progress_of
from triptych_forge.demo.data import decoder_inputs, places, scene_batch, spread
from triptych_forge.demo.engines import ANY_GOLDEN, describe, golden_of
from triptych_forge.demo.recipe import NAME, SCENES
from triptych_forge.distil.sequence import Clips, Rows
from triptych_forge.files import sha256_of
from triptych_forge.quantise import record
from triptych_forge.report import Check, Section, Table
from triptych_forge.sections import gate_table, vehicle_checks
from triptych_forge.verify.command import load_report, verify
from triptych_forge.verify.conversion import ConversionLimits, conversion_gate
from triptych_forge.verify.engines import BundleSubject, TorchSubject, exported_names, heads_of
from triptych_forge.verify.scenes import FIRST_SEED, drive_views, to_samples
from triptych_forge.vlm.model import Vlm
from triptych_forge.vlm.release import card, figures, write_manifest
from triptych_forge.vlm.scenes import Scenes

ADAPTER_BATCH = 16
ADAPTER_RATE = 5e-4
MERGED_DIFFERENCE = 1e-5
BASE_DIFFERENCE = 1e-4
"""Of logits: the sum with an adapter's zeros is exact, but beside it the runtime fuses other operators."""
BASE_PICTURES = 24
WORDS_PER_ANSWER = 18


def adapt_step(context: Context, folder: Path) -> Section:
    """An adapter per scene: trained, merged, and switched without rebuilding."""
    log, model, scenes, unseen = context.log(folder), context.pruned(), context.scenes(), context.scenes(test=True)
    vocabulary, recipe = context.vocabulary, context.recipe
    decoder, base = model.decoder, model_sha256(model.decoder)
    plain = context.folder("quantise") / "float" / "decoder.onnx"
    judged = {scene: _batch(context, model, unseen, scene, 1) for scene in SCENES}
    rows, merged, adapters = [], [], {}
    for scene in SCENES:
        batches = [_batch(context, model, scenes, scene, number) for number in range(recipe.adapter_batches)]
        with progress_of(f"adapter for {scene}") as progress:
            trained = train_adapter(
                decoder, batches, _loss, scene=scene, rank=recipe.rank, alpha=2.0 * recipe.rank,
                steps=recipe.adapter_steps, seed=recipe.seed, learning_rate=ADAPTER_RATE, recipe=asdict(recipe),
                progress=progress, log=log,
            ).adapter  # fmt: skip
        adapters[scene] = trained
        save_adapter(folder / f"{scene}.safetensors", trained)
        whole = merge(decoder, trained)
        merged.append(_greatest_difference(attach(decoder, trained), whole, judged[scene]))
        with torch.no_grad():
            losses = [float(_loss(net, judged[scene])) for net in (decoder, whole)]
        size = sum(t.numel() for t in trained.tensors.values())
        helps = losses[1] < losses[0]
        rows.append([scene, size, losses[0], losses[1], merged[-1], helps])
        log.add("adapt.keep" if helps else "adapt.drop", scene, loss_before=losses[0], loss_after=losses[1])
    graph = export_switchable(plain, folder / "decoder.onnx", adapters[SCENES[0]].layers, base)
    feed = decoder_inputs(model, vocabulary, unseen, places(unseen)[:1])[0].feed()
    same, times, names = _switched(folder, graph, adapters, feed)
    log.add("adapt.switch", "decoder", exact=same, switch_ms=times.switch_ms)
    return Section(
        key="",
        title="",
        text=f"Low-rank adapters (rank {recipe.rank}) of the decoder. Merged, they cost nothing at run time; exchanged "
        "at run time, the graph stays as it is and content, not name, decides what is used.",
        checks=[
            Check(
                text=f"Merged and unmerged agree within {MERGED_DIFFERENCE:g} of the greatest logit "
                f"({max(merged):.1e}).",
                held=max(merged) <= MERGED_DIFFERENCE,
            ),
            Check(text=f"{names[0]}, {names[1]}, {names[0]} again: the same output bit for bit.", held=same),
        ],
        tables=[
            Table(
                title="Adapters",
                columns=["scene", "parameters", "loss before, nats", "loss after, nats", "merged differs by", "kept"],
                rows=rows,
                note="Losses are on pictures of that scene from unseen drives; who does not lower it is not kept.",
            ),
            Table(
                title="Switching",
                columns=["switch, ms", "first run after it, ms", "a run without a switch, ms"],
                rows=[[times.switch_ms, times.first_run_ms, times.steady_run_ms]],
            ),
        ],
    )


def _batch(
    context: Context, model: Vlm, scenes: object, scene: str, number: int
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Tokens, picture memory and weights of some places of a scene."""
    found = places(scenes, scene)  # type: ignore[arg-type]
    clips, rows = scene_batch(context.vocabulary, scenes, spread(found, ADAPTER_BATCH, number), model.shape)  # type: ignore[arg-type]
    return _remembered(model, clips, rows)


@torch.no_grad()
def _remembered(model: Vlm, clips: Clips, rows: Rows) -> tuple[Tensor, list[Tensor], Tensor]:
    return rows.tokens, model.encoder(clips.frames, clips.ages_s), rows.weights


def _logits(decoder: nn.Module, batch: tuple[Tensor, list[Tensor], Tensor]) -> Tensor:
    tokens, memory, _ = batch
    ids = tokens[:, :-1]
    logits: Tensor = decoder(ids, torch.arange(ids.shape[1]).expand_as(ids), memory)[0]
    return logits


def _loss(decoder: nn.Module, batch: tuple[Tensor, list[Tensor], Tensor]) -> Tensor:
    """Cross-entropy with the true next tokens, nats."""
    tokens, _, weights = batch
    found = nn.functional.cross_entropy(_logits(decoder, batch).transpose(1, 2), tokens[:, 1:], reduction="none")
    return (found * weights).sum() / weights.sum()


@torch.no_grad()
def _greatest_difference(one: nn.Module, other: nn.Module, batch: tuple[Tensor, list[Tensor], Tensor]) -> float:
    """Of logits, as a share of the greatest one: what float32 rounds grows with it."""
    said, wanted = _logits(one, batch), _logits(other, batch)
    return float((said - wanted).abs().max() / wanted.abs().max())


def _switched(folder: Path, graph: Path, adapters: dict[str, Adapter], feed: dict) -> tuple:  # type: ignore[type-arg]
    """A, B, A: whether the first and the last output are the same bit for bit; and the times of switching."""
    session = AdaptedSession(graph)
    store = AdapterStore(session)
    names = list(adapters)
    for name, adapter in adapters.items():
        path = folder / f"{name}.onnx_adapter"
        store.load(path, name, write_adapter(adapter, path))
    outputs = []
    for name in (names[0], names[1], names[0]):
        store.use(name)
        outputs.append([np.asarray(o).copy() for o in session.run(feed)])
    same = all(np.array_equal(a, b) for a, b in zip(outputs[0], outputs[2], strict=True))
    differ = not np.array_equal(outputs[0][0], outputs[1][0])
    return same and differ, measure(session, store, names, feed), names


class TeacherForced(nn.Module):
    """A VLM with the inputs of a bundle: (N, H, W, 3) frames, (N,) ages, (1, T) tokens to logits.

    Its parts carry the names that the exported graphs' tensors begin with.
    """

    def __init__(self, model: Vlm) -> None:
        super().__init__()
        self.encoder, self.decoder = model.encoder, model.decoder

    def forward(self, frames: Tensor, ages_s: Tensor, input_ids: Tensor) -> Tensor:
        """(1, T, vocabulary)."""
        memory = self.encoder(frames[None], ages_s[None])
        logits: Tensor = self.decoder(input_ids, torch.arange(input_ids.shape[1])[None], memory)[0]
        return logits


def layer_names(one: TorchSubject, other: BundleSubject) -> dict[str, str]:
    """Which tensor of the bundle's graphs holds the output of which module; ``one`` must have run."""
    found: dict[str, str] = {}
    for part in ("encoder/", "decoder/"):
        tensors = [name.removeprefix(part) for name in other.intermediates if name.startswith(part)]
        found |= {module: part + tensor for module, tensor in exported_names(one, tensors).items()}
    return found


def verify_step(context: Context, folder: Path) -> Section:
    """Two gates: the export says what torch says, and the small engine what the student said."""
    log, recipe = context.log(folder), context.recipe
    exported = BundleSubject(context.folder("quantise") / "float", "ONNX Runtime")
    torch_side = TorchSubject(TeacherForced(context.pruned()), exported.inputs, exported.outputs, "torch")
    count = -(-recipe.verify_positions // WORDS_PER_ANSWER)
    with progress_of("pictures to compare on") as progress:
        views = drive_views(count, 1, FIRST_SEED)
        samples = to_samples(exported, exported.manifest, views, count, progress)
    limits = ConversionLimits(positions_min=recipe.verify_positions)
    torch_side.run(samples[0].feeds)
    names = layer_names(torch_side, exported)
    with progress_of("conversion gate") as progress:
        conversion = conversion_gate(torch_side, exported, samples, heads_of(exported), limits, names, progress)
    original, small = context.folder("distil") / "distilled", context.folder("quantise") / "chosen"
    bars = progress_of("compression gate")
    with bars as progress:
        report = verify(
            original, small, out=folder, gate="compression", max_loss=recipe.max_loss,
            positions=recipe.verify_positions, progress=lambda _what, done, total: progress(done, total),
        )  # fmt: skip
    assert report.compression is not None
    log.add("verify.conversion", "pruned", passed=conversion.passed, reasons=conversion.reasons)
    log.add("verify.compression", "engine", passed=report.passed, reasons=report.reasons)
    kinds = ", ".join(sorted({f.kind for f in report.findings})) or "none"
    return Section(
        key="",
        title="",
        text="Conversion: same numerics, the exported graph against torch, token by token along true answers. "
        "Compression: pruned and quantised against the student as distilled; at most "
        f"{recipe.max_loss:.0%} may be lost.",
        checks=[
            Check(text=f"Conversion gate passed on {conversion.samples} pictures.", held=conversion.passed),
            Check(text=f"Compression gate passed on {report.compression.samples} pictures.", held=report.passed),
        ],
        tables=[
            gate_table("Conversion gate: torch against ONNX Runtime", conversion.checks),
            gate_table("Compression gate: whole student against the small engine", report.compression.checks),
            Table(
                title="By condition",
                columns=["condition", "metric", "pictures", "whole", "small", "loss"],
                rows=[
                    [s.slice, s.metric, s.samples, s.original, s.compressed, s.loss] for s in report.compression.slices
                ],
                note=f"Kinds of error found: {kinds}.",
            ),
        ],
    )


def bundle_step(context: Context, folder: Path) -> Section:
    """Everything a vehicle needs, and the evidence of how it came to be; checked as the vehicle would."""
    recipe = context.recipe
    chosen, work = context.folder("quantise") / "chosen", folder / "engine"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(chosen, work)
    model, unseen = context.pruned(), context.scenes(test=True)
    training = recipe.training(recipe.student, recipe.student_steps, recipe.teacher_share)
    steps = ("distil", "prune", "quantise", "adapt", "verify")
    parts = {step: context.folder(step) / DECISIONS_FILE for step in steps}
    log = joined_log(folder / DECISIONS_FILE, asdict(recipe), parts)
    adapters, about = _adapters_to_ship(context, log)
    if adapters:
        shutil.copyfile(context.folder("adapt") / "decoder.onnx", work / "decoder.onnx")
        describe(model, training, work, ANY_GOLDEN, recipe.engine)
    describe(model, training, work, golden_of(work, unseen), recipe.engine)
    base_check = _list_adapters(context, work, adapters, unseen) if adapters else []
    recorded = context.folder("quantise") / record.FILE
    calibration = record.CalibrationRecord.load(recorded).sha256
    files: dict[str, Path | bytes] = {p.relative_to(work).as_posix(): p for p in sorted(work.rglob("*")) if p.is_file()}
    files |= {
        RECIPE_FILE: (json.dumps(asdict(recipe), indent=1) + "\n").encode(),
        DECISIONS_FILE: log.path,
        FIDELITY_FILE: context.folder("verify") / "fidelity.json",
        record.FILE: recorded,
        CARD_FILE: _card(context, work, about).encode(),
    }
    bundle = write_bundle(folder / "bundle", files, calibration)
    again = write_bundle(folder / "again", files, calibration)
    shutil.rmtree(folder / "again")
    rows = check(folder / "bundle")
    checked = check_bundle(folder / "bundle")
    kinds: dict[str, int] = {}
    for decision in log.decisions:
        kinds[decision.kind] = kinds.get(decision.kind, 0) + 1
    return Section(
        key="",
        title="",
        text=f"Content hash {bundle.content_sha256}. `triptych engines check` and `triptych forge check` take it. "
        + about,
        checks=[
            Check(
                text="The vehicle's own checks accept the engine, its start-up self-test included.",
                held=all(row.ok for row in rows),
            ),
            Check(text="Every file is as listed, and the decision log's chain is whole.", held=checked == bundle),
            Check(
                text="Packed again from the same files, its content has the same hash.",
                held=again.content_sha256 == bundle.content_sha256,
            ),
            *base_check,
        ],
        tables=[
            vehicle_checks(rows),
            Table(
                title="Decisions on record",
                columns=["kind", "number"],
                rows=[[kind, number] for kind, number in sorted(kinds.items())],
            ),
            Table(
                title="Files",
                columns=["file", "kind", "bytes", "SHA-256"],
                rows=[
                    [name, kind, (folder / "bundle" / name).stat().st_size, digest[:16]]
                    for kind, listed in (("content", bundle.content), ("evidence", bundle.evidence))
                    for name, digest in listed.items()
                ],
            ),
        ],
    )  # fmt: skip


def _adapters_to_ship(context: Context, log: DecisionLog) -> tuple[list[str], str]:
    """Scenes whose adapters go into the bundle, and a sentence about it; goes on record."""
    kept = [d.subject for d in log.decisions if d.kind == "adapt.keep"]
    taken, floating = (context.folder("quantise") / name / "decoder.onnx" for name in ("chosen", "float"))
    shipped = kept if sha256_of(taken) == sha256_of(floating) else []
    if shipped:
        about = (
            f"Its decoder switches between the base weights and adapters for {' and '.join(shipped)}. The gates judged "
            "the base weights; the adapters were judged by their loss, over the float encoder and decoder."
        )
    elif kept:
        about = (
            f"The adapters for {' and '.join(kept)} are not in it: they were trained and judged over the float "
            "decoder, and a quantised one was taken."
        )
    else:
        about = "No adapter is in it, since none lowered the loss on its scene."
    log.add("adapt.ship", "engine", shipped=shipped, reason=about, step="bundle")
    return shipped, about


def _list_adapters(context: Context, work: Path, adapters: list[str], unseen: Scenes) -> list[Check]:
    """Put the adapters beside the engine and into its manifest; its base weights must be what the gates judged."""
    content = yaml.safe_load((work / "manifest.yaml").read_text(encoding="utf-8"))
    content["adapters"] = {}
    for scene in adapters:
        path = work / "adapters" / f"{scene}.onnx_adapter"
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(context.folder("adapt") / path.name, path)
        name = path.relative_to(work).as_posix()
        content["adapters"][scene] = {"path": name, "sha256": sha256_of(path), "when": dict(WHEN[scene])}
    write_manifest(work, content)
    judged, shipped = (OnnxSession(f / "decoder.onnx") for f in (context.folder("quantise") / "chosen", work))
    chosen = spread(places(unseen), BASE_PICTURES)
    feeds = [text.feed() for text in decoder_inputs(context.pruned(), context.vocabulary, unseen, chosen)]
    apart = max(float(np.abs(judged.run(feed)[0] - shipped.run(feed)[0]).max()) for feed in feeds)
    return [
        Check(
            text=f"Without an adapter the decoder gives the logits of the one that the gates judged, within "
            f"{BASE_DIFFERENCE:g} (greatest difference {apart:.1e}).",
            held=apart <= BASE_DIFFERENCE,
        )
    ]


def _card(context: Context, work: Path, about_adapters: str) -> str:
    report = load_report(context.folder("verify") / FIDELITY_FILE)
    assert report.compression is not None
    recipe = context.recipe
    if recipe.engine == NAME:
        lines = [
            "# forge-demo",
            "",
            "A small vision-language model that shows the tool chain. It is no engine to drive with.",
            "",
            f"Recipe: `{canonical(asdict(recipe))}`",
        ]
    else:
        training = recipe.training(recipe.student, recipe.student_steps, recipe.teacher_share)
        facts = {"recipe": "triptych forge build vlm", **asdict(recipe)}
        found = figures(work, context.pruned(), training, context.scenes(test=True), context.data, facts)
        lines = [card(context.pruned(), training, found)]
    lines += [
        "",
        f"Compression gate: {'passed' if report.passed else 'failed'} on {report.samples} pictures of {report.data}.",
        "",
        "| metric | whole student | this engine |",
        "|---|---|---|",
        *(f"| {m.metric} | {m.original:.3f} | {m.compressed:.3f} |" for m in report.compression.metrics),
        "",
        about_adapters,
        "",
    ]
    return "\n".join(lines)
