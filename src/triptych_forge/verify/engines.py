"""Things that can be compared: an ONNX file, a torch module, an engine bundle. All give named outputs.

``run`` is always the plain engine. ``probe`` runs a copy whose intermediates are outputs too; since that forbids
the runtime to fuse operators, its final outputs may differ, and nobody may take them for the engine's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from torch import nn

from triptych.contract import ConfigError, TriptychError
from triptych.engines.manifest import Manifest, load_manifest, resolve_files
from triptych.language.config import LanguageConfig
from triptych.language.decode import greedy
from triptych.language.engine import DECODER, cache_names, memory_names
from triptych.language.grammar import Grammar
from triptych.language.tokeniser import Vocabulary
from triptych_forge.verify.samples import Array, Feeds, Head

QUANTISERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits", "MatMulInteger")
LOG_ERRORS_ONLY = 3
LARGEST_COPY_BYTES = 2**31 - 1
_OTHER = {True: "optimisations off", False: "optimised"}
"""What the other way to run a subject is called."""


@runtime_checkable
class Subject(Protocol):
    """Something that gives named outputs for named inputs.

    Attributes:
        name: for reports and messages.
        inputs, outputs: names, in order.
        intermediates: names that :meth:`probe` can give, in topological order, without :attr:`outputs`.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def intermediates(self) -> tuple[str, ...]: ...

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """The plain engine's outputs. Inputs that it does not know are left out."""
        ...

    def probe(self, feeds: Feeds, tensors: Sequence[str] | None = None) -> dict[str, Array]:
        """Outputs and intermediates (all, or those named) of the probed copy."""
        ...

    def variants(self) -> list[Subject]:
        """The same weights computed in other ways, e.g. without graph optimisations; not itself."""
        ...

    def quantised(self) -> list[tuple[str, str]]:
        """Pairs of tensors before and after being squeezed into a range of integers."""
        ...

    def before_softmax(self) -> tuple[str, ...]:
        """Tensors a softmax takes."""
        ...

    def facts(self) -> dict[str, Any]:
        """``sha256``, ``bytes``, ``parameters`` and ``numerics`` (types of the weights, and of quantisers)."""
        ...


