"""The VLM engine: an image encoder and a cached autoregressive decoder on ONNX Runtime, under the answer grammar."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from triptych.contract import Advice, EngineError, Frame, Light, Road, SceneAdvice, Weather
from triptych.engines.golden import golden_frame
from triptych.engines.manifest import Manifest, resolve_files
from triptych.engines.protocol import DeviceReport, EngineOutput
from triptych.engines.session import OnnxSession, check_finite
from triptych.language.adapters import AdaptedSession, AdapterChoice, AdapterStore, SwitchTimes, measure
from triptych.language.config import LanguageConfig
from triptych.language.decode import Step, greedy
from triptych.language.grammar import Grammar
from triptych.language.tokeniser import Vocabulary
from triptych.vision.preprocess import Preprocessor

_log = logging.getLogger(__name__)

DECODER = "triptych-vlm-1"
"""The graph interface this module speaks, see :class:`VlmEngine`; a manifest's ``decoder``."""

GOLDEN_FIELDS: dict[str, type[Road] | type[Weather] | type[Light] | type[Advice]] = {
    "road": Road,
    "weather": Weather,
    "light": Light,
    "advice": Advice,
}
WARM_UP_RUNS = 3
"""Whole answers given while loading: encoder, prompt and every length of the decoder's cache are then warm."""
SWITCH_ROUNDS = 20
"""Of going through all adapters, that the times of a switch are medians of."""
MAX_AGE_S = 5.0
"""Frames older than this before the newest are told to the encoder as this old."""


