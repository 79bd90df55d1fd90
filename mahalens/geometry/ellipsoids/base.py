"""The base of all kinds of ellipsoids: K means with their spreads, as one object."""

from __future__ import annotations

import contextlib
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mahalens._show import facts_html
from mahalens.errors import InputError
from mahalens.files import replacing
from mahalens.geometry._checks import (
    count_of,
    dtype_name,
    require_finite,
    require_memory,
    require_norm,
    require_same_kind,
    require_tensor,
    tensor_of,
    untouched_by_autocast,
)
from mahalens.geometry.covariance import root
from mahalens.geometry.ellipsoids.products import (
    Norm,
    Tangent,
    least_values,
    wanted_accuracy,
    widest,
)

KIND_KEY = "ellipsoids"
"""The metadata of a safetensors file under which the kind is kept."""
_NEAREST_BLOCK = 4096
_T = TypeVar("_T")


class Nearest(NamedTuple):
    """The k nearest ellipsoids of each of N points; made by :meth:`Ellipsoids.nearest`.

    ``distances`` [N, k], ascending, in standard deviations; ``indices`` [N, k] of the ellipsoids.
    """

    distances: Tensor
    indices: Tensor


class Ellipsoids(ABC):
    """K ellipsoids in D dimensions: means [K, D] and, by kind, their spreads.

    :func:`mahalens.geometry.ellipsoids.from_covariance`, ``from_data`` and ``from_clusters`` make
    them; so do the subclasses, directly from tensors. Tensors are not copied and may require
    gradients. Indexing returns ellipsoids of the same kind; ``len`` is K.

    >>> from mahalens.geometry import ellipsoids
    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0], [9.0, 9.0], [9.0, 8.0]])
    >>> spheres = ellipsoids.from_data(x, torch.tensor([0, 0, 0, 0, 1, 1]), kind="spherical")
    >>> spheres.nearest(x).indices[:, 0]
    tensor([0, 0, 0, 0, 1, 1])
    """

    kind: str
    fields: ClassVar[tuple[str, ...]]
    """Names of the tensors; all but those of ``shared`` have the ellipsoids as first axis."""
    shared: ClassVar[tuple[str, ...]] = ()
    remainder: Tensor | None = None
    """One spread [K] for all directions without an axis, where a kind has it."""

    def __init__(self, means: Tensor) -> None:
        means = tensor_of("means", means)
        require_tensor("means", means, "[..., K, D]")
        if means.ndim != 2:
            raise InputError(f"means have shape {list(means.shape)}, wanted [K, D]")
        require_finite("means", means)
        self.means = means
        self._cache: dict[str, tuple[list[Tensor], list[tuple[int, int]], Any]] = {}

    # What a kind must know

    @property
    def ranks(self) -> Tensor:
        """Number of directions in which each ellipsoid has a spread of its own [K]."""
        return torch.full((len(self),), self.dim, device=self.device)

    @property
    @abstractmethod
    def covariances(self) -> Tensor:
        """Σ_k [K, D, D]; infinite spreads (of a low rank without remainder) are left out."""

    @property
    @abstractmethod
    def log_determinants(self) -> Tensor:
        """log det Σ_k [K]."""

    @abstractmethod
    def _values(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Return squared (or L1) distances [N, K], and how far rounding may have moved them."""

    @abstractmethod
    def _exactly(self, delta: Tensor, k: int, norm: Norm) -> Tensor:
        """Return squared (or L1) distances [P] to ellipsoid k in float64, from x - mean_k."""

    @abstractmethod
    def _steepest(self) -> Tensor:
        """Return about how much a distance can grow for a step of 1 in an input."""

    @abstractmethod
    def _tangent(self, x: Tensor, norm: Norm) -> Tangent:
        """Return :meth:`tangent` of points and a norm that were checked."""

    def _least_values(self) -> Tensor | None:
        """See :func:`~mahalens.geometry.ellipsoids.products.least_values`: [K], or None."""
        return least_values(self.dim, None, self.means.detach())

    # What all kinds can do

    @untouched_by_autocast
    def tangent(self, x: Tensor, norm: Norm = "l2") -> Tangent:
        """Return the distances of the rows of x [N, D] with their slopes."""
        x = self._ordinary_points(x)
        self._require_norm(norm)
        return self._tangent(x, norm)

    @untouched_by_autocast
    def descend(self, x: Tensor, targets: Tensor, norm: Norm = "l2") -> Tensor:
        """Return the gradient [N, D] of ``½ Σ_k (d_k(x) - target_k)²`` for targets [N, K]."""
        x = self._ordinary_points(x)
        self._require_norm(norm)
        return self._descend(x, targets, norm)

    def _descend(self, x: Tensor, targets: Tensor, norm: Norm) -> Tensor:
        tangent = self._tangent(x, norm)
        return tangent.pull(tangent.distances - targets)

    @untouched_by_autocast
    def distances(self, x: Tensor, *, squared: bool = False, norm: Norm = "l2") -> Tensor:
        """Return the distance of every row of x [N, D] to every ellipsoid: [N, K].

        ``√((x - mean_k)ᵀ Σ_k⁻¹ (x - mean_k))``, in units of spread; with ``norm="l1"`` the sum of
        the absolute components along the principal axes instead of the root of the sum of their
        squares.

        Everything is one blocked matrix product. Where that may have lost digits (points near a
        mean that lies far from the others, very flat ellipsoids, numbers whose squares the dtype
        cannot hold), the pair is measured again in float64 from the difference ``x - mean_k``; in
        float32 distances are good to 1e-5, relative. A distance, or a square, too large for the
        dtype is infinite. Gradients reach x, means and spreads; at distance 0 they are 0.

        ``x`` may be a NumPy array, which takes the dtype of the ellipsoids. NaN and infinite values
        in it raise :class:`~mahalens.errors.InputError`.
        """
        x = self._points(x)
        self._require_norm(norm)
        require_memory(
            3 * len(x) * len(self) * x.element_size(),
            f"distances of {len(x)} points to {len(self)} ellipsoids",
            "measure fewer points at a time, or ask for nearest(x, k)",
        )
        return self._measured(x, norm, squared=squared)

    def _measured(self, x: Tensor, norm: Norm, *, squared: bool) -> Tensor:
        """Return distances [N, K], or their squares: by products where these are good enough."""
        values, clear = self._by_products(x, norm)
        distances = _finished(values, norm, squared)
        if bool(clear.all()):
            return distances
        n, k = clear.logical_not_().nonzero(as_tuple=True)
        order = torch.argsort(k, stable=True)  # one ellipsoid after the other
        n, k = n[order], k[order]
        tracked = self._tracked(x)
        again = []
        start = 0
        numbers, sizes = (column.tolist() for column in k.unique_consecutive(return_counts=True))
        for number, size in zip(numbers, sizes, strict=True):
            rows = n[start : start + size]
            start += size

            def measure(rows: Tensor, number: int = number) -> Tensor:
                return self._exact(x[rows], number, norm, squared=squared).to(x.dtype)

            again.append(self._remade(measure, rows) if tracked else measure(rows))
        if distances.requires_grad or tracked:
            return distances.index_put((n, k), torch.cat(again))
        return distances.index_put_((n, k), torch.cat(again))

    def _remade(self, measure: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Compute again in the backward pass, instead of storing differences."""
        result: Tensor = checkpoint(measure, *tensors, use_reentrant=False)
        return result

    def _by_products(self, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Return :meth:`_values` [N, K], and where rounding and range have left them good."""
        least = self._cached("least", self._least_values)
        if least is None:
            values = x.new_zeros(len(x), len(self))
            return values, torch.zeros_like(values, dtype=torch.bool)
        values, errors = self._values(x, norm)
        with torch.no_grad():
            tolerated = wanted_accuracy(x.dtype) * (2 if norm == "l2" else 1)
            clear = errors.div_(tolerated) < values  # not so where either is NaN
            low, high = (float(end) for end in torch.aminmax(values.detach()))
            if not (low > float(least.max()) and high < math.inf):
                clear &= (values > least) & (values < math.inf)
        if not high < math.inf and values.requires_grad:
            # Infinite products would make slopes NaN even where their values are not used.
            return torch.zeros_like(values), torch.zeros_like(clear)
        return values, clear

    def _exact(self, x: Tensor, k: int, norm: Norm, *, squared: bool) -> Tensor:
        """Return the distance [P] of x [P, D] to ellipsoid k, or its square, in float64."""
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
        distances = _finished(values, norm, squared=False) / scale / unit
        return distances.square() if squared else distances

    def nearest(self, x: Tensor, k: int = 1, *, norm: Norm = "l2") -> Nearest:
        """Return the k nearest ellipsoids of every row of x [N, D], without storing all N x K.

        >>> from mahalens.geometry import SphericalEllipsoids
        >>> two = SphericalEllipsoids(torch.tensor([[0.0], [10.0]]), torch.tensor([1.0, 5.0]))
        >>> two.nearest(torch.tensor([[1.0], [4.0]])).indices
        tensor([[0],
                [1]])
        """
        k = count_of("k", k)
        if k > len(self):
            raise InputError(f"k is {k}, wanted at most the {len(self)} ellipsoids there are")
        x = self._points(x)
        blocks = [
            torch.topk(self.distances(block, norm=norm), k, dim=1, largest=False)
            for block in x.split(_NEAREST_BLOCK)
        ]
        distances, indices = (torch.cat(columns) for columns in zip(*blocks, strict=True))
        return Nearest(distances, indices)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log N(x_n; mean_k, Σ_k) for every row of x [N, D] and every ellipsoid: [N, K].

        ``-½ (distance² + D log 2π + log det Σ_k)``
        """
        constant = self.dim * math.log(2 * math.pi) + self.log_determinants
        return -0.5 * (self.distances(x, squared=True) + constant)

    def responsibilities(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the share of each ellipsoid in each point [N, K], as in a Gaussian mixture.

        ``weights`` [K] are the shares of the ellipsoids in the mixture, equal by default. Rows sum
        to 1, also for a point that is far from all ellipsoids: only ``distances`` shows that.
        """
        return torch.softmax(joint_density(self, x, self._logarithms(weights))[0], dim=1)

    def log_likelihood(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the log-density [N] of the mixture of all ellipsoids at each row of x [N, D]."""
        joint, square = joint_density(self, x, self._logarithms(weights))
        return torch.logsumexp(joint, dim=1) - 0.5 * square

    def _logarithms(self, weights: Tensor | None) -> Tensor | float:
        if weights is None:
            return -math.log(len(self))
        weights = tensor_of("weights", weights, self.means)
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
        return weights.log()

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
        """Return all tensors by name, as they are saved."""
        tensors = {name: getattr(self, name) for name in self.fields}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Make ellipsoids of this kind from what :meth:`tensors` returned."""
        return cls(**tensors)

    def map(self, change: Callable[[Tensor], Tensor], *, shared: bool = True) -> Self:
        """Return ellipsoids of the same kind with every tensor changed (unless it is shared)."""
        return self.from_tensors(
            {
                name: change(tensor) if shared or name not in self.shared else tensor
                for name, tensor in self.tensors().items()
            }
        )

    def _rescaled(self, unit: float) -> Self:
        """Return the same ellipsoids in other units: all lengths times ``unit``."""
        factors = {"means": unit, "spreads": unit, "remainder": unit, "whitening": 1 / unit}
        return self.from_tensors(
            {name: tensor * factors.get(name, 1.0) for name, tensor in self.tensors().items()}
        )

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Self:
        """Return the same ellipsoids in another dtype or on another device."""
        return self.map(lambda t: t.to(device, dtype if t.is_floating_point() else None))

    def __len__(self) -> int:
        return len(self.means)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Self:
        """Return some of the ellipsoids, always as a collection: ``e[3]`` holds one."""
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

    def _repr_html_(self) -> str:
        """Return kind, sizes and memory as a table."""
        ranks = self.ranks
        low, high = (int(ranks.min()), int(ranks.max())) if len(self) else (0, 0)
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())
        facts = {
            "ellipsoids": len(self),
            "dimensions": self.dim,
            "directions with a spread of their own": low if low == high else f"{low} to {high}",
            "remainder": "yes" if self.remainder is not None else "no",
            "memory": f"{size / 2**20:,.3g} MB, {dtype_name(self.dtype)} on {self.device}",
        }
        return facts_html(f"{type(self).__name__} ({self.kind})", facts)

    def _more(self) -> str:
        return ""

    def save(self, path: str | Path) -> None:
        """Write a safetensors file; :func:`~mahalens.geometry.load_ellipsoids` reads it.

        The kind is its only metadata. A file of that name stays as it was until the new one is
        complete.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors: dict[str, Tensor] = {}
        for name, tensor in self.tensors().items():
            ready = tensor.detach().cpu().contiguous()
            memory = {t.untyped_storage()._cdata for t in tensors.values()}
            # The format has no two names for the same memory.
            tensors[name] = ready.clone() if ready.untyped_storage()._cdata in memory else ready
        try:
            with replacing(Path(path)) as temporary:
                save_file(tensors, temporary, {KIND_KEY: self.kind})
        except SafetensorError as error:
            raise InputError(f"{path}: cannot be written ({str(error).splitlines()[0]})") from None

    # Helpers of the kinds

    def _cached(self, name: str, make: Callable[[], _T]) -> _T:
        """Return what ``make`` computed from the tensors; call it again only after a change.

        Changes through ``.data``, which hide from autograd, hide from this too.
        """
        tensors = list(self.tensors().values())
        # In inference mode tensors do not count their changes.
        state = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
        entry = self._cache.get(name)
        if entry is None or entry[1] != state or any(map(operator.is_not, entry[0], tensors)):
            entry = self._cache[name] = (tensors, state, make())
        value: _T = entry[2]
        return value

    def _tracked(self, *others: Tensor) -> bool:
        """Return whether gradients are asked for, of these ellipsoids or of other tensors."""
        everything = (*self.tensors().values(), *others)
        return torch.is_grad_enabled() and any(t.requires_grad for t in everything)

    def _centred(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return points and means relative to the mean of all means: products then lose less."""
        centre = self.means.detach().mean(dim=0)
        return x - centre, self.means - centre

    def _points(self, x: Tensor) -> Tensor:
        """Return points [N, D] that were checked; NumPy arrays take the dtype of the ellipsoids."""
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
        """Return the same for slopes, which take the squares of all numbers."""
        x = self._points(x)
        if not self._has_room(float(x.detach().abs().max())):
            remedy = "convert both to float64" if self.dtype == torch.float32 else "scale both"
            raise InputError(
                f"the squares of these points, means or spreads are too large or too small for "
                f"{dtype_name(self.dtype)}, in which slopes take them; {remedy}"
            )
        return x

    def _require_norm(self, norm: str) -> None:
        """Raise unless the norm is one that these ellipsoids can measure."""
        require_norm(norm)
        if norm == "l1" and self.remainder is not None:
            raise InputError(
                'norm is "l1" but these ellipsoids have a remainder, whose components are not '
                'known; take norm="l2", or ellipsoids of kind "low-rank"'
            )

    def _has_room(self, largest: float = 0.0) -> bool:
        """Return whether squares of points up to ``largest``, means and spreads fit the dtype."""
        if self._cached("least", self._least_values) is None:
            return False
        limit = widest(self.dtype) ** 2
        steepest = self._cached("steepest", lambda: float(self._steepest()))
        far = max(largest, self._cached("far", lambda: float(self.means.detach().abs().max())))
        return 1 / limit <= steepest <= limit and far <= limit and far * steepest <= limit


def joint_density(
    ellipsoids: Ellipsoids, x: Tensor, log_weights: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return log(π_k N(x; μ_k, Σ_k)) [N, K] plus ½ d² of the nearest ellipsoid, and that d² [N].

    The square of a distance can leave the range of its type; the difference of two need not.
    """
    # Infinity minus infinity would be NaN: where all are infinite, weights and volumes decide.
    distances = ellipsoids.distances(x).clamp(max=torch.finfo(ellipsoids.dtype).max / 4)
    nearest = distances.detach().amin(1, keepdim=True)  # a constant: the gradient is the same
    constant = ellipsoids.dim * math.log(2 * math.pi) + ellipsoids.log_determinants
    squares = (distances - nearest) * (distances + nearest)
    return log_weights - 0.5 * (squares + constant), nearest[:, 0].square()


def _finished(values: Tensor, norm: Norm, squared: bool) -> Tensor:
    """Return distances, or their squares, from sums of squares (L2) or absolute values (L1)."""
    if norm == "l1":
        return values.square() if squared else values
    if squared:
        return values
    return root(values) if values.requires_grad else values.sqrt()
