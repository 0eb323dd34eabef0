"""Scene adapters while driving: the decoder's adapter weights, exchanged between two answers in the same session.

The decoder graph takes the adapter's tensors as overridable initialisers; ONNX Runtime lets a run name the adapter that
overrides them (``RunOptions.add_active_adapter``, ONNX Runtime >= 1.20). An adapter is known by what it holds, never by
what it is called: a file replaced under its old name is another adapter, and nothing cached for the one is given to
the other.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from triptych.contract import EngineError, SceneAdvice
from triptych.engines.manifest import When
from triptych.engines.session import DTYPES, OnnxSession

BASE_KEY = "triptych.adapter_base_sha256"
"""Metadata key of a switchable decoder graph: hash of the base weights its adapters were trained on."""

SWITCH_AFTER = 3
"""Answers in a row that must ask for another adapter before it is taken.

One misread picture must not change the weights, and two may come from one smear on the lens or one pair of headlights.
At one answer per 0.2 s (distilled) or 2 s (full) a scene is followed after 0.6 s or 6 s: soon enough, since the base
weights answer in every scene and an adapter only makes them better.
"""


def content_sha256(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 over names, types, shapes and values of ``tensors``; their order and any file name do not count."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name])
        digest.update(json.dumps([name, tensor.dtype.str, list(tensor.shape)]).encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


NO_ADAPTER = content_sha256({})
"""What stands for "no adapter" wherever an adapter's hash is asked for."""


def base_version(base_sha256: str) -> int:
    """The adapter file format has one number for "which model": the first 28 bits of the base weights' hash."""
    return int(base_sha256[:7], 16)


