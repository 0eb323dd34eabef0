"""Steps that make the student smaller: prune, quantise."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triptych_forge.decisions import DecisionLog, config_hash
from triptych_forge.demo.context import FIGURE_COLUMNS, SHAPES, Context, figure_row, progress_of
from triptych_forge.demo.data import IN_SCENE, Place, decoder_inputs, encoder_feed, places, sequence_batches, spread
from triptych_forge.demo.engines import ANY_GOLDEN, describe, figures_of, graph_bytes, write_engine
from triptych_forge.distil.loop import Options, Run, distil
from triptych_forge.distil.sequence import SequenceBatch, run_student, run_teacher, sequence_loss
from triptych_forge.prune.sensitivity import sensitivity
from triptych_forge.prune.structured import PruneResult, Target, prune, save_pruned
from triptych_forge.quantise import record
from triptych_forge.quantise.accept import accept_if_faster
from triptych_forge.quantise.measure import Feeds
from triptych_forge.quantise.ptq import PtqOptions, compare_methods, layers, prepare
from triptych_forge.quantise.weights import QatPlan, compare_weight_methods, standard_makers
from triptych_forge.report import Chart, Check, Section, Series, Table
from triptych_forge.sections import pruning
from triptych_forge.verify.scenes import SMALL_PX
from triptych_forge.vlm.model import Shape
from triptych_forge.vlm.scenes import RENDER_PX, Scenes

PROTECTED = ("decoder", "encoder.keys_values", "encoder.finder", "encoder.whole", "encoder.asking")
"""The decoder is quantised; keys, values and the tokens of the whole picture and of quantities are what it reads."""
TUNE_RATE = 1e-3
FISHER_BATCHES = 6
LARGEST_ERROR = 0.06
"""Relative L2 on unseen pictures above which a candidate is not taken, however fast."""
TAKEN, TOO_FAR, SLOWER = "taken", "too far off", "slower"
NOISE = 0.05
"""The verdict rests on the ratio of each pair of runs; the medians shown may differ from it by this much."""


def run_all(model: nn.Module, *inputs: Tensor) -> object:
    """Everything that must stay consistent: logits and what is where."""
    return model(*inputs)


def in_bfloat16(run: Run) -> Run:
    """``run`` as the models were trained: matrices in bfloat16, what comes out in float32."""

    def mixed(model: nn.Module, batch: SequenceBatch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = run(model, batch)
        return out.float()

    return mixed


def prune_step(context: Context, folder: Path) -> Section:
    """Take channels out of the encoder, then train on: from the truth alone, and with the teacher."""
    log, unseen = context.log(folder), context.scenes(test=True)
    student, teacher = context.student(), context.teacher()
    recipe = context.recipe.training(context.recipe.student, context.recipe.student_steps)
    first = next(_batches(context, 0))
    example = (first.student.frames[:1], first.student.ages_s[:1], first.rows.tokens[:1, :-1])

    def true_loss(model: nn.Module, batch: SequenceBatch) -> Tensor:
        logits = run_student(model, batch)  # type: ignore[arg-type]
        return sequence_loss(1.0, 1.0)(logits, logits.detach(), batch)

    source = _batches(context, 100_000)
    with progress_of("sensitivity") as progress:
        fisher = sensitivity(student, [next(source) for _ in range(FISHER_BATCHES)], true_loss, progress=progress)
    found = {
        rule: prune(
            student, example, Target(ratio=context.recipe.prune_ratio), forward=run_all, protect=PROTECTED,
            sensitivities=known, importance="sensitivity" if known else "l1", round_to=4, log=log,
            subject=f"student, {rule}",
        )
        for rule, known in (("same share", None), ("by sensitivity", fisher))
    }  # fmt: skip
    pruned = found["by sensitivity"]
    whole = context.folder("distil") / "distilled"
    rows = [figure_row("student, whole", whole, figures_of(whole, unseen))]
    kept: dict[str, nn.Module] = {}
    for name, result in found.items():
        engine = write_engine(result.model, recipe, folder / name.replace(" ", "-"))  # type: ignore[arg-type]
        rows.append(figure_row(f"pruned, {name}, not tuned", engine, figures_of(engine, unseen)))
    losses: list[Series] = []
    controls = [("truth alone", 1.0)] if context.recipe.control else []
    for name, alpha in (*controls, ("with distillation", 1.0 - context.recipe.teacher_share)):
        model = copy.deepcopy(pruned.model)
        with progress_of(f"tuning, {name}") as progress:
            outcome = distil(
                model, teacher, lambda step: _batches(context, 200_000 + step), sequence_loss(alpha, 1.5),
                context.recipe.tune_steps, TUNE_RATE, _checkpoint(context, folder, name), log, progress,
                options=Options(warm_up_steps=20, average=0.98, clip_norm=1.0), seed=context.recipe.seed,
                run_student=in_bfloat16(run_student), run_teacher=in_bfloat16(run_teacher),
                subject=f"pruned student, {name}",
            )  # fmt: skip
        kept[name] = model
        engine = write_engine(model, recipe, folder / f"tuned-{name.replace(' ', '-')}")  # type: ignore[arg-type]
        rows.append(figure_row(f"pruned, tuned, {name}", engine, figures_of(engine, unseen)))
        losses.append(_smoothed(name, outcome.losses))
    save_pruned(folder / "pruned.safetensors", kept["with distillation"])
    log.add("prune.taken", "with distillation", rows={str(r[0]): r[1:] for r in rows})
    return _prune_section(context, pruned, rows, losses)


def _checkpoint(context: Context, folder: Path, name: str) -> Path:
    """Of this recipe; those of others are removed, since a run can only go on with its own."""
    stem = f"tuning-{name.replace(' ', '-')}-"
    own = folder / f"{stem}{config_hash(asdict(context.recipe))[:12]}.safetensors"
    for other in folder.glob(f"{stem}*.safetensors"):
        if other != own:
            other.unlink()
    return own


def _prune_section(context: Context, pruned: PruneResult, rows: list, losses: list[Series]) -> Section:  # type: ignore[type-arg]
    before, after = pruned.before, pruned.after
    exact, tables = pruning(pruned)
    return Section(
        key="",
        title="",
        text=f"{pruned.removed_share:.0%} of the encoder's prunable channels went, the least sensitive first; the "
        "decoder is left to quantisation.",
        checks=[
            exact,
            Check(
                text=f"It reads {before.bytes_read / after.bytes_read:.2f} times fewer bytes.",
                held=after.bytes_read < before.bytes_read,
            ),
        ],
        tables=[
            Table(title="On unseen drives", columns=FIGURE_COLUMNS, rows=rows),
            *tables,
        ],
        charts=[Chart(kind="line", title="Loss while tuning", x_label="step", y_label="loss, nats", series=losses)],
    )  # fmt: skip


def _smoothed(name: str, losses: tuple[float, ...], points: int = 40) -> Series:
    width = max(1, len(losses) // points)
    x = [start + width / 2 for start in range(0, len(losses) - width + 1, width)]
    return Series(
        name=name, x=x, y=[sum(losses[s : s + width]) / width for s in range(0, len(losses) - width + 1, width)]
    )


def _batches(context: Context, first: int) -> Iterator[SequenceBatch]:
    return sequence_batches(
        context.scenes(), context.real(), context.vocabulary, SHAPES[context.recipe.student],
        SHAPES[context.recipe.teacher], context.recipe.batch, context.recipe.seed, first,
    )  # fmt: skip


@dataclass(frozen=True)
class _Candidate:
    """A smaller engine; ``error``: relative L2 of its outputs on unseen pictures."""

    name: str
    path: Path
    error: float


def _choose(
    context: Context,
    log: DecisionLog,
    part: str,
    parent: Path,
    candidates: Sequence[_Candidate],
    feeds: Sequence[Mapping[str, Any]],
) -> tuple[Path, list[list[Any]]]:
    """The first candidate that is near its parent and not slower, else the parent; and a row for each looked at."""
    rows: list[list[Any]] = []
    for one in candidates:
        if one.error > LARGEST_ERROR:
            log.add("quantise.reject", one.path.name, error=one.error, reason=f"more than {LARGEST_ERROR:.0%} off")
            rows.append([part, one.name, one.error, None, None, TOO_FAR])
            continue
        verdict = accept_if_faster(parent, one.path, feeds, log, runs=context.recipe.timed_runs)
        times = [verdict.parent.median_ms, verdict.child.median_ms]
        rows.append([part, one.name, one.error, *times, TAKEN if verdict.accepted else SLOWER])
        if verdict.accepted:
            return one.path, rows
    return parent, rows


def _slices(scenes: Scenes, shape: Shape, count: int) -> dict[str, list[Feeds]]:
    """Up to ``count`` pictures of each condition that the drives hold."""
    found = {name: places(scenes, name) for name in IN_SCENE}
    found["small objects"] = [place for place in places(scenes) if _has_small_objects(scenes, place)]
    return {
        name: [encoder_feed(scenes, place, shape) for place in spread(every, count)]
        for name, every in found.items()
        if every
    }


def _has_small_objects(scenes: Scenes, place: Place) -> bool:
    """Whether an object is lower than the compression gate's :data:`SMALL_PX`."""
    if not scenes.objects:
        return False
    objects = scenes.objects[place[0]][place[1]]
    return bool(((objects[:, 4] - objects[:, 2]) * RENDER_PX[1] < SMALL_PX).any())


