"""The detector's training: views, assignment, silent classes, exact resumption. Needs the extra ``forge``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'forge' is not installed")
pytest.importorskip("safetensors", reason="the extra 'forge' is not installed")

from triptych.contract import ConfigError  # noqa: E402
from triptych_forge import detector  # noqa: E402
from triptych_forge.common import load_checkpoint, seed_everything, write_atomically  # noqa: E402
from triptych_forge.data import NAMES, PEDESTRIAN, VEHICLE, Sample, Variation, vary  # noqa: E402
from triptych_forge.detector_data import Pool, Source  # noqa: E402
from triptych_forge.detector_eval import Found, average_precision, match  # noqa: E402
from triptych_forge.detector_net import STRIDES, Batch, DetectorNet, anchor_centres, assign, losses  # noqa: E402

SIZE = (128, 64)


def sample(known: tuple[int, ...] = (VEHICLE,)) -> Sample:
    """A dark picture with a white rectangle, which is the vehicle."""
    image = np.full((120, 200, 3), 40, np.uint8)
    image[50:80, 60:110] = 255
    return Sample(image, np.array([[60, 50, 110, 80]], np.float32), np.array([VEHICLE]), known)


def batch_of(box: tuple[float, float, float, float], label: int = VEHICLE) -> Batch:
    known = torch.zeros(1, len(NAMES))
    known[0, VEHICLE] = 1
    return Batch(
        torch.zeros(1, 3, SIZE[1], SIZE[0]), torch.tensor([[box]]), torch.tensor([[label]]), known, torch.zeros(1, 1, 4)
    )


@pytest.mark.parametrize("seed", range(12))
def test_boxes_follow_their_object(seed: int) -> None:
    """Wherever crop, zoom and flip put the rectangle, its box is still around it."""
    rng = np.random.default_rng(seed)
    view = vary(sample(), SIZE, SIZE, rng, Variation(plain=0.0, paste=0.0))
    assert view.image.shape == (SIZE[1], SIZE[0], 3)
    for x0, y0, x1, y1 in view.boxes:
        inside = view.image[int(y0) + 2 : int(y1) - 1, int(x0) + 2 : int(x1) - 1]
        outside = view.image.astype(float).copy()
        outside[max(0, int(y0) - 1) : int(y1) + 2, max(0, int(x0) - 1) : int(x1) + 2] = np.nan
        assert inside.mean() > np.nanmean(outside) + 30


def test_a_view_depends_on_its_generator_only() -> None:
    first, second = (vary(sample(), SIZE, SIZE, np.random.default_rng(5), Variation()) for _ in range(2))
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.boxes, second.boxes)


@pytest.mark.parametrize("box", [(40.0, 16.0, 72.0, 40.0), (41.0, 21.0, 44.0, 24.0)])
def test_objects_get_anchors_near_their_middle(box: tuple[float, float, float, float]) -> None:
    """Also an object smaller than a cell, which may hold no cell's centre."""
    grids = [anchor_centres(SIZE[1] // s, SIZE[0] // s, s) for s in STRIDES]
    centres = torch.cat(grids)
    strides = torch.cat([torch.full((len(g),), float(s)) for g, s in zip(grids, STRIDES)])
    boxes = torch.cat([centres - 2 * strides[:, None], centres + 2 * strides[:, None]], 1)[None]
    scores = torch.full((1, len(centres), len(NAMES)), 0.01)
    owner, quality, _ = assign(scores, boxes, centres, strides, batch_of(box))
    mine = owner[0] == 0
    assert 1 <= int(mine.sum()) <= 9
    middle = torch.tensor([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2])
    half = torch.tensor([max((box[2] - box[0]) / 2, 6.0), max((box[3] - box[1]) / 2, 6.0)])
    assert ((centres[mine] - middle).abs() <= half + 1e-4).all()
    assert ((quality[0][mine] > 0) & (quality[0][mine] <= 1)).all()
    assert (owner[0][~mine] == -1).all()


def test_padding_gets_no_anchor() -> None:
    grids = [anchor_centres(SIZE[1] // s, SIZE[0] // s, s) for s in STRIDES]
    centres = torch.cat(grids)
    strides = torch.cat([torch.full((len(g),), float(s)) for g, s in zip(grids, STRIDES)])
    boxes = torch.cat([centres - strides[:, None], centres + strides[:, None]], 1)[None]
    scores = torch.full((1, len(centres), len(NAMES)), 0.5)
    owner, _, _ = assign(scores, boxes, centres, strides, batch_of((0.0, 0.0, 0.0, 0.0), -1))
    assert (owner == -1).all()


def test_the_loss_is_silent_about_classes_a_source_does_not_label() -> None:
    torch.manual_seed(0)
    net = DetectorNet(len(NAMES))
    logits, boxes = net(torch.zeros(1, 3, SIZE[1], SIZE[0]))
    logits.retain_grad()
    losses(logits, boxes, batch_of((40.0, 16.0, 72.0, 40.0))).classes.backward()
    assert logits.grad is not None
    assert float(logits.grad[..., PEDESTRIAN].abs().max()) == 0.0
    assert float(logits.grad[..., VEHICLE].abs().min()) > 0.0


def test_ignored_boxes_are_no_background() -> None:
    torch.manual_seed(0)
    net = DetectorNet(len(NAMES))
    batch = batch_of((0.0, 0.0, 0.0, 0.0), -1)._replace(ignored=torch.tensor([[[32.0, 16.0, 64.0, 48.0]]]))
    logits, boxes = net(batch.images)
    logits.retain_grad()
    losses(logits, boxes, batch).classes.backward()
    assert logits.grad is not None
    fine = logits.grad[0, : (SIZE[0] // 8) * (SIZE[1] // 8), VEHICLE].reshape(SIZE[1] // 8, SIZE[0] // 8)
    assert float(fine[2:6, 4:8].abs().max()) == 0.0
    assert float(fine[0].abs().min()) > 0.0


def tiny_pool() -> Pool:
    return Pool([Source("drawn", 1.0, [sample()])])


def small(monkeypatch: pytest.MonkeyPatch, **changes: object) -> detector.Recipe:
    monkeypatch.setattr(detector, "FULL", (64, 32))
    monkeypatch.setattr(detector, "CROP", (64, 32))
    return replace(detector.RECIPES["student"], seed=3, steps=6, batch=2, warm_up=2, alpha=1.0, **changes)


def fresh() -> DetectorNet:
    seed_everything(3, 1)
    return detector.network("student")


def test_interrupted_training_ends_where_uninterrupted_training_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, so that a seed identifies a model."""
    recipe = small(monkeypatch)
    whole = detector.train(fresh(), tiny_pool(), recipe, tmp_path / "whole.safetensors", save_every=3)

    class Interrupt(Exception):
        pass

    real = detector.make_batch

    def interrupted(pool: Pool, r: detector.Recipe, step: int) -> Batch:
        if step == 4:
            raise Interrupt
        return real(pool, r, step)

    monkeypatch.setattr(detector, "make_batch", interrupted)
    with pytest.raises(Interrupt):
        detector.train(fresh(), tiny_pool(), recipe, tmp_path / "cut.safetensors", save_every=3)
    assert load_checkpoint(tmp_path / "cut.safetensors")[1]["step"] == 3
    monkeypatch.setattr(detector, "make_batch", real)
    resumed = detector.train(fresh(), tiny_pool(), recipe, tmp_path / "cut.safetensors", save_every=3)
    detector.train(fresh(), tiny_pool(), recipe, tmp_path / "short.safetensors", save_every=3, stop_after=4)
    assert load_checkpoint(tmp_path / "short.safetensors")[1]["step"] == 4
    stopped = detector.train(fresh(), tiny_pool(), recipe, tmp_path / "short.safetensors", save_every=3)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
        assert torch.equal(value, stopped.state_dict()[name]), name
    with pytest.raises(ConfigError, match="another run"):
        detector.train(fresh(), tiny_pool(), replace(recipe, rate=1e-3), tmp_path / "cut.safetensors", save_every=3)


def test_a_run_is_repeatable_without_filling_fresh_memory() -> None:
    """Filling it is what torch's deterministic mode does beside; it took most of a training's time."""
    seed_everything(3, 1)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_a_student_learns_from_labels_and_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(small(monkeypatch), alpha=0.25)
    torch.manual_seed(1)
    teacher = detector.network("teacher").eval()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    batch = detector.make_batch(tiny_pool(), recipe, 0)
    net = fresh()
    said, taught = net(batch.images), teacher(batch.images)
    hard = detector.loss_of(recipe, said, None, batch)
    soft = detector.loss_of(replace(recipe, alpha=0.0), said, taught, batch)
    mixed = detector.loss_of(recipe, said, taught, batch)
    torch.testing.assert_close(mixed, 0.25 * hard + 0.75 * soft)
    alone = detector.train(fresh(), tiny_pool(), recipe, tmp_path / "alone.safetensors")
    both = detector.train(fresh(), tiny_pool(), recipe, tmp_path / "both.safetensors", teacher)
    assert not torch.equal(alone.state_dict()["out.0.weight"], both.state_dict()["out.0.weight"])
    for name, value in teacher.state_dict().items():
        assert torch.equal(value, before[name]), f"the teacher's {name} was changed"
    with pytest.raises(ConfigError, match="no such checkpoint"):
        detector.trained(tmp_path / "none.safetensors", "teacher")
    again, meta = detector.trained(tmp_path / "both.safetensors", "student")
    assert meta["step"] == 6 and torch.equal(again.state_dict()["out.0.weight"], both.state_dict()["out.0.weight"])


def test_the_teacher_has_what_a_student_can_lose() -> None:
    sizes = {m: sum(p.numel() for p in detector.network(m).parameters()) for m in detector.NETS}
    assert sizes["student"] <= 0.5 * sizes["teacher"], "the rest goes in pruning"
    picture = torch.zeros(1, 3, 64, 96)
    for model in detector.NETS:
        logits, boxes = detector.network(model).eval()(picture)
        assert logits.shape == (1, 8 * 12 + 4 * 6 + 2 * 3, len(NAMES)) and boxes.shape == (*logits.shape[:2], 4)
    with pytest.raises(ConfigError, match="is no detector"):
        replace(detector.RECIPES["student"], model="pupil")


def test_average_precision_of_known_cases() -> None:
    truth = [np.array([[0, 0, 10, 10], [20, 0, 30, 10]], np.float32)]
    boxes = np.array([[0, 0, 10, 10], [50, 50, 60, 60], [20, 0, 30, 10]], np.float32)

    def found(*scores: float) -> list[Found]:
        return [Found(boxes, np.array(scores, np.float32), np.zeros(3, np.int64))]

    assert average_precision(found(0.9, 0.1, 0.8), truth, 0) == pytest.approx(1.0)
    assert average_precision(found(0.9, 0.8, 0.7), truth, 0) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(found(0.9, 0.8, 0.7), truth, 1) == 0.0
    assert np.isnan(average_precision(found(0.9, 0.8, 0.7), [np.zeros((0, 4), np.float32)], 0))
    assert match(boxes, np.array([0.9, 0.8, 0.7], np.float32), truth[0]).tolist() == [0, -1, 1]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.bin"
    write_atomically(path, b"old")
    monkeypatch.setattr("triptych_forge.common.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.bin"]
