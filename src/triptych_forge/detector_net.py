"""The built-in detector and its teacher: anchor-free, three levels, task-aligned assignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

STRIDES = (8, 16, 32)
MAX_LOG_SIDE = 4.0
"""Greatest log of a side distance in strides: keeps exp() finite for any input."""


def _layer(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class _Residual(nn.Module):
    """Two layers with a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_layer(channels, channels), _layer(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


@dataclass(frozen=True)
class Body:
    """What the network is made of. All its 3x3 layers are dense.

    Depthwise-separable ones have fewer weights for their work, but neither matrix units in training nor integers in
    the vehicle help them: those pay where much is multiplied per byte.

    Attributes:
        stem, early: channels at strides 2 and 4.
        stages: channels at strides 8, 16 and 32.
        depth: residual blocks at strides 8, 16 and 32.
        width: channels of the heads.
    """

    stem: int
    early: int
    stages: tuple[int, int, int]
    depth: tuple[int, int, int]
    width: int


TEACHER = Body(24, 48, (80, 128, 192), (2, 2, 2), 96)
STUDENT = Body(16, 32, (64, 88, 112), (2, 2, 2), 64)


def _stage(inside: int, outside: int, depth: int) -> nn.Sequential:
    return nn.Sequential(_layer(inside, outside, 2), *(_Residual(outside) for _ in range(depth)))


class DetectorNet(nn.Module):
    """Pictures (B, 3, H, W), 0..255 BGR, sides multiples of 32, to class logits (B, A, C) and boxes (B, A, 4) px."""

    def __init__(self, classes: int, body: Body = STUDENT) -> None:
        super().__init__()
        self.classes = classes
        width, channels = body.width, (body.early, *body.stages)
        self.stem = _layer(3, body.stem, 2)
        self.early = _stage(body.stem, body.early, 1)
        self.stages = nn.ModuleList(_stage(channels[i], channels[i + 1], body.depth[i]) for i in range(len(STRIDES)))
        self.lateral = nn.ModuleList([nn.Conv2d(c, width, 1) for c in body.stages])
        self.smooth = nn.ModuleList([_layer(width, width) for _ in STRIDES])
        self.tower = nn.ModuleList([nn.Sequential(_layer(width, width), _layer(width, width)) for _ in STRIDES])
        self.out = nn.ModuleList([nn.Conv2d(width, 4 + classes, 1) for _ in STRIDES])
        for layer in self.out:
            assert isinstance(layer, nn.Conv2d) and layer.bias is not None
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.constant_(layer.bias[:4], 0.7)
            nn.init.constant_(layer.bias[4:], -4.6)  # a prior of 1 %, so that background does not swamp the start

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.early(self.stem((x - 114.0) / 64.0))
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        levels = [lateral(f) for lateral, f in zip(self.lateral, features, strict=True)]
        for index in (1, 0):
            levels[index] = levels[index] + functional.interpolate(levels[index + 1], scale_factor=2.0, mode="nearest")
        logits, boxes = [], []
        for index, stride in enumerate(STRIDES):
            raw = self.out[index](self.tower[index](self.smooth[index](levels[index])))
            rows, columns = raw.shape[2], raw.shape[3]
            raw = raw.flatten(2).transpose(1, 2).float()  # boxes need more digits than mixed precision has
            centre = anchor_centres(rows, columns, stride, raw.device)
            sides = raw[..., :4].clamp(-MAX_LOG_SIDE, MAX_LOG_SIDE).exp() * stride
            boxes.append(torch.cat([centre - sides[..., :2], centre + sides[..., 2:]], -1))
            logits.append(raw[..., 4:])
        return torch.cat(logits, 1), torch.cat(boxes, 1)


class Exported(nn.Module):
    """The net as the engine runs it: (1, H, W, 3) uint8 BGR to (1, A, 4 + C) boxes in px and scores 0..1."""

    def __init__(self, net: DetectorNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> Tensor:
        logits, boxes = self.net(image.permute(0, 3, 1, 2).float())
        return torch.cat([boxes, logits.sigmoid()], -1)


def anchor_centres(rows: int, columns: int, stride: int, device: torch.device | None = None) -> Tensor:
    """(rows * columns, 2) x, y of the cells' centres in pixels."""
    y, x = torch.meshgrid(torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij")
    return (torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * float(stride)


class Batch(NamedTuple):
    """Pictures (B, 3, H, W) float 0..255; boxes (B, G, 4) px and labels (B, G), label -1 for padding; classes labelled
    (B, C) 0/1; ignored boxes (B, I, 4), zeros for padding."""

    images: Tensor
    boxes: Tensor
    labels: Tensor
    known: Tensor
    ignored: Tensor


class Losses(NamedTuple):
    """Parts of the loss, each a scalar, and the mean IoU of assigned boxes."""

    classes: Tensor
    boxes: Tensor
    iou: float


def _pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """(B, G, 4) x (B, A, 4) -> (B, G, A)."""
    low = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
    high = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area_a = (a[..., 2:] - a[..., :2]).clamp(min=0).prod(-1)
    area_b = (b[..., 2:] - b[..., :2]).clamp(min=0).prod(-1)
    return common / (area_a[:, :, None] + area_b[:, None] - common + 1e-6)


def giou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalised IoU of (N, 4) pairs."""
    common = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
    union = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1) - common + 1e-6
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(-1) + 1e-6
    iou = common / union
    return iou, iou - (hull - union) / hull


@torch.no_grad()
def assign(
    scores: Tensor, boxes: Tensor, centres: Tensor, strides: Tensor, batch: Batch, top: int = 9
) -> tuple[Tensor, Tensor, Tensor]:
    """Task-aligned assignment: each object takes the ``top`` anchors inside it that already fit it best.

    Returns:
        (B, A) index of the assigned object, -1 for background; (B, A) quality target 0..1; (B, A) IoU.
    """
    real = batch.labels >= 0
    middle = (batch.boxes[..., :2] + batch.boxes[..., 2:]) / 2
    half = (batch.boxes[..., 2:] - batch.boxes[..., :2]) / 2
    # A small object may hold no cell centre: it reaches at least 0.75 cells of the finest level around its middle.
    reach = half.clamp(min=0.75 * STRIDES[0])
    offset = (centres[None, None] - middle[:, :, None]).abs()
    inside = (offset <= reach[:, :, None]).all(-1)
    # Cells far coarser than the object cannot tell it from its surroundings.
    inside &= (half.amax(-1)[:, :, None] * 2.0 >= 0.75 * strides[None, None]) | (strides[None, None] == STRIDES[0])
    inside &= real[:, :, None]
    iou = _pairwise_iou(batch.boxes, boxes)
    index = batch.labels.clamp(min=0)[:, :, None].expand(-1, -1, boxes.shape[1])
    likely = scores.transpose(1, 2).gather(1, index)
    near = torch.exp(-(offset / reach[:, :, None]).square().sum(-1))
    # Nearness decides while the boxes are still random, and breaks ties later.
    metric = likely.sqrt() * iou.pow(4) + 1e-4 * near * (0.1 + iou)
    metric = metric * inside
    best = metric.topk(min(top, metric.shape[2]), 2)
    chosen = torch.zeros_like(metric).scatter(2, best.indices, (best.values > 0).float())
    metric = metric * chosen
    strongest, owner = metric.max(1)
    taken = strongest > 0
    owner = torch.where(taken, owner, torch.full_like(owner, -1))
    mine = owner.clamp(min=0)
    own_iou = iou.gather(1, mine[:, None])[:, 0]
    peak = metric.amax(2).gather(1, mine)
    peak_iou = (iou * chosen).amax(2).gather(1, mine)
    quality = strongest / (peak + 1e-12) * peak_iou
    return owner, torch.where(taken, quality, torch.zeros_like(quality)), own_iou


def losses(logits: Tensor, boxes: Tensor, batch: Batch) -> Losses:
    """Quality-aware classification and GIoU loss."""
    height, width = batch.images.shape[2:]
    grids = [anchor_centres(height // s, width // s, s) for s in STRIDES]
    centres = torch.cat(grids)
    strides = torch.cat([torch.full((len(g),), float(s)) for g, s in zip(grids, STRIDES, strict=True)])
    scores = logits.detach().sigmoid()
    owner, quality, _ = assign(scores, boxes.detach(), centres, strides, batch)
    positive = owner >= 0
    mine = owner.clamp(min=0)
    label = batch.labels.clamp(min=0).gather(1, mine)
    target = torch.zeros_like(logits).scatter(2, label[..., None], (quality * positive)[..., None])
    # Wrongly sure background weighs most, easy background hardly at all; objects weigh by their quality.
    weight = torch.where(target > 0, target.clamp(min=0.3), 0.75 * scores.square())
    weight = weight * batch.known[:, None, :]
    in_doubt = (
        (centres[None, None] >= batch.ignored[:, :, None, :2]) & (centres[None, None] <= batch.ignored[:, :, None, 2:])
    ).all(-1).any(1) & ~positive
    weight = weight * (~in_doubt)[..., None]
    per_cell = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    total = target.sum().clamp(min=1.0)
    class_loss = (per_cell * weight).sum() / total
    if not positive.any():
        return Losses(class_loss, boxes.sum() * 0, 0.0)
    wanted = batch.boxes.gather(1, mine[..., None].expand(-1, -1, 4))[positive]
    iou, overlap = giou(boxes[positive], wanted)
    share = quality[positive].clamp(min=0.1)
    box_loss = ((1 - overlap) * share).sum() / share.sum()
    return Losses(class_loss, box_loss, float(iou.detach().mean()))
