"""An RBF head as in DUQ (van Amersfoort et al. 2020), the nearest published relative."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, one_hot

LENGTH, MOMENTUM, PENALTY = 0.1, 0.999, 0.05
"""Width of the kernels, share of the centroids that is kept, weight of the penalty: as published
for Fashion-MNIST."""
PENALISED = 4
"""The penalty is taken over one sample of so many: it costs two more passes through the network."""


class KernelHead(nn.Module):
    """A kernel around a centroid for each class, each in a linear image of the features of its own.

    ``K_c = exp(−‖W_c f − e_c‖² / (2 n σ²))`` with f the features [N, D], W_c [n, D], n = D. The
    centroids e_c follow the class means with momentum: ``e_c = m_c / N_c`` where m_c and N_c are
    running sums and counts. Binary cross-entropy of each K_c, and ``(‖∇_x Σ_c K_c‖² − 1)²``, which
    keeps the network from being blind to changes of its input.
    """

    sums: Tensor
    counts: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features, features))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.register_buffer("counts", torch.full((classes,), 12.0))
        self.register_buffer("sums", torch.randn(classes, features) * 0.05 * 12.0)

    def images(self, features: Tensor) -> Tensor:
        """The features as each class sees them: [N, D] to [N, C, n]."""
        return torch.einsum("nd,cmd->ncm", features, self.weight)

    def log_kernels(self, features: Tensor) -> Tensor:
        """log K_c, at most 0: [N, D] to [N, C]."""
        away = self.images(features) - self.sums / self.counts[:, None]
        return -away.square().mean(-1) / (2 * LENGTH**2)

    def loss(self, features: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy: the kernel of its own class near 1 for a sample, others near 0."""
        kernels = self.log_kernels(features).exp()
        return binary_cross_entropy(kernels, one_hot(y, kernels.shape[1]).to(kernels.dtype))

    def slope_penalty(self, backbone: nn.Module, x: Tensor) -> Tensor:
        """How far slopes of the sum of kernels are from length 1, over some of the samples x."""
        some = x[: -(-len(x) // PENALISED)].clone().requires_grad_()
        kernels = self.log_kernels(backbone(some)).exp()
        (slope,) = torch.autograd.grad(kernels.sum(), some, create_graph=True)
        return (slope.flatten(1).square().sum(1) - 1).square().mean()

    @torch.no_grad()
    def follow(self, features: Tensor, y: Tensor) -> None:
        """Move the centroids a little towards these samples."""
        wanted = one_hot(y, len(self.counts)).to(features.dtype)
        own = torch.einsum("ncm,nc->cm", self.images(features), wanted)
        self.counts.mul_(MOMENTUM).add_((1 - MOMENTUM) * wanted.sum(0))
        self.sums.mul_(MOMENTUM).add_((1 - MOMENTUM) * own)
