"""Ellipsoids of any kind from covariances, from labelled data, from clusters of data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mahalens.errors import InputError
from mahalens.geometry import covariance as estimation
from mahalens.geometry.checks import (
    require_count,
    require_finite,
    require_same_kind,
    require_tensor,
    tensor_of,
    whole_tensor_of,
)
from mahalens.geometry.ellipsoids.assemble import (
    Kind,
    Part,
    assemble,
    check_choice,
    covariance_of,
    naming,
    require_room,
)
from mahalens.geometry.ellipsoids.axes import RankChoice, axes_of_rows, longest_axes, pad_axes
from mahalens.geometry.ellipsoids.base import Ellipsoids
from mahalens.geometry.ellipsoids.full import FullEllipsoids
from mahalens.geometry.ellipsoids.lowrank import LowRankEllipsoids
from mahalens.geometry.whitening import whitening_matrix

KMEANS_ROUNDS, KMEANS_STEPS = 20, 5


def from_covariance(
    means: Tensor,
    covariances: Tensor | Sequence[Tensor],
    *,
    kind: Kind = "full",
    rank: int | Literal["auto"] | None = None,
    remainder: Literal["variance", "precision"] = "variance",
    explained: float | None = None,
    error: float | None = None,
    ridge: float = 0.0,
) -> Ellipsoids:
    """Make ellipsoids from means [K, D] and covariances [K, D, D].

    ``covariances`` may be any sequence of [D, D] tensors, which are asked for one by one. All is
    computed in float64 and then rounded to the dtype of the means.

    ======================  ==================================================================
    ``full``                a triangular factor each
    ``low-rank``            the ``rank`` longest axes each; distances across them count as 0
    ``low-rank+remainder``  and one spread for all other directions (see :class:`RankChoice`)
    ``diagonal``            the diagonal of each covariance
    ``spherical``           the mean variance of each
    ``shared-basis``        ``rank`` directions for all, a covariance each within them, and a
                            remainder; the directions are the longest axes of the mean covariance
    ======================  ==================================================================

    ``rank="auto"`` keeps as many axes of each as explain the share ``explained`` of its variance
    (0.95 if nothing is said), or as keep the distance within ``error``, relative.
    ``ridge`` adds that share of its mean variance to every covariance.

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
    choice = check_choice(kind, rank, remainder, means.shape[1], explained, error)
    estimation.require_added(ridge, 0.0)
    if isinstance(covariances, Tensor):
        require_tensor("covariances", covariances, "[..., K, D, D]")
        require_same_kind("covariances", covariances, "means", means)
        if covariances.ndim != 3:
            raise InputError(f"covariances have shape {list(covariances.shape)}, wanted [K, D, D]")
    if len(covariances) != len(means):
        raise InputError(f"{len(means)} means and {len(covariances)} covariances; wanted one each")

    def one(k: int) -> Part:
        matrix = covariance_of(covariances[k], means)
        return Part(matrix, ridge * float(np.trace(matrix)) / len(matrix))

    return assemble(means, one, kind, choice)


def from_data(
    x: Tensor,
    labels: Tensor,
    *,
    kind: Kind = "full",
    rank: int | Literal["auto"] | None = None,
    remainder: Literal["variance", "precision"] = "variance",
    explained: float | None = None,
    error: float | None = None,
    ridge: float = 0.0,
    shrinkage: float | Literal["ledoit-wolf"] = 0.0,
) -> Ellipsoids:
    """Fit one ellipsoid to the samples x [N, D] of each label; labels [N] are whole numbers.

    Ellipsoid k belongs to the k-th smallest label. ``ridge`` and ``shrinkage`` as in
    :meth:`Gaussian.from_data <mahalens.geometry.Gaussian.from_data>`, the rest as in
    :func:`from_covariance`. Where samples are fewer than inputs, axes of a given rank come from
    the smaller matrix of their inner products. NumPy arrays will do.
    """
    x = tensor_of("x", x)
    require_tensor("x", x, "[..., N, D]")
    if x.ndim != 2:
        raise InputError(f"x has shape {list(x.shape)}, wanted [N, D]")
    require_finite("x", x)
    x = x.detach()
    estimation.require_added(ridge, shrinkage)
    choice = check_choice(kind, rank, remainder, x.shape[1], explained, error)
    unit = float(estimation.units(x, (-2, -1)))
    if unit != 1 and x.dtype == torch.float64:  # which holds the squares of all float32
        options = {"remainder": remainder, "explained": explained, "error": error, "ridge": ridge}
        made = from_data(
            x / unit,
            labels,
            kind=kind,
            rank=rank,
            shrinkage=shrinkage,
            **options,  # type: ignore[arg-type]
        )
        return made._rescaled(unit)
    groups = _by_label(x, labels)
    means, centred = [], []
    for some in groups:
        mean, rest = estimation.centre(some.double())
        means.append(mean)
        centred.append(rest / (len(some) - 1) ** 0.5)
    stacked = torch.stack(means).to(x.dtype)

    def added(k: int) -> tuple[float, float]:
        """Factor and summand that ridge and shrinkage make of a variance."""
        weight = shrinkage
        if isinstance(weight, str):
            weight = float(estimation.ledoit_wolf_shrinkage(groups[k].double()))
        average = float(centred[k].square().sum()) / x.shape[1]
        return 1 - weight, (weight + ridge) * average

    if choice is not None and kind != "shared-basis":
        found = []
        for k, rows in enumerate(centred):
            with naming(k):
                factor, shift = added(k)
                found.append(axes_of_rows(rows.numpy() * factor**0.5, choice, shift))
        return LowRankEllipsoids(stacked, **pad_axes(found, x.dtype, x.device))

    def one(k: int) -> Part:
        factor, shift = added(k)
        return Part((centred[k].mT @ centred[k] * factor).numpy(), shift)

    if kind == "full":
        require_room(len(groups), x.shape[1], x)
        whitening = x.new_empty(len(groups), x.shape[1], x.shape[1])
        for k, some in enumerate(groups):
            with naming(k):
                _, lower = estimation.estimate(some.double(), ridge=ridge, shrinkage=shrinkage)
                whitening[k] = whitening_matrix(lower, "cholesky")
        return FullEllipsoids(stacked, whitening)
    return assemble(stacked, one, kind, choice)


