"""Ellipsoids of any kind from covariances, from labelled data, from clusters of data.

Every ellipsoid is a source that knows its covariance, its factor and its longest axes
(:class:`_Matrix` or :class:`_Samples`); :func:`_assemble` makes the tensors of a kind from them,
one after the other, in float64.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.geometry import covariance as estimation
from mahalens.geometry._checks import (
    count_of,
    labels_of,
    require_finite,
    require_memory,
    require_same_kind,
    require_tensor,
    tensor_of,
)
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.kinds import (
    DiagonalEllipsoids,
    FullEllipsoids,
    LowRankEllipsoids,
    SharedBasisEllipsoids,
    SphericalEllipsoids,
)
from mahalens.geometry.gaussian import whitening_matrix

Kind = Literal["full", "low-rank", "low-rank+remainder", "diagonal", "spherical", "shared-basis"]
"""The kinds of ellipsoids."""
Remainder = Literal["variance", "precision"]
Floats = NDArray[np.float64]
_T = TypeVar("_T")

_KINDS_WITH_RANK = ("low-rank", "low-rank+remainder", "shared-basis")
_ADVICE = "pass ridge=1e-6 or more"
_KMEANS_ROUNDS, _KMEANS_STEPS = 20, 5
_FIRST_RANK = 8


def from_covariance(
    means: Tensor,
    covariances: Tensor | Sequence[Tensor],
    *,
    kind: Kind = "full",
    rank: int | Literal["auto"] | None = None,
    remainder: Remainder = "variance",
    explained: float | None = None,
    error: float | None = None,
    ridge: float = 0.0,
) -> Ellipsoids:
    """Make ellipsoids from means [K, D] and covariances [K, D, D].

    ``covariances`` may be any sequence of [D, D] tensors, which is read one by one. Everything is
    computed in float64 and then rounded to the dtype of the means.

    ======================  ==================================================================
    ``full``                a triangular factor each
    ``low-rank``            the ``rank`` longest axes each; distances across them count as 0
    ``low-rank+remainder``  and one spread for all other directions: their mean variance, or with
                            ``remainder="precision"`` the inverse of their mean precision
    ``diagonal``            the diagonal of each covariance
    ``spherical``           the mean variance of each
    ``shared-basis``        ``rank`` directions for all, a covariance each within them, and a
                            remainder; the directions are the longest axes of the mean covariance
    ======================  ==================================================================

    ``rank="auto"`` takes as many axes of each as explain the share ``explained`` of its variance
    (0.95 by default), or as bring the relative error of the distance below ``error`` (see
    :func:`expected_error`). ``ridge`` adds that share of its mean variance to every covariance.

    >>> means, covariances = torch.zeros(2, 2), torch.stack([torch.eye(2), 4 * torch.eye(2)])
    >>> from_covariance(means, covariances).distances(torch.tensor([[2.0, 0.0]]))
    tensor([[2., 1.]])
    """
    means = tensor_of("means", means)
    covariances = tensor_of("covariances", covariances)
    require_tensor("means", means, "[..., K, D]")
    require_finite("means", means)
    if means.ndim != 2:
        raise InputError(f"means have shape {list(means.shape)}, wanted [K, D]")
    choice = _checked_choice(kind, rank, remainder, means.shape[1], explained, error)
    estimation.require_added(ridge, 0.0)
    if isinstance(covariances, Tensor):
        require_tensor("covariances", covariances, "[..., K, D, D]")
        require_same_kind("covariances", covariances, "means", means)
        if covariances.ndim != 3:
            raise InputError(f"covariances have shape {list(covariances.shape)}, wanted [K, D, D]")
    if len(covariances) != len(means):
        raise InputError(
            f"there are {len(means)} means but {len(covariances)} covariances; give one for each"
        )

    def source(k: int) -> _Matrix:
        matrix = _checked_covariance(covariances[k], means)
        return _Matrix(matrix, ridge * float(np.trace(matrix)) / len(matrix))

    return _assemble(means, source, kind, choice)


def from_data(
    x: Tensor,
    labels: Tensor,
    *,
    kind: Kind = "full",
    rank: int | Literal["auto"] | None = None,
    remainder: Remainder = "variance",
    explained: float | None = None,
    error: float | None = None,
    ridge: float = 0.0,
    shrinkage: float | Literal["ledoit-wolf"] = 0.0,
) -> Ellipsoids:
    """Fit one ellipsoid to the samples x [N, D] of each label; labels [N] are whole numbers.

    Ellipsoid k belongs to the k-th smallest label. ``ridge`` and ``shrinkage`` are those of
    :meth:`Gaussian.from_data <mahalens.geometry.Gaussian.from_data>`, the rest as in
    :func:`from_covariance`. NumPy arrays are accepted.

    >>> x = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [5.0, 9.0], [5.0, 7.0]])
    >>> spheres = from_data(x, torch.tensor([3, 3, 3, 3, 8, 8]), kind="spherical")
    >>> spheres.means, spheres.spreads
    (tensor([[1., 1.],
            [5., 8.]]), tensor([1.1547, 1.0000]))
    """
    x = tensor_of("x", x)
    require_tensor("x", x, "[..., N, D]")
    if x.ndim != 2:
        raise InputError(f"x has shape {list(x.shape)}, wanted [N, D]")
    require_finite("x", x)
    x = x.detach()
    estimation.require_added(ridge, shrinkage)
    choice = _checked_choice(kind, rank, remainder, x.shape[1], explained, error)
    unit = float(estimation.units(x, (-2, -1)))
    if x.dtype == torch.float32:  # float64 holds the squares of all its numbers
        unit = 1.0
    groups = _by_label(x / unit if unit != 1 else x, labels)
    centred = [estimation.centre(samples.double()) for samples in groups]
    means = torch.stack([mean for mean, _ in centred]).to(x.dtype)

    def source(k: int) -> _Matrix:
        return _Samples(groups[k], centred[k][1] / (len(groups[k]) - 1) ** 0.5, ridge, shrinkage)

    fitted = _assemble(means, source, kind, choice)
    return fitted if unit == 1 else fitted._rescaled(unit)


def from_clusters(
    x: Tensor, count: int, *, seed: int = 0, **options: object
) -> tuple[Ellipsoids, Tensor]:
    """Find ``count`` clusters in x [N, D] by k-means and fit an ellipsoid to each.

    Returns the ellipsoids and the cluster [N] of every sample. ``options`` are those of
    :func:`from_data`.

    >>> x = torch.tensor([[0.0], [1.0], [20.0], [21.0]])
    >>> pair, labels = from_clusters(x, 2, kind="spherical")
    >>> pair.means.sort(dim=0).values[:, 0]
    tensor([ 0.5000, 20.5000])
    """
    from scipy.cluster.vq import kmeans2

    x = tensor_of("x", x)
    require_tensor("x", x, "[..., N, D]")
    require_finite("x", x)
    count = count_of("count", count)
    if x.ndim != 2 or count > len(x):
        raise InputError(
            f"{count} clusters in x of shape {list(x.shape)}; wanted [N, D] with at least as many "
            "samples as clusters"
        )
    # k-means subtracts squares, which lose their digits to an offset.
    _, centred = estimation.centre(x.detach() / estimation.units(x, (-2, -1)))
    samples = centred.cpu().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty clusters, which are refused below
        centres, labels = kmeans2(samples, count, iter=1, minit="++", rng=seed)
        for _ in range(_KMEANS_ROUNDS):
            before = labels
            centres, labels = kmeans2(samples, centres, iter=_KMEANS_STEPS, minit="matrix")
            if np.array_equal(before, labels):
                break
    sizes = np.bincount(labels, minlength=count)
    if sizes.min() < 2:
        raise InputError(
            f"{count} clusters in {len(x)} samples leave a cluster with {sizes.min()}; ask for "
            "fewer clusters or give another seed"
        )
    clusters = torch.from_numpy(labels.astype(np.int64))
    return from_data(x, clusters, **options), clusters  # type: ignore[arg-type]


def concatenate(parts: Sequence[Ellipsoids]) -> Ellipsoids:
    """Put ellipsoids of one kind after each other, as ``torch.cat`` does.

    >>> from mahalens.geometry import SphericalEllipsoids
    >>> sphere = SphericalEllipsoids(torch.zeros(1, 2), torch.ones(1))
    >>> len(concatenate([sphere, sphere, sphere]))
    3
    """
    if not parts:
        raise InputError("no ellipsoids to concatenate, wanted at least 1")
    first = parts[0]
    unlike = [p for p in parts if (p.kind, p.dim, p.dtype) != (first.kind, first.dim, first.dtype)]
    if unlike:
        raise InputError(f"cannot concatenate unlike ellipsoids: {first!r} and {unlike[0]!r}")
    for name in first.shared:
        if any(not torch.equal(getattr(p, name), getattr(first, name)) for p in parts):
            raise InputError(f"cannot concatenate ellipsoids whose {name} differs")
    tensors = [part.tensors() for part in parts]
    if isinstance(first, LowRankEllipsoids):  # ranks may differ
        rank = max(t["axes"].shape[1] for t in tensors)
        for t in tensors:
            lacking = rank - t["axes"].shape[1]
            t["axes"] = torch.nn.functional.pad(t["axes"], (0, 0, 0, lacking))
            t["spreads"] = torch.nn.functional.pad(t["spreads"], (0, lacking), value=1.0)
    joined = {
        name: tensors[0][name] if name in first.shared else torch.cat([t[name] for t in tensors])
        for name in tensors[0]
    }
    return type(first).from_tensors(joined)


def truncate(
    ellipsoids: FullEllipsoids,
    rank: int | str,
    *,
    remainder: str | None = "variance",
    explained: float | None = None,
    error: float | None = None,
) -> LowRankEllipsoids:
    """Reduce ellipsoids to their ``rank`` longest axes, and one spread for all other directions.

    ``remainder="variance"`` gives these their mean variance: the squared distances of points of
    the ellipsoid itself stay right on average. ``"precision"`` gives the inverse of their mean
    precision, which is right on average for points in any direction; ``None`` drops them, as the
    published ellipsoid study does. ``rank``, ``explained`` and ``error`` are as in
    :func:`from_covariance`.
    """
    choice = RankChoice.of(rank, remainder, ellipsoids.dim, explained, error)

    def of_one(k: int) -> Axes:
        whitening = ellipsoids.whitening[k].detach().double()
        identity = torch.eye(ellipsoids.dim, dtype=torch.float64, device=whitening.device)
        factor = torch.linalg.solve_triangular(whitening, identity, upper=False)
        return longest_axes((factor @ factor.mT).cpu().numpy(), 0.0, choice)

    axes = [axes for _, axes in _each(len(ellipsoids), of_one)]
    return LowRankEllipsoids(ellipsoids.means, **_padded(axes, ellipsoids.means))


# Checks at the edge


def _checked_choice(
    kind: str,
    rank: int | str | None,
    remainder: str,
    dim: int,
    explained: float | None,
    error: float | None,
) -> RankChoice | None:
    """Return the choice of a rank for kinds that have one."""
    if kind not in get_args(Kind):
        raise InputError(f"kind is {kind!r}, wanted one of {', '.join(get_args(Kind))}")
    if remainder not in get_args(Remainder):
        raise InputError(f'remainder is {remainder!r}, wanted "variance" or "precision"')
    if kind not in _KINDS_WITH_RANK:
        if rank is not None or explained is not None or error is not None:
            raise InputError(
                f"a rank is given for kind {kind!r}, which has none; leave it out or take "
                'kind="low-rank+remainder"'
            )
        return None
    if rank is None:
        raise InputError(f'kind {kind!r} needs a rank: a number from 1 to {dim}, or "auto"')
    if kind == "shared-basis" and rank == "auto" and error is not None:
        raise InputError('kind "shared-basis" takes rank="auto" by explained variance only')
    return RankChoice.of(rank, None if kind == "low-rank" else remainder, dim, explained, error)


def _checked_covariance(covariance: Tensor, means: Tensor) -> Floats:
    """Return a covariance [D, D] in float64, exactly symmetric."""
    covariance = tensor_of("covariance", covariance)
    require_tensor("covariance", covariance, "[..., D, D]")
    dim = means.shape[1]
    if tuple(covariance.shape) != (dim, dim):
        raise InputError(
            f"means have length {dim} but a covariance is {list(covariance.shape)}, wanted "
            f"[{dim}, {dim}]"
        )
    require_finite("covariance", covariance)
    estimation.require_symmetric(covariance.detach())
    matrix = covariance.detach().double().cpu().numpy()
    symmetric: Floats = (matrix + matrix.T) / 2
    _require_semidefinite(symmetric, torch.finfo(covariance.dtype).eps)
    return symmetric


def _require_semidefinite(matrix: Floats, eps: float) -> None:
    """Raise where a spread is negative by more than rounding can explain."""
    slack = len(matrix) * eps * float(np.abs(np.diag(matrix)).max())
    try:
        np.linalg.cholesky(matrix + max(slack, 1e-300) * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(matrix)[0])
        if least < -slack:
            raise InputError(
                f"covariance is not positive definite: smallest eigenvalue {least:.3g}; no spread "
                "is negative, check the entries"
            ) from None


def _by_label(x: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the samples of each label, by ascending label."""
    labels = labels_of("labels", labels, len(x))
    values, sizes = labels.unique(return_counts=True)
    if int(sizes.min()) < 2:
        lone = int(values[sizes.argmin()])
        raise InputError(
            f"label {lone} has 1 sample, wanted at least 2 of each to see any spread; drop it or "
            "join it to another"
        )
    return [x[labels == value] for value in values]


