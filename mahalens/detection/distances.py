"""Detectors by distance: to Gaussians, in units of their spread, and to the nearest samples."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from mahalens.detection.base import CONSTANT, Detector
from mahalens.detection.known import (
    Known,
    Moments,
    Wanted,
    betas_of,
    blocks,
    is_number,
    precision_for,
    root,
    scaled,
    square_distances,
)
from mahalens.errors import InputError
from mahalens.geometry._checks import count_of


class _Gaussian(Detector):
    """Base of the distance family: normalisation, shrinkage and rank of a covariance."""

    beta: Tensor
    centre: Tensor

    def __init__(
        self,
        *,
        normalise: str | float = "auto",
        shrinkage: str | float = "auto",
        rank: int | None = None,
    ) -> None:
        betas = betas_of(normalise)
        if shrinkage != "auto" and not (is_number(shrinkage) and 0 <= float(shrinkage) <= 1):
            raise InputError(
                f'shrinkage is {shrinkage!r}; give "auto" or a share from 0 (none) to 1 (a sphere)'
            )
        if rank is not None and (not is_number(rank) or rank < 1 or rank != int(rank)):
            raise InputError(f"rank is {rank!r}; give a whole number of at least 1, or None")
        super().__init__(
            normalise=normalise if isinstance(normalise, str) else float(normalise),
            shrinkage=shrinkage if isinstance(shrinkage, str) else float(shrinkage),
            rank=None if rank is None else int(rank),
        )
        self._betas = betas

    @property
    def wanted(self) -> Wanted:
        """Moments, and a sample if a normalisation is to be chosen."""
        return Wanted(self._betas, sample=len(self._betas) > 1)

    def settle(self, known: Known) -> None:
        """Choose the normalisation, and set the rest for it."""
        beta = choose_beta(known, self._betas)
        moments = known.moments[beta]
        spread = float(moments.covariance.diagonal().sum())
        if not spread + float(moments.between.diagonal().sum()) > 0:
            raise InputError(CONSTANT)
        self.remember(beta=torch.tensor(beta, dtype=known.dtype, device=known.device))
        self.settle_for(known, moments)

    def settle_for(self, known: Known, moments: Moments) -> None:
        """Set the buffers from the moments of normalised features."""
        raise NotImplementedError

    def covariance_of(self, sample: Tensor, count: int) -> Tensor:
        """Return a covariance [D, D] with the rank and shrinkage of this detector."""
        return regularised(sample, count, self.options["shrinkage"], self.options["rank"])

    def centred(self, z: Tensor) -> Tensor:
        """Return normalised features about the centre [N, D], in the detector's precision."""
        return scaled(z.to(self.centre.dtype), self.beta) - self.centre

    def set_precisely(self, known: Known, largest: float, **buffers: Tensor) -> None:
        """Set buffers, in float64 if classes are tight: squared lengths then need its digits.

        ``largest`` is the largest squared length of a class mean in units of the spread, in which
        known samples have a squared distance of about D. Scores are in the features' precision.
        """
        dtype = precision_for(known.dtype, largest, known.width)
        self.remember(**{name: value.to(dtype) for name, value in buffers.items()})