class OnnxSubject:
    """An ONNX file on ONNX Runtime's CPU provider.

    Args:
        path: the file.
        name: for reports; default: the file's name.
        optimised: with the runtime's graph optimisations.
        threads: per operator.

    Raises:
        ConfigError: missing, or refused by ONNX or by the runtime.
    """

    def __init__(self, path: Path, name: str = "", optimised: bool = True, threads: int = 1) -> None:
        self.path, self.optimised, self.threads = Path(path), optimised, threads
        self.name = name or self.path.name
        try:
            self._session = self._open(str(self.path))
        except Exception as error:  # the runtime raises a dozen types without a common base
            raise ConfigError(
                f"ONNX Runtime cannot load it: {_first_line(error)}", where=self.path, remedy="name an ONNX file"
            ) from None
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        self.outputs = tuple(o.name for o in self._session.get_outputs())
        self.shapes: dict[str, tuple[Any, ...]] = {i.name: tuple(i.shape) for i in self._session.get_inputs()}
        self.types: dict[str, str] = {i.name: i.type for i in self._session.get_inputs()}
        self._probed: tuple[tuple[str, ...], ort.InferenceSession] | None = None

    def _open(self, source: str | bytes) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = LOG_ERRORS_ONLY
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if self.optimised else level.ORT_DISABLE_ALL
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The file's content, weights included."""
        try:
            return onnx.load(str(self.path))
        except Exception as error:
            raise ConfigError(f"is no ONNX file: {_first_line(error)}", where=self.path) from None

    @cached_property
    def intermediates(self) -> tuple[str, ...]:  # type: ignore[override]
        """Outputs of all nodes but constants; those inside of loops and branches are not reachable."""
        nodes = [n for n in self.model.graph.node if n.op_type != "Constant"]
        return tuple(o for n in nodes for o in n.output if o and o not in self.outputs)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """See :class:`Subject`."""
        return dict(zip(self.outputs, _run(self._session, self.outputs, self._feeds(feeds), self.name)))

    def probe(self, feeds: Feeds, tensors: Sequence[str] | None = None) -> dict[str, Array]:
        """See :class:`Subject`. The copy is kept for the next call with the same tensors."""
        wanted = self.intermediates if tensors is None else tuple(t for t in tensors if t not in self.outputs)
        strange = [t for t in wanted if t not in set(self.intermediates)]
        if strange:
            raise ConfigError("the graph has no such tensor", where=self.path, field=strange[0])
        if self._probed is None or self._probed[0] != wanted:
            self._probed = (wanted, self._marked(wanted))
        names = (*self.outputs, *wanted)
        return dict(zip(names, _run(self._probed[1], names, self._feeds(feeds), self.name)))

    def _marked(self, tensors: tuple[str, ...]) -> ort.InferenceSession:
        copy = onnx.ModelProto()
        copy.CopyFrom(self.model)
        copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
        if copy.ByteSize() > LARGEST_COPY_BYTES:
            raise ConfigError("is too large to be copied for probing", where=self.path, remedy="compare without layers")
        return self._open(copy.SerializeToString())

    def _feeds(self, feeds: Feeds) -> dict[str, Array]:
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise ConfigError(
                "the data lacks this input", where=self.name, field=missing[0], remedy=f"give {', '.join(self.inputs)}"
            )
        return {name: feeds[name] for name in self.inputs}

    def variants(self) -> list[Subject]:
        """The same file without graph optimisations or, if it has none, with them."""
        return [OnnxSubject(self.path, f"{self.name}, {_OTHER[self.optimised]}", not self.optimised, self.threads)]

    def quantised(self) -> list[tuple[str, str]]:
        """Input of each QuantizeLinear and output of the DequantizeLinear behind it; constants are left out."""
        graph = self.model.graph
        constant = {t.name for t in graph.initializer}
        source = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
        inside = {*self.intermediates, *self.inputs}
        return [
            (source[n.input[0]], n.output[0])
            for n in graph.node
            if n.op_type == "DequantizeLinear" and n.input[0] in source
            if source[n.input[0]] not in constant and source[n.input[0]] in inside and n.output[0] in inside
        ]

    def before_softmax(self) -> tuple[str, ...]:
        """See :class:`Subject`."""
        inside = set(self.intermediates)
        nodes = [n for n in self.model.graph.node if n.op_type in ("Softmax", "LogSoftmax")]
        return tuple(n.input[0] for n in nodes if n.input[0] in inside)

    def facts(self) -> dict[str, Any]:
        """See :class:`Subject`."""
        weights = list(self.model.graph.initializer)
        types = {onnx.TensorProto.DataType.Name(t.data_type).lower() for t in weights if _size(t) > 1}
        ops = {n.op_type for n in self.model.graph.node}
        data = self.path.read_bytes()
        return {
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "parameters": sum(_size(t) for t in weights),
            "numerics": sorted(types) + [op for op in QUANTISERS if op in ops],
        }


