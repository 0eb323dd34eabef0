"""The training code: what is learnt and what is not, and that a resumed run is an unbroken one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the forge extra (torch)")

import torch

from triptych.contract import Advice, ConfigError, Hazard, Light, Road, Weather
from triptych.scenario import Situation, assess
from triptych_forge.common import seed_everything
from triptych_forge.vlm.batches import Sampler, Taught, ask, clip_ticks, grid_of, token_row
from triptych_forge.vlm.measures import QUANTITIES, enlarged, measured
from triptych_forge.vlm.model import MEASURE_KINDS, OBJECT_KINDS, SHAPES, Vlm
from triptych_forge.vlm.real import HELD_OUT, STILLS, Real, unseen_picture
from triptych_forge.vlm.scenes import OBJECTS, RIG, STORED_PX, Scenes, config_of, counted, objects_of
from triptych_forge.vlm.teach import POSITIONS
from triptych_forge.vlm.train import RECIPES, finding_loss, measuring_loss, train, with_numbers
from triptych_forge.vlm.words import ASKED, OTHER, STANDING, Truth, make_vocabulary

VOCABULARY = make_vocabulary()
FULL_TRUTH = Truth(Road.URBAN, Weather.RAIN, Light.NIGHT, (Hazard.RED_LIGHT,), Advice.STOP, (1, 0, 2))


def scenes(ticks: int = 8, objects: bool = False) -> Scenes:
    generator = np.random.default_rng(0)
    shard = generator.integers(0, 255, (20, ticks, STORED_PX[1], STORED_PX[0], 3), dtype=np.uint8)
    rows = tuple(tuple(FULL_TRUTH for _ in range(ticks)) for _ in range(20))
    box = np.array([[OBJECTS.index("red_light"), 0.45, 0.3, 0.55, 0.5]], np.float32)
    if not objects:
        return Scenes((shard,), rows)
    situation = Situation(speed_mps=10.0, red_light_m=20.0)
    return Scenes((shard,), rows, ((box,) * ticks,) * 20, ((situation,) * ticks,) * 20)


NONE = Real((), ())


def sampler(kind: str = "distilled", teacher: Taught | None = None, stills: Real = NONE) -> Sampler:
    return Sampler(SHAPES[kind], scenes(), stills, NONE, VOCABULARY, 3, 2, 5, teacher)


@pytest.mark.parametrize(
    ("truth", "learnt"),
    [
        (FULL_TRUTH, "all"),
        (Truth(None, Weather.CLEAR, Light.DAY, None, None), {"weather:clear", "light:day"}),
        (Truth(Road.HIGHWAY, None, None, None, None), {"road:highway"}),
        (Truth(Road.HIGHWAY, Weather.CLEAR, Light.DAY, (), None), {"road:highway", "weather:clear", "light:day"}),
        (
            Truth(Road.HIGHWAY, Weather.CLEAR, Light.DAY, None, None, (12, 0, None)),
            {"road:highway", "weather:clear", "light:day", "vehicles:9", "two_wheelers:0"},
        ),
    ],
)
def test_what_is_not_known_is_not_learnt(truth: Truth, learnt: object) -> None:
    row, weights = token_row(VOCABULARY, "", truth, STANDING)
    assert len(weights) == len(row) - 1
    names = {VOCABULARY.tokens[row[i + 1]] for i, weight in enumerate(weights) if weight > 0}
    if learnt == "all":
        assert {
            "road:urban",
            "vehicles:1",
            "two_wheelers:0",
            "pedestrians:2",
            "hazard:red_light",
            "advice:stop",
            "<eos>",
        } <= names
        assert "<answer>" not in names
    else:
        assert names == learnt


def test_the_prompt_is_never_learnt() -> None:
    row, weights = token_row(VOCABULARY, "what is the weather", FULL_TRUTH, ASKED[0])
    answer_at = row.index(VOCABULARY.answer)
    assert all(weight == 0 for weight in weights[:answer_at]) and weights[answer_at] == 1.0


def test_the_last_question_of_a_topic_is_kept_back() -> None:
    generator = np.random.default_rng(0)
    for topic in ASKED:
        asked = {ask(generator, topic) for _ in range(300)}
        assert topic.questions[-1] not in asked
        assert len(asked) >= len(topic.questions) - 1
    assert all(len(VOCABULARY.encode(ask(generator, OTHER))) <= 24 for _ in range(200))


def test_the_frames_of_the_held_out_clip_are_no_training_pictures() -> None:
    assert not set(HELD_OUT) & set(STILLS)


def test_clips_end_at_the_asked_tick_and_know_their_ages() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        last = int(generator.integers(0, 12))
        ticks, ages = clip_ticks(generator, last, 4)
        assert ticks[-1] == last and ages[-1] == 0.0
        assert ticks == sorted(ticks) and ages == sorted(ages, reverse=True) and min(ticks) >= 0
        assert ages[0] == pytest.approx((last - ticks[0]) * 0.25)


@pytest.mark.parametrize("kind", ["distilled", "full"])
def test_a_batch_depends_on_seed_and_number_alone(kind: str) -> None:
    stills = Real((unseen_picture(np.random.default_rng(1), (320, 192)),), (FULL_TRUTH,))
    first, second = sampler(kind, stills=stills), sampler(kind, stills=stills)
    one, two = next(first.batches(7)), next(second.batches(7))
    for name in ("frames", "ages_s", "tokens", "weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    shape = SHAPES[kind]
    assert one.frames.shape == (3, 1, shape.height_px, shape.width_px, 3)
    if shape.frames > 1:
        assert one.before is not None and two.before is not None
        assert one.before.shape == (3, shape.frames - 1, shape.height_px // 2, shape.width_px // 2, 3)
        np.testing.assert_array_equal(one.before, two.before)
    else:
        assert one.before is None
    assert one.tokens.shape[0] == 6
    assert not np.array_equal(one.frames, next(first.batches(8)).frames)


def test_the_teacher_speaks_at_the_fields_of_the_standing_rows_only() -> None:
    chances = np.zeros((20, 8, POSITIONS, len(VOCABULARY)), np.float16)
    chances[:, :, :8, VOCABULARY.index["road:urban"]] = 1.0
    batch = next(sampler(teacher=Taught(chances)).batches())
    assert batch.taught is not None
    spoken = batch.taught.sum(-1)
    assert (spoken[1::2] == 0).all()
    for row in spoken[::2]:
        assert row.sum() == 0 or list(np.flatnonzero(row)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_teacher_has_not_spoken_where_the_moved_picture_shows_something_else() -> None:
    chances = np.zeros((20, 8, POSITIONS, len(VOCABULARY)), np.float16)
    chances[:, :, :8, 0] = 1.0
    source = Sampler(SHAPES["distilled"], scenes(objects=True), NONE, NONE, VOCABULARY, 40, 1, 5, Taught(chances))
    batch = next(source.batches())
    stored = token_row(VOCABULARY, "", FULL_TRUTH, STANDING)[0]
    same = [list(row[: len(stored)]) == stored for row in batch.tokens]
    assert not any(same), "the stored counts are not those of the one light in the picture"
    assert batch.taught is not None and batch.taught.sum() == 0


def test_every_drive_is_within_the_scenarios_limits() -> None:
    configs = [config_of(seed) for seed in range(40)]
    assert len({(c.road, c.weather, c.light) for c in configs}) > 10
    assert all((c.width_px, c.height_px) == (640, 360) for c in configs)
    for name, (low, high) in RIG.items():
        values = [getattr(c, name) for c in configs]
        assert low <= min(values) < max(values) <= high, "mounted within its tolerance, never twice the same"


def test_a_resumed_run_is_an_unbroken_one(tmp_path: Path) -> None:
    def run(name: str, *steps: int) -> dict[str, torch.Tensor]:
        for count in steps:
            recipe = with_numbers(RECIPES["distilled"], steps=4, batch=2, drives=20, save_every=count, groups=2)
            seed_everything(recipe.seed, 1)
            path = tmp_path / f"{name}.safetensors"
            if count < 4 and not path.exists():
                with pytest.raises(KeyboardInterrupt):
                    train(recipe, VOCABULARY, Interrupted(scenes(), 2), NONE, NONE, path)
            else:
                recipe = with_numbers(recipe, save_every=steps[0])
                model = train(recipe, VOCABULARY, scenes(), NONE, NONE, path)
        return model.state_dict()

    whole, broken = run("whole", 4), run("broken", 2, 4)
    for name, tensor in whole.items():
        if name != "save_every":
            torch.testing.assert_close(broken[name], tensor, rtol=0, atol=0)


class Interrupted(Scenes):
    """Scenes whose reader is interrupted in the third batch, after the checkpoint of step 2."""

    def __init__(self, inner: Scenes, batches: int) -> None:
        super().__init__(inner.shards, inner.truths)
        object.__setattr__(self, "left", batches * 2 + 1)

    def frame(self, drive: int, tick: int) -> np.ndarray:
        object.__setattr__(self, "left", self.left - 1)  # type: ignore[attr-defined]
        if self.left < 0:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return super().frame(drive, tick)


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    recipe = with_numbers(RECIPES["distilled"], steps=1, batch=1, drives=20)
    train(recipe, VOCABULARY, scenes(), NONE, NONE, path)
    with pytest.raises(ConfigError, match="another recipe"):
        train(with_numbers(recipe, steps=2), VOCABULARY, scenes(), NONE, NONE, path)


def test_an_object_fills_its_cells_and_moves_with_the_picture() -> None:
    assert len(OBJECTS) == OBJECT_KINDS
    size = (320, 192)
    box = np.array([[OBJECTS.index("lead"), 0.5, 0.5, 0.6, 0.6]], np.float32)  # 160..192, 96..115 px
    still = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    grid = grid_of(box, still, size)
    assert [*map(tuple, np.argwhere(grid))] == [(OBJECTS.index("lead"), 6, 10), (OBJECTS.index("lead"), 6, 11)]
    mirrored = grid_of(box, np.array([[-1.0, 0.0, 320.0], [0.0, 1.0, 0.0]]), size)
    np.testing.assert_array_equal(np.argwhere(mirrored)[:, 2], [8, 9])
    gone = grid_of(box, np.array([[1.0, 0.0, 400.0], [0.0, 1.0, 0.0]]), size)
    assert gone.sum() == 0


def test_finding_is_learnt_only_where_somebody_said_what_is_where() -> None:
    shape = SHAPES["distilled"]
    stills = Real((unseen_picture(np.random.default_rng(1), (320, 192)),), (FULL_TRUTH,))
    source = Sampler(shape, scenes(objects=True), stills, NONE, VOCABULARY, 24, 1, 5)
    batch = next(source.batches())
    assert 0 < batch.objects_known.sum() < 24
    assert batch.objects[~batch.objects_known].sum() == 0 < batch.objects.sum()
    found = torch.zeros(batch.objects.shape, requires_grad=True)
    finding_loss(found, batch).backward()
    touched = found.grad.abs().sum((1, 2, 3)) > 0
    assert touched.tolist() == batch.objects_known.tolist()
    unsaid = next(Sampler(shape, scenes(), NONE, NONE, VOCABULARY, 2, 1, 5).batches())
    assert float(finding_loss(torch.zeros(unsaid.objects.shape), unsaid)) == 0.0


def test_training_moves_the_finder_and_the_exported_graph_has_none(tmp_path: Path) -> None:
    recipe = with_numbers(RECIPES["distilled"], steps=2, batch=2, drives=20)
    seed_everything(recipe.seed, 1)
    model = train(recipe, VOCABULARY, scenes(objects=True), NONE, NONE, tmp_path / "c.safetensors")
    torch.manual_seed(0)
    assert model.encoder.finder.bias.abs().sum() > 0
    from triptych_forge.vlm.export import export

    onnx = pytest.importorskip("onnx", reason="needs the forge extra (onnx)")
    encoder, _ = export(model, tmp_path)
    names = [i.name for i in onnx.load(str(encoder)).graph.initializer]
    assert not [name for name in names if "finder" in name or "gauge" in name]
    assert isinstance(model, Vlm)


def test_a_picture_with_earlier_ones_halved_is_the_clip_itself() -> None:
    shape = SHAPES["full"]
    torch.manual_seed(0)
    model = Vlm(shape, len(VOCABULARY)).eval()
    small = torch.randint(0, 255, (1, shape.frames - 1, shape.height_px // 2, shape.width_px // 2, 3)).float()
    earlier = small.repeat_interleave(2, 2).repeat_interleave(2, 3)
    newest = torch.randint(0, 255, (1, 1, shape.height_px, shape.width_px, 3)).float()
    ages = torch.tensor([[1.5, 1.0, 0.5, 0.0]])
    with torch.no_grad():
        whole = model.encoder.tokens(torch.cat([earlier, newest], 1), ages)
        split = model.encoder.tokens(newest, ages, small)
    assert whole.shape == (1, shape.tokens, shape.size)
    torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-4)


def test_quantities_are_measured_where_known_and_learnt_nowhere_else() -> None:
    assert len(QUANTITIES) == MEASURE_KINDS
    near = Situation(speed_mps=10.0, lead_gap_m=20.0, lead_speed_mps=5.0, lead_braking=True, vehicles_near=3)
    found = dict(zip(QUANTITIES, measured(near, (2, 0, 1)), strict=True))
    assert found["lead_gap_m"].tolist() == [1.0, 0.0]  # 20 m is the middle of the scale
    assert found["collision_s"][1] == pytest.approx(np.log(4 / 20)) and found["lead_braking"][0] == 1
    assert found["red_light_m"][0] == 0 and np.isnan(found["red_light_m"][1])
    assert found["vehicles"][1] == pytest.approx(np.log(3)) and found["two_wheelers"].tolist() == [0.0, 0.0]
    stills = Real((unseen_picture(np.random.default_rng(1), (320, 192)),), (FULL_TRUTH,))
    batch = next(Sampler(SHAPES["distilled"], scenes(objects=True), stills, NONE, VOCABULARY, 24, 1, 5).batches())
    known = ~np.isnan(batch.measures[..., 0])
    assert known.any(1).tolist() == batch.objects_known.tolist()
    gauged = torch.zeros(batch.measures.shape, requires_grad=True)
    measuring_loss(gauged, batch).backward()
    assert (gauged.grad[..., 0].abs() > 0).tolist() == known.tolist()
    there = torch.from_numpy(~np.isnan(batch.measures[..., 1]))
    assert float(gauged.grad[..., 1][~there].abs().sum()) == 0.0


@given(st.floats(0.5, 2.0), st.floats(1.0, 200.0), st.floats(0.0, 30.0))
def test_an_enlarged_picture_is_never_less_careful(zoom: float, gap: float, speed: float) -> None:
    """All in it is nearer: the advice follows, as it would for the scene itself."""
    scene = Situation(speed_mps=speed, lead_gap_m=gap, red_light_m=gap, visual_range_m=300.0)
    nearer = enlarged(scene, zoom)
    assert nearer.lead_gap_m == pytest.approx(gap / zoom) and nearer.visual_range_m == 300.0
    assert nearer.pedestrian_near_m == float("inf") and nearer.speed_mps == speed
    if zoom >= 1:
        assert assess(nearer)[1] >= assess(scene)[1]


def test_what_left_the_picture_or_is_too_small_is_not_counted() -> None:
    kinds = [OBJECTS.index(n) for n in ("vehicle", "lead", "two_wheeler", "pedestrian", "pedestrian")]
    tall = [0.1, 0.1, 0.1, 0.03, 0.02]
    rows = np.array([[k, 0.8, 0.5, 0.85, 0.5 + h] for k, h in zip(kinds, tall)], np.float32)
    assert counted(rows) == (1, 1, 1)
    away = np.array([[1.0, 0.0, 80.0], [0.0, 1.0, 0.0]])
    assert counted(rows, away, (320, 192)) == (0, 0, 0)
    twice = np.array([[2.0, 0.0, -320.0], [0.0, 2.0, -96.0]])
    assert counted(rows, twice, (320, 192)) == (1, 1, 2), "enlarged, the small one is tall enough"
    assert counted(np.repeat(rows[:1], 30, 0)) == (9, 0, 0)


def test_a_rendered_frame_lists_its_boxes_as_shares_of_the_picture() -> None:
    from triptych.scenario import Scenario

    found = 0
    scenario = Scenario(config_of(3))
    for _ in range(4):
        rows = objects_of(scenario.truth(), scenario.situation())
        for kind, *corners in rows:
            assert 0 <= kind < len(OBJECTS) and all(0.0 <= c <= 1.0 for c in corners)
            assert corners[0] < corners[2] and corners[1] < corners[3]
        found += len(rows)
        for _ in range(8):
            scenario.step(0.125, None)
    assert found > 0
