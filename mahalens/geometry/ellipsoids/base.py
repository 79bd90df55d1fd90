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
    tensor_of,
)
from mahalens.geometry.ellipsoids.checks import require_norm
from mahalens.geometry.ellipsoids.keeper import Keeper
from mahalens.geometry.ellipsoids.products import (
    Norm,
    least_values,
    root,
    wanted_accuracy,
    widest,
)
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

    def _least_values(self) -> Tensor | None:
        """See :func:`~mahalens.geometry.ellipsoids.products.least_values`: [K], or None."""
        return least_values(self.dim, None, self.means.detach())

    @abstractmethod
    def _steepest(self) -> Tensor:
        """How much a distance can grow for a step of 1 in an input, about."""

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
        mean that lies far from the others, very flat ellipsoids, numbers whose squares the dtype
        cannot hold), the pair is measured again in float64 from the difference ``x - mean_k``; in
        float32 distances are good to 1e-5, relative. A distance, or a square, too large for the
        dtype is infinite. Gradients reach x, means and spreads; at distance 0 they are 0.

        ``x`` may be a NumPy array, which takes the dtype of the ellipsoids. NaN and infinite values
        in it raise :class:`~mahalens.errors.InputError`.
        """
        x = self._points(x)
        require_norm(norm)
        require_memory(
            3 * len(x) * len(self) * x.element_size(),
            f"distances of {len(x)} points to {len(self)} ellipsoids",
            "measure fewer points at a time, or ask for nearest(x, k)",
        )
        return self._measured(x, norm, squared=squared)

    def _measured(self, x: Tensor, norm: Norm, *, squared: bool) -> Tensor:
        """Distances [N, K], or their squares: by products where these are good enough."""
        least = self._keep("least", self._least_values)
        if least is None:
            values = x.new_zeros(len(x), len(self))
            clear = torch.zeros_like(values, dtype=torch.bool)
        else:
            values, errors = self._values(x, norm)
            with torch.no_grad():
                tolerated = wanted_accuracy(x.dtype) * (2 if norm == "l2" else 1)
                clear = errors.div_(tolerated) < values  # not so where either is NaN
                low, high = (float(end) for end in torch.aminmax(values.detach()))
                if not (low > float(least.max()) and high < math.inf):
                    clear &= (values > least) & (values < math.inf)
            if not high < math.inf and values.requires_grad:
                # Infinite products would make slopes NaN even where their values are not used.
                values, clear = torch.zeros_like(values), torch.zeros_like(clear)
        found = _finished(values, norm, squared)
        if bool(clear.all()):
            return found
        n, k = clear.logical_not_().nonzero(as_tuple=True)
        order = torch.argsort(k, stable=True)  # one ellipsoid after the other
        n, k = n[order], k[order]
        again = []
        start = 0
        places, sizes = (part.tolist() for part in k.unique_consecutive(return_counts=True))
        for which, size in zip(places, sizes, strict=True):
            some = n[start : start + size]
            start += size

            def measure(some: Tensor, which: int = which) -> Tensor:
                return self._exact(x[some], which, norm, squared=squared).to(x.dtype)

            if self._tracked(x):  # made again on the way back, rather than differences kept
                again.append(checkpoint(measure, some, use_reentrant=False))
            else:
                again.append(measure(some))
        if found.requires_grad or self._tracked(x):
            return found.index_put((n, k), torch.cat(again))
        return found.index_put_((n, k), torch.cat(again))

    def _exact(self, x: Tensor, k: int, norm: Norm, *, squared: bool) -> Tensor:
        """Distance [P] of x [P, D] to ellipsoid k, or its square, in float64."""
        mean = self.means[k].double()
        if x.dtype == torch.float32:  # float64 holds all squares of its numbers
            return _finished(self._exactly(x.double() - mean, k, norm), norm, squared)
        with torch.no_grad():
            largest = max(float(x.abs().max()), float(mean.abs().max()))
        unit = 0.25 if largest > 2.0**1020 else 1.0  # or the difference would overflow
        delta = unit * x - unit * mean
        values = self._exactly(delta, k, norm)
        with torch.no_grad():
            size = delta.abs().amax(dim=1)
            usual = ((values > 2.0**-900) & (values < 2.0**1000)) | (size == 0)
        if unit == 1 and bool(usual.all()):
            return _finished(values, norm, squared)
        with torch.no_grad():
            # The distance grows as delta does: powers of 2 bring its square back into range.
            power = torch.where(values < 1, 700.0, -700.0)
            power = torch.minimum(power, 1000 - torch.where(size > 0, size, 1.0).log2().ceil())
            scale = torch.where(usual, 1.0, torch.exp2(power))
        values = self._exactly(delta * scale[:, None], k, norm)
        found = _finished(values, norm, squared=False) / scale / unit
        return found.square() if squared else found

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
        x = self._points(x)
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

    def _rescaled(self, unit: float) -> Self:
        """The same ellipsoids in other units: all lengths times ``unit``."""
        factors = {"means": unit, "spreads": unit, "remainder": unit, "whitening": 1 / unit}
        return self.from_tensors(
            {name: tensor * factors.get(name, 1.0) for name, tensor in self.tensors().items()}
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

    def _points(self, x: Tensor) -> Tensor:
        """Points [N, D] as they are asked for; NumPy arrays take the dtype of the ellipsoids."""
        x = tensor_of("x", x, self.means)
        require_tensor("x", x, "[..., N, D]")
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise InputError(
                f"x has shape {list(x.shape)}; these ellipsoids have {self.dim} inputs, wanted "
                f"[N, {self.dim}]"
            )
        require_same_kind("x", x, "these ellipsoids", self.means)
        require_finite("x", x)
        return x

    def _ordinary_points(self, x: Tensor) -> Tensor:
        """The same where slopes are asked for, which take squares of all numbers."""
        x = self._points(x)
        if not self._has_room(float(x.detach().abs().max())):
            remedy = "convert both to float64" if self.dtype == torch.float32 else "scale both"
            raise InputError(
                f"the squares of these points, means or spreads are too large or too small for "
                f"{dtype_name(self.dtype)}, in which slopes take them; {remedy}"
            )
        return x

    def _has_room(self, largest: float = 0.0) -> bool:
        """Whether squares of points up to ``largest``, of means and of spreads fit the dtype."""
        if self._keep("least", self._least_values) is None:
            return False
        limit = widest(self.dtype) ** 2
        steepest = self._keep("steepest", lambda: float(self._steepest()))
        far = self._keep("far", lambda: float(self.means.detach().abs().max()))
        far = max(largest, far)
        return 1 / limit <= steepest <= limit and far <= limit and far * steepest <= limit


def _finished(values: Tensor, norm: Norm, squared: bool) -> Tensor:
    """Distances, or their squares, from the sums of squares (L2) or absolute values (L1)."""
    if norm == "l1":
        return values.square() if squared else values
    if squared:
        return values
    return root(values) if values.requires_grad else values.sqrt()