class TorchSubject:
    """A torch module, in evaluation mode and without gradients, with hooks on its modules.

    Args:
        module: called with the inputs in order; gives a tensor or a list, tuple or mapping of tensors.
        inputs: names of its arguments.
        outputs: names of what it gives, in order.
        name: for reports.

    A module called more than once gives ``name``, ``name#1``, ``name#2``...
    """

    def __init__(self, module: nn.Module, inputs: Sequence[str], outputs: Sequence[str], name: str = "torch") -> None:
        self.module = module.eval()
        self.inputs, self.outputs, self.name = tuple(inputs), tuple(outputs), name
        self.kinds = {n: type(m).__name__ for n, m in module.named_modules() if n}
        """Class name of every module."""
        self._order: tuple[str, ...] = ()

    def is_convolution(self, name: str) -> bool:
        """Whether a module is a convolution, also one with parametrised weights."""
        return self.kinds.get(name.partition("#")[0], "").removeprefix("Parametrized").startswith("Conv")

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Outputs of modules in the order of the calls; known after the first :meth:`run` or :meth:`probe`."""
        return self._order

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """See :class:`Subject`."""
        return self._call(feeds, hooked=not self._order)[0]

    def probe(self, feeds: Feeds, tensors: Sequence[str] | None = None) -> dict[str, Array]:
        """See :class:`Subject`; hooks copy, they change nothing."""
        outputs, seen = self._call(feeds, hooked=True)
        if tensors is not None:
            strange = [t for t in tensors if t not in seen and t not in outputs]
            if strange:
                raise ConfigError("the module has no such part", where=self.name, field=strange[0])
            seen = {t: seen[t] for t in tensors if t in seen}
        return {**seen, **outputs}

    def _call(self, feeds: Feeds, hooked: bool) -> tuple[dict[str, Array], dict[str, Array]]:
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise ConfigError("the data lacks this input", where=self.name, field=missing[0])
        seen: dict[str, Array] = {}
        handles = []
        if hooked:
            for name, part in self.module.named_modules():
                if name:
                    handles.append(part.register_forward_hook(_recorder(name, seen, before=_is_fake_quantiser(part))))
        try:
            with torch.no_grad():
                made = self.module(*(torch.from_numpy(np.ascontiguousarray(feeds[n])) for n in self.inputs))
        finally:
            for handle in handles:
                handle.remove()
        if hooked:
            self._order = tuple(seen)
        tensors = _tensors(made)
        if len(tensors) != len(self.outputs):
            raise ConfigError(
                f"gives {len(tensors)} outputs, {len(self.outputs)} names are known", where=self.name, field="outputs"
            )
        return {n: t.detach().numpy().copy() for n, t in zip(self.outputs, tensors)}, seen

    def variants(self) -> list[Subject]:
        """None."""
        return []

    def quantised(self) -> list[tuple[str, str]]:
        """Before and after each fake-quantiser."""
        return [(f"{n}<", n) for n in self._order if f"{n}<" in self._order]

    def before_softmax(self) -> tuple[str, ...]:
        """None known: a functional softmax leaves no module."""
        return ()

    def facts(self) -> dict[str, Any]:
        """See :class:`Subject`."""
        state = self.module.state_dict()
        digest = hashlib.sha256()
        for name, tensor in state.items():
            digest.update(name.encode() + b"\0" + tensor.detach().contiguous().numpy().tobytes())
        types = sorted({str(t.dtype).removeprefix("torch.") for t in state.values() if t.numel() > 1})
        fake = ["FakeQuantize"] if any(_is_fake_quantiser(m) for m in self.module.modules()) else []
        return {
            "sha256": digest.hexdigest(),
            "bytes": sum(t.numel() * t.element_size() for t in state.values()),
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "numerics": types + fake,
        }


class BundleSubject:
    """A VLM engine bundle of this project, teacher-forced: ``frames``, ``ages_s``, ``input_ids`` to ``logits``.

    Intermediates are called ``encoder/...`` and ``decoder/...``. The whole row of tokens goes through the decoder at
    once, with an empty cache before it.

    Args:
        folder: with ``manifest.yaml``.
        name: for reports; default: name and version of the manifest.

    Raises:
        TriptychError: a manifest or file that does not fit, another kind of decoder.
    """

    def __init__(self, folder: Path, name: str = "", optimised: bool = True) -> None:
        self.folder, self.optimised = Path(folder), optimised
        self.manifest: Manifest = load_manifest(self.folder)
        if self.manifest.task != "vlm" or self.manifest.decoder != DECODER:
            raise ConfigError(f"is no engine of the kind {DECODER}", where=folder, value=self.manifest.decoder)
        self.name = name or f"{self.manifest.name} {self.manifest.version}"
        files = resolve_files(self.manifest, self.folder / "manifest.yaml")
        self.language = LanguageConfig.model_validate(self.manifest.language)
        self.vocabulary = Vocabulary.load(files["tokenizer"])
        self.grammar = Grammar(self.vocabulary, self.language.max_tokens)
        self.parts = {role: OnnxSubject(files[role], role, optimised) for role in ("encoder", "decoder")}
        self.inputs, self.outputs = ("frames", "ages_s", "input_ids"), ("logits",)
        self._memory = memory_names(self.language.layers)
        self._past = cache_names(self.language.layers, "past")
        for role, names in (("encoder", self._memory), ("decoder", ["logits"])):
            check_names(dict.fromkeys(names), dict.fromkeys(self.parts[role].outputs), files[role], extra_is_fine=True)

    @cached_property
    def intermediates(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the encoder, then what it hands on, then those of the decoder."""
        encoder, decoder = self.parts["encoder"], self.parts["decoder"]
        names = [f"encoder/{n}" for n in (*encoder.intermediates, *encoder.outputs)]
        return tuple(names + [f"decoder/{n}" for n in decoder.intermediates])

    def _decoder_feeds(self, feeds: Feeds, memory: Mapping[str, Array]) -> dict[str, Array]:
        c, ids = self.language, np.asarray(feeds["input_ids"], np.int64)
        empty = np.zeros((1, c.heads, 0, c.head_size), np.float32)
        return {
            "input_ids": ids,
            "position_ids": np.arange(ids.shape[1], dtype=np.int64)[None],
            **{name: memory[name] for name in self._memory},
            **dict.fromkeys(self._past, empty),
        }

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """See :class:`Subject`."""
        self._check(feeds)
        memory = self.parts["encoder"].run(feeds)
        return {"logits": self.parts["decoder"].run(self._decoder_feeds(feeds, memory))["logits"]}

    def probe(self, feeds: Feeds, tensors: Sequence[str] | None = None) -> dict[str, Array]:
        """See :class:`Subject`."""
        self._check(feeds)
        wanted = self.intermediates if tensors is None else tuple(t for t in tensors if t not in self.outputs)
        split: dict[str, list[str]] = {"encoder": [], "decoder": []}
        for name in wanted:
            role, _, inner = name.partition("/")
            if role not in split:
                raise ConfigError("the bundle has no such tensor", where=self.folder, field=name)
            split[role].append(inner)
        encoder = self.parts["encoder"].probe(feeds, split["encoder"])
        decoder = self.parts["decoder"].probe(self._decoder_feeds(feeds, encoder), split["decoder"])
        found = {f"encoder/{n}": a for n, a in encoder.items()} | {f"decoder/{n}": a for n, a in decoder.items()}
        return {**{name: found[name] for name in wanted}, "logits": decoder["logits"]}

    def _check(self, feeds: Feeds) -> None:
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise ConfigError("the data lacks this input", where=self.name, field=missing[0])

    def answer(self, feeds: Feeds, prompt: int) -> list[int]:
        """Free-running answer to the first ``prompt`` tokens, as the vehicle would hear it: token numbers."""
        memory = self.parts["encoder"].run(feeds)
        state = self._decoder_feeds(feeds, memory)
        fed = 0

        def step(tokens: list[int]) -> Any:
            nonlocal fed
            state["input_ids"] = np.array([tokens], np.int64)
            state["position_ids"] = np.arange(fed, fed + len(tokens), dtype=np.int64)[None]
            fed += len(tokens)
            made = self.parts["decoder"].run(state)
            state.update({p: made[p.replace("past", "present", 1)] for p in self._past})
            return made["logits"][0, -1]

        start = [int(t) for t in np.asarray(feeds["input_ids"])[0, :prompt]]
        return list(greedy(step, self.grammar, start, advice_quantile=self.language.advice_quantile).tokens)

    def text(self, tokens: Sequence[int]) -> str:
        """Token names, blanks between them."""
        return " ".join(self.vocabulary.tokens[t] for t in tokens)

    def variants(self) -> list[Subject]:
        """The same bundle without graph optimisations or, if it has none, with them."""
        return [BundleSubject(self.folder, f"{self.name}, {_OTHER[self.optimised]}", not self.optimised)]

    def quantised(self) -> list[tuple[str, str]]:
        """Of both parts."""
        return [(f"{r}/{x}", f"{r}/{y}") for r, part in self.parts.items() for x, y in part.quantised()]

    def before_softmax(self) -> tuple[str, ...]:
        """Of both parts."""
        return tuple(f"{role}/{name}" for role, part in self.parts.items() for name in part.before_softmax())

    def facts(self) -> dict[str, Any]:
        """Of both parts together."""
        parts = [part.facts() for part in self.parts.values()]
        return {
            "sha256": hashlib.sha256("".join(p["sha256"] for p in parts).encode()).hexdigest(),
            "bytes": sum(p["bytes"] for p in parts),
            "parameters": sum(p["parameters"] for p in parts),
            "numerics": sorted({n for p in parts for n in p["numerics"]}),
        }