def quantise_step(context: Context, folder: Path) -> Section:
    """Integers in the encoder, 4 or 8 bits in the decoder; only what is not slower than its parent is taken."""
    log, scenes, unseen, model = context.log(folder), context.scenes(), context.scenes(test=True), context.pruned()
    recipe = context.recipe.training(context.recipe.student, context.recipe.student_steps)
    parent = write_engine(model, recipe, folder / "float")
    every, count = places(scenes), context.recipe.calibration
    calibration = [encoder_feed(scenes, place, model.shape) for place in spread(every, count)]
    held_out = [encoder_feed(unseen, place, model.shape) for place in spread(places(unseen), count)]
    prepared = prepare(parent / "encoder.onnx", folder / "prepared.onnx")
    slices = _slices(unseen, model.shape, count)
    with progress_of("ranges of the encoder") as progress:
        methods = compare_methods(
            prepared, calibration, held_out, folder / "encoder", PtqOptions(), slices=slices, log=log,
            progress=progress,
        )  # fmt: skip
    texts = decoder_inputs(model, context.vocabulary, scenes, spread(every, count, 1))
    unseen_texts = decoder_inputs(model, context.vocabulary, unseen, spread(places(unseen), count, 1))
    makers = standard_makers(model.decoder, texts, plan=QatPlan(steps=context.recipe.qat_steps))
    with progress_of("decoders") as progress:
        rows = compare_weight_methods(
            parent / "decoder.onnx", makers, [t.feed() for t in unseen_texts], folder / "decoder", log=log,
            runs=context.recipe.timed_runs // 2, progress=progress,
        )  # fmt: skip
    encoders = [_Candidate(m.method, folder / "encoder" / f"{m.method}.onnx", m.error) for m in methods[:1]]
    decoders = [
        _Candidate(row.method, folder / "decoder" / f"{row.method}.onnx", row.error)
        for row in sorted(rows[1:], key=lambda row: (row.bytes, row.kl))
    ]
    texts_fed = [text.feed() for text in unseen_texts]
    encoder, decisions = _choose(context, log, "encoder", parent / "encoder.onnx", encoders, held_out)
    decoder, more = _choose(context, log, "decoder", parent / "decoder.onnx", decoders, texts_fed)
    decisions += more
    chosen = folder / "chosen"
    chosen.mkdir(exist_ok=True)
    for name, source in (("encoder.onnx", encoder), ("decoder.onnx", decoder)):
        (chosen / name).write_bytes(source.read_bytes())
    describe(model, recipe, chosen, ANY_GOLDEN)
    log.add("quantise.chosen", "engine", encoder=encoder.name, decoder=decoder.name, bytes=graph_bytes(chosen))
    recorded = record.record_of(calibration, {"frames": 3}, [t.feed() for t in texts])
    recorded.save(folder / record.FILE)
    quantised = len(layers(prepared))
    return Section(
        key="",
        title="",
        text=f"The encoder's {quantised} weighted layers to 8-bit integers, weights per channel, ranges from "
        f"{count} training pictures; the decoder's matrices to 4 bits in groups of 32 inputs, or to 8.",
        checks=[
            Check(
                text=f"Nothing was taken that is slower than its parent or more than {LARGEST_ERROR:.0%} off.",
                held=all(
                    row[4] <= row[3] * (1 + NOISE) and row[2] <= LARGEST_ERROR for row in decisions if row[5] == TAKEN
                ),
            ),
        ],
        tables=[
            Table(
                title="Ranges of the encoder",
                columns=["method", "relative L2 on unseen pictures", *slices],
                rows=[[m.method, m.error, *(m.slices[name] for name in slices)] for m in methods],
                note="Behind it the same error where it is night, where it rains, and where something is lower than "
                f"{SMALL_PX} of {RENDER_PX[1]} lines.",
            ),
            Table(
                title="One decoder, several ways",
                columns=["method", "bytes", "relative L2", "KL, nats", "ms", "speed against float", "beats rounding"],
                rows=[[r.method, r.bytes, r.error, r.kl, r.median_ms, r.speed, r.beats_rtn] for r in rows],
                note="rtn: round to nearest. ptq-int8 and qat-int8: 8 bits, without and with training.",
            ),
            Table(
                title="Taken only if near its parent and not slower",
                columns=["part", "candidate", "relative L2", "parent ms", "candidate ms", "verdict"],
                rows=decisions,
                note="Smallest first; the first that is taken ends the search. Times are medians, taken in turns.",
            ),
            Table(
                title="On unseen drives",
                columns=FIGURE_COLUMNS,
                rows=[
                    figure_row("pruned, float", parent, figures_of(parent, unseen)),
                    figure_row("as chosen", chosen, figures_of(chosen, unseen)),
                ],
            ),
        ],
        charts=[
            Chart(
                kind="scatter",
                title="Size of the decoder against its error",
                x_label="kB",
                y_label="relative L2 of the logits",
                series=[Series(name=r.method, x=[r.bytes / 1e3], y=[r.error]) for r in rows if r.method != "float"],
            )
        ],
    )