def cache_key(pixels_sha256: str, preprocessing: str, position: int, adapter_sha256: str) -> str:
    """Key of a kept prefix (keys and values of tokens): equal only if all that the content depends on is equal.

    Args:
        pixels_sha256: hash of the picture as it came from the camera.
        preprocessing: what was done to it, e.g. the manifest's input section as canonical JSON.
        position: tokens in the prefix.
        adapter_sha256: :attr:`LoadedAdapter.sha256`, or :data:`NO_ADAPTER`.

    Raises:
        ValueError: an empty part; it would match what it should not.
    """
    if not (pixels_sha256 and preprocessing and adapter_sha256):
        raise ValueError("every part of a cache key must be given")
    return hashlib.sha256(json.dumps([pixels_sha256, preprocessing, position, adapter_sha256]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """A loaded, checked adapter.

    Attributes:
        name: it was last loaded under; for people.
        sha256: :func:`content_sha256` of its tensors; for programs.
        size_bytes: of its tensors.
        handle: ONNX Runtime's object.
    """

    name: str
    sha256: str
    size_bytes: int
    handle: ort.LoraAdapter


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of adapter: hashes before and after (:data:`NO_ADAPTER` for none), and the time it took."""

    previous_sha256: str
    sha256: str
    switch_ms: float


@dataclass(frozen=True, slots=True)
class SwitchTimes:
    """Medians in milliseconds: the switch itself, the first run after it, a run without a switch before it."""

    switch_ms: float
    first_run_ms: float
    steady_run_ms: float


class AdaptedSession(OnnxSession):
    """A decoder graph whose adapter weights can be exchanged; used in the place of a plain session.

    Args:
        path, device, threads: see :class:`OnnxSession`.

    Attributes:
        adapter_inputs: shape and numpy type of each tensor an adapter must hold.
        base_sha256: of the base weights the graph was exported from.

    Raises:
        EngineError: what a plain session raises; a graph that takes no adapters.
    """

    def __init__(self, path: Path, device: str = "cpu", threads: int = 1) -> None:
        super().__init__(path, device, threads)
        self.adapter_inputs: dict[str, tuple[tuple[Any, ...], Any]] = {
            i.name: (tuple(i.shape), DTYPES.get(i.type)) for i in self._session.get_overridable_initializers()
        }
        self.base_sha256: str = self._session.get_modelmeta().custom_metadata_map.get(BASE_KEY, "")
        if not self.adapter_inputs or not self.base_sha256:
            raise EngineError(
                "the graph takes no adapters",
                where=path,
                remedy="export it with triptych_forge.adapt.export, or take the adapters out of the manifest",
            )
        self._options: ort.RunOptions | None = None

    def activate(self, adapter: LoadedAdapter | None) -> None:
        """Let the runs from now on use ``adapter``, or the base weights."""
        if adapter is None:
            self._options = None
            return
        options = ort.RunOptions()
        options.add_active_adapter(adapter.handle)
        self._options = options

    def run(self, feeds: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str] | None = None) -> list[Any]:
        """Run the graph with the active adapter.

        Raises:
            EngineError: the runtime refuses the feeds or fails.
        """
        try:
            return list(self._session.run(outputs, dict(feeds), self._options))
        except Exception as error:  # the runtime raises a dozen types without a common base
            raise EngineError(f"inference failed: {' '.join(str(error).split())[:160]}", where=self.path) from None


class AdapterStore:
    """The adapters of one decoder.

    Content that no name leads to any more is dropped as soon as it is not in use, so that reloading does not grow.

    Args:
        session: the decoder.
    """

    def __init__(self, session: AdaptedSession) -> None:
        self._session = session
        self._by_content: dict[str, LoadedAdapter] = {}
        self._names: dict[str, str] = {}
        self._active = NO_ADAPTER

    @property
    def active_sha256(self) -> str:
        """Content hash of the adapter in use, or :data:`NO_ADAPTER`."""
        return self._active

    @property
    def names(self) -> dict[str, str]:
        """Content hash per name."""
        return dict(self._names)

    def __len__(self) -> int:
        """Different contents kept."""
        return len(self._by_content)

    def load(self, path: Path, name: str, sha256: str | None = None) -> LoadedAdapter:
        """Read, check and keep an adapter; the one in use stays in use, even under the same name.

        Args:
            path: a file of ONNX Runtime's adapter format.
            name: to :meth:`use` it by.
            sha256: content hash it must have (:func:`content_sha256`, not the file's); None: any.

        Raises:
            EngineError: unreadable; made for another base model; another content hash; a missing, unknown or misshapen
                tensor; NaN or infinity. Nothing is changed then.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise EngineError(f"cannot be read: {error.strerror}", where=path) from None
        # The runtime maps the file into memory: a private copy cannot be changed or cut short under it afterwards.
        with _private_copy(data) as private:
            try:
                content = ort.AdapterFormat.read_adapter(private)
                tensors = {key: np.array(value.numpy()) for key, value in content.get_parameters().items()}
                made_for = content.get_model_version()
                handle = ort.LoraAdapter()
                handle.Load(private)
            except Exception:  # as in OnnxSession
                raise EngineError("is no adapter file", where=path, remedy="export or copy it again") from None
        if made_for != base_version(self._session.base_sha256):
            raise EngineError(
                "was made for another base model", where=path, remedy="train it on the weights of this decoder"
            )
        self._check(path, tensors)
        digest = content_sha256(tensors)
        if sha256 is not None and digest != sha256:
            raise EngineError(
                f"content hash is {digest[:12]}…, expected {sha256[:12]}…",
                where=path,
                field="sha256",
                remedy="copy the file again",
            )
        adapter = LoadedAdapter(name, digest, sum(t.nbytes for t in tensors.values()), handle)
        self._by_content.setdefault(digest, adapter)
        self._names[name] = digest
        self._drop_unreachable()
        return self._by_content[digest]

    def use(self, name: str | None) -> Switch:
        """Make the content last loaded as ``name`` the active one; None for the base weights.

        Takes effect with the next run. Do it between answers: an answer's own cache belongs to one adapter.

        Raises:
            EngineError: nothing was loaded under this name.
        """
        if name is not None and name not in self._names:
            known = ", ".join(sorted(self._names)) or "none"
            raise EngineError(f"no such adapter, loaded are {known}", where=self._session.path, value=name)
        start = time.perf_counter()
        wanted = NO_ADAPTER if name is None else self._names[name]
        previous = self._active
        if wanted != previous:
            self._session.activate(self._by_content.get(wanted))
            self._active = wanted
            self._drop_unreachable()
        return Switch(previous, wanted, (time.perf_counter() - start) * 1e3)

    def _drop_unreachable(self) -> None:
        wanted = {*self._names.values(), self._active}
        self._by_content = {key: a for key, a in self._by_content.items() if key in wanted}

    def _check(self, path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        wanted = self._session.adapter_inputs

        def refuse(name: str, problem: str) -> EngineError:
            return EngineError(problem, where=path, field=name, remedy="export it for this decoder")

        for name in sorted(wanted.keys() - tensors.keys()):
            raise refuse(name, "is missing")
        for name in sorted(tensors.keys() - wanted.keys()):
            raise refuse(name, "is unknown to the decoder")
        sizes: dict[str, int] = {}  # of the dimensions that the graph only names, such as the rank
        for name, (shape, dtype) in wanted.items():
            tensor = tensors[name]
            if tensor.dtype != dtype:
                raise refuse(name, f"is {tensor.dtype.name}, the decoder takes {np.dtype(dtype).name}")
            if len(shape) == tensor.ndim:
                for size, wish in zip(tensor.shape, shape, strict=True):
                    if not isinstance(wish, int):
                        sizes.setdefault(str(wish), size)
            takes = tuple(wish if isinstance(wish, int) else sizes.get(str(wish), wish) for wish in shape)
            if tensor.shape != takes:
                raise refuse(name, f"has shape {_listed(tensor.shape)}, the decoder takes {_listed(takes)}")
            if not np.isfinite(tensor).all():
                raise refuse(name, "holds NaN or infinity")


class AdapterChoice:
    """Which adapter the next answer is given with; follows from the answers before it and from nothing else.

    An answer asks for the first adapter whose every condition it meets, or for the base weights when it meets none's.
    What the last ``after`` answers all ask for is taken.

    Args:
        when: conditions by name, in the manifest's order.
        after: see :data:`SWITCH_AFTER`.

    Attributes:
        current: name of the adapter to use now; empty for the base weights, which it begins with.
    """

    def __init__(self, when: Mapping[str, When], after: int = SWITCH_AFTER) -> None:
        if after < 1:
            raise ValueError("a switch needs an answer that asks for it")
        self._when, self._after = dict(when), after
        self.current = self._asked = ""
        self._count = 0

    def wanted(self, answer: SceneAdvice) -> str:
        """What a whole answer asks for."""
        return next((name for name, when in self._when.items() if when.holds(answer)), "")

    def see(self, answer: SceneAdvice) -> None:
        """Count a whole answer; one that was cut short says too little about the scene and is not shown here."""
        wanted = self.wanted(answer)
        self._count = self._count + 1 if wanted == self._asked else 1
        self._asked = wanted
        if self._count >= self._after:
            self.current = wanted

    def reset(self) -> None:
        """Back to the base weights, with nothing counted."""
        self.current = self._asked = ""
        self._count = 0


def _listed(shape: tuple[Any, ...]) -> str:
    return "x".join(map(str, shape))


def measure(
    session: AdaptedSession,
    store: AdapterStore,
    names: Sequence[str | None],
    feeds: Mapping[str, npt.NDArray[Any]],
    rounds: int = 50,
) -> SwitchTimes:
    """Time switches between ``names`` in turn, each followed by two runs on ``feeds``; the first round warms up.

    Raises:
        ValueError: fewer than two names or no round.
    """
    if len(names) < 2 or rounds < 1:
        raise ValueError("a switch needs two adapters and a round")
    switches, firsts, steadies = [], [], []
    for turn in range(rounds + 1):
        for name in names:
            switch = store.use(name)
            times = []
            for _ in range(2):
                start = time.perf_counter()
                session.run(feeds)
                times.append((time.perf_counter() - start) * 1e3)
            if turn:
                switches.append(switch.switch_ms)
                firsts.append(times[0])
                steadies.append(times[1])
    return SwitchTimes(*(statistics.median(t) for t in (switches, firsts, steadies)))


@contextmanager
def _private_copy(data: bytes) -> Iterator[str]:
    """A file of ours with this content.

    Raises:
        EngineError: there is no room for it.
    """
    try:
        with tempfile.NamedTemporaryFile(suffix=".onnx_adapter") as file:
            file.write(data)
            file.flush()
            yield file.name
    except OSError as error:
        raise EngineError(
            f"cannot be written: {error.strerror}", where=tempfile.gettempdir(), remedy="make room there, or set TMPDIR"
        ) from None