def _each(count: int, make: Callable[[int], _T]) -> Iterator[tuple[int, _T]]:
    """Make something of one ellipsoid after the other; errors begin with its number."""
    for k in range(count):
        try:
            value = make(k)
        except InputError as error:
            raise type(error)(f"ellipsoid {k}: {error}") from None
        yield k, value


# From one covariance at a time to the tensors of a kind


class _Matrix:
    """A covariance [D, D], and what is to be added to its diagonal."""

    def __init__(self, matrix: Floats, shift: float) -> None:
        self._matrix, self._shift = matrix, shift

    def parts(self) -> tuple[Floats, float]:
        return self._matrix, self._shift

    def covariance(self) -> Floats:
        matrix, shift = self.parts()
        return matrix + shift * np.eye(len(matrix))

    def variances(self) -> Floats:
        matrix, shift = self.parts()
        return np.diag(matrix) + shift

    def factor(self) -> Tensor:
        return estimation.factor_covariance(torch.from_numpy(self.covariance()), _ADVICE)

    def axes(self, choice: RankChoice) -> Axes:
        return longest_axes(*self.parts(), choice)


class _Samples(_Matrix):
    """Samples [n, D], and rows with Σ = rowsᵀ rows before ridge and shrinkage."""

    def __init__(self, samples: Tensor, rows: Tensor, ridge: float, shrinkage: float | str) -> None:
        self._samples, self._rows, self._ridge, self._shrinkage = samples, rows, ridge, shrinkage

    def _added(self) -> tuple[float, float]:
        """Return the factor and the summand that ridge and shrinkage make of a variance."""
        weight = self._shrinkage
        if isinstance(weight, str):
            weight = float(estimation.ledoit_wolf_shrinkage(self._samples.double()))
        average = float(self._rows.square().sum()) / self._rows.shape[1]
        return 1 - weight, (weight + self._ridge) * average

    def parts(self) -> tuple[Floats, float]:
        factor, shift = self._added()
        return (self._rows.mT @ self._rows * factor).numpy(), shift

    def factor(self) -> Tensor:
        samples = self._samples.double()
        return estimation.estimate(samples, ridge=self._ridge, shrinkage=self._shrinkage)[1]

    def axes(self, choice: RankChoice) -> Axes:
        factor, shift = self._added()
        return axes_of_rows(self._rows.numpy() * factor**0.5, shift, choice)


