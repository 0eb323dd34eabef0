"""Low-rank adapters of the decoder, one per driving scene.

An adapted linear layer computes ``y = W x + b + (alpha / rank) B A x`` with A (rank, in) and B (out, rank); W and b
stay as they are (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1, equation 3).
The library peft puts the adapters into plain modules and merges them; nothing is fetched for that.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from triptych.contract import ConfigError
from triptych.language.adapters import content_sha256
from triptych_forge.common import load_checkpoint, save_checkpoint
from triptych_forge.decisions import DecisionLog, config_hash

SCENES: dict[str, dict[str, str]] = {
    "night": {"light": "night"},
    "rain": {"weather": "rain"},
    "works": {"road": "works"},
}
"""Driving scenes with an adapter of their own, and what answers must say for it to be used: an engine manifest's
``when``. Any other name of the same form works too."""
TARGETS = r"(?:.*\.)?layers\.\d+\.(?:qkv|out1|query|out2|feed\.0|feed\.2)"
"""Names of the decoder's linear layers that take an adapter; a regular expression for the whole name."""
GROUP = "lora"
PEFT_NAME = "scene"
LARGEST_GRADIENT = 1.0
_SCENE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class AdapterFacts:
    """What an adapter file says about itself.

    Attributes:
        scene: driving scene it was trained for.
        base_sha256: :func:`model_sha256` of the model it was trained on; it fits no other.
        rank: of the matrices.
        alpha: the product is scaled by ``alpha / rank``.
        recipe_sha256: of everything the training depended on beside the model.
    """

    scene: str
    base_sha256: str
    rank: int
    alpha: float
    recipe_sha256: str

    @property
    def scaling(self) -> float:
        """Factor of the low-rank product."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class Adapter:
    """Facts and tensors: ``<layer>.lora_A`` (rank, in) and ``<layer>.lora_B`` (out, rank), float32."""

    facts: AdapterFacts
    tensors: Mapping[str, Tensor]

    @property
    def layers(self) -> list[str]:
        """Names of the adapted layers."""
        return [name.removesuffix(".lora_A") for name in self.tensors if name.endswith(".lora_A")]

    @property
    def sha256(self) -> str:
        """Hash of the tensors, whatever the adapter is called."""
        return content_sha256({name: t.numpy() for name, t in self.tensors.items()})


@dataclass(frozen=True)
class Trained:
    """An adapter and the loss of every step."""

    adapter: Adapter
    losses: tuple[float, ...]


def model_sha256(model: nn.Module) -> str:
    """Hash of all weights and buffers with their names, types and shapes."""
    return content_sha256({k: v.detach().cpu().numpy() for k, v in model.state_dict().items()})


def target_layers(model: nn.Module, targets: str = TARGETS) -> dict[str, nn.Linear]:
    """The linear layers whose whole name matches ``targets``, in the model's order.

    Raises:
        ConfigError: none does.
    """
    pattern = re.compile(targets)
    found = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and pattern.fullmatch(n)}
    if not found:
        raise ConfigError("no linear layer of the model matches", field="targets", value=targets)
    return found


def train_adapter(
    model: nn.Module,
    batches: Sequence[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    *,
    scene: str,
    rank: int = 8,
    alpha: float = 16.0,
    steps: int = 200,
    seed: int = 0,
    learning_rate: float = 2e-3,
    targets: str = TARGETS,
    recipe: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    log: DecisionLog | None = None,
) -> Trained:
    """Train an adapter on a copy of ``model``; the model itself is not touched.

    Everything but the adapter is frozen, and the copy stays in evaluation mode: dropout is off and the running means
    of normalisation layers, which are part of the base, do not drift. Same arguments, same adapter.

    Args:
        model: holds layers that match ``targets``.
        batches: step ``i`` takes ``batches[i % len(batches)]``.
        loss: of the adapted model on one batch; a scalar.
        scene: name of the driving scene.
        rank, alpha: see :class:`AdapterFacts`.
        steps: of AdamW, with the gradient's norm held to :data:`LARGEST_GRADIENT`.
        seed: of the first A; B begins at zero, so training begins at the base model's output.
        recipe: what the batches came from; goes into the adapter's recipe hash.
        progress: called with steps done and steps in all.
        log: takes the decision ``adapt.train``.

    Raises:
        ConfigError: no batch, a number out of range, no matching layer, a loss that is not finite (with its step).
    """
    _check_recipe(scene, rank, alpha, steps, learning_rate, len(batches))
    facts = AdapterFacts(
        scene,
        model_sha256(model),
        rank,
        float(alpha),
        config_hash(
            {
                "scene": scene,
                "rank": rank,
                "alpha": alpha,
                "steps": steps,
                "seed": seed,
                "learning_rate": learning_rate,
                "targets": targets,
                "recipe": dict(recipe or {}),
            }
        ),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = _inject(model, rank, alpha, targets)
        trainable = [p for p in adapted.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(trainable, lr=learning_rate, weight_decay=0.0)
        losses: list[float] = []
        for step in range(steps):
            optimiser.zero_grad(set_to_none=True)
            value = loss(adapted, batches[step % len(batches)])
            losses.append(float(value.detach()))
            if not math.isfinite(losses[-1]):
                raise ConfigError(
                    f"the loss is not finite at step {step}", where=f"adapter {scene}", remedy="lower learning_rate"
                )
            value.backward()
            nn.utils.clip_grad_norm_(trainable, LARGEST_GRADIENT)
            optimiser.step()
            if progress is not None:
                progress(step + 1, steps)
    adapter = Adapter(facts, _extract(adapted))
    if log is not None:
        log.add(
            "adapt.train",
            scene,
            **{k: v for k, v in asdict(facts).items() if k != "scene"},
            sha256=adapter.sha256,
            parameters=sum(t.numel() for t in adapter.tensors.values()),
            first_loss=losses[0],
            last_loss=losses[-1],
        )
    return Trained(adapter, tuple(losses))


def save_adapter(path: Path, adapter: Adapter) -> None:
    """Write a safetensors file with the facts and the tensors' hash as metadata, atomically."""
    save_checkpoint(path, {GROUP: adapter.tensors}, {**asdict(adapter.facts), "sha256": adapter.sha256})


