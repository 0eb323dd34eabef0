"""Quantisation-aware training: the network learns with the rounding it will run with.

Source: Jacob et al. 2018, section 3: rounding in the forward pass, the straight-through gradient in the backward pass,
activation ranges as an exponential moving average. Option ``learned``: the ends of the range are parameters; the
gradient of the scale is then that of Esser et al., "Learned Step Size Quantization", ICLR 2020, equation (3), because
y = S round(x / S) inside the range and S qmax outside is differentiated as it stands; Adam makes that paper's scaling
of the gradient needless. Batch normalisations are folded before. Weights: int8, symmetric, per output channel, range
from the weight at every step.

The quantisers are this module's own: ``torch.ao.quantization`` is deprecated in favour of a package that exports no
QDQ graph of a module, and its per-tensor kernel multiplies with 1 / S where ONNX divides by S, so ties would round
apart. What ``export_qdq`` writes computes what the torch network computes, rounding for rounding.
"""

from __future__ import annotations

import fnmatch
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn.utils import parametrize

from triptych.contract import ConfigError
from triptych_forge.decisions import DecisionLog
from triptych_forge.quantise.affine import INT8_SYMMETRIC, SMALLEST_SCALE, Affine, Grid, parameters
from triptych_forge.quantise.affine import quantise as affine_integers
from triptych_forge.quantise.fold import fold_batch_norms
from triptych_forge.quantise.measure import Feeds, open_session, outputs_of, worst_relative_l2
from triptych_forge.quantise.trace import consumers, first_tensors, trace

OPSET = 18
CONVERSION_LIMIT = 1e-3
"""Greatest relative L2 of an output between the torch network and ONNX Runtime, same numerics on both sides."""
QUANTISERS = "activation_quantisers"
"""Attribute of a prepared network that holds its activation quantisers, by :func:`_key` of their place."""


@dataclass(frozen=True)
class QatOptions:
    """How to quantise.

    Attributes:
        ranges: ``ema`` or ``learned`` for activations.
        decay: of the moving average per step.
        signed: activations int8 instead of uint8.
        symmetric: activations with the zero-point in the middle, as TensorRT requires.
        exclude: patterns (``head.*``) of module names left in float.
        scale_bits: significant binary digits of every scale, rounded up; None leaves scales as they are. A layer's sum
            is N S_input S_weight with an integer N. While N and both short scales fit the 24 digits of float32
            together, every order of summation gives the same number, so torch and the plain graph round alike; with 2
            digits the factors of integer kernels are short too, and these round alike as well. Without this the last
            digit of a sum now and then decides a rounding, and later layers multiply that.
    """

    ranges: str = "ema"
    decay: float = 0.98
    signed: bool = False
    symmetric: bool = False
    exclude: tuple[str, ...] = ()
    scale_bits: int | None = 2

    @property
    def grid(self) -> Grid:
        """Of activations."""
        return Grid(8, self.signed, self.symmetric)


class _Round(torch.autograd.Function):
    """Rounding to even whose gradient is 1: the straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _QuantiseDequantise(torch.autograd.Function):
    """The frozen quantiser; becomes a QuantizeLinear/DequantizeLinear pair when exported."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, affine: Affine) -> Tensor:
        scale, zero = (torch.from_numpy(np.array(part)) for part in affine.along(x.ndim))
        q = torch.clamp(torch.round(x / scale) + zero, affine.grid.lowest, affine.grid.highest)
        return (q - zero) * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None

    @staticmethod
    def symbolic(g: Any, x: Any, affine: Affine) -> Any:
        scale = g.op("Constant", value_t=torch.from_numpy(np.array(affine.scale)))
        zero = g.op("Constant", value_t=torch.from_numpy(np.array(affine.zero_point)))
        axis = {} if affine.axis is None else {"axis_i": affine.axis}
        return g.op("DequantizeLinear", g.op("QuantizeLinear", x, scale, zero, **axis), scale, zero, **axis).setType(
            x.type()
        )


def _round(x: Tensor) -> Tensor:
    out: Tensor = _Round.apply(x)  # type: ignore[no-untyped-call]
    return out


