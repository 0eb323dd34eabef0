"""Figures of a finished engine, taken through the very engine the vehicle runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np

from triptych.contract import Advice, DetectionClass, Detections, Frame, Hazard, SceneAdvice
from triptych.engines.protocol import Engine
from triptych.language.grammar import Grammar
from triptych.language.tokeniser import Vocabulary
from triptych_forge.vlm.scenes import COUNTED_HEIGHT, TICK_S, Scenes, history
from triptych_forge.vlm.words import ASKED, STANDING, Topic, Truth, answer_tokens, make_vocabulary, truth_of


@dataclass
class Figures:
    """What was counted; shares are of ``count`` answers."""

    count: int = 0
    road: int = 0
    weather: int = 0
    light: int = 0
    advice: int = 0
    advice_near: int = 0
    less_careful: int = 0
    less_careful_by_two: int = 0
    counted: int = 0
    counts_near: int = 0
    fields: int = 0
    exact: int = 0
    hits: dict[Hazard, list[int]] = field(default_factory=lambda: {h: [0, 0, 0] for h in Hazard})
    sure: list[tuple[float, bool]] = field(default_factory=list)
    confusion: dict[str, list[list[int]]] = field(default_factory=dict)

    def add(self, answer: SceneAdvice, truth: Truth, exact: bool, uncertainty: float) -> None:
        """Count one answer."""
        assert truth.advice is not None and truth.hazards is not None
        self.count += 1
        self.road += answer.road == truth.road
        self.weather += answer.weather == truth.weather
        self.light += answer.light == truth.light
        self.advice += answer.advice == truth.advice
        self.advice_near += abs(answer.advice - truth.advice) <= 1
        self.less_careful += answer.advice < truth.advice
        self.less_careful_by_two += answer.advice < truth.advice - 1
        said = truth_of(answer)
        for found, there in zip(said.counts, truth.counts, strict=True):
            if found is not None and there is not None:
                self.counted += 1
                self.counts_near += abs(found - there) <= 1
        right = said == truth
        self.fields += right
        self.exact += exact
        self.sure.append((uncertainty, right))
        for hazard, counts in self.hits.items():
            named, real = hazard in answer.hazards, hazard in truth.hazards
            counts[0 if named and real else 1 if named else 2] += named or real
        for name, got, want in (
            ("road", answer.road, truth.road),
            ("weather", answer.weather, truth.weather),
            ("light", answer.light, truth.light),
            ("advice", answer.advice, truth.advice),
        ):
            table = self.confusion.setdefault(name, [[0] * 6 for _ in range(6)])
            table[int(want or 0)][int(got)] += 1

    def hazard_f1(self, hazard: Hazard) -> float:
        """Harmonic mean of precision and recall; NaN when the hazard never came up."""
        hit, false, missed = self.hits[hazard]
        return 2 * hit / (2 * hit + false + missed) if hit + false + missed else float("nan")

    def hazard_shares(self) -> tuple[float, float]:
        """Of all true hazards, the share that was found; of all named, the share that was false."""
        hit, false, missed = (sum(c[i] for c in self.hits.values()) for i in range(3))
        return hit / max(1, hit + missed), false / max(1, hit + false)

    def micro_f1(self) -> float:
        """F1 over all hazards together."""
        hit, false, missed = (sum(c[i] for c in self.hits.values()) for i in range(3))
        return 2 * hit / max(1, 2 * hit + false + missed)

    def separation(self) -> float:
        """Chance that a wrong answer is less sure than a right one (area under the ROC curve)."""
        wrong = np.array([u for u, right in self.sure if not right])
        good = np.array([u for u, right in self.sure if right])
        if not len(wrong) or not len(good):
            return float("nan")
        return float((wrong[:, None] > good[None]).mean() + 0.5 * (wrong[:, None] == good[None]).mean())

    def as_dict(self) -> dict[str, object]:
        """Shares and scores, rounded, for a model card or JSON."""
        n = max(1, self.count)
        names = ("road", "weather", "light", "advice", "advice_near", "less_careful", "less_careful_by_two")
        out: dict[str, object] = {"answers": self.count}
        out |= {name: round(getattr(self, name) / n, 4) for name in (*names, "fields", "exact")}
        out["hazard_f1"] = round(self.micro_f1(), 4)
        out["hazards_found"], out["hazards_false"] = (round(share, 4) for share in self.hazard_shares())
        if self.counted:
            out["counts_within_one"] = round(self.counts_near / self.counted, 4)
        out["hazards"] = {
            h.name.lower(): {"f1": round(self.hazard_f1(h), 3), "hit": c[0], "false": c[1], "missed": c[2]}
            for h, c in self.hits.items()
        }
        out["uncertainty_auroc"] = round(self.separation(), 3)
        return out


def clips(scenes: Scenes, every: int) -> list[tuple[int, int]]:
    """Places to judge at: every ``every``-th tick of every drive, where a full history lies before it."""
    return [(d, t) for d, rows in enumerate(scenes.truths) for t in range(6, len(rows), every)]


def frames_at(scenes: Scenes, drive: int, tick: int, count: int) -> list[Frame]:
    """``count`` frames half a second apart ending at ``tick``."""
    return [Frame(scenes.frame(drive, t), int(t * TICK_S * 1e9), t + 1) for t in history(tick, count)]


def judge(engine: Engine, scenes: Scenes, every: int = 2, done: Callable[[int, int], None] | None = None) -> Figures:
    """Answers to the standing question against the truth."""
    figures, places = Figures(), clips(scenes, every)
    vocabulary = make_vocabulary()
    for number, (drive, tick) in enumerate(places):
        output = engine.infer(frames_at(scenes, drive, tick, engine.frames_wanted))
        assert isinstance(output.payload, SceneAdvice)
        truth = scenes.truths[drive][tick]
        wanted = _text(vocabulary, truth, STANDING)
        exact = truth_of(output.payload) == truth and output.payload.text == wanted
        figures.add(output.payload, truth, exact, output.uncertainty)
        if done:
            done(number + 1, len(places))
    return figures


def _text(vocabulary: Vocabulary, truth: Truth, topic: Topic) -> str:
    tokens, _ = answer_tokens(vocabulary, truth, topic)
    grammar = Grammar(vocabulary, 64)
    return grammar.payload(grammar.parse(tokens), "", ()).text


def judge_questions(engine: Engine, scenes: Scenes, every: int = 15) -> dict[str, dict[str, float]]:
    """Per topic, for a trained and for the kept-back question: how often the text answers it, given the own fields."""
    vocabulary = make_vocabulary()
    out: dict[str, dict[str, float]] = {}
    places = clips(scenes, every)
    for number, topic in enumerate(ASKED):
        counts = {"trained": [0, 0], "kept_back": [0, 0]}
        for drive, tick in places[number::4]:
            frames = frames_at(scenes, drive, tick, engine.frames_wanted)
            for kind, question in (("trained", topic.questions[0]), ("kept_back", topic.questions[-1])):
                payload = engine.infer(frames, question).payload
                assert isinstance(payload, SceneAdvice)
                wanted = _text(vocabulary, truth_of(payload), topic)
                counts[kind][0] += payload.text == wanted
                counts[kind][1] += 1
        out[topic.name] = {kind: round(hit / max(1, total), 3) for kind, (hit, total) in counts.items()}
    return out


def on_clip(engine: Engine, video: Path, every: int = 4) -> dict[str, dict[str, int]]:
    """How often each field took which value on a video; frames for several-frame engines 0.5 s apart."""
    pictures = clip_frames(video)
    back = round(0.5 * frame_rate(video))
    counts: dict[str, dict[str, int]] = {k: {} for k in ("road", "weather", "light", "hazards", "advice")}
    for last in range(0, len(pictures), every):
        payload = _answer(engine, pictures, last, back)
        for name in ("road", "weather", "light", "advice"):
            value = getattr(payload, name).name.lower()
            counts[name][value] = counts[name].get(value, 0) + 1
        key = "+".join(h.name.lower() for h in payload.hazards) or "none"
        counts["hazards"][key] = counts["hazards"].get(key, 0) + 1
    return counts


def vehicles_on_clip(engine: Engine, reference: Engine, video: Path, every: int = 2) -> float:
    """Share of frames in which engine and reference detector agree whether there is a vehicle large enough to count."""
    back = round(0.5 * frame_rate(video))
    pictures = clip_frames(video)
    agreed = [
        (_answer(engine, pictures, last, back).vehicles > 0) == _sees_vehicle(reference, pictures[last])
        for last in range(0, len(pictures), every)
    ]
    return round(sum(agreed) / max(1, len(agreed)), 4)


def _answer(engine: Engine, pictures: Sequence[Frame], last: int, back: int) -> SceneAdvice:
    chosen = [pictures[max(0, last - back * i)] for i in reversed(range(engine.frames_wanted))]
    payload = engine.infer(chosen).payload
    assert isinstance(payload, SceneAdvice)
    return payload


def _sees_vehicle(reference: Engine, frame: Frame) -> bool:
    payload = reference.infer([frame]).payload
    assert isinstance(payload, Detections)
    tall = COUNTED_HEIGHT * payload.image_height
    return any(d.class_id == DetectionClass.VEHICLE and d.y_max - d.y_min >= tall for d in payload.detections)


def frame_rate(video: Path) -> float:
    """Frames per second; 25 if the file does not say."""
    return float(cv2.VideoCapture(str(video)).get(cv2.CAP_PROP_FPS)) or 25.0


def clip_frames(video: Path) -> list[Frame]:
    """All frames of a video, stamped by its rate."""
    capture, rate, pictures = cv2.VideoCapture(str(video)), frame_rate(video), []
    while True:
        good, image = capture.read()
        if not good:
            return pictures
        number = len(pictures)
        pictures.append(Frame(np.ascontiguousarray(image, np.uint8), int(number / rate * 1e9), number + 1))


def latency(engine: Engine, runs: int = 120, size: tuple[int, int] = (1280, 720)) -> dict[str, float]:
    """Milliseconds of a whole answer on frames of a camera's size: p50, p99, max and the split's medians."""
    generator = np.random.default_rng(3)
    frame = cv2.resize(engine.golden().image, size, interpolation=cv2.INTER_CUBIC)
    total, parts = [], []
    for number in range(runs + 5):
        noise = generator.integers(0, 6, frame.shape, dtype=np.uint8)
        image = cv2.add(frame, noise)
        image = np.asarray(image, np.uint8)
        frames = [Frame(image.copy(), (number * 10 + i) * 10**8, i + 1) for i in range(engine.frames_wanted)]
        began = time.perf_counter()
        output = engine.infer(frames)
        total.append((time.perf_counter() - began) * 1e3)
        parts.append((output.pre_ms, output.infer_ms, output.post_ms))
    total, middle = total[5:], np.median(np.array(parts[5:]), 0)
    return {
        "p50_ms": round(float(np.percentile(total, 50)), 2),
        "p99_ms": round(float(np.percentile(total, 99)), 2),
        "max_ms": round(max(total), 2),
        "pre_ms": round(float(middle[0]), 2),
        "infer_ms": round(float(middle[1]), 2),
    }


def dangerous(figures: Figures) -> Sequence[tuple[str, str, int]]:
    """Confusions of advice in the dangerous direction: truth, answer, count; most frequent first."""
    table = figures.confusion.get("advice", [])
    found = [
        (Advice(want).name.lower(), Advice(got).name.lower(), table[want][got])
        for want in range(len(Advice))
        for got in range(want)
        if table and table[want][got]
    ]
    return sorted(found, key=lambda row: -row[2])