class Mahalanobis(_Gaussian):
    """Distance to the nearest class mean, with one covariance for all classes.

    With class means μ_c and the covariance Σ within classes, N samples in all::

        score(z) = min_c √((z − μ_c)ᵀ Σ⁻¹ (z − μ_c))        Σ = Σ_c Σ_i (z_i − μ_c)(z_i − μ_c)ᵀ / N

    ``normalise``: features are replaced by ``z / ‖z‖^β``. Features of networks differ in length
    more than Gaussians do, and what is short is near every mean: "unit" (β = 1) repairs it.
    "none" is β = 0, and "auto" takes of 0, 0.5 and 1 the one for which the distances of known
    samples to their class vary least, relative to their mean, as those of Gaussians hardly do.

    ``shrinkage``: with the mean variance m = tr Σ / D, the covariance becomes
    ``(1 − a) Σ + a m I``; "auto" is the oracle-approximating a (Chen et al. 2010), as
    scikit-learn's ``OAS``. ``rank``: R axes with the largest variance, and one variance, the
    average, for all others. Where Σ is singular, a small multiple of m I is added.

    Lee et al. 2018, *A Simple Unified Framework for Detecting Out-of-Distribution Samples*;
    Mueller and Hein 2025, *Mahalanobis++* (β = 1), arXiv 2505.18032; β between: arXiv 2510.15202.

    Shapes: features ``[N, D]`` to scores ``[N]``.

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(400) % 2 * 7
    >>> z[y == 7] += 10
    >>> detector = Mahalanobis(normalise="none").fit_features(z, y)
    >>> detector.explain_features([[10.0, 10.0, 10.0], [2.0, 2.0, 2.0]]).label.tolist()
    [7, 0]
    >>> detector.reject_features([[10.0, 10.0, 10.0], [5.0, 5.0, 5.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "mahalanobis"
    whitening: Tensor
    means: Tensor

    def settle_for(self, known: Known, moments: Moments) -> None:
        """Set the whitening and the whitened class means."""
        whitening = whitening_of(self.covariance_of(moments.covariance, moments.count), known.dtype)
        self._set(known, moments.mean, whitening, (moments.means - moments.mean) @ whitening)

    def _set(self, known: Known, centre: Tensor, whitening: Tensor, means: Tensor) -> None:
        largest = float(means.square().sum(1).max())
        self.set_precisely(known, largest, centre=centre, whitening=whitening, means=means)

    def squares(self, z: Tensor) -> Tensor:
        """Return squared distances to all classes [N, C]."""
        white = self.centred(z) @ self.whitening
        return square_distances(white, self.means)

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the smallest distance and the place of its class."""
        del logits
        squares, places = self.squares(z).min(1)
        return root(squares).to(self.beta.dtype), places