def from_clusters(
    x: Tensor, count: int, *, seed: int = 0, **options: object
) -> tuple[Ellipsoids, Tensor]:
    """Find ``count`` clusters in x [N, D] by k-means and fit an ellipsoid to each.

    Returns the ellipsoids and the cluster [N] of every sample. ``options`` are those of
    :func:`from_data`.
    """
    from scipy.cluster.vq import kmeans2

    x = tensor_of("x", x)
    require_tensor("x", x, "[..., N, D]")
    require_finite("x", x)
    require_count("count", count)
    if x.ndim != 2 or count > len(x):
        raise InputError(
            f"{count} clusters in x of shape {list(x.shape)}; wanted [N, D] with at least as many "
            "samples as clusters"
        )
    samples = (x.detach() / estimation.units(x, (-2, -1))).cpu().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty clusters, which are refused below
        centres, labels = kmeans2(samples, count, iter=1, minit="++", rng=seed)
        for _ in range(KMEANS_ROUNDS):
            before = labels
            centres, labels = kmeans2(samples, centres, iter=KMEANS_STEPS, minit="matrix")
            if np.array_equal(before, labels):
                break
    sizes = np.bincount(labels, minlength=count)
    if sizes.min() < 2:
        raise InputError(
            f"{count} clusters in {len(x)} samples leave a cluster with {sizes.min()}; ask for "
            "fewer clusters or give another seed"
        )
    found = torch.from_numpy(labels.astype(np.int64))
    return from_data(x, found, **options), found  # type: ignore[arg-type]


def concatenate(parts: Sequence[Ellipsoids]) -> Ellipsoids:
    """Put ellipsoids of one kind after each other, as ``torch.cat`` does.

    >>> from mahalens.geometry import SphericalEllipsoids
    >>> one = SphericalEllipsoids(torch.zeros(1, 2), torch.ones(1))
    >>> len(concatenate([one, one, one]))
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
    """Keep the ``rank`` longest axes of each ellipsoid, and one spread for all other directions.

    ``remainder="variance"`` gives them their mean variance, which keeps the distance of the
    ellipsoid's own points right on average; ``"precision"`` the inverse of their mean precision,
    right on average for points that lie in any direction; ``None`` drops them, as source 002
    does. Ranks as in :func:`from_covariance`.
    """
    choice = RankChoice.of(rank, remainder, ellipsoids.dim, explained, error)
    found = []
    for k in range(len(ellipsoids)):
        with naming(k):
            whitening = ellipsoids.whitening[k].detach().double()
            identity = torch.eye(ellipsoids.dim, dtype=torch.float64, device=whitening.device)
            factor = torch.linalg.solve_triangular(whitening, identity, upper=False)
            found.append(longest_axes((factor @ factor.mT).cpu().numpy(), choice))
    kind, device = ellipsoids.dtype, ellipsoids.device
    return LowRankEllipsoids(ellipsoids.means, **pad_axes(found, kind, device))


def _by_label(x: Tensor, labels: Tensor) -> list[Tensor]:
    """The samples of each label, by ascending label."""
    labels = whole_tensor_of("labels", labels)
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"labels are {given}, wanted a tensor of whole numbers")
    if labels.shape != x.shape[:1]:
        raise InputError(
            f"labels have shape {list(labels.shape)} and x {list(x.shape)}; wanted one label for "
            "each sample"
        )
    values, sizes = labels.unique(return_counts=True)
    if int(sizes.min()) < 2:
        lone = int(values[sizes.argmin()])
        raise InputError(
            f"label {lone} has 1 sample, wanted at least 2 of each to see any spread; drop it or "
            "join it to another"
        )
    return [x[labels == value] for value in values]
