"""Steps that train: render, teach, distil."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from triptych_forge.common import seed_everything
from triptych_forge.demo.context import (
    FIGURE_COLUMNS,
    Context,
    figure_row,
    progress_of,
)
from triptych_forge.demo.data import places, sequence_batches
from triptych_forge.demo.engines import figures_of, write_engine
from triptych_forge.distil.alignment import View, attention_maps, attention_pairs, by_depth, compare_mends
from triptych_forge.distil.losses import captured
from triptych_forge.distil.sequence import Clips, SequenceBatch, sequence_kd_loss
from triptych_forge.quantise.accept import measure_alternately, onnx_runner
from triptych_forge.report import Cell, Chart, Check, Section, Series, Table
from triptych_forge.vlm.model import MEASURE_KINDS, Vlm
from triptych_forge.vlm.teach import taught_by
from triptych_forge.vlm.train import parameters, train

ALPHA, TEMPERATURE = 0.5, 1.5
MEND_BATCHES = 4
WHOLE = -1 - MEASURE_KINDS
"""Place of the whole picture's token, before those of the quantities."""


def render(context: Context, folder: Path) -> Section:
    """Draw the drives."""
    learn, judge = context.scenes(), context.scenes(test=True)
    rows = []
    for name, scenes in (("to learn from", learn), ("to judge on", judge)):
        lights = Counter(t.light.name.lower() for d in scenes.truths for t in d if t.light is not None)
        weathers = Counter(t.weather.name.lower() for d in scenes.truths for t in d if t.weather is not None)
        pictures = sum(len(d) for d in scenes.truths)
        rows.append([name, len(scenes), pictures, lights["night"], weathers["rain"], weathers["fog"]])
    return Section(
        key="",
        title="",
        text="Drives of the built-in scenario with its ground truth. No picture is in both rows.",
        tables=[Table(columns=["drives", "number", "pictures", "at night", "in rain", "in fog"], rows=rows)],
    )


def teach(context: Context, folder: Path) -> Section:
    """Train the teacher."""
    recipe = context.recipe.training(context.recipe.teacher, context.recipe.teacher_steps)
    checkpoint = context.checkpoint(context.recipe.teacher, "teach", "teacher")
    seed_everything(recipe.seed, torch.get_num_threads())
    model = train(recipe, context.vocabulary, context.scenes(), *context.real(), checkpoint)
    engine = write_engine(model, recipe, folder / "engine")
    figures = figures_of(engine, context.scenes(test=True))
    return Section(
        key="",
        title="",
        text=f"The larger model, {parameters(model):,} parameters, {recipe.steps} steps of {recipe.batch} pictures.",
        tables=[Table(columns=FIGURE_COLUMNS, rows=[figure_row("teacher", engine, figures)])],
    )


def distil(context: Context, folder: Path) -> Section:
    """Train the student twice, with and without its teacher's word, and diagnose how it looks at the picture."""
    log, scenes, unseen, vocabulary = (
        context.log(folder),
        context.scenes(),
        context.scenes(test=True),
        context.vocabulary,
    )
    teacher = context.teacher()
    taught = taught_by(teacher, vocabulary, scenes, context.trained or folder)
    rows, models = [], {}
    controls = [("alone", 0.0)] if context.recipe.control else []
    for name, share in (*controls, ("distilled", context.recipe.teacher_share)):
        recipe = context.recipe.training(context.recipe.student, context.recipe.student_steps, share)
        checkpoint = context.checkpoint(context.recipe.student, "distil", name)
        seed_everything(recipe.seed, torch.get_num_threads())
        models[name] = train(recipe, vocabulary, scenes, *context.real(), checkpoint, taught if share else None)
        engine = write_engine(models[name], recipe, folder / name)
        figures = figures_of(engine, unseen)
        rows.append(figure_row(f"student, {name}", engine, figures))
        log.add("distil.trained", name, teacher_share=share, steps=recipe.steps, figures=figures.as_dict())
    original = context.folder("teach") / "engine"
    teacher_row = figure_row("teacher", original, figures_of(original, unseen))
    judged = [teacher_row, *rows]
    student = models["distilled"]
    share = parameters(student) / parameters(teacher)
    speeds = [_relative_time(context, part, original, folder / "distilled") for part in ("encoder", "decoder")]
    mends = _mends(context, student, teacher, log) if context.recipe.control else []
    checks = [
        Check(text=f"The student has {share:.0%} of the teacher's parameters (at most 50 %).", held=share <= 0.5),
        Check(text=f"Its encoder takes {speeds[0]:.0%} of the teacher's time (less than all).", held=speeds[0] < 1),
    ]
    return Section(
        key="",
        title="",
        text="Token by token along true answers: alpha times cross-entropy with the truth, the rest the teacher's "
        "distribution at temperature 1.5.",
        checks=checks,
        tables=[
            Table(title="On unseen drives", columns=FIGURE_COLUMNS, rows=judged),
            *mends,
        ],
        charts=[
            Chart(
                kind="bars",
                title="All fields right, % of unseen pictures",
                y_label="%",
                series=[Series(name="right", x=[str(r[0]) for r in judged], y=[float(r[6] or 0) for r in judged])],
            )
        ],
    )


