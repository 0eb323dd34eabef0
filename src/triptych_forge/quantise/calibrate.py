"""Ranges of activations from in-domain inputs, and the refusal of inputs that are not in-domain.

A range that was measured on pictures prepared in another way (0..1 in place of 0..255, channels swapped, blank) gives a
graph that loads, runs and is wrong. So calibration data carry statistics, these are recorded with the model
(:mod:`.record`), and data that do not fit them are refused before anything is quantised.

Three ways from the values of a tensor to its range (:data:`METHODS`):

* ``minmax``: everything that was seen.
* ``percentile``: a share of the values is cut off on each side.
* ``entropy``: the threshold whose 128-level histogram loses the least information, KL(P || Q); Migacz, "8-bit Inference
  with TensorRT", GTC 2017. Own code: ONNX Runtime's calibrator of that name takes 128 bins for 128 levels by default,
  which leaves it one candidate, the maximum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import numpy.typing as npt
import onnx
from pydantic import BaseModel, ConfigDict, Field, model_validator

from triptych.contract import ConfigError
from triptych.engines.manifest import InputGeometry
from triptych.engines.session import DTYPES
from triptych.vision.preprocess import Preprocessor
from triptych_forge.quantise.measure import Feeds, open_session

Range = tuple[float, float]
METHODS = ("minmax", "entropy", "percentile")
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp")
BINS_PER_SIDE = 2048
SMALLEST = 1e-30
LEVELS = 128
"""Levels of one side of a signed 8-bit grid: TensorRT's choice."""

MOST_PADDING = 0.5
"""Greatest share of the network's input that a letterboxed picture may leave grey; 16:9 in a square leaves 0.44."""
MOST_STRETCH = 1.5
"""Greatest ratio of horizontal to vertical scale, either way round, of a stretched picture."""

MEAN_LIMIT_STD = 1.0
"""Greatest shift of a channel's mean, in recorded standard deviations."""
STD_LIMITS = (0.5, 2.0)
"""Of a channel's standard deviation by the recorded one."""
SPAN_LIMITS = (0.5, 1.25)
"""Of greatest less least value by the recorded one."""
SWAP_MARGIN = 0.5
"""The channels count as swapped if their means in reverse fit the record this much better."""
LEAST_COLOUR_STD = 0.02
"""Means of first and last channel must differ by this many standard deviations before a swap can be seen at all."""


Finite = Annotated[float, Field(allow_inf_nan=False)]