def open_subject(path: Path, name: str = "", optimised: bool = True) -> Subject:
    """An ONNX file, or a bundle folder (or its ``manifest.yaml``) of either task.

    Args:
        optimised: as the vehicle runs it; else every operator as the file says, which is what a quantised graph and the
            fake-quantised module it came from have in common.

    Raises:
        TriptychError: neither, or one that cannot be loaded.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError("no such file or folder", where=path)
    if path.name == "manifest.yaml":
        path = path.parent
    if path.is_file():
        return OnnxSubject(path, name, optimised)
    manifest = load_manifest(path)
    if manifest.task == "vlm":
        return BundleSubject(path, name, optimised)
    files = resolve_files(manifest, path / "manifest.yaml")
    return OnnxSubject(files["model"], name or f"{manifest.name} {manifest.version}", optimised)


def manifest_of(path: Path) -> Manifest | None:
    """The manifest of a bundle folder, None for a plain ONNX file."""
    path = Path(path)
    folder = path.parent if path.name == "manifest.yaml" else path
    return load_manifest(folder) if folder.is_dir() else None


def heads_of(subject: Subject, manifest: Manifest | None = None, logits: str | None = None) -> list[Head]:
    """What to judge of the final outputs.

    Args:
        manifest: of a detector: boxes and scores are then judged apart.
        logits: name of the output whose last axis is classes; default: an output called ``logits``.

    Raises:
        ConfigError: no such output.
    """
    if logits is not None and logits not in subject.outputs:
        raise ConfigError(f"no such output, there are {', '.join(subject.outputs)}", where=subject.name, field=logits)
    if manifest is not None and manifest.task == "detector" and len(subject.outputs) == 1:
        (output,) = subject.outputs
        return [Head("boxes", output, "values", 0, 4), Head("scores", output, "chances", 4)]
    wanted = logits or "logits"
    return [Head(name, name, "logits" if name == wanted else "values") for name in subject.outputs]


def check_pair(a: Subject, b: Subject) -> None:
    """Both must take the same inputs and give the same outputs.

    Raises:
        ConfigError: naming what is renamed, missing or extra.
    """
    for kind in ("inputs", "outputs"):
        wanted, found = getattr(a, kind), getattr(b, kind)
        check_names(dict.fromkeys(wanted), dict.fromkeys(found), b.name, kind[:-1])


def check_names(
    wanted: Mapping[str, Any],
    found: Mapping[str, Any],
    where: object,
    kind: str = "tensor",
    extra_is_fine: bool = False,
) -> None:
    """Compare names, and shapes where both are known (None: unknown).

    Works for outputs of graphs and for tensors of checkpoints alike.

    Raises:
        ConfigError: renamed, missing or extra names, or another shape.
    """
    missing = [n for n in wanted if n not in found]
    extra = [] if extra_is_fine else [n for n in found if n not in wanted]
    if len(missing) == 1 and len(extra) == 1 and wanted[missing[0]] == found[extra[0]]:
        raise ConfigError(
            f"{kind} {missing[0]} is missing and {extra[0]} is there instead", where=where, remedy="rename it back"
        )
    if missing:
        more = f"; not expected: {_listed(extra)}" if extra else ""
        raise ConfigError(f"lacks {kind} {_listed(missing)}{more}", where=where, remedy="export it again")
    if extra:
        raise ConfigError(f"has {kind} {_listed(extra)} that nobody expects", where=where, remedy="export it again")
    for name, shape in wanted.items():
        if shape is not None and found[name] is not None and tuple(shape) != tuple(found[name]):
            raise ConfigError(f"has shape {_shape(found[name])}, {_shape(shape)} is needed", where=where, field=name)


def exported_names(torch_side: TorchSubject, graph: Sequence[str]) -> dict[str, str]:
    """Which tensor of an ONNX graph made by the tracing exporter holds the output of which module.

    That exporter calls tensors ``/scope/scope.part/Op_output_0``; the last one of a module's scope is its output. A
    normalisation that was folded into the layer before it has no tensor of its own and takes that layer's.

    Args:
        torch_side: already run once.
        graph: the graph's tensors in topological order.

    Returns:
        Module name to tensor name, only for modules without a doubt.
    """
    last: dict[str, str] = {}
    for tensor in graph:
        if tensor.startswith("/"):
            last[_module_of(tensor)] = tensor
    found: dict[str, str] = {}
    before = ""
    for name in torch_side.intermediates:
        kind = torch_side.kinds.get(name, "")
        if name in last:
            found[name] = last[name]
        elif kind.startswith("BatchNorm") and before in found and torch_side.is_convolution(before):
            found[name] = found.pop(before)
        before = name
    return found


def convolutions_in_order(torch_side: TorchSubject, graph: OnnxSubject) -> dict[str, str]:
    """Pairs the convolutions of a module with those of a graph whose tensors have names of their own, by order.

    Both are in the order of the calls. Folded normalisations are treated as in :func:`exported_names`.

    Returns:
        Module name to tensor name; empty if the numbers of convolutions differ.
    """
    nodes = graph.model.graph.node
    made = [n.output[0] for n in nodes if n.op_type in ("Conv", "ConvTranspose")]
    folded = not any(n.op_type == "BatchNormalization" for n in nodes)
    names = [n for n in torch_side.intermediates if torch_side.is_convolution(n)]
    if len(names) != len(made):
        return {}
    following = dict(zip(torch_side.intermediates, torch_side.intermediates[1:]))
    pairs: dict[str, str] = {}
    for name, tensor in zip(names, made):
        after = following.get(name, "")
        normalised = folded and torch_side.kinds.get(after, "").startswith("BatchNorm")
        pairs[after if normalised else name] = tensor
    inside = set(graph.intermediates)
    return {name: tensor for name, tensor in pairs.items() if tensor in inside}


def _module_of(tensor: str) -> str:
    """``/now/now.0/Conv_output_0`` is of the module ``now.0``: a part of a sequence repeats the sequence's name."""
    parts: list[str] = []
    for scope in tensor.split("/")[1:-1]:
        if parts and scope.startswith(parts[-1] + "."):
            parts[-1] = scope
        else:
            parts.append(scope)
    return ".".join(parts)