def load_adapter(path: Path, model: nn.Module, targets: str = TARGETS) -> Adapter:
    """Read an adapter for ``model``.

    Raises:
        ConfigError: unreadable; facts missing or out of range; another base model; a missing, extra, renamed or
            misshapen tensor, another type, a value that is not finite; changed since it was saved. Names what.
    """
    try:
        groups, meta = load_checkpoint(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(f"is no adapter file: {error}", where=path) from None
    facts = _facts(path, meta)
    base = model_sha256(model)
    if facts.base_sha256 != base:
        raise ConfigError(
            f"was trained on base model {facts.base_sha256[:12]}…, this one is {base[:12]}…",
            where=path,
            field="base_sha256",
            remedy="train it again on this model",
        )
    for group in groups:
        if group != GROUP:
            raise ConfigError("holds tensors that are no adapter's", where=path, field=group)
    tensors = groups.get(GROUP, {})
    _check_tensors(path, tensors, target_layers(model, targets), facts.rank)
    adapter = Adapter(facts, tensors)
    if adapter.sha256 != meta.get("sha256"):
        raise ConfigError("was changed after it was saved", where=path, field="sha256", remedy="copy it again")
    return adapter


def attach(model: nn.Module, adapter: Adapter, targets: str = TARGETS) -> nn.Module:
    """A copy of ``model`` in evaluation mode that computes the low-rank products beside the frozen layers.

    Raises:
        ConfigError: the adapter is another model's.
    """
    _check_tensors(f"adapter {adapter.facts.scene}", adapter.tensors, target_layers(model, targets), adapter.facts.rank)
    adapted = _inject(model, adapter.facts.rank, adapter.facts.alpha, targets)
    with torch.no_grad():
        for name, layer in _lora_layers(adapted).items():
            layer.lora_A[PEFT_NAME].weight.copy_(adapter.tensors[f"{name}.lora_A"])
            layer.lora_B[PEFT_NAME].weight.copy_(adapter.tensors[f"{name}.lora_B"])
    return adapted


def merge(model: nn.Module, adapter: Adapter, targets: str = TARGETS) -> nn.Module:
    """A copy of ``model`` with ``W + (alpha / rank) B A`` in the adapted layers: same structure, same run time.

    Raises:
        ConfigError: the adapter is another model's.
    """
    merged = attach(model, adapter, targets)
    for name, layer in _lora_layers(merged).items():
        layer.merge(safe_merge=True)
        parent, _, leaf = name.rpartition(".")
        setattr(merged.get_submodule(parent), leaf, layer.get_base_layer())
    return merged.requires_grad_(True)


def _inject(model: nn.Module, rank: int, alpha: float, targets: str) -> nn.Module:
    # Slow to import: only those who adapt pay for it.
    from peft import LoraConfig, inject_adapter_in_model

    target_layers(model, targets)
    adapted = copy.deepcopy(model).eval()
    # lora_dropout 0: adapters are small beside the batches, and the copy is in evaluation mode anyway.
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, bias="none")
    # The library also freezes everything that is no adapter.
    return inject_adapter_in_model(config, adapted, adapter_name=PEFT_NAME).eval()