def _frozen(x: Tensor, affine: Affine) -> Tensor:
    out: Tensor = _QuantiseDequantise.apply(x, affine)  # type: ignore[no-untyped-call]
    return out


def fake_quantise(
    x: Tensor, low: Tensor, high: Tensor, grid: Grid, axis: int | None = None, scale_bits: int | None = None
) -> Tensor:
    """Quantise and dequantise with straight-through gradients to ``x`` and true ones to ``low`` and ``high``.

    Same equations as :func:`.affine.parameters` and :func:`.affine.fake_quantise`.

    Args:
        x: any shape, float32.
        low, high: the range, scalars or (channels,); widened to hold 0.
        grid: integers.
        axis: of the channels.
        scale_bits: see :class:`QatOptions`; the gradient passes straight through.
    """
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    if grid.symmetric:
        width, steps = torch.maximum(-low, high), grid.highest - grid.middle
    else:
        width, steps = high - low, grid.highest - grid.lowest
    scale = torch.where(width > 0, (width / steps).clamp(min=SMALLEST_SCALE), torch.ones_like(width))
    if scale_bits is not None:
        mantissa, exponent = torch.frexp(scale.detach())
        short = torch.ldexp(torch.ceil(mantissa * 2.0**scale_bits) / 2.0**scale_bits, exponent)
        scale = scale + (short - scale).detach()
    if grid.symmetric:
        zero = torch.full_like(scale, float(grid.middle))
    else:
        zero = _round(grid.lowest - low / scale).clamp(grid.lowest, grid.highest)
    if axis is not None:
        shape = [1] * x.ndim
        shape[axis] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    q = (_round(x / scale) + zero).clamp(grid.lowest, grid.highest)
    quantised: Tensor = (q - zero) * scale
    return quantised


