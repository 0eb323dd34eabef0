"""What two engines are compared on: samples, and which part of the output counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from triptych.contract import ConfigError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Sample:
    """One input.

    Attributes:
        feeds: input name to array, as the engine takes it.
        targets: (positions,) int64: the right class at each position of the output, -1 where no answer is asked for;
            None: every position counts and nobody knows what is right.
        reference: the right answer as text, words apart by blanks; empty if unknown.
        prompt: tokens before the answer begins, in ``input_ids``.
        slices: conditions the sample stands for, e.g. ``night``.
    """

    feeds: Feeds
    targets: npt.NDArray[np.int64] | None = None
    reference: str = ""
    prompt: int = 0
    slices: frozenset[str] = field(default_factory=frozenset)


Kind = Literal["logits", "chances", "values"]
"""``logits``: one of the last axis is right (softmax); ``chances``: each of the last axis is 0..1 by itself;
``values``: plain numbers, e.g. boxes."""


CHANCE_FLOOR = 0.05
"""See :meth:`Head.positions`."""


@dataclass(frozen=True)
class Head:
    """A part of the final output that is judged by itself, so that large numbers cannot hide small ones.

    Attributes:
        name: for reports.
        output: the tensor.
        kind: see :data:`Kind`.
        first, last: range of the last axis.
    """

    name: str
    output: str
    kind: Kind = "values"
    first: int = 0
    last: int | None = None

    def rows(self, outputs: Feeds) -> Floats:
        """(positions, channels) float64: all axes but the last are positions."""
        tensor = np.asarray(outputs[self.output], np.float64)
        tensor = tensor.reshape(-1, tensor.shape[-1] if tensor.ndim else 1)
        return tensor[:, self.first : self.last]

    def positions(self, sample: Sample, *sides: Feeds) -> npt.NDArray[np.int64]:
        """Positions that count, of one or more outputs for the same sample.

        Logits: where the sample asks for an answer. Chances: where at least one side finds something at least
        :data:`CHANCE_FLOOR` likely, since nearly all of a detector's cells are empty, and what an engine thinks least
        unlikely there means nothing. Values: all.

        Raises:
            ConfigError: the sample's targets are not as many as the output's positions.
        """
        rows = [self.rows(side) for side in sides]
        if self.kind == "chances":
            return np.flatnonzero(np.any([(r >= CHANCE_FLOOR).any(-1) for r in rows], 0))
        if self.kind == "values" or sample.targets is None:
            return np.arange(len(rows[0]))
        if len(sample.targets) != len(rows[0]):
            raise ConfigError(
                f"the output has {len(rows[0])} positions, the sample {len(sample.targets)} targets", field=self.output
            )
        return np.flatnonzero(sample.targets >= 0)

    def counted(self, outputs: Feeds, sample: Sample) -> Floats:
        """:meth:`rows` of the positions that count; of chances all, so that two sides have the same."""
        rows = self.rows(outputs)
        return rows if self.kind == "chances" else rows[self.positions(sample, outputs)]


def chances(head: Head, rows: Floats) -> Floats:
    """Probabilities of ``rows``: the softmax of logits, or chances as they are, kept off 0 and 1."""
    if head.kind == "chances":
        return np.clip(rows, 1e-9, 1 - 1e-9)
    shifted = np.exp(rows - rows.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True), np.float64)


def need_samples(samples: Sequence[Sample], where: object = None) -> None:
    """Refuse an empty comparison.

    Raises:
        ConfigError: no sample.
    """
    if not samples:
        raise ConfigError("no sample to compare on", where=where, remedy="give data that holds at least one")


def load_samples(path: Path) -> list[Sample]:
    """Read an ``.npz``: one array per input, its first axis counts samples; the rest of a row is fed as it is.

    Names that begin with ``@`` are not fed: ``@length`` (n,) int: valid entries of the last axis of ``input_ids``, what
    lies behind is cut off; ``@targets`` (n, positions) int; ``@prompt`` (n,) int; ``@reference`` (n,) text;
    ``@slices`` (n,) text, names apart by commas.

    Raises:
        ConfigError: unreadable, pickled content, no sample, arrays of different lengths or not finite, an unknown
            ``@`` name.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, BadZipFile) as error:
        raise ConfigError(f"cannot be read as .npz: {str(error).splitlines()[0]}", where=path) from None
    known = {"@length", "@targets", "@prompt", "@reference", "@slices"}
    for name in arrays:
        if name.startswith("@") and name not in known:
            raise ConfigError(f"is no known name, known are {', '.join(sorted(known))}", where=path, field=name)
    inputs = {name: array for name, array in arrays.items() if not name.startswith("@")}
    if not inputs:
        raise ConfigError("holds no input array", where=path, remedy="name arrays like the engine's inputs")
    count = len(next(iter(inputs.values()))) if next(iter(inputs.values())).ndim else 0
    for name, array in arrays.items():
        if not array.ndim or len(array) != count:
            raise ConfigError(
                f"must have {count} samples like the first array", where=path, field=name, value=array.shape
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ConfigError("holds NaN or infinity", where=path, field=name)
    if count == 0:
        raise ConfigError("no sample to compare on", where=path, remedy="give data that holds at least one")
    return [_sample(arrays, inputs, row) for row in range(count)]


def _sample(arrays: Mapping[str, Array], inputs: Mapping[str, Array], row: int) -> Sample:
    feeds = {name: np.ascontiguousarray(array[row]) for name, array in inputs.items()}
    targets = arrays["@targets"][row].astype(np.int64) if "@targets" in arrays else None
    if "@length" in arrays:
        length = int(arrays["@length"][row])
        feeds = {n: np.ascontiguousarray(a[..., :length]) if n == "input_ids" else a for n, a in feeds.items()}
        targets = targets[:length] if targets is not None else None
    slices = str(arrays["@slices"][row]) if "@slices" in arrays else ""
    return Sample(
        feeds,
        targets,
        str(arrays["@reference"][row]) if "@reference" in arrays else "",
        int(arrays["@prompt"][row]) if "@prompt" in arrays else 0,
        frozenset(part.strip() for part in slices.split(",") if part.strip()),
    )