def _assemble(
    means: Tensor, source: Callable[[int], _Matrix], kind: str, choice: RankChoice | None
) -> Ellipsoids:
    """Make ellipsoids of ``kind`` from their sources, which are asked for one after the other."""
    count, dim = means.shape
    if kind == "full":
        _require_room(count, dim, means)
        whitening = means.new_empty(count, dim, dim)
        for k, factor in _each(count, lambda k: source(k).factor()):
            whitening[k] = whitening_matrix(factor, "cholesky")
        return FullEllipsoids(means, whitening)
    if choice is not None and kind == "shared-basis":
        return _shared_basis(means, source, choice)
    if choice is not None:
        axes = [axes for _, axes in _each(count, lambda k: source(k).axes(choice))]
        return LowRankEllipsoids(means, **_padded(axes, means))
    variances = np.stack([row for _, row in _each(count, lambda k: source(k).variances())])
    spherical = kind == "spherical"
    if spherical:
        variances = variances.mean(axis=1)
    if not (variances > 0).all():
        k, *inputs = map(int, np.argwhere(variances <= 0)[0])
        place = f" along input {inputs[0]}" if inputs else ""
        raise SingularCovarianceError(
            f"ellipsoid {k} has no spread{place}; drop that input, or pass ridge=1e-6 or more"
        )
    spreads = torch.from_numpy(np.sqrt(variances)).to(means)
    return SphericalEllipsoids(means, spreads) if spherical else DiagonalEllipsoids(means, spreads)


