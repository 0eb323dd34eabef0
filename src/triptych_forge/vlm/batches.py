"""From scenes to training batches: sampling, augmentation, token rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import Light, Weather
from triptych.language.tokeniser import Vocabulary
from triptych_forge.vlm.measures import Measured, enlarged, measured, unknown
from triptych_forge.vlm.model import Shape
from triptych_forge.vlm.real import UNSEEN, Picture, Real, unseen_picture
from triptych_forge.vlm.scenes import OBJECTS, TICK_S, Scenes, counted, shrink, truth_from
from triptych_forge.vlm.words import ASKED, EXTRA_WORDS, FILLERS, OTHER, STANDING, Topic, Truth, answer_tokens

TEXT_WEIGHT = 0.3
"""Weight of a word of the text against one of a field: the words mostly follow from the fields."""
SHARES = {"still": 0.06, "carla": 0.06, "unseen": 0.03}
"""Share of a batch from each source beside the scenes."""
SCENE_STRENGTH = 0.5
"""How strongly drawn pictures are varied: enough for another camera's looks, not so much that small things are lost."""


@dataclass(frozen=True)
class Batch:
    """B pictures, G rows of tokens for each.

    Attributes:
        frames: (B, 1, H, W, 3) uint8, the newest.
        before: (B, N - 1, H / 2, W / 2, 3) uint8, the earlier ones; None for models of one frame.
        ages_s: (B, N) float32.
        tokens: (B * G, T) int64: prompt and answer, padded.
        weights: (B * G, T - 1) float32: how much predicting the next token counts.
        objects: (B, kinds, H / 16, W / 16) float32: where in the newest picture what is, 0 or 1.
        objects_known: (B,) bool: whether anybody said.
        measures: (B, quantities, 2) float32, see :mod:`triptych_forge.vlm.measures`; NaN where nobody knows.
        taught: (B * G, T - 1, vocabulary) float32, a teacher's distribution; all 0 where it said nothing.
    """

    frames: npt.NDArray[np.uint8]
    before: npt.NDArray[np.uint8] | None
    ages_s: npt.NDArray[np.float32]
    tokens: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    objects: npt.NDArray[np.float32]
    objects_known: npt.NDArray[np.bool_]
    measures: Measured
    taught: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Taught:
    """What a teacher thinks of every stored place, along the true answer to the standing question.

    Attributes:
        chances: (drives, ticks, positions, vocabulary) float16; the token after ``<bos> <answer>`` is position 0, what
            lies beyond the fields is 0.
    """

    chances: npt.NDArray[np.float16]


@dataclass(frozen=True)
class Drawn:
    """One sample before it is laid into a batch; arrays as in :class:`Batch`, ``place`` among the scenes."""

    newest: Picture
    before: list[Picture]
    ages_s: list[float]
    truth: Truth
    measures: Measured
    place: tuple[int, int] | None = None
    objects: npt.NDArray[np.float32] | None = None