class ActivationQuantiser(nn.Module):
    """Quantises one activation tensor as a whole.

    Attributes:
        low, high: the range so far; parameters if learned.
        observing: widen or move the range with what comes.
        frozen: scale and zero-point for good; set by :func:`freeze`.
    """

    low: Tensor
    high: Tensor
    seen: Tensor

    def __init__(self, options: QatOptions) -> None:
        super().__init__()
        self.grid, self.decay, self.learned = options.grid, options.decay, options.ranges == "learned"
        self.scale_bits = options.scale_bits
        for name in ("low", "high"):
            if self.learned:
                setattr(self, name, nn.Parameter(torch.zeros(())))
            else:
                self.register_buffer(name, torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.observing = False
        self.frozen: Affine | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Same shape, on the grid; unchanged while observing."""
        if self.frozen is not None:
            return _frozen(x, self.frozen)
        if self.observing:
            self._observe(x)
            return x
        if self.training and not self.learned:
            self._observe(x)
        return fake_quantise(x, self.low, self.high, self.grid, None, self.scale_bits)

    @torch.no_grad()
    def _observe(self, x: Tensor) -> None:
        low, high = x.amin(), x.amax()
        if self.seen == 0:
            self.low.copy_(low)
            self.high.copy_(high)
        elif self.observing:
            self.low.copy_(torch.minimum(self.low, low))
            self.high.copy_(torch.maximum(self.high, high))
        else:
            self.low.lerp_(low, 1.0 - self.decay)
            self.high.lerp_(high, 1.0 - self.decay)
        self.seen += 1

    def affine(self) -> Affine:
        """Scale and zero-point of the range as it is."""
        low, high = float(self.low), float(self.high)
        return parameters(min(low, high), max(low, high), self.grid, None, self.scale_bits)

    def before(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook: quantise a module's first input. A method, so that copies of a network keep their own."""
        return (self(inputs[0]), *inputs[1:])

    def after(self, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
        """Forward hook: quantise a module's output."""
        quantised: Tensor = self(output)
        return quantised


class WeightQuantiser(nn.Module):
    """Parametrisation of a weight: int8, symmetric, per output channel (axis 0)."""

    def __init__(self, options: QatOptions) -> None:
        super().__init__()
        self.scale_bits = options.scale_bits
        self.frozen: Affine | None = None
        self.enabled = True

    def forward(self, weight: Tensor) -> Tensor:
        """Same shape, on the grid."""
        if self.frozen is not None:
            return _frozen(weight, self.frozen)
        if not self.enabled:
            return weight
        peak = weight.detach().abs().flatten(1).amax(1)
        return fake_quantise(weight, -peak, peak, INT8_SYMMETRIC, 0, self.scale_bits)

    def affine(self, weight: Tensor) -> Affine:
        """Scale per channel of a weight as it is."""
        peak = weight.detach().abs().flatten(1).amax(1).numpy()
        return parameters(-peak, peak, INT8_SYMMETRIC, 0, self.scale_bits)


class Quantisers(nn.ModuleDict):
    """Holds the activation quantisers of a network. A sequential network runs what it holds: this does nothing then."""

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself."""
        return x


def _key(place: str, name: str) -> str:
    """``place`` is ``in`` or ``out``; dots are not allowed in module names."""
    return f"{place}:{name}".replace(".", "/")


def prepare(net: nn.Module, example: Sequence[Any], options: QatOptions = QatOptions()) -> nn.Module:
    """A copy of ``net``, batch normalisations folded, with quantisers on weights and activations.

    Convolutions and linear layers get integer weights and a quantised input; a convolution's output is quantised too,
    behind the ReLU that follows it, because integer kernels of convolutions give integers. Where a container's own
    arithmetic (a sum) feeds a layer, its result is quantised where it is made. Quantisers start empty:
    run :func:`observe` first.

    Args:
        net: trained.
        example: arguments of one call.
        options: how.

    Raises:
        ConfigError: unknown option; a pattern that fits no layer; no layer left to quantise.
    """
    if options.ranges not in ("ema", "learned"):
        raise ConfigError("must be ema or learned", field="ranges", value=options.ranges)
    if not 0.0 <= options.decay < 1.0:
        raise ConfigError("must be 0 to 1", field="decay", value=options.decay)
    if options.scale_bits is not None and not 1 <= options.scale_bits <= 24:
        raise ConfigError("must be 1 to 24", field="scale_bits", value=options.scale_bits)
    prepared, _ = fold_batch_norms(net, example)
    calls = trace(prepared, example)
    modules = dict(prepared.named_modules())
    kinds = (nn.Conv2d, nn.Linear)
    ran = [c for c in dict.fromkeys(call.name for call in calls) if isinstance(modules[c], kinds)]
    for pattern in options.exclude:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in ran):
            raise ConfigError("fits no convolution or linear layer", field="exclude", value=pattern)
    chosen = [name for name in ran if not any(fnmatch.fnmatchcase(name, p) for p in options.exclude)]
    if not chosen:
        raise ConfigError("no layer is left to quantise", field="exclude", value=options.exclude)
    takers = consumers(calls)
    quantisers = Quantisers()

    def add(place: str, name: str) -> str:
        key = _key(place, name)
        if key not in quantisers:
            quantisers[key] = quantiser = ActivationQuantiser(options)
            module = modules[name]
            if place == "in":
                module.register_forward_pre_hook(quantiser.before)
            else:
                module.register_forward_hook(quantiser.after)
        return key

    def outlet(name: str) -> str:
        """Where a module's output is quantised: behind the ReLU that alone takes it."""
        after = takers.get(name, [])
        return after[0] if len(after) == 1 and isinstance(modules[after[0]], nn.ReLU) else name

    inputs: dict[str, str] = {}
    for call in calls:
        if call.name not in chosen:
            continue
        made_by_layer = call.source is not None and not isinstance(modules[call.source], kinds)
        source_excluded = call.source is not None and isinstance(modules[call.source], kinds)
        if made_by_layer or (source_excluded and call.source in chosen):
            assert call.source is not None
            inputs.setdefault(call.name, add("out", call.source))
        else:
            inputs.setdefault(call.name, add("in", call.name))
        if isinstance(modules[call.name], nn.Conv2d):
            add("out", outlet(call.name))
    for name in chosen:
        parametrize.register_parametrization(modules[name], "weight", WeightQuantiser(options))
    prepared.add_module(QUANTISERS, quantisers)
    prepared.quantised_inputs = inputs  # type: ignore[assignment]
    return prepared


def _quantisers(net: nn.Module) -> list[ActivationQuantiser]:
    return [m for m in net.modules() if isinstance(m, ActivationQuantiser)]


def _weights(net: nn.Module) -> dict[str, WeightQuantiser]:
    return {
        name: module.parametrizations.weight[0]
        for name, module in net.named_modules()
        if parametrize.is_parametrized(module, "weight")
    }


@torch.no_grad()
def observe(net: nn.Module, batches: Iterable[Sequence[Any]]) -> int:
    """Set every activation range to what the float network shows on these inputs; returns how many were seen.

    Raises:
        ConfigError: no inputs; an activation that never came or is not finite, named.
    """
    quantisers, was_training, count = _quantisers(net), net.training, 0
    net.eval()
    for quantiser in quantisers:
        quantiser.observing = True
    for weight in _weights(net).values():
        weight.enabled = False
    try:
        for arguments in batches:
            net(*arguments)
            count += 1
    finally:
        for quantiser in quantisers:
            quantiser.observing = False
        for weight in _weights(net).values():
            weight.enabled = True
        net.train(was_training)
    if not count:
        raise ConfigError("no inputs to set ranges with")
    for name, quantiser in getattr(net, QUANTISERS).items():
        place = name.replace("/", ".")
        if quantiser.seen == 0:
            raise ConfigError("was never reached", field=place, remedy="calibrate with inputs that run every layer")
        if not bool(torch.isfinite(quantiser.low) & torch.isfinite(quantiser.high)):
            raise ConfigError("an activation is not finite", field=place)
    return count


def fine_tune(
    net: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    *,
    rate: float = 1e-4,
    steps: int | None = None,
    clip_norm: float = 10.0,
    freeze_ranges_after: float = 0.7,
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """Train with the quantisers on.

    Args:
        net: prepared and observed.
        batches: what ``loss`` takes, one per step.
        loss: of the network on a batch: a scalar.
        rate: Adam's, falling to 0 along a cosine if ``steps`` is given.
        steps: stop after so many.
        clip_norm: greatest norm of the gradient.
        freeze_ranges_after: share of ``steps`` after which moving averages stand still, so that the end is trained with
            the ranges that will be exported.
        progress: called with (done, all).

    Returns:
        The loss of every step.

    Raises:
        ConfigError: the loss is not finite, with the step.
    """
    optimiser = torch.optim.Adam(net.parameters(), lr=rate)
    quantisers, found = _quantisers(net), []
    net.train()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # its noise is far above the rounding that is to be learned
    for step, batch in enumerate(batches):
        if steps is not None:
            if step >= steps:
                break
            optimiser.param_groups[0]["lr"] = rate * 0.5 * (1.0 + float(np.cos(np.pi * step / steps)))
            if step >= freeze_ranges_after * steps:
                for quantiser in quantisers:
                    quantiser.eval()
        value = loss(net, batch)
        if not bool(torch.isfinite(value)):
            raise ConfigError(f"the loss is not finite at step {step}", remedy="lower the learning rate")
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimiser.step()
        found.append(float(value.detach()))
        if progress:
            progress(step + 1, steps or step + 1)
    net.eval()
    return found


@torch.no_grad()
def freeze(net: nn.Module) -> nn.Module:
    """Fix all scales and round biases to the int32 grid S_input S_weight; changes and returns ``net``.

    From here on the network computes exactly what the exported graph does (Jacob et al. 2018, equation (11) for the
    bias).

    Raises:
        ConfigError: a range was never set.
    """
    net.eval()
    quantisers: Mapping[str, ActivationQuantiser] = getattr(net, QUANTISERS)
    for key, quantiser in quantisers.items():
        if quantiser.seen == 0:
            raise ConfigError("has no range", field=key.replace("/", "."), remedy="run observe() first")
        quantiser.frozen = quantiser.affine()
    for name, weight in _weights(net).items():
        module: Any = net.get_submodule(name)
        original = module.parametrizations.weight.original
        weight.frozen = weight.affine(original)
        bias = module.bias
        if bias is not None:
            affine = quantisers[net.quantised_inputs[name]].frozen  # type: ignore[index]
            assert affine is not None
            steps = _bias_steps(np.asarray(bias.detach()), affine.scale, weight.frozen.scale)
            bias.copy_(torch.from_numpy(steps.astype(np.float32) * (affine.scale * weight.frozen.scale)))
    return net


def _bias_steps(
    bias: npt.NDArray[Any], input_scale: npt.NDArray[Any], weight_scale: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    steps = np.rint(bias.astype(np.float64) / (input_scale * weight_scale).astype(np.float64))
    limits = np.iinfo(np.int32)
    clipped: npt.NDArray[Any] = np.clip(steps, limits.min, limits.max).astype(np.int32)
    return clipped


def export_qdq(
    net: nn.Module,
    example: Sequence[Any],
    path: Path,
    input_names: Sequence[str],
    output_names: Sequence[str],
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    opset: int = OPSET,
) -> Path:
    """Write a frozen network as QDQ ONNX with int8 weights and int32 biases.

    Args:
        net: after :func:`freeze`; or a module around it.
        example: arguments of one call.
        path: the file to write.
        input_names, output_names, dynamic_axes, opset: as in ``torch.onnx.export``.

    Raises:
        ConfigError: not frozen.
    """
    if any(q.frozen is None for q in _quantisers(net)) or not _quantisers(net):
        raise ConfigError("the network is not frozen", where=path, remedy="run freeze() before export_qdq()")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracing exporter is old, but keeps names and free sizes
        torch.onnx.export(
            net.eval(),
            tuple(example),
            str(beside),
            input_names=list(input_names),
            output_names=list(output_names),
            dynamic_axes={k: dict(v) for k, v in (dynamic_axes or {}).items()},
            opset_version=opset,
            dynamo=False,
        )
    model = onnx.load(str(beside))
    store_integers(model, integer_sums=not dynamic_axes)
    model.doc_string, model.producer_version = "", ""
    onnx.checker.check_model(model)
    onnx.save(model, str(beside))
    os.replace(beside, path)
    return path


def store_integers(model: onnx.ModelProto, integer_sums: bool = True) -> None:
    """Replace float weights behind QuantizeLinear by their integers, and biases likewise.

    A transposition between a weight's pair and its matrix product (how linear layers are exported) is done here once,
    so that integer kernels find the pair right before the product. Changes ``model``.

    Args:
        model: as exported.
        integer_sums: biases of linear layers become int32 too. With fixed shapes ONNX Runtime joins product and sum to
            one operator, which has an integer kernel for such a bias only; with free ones it has a kernel for the
            product alone, and an integer bias would be converted anew at every run.
    """
    graph = model.graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    makers = {o: n for n in graph.node for o in n.output}
    takers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            takers.setdefault(name, []).append(node)
    gone: list[onnx.NodeProto] = []
    stored: set[str] = set()
    for quantise in [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] in constants]:
        (dequantise,) = takers[quantise.output[0]]
        weight, scale, zero = (constants[name] for name in quantise.input)
        axis = next((a.i for a in quantise.attribute if a.name == "axis"), None)
        affine = Affine(scale, zero, INT8_SYMMETRIC, axis)
        integers = affine_integers(weight, affine)
        after = takers.get(dequantise.output[0], [])
        if len(after) == 1 and after[0].op_type == "Transpose" and integers.ndim == 2:
            integers, axis = np.ascontiguousarray(integers.T), 1 - (axis or 0)
            dequantise.output[0] = after[0].output[0]
            gone.append(after[0])
        name = f"{quantise.input[0]}_int8"
        if name not in stored:
            graph.initializer.append(numpy_helper.from_array(integers, name))
            stored.add(name)
        dequantise.input[0] = name
        del dequantise.attribute[:]
        if axis is not None:
            dequantise.attribute.append(helper.make_attribute("axis", axis))
        makers[dequantise.output[0]] = dequantise
        gone.append(quantise)
    for node, at, product in _with_bias(graph, makers, constants):
        if node.op_type == "Add" and not integer_sums:
            continue
        pairs = [makers.get(name) for name in product.input[:2]]
        if any(p is None or p.op_type != "DequantizeLinear" for p in pairs):
            continue
        scales = [constants[p.input[1]] for p in pairs if p is not None]
        name = f"{product.name or product.output[0]}_bias"
        step = np.asarray(scales[0] * scales[1], np.float32)
        graph.initializer.extend(
            [
                numpy_helper.from_array(_bias_steps(constants[node.input[at]], *scales), f"{name}_int32"),
                numpy_helper.from_array(step, f"{name}_scale"),
                numpy_helper.from_array(np.zeros(step.shape, np.int32), f"{name}_zero_point"),
            ]
        )
        pair = helper.make_node(
            "DequantizeLinear", [f"{name}_int32", f"{name}_scale", f"{name}_zero_point"], [name], f"{name}_dq", axis=0
        )
        graph.node.insert(list(graph.node).index(node), pair)
        node.input[at] = name
    for node in gone:
        graph.node.remove(node)
    _drop_unused(graph)


def _with_bias(
    graph: onnx.GraphProto, makers: Mapping[str, onnx.NodeProto], constants: Mapping[str, npt.NDArray[Any]]
) -> list[tuple[onnx.NodeProto, int, onnx.NodeProto]]:
    """Nodes that add a constant bias, which of their inputs it is, and the product that it is added to."""
    found = []
    for node in graph.node:
        if node.op_type == "Conv" and len(node.input) == 3 and node.input[2] in constants:
            found.append((node, 2, node))
        if node.op_type == "Add":
            for at, other in ((0, 1), (1, 0)):
                product = makers.get(node.input[other])
                if node.input[at] in constants and product is not None and product.op_type == "MatMul":
                    found.append((node, at, product))
    return found


def _drop_unused(graph: onnx.GraphProto) -> None:
    used = {name for node in graph.node for name in node.input} | {o.name for o in graph.output}
    for initializer in [i for i in graph.initializer if i.name not in used]:
        graph.initializer.remove(initializer)
    for node in [n for n in graph.node if n.op_type == "Constant" and n.output[0] not in used]:
        graph.node.remove(node)


@dataclass(frozen=True)
class Conversion:
    """Relative L2 between the frozen torch network and the exported graph, worst of the judged outputs.

    Attributes:
        plain: every node as written: same numerics on both sides. This is the gate.
        optimised: as it will run; integer kernels may sum and round in another order.
        passed: ``plain`` is at most :data:`CONVERSION_LIMIT`.
        by_output: name to (plain, optimised), of every output.
    """

    plain: float
    optimised: float
    passed: bool
    by_output: Mapping[str, tuple[float, float]]


@torch.no_grad()
def check_conversion(
    net: nn.Module,
    path: Path,
    feeds: Sequence[Feeds],
    log: DecisionLog | None = None,
    judged: Sequence[str] | None = None,
) -> Conversion:
    """Compare the frozen network with its export on real inputs; ``net`` takes the feeds in the graph's input order.

    Args:
        log: gets ``quantise.conversion``.
        judged: outputs that the gate looks at, e.g. the logits; default: all. The others are reported too.

    Raises:
        ConfigError: no inputs: nothing was compared; a judged output that the graph lacks.
    """
    plain, optimised = open_session(path, optimise=False), open_session(path)
    names = [i.name for i in plain.get_inputs()]
    outputs = [o.name for o in plain.get_outputs()]
    for name in judged or ():
        if name not in outputs:
            raise ConfigError("the graph has no such output", where=path, field="judged", value=name)
    wanted = []
    for feed in feeds:
        tensors = first_tensors(net.eval()(*(torch.from_numpy(np.array(feed[name])) for name in names)))
        wanted.append({name: t.numpy() for name, t in zip(outputs, tensors, strict=True)})
    found = [outputs_of(session, feeds) for session in (plain, optimised)]
    by_output: dict[str, tuple[float, float]] = {}
    for name in outputs:
        only = [{name: w[name]} for w in wanted]
        one, two = (worst_relative_l2(f, only) for f in found)
        by_output[name] = (one, two)
    first, second = (max(by_output[name][which] for name in judged or outputs) for which in (0, 1))
    result = Conversion(first, second, first <= CONVERSION_LIMIT, by_output)
    if log is not None:
        log.add(
            "quantise.conversion",
            path.name,
            relative_l2=first,
            relative_l2_optimised=second,
            limit=CONVERSION_LIMIT,
            passed=result.passed,
            judged=list(judged or outputs),
            by_output=by_output,
            inputs=len(feeds),
        )
    return result
