"""The widths of a pruned net: described as data, and put back into a freshly made net of the same class.

A pruned net's layers no longer have the sizes that its class gives them. Its checkpoint therefore carries the widths of
every layer by name; loading sets them first and then checks every tensor before one is copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from triptych.contract import ConfigError
from triptych_forge.common import load_checkpoint, save_checkpoint

FORMAT = 1
SHOWN = 5
"""Names listed in a message."""

WIDTHS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("in_channels", "out_channels", "groups"),
    nn.Linear: ("in_features", "out_features"),
    nn.modules.batchnorm._NormBase: ("num_features",),
    nn.LayerNorm: ("normalized_shape",),
}
"""Layers whose sizes are written down, and the attributes that hold them."""


def architecture(model: nn.Module) -> dict[str, Any]:
    """The widths of every layer, JSON-able: ``{"format": 1, "layers": {name: {attribute: number}}}``."""
    layers = {}
    for name, module in model.named_modules():
        attributes = _attributes(module)
        if attributes:
            values = {attribute: getattr(module, attribute) for attribute in attributes}
            layers[name] = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return {"format": FORMAT, "layers": layers}


def rebuild(fresh: nn.Module, widths: Mapping[str, Any], where: object = "architecture") -> nn.Module:
    """Set the layers of a freshly made net to the widths of :func:`architecture`, in place; weights become zeros.

    Raises:
        ConfigError: another format, a layer missing, too many or of another kind, a width that is no positive number.
            Nothing has been changed then.
    """
    layers = widths.get("layers")
    if widths.get("format") != FORMAT or not isinstance(layers, Mapping):
        raise ConfigError("is no description of widths", where=where, remedy="save the pruned net again")
    modules = {name: module for name, module in fresh.named_modules() if _attributes(module)}
    _compare_names(modules, layers, where, "layer")
    for name, module in modules.items():
        _check_widths(name, module, layers[name], where)
    for name, module in modules.items():
        _resize(module, layers[name])
    return fresh


def save_pruned(path: Path, model: nn.Module, meta: Mapping[str, Any] | None = None) -> None:
    """Write weights (group ``model``) and widths as one safetensors file, atomically.

    Raises:
        ConfigError: a weight is not finite; the file is not written.
    """
    state = model.state_dict()
    check_finite(state, path)
    save_checkpoint(path, {"model": state}, {**(meta or {}), "architecture": architecture(model)})


def load_pruned(path: Path, fresh: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
    """Put a pruned net's widths and weights into a freshly made net of its class; the file's other facts come with it.

    Raises:
        ConfigError: unreadable, without widths, layers or tensors missing, extra or of another shape or type (by name),
            or a weight that is not finite.
    """
    try:
        groups, meta = load_checkpoint(path)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=path, remedy="save the pruned net again") from None
    widths = meta.pop("architecture", None)
    if not isinstance(widths, Mapping):
        raise ConfigError("holds no widths", where=path, remedy="give a checkpoint of a pruned net")
    tensors = groups.get("model", {})
    check_finite(tensors, path)
    rebuild(fresh, widths, path)
    check_state(fresh, tensors, path)
    fresh.load_state_dict(tensors)
    return fresh, meta


def check_finite(tensors: Mapping[str, Tensor], where: object) -> None:
    """Stop at weights that are not finite.

    Raises:
        ConfigError: names the tensors.
    """
    bad = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        raise ConfigError(
            f"not finite: {_listed(bad)}", where=where, remedy="train again or take an earlier checkpoint"
        )


def check_state(model: nn.Module, tensors: Mapping[str, Tensor], where: object) -> None:
    """Compare names, shapes and types of a checkpoint's tensors with a model's.

    Raises:
        ConfigError: names what is missing, extra or differs.
    """
    wanted = model.state_dict()
    _compare_names(wanted, tensors, where, "tensor")
    wrong = [
        f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype} instead of {tuple(tensor.shape)} {tensor.dtype}"
        for name, tensor in wanted.items()
        if tensors[name].shape != tensor.shape or tensors[name].dtype != tensor.dtype
    ]
    if wrong:
        raise ConfigError(f"wrong tensor: {_listed(wrong)}", where=where, remedy="take the checkpoint of this net")


def _compare_names(wanted: Iterable[str], got: Iterable[str], where: object, what: str) -> None:
    wanted, got = list(wanted), list(got)
    missing, extra = [n for n in wanted if n not in set(got)], [n for n in got if n not in set(wanted)]
    parts = [f"{word} {what}: {_listed(names)}" for word, names in (("missing", missing), ("unknown", extra)) if names]
    if parts:
        raise ConfigError("; ".join(parts), where=where, remedy="take the checkpoint of this net")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _attributes(module: nn.Module) -> tuple[str, ...]:
    return next((attributes for kind, attributes in WIDTHS.items() if isinstance(module, kind)), ())


def _check_widths(name: str, module: nn.Module, widths: Any, where: object) -> None:
    attributes = _attributes(module)
    if not isinstance(widths, Mapping) or set(widths) != set(attributes):
        raise ConfigError(f"must give {', '.join(attributes)}", where=where, field=name, value=widths)
    for value in widths.values():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if not numbers or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers):
            raise ConfigError("must be positive whole numbers", where=where, field=name, value=dict(widths))
    if isinstance(module, nn.Conv2d) and (
        widths["in_channels"] % widths["groups"] or widths["out_channels"] % widths["groups"]
    ):
        raise ConfigError("channels must be multiples of groups", where=where, field=name, value=dict(widths))


def _resize(module: nn.Module, widths: Mapping[str, Any]) -> None:
    for attribute, value in widths.items():
        setattr(module, attribute, tuple(value) if isinstance(value, (list, tuple)) else value)
    if isinstance(module, nn.Conv2d):
        shape: tuple[int, ...] = (module.out_channels, module.in_channels // module.groups, *module.kernel_size)
        vector: tuple[int, ...] = (module.out_channels,)
    elif isinstance(module, nn.Linear):
        shape, vector = (module.out_features, module.in_features), (module.out_features,)
    else:
        shape = vector = getattr(module, "normalized_shape", None) or (module.num_features,)  # type: ignore[assignment]
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        wanted = shape if name == "weight" else () if tensor.dim() == 0 else vector
        if tuple(tensor.shape) == wanted:
            continue
        zeros = torch.zeros(wanted, dtype=tensor.dtype, device=tensor.device)
        setattr(module, name, nn.Parameter(zeros, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else zeros)
