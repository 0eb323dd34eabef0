"""The networks of the built-in VLMs: convolutional encoder, temporal mixing, small cached decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

OBJECT_KINDS = 8
"""Length of :data:`triptych_forge.vlm.scenes.OBJECTS`."""
MEASURE_KINDS = 16
"""Length of :data:`triptych_forge.vlm.measures.QUANTITIES`."""
PIXEL_MEAN, PIXEL_STD = 114.0, 64.0


@dataclass(frozen=True)
class Shape:
    """Sizes of one model.

    Attributes:
        width_px, height_px: input; multiples of 16.
        frames: input frames.
        channels: of the stages at strides 4, 8 and 16.
        depth: blocks per stage.
        size: of tokens and decoder.
        layers, heads: of the decoder.
        mixing: blocks at stride 16 after the frames were joined.
        hidden: width of the decoder's feed-forward parts.
        dense: dense 3x3 layers instead of depthwise-separable ones: more weights and more work, but faster to train
            where matrices are multiplied in hardware, and they bear pruning and INT8 well.
    """

    width_px: int
    height_px: int
    frames: int
    channels: tuple[int, int, int]
    depth: tuple[int, int, int]
    size: int
    layers: int
    heads: int
    mixing: int
    hidden: int
    dense: bool = False

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.size // self.heads

    @property
    def tokens(self) -> int:
        """Image tokens: the grid at stride 16, one for the whole picture, one per quantity asked for."""
        return (self.width_px // 16) * (self.height_px // 16) + 1 + MEASURE_KINDS


SHAPES: dict[str, Shape] = {
    "distilled": Shape(352, 208, 1, (40, 64, 112), (1, 2, 3), 128, 2, 4, 1, 256, dense=True),
    "full": Shape(480, 288, 4, (48, 80, 160), (1, 2, 3), 160, 2, 4, 1, 320, dense=True),
    "demo-teacher": Shape(224, 128, 1, (40, 72, 112), (1, 2, 2), 96, 2, 4, 1, 192),
    "demo-student": Shape(160, 96, 1, (32, 48, 64), (1, 1, 2), 64, 2, 4, 1, 128),
}


def _backbone(
    channels: tuple[int, int, int], depth: tuple[int, int, int], strides: tuple[int, int, int], dense: bool
) -> nn.Module:
    """Three stages; the first takes patches of ``strides[0]`` pixels whole: cheap, and nothing is lost."""
    block: type[Separable] | type[Dense] = Dense if dense else Separable
    blocks: list[nn.Module] = [
        nn.Conv2d(3, channels[0], strides[0], strides[0], bias=False),
        nn.BatchNorm2d(channels[0]),
        nn.ReLU(inplace=True),
        *[block(channels[0], channels[0]) for _ in range(depth[0])],
    ]
    for stage in (1, 2):
        blocks.append(block(channels[stage - 1], channels[stage], strides[stage]))
        blocks += [block(channels[stage], channels[stage]) for _ in range(depth[stage] - 1)]
    return nn.Sequential(*blocks)


class Separable(nn.Module):
    """Depthwise 3x3, pointwise 1x1, one normalisation after both; with a shortcut where the size stays."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False)
        self.pointwise = nn.Conv2d(inside, outside, 1, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.act = nn.ReLU(inplace=True)
        self.short = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.pointwise(self.depthwise(x)))
        return self.act(x + y) if self.short else self.act(y)