class Statistics(BaseModel):
    """What a tensor looked like over all inputs: recorded with a model, compared with later calibration data.

    Attributes:
        input: name of the graph's input.
        shape: of one input.
        channel_axis: of ``shape``; None: one value for everything.
        mean, std: per channel.
        low, high: least and greatest value.
        inputs: how many were seen.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Annotated[str, Field(min_length=1)]
    shape: tuple[Annotated[int, Field(ge=1)], ...]
    channel_axis: Annotated[int, Field(ge=0)] | None
    mean: tuple[Finite, ...]
    std: tuple[Annotated[float, Field(ge=0.0, allow_inf_nan=False)], ...]
    low: Finite
    high: Finite
    inputs: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> Statistics:
        if self.channel_axis is not None and self.channel_axis >= len(self.shape):
            raise ValueError("channel_axis: the shape has no such axis")
        channels = 1 if self.channel_axis is None else self.shape[self.channel_axis]
        if not len(self.mean) == len(self.std) == channels:
            raise ValueError(f"mean, std: there are {channels} channels")
        if self.low > self.high:
            raise ValueError("low, high: low is above high")
        return self


def image_files(folder: Path) -> list[Path]:
    """The pictures in a folder, by name.

    Raises:
        ConfigError: no such folder, or no picture in it.
    """
    if not folder.is_dir():
        raise ConfigError("no such calibration folder", where=folder)
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in IMAGE_ENDINGS and p.is_file())
    if not found:
        raise ConfigError(
            f"holds no images ({', '.join(IMAGE_ENDINGS)})",
            where=folder,
            remedy="put frames of the vehicle's camera there",
        )
    return found


def feeds_from_folder(
    folder: Path,
    geometry: InputGeometry,
    input_name: str,
    source_px: tuple[int, int] | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, npt.NDArray[Any]]]:
    """Pictures as the runtime prepares them for this engine, one feed per picture.

    Args:
        folder: with pictures.
        geometry: from the engine's manifest.
        input_name: of the graph.
        source_px: width and height that every picture must have: the camera's. None: any that fits the input.
        limit: take so many, spread evenly over the folder.
        progress: called with (done, all).

    Raises:
        ConfigError: no pictures; one that cannot be read or has another geometry, named.
    """
    files = image_files(folder)
    if limit is not None:
        if limit < 1:
            raise ConfigError("must be 1 or more", field="limit", value=limit)
        files = [files[i] for i in sorted({round(x) for x in np.linspace(0, len(files) - 1, min(limit, len(files)))})]
    prepare = Preprocessor(geometry)
    feeds: list[dict[str, npt.NDArray[Any]]] = []
    for number, path in enumerate(files):
        image = cv2.imread(str(path), cv2.IMREAD_COLOR)
        if image is None:
            raise ConfigError("is no readable picture", where=path, remedy="remove it from the calibration folder")
        misfit = _misfit((image.shape[1], image.shape[0]), geometry, source_px)
        if misfit:
            raise ConfigError(misfit, where=path, remedy="calibrate with frames of the vehicle's camera")
        tensor, _ = prepare(np.asarray(image, np.uint8))
        feeds.append({input_name: tensor.copy()})
        if progress:
            progress(number + 1, len(files))
    return feeds


def _misfit(size: tuple[int, int], geometry: InputGeometry, source_px: tuple[int, int] | None) -> str | None:
    width, height = size
    if source_px is not None:
        return None if size == source_px else f"has {width}x{height} pixels, not {source_px[0]}x{source_px[1]}"
    into = f"{geometry.width}x{geometry.height}"
    scale_x, scale_y = geometry.width / width, geometry.height / height
    if min(scale_x, scale_y) > 1.0:
        return f"has {width}x{height} pixels, fewer than the engine's input of {into}"
    shape = max(scale_x / scale_y, scale_y / scale_x)
    if geometry.fit == "letterbox" and 1.0 - 1.0 / shape > MOST_PADDING:
        return f"has {width}x{height} pixels, which would leave {1.0 - 1.0 / shape:.0%} of the input of {into} empty"
    if geometry.fit == "stretch" and shape > MOST_STRETCH:
        return f"has {width}x{height} pixels, which the input of {into} would distort by {shape:.2f}"
    return None


def check_feeds(model: Path, feeds: Iterable[Feeds]) -> list[Feeds]:
    """The feeds as a list, if each gives every input of the graph in the right type and shape.

    Raises:
        ConfigError: none at all; an input missing or unknown, of another type or shape, with NaN or infinity. Names the
            input and the number of the feed.
    """
    inputs = open_session(model).get_inputs()
    wanted = {i.name: (tuple(i.shape), DTYPES.get(i.type)) for i in inputs}
    checked: list[Feeds] = []
    for number, feed in enumerate(feeds):
        where = f"calibration input {number}"
        for name, (shape, dtype) in wanted.items():
            if name not in feed:
                raise ConfigError("is missing", where=where, field=name, remedy=f"the graph {model.name} takes it")
            array = feed[name]
            if dtype is not None and array.dtype != dtype:
                raise ConfigError(f"must be {np.dtype(dtype).name}", where=where, field=name, value=array.dtype.name)
            fits = len(array.shape) == len(shape) and all(
                w == a or not isinstance(w, int) for a, w in zip(array.shape, shape, strict=True)
            )
            if not fits:
                raise ConfigError(
                    f"has another geometry than the engine's {'x'.join(str(s) for s in shape)}",
                    where=where,
                    field=name,
                    value="x".join(str(s) for s in array.shape),
                    remedy="prepare it as the manifest says",
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ConfigError("holds NaN or infinity", where=where, field=name)
        strange = [name for name in feed if name not in wanted]
        if strange:
            raise ConfigError(f"is no input of {model.name}", where=where, field=strange[0])
        checked.append(feed)
    if not checked:
        raise ConfigError("no calibration inputs", where=model, remedy="give at least one")
    return checked


def statistics(feeds: Sequence[Feeds], input_name: str, channel_axis: int | None = None) -> Statistics:
    """Mean and standard deviation per channel, least and greatest value of one input over all feeds.

    Raises:
        ConfigError: no feeds, or one without that input.
    """
    if not feeds:
        raise ConfigError("no calibration inputs", field=input_name)
    total, squares, count = 0.0, 0.0, 0
    low, high = float("inf"), float("-inf")
    for number, feed in enumerate(feeds):
        if input_name not in feed:
            raise ConfigError("is missing", where=f"calibration input {number}", field=input_name)
        x = np.asarray(feed[input_name], np.float64)
        low, high = min(low, float(x.min())), max(high, float(x.max()))
        flat = (
            x.reshape(1, -1)
            if channel_axis is None
            else np.moveaxis(x, channel_axis, 0).reshape(x.shape[channel_axis], -1)
        )
        total, squares, count = total + flat.sum(1), squares + np.square(flat).sum(1), count + flat.shape[1]
    mean = np.asarray(total) / count
    std = np.sqrt(np.maximum(np.asarray(squares) / count - np.square(mean), 0.0))
    return Statistics(
        input=input_name,
        shape=tuple(feeds[0][input_name].shape),
        channel_axis=channel_axis,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        low=low,
        high=high,
        inputs=len(feeds),
    )


def check_statistics(found: Statistics, recorded: Statistics, where: object = None) -> None:
    """Refuse calibration data that were prepared in another way than the model's own.

    Raises:
        ConfigError: another shape; blank; a span, mean or deviation outside the limits at the top of this module;
            channels in reverse. The sentence holds both numbers.
    """
    remedy = "prepare the pictures as the manifest says, or calibrate with frames of the domain"

    def refuse(problem: str) -> ConfigError:
        return ConfigError(problem, where=where, field=found.input, remedy=remedy)

    if found.input != recorded.input or found.shape != recorded.shape or found.channel_axis != recorded.channel_axis:
        raise refuse(f"has shape {found.shape}, the model was recorded with {recorded.input} {recorded.shape}")
    for channel, (mean, std) in enumerate(zip(found.mean, found.std, strict=True)):
        if not np.isfinite(mean) or not std > 0.0:
            raise refuse(f"channel {channel} is blank: every value is {mean:g}")
    span, wanted_span = found.high - found.low, recorded.high - recorded.low
    if not SPAN_LIMITS[0] * wanted_span <= span <= SPAN_LIMITS[1] * wanted_span:
        raise refuse(
            f"values span {found.low:g} to {found.high:g}, the model was recorded with "
            f"{recorded.low:g} to {recorded.high:g}: another scale"
        )
    means, wanted = np.array(found.mean), np.array(recorded.mean)
    unit = np.maximum(np.array(recorded.std), 1e-12)
    if len(means) >= 3 and abs(wanted[0] - wanted[-1]) > LEAST_COLOUR_STD * float(unit.mean()):
        # A brighter or darker scene moves all channels alike: only the colour, what is left without that, can tell.
        colour, wanted_colour = means - means.mean(), wanted - wanted.mean()
        direct = float(np.linalg.norm(colour - wanted_colour))
        swapped = float(np.linalg.norm(colour[::-1] - wanted_colour))
        if swapped < SWAP_MARGIN * direct and direct > LEAST_COLOUR_STD * float(unit.mean()):
            raise refuse(
                f"channels seem to be in reverse: means {_listed(means)}, the model was recorded with {_listed(wanted)}"
            )
    for channel, (mean, std) in enumerate(zip(found.mean, found.std, strict=True)):
        if not abs(mean - wanted[channel]) <= MEAN_LIMIT_STD * unit[channel]:
            raise refuse(
                f"channel {channel} has mean {mean:g}, the model was recorded with "
                f"{wanted[channel]:g} ± {unit[channel]:g}"
            )
        if not STD_LIMITS[0] * unit[channel] <= std <= STD_LIMITS[1] * unit[channel]:
            raise refuse(
                f"channel {channel} has standard deviation {std:g}, the model was recorded with {unit[channel]:g}"
            )


def _listed(values: npt.NDArray[np.float64]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def hash_of(feeds: Iterable[Feeds]) -> str:
    """SHA-256 over names, types, shapes and values of all feeds in order: the calibration data's identity."""
    digest = hashlib.sha256()
    for feed in feeds:
        for name in sorted(feed):
            array = np.ascontiguousarray(feed[name])
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.tobytes())
        digest.update(b"\n")
    return digest.hexdigest()