def _require_room(count: int, dim: int, like: Tensor) -> None:
    """Raise unless there is memory for full ellipsoids and for their distances."""
    # The factors, their stripes for products, and some matrices in float64 on the way.
    size = count * dim * dim * like.element_size() * 17 // 10 + 8 * dim * dim * 8
    require_memory(
        size,
        f"{count} full ellipsoids in {dim} dimensions",
        'take kind="low-rank+remainder" with a rank, or fewer ellipsoids',
    )


def _padded(axes: Sequence[Axes], like: Tensor) -> dict[str, Tensor]:
    """Return the axes of several ellipsoids as tensors; zeros fill up those with fewer."""
    rank, dim = max(len(a.axes) for a in axes), axes[0].axes.shape[1]
    tensors = {
        "axes": torch.zeros(len(axes), rank, dim, dtype=like.dtype),
        "spreads": torch.ones(len(axes), rank, dtype=like.dtype),
    }
    for k, a in enumerate(axes):
        tensors["axes"][k, : len(a.axes)] = torch.from_numpy(a.axes)
        tensors["spreads"][k, : len(a.axes)] = torch.from_numpy(a.spreads)
    if axes[0].remainder is not None:
        tensors["remainder"] = torch.tensor([a.remainder for a in axes], dtype=like.dtype)
    return {name: tensor.to(like.device) for name, tensor in tensors.items()}


