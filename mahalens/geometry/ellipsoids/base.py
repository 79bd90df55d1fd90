"""What ellipsoids of all kinds can do: K means with their spreads, as one object."""

from __future__ import annotations

import contextlib
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mahalens.errors import InputError
from mahalens.geometry.checks import (
    dtype_name,
    require_count,
    require_finite,
    require_same_kind,
    require_tensor,
)
from mahalens.geometry.ellipsoids.checks import require_norm
from mahalens.geometry.ellipsoids.keeper import Keeper
from mahalens.geometry.ellipsoids.products import Norm, root, wanted_accuracy
from mahalens.geometry.ellipsoids.tangent import Tangent
from mahalens.geometry.memory import require_memory

NEAREST_BLOCK = 4096


class Nearest(NamedTuple):
    """The k nearest ellipsoids of each point: distances [N, k], ascending, and indices [N, k]."""

    distances: Tensor
    indices: Tensor


class Ellipsoids(Keeper, ABC):
    """K ellipsoids in D dimensions: means [K, D] and, by kind, their spreads.

    Made by :func:`mahalens.geometry.ellipsoids.from_covariance`, ``from_data`` and
    ``from_clusters``, or directly from tensors by one of the subclasses. Tensors are not copied
    and may require gradients.
    """

    kind: str
    fields: ClassVar[tuple[str, ...]]
    """Names of the tensors; all but those of ``shared`` have the ellipsoids as first axis."""
    shared: ClassVar[tuple[str, ...]] = ()

    def __init__(self, means: Tensor) -> None:
        require_tensor("means", means, "[..., K, D]")
        if means.ndim != 2:
            raise InputError(f"means have shape {list(means.shape)}, wanted [K, D]")
        require_finite("means", means)
        super().__init__()
        self.means = means

    # What a kind must know

    @property
    @abstractmethod
    def ranks(self) -> Tensor:
        """How many directions of each ellipsoid are measured apart [K]."""

    @property
    @abstractmethod
    def covariances(self) -> Tensor:
        """Sigma_k [K, D, D]; infinite spreads (of a low rank without remainder) are left out."""

    @property
    @abstractmethod
    def log_determinants(self) -> Tensor:
        """log det Sigma_k [K]."""

    @abstractmethod
    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Squared (or L1) distances [N, K], and how far rounding may have moved them [N, K]."""

    @abstractmethod
    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        """Squared (or L1) distance [P] to ellipsoid k in float64, from x - mean_k [P, D]."""

    @abstractmethod
    def tangent(self, x: Tensor, norm: Norm = "l2") -> Tangent:
        """Give the distances of the rows of x [N, D] with their slopes."""

    def descend(self, x: Tensor, targets: Tensor, norm: Norm = "l2") -> Tensor:
        """Give the gradient [N, D] of ``1/2 sum_k (d_k(x) - target_k)^2`` for targets [N, K]."""
        tangent = self.tangent(x, norm)
        return tangent.pull(tangent.distances - targets)

    # What all kinds do with it

    def distances(self, x: Tensor, *, squared: bool = False, norm: Norm = "l2") -> Tensor:
        """Give the distance of every row of x [N, D] to every ellipsoid: [N, K].

        ``sqrt((x - mean_k)^T Sigma_k^-1 (x - mean_k))``, in units of spread; with
        ``norm="l1"`` the sum of the absolute components along the principal axes instead of
        the root of the sum of their squares.

        Everything is one blocked matrix product. Where that may have lost digits (points near a
        mean that lies far from the others, very flat ellipsoids), the pair is measured again in
        float64 from the difference ``x - mean_k``; in float32 distances are good to 1e-5,
        relative. Gradients reach x, means and spreads; at distance 0 they are 0.
        """
        self._require_points(x)
        require_norm(norm)
        require_memory(
            3 * len(x) * len(self) * x.element_size(),
            f"distances of {len(x)} points to {len(self)} ellipsoids",
            "measure fewer points at a time, or ask for nearest(x, k)",
        )
        values = self._checked_values(x, norm)
        if norm == "l1":
            return values.square() if squared else values
        if squared:
            return values
        return root(values) if values.requires_grad else values.sqrt()

    def _checked_values(self, x: Tensor, norm: Norm) -> Tensor:
        values, errors = self._values(x, norm)
        with torch.no_grad():
            tolerated = wanted_accuracy(x.dtype) * (2 if norm == "l2" else 1)
            doubtful = errors.div_(tolerated) >= values
        if not bool(doubtful.any()):
            return values
        n, k = doubtful.nonzero(as_tuple=True)
        order = torch.argsort(k, stable=True)  # one ellipsoid after the other
        n, k = n[order], k[order]
        again = []
        start = 0
        found, sizes = (part.tolist() for part in k.unique_consecutive(return_counts=True))
        for which, size in zip(found, sizes, strict=True):
            some = n[start : start + size]
            start += size

            def measure(some: Tensor, which: int = which) -> Tensor:
                delta = x[some].double() - self.means[which].double()
                return self._exactly(delta, which, norm).to(x.dtype)

            if self._tracked(x):  # made again on the way back, rather than differences kept
                again.append(checkpoint(measure, some, use_reentrant=False))
            else:
                again.append(measure(some))
        if values.requires_grad or self._tracked(x):
            return values.index_put((n, k), torch.cat(again))
        return values.index_put_((n, k), torch.cat(again))

    def nearest(self, x: Tensor, k: int = 1, *, norm: Norm = "l2") -> Nearest:
        """Give the k nearest ellipsoids of every row of x [N, D], without keeping all N x K.

        >>> from mahalens.geometry import SphericalEllipsoids
        >>> two = SphericalEllipsoids(torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 5.0]))
        >>> two.nearest(torch.tensor([[1.0], [4.0]])).indices
        tensor([[0],
                [1]])
        """
        require_count("k", k)
        if k > len(self):
            raise InputError(f"k is {k}, wanted at most the {len(self)} ellipsoids there are")
        self._require_points(x)
        blocks = [
            torch.topk(self.distances(some, norm=norm), k, dim=1, largest=False)
            for some in x.split(NEAREST_BLOCK)
        ]
        return Nearest(
            torch.cat([values for values, _ in blocks]), torch.cat([places for _, places in blocks])
        )

    def log_density(self, x: Tensor) -> Tensor:
        """Give log N(x_n; mean_k, Sigma_k) for every row of x [N, D] and every ellipsoid: [N, K].

        -1/2 (distance^2 + D log 2 pi + log det Sigma_k)
        """
        constant = self.dim * math.log(2 * math.pi) + self.log_determinants
        return -0.5 * (self.distances(x, squared=True) + constant)

    def responsibilities(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Give the share of each ellipsoid in each point [N, K], as in a Gaussian mixture.

        ``weights`` [K] are the shares of the ellipsoids, equal if not given. Rows sum to 1, so
        that they cannot say that a point is far from all ellipsoids: ask ``distances`` that.
        """
        return torch.softmax(self._joint(x, weights), dim=1)

    def log_likelihood(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Give the log-density [N] of the mixture of all ellipsoids."""
        return torch.logsumexp(self._joint(x, weights), dim=1)

    def _joint(self, x: Tensor, weights: Tensor | None) -> Tensor:
        density = self.log_density(x)
        if weights is None:
            return density - math.log(len(self))
        require_tensor("weights", weights, "[..., K]")
        require_same_kind("weights", weights, "these ellipsoids", self.means)
        if weights.shape != (len(self),) or not bool((weights.detach() >= 0).all()):
            raise InputError(
                f"weights have shape {list(weights.shape)}, wanted {len(self)} numbers of at least "
                "0 that sum to 1"
            )
        total = float(weights.detach().sum())
        if not math.isclose(total, 1.0, rel_tol=1e-4):
            raise InputError(f"weights sum to {total:.6g}, wanted 1; divide them by their sum")
        return density + weights.log()

    # A collection

    @property
    def dim(self) -> int:
        """D, the number of inputs."""
        return self.means.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all tensors."""
        return self.means.dtype

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.means.device

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, as they are saved."""
        found = {name: getattr(self, name) for name in self.fields}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Make ellipsoids of this kind from what :meth:`tensors` gave."""
        return cls(**tensors)

    def map(self, change: Callable[[Tensor], Tensor], *, shared: bool = True) -> Self:
        """Give ellipsoids of the same kind with every tensor changed."""
        return self.from_tensors(
            {
                name: change(tensor) if shared or name not in self.shared else tensor
                for name, tensor in self.tensors().items()
            }
        )

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Self:
        """Give the same ellipsoids in another dtype or on another device."""
        return self.map(lambda t: t.to(device, dtype if t.is_floating_point() else None))

    def __len__(self) -> int:
        return len(self.means)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Self:
        """Give some of the ellipsoids, always as a collection: ``e[3]`` holds one."""
        if not isinstance(index, slice):
            with contextlib.suppress(TypeError):
                index = operator.index(index)  # type: ignore[arg-type]
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"ellipsoid {index} of {len(self)}")
            index = slice(index, index + 1 or None)
        elif not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.device)
        return self.map(lambda t: t[index], shared=False)

    def __iter__(self) -> Iterator[Self]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(count={len(self)}, dim={self.dim}{self._more()}, "
            f"dtype={dtype_name(self.dtype)}, device={self.device})"
        )

    def _more(self) -> str:
        return ""

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; :func:`~mahalens.geometry.load_ellipsoids` reads it."""
        from mahalens.geometry.ellipsoids.files import save_ellipsoids

        save_ellipsoids(self, Path(path))

    def _tracked(self, *others: Tensor) -> bool:
        """Whether gradients are wanted."""
        everything = (*self.tensors().values(), *others)
        return torch.is_grad_enabled() and any(t.requires_grad for t in everything)

    def _require_points(self, x: Tensor) -> None:
        require_tensor("x", x, "[..., N, D]")
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise InputError(
                f"x has shape {list(x.shape)}; these ellipsoids have {self.dim} inputs, wanted "
                f"[N, {self.dim}]"
            )
        require_same_kind("x", x, "these ellipsoids", self.means)