class Histogram:
    """Values of one tensor in bins of equal width, symmetric about 0, with exact ends; grows by doubling the width."""

    def __init__(self) -> None:
        self.low, self.high = float("inf"), float("-inf")
        self.reach = 0.0
        self.counts = np.zeros(2 * BINS_PER_SIDE, np.int64)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count some values; anything not finite is an error of the graph.

        Raises:
            ConfigError: NaN or infinity.
        """
        flat = np.asarray(values, np.float32).ravel()
        if flat.size == 0:
            return
        low, high = float(flat.min()), float(flat.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ConfigError("NaN or infinity in an activation")
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(abs(low), abs(high))
        if largest < SMALLEST:  # too small to be divided into bins: counts as 0
            largest = 0.0
        if self.reach == 0.0 and largest > 0.0:
            zeros = int(self.counts.sum())  # so far every value was 0
            self.reach = largest
            self.counts[:] = 0
            self.counts[BINS_PER_SIDE] = zeros
        while largest > self.reach > 0.0:
            half = self.counts.reshape(-1, 2).sum(1)
            self.counts[:] = 0
            self.counts[BINS_PER_SIDE // 2 : BINS_PER_SIDE // 2 + BINS_PER_SIDE] = half
            self.reach *= 2.0
        if self.reach == 0.0:
            self.counts[BINS_PER_SIDE] += flat.size
            return
        self.counts += np.histogram(flat, 2 * BINS_PER_SIDE, (-self.reach, self.reach))[0]

    @property
    def magnitudes(self) -> npt.NDArray[np.int64]:
        """Counts of absolute values, :data:`BINS_PER_SIDE` bins from 0 to :attr:`reach`."""
        summed: npt.NDArray[np.int64] = self.counts[BINS_PER_SIDE:] + self.counts[:BINS_PER_SIDE][::-1]
        return summed


def entropy_threshold(magnitudes: npt.NDArray[Any], levels: int = LEVELS, stride: int = 8) -> int:
    """How many bins of absolute values to keep so that ``levels`` steps lose the least information.

    For each candidate i: P is the first i bins with all that lies beyond added to the last of them; Q is the first i
    bins (without what lies beyond) merged into ``levels`` steps and spread again over the bins of each step that are
    not empty. The i with the least KL(P || Q) wins (Migacz 2017, slide "Entropy Calibration - pseudocode").

    Args:
        magnitudes: counts of |x| in bins of equal width, from 0.
        levels: steps of the integer grid.
        stride: try every so many bins.

    Returns:
        A number of bins, ``levels`` to all; all if there are no more bins than levels.
    """
    counts = np.asarray(magnitudes, np.float64).copy()
    bins = len(counts)
    # The bin at zero is filled by ReLU and padding and would outweigh everything; zero is exact on any grid.
    counts[0] = counts[1] if bins > 1 else counts[0]
    if bins <= levels or counts.sum() == 0:
        return bins
    best, least = bins, float("inf")
    beyond = np.concatenate([np.cumsum(counts[::-1])[::-1], [0.0]])
    candidates = [*range(levels, bins, stride), bins]
    for kept in candidates:
        p = counts[:kept].copy()
        q = counts[:kept]
        edges = np.arange(levels) * kept // levels
        merged = np.add.reduceat(q, edges)
        filled = np.add.reduceat((q > 0).astype(np.float64), edges)
        mean = np.divide(merged, filled, out=np.zeros_like(merged), where=filled > 0)
        spread = np.repeat(mean, np.diff(np.append(edges, kept))) * (q > 0)
        p[-1] += beyond[kept]
        divergence = _divergence(p, spread)
        if divergence < least:
            best, least = kept, divergence
    return best


def _divergence(p: npt.NDArray[np.float64], q: npt.NDArray[np.float64]) -> float:
    """KL(P || Q); a bin that only P has is given a trace of mass in Q."""
    total_p, total_q = p.sum(), q.sum()
    if total_p == 0 or total_q == 0:
        return float("inf")
    p, q = p / total_p, np.maximum(q / total_q, 1e-9)
    held = p > 0
    return float((p[held] * np.log(p[held] / q[held])).sum())


def range_from(histogram: Histogram, method: str, percentile: float = 99.99) -> Range:
    """A tensor's range; (0, 0) if nothing was seen.

    Args:
        method: of :data:`METHODS`.
        percentile: share of values in % that ``percentile`` keeps; half of the rest is cut on each side.

    Raises:
        ConfigError: unknown method, percentile outside 50..100.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown, known are {', '.join(METHODS)}", field="method", value=method)
    if not 50.0 <= percentile <= 100.0:
        raise ConfigError("must be 50 to 100", field="percentile", value=percentile)
    total = int(histogram.counts.sum())
    if total == 0:
        return 0.0, 0.0
    width = histogram.reach / BINS_PER_SIDE
    low, high = histogram.low, histogram.high
    if method == "entropy":
        reach = entropy_threshold(histogram.magnitudes) * width
        low, high = max(low, -reach), min(high, reach)
    elif method == "percentile":
        cut = (100.0 - percentile) / 200.0 * total
        sums = np.cumsum(histogram.counts)
        first = int(np.searchsorted(sums, cut, side="right"))
        last = int(np.searchsorted(sums, total - cut, side="left"))
        low = max(low, first * width - histogram.reach)
        high = min(high, (min(last, len(sums) - 1) + 1) * width - histogram.reach)
    return min(low, high), max(low, high)


