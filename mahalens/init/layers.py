"""Starting weights of one layer, set in place, from the data that the layer is fed.

Every function takes an ``nn.Linear``, a convolution (its rows are patches; each group is started by
itself), or a ``PointSlope``, ``OffsetL2``, ``Mahalanobis`` or ``DistanceHead`` of this package (see
:mod:`mahalens.init.ellipsoids` for what a start means to the last two). It checks and computes
everything before it changes anything, keeps dtype, device and ``requires_grad``, and returns the
layer.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.init.methods import (
    METHODS,
    check_fit,
    check_generator,
    check_options,
    labels_for,
    start_layer,
)
from mahalens.init.rows import ROWS, rows_of

M = TypeVar("M", bound=nn.Module)


def kaiming_(layer: M, *, generator: torch.Generator | None = None) -> M:
    """Draw Kaiming-normal rows: ``w ~ N(0, 2/D)`` and ``b = 0`` (He et al. 2015).

    The usual start that looks at no data. An ``OffsetL2`` is drawn as it draws itself.
    """
    return _start(layer, "kaiming", None, None, None, generator, {})


def sample_point_bias_(
    layer: M, x: Tensor, *, rows: int | None = ROWS, generator: torch.Generator | None = None
) -> M:
    """Draw Kaiming-normal rows and put each hyperplane through a random sample (source 000).

    ``w ~ N(0, 2/D)`` and ``b = -w·x_s``. For ``OffsetL2`` the samples are the prototypes.

    Args:
        layer: the layer to start.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default.
    """
    return _start(layer, "sample_point_bias", x, None, rows, generator, {})


def whiten_(
    layer: M,
    x: Tensor,
    *,
    kind: str = "pca",
    rank: int | None = None,
    mirror: bool = False,
    rows: int | None = ROWS,
    generator: torch.Generator | None = None,
) -> M:
    """Whiten the whole input: ``W Σ Wᵀ = I`` and ``b = -W μ``, mean and covariance of the rows.

    With R axes along which the rows vary, λ₁ ≥ ... ≥ λ_R, and K units:

    - K ≤ R: row k is ``λₖ^(-1/2) vₖ``, the leading axes;
    - K > R: all R, then copies ``Q W`` of them, each with an orthogonal ``Q`` of its own drawn at
      random, the last one cut to fit. Every copy is a whitening again.

    An input that is constant gets the weight 0.

    Args:
        layer: the layer to start; it needs a bias.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        kind: ``pca``, or ``zca`` for ``V Λ^(-1/2) Vᵀ``, which needs K ≥ D and spread in every
            direction.
        rank: use only so many leading axes, and copies of these.
        mirror: units in pairs w, -w, which together are an absolute value behind ReLU.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default. Drawn from only for copies.

    Example:
        >>> x = torch.randn(100, 3) @ torch.randn(3, 3)
        >>> z = whiten_(nn.Linear(3, 2), x)(x)
        >>> torch.allclose(torch.cov(z.T), torch.eye(2), atol=1e-3)
        True
    """
    # What is usual is not an option given, which prototypes would have none for.
    options = {"kind": None if kind == "pca" else kind, "rank": rank, "mirror": mirror}
    return _start(layer, "whiten", x, None, rows, generator, options)


def cluster_pca_(
    layer: M,
    x: Tensor,
    y: Tensor | None = None,
    *,
    clusters: int | None = None,
    axes: int | None = None,
    mirror: bool = False,
    rows: int | None = ROWS,
    generator: torch.Generator | None = None,
) -> M:
    """Put hyperplanes through the means of clusters, across their principal axes.

    Clusters are found by k-means. The unit of axis a of cluster c, with mean μ_c and covariance
    Σ_c = V Λ Vᵀ of its rows, is ``w = λₐ^(-1/2) vₐ`` and ``b = -w·μ_c``: ``|w·x + b|`` is the
    distance from the cluster along that axis, in spreads (arXiv 2410.19352). Units are dealt out:
    the first axis of every cluster, the largest first, then the second of every one, and so on.
    A cluster that runs out of axes with spread is passed over.

    For ``OffsetL2`` there are as many clusters as units: their means are the prototypes, with
    scales that make the mean square distance within a cluster 1.

    Args:
        layer: the layer to start; it needs a bias.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        y: classes ``[N]`` to take as the clusters, in the place of k-means.
        clusters: how many; by default ``√K``, more where the rows have too few axes.
        axes: how many of each at most; by default as many as it takes.
        mirror: units in pairs w, -w, which together are an absolute value behind ReLU.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default. The seed of k-means is drawn from it.

    Example:
        >>> x = torch.cat([torch.randn(50, 2) - 5, torch.randn(50, 2) + 5])
        >>> layer = cluster_pca_(nn.Linear(2, 4), x, clusters=2)
        >>> means = torch.stack([x[:50].mean(0), x[50:].mean(0)])
        >>> (layer(means).abs() < 1e-3).sum(1)  # each cluster has two units that are zero there
        tensor([2, 2])
    """
    options: dict[str, Any] = {"clusters": clusters, "axes": axes, "mirror": mirror}
    return _start(layer, "cluster_pca", x, y, rows, generator, options)


def class_mean_(
    layer: M,
    x: Tensor,
    y: Tensor,
    *,
    rows: int | None = ROWS,
    generator: torch.Generator | None = None,
) -> M:
    """Draw Kaiming-normal rows and put unit k through the mean of class k.

    ``w ~ N(0, 2/D)`` and ``b = -w·μ_c``; with more units than classes these begin again. For
    ``OffsetL2`` the means are the prototypes, with scales that make the mean square distance
    within a class 1; a class with several units is divided into as many clusters.

    Args:
        layer: the layer to start; it needs a bias.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        y: classes ``[N]``, at least two samples of each.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default.
    """
    return _start(layer, "class_mean", x, y, rows, generator, {})


def lsuv_(
    layer: M, x: Tensor, *, rows: int | None = ROWS, generator: torch.Generator | None = None
) -> M:
    """Orthonormal rows, scaled so that the outputs have variance 1; ``b = 0``.

    One layer of LSUV (Mishkin & Matas, "All you need is a good init", 2016): rows orthonormal
    (columns, if K > D), divided by the standard deviation of all outputs of all units on the
    data. :func:`initialise` goes through a network layer by layer.

    Args:
        layer: the layer to start.
        x: what it is fed, ``[N, D]``, or ``[N, channels, *size]`` for a convolution.
        rows: how many rows are used at most, drawn at random; None for all.
        generator: of the CPU; the global one by default.
    """
    return _start(layer, "lsuv", x, None, rows, generator, {})


def _start(
    layer: M,
    name: str,
    x: Tensor | None,
    y: Tensor | None,
    limit: int | None,
    generator: torch.Generator | None,
    options: dict[str, Any],
) -> M:
    method = METHODS[name]
    fit = check_fit(method, layer)
    check_generator(generator)
    # What was left at its default is not asked of layers that do not know it.
    given = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    check_options(method, given, fit)
    if method.data and labels_for(method, fit) == "needed" and y is None:
        if method.labels == "unused":
            raise InputError(
                f"{type(layer).__name__} has a prototype for each class, so that {name} wants the "
                f"classes too; take initialise(layer, (x, y), {name!r})"
            )
        raise InputError(f"{name} wants the classes y of the samples, but y is None")
    rows = None if x is None else rows_of(fit, x, y, limit)
    start_layer(fit, method, rows, generator, given)
    return layer