def _recorder(name: str, seen: dict[str, Array], before: bool) -> Any:
    def record(_module: nn.Module, arguments: tuple[Any, ...], made: Any) -> None:
        tensors = _tensors(made)
        if len(tensors) != 1:
            return
        label, again = name, 0
        while label in seen:
            again += 1
            label = f"{name}#{again}"
        if before and arguments and torch.is_tensor(arguments[0]):
            seen[f"{label}<"] = arguments[0].detach().numpy().copy()
        # A copy, since the next layer may work in place.
        seen[label] = tensors[0].detach().numpy().copy()

    return record


def _is_fake_quantiser(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return any(word in name for word in ("fakequant", "quantiser", "quantizer"))


def _tensors(made: Any) -> list[torch.Tensor]:
    if torch.is_tensor(made):
        return [made]
    if isinstance(made, Mapping):
        made = list(made.values())
    if isinstance(made, (list, tuple)):
        return [t for part in made for t in _tensors(part)]
    return []


def _run(session: ort.InferenceSession, names: Sequence[str], feeds: dict[str, Array], where: str) -> list[Array]:
    try:
        return list(session.run(list(names), feeds))
    except TriptychError:
        raise
    except Exception as error:
        raise ConfigError(f"inference failed: {_first_line(error)}", where=where) from None


def initialisers(model: onnx.ModelProto) -> dict[str, Array]:
    """Constant tensors by name."""
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _size(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims)) if tensor.dims else 1


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _shape(shape: Sequence[Any]) -> str:
    return "x".join(str(d) for d in shape)


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = text.split(" : ")[-1] if " : " in text else text
    return text[:157] + "..." if len(text) > 160 else text.rstrip(".")