def _relative_time(context: Context, part: str, teacher: Path, student: Path) -> float:
    """Student's median time over the teacher's, one thread, in turns."""
    from triptych_forge.demo.data import decoder_inputs, encoder_feed

    scenes, runners, feeds = context.scenes(test=True), [], []
    for folder, model in ((teacher, context.teacher()), (student, context.student())):
        place = places(scenes)[0]
        if part == "encoder":
            feeds.append(encoder_feed(scenes, place, model.shape))
        else:
            feeds.append(decoder_inputs(model, context.vocabulary, scenes, [place])[0].feed())
        runners.append(onnx_runner(folder / f"{part}.onnx"))
    old, new = (lambda _: runners[0](feeds[0])), (lambda _: runners[1](feeds[1]))
    return measure_alternately(old, new, [{}], context.recipe.timed_runs).ratio


def _mends(context: Context, student: Vlm, teacher: Vlm, log: Any) -> list[Table]:
    """Where the student looks, against where its teacher looks; two ways to bring it nearer, and none."""
    vocabulary, roads = context.vocabulary, _road_tokens(context)
    pairs = by_depth(*([f"decoder.layers.{i}" for i in range(m.shape.layers)] for m in (student, teacher)))
    source = sequence_batches(
        context.scenes(),
        context.real(),
        vocabulary,
        student.shape,
        teacher.shape,
        context.recipe.batch,
        context.recipe.seed + 1,
        0,
    )
    batches = [next(source) for _ in range(MEND_BATCHES)]

    def looked(model: Vlm, clips: Clips, batch: SequenceBatch) -> tuple[Any, torch.Tensor]:
        with captured(model, ["encoder.norm"]) as seen:
            attended = attention_maps(model, clips.frames, clips.ages_s, batch.rows.tokens[:, :-1], before=clips.before)
        return attended, seen["encoder.norm"][:, WHOLE]

    def view(mine: Any, theirs: Any, batch: SequenceBatch) -> View:
        labels = torch.tensor([roads.get(int(token), -1) for token in batch.rows.tokens[:, 2]])
        maps = attention_pairs(mine[0].maps, theirs[0].maps, pairs, batch.rows.weights > 0)
        task = sequence_kd_loss(mine[0].logits, theirs[0].logits, batch.rows, ALPHA, TEMPERATURE)
        return View(maps, mine[1], theirs[1], labels, task)

    with progress_of("mending the alignment") as progress:
        table = compare_mends(
            student,
            teacher,
            batches,
            view,
            labels=len(roads),
            steps=context.recipe.mend_steps,
            rate=5e-4,
            run_student=lambda model, batch: looked(model, batch.student, batch),
            run_teacher=lambda model, batch: looked(model, batch.teacher, batch),
            seed=context.recipe.seed,
            log=log,
            progress=progress,
        )
    ways = list(table.after)
    rows: list[list[Cell]] = [
        [row.layer, row.weak, row.mean_kl_nats, *(table.after[way].diagnosis.layers[at].mean_kl_nats for way in ways)]
        for at, row in enumerate(table.before.diagnosis.layers)
    ]
    rows.append(["loss of the task", None, table.before.task_loss, *(table.after[way].task_loss for way in ways)])
    return [
        Table(
            title="Where the student looks: divergence of its attention to the picture from its teacher's, nats",
            columns=["layer", "weak", "before", *(f"after: {way.replace('_', ' ')}" for way in ways)],
            rows=rows,
            note=f"Weak: above {table.before.diagnosis.limit_nats:.3g} nats ({table.before.diagnosis.rule}). Each way "
            f"of mending, and training on without one, ran {context.recipe.mend_steps} steps on the same "
            f"{MEND_BATCHES} batches.",
        )
    ]


def _road_tokens(context: Context) -> dict[int, int]:
    tokens = [i for i, t in enumerate(context.vocabulary.tokens) if t.startswith("road:")]
    return {token: number for number, token in enumerate(tokens)}