def _shared_basis(
    means: Tensor, source: Callable[[int], _Matrix], choice: RankChoice
) -> SharedBasisEllipsoids:
    count, dim = means.shape
    average = np.zeros((dim, dim))
    for _, covariance in _each(count, lambda k: source(k).covariance()):
        average += covariance / count
    if choice.rank is None:
        explained = RankChoice(None, None, choice.explained, choice.error)
        basis = longest_axes(average, 0.0, explained).axes
    else:
        _, basis = top_eigenpairs(average, choice.rank)

    def of_one(k: int) -> tuple[Tensor, float]:
        whole = source(k).covariance()
        inside = basis @ whole @ basis.T
        symmetric = torch.from_numpy((inside + inside.T) / 2)
        factor = estimation.factor_covariance(symmetric, _ADVICE)
        return factor, math.sqrt(_variance_across(whole, basis, inside, choice))

    whitening = means.new_empty(count, len(basis), len(basis))
    remainder = means.new_empty(count)
    for k, (factor, spread) in _each(count, of_one):
        whitening[k] = whitening_matrix(factor, "cholesky")
        remainder[k] = spread
    shared = torch.from_numpy(np.ascontiguousarray(basis)).to(means)
    return SharedBasisEllipsoids(means, shared, whitening, remainder)