class Look:
    """One random change of looks, the same for all frames of a clip: geometry, colour, blur, noise."""

    def __init__(
        self, generator: np.random.Generator, size: tuple[int, int], strength: float, towards: Picture | None
    ) -> None:
        g, (width, height) = generator, size
        self._generator = generator
        self.zoom = zoom = float(np.exp(g.uniform(-0.05, 0.22) * strength))
        aspect = float(np.exp(g.uniform(-0.03, 0.03) * strength))
        flip = -1.0 if g.random() < 0.5 else 1.0
        angle = float(g.normal(0, 1.2) * strength)
        turn = cv2.getRotationMatrix2D((width / 2, height / 2), angle, 1.0)
        scale = np.array([[flip * zoom * aspect, 0.0], [0.0, zoom / aspect]])
        matrix = np.zeros((2, 3))
        matrix[:, :2] = turn[:, :2] @ scale
        centre = np.array([width / 2, height / 2])
        shift = np.array([g.normal(0, 0.04) * width, g.normal(0, 0.05) * height]) * strength
        matrix[:, 2] = centre + shift - matrix[:, :2] @ centre
        self.matrix = matrix
        levels = np.arange(256, dtype=np.float64)
        gamma = float(np.exp(g.normal(0, 0.12) * strength))
        gain = float(np.exp(g.normal(0, 0.08) * strength))
        self._curves = np.zeros((256, 1, 3), np.uint8)
        for channel in range(3):
            curve = 255 * (levels / 255) ** (gamma * float(np.exp(g.normal(0, 0.05) * strength)))
            curve = curve * gain * float(np.exp(g.normal(0, 0.04) * strength)) + g.normal(0, 5) * strength
            self._curves[:, 0, channel] = np.clip(curve, 0, 255)
        self._towards = towards
        self._pull = float(g.uniform(0.3, 1.0)) if towards is not None else 0.0
        self._saturation = float(np.exp(g.normal(0, 0.25) * strength))
        self._blur = float(abs(g.normal(0, 0.6))) * strength if g.random() < 0.35 else 0.0
        self._noise = float(abs(g.normal(0, 5))) * strength if g.random() < 0.5 else 0.0
        self._jpeg = int(g.integers(35, 90)) if g.random() < 0.15 * strength else 0
        self._size = size

    def __call__(self, image: Picture, zoom: float = 1.0, half: bool = False) -> Picture:
        """Apply to one picture (H, W, 3), or to one of half the size.

        ``zoom`` enlarges about the middle, as driving forward does.
        """
        width, height = (side // 2 for side in self._size) if half else self._size
        matrix = self.matrix.copy()
        matrix[:, 2] *= 0.5 if half else 1.0
        if zoom != 1.0:
            matrix[:, :2] *= zoom
            matrix[:, 2] = matrix[:, 2] * zoom + np.array([width, height]) / 2 * (1 - zoom)
        out = cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
        if self._towards is not None:
            out = _pulled(out, self._towards, self._pull)
        out = cv2.LUT(out, self._curves)
        if abs(self._saturation - 1) > 0.05:
            grey = cv2.cvtColor(cv2.cvtColor(out, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
            out = cv2.addWeighted(out, self._saturation, grey, 1 - self._saturation, 0)
        blur = self._blur * (0.5 if half else 1.0)
        if blur > 0.3:
            out = cv2.GaussianBlur(out, (0, 0), blur)
        if self._noise > 1:
            noise = np.empty(out.shape, np.int16)
            cv2.setRNGSeed(int(self._generator.integers(0, 2**31 - 1)))
            cv2.randn(noise, (0, 0, 0), (self._noise,) * 3)
            out = cv2.add(out, noise, dtype=cv2.CV_8U)
        if self._jpeg:
            _, coded = cv2.imencode(".jpg", out, [cv2.IMWRITE_JPEG_QUALITY, self._jpeg])
            out = cv2.imdecode(coded, cv2.IMREAD_COLOR)
        return np.asarray(out, np.uint8)


def _pulled(image: Picture, towards: Picture, share: float) -> Picture:
    """Move mean and spread of each channel towards those of another picture."""
    mean, spread = cv2.meanStdDev(image)
    mean2, spread2 = cv2.meanStdDev(towards)
    gain = 1 + share * (spread2 / np.maximum(spread, 8.0) - 1)
    gain = np.clip(gain, 0.5, 2.0)
    levels = np.arange(256, dtype=np.float64)[:, None]
    curve = (levels - mean.T) * gain.T + mean.T + share * (mean2 - mean).T
    return np.asarray(cv2.LUT(image, np.clip(curve, 0, 255).astype(np.uint8)[:, None, :]), np.uint8)


def clip_ticks(generator: np.random.Generator, last: int, frames: int) -> tuple[list[int], list[float]]:
    """Ticks of ``frames`` frames ending at ``last``, oldest first, and their ages in seconds.

    Spacing varies, as a tier's does: the earlier frames are half a second apart, the newest comes when it comes. What
    lies before the drive is stood in for by its oldest frame. Now and then there is only one frame, as at the start.
    """
    if frames == 1 or generator.random() < 0.08:
        return [last] * frames, [0.0] * frames
    ticks = [last]
    for _ in range(frames - 1):
        gap = int(generator.choice([1, 2, 3], p=[0.2, 0.6, 0.2]))
        ticks.insert(0, max(0, ticks[0] - gap))
    return ticks, [(last - tick) * TICK_S for tick in ticks]


def ask(generator: np.random.Generator, topic: Topic) -> str:
    """A training question about a topic, varied; the topic's last question is never used."""
    if topic is OTHER:
        pool = EXTRA_WORDS.split()
        if generator.random() < 0.4:
            other = ASKED[int(generator.integers(len(ASKED)))].questions
            pool = [*pool, *other[int(generator.integers(len(other) - 1))].split()] * 2
        words = [str(w) for w in generator.choice(pool, int(generator.integers(2, 8)))]
        if generator.random() < 0.5:
            words[int(generator.integers(len(words)))] = "zzz"  # becomes <unk>
        return " ".join(words)
    question = str(topic.questions[int(generator.integers(len(topic.questions) - 1))])
    words = question.split()
    if len(words) > 3 and generator.random() < 0.15:
        dropped = int(generator.integers(len(words)))
        if words[dropped] in ("the", "a", "there", "any", "you", "do", "is", "now"):
            del words[dropped]
    if generator.random() < 0.2:
        words.insert(0 if generator.random() < 0.5 else len(words), str(generator.choice(FILLERS)))
    # A filler may make the kept-back question by chance.
    return question if " ".join(words) == topic.questions[-1] else " ".join(words)


class Sampler:
    """Draws batches for ever; the order depends on the seed alone.

    Args:
        shape: of the model.
        scenes: training drives.
        stills, carla: real and foreign pictures, may be empty.
        vocabulary: of the model.
        batch, groups: pictures per batch, token rows per picture (the first is the standing question).
        seed: of the order.
        teacher: soft labels for the standing question, if any.
    """

    def __init__(
        self,
        shape: Shape,
        scenes: Scenes,
        stills: Real,
        carla: Real,
        vocabulary: Vocabulary,
        batch: int,
        groups: int,
        seed: int,
        teacher: Taught | None = None,
    ) -> None:
        self.teacher = teacher
        self.shape, self.scenes, self.stills, self.carla = shape, scenes, stills, carla
        self.vocabulary, self.batch, self.groups, self.seed = vocabulary, batch, groups, seed
        self._places = [(d, t) for d, rows in enumerate(scenes.truths) for t in range(len(rows))]
        self._chances = _chances([scenes.truths[d][t] for d, t in self._places])

    def batches(self, first: int = 0) -> Iterator[Batch]:
        """Batches from number ``first`` on: a resumed run continues with the very batches it would have had."""
        number = first
        while True:
            yield self.make(np.random.default_rng([self.seed, number]))
            number += 1

    def make(self, generator: np.random.Generator) -> Batch:
        """One batch."""
        drawn = [self._draw(generator) for _ in range(self.batch)]
        rows = [row for one in drawn for row in self._rows(generator, one.truth)]
        longest = max(len(tokens) for tokens, _ in rows)
        tokens = np.full((len(rows), longest), self.vocabulary.pad, np.int64)
        weights = np.zeros((len(rows), longest - 1), np.float32)
        for number, (row, weight) in enumerate(rows):
            tokens[number, : len(row)] = row
            weights[number, : len(weight)] = weight
        empty = np.zeros((len(OBJECTS), self.shape.height_px // 16, self.shape.width_px // 16), np.float32)
        return Batch(
            np.stack([one.newest for one in drawn])[:, None],
            np.stack([np.stack(one.before) for one in drawn]) if self.shape.frames > 1 else None,
            np.array([one.ages_s for one in drawn], np.float32),
            tokens,
            weights,
            np.stack([empty if one.objects is None else one.objects for one in drawn]),
            np.array([one.objects is not None for one in drawn]),
            np.stack([one.measures for one in drawn]),
            self._taught([one.place for one in drawn], longest),
        )

    def _taught(self, places: list[tuple[int, int] | None], longest: int) -> npt.NDArray[np.float32] | None:
        if self.teacher is None:
            return None
        chances = self.teacher.chances
        out = np.zeros((len(places) * self.groups, longest - 1, chances.shape[-1]), np.float32)
        for number, place in enumerate(places):
            if place is not None:
                # The standing prompt is <bos> <answer>: the first answer token is predicted at index 1.
                some = chances[place][: longest - 2]
                out[number * self.groups, 1 : 1 + len(some)] = some
        return out

    def _draw(self, generator: np.random.Generator) -> Drawn:
        s, draw = self.shape, generator.random()
        size = (s.width_px, s.height_px)
        half = (s.width_px // 2, s.height_px // 2)
        for name, real in (("still", self.stills), ("carla", self.carla)):
            share = SHARES[name] if real.pictures else 0.0
            if draw < share:
                chosen = int(generator.integers(len(real.pictures)))
                look = Look(generator, size, 1.0, None)
                picture = shrink(real.pictures[chosen], size)
                speed = float(generator.uniform(0, 0.06)) if generator.random() < 0.7 else 0.0
                _, ages = clip_ticks(generator, 12, s.frames)
                small = shrink(picture, half)
                before = [look(small, 1.0 - speed * age, half=True) for age in ages[:-1]]
                truth = real.truths[chosen]
                if real.objects:
                    truth = _recounted(truth, counted(real.objects[chosen], look.matrix, size))
                return Drawn(look(picture), before, ages, truth, unknown())
            draw -= share
        if draw < SHARES["unseen"]:
            picture = unseen_picture(generator, size)
            ages = clip_ticks(generator, 12, s.frames)[1]
            return Drawn(picture, [shrink(picture, half)] * (s.frames - 1), ages, UNSEEN, unknown())
        drive, tick = self._places[int(np.searchsorted(self._chances, generator.random()))]
        truth = self.scenes.truths[drive][tick]
        ticks, ages = clip_ticks(generator, tick, s.frames)
        towards = None
        if truth.light is Light.DAY and truth.weather is Weather.CLEAR and generator.random() < 0.25:
            pool = (*self.stills.pictures, *self.carla.pictures)
            towards = pool[int(generator.integers(len(pool)))] if pool else None
        look = Look(generator, size, SCENE_STRENGTH, towards)
        small = {t: look(shrink(self.scenes.frame(drive, t), half), half=True) for t in sorted(set(ticks[:-1]))}
        newest = look(shrink(self.scenes.frame(drive, tick), size))
        measures, where = unknown(), None
        if self.scenes.objects and self.scenes.situations:
            # What the moved picture shows: all nearer by the zoom, and what has left it is not counted.
            found = self.scenes.objects[drive][tick]
            where = grid_of(found, look.matrix, size)
            situation, counts = (
                enlarged(self.scenes.situations[drive][tick], look.zoom),
                counted(found, look.matrix, size),
            )
            assert truth.road is not None and truth.weather is not None and truth.light is not None
            truth = truth_from(truth.road, truth.weather, truth.light, situation, counts)
            measures = measured(situation, counts)
        # The teacher spoke along the stored answer; where the moved picture has another one, it has not spoken.
        place = (drive, tick) if truth == self.scenes.truths[drive][tick] else None
        return Drawn(newest, [small[t] for t in ticks[:-1]], ages, truth, measures, place, where)

    def _rows(self, generator: np.random.Generator, truth: Truth) -> list[tuple[list[int], list[float]]]:
        rows = []
        for group in range(self.groups):
            topic, text = STANDING, ""
            if group:
                topic = OTHER if generator.random() < 0.06 else ASKED[int(generator.integers(len(ASKED)))]
                text = ask(generator, topic)
            rows.append(token_row(self.vocabulary, text, truth, topic))
        return rows


def _recounted(truth: Truth, counts: tuple[int, int, int]) -> Truth:
    """``counts`` where the truth knows any."""
    vehicles, wheelers, people = (
        None if known is None else count for known, count in zip(truth.counts, counts, strict=True)
    )
    return replace(truth, counts=(vehicles, wheelers, people))


def grid_of(
    objects: npt.NDArray[np.float32], matrix: npt.NDArray[np.float64], size: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """Which cell of the 16 px grid holds what, after the picture was moved by ``matrix`` (2, 3).

    The inner half of a box counts, at least the cell of its middle.
    """
    width, height = size
    grid = np.zeros((len(OBJECTS), height // 16, width // 16), np.float32)
    for kind, *corners in objects:
        box = np.array(corners) * [width, height, width, height]
        middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 4
        ends = np.array([middle - half, middle, middle + half]) @ matrix[:, :2].T + matrix[:, 2]
        if not (0 <= ends[1, 0] < width and 0 <= ends[1, 1] < height):
            continue
        low = np.clip(ends.min(0) // 16, 0, [width // 16 - 1, height // 16 - 1]).astype(int)
        high = np.clip(ends.max(0) // 16, 0, [width // 16 - 1, height // 16 - 1]).astype(int)
        grid[int(kind), low[1] : high[1] + 1, low[0] : high[0] + 1] = 1.0
    return grid


def token_row(vocabulary: Vocabulary, question: str, truth: Truth, topic: Topic) -> tuple[list[int], list[float]]:
    """Prompt and true answer, and the weight of each prediction of the next token."""
    prompt = vocabulary.question(question)
    answer, known = answer_tokens(vocabulary, truth, topic)
    fields = sum(1 for token in answer if ":" in vocabulary.tokens[token])
    weights = [0.0] * (len(prompt) - 1)
    weights += [(1.0 if at < fields else TEXT_WEIGHT) * sure for at, sure in enumerate(known)]
    return prompt + answer, weights


def _chances(truths: list[Truth]) -> npt.NDArray[np.float64]:
    """Cumulative chances of places: rare answers come up more often, by the square root of their rarity."""
    keys = [(t.road, t.weather, t.light, t.advice) for t in truths]
    hazards = [t.hazards or () for t in truths]
    counts: dict[object, int] = {}
    for key, some in zip(keys, hazards, strict=True):
        counts[key] = counts.get(key, 0) + 1
        counts[some] = counts.get(some, 0) + 1
    weights = np.array([(counts[k] * counts[h]) ** -0.25 for k, h in zip(keys, hazards, strict=True)])
    summed = np.cumsum(weights / weights.sum())
    summed[-1] = 1.0
    return summed
