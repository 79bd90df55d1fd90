"""Closed forms of the distance layers: prototypes and spreads straight from labelled features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.geometry.checks import dtype_name, require_finite, tensor_of, whole_tensor_of
from mahalens.geometry.ellipsoids import (
    DiagonalEllipsoids,
    LowRankEllipsoids,
    SphericalEllipsoids,
    from_data,
)

if TYPE_CHECKING:
    from mahalens.nn.mahalanobis import Mahalanobis
    from mahalens.nn.offset_l2 import OffsetL2

SMALLER = 0.5
"""How much smaller than the shortest axis the remainder is put where nothing remains."""


def plain_features(
    features: Tensor,
    inputs: int | None,
    owner: str = "DistanceHead",
    least: int = 1,
    like: Tensor | None = None,
) -> Tensor:
    """Ask for finite features [N, D], N at least 1 or 0, of the width of ``owner``, if any.

    NumPy arrays become tensors, of the dtype and device of ``like``.
    """
    features = tensor_of("features", features, like)
    wanted = inputs or "D"
    if not isinstance(features, Tensor) or not features.is_floating_point():
        given = type(features).__name__
        if isinstance(features, Tensor):
            given = f"tensor of {dtype_name(features.dtype)}"
        raise InputError(f"features are a {given}, wanted a tensor of floats [N, {wanted}]")
    if (
        features.ndim != 2
        or len(features) < least
        or not features.shape[1]
        or features.shape[1] != (inputs or features.shape[1])
    ):
        flat = features.ndim > 2 and features.shape[-1] == (inputs or features.shape[-1])
        raise InputError(
            f"{owner} of {wanted} inputs was given features of shape {tuple(features.shape)}; "
            f"give [N, {wanted}]{' with N at least 1' * least}"
            f"{', as by features.flatten(0, -2)' * flat}"
        )
    require_finite("features", features)
    return features


def plain_labels(y: Tensor, samples: int, classes: int | None) -> Tensor:
    """Ask for one label from 0 to C - 1 for each sample; gives them as int64."""
    y = whole_tensor_of("labels", y)
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex():
        given = dtype_name(y.dtype) if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"labels are {given}, wanted a tensor of whole numbers [{samples}]")
    if tuple(y.shape) != (samples,):
        raise InputError(
            f"labels have shape {tuple(y.shape)} for {samples} samples; give one label for each"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or (classes is not None and high >= classes):
        wanted = "at least 0" if classes is None else f"from 0 to {classes - 1}"
        bad = low if low < 0 else high
        raise InputError(f"label {bad} is not one of the classes; labels are {wanted}")
    return y.long()


def labelled(
    x: Tensor,
    y: Tensor,
    classes: int | None = None,
    inputs: int | None = None,
    owner: str = "DistanceHead",
) -> tuple[Tensor, Tensor, int]:
    """Give features and labels on the CPU, in float64, fit to see the spread of every class.

    Every class must have 2 samples or more, not all of them the same.
    """
    features = plain_features(x, inputs, owner).detach().cpu().double()
    labels = plain_labels(y, len(features), classes).cpu()
    sizes = torch.bincount(labels, minlength=classes or 0)
    if int(sizes.min()) < 2:
        lone = int(sizes.argmin())
        count = int(sizes[lone])
        raise InputError(
            f"class {lone} of {len(sizes)} has {count or 'no'} sample{'s' * (not count)}, wanted "
            "at least 2 of each to see its spread; give more, or number the classes without it"
        )
    for k in range(len(sizes)):
        some = features[labels == k]
        if bool((some == some[0]).all()):
            raise SingularCovarianceError(
                f"class {k} has {len(some)} samples that are all the same, so it has no spread to "
                "measure distances in; give features that vary, or leave the class out"
            )
    return features, labels, len(sizes)


@torch.no_grad()
def fit_mahalanobis(
    layer: Mahalanobis, x: Tensor, y: Tensor, *, ridge: float, shrinkage: float | str = 0.0
) -> None:
    """Set the ellipsoids of a layer to those of labelled features, as :func:`labelled` gives them.

    Axes and remainder come from :func:`mahalens.geometry.ellipsoids.from_data`, where no spread is
    below the remainder: ``b_r = v_r √(spread_r² − remainder²)`` gives the very same ellipsoid. With
    as many axes as inputs nothing remains, and s is put at half the shortest spread: any value
    below it gives the same distances, and leaves every axis free to learn.
    """
    found, means = _ellipsoids(
        x, y, "low-rank+remainder", layer.shared, rank=layer.rank, ridge=ridge, shrinkage=shrinkage
    )
    assert isinstance(found, LowRankEllipsoids)
    assert found.remainder is not None
    rest = found.remainder[:, None]
    if layer.rank == layer.inputs:
        rest = SMALLER * found.spreads[:, -1:]
    lengths = (found.spreads.square() - rest.square()).clamp(min=0).sqrt()
    set_all(
        (layer.mu, means),
        (layer.axes, found.axes * lengths[..., None]),
        (layer.log_spread, rest.log()),
    )


@torch.no_grad()
def fit_offset_l2(
    layer: OffsetL2, x: Tensor, y: Tensor, *, diagonal: bool, ridge: float, shrinkage: float | str
) -> None:
    """Set prototypes to class means and scales to 1 / spread.

    ``diagonal``: a spread per class and input; else one for all, pooled within classes.
    """
    kind = "diagonal" if diagonal else "spherical"
    found, means = _ellipsoids(x, y, kind, not diagonal, ridge=ridge, shrinkage=shrinkage)
    assert isinstance(found, DiagonalEllipsoids | SphericalEllipsoids)
    spreads = found.spreads if diagonal else found.spreads[:, None]
    set_all((layer.mu, means), (layer.alpha, spreads.reciprocal()))


def set_all(*values: tuple[Tensor, Tensor]) -> None:
    """Copy each second tensor into the first, if all are numbers of its dtype; else none."""
    made = [(old, new.to(old.device, old.dtype).expand_as(old)) for old, new in values]
    if not all(bool(new.isfinite().all()) for _, new in made):
        raise InputError(
            f"the spreads or means of these features are too small or too large for "
            f"{dtype_name(made[0][0].dtype)}; scale the features, or take a wider dtype"
        )
    for old, new in made:
        old.copy_(new)


def _ellipsoids(
    x: Tensor, y: Tensor, kind: str, shared: bool, **options: object
) -> tuple[object, Tensor]:
    """Fit one ellipsoid per class, or a single one around all class means, and give the means."""
    for name, kinds in (("ridge", Real), ("shrinkage", Real | str)):
        if not isinstance(options[name], kinds):
            raise InputError(f"{name} is {options[name]!r}, wanted a number of at least 0")
    if not shared:
        with _naming_classes():
            found = from_data(x, y, kind=kind, **options)  # type: ignore[arg-type]
        return found, found.means
    classes = int(y.max()) + 1
    means = torch.stack([x[y == k].mean(0) for k in range(classes)])
    # from_data divides by N - 1, but C means have been taken off.
    factor = ((len(x) - 1) / (len(x) - classes)) ** 0.5
    rest = (x - means[y]) * factor
    with _naming_classes():
        return from_data(rest, torch.zeros_like(y), kind=kind, **options), means  # type: ignore[arg-type]


@contextmanager
def _naming_classes() -> Iterator[None]:
    """Let errors speak of classes, which ellipsoids stand for here."""
    try:
        yield
    except InputError as error:
        raise type(error)(str(error).replace("ellipsoid ", "class ")) from None