def _variance_across(whole: Floats, basis: Floats, inside: Floats, choice: RankChoice) -> float:
    """Return the variance to give to the directions that a shared basis leaves out."""
    size, dim = basis.shape
    if size == dim:  # nothing is left across but rounding, which must not count
        return float(np.trace(whole))
    if choice.remainder == "precision":
        inverse = np.linalg.inv(whole)
        rest = (np.trace(inverse) - np.trace(basis @ inverse @ basis.T)) / (dim - size)
        rest = 1 / rest
    else:
        rest = (np.trace(whole) - np.trace(inside)) / (dim - size)
    if not rest > 1e-12 * np.trace(whole) / dim:
        raise SingularCovarianceError(
            "covariance has no spread beyond the shared basis, so the remainder would be "
            "0; pass ridge=1e-6 or more"
        )
    return float(rest)


# The longest axes of a covariance, how many of them, and a spread for the rest


@dataclass(frozen=True)
class RankChoice:
    """The number of axes to take: a rank, or as many as a target needs.

    ``explained`` is the share of the variance along these axes. ``error`` is how far the distance
    may be off, relative to it (root mean square over points of the ellipsoid itself; formula in
    :func:`expected_error`). The other directions get a ``remainder``: their mean variance, the
    inverse of their mean precision, or nothing.
    """

    rank: int | None
    remainder: Remainder | None
    explained: float | None = None
    error: float | None = None

    @classmethod
    def of(
        cls,
        rank: int | str | None,
        remainder: str | None,
        dim: int,
        explained: float | None = None,
        error: float | None = None,
    ) -> RankChoice:
        """Check the rank and the targets of a user."""
        if remainder not in (*get_args(Remainder), None):
            raise InputError(f'remainder is {remainder!r}, wanted "variance", "precision" or None')
        if rank == "auto":
            if explained is not None and error is not None:
                raise InputError("explained and error are both given; give one target of the rank")
            target = error if error is not None else explained
            if target is not None and not 0 < target < 1:
                name = "explained" if error is None else "error"
                raise InputError(f"{name} is {target!r}, wanted a number between 0 and 1")
            if error is None and explained is None:
                explained = 0.95
            return cls(None, remainder, explained, error)  # type: ignore[arg-type]
        if explained is not None or error is not None:
            raise InputError(f'a target is given with rank {rank!r}; it needs rank="auto"')
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 1 <= rank <= dim:
            raise InputError(
                f'rank is {rank!r}, wanted a whole number from 1 to D = {dim}, or "auto"'
            )
        return cls(int(rank), remainder)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Axes:
    """Axes [R, D] with spreads [R], longest first, and the spread across them (or None)."""

    axes: Floats
    spreads: Floats
    remainder: float | None