def _lora_layers(model: nn.Module) -> dict[str, Any]:
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def _extract(adapted: nn.Module) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, layer in _lora_layers(adapted).items():
        tensors[f"{name}.lora_A"] = layer.lora_A[PEFT_NAME].weight.detach().clone()
        tensors[f"{name}.lora_B"] = layer.lora_B[PEFT_NAME].weight.detach().clone()
    return tensors


def _check_recipe(scene: str, rank: int, alpha: float, steps: int, learning_rate: float, batches: int) -> None:
    if not _SCENE_NAME.fullmatch(scene):
        raise ConfigError("must be a short name in small letters", field="scene", value=scene)
    for field, value, largest in (("rank", rank, 256), ("steps", steps, 1_000_000)):
        if not 1 <= value <= largest:
            raise ConfigError(f"must be 1 to {largest}", field=field, value=value)
    for field, number in (("alpha", alpha), ("learning_rate", learning_rate)):
        if not 0.0 < number < math.inf:
            raise ConfigError("must be above 0 and finite", field=field, value=number)
    if not batches:
        raise ConfigError("there is nothing to train on", field="batches")


def _facts(path: Path, meta: Mapping[str, Any]) -> AdapterFacts:
    for field in fields(AdapterFacts):
        if field.name not in meta:
            raise ConfigError("is missing from the file's metadata", where=path, field=field.name)
    facts = AdapterFacts(**{field.name: meta[field.name] for field in fields(AdapterFacts)})
    if not isinstance(facts.rank, int) or not 1 <= facts.rank <= 256:
        raise ConfigError("must be 1 to 256", where=path, field="rank", value=facts.rank)
    if not isinstance(facts.alpha, (int, float)) or not 0.0 < facts.alpha < math.inf:
        raise ConfigError("must be above 0 and finite", where=path, field="alpha", value=facts.alpha)
    return facts


def _check_tensors(where: object, tensors: Mapping[str, Tensor], layers: Mapping[str, nn.Linear], rank: int) -> None:
    wanted: dict[str, tuple[int, int]] = {}
    for name, layer in layers.items():
        wanted[f"{name}.lora_A"] = (rank, layer.in_features)
        wanted[f"{name}.lora_B"] = (layer.out_features, rank)
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or extra:
        # A renamed tensor shows as one of each: name both.
        parts = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"unknown: {', '.join(extra)}"] * bool(extra)
        raise ConfigError(f"holds other tensors than the model takes; {'; '.join(parts)}", where=where)
    for name, shape in wanted.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"has shape {tuple(tensor.shape)}, the model takes {shape}", where=where, field=name)
        if tensor.dtype != torch.float32:
            raise ConfigError(f"is {tensor.dtype}, not float32", where=where, field=name)
        if not np.isfinite(tensor.numpy()).all():
            raise ConfigError("holds NaN or infinity", where=where, field=name)
