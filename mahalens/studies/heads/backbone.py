"""The small network that every head reads, and what it shows of its layers."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

WIDTHS = (16, 32, 64)
FEATURES = 64
SMALLEST = 2
"""A convolution halves the sides of an image; none follows where one is this short."""


class Seen(NamedTuple):
    """What a network makes of N samples: ``features`` [N, 64], a summary of ``layers`` [N, S]."""

    features: Tensor
    layers: Tensor


class Backbone(nn.Module):
    """Up to three strided convolutions with batch normalisation and ReLU, then 64 ELU features.

    Images of 28 x 28 become 14 x 14, 7 x 7 and 4 x 4 with 16, 32 and 64 channels (89,000
    parameters); those of 8 x 8 become 4 x 4 and 2 x 2. Samples that are no images go through
    linear layers of the widths 64 and 64 instead.

    The summary of the layers is the mean and the spread of each channel over the image, or the
    units themselves where there is no image, and the features before their ELU.

    >>> one = Backbone((28, 28), 784)
    >>> [part.shape[1] for part in one.look(torch.zeros(2, 784))]
    [64, 288]
    """

    def __init__(self, image_shape: tuple[int, ...] | None, inputs: int) -> None:
        super().__init__()
        self.shape: tuple[int, ...] | None = None
        parts: list[nn.Module] = []
        if image_shape is not None and len(image_shape) in (2, 3) and min(image_shape[-2:]) > 2:
            self.shape = image_shape if len(image_shape) == 3 else (1, *image_shape)
            channels, *sides = self.shape
            for width in WIDTHS:
                if min(sides) <= SMALLEST:
                    break
                layer = nn.Conv2d(channels, width, 3, stride=2, padding=1)
                parts.append(nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU()))
                channels, sides = width, [math.ceil(side / 2) for side in sides]
            inputs = channels * sides[0] * sides[1]
        else:
            for _ in range(2):
                layers = (nn.Linear(inputs, FEATURES), nn.BatchNorm1d(FEATURES), nn.ReLU())
                parts.append(nn.Sequential(*layers))
                inputs = FEATURES
        self.parts = nn.ModuleList(parts)
        self.last = nn.Linear(inputs, FEATURES)
        # Convolutions on the CPU are faster with channels last, and give the same numbers.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """Give features [N, 64] of samples [N, D]."""
        return elu(self._through(x)[-1])

    def look(self, x: Tensor) -> Seen:
        """Give features and the summary of all layers."""
        *layers, last = self._through(x)
        if self.shape is not None:
            pooled = (torch.std_mean(layer, (2, 3), correction=0) for layer in layers)
            layers = [part for both in pooled for part in reversed(both)]
        return Seen(elu(last), torch.cat((*layers, last), 1))

    def _through(self, x: Tensor) -> list[Tensor]:
        """What every layer gives, the last one before its ELU."""
        if self.shape is not None:
            x = x.view(-1, *self.shape).contiguous(memory_format=torch.channels_last)
        layers = []
        for part in self.parts:
            x = part(x)
            layers.append(x)
        return [*layers, self.last(x.flatten(1))]


@torch.no_grad()
def look(backbone: Backbone, x: Tensor, at_once: int = 2_000) -> Seen:
    """What a trained network makes of many samples, a part of them at a time."""
    backbone.eval()
    parts = [backbone.look(some) for some in x.split(at_once)]
    return Seen(*(torch.cat(part) for part in zip(*parts, strict=True)))