def expected_error(
    dim: int, rank: Floats, tail: Floats, tail_squares: Floats, rest: Floats | None
) -> Floats:
    """Return how far a truncated distance is off, relative to it, for points of the ellipsoid.

    With the dropped variances λᵢ and the variance s = ``rest`` in their place, the squared distance
    of a normal point is off by Σᵢ (λᵢ / s - 1) χᵢ². Its root mean square, over twice the mean
    squared distance D, needs only the sums ``tail`` of λᵢ and ``tail_squares`` of λᵢ²; both follow
    from trace and Frobenius norm of the covariance, without the dropped axes. With ``rest=None``
    the distance is too short by the factor √(R / D). ``rank`` and the sums may be arrays.

    >>> variances = np.array([4.0, 2.0, 1.0, 1.0])
    >>> tail, tail_squares = variances[1:].sum(), (variances[1:] ** 2).sum()
    >>> float(expected_error(4, np.array(1.0), tail, tail_squares, tail / 3).round(3))
    0.108
    """
    if rest is None:
        return 1 - np.sqrt(rank / dim)
    dropped = dim - rank
    safe = np.where(rest > 0, rest, 1.0)
    bias = tail / safe - dropped
    spread = np.maximum(tail_squares / safe**2 - 2 * tail / safe + dropped, 0)
    return np.where(dropped > 0, np.sqrt(bias**2 + 2 * spread) / (2 * dim), 0.0)


@dataclass(frozen=True)
class _Whole:
    """A covariance [D, D] with ``shift`` added to all variances, and its trace."""

    covariance: Floats
    shift: float
    dim: int
    trace: float

    def squares(self) -> float:
        """Return ‖S + c I‖² = ‖S‖² + 2 c tr S + D c²."""
        squares = float(np.vdot(self.covariance, self.covariance))
        added = self.dim * self.shift
        return squares + self.shift * (2 * (self.trace - added) + added)

    def precision_trace(self) -> float:
        from scipy.linalg import LinAlgError, cholesky, lapack

        try:
            factor = cholesky(self.covariance + self.shift * np.eye(self.dim), lower=True)
        except LinAlgError:
            raise SingularCovarianceError(
                'covariance is singular, so it has no mean precision; take remainder="variance", '
                "or pass ridge=1e-6 or more"
            ) from None
        inverse, _ = lapack.dtrtri(factor, lower=1)
        return float(np.vdot(np.tril(inverse), np.tril(inverse)))

    def axes(self, values: Floats, axes: Floats, choice: RankChoice) -> Axes:
        """Return these axes with a spread across, unless some have none themselves."""
        noise = 100 * np.finfo(np.float64).eps * max(self.trace, 0.0)
        count = int((values > noise).sum())
        if count < len(values):
            raise SingularCovarianceError(
                f"rank {len(values)} is more than the {count} of {self.dim} directions that have "
                f"spread; keep fewer axes, or pass ridge=1e-6 or more"
            )
        rest = _stand_in(values, choice, self)
        return Axes(axes, np.sqrt(values), None if rest is None else math.sqrt(rest))


def longest_axes(covariance: Floats, shift: float, choice: RankChoice) -> Axes:
    """Return the axes of a covariance [D, D] that ``choice`` asks for.

    ``shift`` is added to all variances.
    """
    dim = len(covariance)
    whole = _Whole(covariance, shift, dim, float(np.trace(covariance)) + dim * shift)
    rank = choice.rank or min(_FIRST_RANK, dim)
    while True:
        values, vectors = top_eigenpairs(covariance, rank)
        values = values + shift
        count = _sufficient(values, choice, whole)
        if count is not None or rank == dim:
            break
        rank = dim if 4 * rank >= dim else 2 * rank
    return whole.axes(values[:count], vectors[:count], choice)


def axes_of_rows(rows: Floats, shift: float, choice: RankChoice) -> Axes:
    """Return the longest axes of rowsᵀ rows + shift I for rows [n, D], of centred data.

    Where there are fewer rows than inputs, they come from the smaller matrix rows rowsᵀ: its
    eigenvalues are the same, and an eigenvector u gives the axis rowsᵀ u / ‖rowsᵀ u‖.
    """
    count, dim = rows.shape
    rank = choice.rank
    if count >= dim or rank is None or rank >= count or choice.remainder == "precision":
        return longest_axes(rows.T @ rows, shift, choice)
    whole = _Whole(rows, shift, dim, float(np.vdot(rows, rows)) + dim * shift)
    values, vectors = top_eigenpairs(rows @ rows.T, rank)
    axes = vectors @ rows
    with np.errstate(invalid="ignore"):  # of an axis without spread, which is refused
        axes = _signed(axes / np.linalg.norm(axes, axis=1, keepdims=True))
    return whole.axes(values + shift, axes, choice)