class Dense(nn.Module):
    """Two 3x3 layers with a shortcut where the size stays, one with the stride where it changes."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.short = stride == 1 and inside == outside
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False) if self.short else None
        self.norm2 = nn.BatchNorm2d(outside) if self.short else None
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm1(self.first(x)))
        if self.second is None or self.norm2 is None:
            return y
        return self.act(x + self.norm2(self.second(y)))


class Asking(nn.Module):
    """One learnt question per quantity, each looking over the picture's tokens for its answer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size = shape.size
        self.shape = shape
        self.question = nn.Parameter(torch.randn(1, MEASURE_KINDS, size) * 0.05)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.memory, self.out = nn.Linear(size, size), nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.feed = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        """Picture tokens (B, T, size) to one token per quantity (B, MEASURE_KINDS, size)."""
        key, value = (_heads(t, self.shape) for t in self.memory(self.norm1(x)).chunk(2, -1))
        query = _heads(self.query(self.question).expand(x.shape[0], -1, -1), self.shape)
        y = self.question + self.out(_attend(query, key, value))
        return y + self.feed(self.norm2(y))


class Encoder(nn.Module):
    """Frames to the keys and values the decoder attends to."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        fine, middle, coarse = shape.channels
        self.now = _backbone((fine, middle, coarse), shape.depth, (4, 2, 2), shape.dense)
        self.before: nn.Module | None = None
        joined = coarse
        if shape.frames > 1:
            # Earlier frames say how things move; half the resolution and a shallower net are enough for that.
            self.before = _backbone((fine, middle, middle), (1, 1, 1), (4, 2, 1), shape.dense)
            joined += middle * (shape.frames - 1)
        block: type[Separable] | type[Dense] = Dense if shape.dense else Separable
        self.age = nn.Sequential(nn.Linear(shape.frames, 32), nn.ReLU(), nn.Linear(32, joined))
        self.join = nn.Sequential(
            nn.Conv2d(joined, shape.size, 1, bias=False),
            nn.BatchNorm2d(shape.size),
            nn.ReLU(inplace=True),
            *[block(shape.size, shape.size) for _ in range(shape.mixing)],
        )
        self.whole = nn.Linear(shape.size, shape.size)
        grid = (shape.width_px // 16) * (shape.height_px // 16)
        self.place = nn.Parameter(torch.randn(1, grid + 1, shape.size) * 0.02)
        self.asking = Asking(shape)
        self.norm = nn.LayerNorm(shape.size)
        # Two exercises for training only: what is where, and how much of each quantity there is.
        self.finder = nn.Linear(shape.size, OBJECT_KINDS)
        self.gauge = nn.Parameter(torch.zeros(MEASURE_KINDS, shape.size + 1, 2))
        self.keys_values = nn.ModuleList(nn.Linear(shape.size, 2 * shape.size) for _ in range(shape.layers))

    def tokens(self, frames: Tensor, ages_s: Tensor, before: Tensor | None = None) -> Tensor:
        """``frames`` (B, N, H, W, 3) uint8 or float BGR 0..255, ``ages_s`` (B, N); gives (B, tokens, size).

        With ``before`` (B, N - 1, H / 2, W / 2, 3), earlier frames that are already halved, ``frames`` is the newest
        alone, (B, 1, H, W, 3).
        """
        s = self.shape
        batch, grid = frames.shape[0], (s.height_px // 16, s.width_px // 16)
        pixels = _pixels(frames.reshape(-1, s.height_px, s.width_px, 3))
        pixels = pixels.reshape(batch, -1, 3, s.height_px, s.width_px)
        x = self.now(pixels[:, -1])
        if self.before is not None:
            if before is None:
                small = nn.functional.avg_pool2d(pixels[:, :-1].flatten(0, 1), 2)
            else:
                small = _pixels(before.flatten(0, 1))
            x = torch.cat([x, self.before(small).reshape(batch, -1, *grid)], 1)
        x = self.join(x + self.age(ages_s)[:, :, None, None])
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x, self.whole(x.mean(1, keepdim=True))], 1) + self.place
        x = torch.cat([x, self.asking(x)], 1)
        return self.norm(x)

    def forward(self, frames: Tensor, ages_s: Tensor) -> list[Tensor]:
        """Per layer key and value, each (B, heads, tokens, head_size)."""
        return self.memory(self.tokens(frames, ages_s))

    def found(self, tokens: Tensor) -> Tensor:
        """Logits (B, kinds, H / 16, W / 16) of what is where."""
        grid = self.finder(tokens[:, : -1 - MEASURE_KINDS]).transpose(1, 2)
        return grid.unflatten(2, (self.shape.height_px // 16, self.shape.width_px // 16))

    def gauged(self, tokens: Tensor) -> Tensor:
        """(B, MEASURE_KINDS, 2): logit of whether each quantity is there, and its value."""
        own = tokens[:, -MEASURE_KINDS:]
        return torch.einsum("bqs,qso->bqo", own, self.gauge[:, :-1]) + self.gauge[:, -1]

    def memory(self, memory: Tensor) -> list[Tensor]:
        """Keys and values of picture tokens."""
        out: list[Tensor] = []
        for projection in self.keys_values:
            out += [_heads(t, self.shape) for t in projection(memory).chunk(2, -1)]
        return out


def _pixels(frames: Tensor) -> Tensor:
    """(N, H, W, 3) BGR 0..255 to (N, 3, H, W), normalised."""
    return (frames.permute(0, 3, 1, 2).float() - PIXEL_MEAN) / PIXEL_STD


def _heads(x: Tensor, shape: Shape) -> Tensor:
    """(B, T, size) to (B, heads, T, head_size)."""
    return x.reshape(x.shape[0], -1, shape.heads, shape.head_size).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    mixed = torch.softmax(scores, -1) @ value
    return mixed.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Attention to the tokens so far, to the picture, and a feed-forward part; normalised before each."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        size = shape.size
        self.shape = shape
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(size), nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out1 = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.query, self.out2 = nn.Linear(size, size), nn.Linear(size, size)
        self.feed = nn.Sequential(nn.Linear(size, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, size))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor, memory: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the new tokens and the keys and values including them."""
        query, key, value = (_heads(t, self.shape) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        x = x + self.dropout(self.out1(_attend(query, key, value, mask)))
        x = x + self.dropout(self.out2(_attend(_heads(self.query(self.norm2(x)), self.shape), *memory)))
        return x + self.dropout(self.feed(self.norm3(x))), (key, value)


class Decoder(nn.Module):
    """Tokens and the picture's keys and values to logits."""

    LONGEST = 96

    def __init__(self, shape: Shape, vocabulary: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(vocabulary, shape.size)
        self.position = nn.Embedding(self.LONGEST, shape.size)
        nn.init.normal_(self.embed.weight, std=0.05)
        nn.init.normal_(self.position.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.size)
        self.head = nn.Linear(shape.size, vocabulary)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, memory: list[Tensor], past: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """``input_ids``, ``position_ids`` (B, T) int64. Returns logits (B, T, vocabulary), present keys and values."""
        x = self.embed(input_ids) + self.position(position_ids)
        fed = position_ids.shape[1] + (past[0].shape[2] if past else 0)
        places = torch.arange(fed, device=x.device)
        mask = (places[None, :] <= position_ids[0, :, None])[None, None]
        present: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            pair = (past[2 * number], past[2 * number + 1]) if past else None
            x, cache = layer(x, mask, (memory[2 * number], memory[2 * number + 1]), pair)
            present += cache
        return self.head(self.norm(x)), present


class Vlm(nn.Module):
    """Both parts, as trained."""

    def __init__(self, shape: Shape, vocabulary: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape)
        self.decoder = Decoder(shape, vocabulary, dropout)

    def forward(
        self, frames: Tensor, ages_s: Tensor, input_ids: Tensor, groups: int = 1, before: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Teacher-forced logits (B * groups, T, vocabulary) and the encoder's picture tokens (B, tokens, size).

        Each picture serves ``groups`` consecutive rows of ids; ``before`` as for :meth:`Encoder.tokens`.
        """
        tokens = self.encoder.tokens(frames, ages_s, before)
        memory = self.encoder.memory(tokens)
        if groups > 1:
            memory = [m.repeat_interleave(groups, 0) for m in memory]
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        return self.decoder(input_ids, positions, memory)[0], tokens