def memory_names(layers: int) -> list[str]:
    """Keys and values of the picture per layer: (1, heads, memory, head_size) float32; encoder out, decoder in."""
    return [f"memory.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


def cache_names(layers: int, prefix: str) -> list[str]:
    """Keys and values of the tokens so far: (1, heads, past, head_size) float32; ``past`` in, ``present`` out."""
    return [f"{prefix}.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


class VlmEngine:
    """A checked vision-language engine.

    The encoder takes ``frames`` (N, H, W, 3) uint8 and ``ages_s`` (N,) float32, the time of each frame before the
    newest; it gives the picture's keys and values. The decoder takes ``input_ids`` and ``position_ids`` (1, T) int64,
    those, and the past keys and values; it gives ``logits`` (1, T, vocabulary) float32 and the present keys and values.

    With ``adapters`` in the manifest the decoder's weights follow the scene: which adapter an answer is given with is
    decided by the answers before it (:class:`AdapterChoice`). The golden frame is always answered with the base weights
    and begins the count anew, so that every drive begins on them; so does an answer that failed.

    Args:
        manifest: task ``vlm``.
        manifest_path: the file it was read from; engine files are looked for beside it.
        device: requested device.
        threads: threads per operator.
        engine_dir: look for the engine files here instead.

    Raises:
        EngineError: files missing or changed; a language section, vocabulary or graph that does not fit; an answer
            that cannot be trusted, an adapter that is not this decoder's.
    """

    def __init__(
        self,
        manifest: Manifest,
        manifest_path: Path,
        device: str = "cpu",
        threads: int = 1,
        engine_dir: Path | None = None,
    ) -> None:
        if manifest.decoder != DECODER:
            raise EngineError(
                f"unknown decoder, known is {DECODER}",
                where=manifest_path,
                field="decoder",
                value=manifest.decoder,
                remedy="correct the manifest",
            )
        self.manifest = manifest
        self.config = _language(manifest, manifest_path)
        for field in manifest.golden.answer:
            if field not in GOLDEN_FIELDS:
                raise EngineError(
                    f"is no field of an answer, known are {', '.join(GOLDEN_FIELDS)}",
                    where=manifest_path,
                    field=f"golden.answer.{field}",
                )
        files = resolve_files(manifest, manifest_path, engine_dir)
        self.vocabulary = Vocabulary.load(files["tokenizer"])
        self.grammar = Grammar(self.vocabulary, self.config.max_tokens)
        self._encoder = OnnxSession(files["encoder"], device, threads)
        kind = AdaptedSession if manifest.adapters else OnnxSession
        self._decoder: OnnxSession = kind(files["decoder"], device, threads)
        for session in (self._encoder, self._decoder):
            session.refuse_fallback_above(manifest.max_fallback_share)
        self._check_graphs(files)
        self._store = AdapterStore(self._decoder) if isinstance(self._decoder, AdaptedSession) else None
        for name in manifest.adapters:
            assert self._store is not None
            self._store.load(files[f"adapters.{name}"], name)
        self._choice = AdapterChoice({name: adapter.when for name, adapter in manifest.adapters.items()})
        self._adapter = ""
        self._golden = golden_frame(manifest, manifest_path, engine_dir)
        self._preprocess = Preprocessor(manifest.input)
        count = manifest.frames
        self._pictures = np.zeros((count, manifest.input.height, manifest.input.width, 3), np.uint8)
        # The runtime plans memory per input shape in the first two runs; later ones take half as long. An adapter's
        # rank is part of the shapes.
        for name in (*manifest.adapters, ""):
            try:
                for _ in range(WARM_UP_RUNS):
                    self.golden_answer(name)
            except EngineError as error:
                if not name:
                    raise
                raise EngineError(
                    f"cannot answer the golden frame: {error.problem}",
                    where=files[f"adapters.{name}"],
                    remedy="make it again or take it out of the manifest",
                ) from None

    def _check_graphs(self, files: dict[str, Path]) -> None:
        c, g, n = self.config, self.manifest.input, self.manifest.frames
        memory, past = memory_names(c.layers), cache_names(c.layers, "past")
        cache = (1, c.heads, None, c.head_size)
        _check_io(
            files["encoder"],
            self._encoder,
            {"frames": ((n, g.height, g.width, 3), np.uint8), "ages_s": ((n,), np.float32)},
            dict.fromkeys(memory, cache),
        )
        _check_io(
            files["decoder"],
            self._decoder,
            {
                "input_ids": ((1, None), np.int64),
                "position_ids": ((1, None), np.int64),
                **dict.fromkeys(memory + past, (cache, np.float32)),
            },
            {"logits": (1, None, len(self.vocabulary)), **dict.fromkeys(cache_names(c.layers, "present"), cache)},
        )

    @property
    def id(self) -> str:
        """Name from the manifest."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """Version from the manifest; ``+<adapter>`` behind it while the last answer was given with one."""
        return self.manifest.version_with(self._adapter)

    @property
    def adapter(self) -> str:
        """Name of the adapter in use, which the last answer was given with; empty for the base weights."""
        return self._adapter

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters, in the manifest's order."""
        return tuple(self.manifest.adapters)

    @property
    def device(self) -> DeviceReport:
        """Requested and actual device; node counts of both graphs together, the worse device of the two."""
        first, second = self._encoder.device, self._decoder.device
        actual = first.actual if first.actual == second.actual else "cpu"
        return DeviceReport(
            first.requested,
            actual,
            first.runtime,
            first.nodes_total + second.nodes_total,
            first.nodes_fallback + second.nodes_fallback,
        )

    @property
    def frames_wanted(self) -> int:
        """Frames the encoder looks at."""
        return self.manifest.frames

    @property
    def frame_spacing_s(self) -> float:
        """Time between frames the model was trained on; others work, since the encoder is told the ages."""
        return self.config.frame_spacing_s

    def infer(
        self, frames: Sequence[Frame], question: str = "", deadline_monotonic_ns: int | None = None
    ) -> EngineOutput:
        """Answer about the last of ``frames``; missing earlier ones are stood in for by the oldest given.

        A model without questions answers the standing one and says so by an empty ``question`` in its payload. At the
        deadline the answer is cut to what was said so far; see :meth:`Grammar.payload`.

        Raises:
            EngineError: no frame; NaN, infinity or a wrong shape in an output.
            InputError: the question is too long.
        """
        if not frames:
            raise EngineError("no frame given", where=self.id)
        if frames[-1] is self._golden:
            self._choice.reset()
        before, now = self._adapter, self._choice.current
        self._use(now)
        if now != before:
            _log.info("%s: answers with %s after %s", self.id, now or "the base weights", before or "the base weights")
        try:
            output, whole = self._answer(frames, question, deadline_monotonic_ns)
        except EngineError:
            # Should the adapter be to blame, the next answer is not.
            self._choice.reset()
            raise
        assert isinstance(output.payload, SceneAdvice)
        if whole and frames[-1] is not self._golden:
            self._choice.see(output.payload)
        return output

    def golden_answer(self, adapter: str = "") -> EngineOutput:
        """Answer the golden frame with an adapter, whatever the scene; later answers begin on the base weights.

        Raises:
            EngineError: as :meth:`infer`; no adapter of this name.
        """
        self._choice.reset()
        self._use(adapter)
        try:
            return self._answer([self._golden] * self.manifest.frames, self.manifest.golden.question, None)[0]
        finally:
            self._use("")

    def switch_times(self) -> SwitchTimes:
        """How long it takes to switch between the adapters and the base weights, and the first decoder runs after it.

        Raises:
            EngineError: the manifest lists no adapters.
        """
        if self._store is None or not isinstance(self._decoder, AdaptedSession):
            raise EngineError("lists no adapters", where=self.id)
        self._choice.reset()
        self._use("")
        self._pictures[:] = self._preprocess(self._golden.image)[0][0]
        memory = self._encoder.run({"frames": self._pictures, "ages_s": np.zeros(self.manifest.frames, np.float32)})
        prompt = self.vocabulary.question("")
        feeds = self._cached(memory) | self._tokens(prompt, 0)
        try:
            return measure(self._decoder, self._store, [None, *self.adapters], feeds, SWITCH_ROUNDS)
        finally:
            self._store.use(None)

    def _use(self, adapter: str) -> None:
        """Let the answers from now on be given with an adapter; empty for the base weights."""
        if adapter == self._adapter:
            return
        if self._store is None:
            raise EngineError("lists no adapters", where=self.id, value=adapter)
        self._store.use(adapter or None)
        self._adapter = adapter

    def _answer(
        self, frames: Sequence[Frame], question: str, deadline_monotonic_ns: int | None
    ) -> tuple[EngineOutput, bool]:
        """The answer with the adapter in use, and whether all its fields were said before the deadline."""
        start = time.perf_counter()
        asked = question.strip() if self.config.questions else ""
        prompt = self.vocabulary.question(asked)
        chosen = [*frames][-self.manifest.frames :]
        chosen = [chosen[0]] * (self.manifest.frames - len(chosen)) + chosen
        for row, frame in enumerate(chosen):
            if row and frame is chosen[row - 1]:
                self._pictures[row] = self._pictures[row - 1]
            else:
                self._pictures[row] = self._preprocess(frame.image)[0][0]
        newest = chosen[-1].stamp_ns
        ages = np.array([min(max((newest - f.stamp_ns) / 1e9, 0.0), MAX_AGE_S) for f in chosen], np.float32)
        prepared = time.perf_counter()
        memory = self._encoder.run({"frames": self._pictures, "ages_s": ages})
        check_finite(memory, f"{self.id} encoder")
        decoded = greedy(
            self._stepper(memory),
            self.grammar,
            prompt,
            deadline_monotonic_ns,
            int(self.config.step_margin_ms * 1e6),
            self.config.advice_quantile,
        )
        inferred = time.perf_counter()
        payload = self.grammar.payload(decoded.state, asked, decoded.probabilities)
        done = time.perf_counter()
        output = EngineOutput(
            payload,
            decoded.uncertainty,
            (prepared - start) * 1e3,
            (inferred - prepared) * 1e3,
            (done - inferred) * 1e3,
            self._adapter,
        )
        return output, decoded.state.fields_complete

    def _stepper(self, memory: list[npt.NDArray[np.float32]]) -> Step:
        """A step function that keeps the keys and values of what it was fed."""
        feeds, past = self._cached(memory), cache_names(self.config.layers, "past")
        fed = 0

        def step(tokens: list[int]) -> npt.NDArray[np.float32]:
            nonlocal fed
            feeds.update(self._tokens(tokens, fed))
            fed += len(tokens)
            logits, *present = self._decoder.run(feeds)
            feeds.update(zip(past, present, strict=True))
            last: npt.NDArray[np.float32] = logits[0, -1]
            return last

        return step

    def _cached(self, memory: list[npt.NDArray[np.float32]]) -> dict[str, Any]:
        """What the decoder is fed before the first token: the picture's keys and values, and none of tokens."""
        c = self.config
        empty = np.zeros((1, c.heads, 0, c.head_size), np.float32)
        return {
            **dict(zip(memory_names(c.layers), memory, strict=True)),
            **dict.fromkeys(cache_names(c.layers, "past"), empty),
        }

    @staticmethod
    def _tokens(tokens: list[int], fed: int) -> dict[str, Any]:
        """Tokens as the decoder is fed them, after ``fed`` others."""
        return {
            "input_ids": np.array([tokens], np.int64),
            "position_ids": np.arange(fed, fed + len(tokens), dtype=np.int64)[None],
        }

    def golden(self) -> Frame:
        """The manifest's golden frame."""
        return self._golden

    def golden_ok(self, output: EngineOutput) -> str:
        """Empty, or which field of the golden frame's answer is not as the manifest expects."""
        payload = output.payload
        if not isinstance(payload, SceneAdvice):
            return f"{self.id} gave {type(payload).__name__} instead of scene advice"
        for field, wanted in self.manifest.golden.answer.items():
            got = getattr(payload, field).name.lower()
            if got != wanted:
                return f"{self.id} says {field} {got} on the golden frame, expected {wanted}"
        if not output.uncertainty <= self.config.uncertainty_max:
            return (
                f"{self.id} is too unsure of the golden frame: uncertainty {output.uncertainty:.2f}, "
                f"at most {self.config.uncertainty_max:g} allowed"
            )
        return ""

    def close(self) -> None:
        """Release both sessions and the adapters."""
        self._store = None
        del self._encoder, self._decoder


def _language(manifest: Manifest, path: Path) -> LanguageConfig:
    g = manifest.input
    if (g.layout, g.dtype, g.colour) != ("nhwc", "uint8", "bgr"):
        raise EngineError(
            "the graph of this decoder normalises by itself and takes nhwc uint8 bgr",
            where=path,
            field="input",
            value=f"{g.layout} {g.dtype} {g.colour}",
            remedy="correct the manifest",
        )
    try:
        return LanguageConfig.model_validate(manifest.language)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise EngineError(
            first["msg"][0].lower() + first["msg"][1:],
            where=path,
            field=".".join(["language", *(str(part) for part in first["loc"])]),
            remedy="correct the manifest",
        ) from None


def _check_io(
    path: Path,
    session: OnnxSession,
    inputs: dict[str, tuple[tuple[int | None, ...], Any]],
    outputs: dict[str, tuple[int | None, ...]],
) -> None:
    """Compare the names, types and shapes a graph declares with those wanted (None: any size)."""

    def complain(name: str, problem: str) -> EngineError:
        return EngineError(problem, where=path, field=name, remedy="use the file the manifest was written for")

    for kind, wanted, found in (("input", [*inputs], session.inputs), ("output", [*outputs], session.outputs)):
        for name in wanted:
            if name not in found:
                raise complain(name, f"the graph has no such {kind}")
        for name in found:
            if name not in wanted:
                raise complain(name, f"the graph has an {kind} nobody feeds or reads")
    if [*session.outputs] != [*outputs]:
        raise complain(next(iter(outputs)), "the graph's outputs are in another order")
    shapes = {**{n: s for n, (s, _) in session.inputs.items()}, **session.outputs}
    for name, want in {**{n: s for n, (s, _) in inputs.items()}, **outputs}.items():
        shape = shapes[name]
        # A symbolic dimension (text or None) in the file fits anything.
        agrees = len(shape) == len(want) and all(
            w is None or s == w or not isinstance(s, int) for s, w in zip(shape, want, strict=True)
        )
        if not agrees:
            raise complain(name, f"has shape {'x'.join(map(str, shape))}, the manifest needs {_listed(want)}")
    for name, (_, dtype) in inputs.items():
        if session.inputs[name][1] is not dtype:
            raise complain(name, f"is not of type {np.dtype(dtype).name}")


def _listed(shape: tuple[int | None, ...]) -> str:
    return "x".join("?" if d is None else str(d) for d in shape)