def top_eigenpairs(
    covariance: Floats, rank: int, *, lanczos_share: int = 32, restarts: int = 4
) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues [R], descending, and their eigenvectors as rows [R, D].

    Few of many (at most D / ``lanczos_share``) come from Lanczos' method, unless the spectrum is
    too flat for it to converge within ``restarts``; more of them from LAPACK's tridiagonal form, of
    which only R vectors are made; all from the full decomposition. Signs are such that the largest
    entry of a vector is positive.

    >>> values, vectors = top_eigenpairs(np.array([[2.0, 0.0], [0.0, 5.0]]), 1)
    >>> values, vectors
    (array([5.]), array([[0., 1.]]))
    """
    from scipy.linalg import eigh
    from scipy.sparse.linalg import ArpackError, eigsh

    dim = len(covariance)
    pairs = None
    if rank * lanczos_share <= dim:
        with contextlib.suppress(ArpackError):  # also where it has not converged
            pairs = eigsh(
                covariance,
                k=rank,
                ncv=min(dim, max(2 * rank + 1, 24)),
                v0=np.random.default_rng(0).standard_normal(dim),  # at right angles to no axis
                maxiter=restarts,
            )
    if pairs is None:
        # Beyond a quarter of them, the faster method for all is faster than this one for some.
        subset = None if 4 * rank > dim else (dim - rank, dim - 1)
        pairs = eigh(covariance, subset_by_index=subset, check_finite=False)
    order = np.argsort(pairs[0])[::-1][:rank]
    return pairs[0][order], _signed(pairs[1][:, order].T)


def _signed(vectors: Floats) -> Floats:
    """Turn every row so that its largest entry is positive."""
    largest = np.abs(vectors).argmax(axis=1)
    signs = np.sign(vectors[np.arange(len(vectors)), largest])
    return np.ascontiguousarray(vectors * signs[:, None])


def _sufficient(values: Floats, choice: RankChoice, whole: _Whole) -> int | None:
    """Return how many of the first axes are enough; None if more are needed."""
    if choice.rank is not None:
        return choice.rank
    dim, ranks = whole.dim, np.arange(1, len(values) + 1, dtype=np.float64)
    if choice.explained is not None:
        good = np.cumsum(values) >= choice.explained * whole.trace * (1 - 1e-12)
    else:
        tail = np.maximum(whole.trace - np.cumsum(values), 0)
        tail_squares = np.maximum(whole.squares() - np.cumsum(values**2), 0)
        rest = None
        if choice.remainder == "variance":
            rest = tail / np.maximum(dim - ranks, 1)
        elif choice.remainder == "precision":
            total = whole.precision_trace()
            inverse = np.maximum(total - np.cumsum(1 / values), 1e-12 * total)
            rest = np.maximum(dim - ranks, 1) / inverse
        good = expected_error(dim, ranks, tail, tail_squares, rest) <= (choice.error or 0)
    return int(good.argmax()) + 1 if good.any() else None


def _stand_in(values: Floats, choice: RankChoice, whole: _Whole) -> float | None:
    """Return the variance to give to the directions without an axis."""
    dropped = whole.dim - len(values)
    if choice.remainder is None:
        return None
    if not dropped:
        return float(values[-1])
    if choice.remainder == "precision":
        rest = dropped / (whole.precision_trace() - float(np.sum(1 / values)))
    else:
        rest = (whole.trace - float(values.sum())) / dropped
    if not rest > 1e-12 * whole.trace / whole.dim:
        raise SingularCovarianceError(
            f"covariance has no spread beyond its {len(values)} longest axes, so the remainder "
            "would be 0; pass ridge=1e-6 or more, or remainder=None"
        )
    return min(float(rest), float(values[-1]))