def collect(
    model: Path, feeds: Sequence[Feeds], progress: Callable[[int, int], None] | None = None
) -> dict[str, Histogram]:
    """Run the graph unoptimised on every feed and count the values of every float tensor that is no constant.

    Raises:
        ConfigError: NaN or infinity in a tensor, named.
    """
    content = onnx.shape_inference.infer_shapes(onnx.load(str(model)))
    graph = content.graph
    known = {v.name: v for v in [*graph.value_info, *graph.output]}
    already = {o.name for o in graph.output}
    floats = {name for name, v in known.items() if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    made = [name for node in graph.node for name in node.output if name in floats]
    graph.output.extend(known[name] for name in made if name not in already)
    session = open_session(content, optimise=False)
    names = [name for name in (o.name for o in session.get_outputs()) if name in floats]
    inputs = [i.name for i in session.get_inputs() if i.type == "tensor(float)"]
    found = {name: Histogram() for name in [*names, *inputs]}
    for number, feed in enumerate(feeds):
        values = dict(zip(names, session.run(names, dict(feed)), strict=True))
        for name, histogram in found.items():
            try:
                histogram.add(values[name] if name in values else feed[name])
            except ConfigError:
                raise ConfigError("NaN or infinity in an activation", where=model, field=name) from None
        if progress:
            progress(number + 1, len(feeds))
    return found


def ranges(histograms: Mapping[str, Histogram], method: str, percentile: float = 99.99) -> dict[str, Range]:
    """:func:`range_from` of every tensor."""
    return {name: range_from(histogram, method, percentile) for name, histogram in histograms.items()}
