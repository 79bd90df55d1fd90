"""Trains one network of a trial: the same start and the same batches whatever head it has."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mahalens.data import stream
from mahalens.nn import DistanceHead
from mahalens.studies.heads.backbone import FEATURES, Backbone
from mahalens.studies.heads.config import HeadsConfig
from mahalens.studies.heads.duq import PENALTY, KernelHead
from mahalens.studies.heads.task import Task

RATE, DECAY, WARM_UP = 3e-3, 5e-4, 0.2
MANY = 12_800
"""From so many samples on, batches have 128 of them, else 32, for enough steps in an epoch."""

Loss = Callable[[Tensor, Tensor], Tensor]


def begin(
    config: HeadsConfig, task: Task, trial: int, make: Callable[[], nn.Module], member: int = 0
) -> tuple[Backbone, nn.Module]:
    """A backbone and a head before training; the backbone is the same for every head."""
    seed = stream(config.seed, "start", trial, member).initial_seed()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Backbone(task.image_shape, task.x.shape[1])
        return backbone, make()


def softmax_network(
    config: HeadsConfig, task: Task, trial: int, member: int = 0
) -> tuple[Backbone, nn.Linear, float]:
    """Train a network with a linear head; also the time it took."""
    backbone, head = begin(config, task, trial, lambda: nn.Linear(FEATURES, task.classes), member)
    assert isinstance(head, nn.Linear)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(head(backbone(x)), y)

    return backbone, head, train(config, task, trial, (backbone, head), loss, member)


def distance_network(
    config: HeadsConfig, task: Task, trial: int
) -> tuple[Backbone, DistanceHead, float]:
    """Train a network with a distance head, samples kept near their prototypes."""
    backbone, head = begin(
        config, task, trial, lambda: DistanceHead(FEATURES, task.classes, logits="squared")
    )
    assert isinstance(head, DistanceHead)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = head(backbone(x))
        # These logits are −d²/2, and log det Σ is 0: this is compactness_penalty(head, features, y)
        # without computing all distances once more.
        compactness = -logits.gather(1, y[:, None]).mean()
        return cross_entropy(logits, y) + config.compactness * compactness

    return backbone, head, train(config, task, trial, (backbone, head), loss)


def kernel_network(
    config: HeadsConfig, task: Task, trial: int
) -> tuple[Backbone, KernelHead, float]:
    """Train a network with an RBF head as in DUQ: its loss, then its centroids, batch by batch."""
    backbone, head = begin(config, task, trial, lambda: KernelHead(FEATURES, task.classes))
    assert isinstance(head, KernelHead)

    seen = torch.empty(0)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        nonlocal seen
        features = backbone(x)
        seen = features.detach()
        return head.loss(features, y) + PENALTY * head.slope_penalty(backbone, x)

    def after(x: Tensor, y: Tensor) -> None:
        head.follow(seen, y)

    return backbone, head, train(config, task, trial, (backbone, head), loss, after=after)


def train(
    config: HeadsConfig,
    task: Task,
    trial: int,
    parts: tuple[nn.Module, nn.Module],
    loss: Loss,
    member: int = 0,
    after: Callable[[Tensor, Tensor], None] | None = None,
) -> float:
    """Train for all epochs with AdamW, one cycle of learning rates; gives the seconds it took.

    The seconds are those of this process on its core, whatever else the machine does.
    """
    size = 128 if len(task.y) >= MANY else 32
    size = min(size, len(task.y))
    batches = len(task.y) // size
    # Prototypes and centroids have no reason to shrink towards 0.
    decays = (DECAY, DECAY if isinstance(parts[1], nn.Linear) else 0.0)
    groups = [
        {"params": [p for p in part.parameters() if p.requires_grad], "weight_decay": decay}
        for part, decay in zip(parts, decays, strict=True)
    ]
    optimiser = torch.optim.AdamW(groups, lr=RATE)
    steps = config.epochs * batches
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, RATE, total_steps=steps + 1, pct_start=WARM_UP
    )
    order = stream(config.seed, "order", trial, member)
    began = time.process_time()
    for part in parts:
        part.train()
    for _ in range(config.epochs):
        for batch in torch.randperm(len(task.y), generator=order)[: batches * size].split(size):
            x, y = task.x[batch], task.y[batch]
            optimiser.zero_grad()
            loss(x, y).backward()
            optimiser.step()
            schedule.step()
            if after is not None:
                after(x, y)
    for part in parts:
        part.eval()
    return time.process_time() - began