class MahaVar(Mahalanobis):
    """Squared distance to the nearest class, less the variance of the distances over classes.

    A known sample is near one class and far from the others, an unknown one about as far from all::

        score(z) = min_c d_c(z)² − weight · Var_c d_c(z)

    with the distances d_c of :class:`Mahalanobis` and the variance over the C classes (divided by
    C). Needs two classes. Kim and Yoon 2026, *MahaVar*, arXiv 2605.14413, add the variance to the
    distance with a weight to be chosen; here it is 1 unless another one is given.

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(400) % 2
    >>> z[y == 1] += 10
    >>> detector = MahaVar(normalise="none").fit_features(z, y)
    >>> detector.reject_features([[10.0, 10.0, 10.0], [5.0, 5.0, 5.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "mahavar"
    needs_classes: int = 2

    def __init__(self, *, weight: float = 1.0, **options: Any) -> None:
        if not is_number(weight) or not math.isfinite(weight):
            raise InputError(f"weight is {weight!r}; give a number, such as 1")
        super().__init__(**options)
        self.options["weight"] = float(weight)

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the score and the place of the nearest class."""
        del logits
        squares = self.squares(z)
        nearest, places = squares.min(1)
        scores = nearest - self.options["weight"] * root(squares).var(1, correction=0)
        return scores.to(self.beta.dtype), places

    def distance(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the distance to the nearest class."""
        del logits
        return root(self.squares(z).amin(1)).to(self.beta.dtype)


class Marginal(Mahalanobis):
    """Distance to the mean of all known samples, in units of their spread; needs no labels.

    With the mean μ and the covariance Σ of all samples, whatever their class::

        score(z) = √((z − μ)ᵀ Σ⁻¹ (z − μ))

    Options as in :class:`Mahalanobis`. The usual distance for outliers in a table.

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> Marginal(normalise="none").fit_features(z).reject_features([[0.0, 0.0, 0.0], [9.0, 9, 9]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "marginal"
    needs_labels: bool = False

    def settle_for(self, known: Known, moments: Moments) -> None:
        """Set the whitening of all samples, and one mean."""
        total = self.covariance_of(moments.covariance + moments.between, moments.count)
        whitening = whitening_of(total, known.dtype)
        self._set(known, moments.mean, whitening, whitening.new_zeros(1, whitening.shape[1]))


class Relative(_Gaussian):
    """Distance to the nearest class relative to the distance to all samples together.

    ::

        score(z) = min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c) − (z − μ)ᵀ Σ₀⁻¹ (z − μ)        Σ₀ = Σ + B

    with μ_c and Σ of :class:`Mahalanobis` and the covariance B of the class means: Σ₀ is the
    covariance of all samples. In directions in which classes do not differ, Σ and Σ₀ agree, and
    the two distances cancel. What is left depends on C − 1 numbers per sample, those that tell
    classes apart, and only these are computed: ``W V`` below, with Σ⁻¹ = W Wᵀ and the singular
    vectors V of the whitened means. Needs two classes.

    Ren et al. 2021, *A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection*, where
    the shrinkage is 0. Options as in :class:`Mahalanobis`.

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(400) % 2
    >>> z[y == 1] += 10
    >>> detector = Relative(normalise="none").fit_features(z, y)
    >>> detector.reject_features([[10.0, 10.0, 10.0], [5.0, 5.0, 5.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "relative"
    needs_classes: int = 2
    projection: Tensor
    means: Tensor
    weights: Tensor

    def settle_for(self, known: Known, moments: Moments) -> None:
        """Set the projection that tells classes apart."""
        whitening = whitening_of(self.covariance_of(moments.covariance, moments.count), known.dtype)
        means = (moments.means - moments.mean) @ whitening
        shares = (moments.counts / moments.counts.sum()).sqrt()
        _, spreads, axes = torch.linalg.svd(shares[:, None] * means, full_matrices=False)
        used = spreads > 1e-6 * spreads[0]
        if not bool(used.any()):
            raise InputError(
                "all classes have the same mean features, so that Relative cannot compare them; "
                "use Mahalanobis, or features of another layer"
            )
        axes, spreads = axes[used].mT, spreads[used]
        self.set_precisely(
            known,
            float(means.square().sum(1).max()),
            centre=moments.mean,
            projection=whitening @ axes,
            means=means @ axes,
            weights=spreads / (1 + spreads.square()).sqrt(),
        )

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the score and the place of the nearest class."""
        del logits
        some = self.centred(z) @ self.projection
        away, places = (self.means.square().sum(1) - 2 * some @ self.means.mT).min(1)
        scores = away + (some * self.weights).square().sum(1)
        return scores.to(self.beta.dtype), places

    def distance(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the distance to the nearest class in the directions that tell classes apart."""
        del logits
        squares = square_distances(self.centred(z) @ self.projection, self.means)
        return root(squares.amin(1)).to(self.beta.dtype)


class ClassGaussians(_Gaussian):
    """The density of the likeliest class, each class with a mean and a covariance of its own.

    ::

        score(z) = min_c (z − μ_c)ᵀ Σ_c⁻¹ (z − μ_c) + log det Σ_c

    which is −2 log of the density up to a constant. Σ_c takes N_c samples of D features; with
    ``shrinkage="auto"`` classes of fewer samples are rounder. Memory is C D² numbers: use
    :class:`LowRank` where that is too much. Options as in :class:`Mahalanobis`.

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(400) % 2
    >>> z[y == 1] = 5 * z[y == 1] + 40
    >>> detector = ClassGaussians(normalise="none").fit_features(z, y)
    >>> detector.reject_features([[45.0, 45.0, 45.0], [5.0, 5.0, 5.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "class-gaussians"
    whitening: Tensor
    means: Tensor
    volumes: Tensor

    @property
    def wanted(self) -> Wanted:
        """Second moments for each class."""
        return super().wanted._replace(per_class=True)

    def settle_for(self, known: Known, moments: Moments) -> None:
        """Set a whitening for each class."""
        counts = moments.counts.tolist()
        floor = _least_variance(moments)
        covariances = [
            self.covariance_of(covariance, round(count))
            if float(covariance.diagonal().mean()) > floor
            else covariance + floor * torch.eye(len(covariance), device=covariance.device)
            for covariance, count in zip(moments.covariances, counts, strict=True)
        ]
        whitening = torch.stack([whitening_of(c, known.dtype) for c in covariances])
        # The whitening is triangular, with 1 / √λ on its diagonal.
        volumes = -2 * whitening.diagonal(dim1=1, dim2=2).log().sum(1)
        means = moments.means - moments.mean
        buffers = {"centre": moments.mean, "whitening": whitening, "means": means}
        self.remember(
            **{name: value.to(known.dtype) for name, value in buffers.items()},
            volumes=volumes.to(known.dtype),
        )

    def squares(self, z: Tensor) -> Tensor:
        """Return squared distances to all classes [N, C]."""
        z = self.centred(z)
        parts = [
            ((z - mean) @ whitening).square().sum(1)
            for mean, whitening in zip(self.means, self.whitening, strict=True)
        ]
        return torch.stack(parts, 1)

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the score and the place of the likeliest class."""
        del logits
        scores, places = (self.squares(z) + self.volumes).min(1)
        return scores.to(self.beta.dtype), places

    def distance(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return the distance to the likeliest class."""
        del logits
        squares = self.squares(z)
        places = (squares + self.volumes).argmin(1, keepdim=True)
        return root(squares.gather(1, places)[:, 0]).to(self.beta.dtype)


class LowRank(ClassGaussians):
    """Class densities with R axes for each class, and one variance for all other directions.

    As :class:`ClassGaussians` with, for the R largest variances λ_r of a class along its axes v_r
    and the average s² of the others::

        Σ_c = Σ_r λ_r v_r v_rᵀ + s² (I − Σ_r v_r v_rᵀ)

    Memory is C R D numbers. Axes come from a sample of the known samples, at most 50,000 rows or
    2²⁵ numbers with as many of each class as possible. Options as in :class:`Mahalanobis`;
    ``rank`` is at most D and the number of samples of a class less one.

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(400) % 2
    >>> z[y == 1] += 10
    >>> detector = LowRank(rank=1, normalise="none").fit_features(z, y)
    >>> detector.reject_features([[10.0, 10.0, 10.0], [5.0, 5.0, 5.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "low-rank"
    axes: Tensor
    spheres: Tensor

    def __init__(self, *, rank: int = 16, **options: Any) -> None:
        super().__init__(rank=rank, **options)

    @property
    def wanted(self) -> Wanted:
        """Moments, and a sample of the rows."""
        return Wanted(self._betas, sample=True)

    def settle_for(self, known: Known, moments: Moments) -> None:
        """Set axes and spreads of each class from the sample."""
        beta, rank = float(self.beta), min(self.options["rank"], known.width)
        floor = _least_variance(moments)
        rows = known.some
        fits = [
            self._class_of(scaled(rows.z[rows.y == c], beta) - moments.mean, rank, floor)
            for c in range(len(known.classes))
        ]
        means, axes, spheres, volumes = (torch.stack(parts) for parts in zip(*fits, strict=True))
        along = (axes @ means[:, :, None]).square().sum((1, 2))
        self.set_precisely(
            known,
            float((means.square().sum(1) * spheres + along).max()),
            centre=moments.mean,
            means=means,
            axes=axes,
            spheres=spheres,
            volumes=volumes,
        )

    def _class_of(self, z: Tensor, rank: int, floor: float) -> tuple[Tensor, ...]:
        """Return mean, scaled axes [R, D], 1 / s² and log det Σ of one class."""
        mean, dim = z.mean(0), z.shape[1]
        _, values, axes = torch.linalg.svd(z - mean, full_matrices=dim == rank)
        variances = z.new_zeros(dim)
        variances[: len(values)] = values.square() / len(z)
        if float(variances.mean()) <= floor:  # a class without spread, such as a single sample
            variances = variances + floor
        rest = variances[rank:].mean() if dim > rank else variances[-1]
        average = variances.mean()
        squares = variances[:rank].square().sum() + (dim - rank) * rest.square()
        share = shrinkage_of(self.options["shrinkage"], average, squares, dim, len(z))
        extra = share * average + 1e-6 * floor
        long, rest = (1 - share) * variances[:rank] + extra, (1 - share) * rest + extra
        axes = torch.cat((axes[:rank], axes.new_zeros(max(0, rank - len(axes)), dim)))
        volume = long.log().sum() + (dim - rank) * rest.log()
        if dim == rank:
            return mean, axes / long.sqrt()[:, None], 0 * rest, volume
        # Along an axis the sphere counts too much, by 1 / s² − 1 / λ.
        excess = (1 / rest - 1 / long).clamp(min=0).sqrt()
        return mean, axes * excess[:, None], 1 / rest, volume

    def squares(self, z: Tensor) -> Tensor:
        """Return squared distances to all classes [N, C]."""
        z = self.centred(z)
        classes, rank, dim = self.axes.shape
        along = (z @ self.axes.reshape(-1, dim).mT).reshape(-1, classes, rank)
        offsets = (self.axes @ self.means[:, :, None])[..., 0]
        along = (along - offsets).square().sum(2)
        if rank == dim:
            return along
        squares = square_distances(z, self.means) * self.spheres - along
        return squares.clamp(min=0)

    @property
    def columns(self) -> int:
        """Projections per sample."""
        return self.axes.shape[0] * self.axes.shape[1]


# --- Covariances ------------------------------------------------------------------------------


def _least_variance(moments: Moments) -> float:
    """Return the mean variance that a class has at least, also if no class has any spread."""
    within, between = (float(c.diagonal().mean()) for c in (moments.covariance, moments.between))
    return 1e-3 * max(within, 1e-6 * between)


def choose_beta(known: Known, betas: tuple[float, ...]) -> float:
    """Return the exponent for which distances of known samples vary least around their mean.

    Squared distances of D-dimensional Gaussian samples to their mean have the relative spread
    √(2 / D). Lengths that vary, or tails, make it larger.
    """
    if len(betas) == 1:
        return betas[0]
    return min(betas, key=lambda beta: _relative_spread(known, beta))


def _relative_spread(known: Known, beta: float) -> float:
    moments = known.moments[beta]
    whitening = whitening_of(
        regularised(moments.covariance, moments.count, "auto", None), known.dtype
    )
    rows = known.some.drawn(5_000)
    away = scaled(rows.z, beta).double() - moments.means[rows.y.to(rows.z.device)]
    squares = (away @ whitening).square().sum(1)
    return float(squares.std() / squares.mean())


def shrinkage_of(
    shrinkage: str | float, average: Tensor, squares: Tensor, dim: int, count: int
) -> float:
    """Return the weight of the sphere, for a covariance S of N samples.

    "auto" is the oracle-approximating one: with m = tr S / D and q = tr S² / D²,
    ``a = (q + m²) / ((N + 1) (q − m² / D))``, at most 1.

    Args:
        shrinkage: the option.
        average: m.
        squares: tr S².
        dim: D.
        count: N.
    """
    if shrinkage != "auto":
        return float(shrinkage)
    q, m2 = float(squares) / dim**2, float(average) * float(average)
    if not (math.isfinite(q) and math.isfinite(m2)):
        raise InputError(
            "variances of the features are too large to square; divide the features by a constant"
        )
    below = (count + 1) * (q - m2 / dim)
    return 1.0 if below <= 0 else min(1.0, (q + m2) / below)


def regularised(sample: Tensor, count: int, shrinkage: str | float, rank: int | None) -> Tensor:
    """Return a sample covariance [D, D] of N samples with the given rank and shrinkage."""
    dim = len(sample)
    average = sample.diagonal().mean()
    share = shrinkage_of(shrinkage, average, sample.square().sum(), dim, count)
    identity = torch.eye(dim, dtype=sample.dtype, device=sample.device)
    if rank is not None and rank < dim:
        values, axes = torch.linalg.eigh(sample)
        rest = values[: dim - rank].mean()
        axes, values = axes[:, dim - rank :], values[dim - rank :]
        sample = (axes * (values - rest)) @ axes.mT + rest * identity
    return (1 - share) * sample + share * average * identity


def whitening_of(covariance: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the upper triangular W [D, D] with ``W Wᵀ = Σ⁻¹``; ``z W`` then has covariance I.

    Where Σ is singular to the precision of the data, the smallest of 1e-9, 1e-8, ... times its mean
    variance that repairs it is added to the diagonal.
    """
    average = float(covariance.diagonal().mean())
    average = average if average > 0 else 1.0
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    least = 10 * torch.finfo(dtype).eps * float(covariance.diagonal().max())
    for ridge in (0.0, *(10.0**power for power in range(-9, 1))):
        factor, fault = torch.linalg.cholesky_ex(covariance + ridge * average * identity)
        if not int(fault) and float(factor.diagonal().min()) ** 2 > least:
            break
    whitening: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False).mT
    return whitening


class Neighbours(Detector):
    """Distance to the k-th nearest known sample, of features of length 1; needs no labels.

    ::

        score(z) = ‖z′ − z′_(k)‖        z′ = z / ‖z‖^β

    where z_(k) is the k-th nearest of the remembered samples: all of them, or a random subset of
    at most 50,000 rows or 2²⁵ numbers with as many of each class as possible. The nearest class is
    that of the nearest sample. Scoring costs a product with all remembered samples.

    Sun et al. 2022, *Out-of-Distribution Detection with Deep Nearest Neighbors*: β = 1, k = 50.

    Args:
        k: which neighbour counts; the last one, if fewer are remembered.
        normalise: "unit", "none" or β. "auto" is "unit".

    >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> detector = Neighbours(k=5, normalise="none").fit_features(z)
    >>> detector.reject_features([[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    tensor([False,  True])
    """

    method: ClassVar[str] = "neighbours"
    needs_labels: bool = False
    beta: Tensor
    centre: Tensor
    rows: Tensor
    places: Tensor

    def __init__(self, *, k: int = 50, normalise: str | float = "unit") -> None:
        self._beta = betas_of(normalise)[-1]
        named = normalise if isinstance(normalise, str) else float(normalise)
        super().__init__(k=count_of("k", k), normalise=named)

    @property
    def wanted(self) -> Wanted:
        """A sample of the rows."""
        return Wanted(sample=True)

    def settle(self, known: Known) -> None:
        """Remember the normalised rows about their mean, and their classes."""
        z = known.some.z
        parts = list(blocks(*z.shape))
        beta = torch.tensor(self._beta, dtype=known.dtype, device=known.device)
        self.remember(beta=beta, places=known.some.y.to(known.device))
        total = torch.zeros(z.shape[1], dtype=torch.float64, device=z.device)
        for some in parts:
            total += self._normalised(z[some]).sum(0)
        self.remember(centre=total / len(z))
        rows = torch.empty_like(z)
        for some in parts:
            rows[some] = (self._normalised(z[some]) - self.centre).to(rows.dtype)
        if self._precision(rows) != rows.dtype:
            rows = torch.cat([self._normalised(z[some]) - self.centre for some in parts])
        self.remember(rows=rows)

    def _normalised(self, z: Tensor) -> Tensor:
        return scaled(z.double(), self.beta.double())

    def _precision(self, rows: Tensor) -> torch.dtype:
        """Return the precision in which neighbours of a few rows can be told apart."""
        if rows.dtype == torch.float64:
            return rows.dtype
        step = max(1, len(rows) // 16)
        # Differences themselves: slow, and exact however near the rows are.
        distances = torch.cdist(
            rows[::step], rows, compute_mode="donot_use_mm_for_euclid_dist"
        ).double()
        last = min(self.options["k"] + 1, len(rows))  # a row is its own first neighbour
        nearest = distances.kthvalue(last, dim=1).values
        nearest = nearest[nearest > 0]
        if not len(nearest):
            return rows.dtype
        largest = float(rows.square().sum(1).max())
        return precision_for(rows.dtype, largest, float(nearest.median()) ** 2, 1e-3)

    def forward(self, z: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the distance to the k-th neighbour, and the class of the nearest."""
        del logits
        z = self._normalised(z)
        if "centre" in self._buffers:  # files of earlier versions have none
            z = z - self.centre
        z = z.to(self.rows.dtype)
        k = min(self.options["k"], len(self.rows))
        order = square_distances(z, self.rows).topk(k, dim=1, largest=False, sorted=True).indices
        away = z - self.rows[order[:, -1]]
        return root(away.square().sum(1)).to(self.beta.dtype), self.places[order[:, 0]]

    @property
    def columns(self) -> int:
        """One distance per remembered sample."""
        return len(self.rows)
