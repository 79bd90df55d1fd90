"""Distances to classes in units of their spreads: the layer and its closed form."""

from __future__ import annotations

import copy
from numbers import Real

import torch
from torch import Tensor, nn

from mahalens.errors import InputError, SingularCovarianceError
from mahalens.geometry._checks import (
    dtype_name,
    labels_of,
    require_finite,
    tensor_of,
    without_autocast,
)
from mahalens.geometry.ellipsoids import Ellipsoids, LowRankEllipsoids, from_covariance, from_data
from mahalens.nn.layers import (
    is_exporting,
    is_whole,
    require_known,
    require_parameters,
    require_sizes,
    require_width,
    root,
    set_parameters,
    weighted_squares,
)

REMAINDERS = ("spherical", "diagonal")
REST_SHARE = 0.5
"""Share of the shortest spread that is left to the remainder where no direction remains."""

_TILE = 2**22  # differences held at once where no gradient is wanted


class Mahalanobis(nn.Module):
    """Distances to C classes, each with a low-rank ellipsoid of its own, all of it learned.

    A class has a prototype ``mu``, R rows ``axes`` and a spread ``s = exp(log_spread)`` in every
    direction, which together are the covariance of a factor model, and a distance in it::

        Σ_c = diag(s_c²) + B_cᵀ B_c             B_c = axes of the class [R, D]
        d_c(x) = √((x − μ_c)ᵀ Σ_c⁻¹ (x − μ_c))

    Σ_c is positive definite whatever the parameters are, so nothing constrains their training.
    Where the rows of B are at right angles, they are the long axes of the ellipsoid, with variance
    ``s² + ‖b_r‖²``, and s is the remainder of :class:`~mahalens.geometry.LowRankEllipsoids`.

    The inverse is never made. With ``ξ = (x − μ) / s`` and ``U = B / s``::

        d² = min_z ‖ξ − Uᵀz‖² + ‖z‖²            (I + UUᵀ) z = Uξ

    which takes one R × R factor per class, and is a sum of squares: no digits are lost near a
    prototype. Along an axis k times as long as s, the distance is exact to about k times the
    rounding of its dtype, no worse than the rounding of x itself there. At distance 0 the gradient
    is defined as 0, as in :class:`~mahalens.nn.Norm`. Half precision is computed in float32, also
    under ``torch.autocast``.

    Training holds ``[C, N, D]`` differences, and takes ``N C R D`` steps. Where the ellipsoid is
    shared neither is so: samples and prototypes are whitened once, by ``x ↦ (ξ − Uᵀz, z)``, and
    what is left are the plain distances of :class:`OffsetL2`.

    ``mu`` starts at N(0, 0.1²), s at 1, and axes at N(0, 1/D): twice the variance along each. A row
    of exactly 0 would get no gradient. :meth:`from_data` starts from the data instead.

    Args:
        inputs: D.
        classes: C.
        rank: R, how many axes each class has; from 1 to D.
        remainder: "spherical", one s for all directions of a class, or "diagonal", one per input.
        shared: whether all classes have the same axes and spreads (but prototypes of their own).
        squared: whether to give d² instead of d.

    Shapes: ``[..., D]`` to ``[..., C]``. ``mu`` ``[C, D]``, ``axes`` ``[C, R, D]``, ``log_spread``
    ``[C, 1]`` or ``[C, D]``; the last two with 1 in place of C if shared.

    >>> layer = Mahalanobis(3, 1, 1)
    >>> axis = torch.tensor([[[3.0**0.5, 0.0, 0.0]]])  # spread √(1 + 3) = 2 along the first input
    >>> state = {"mu": torch.zeros(1, 3), "axes": axis, "log_spread": torch.zeros(1, 1)}
    >>> _ = layer.load_state_dict(state)
    >>> layer(torch.tensor([[4.0, 0.0, 0.0], [0.0, 3.0, 4.0]])).tolist()
    [[2.0], [5.0]]
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        rank: int,
        *,
        remainder: str = "spherical",
        shared: bool = False,
        squared: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("Mahalanobis", inputs=inputs, classes=classes)
        if not is_whole(rank) or not 1 <= rank <= inputs:
            raise InputError(
                f"Mahalanobis of rank {rank} on {inputs} inputs; give a rank from 1 to {inputs}"
            )
        shapes = 1 if shared else classes
        size = inputs * (classes + shapes * (rank + 1))
        require_parameters(f"Mahalanobis({inputs}, {classes}, {rank})", size, device, dtype)
        require_known("Mahalanobis", "remainder", remainder, REMAINDERS)
        self.inputs = inputs = int(inputs)
        self.classes = classes = int(classes)
        self.rank = rank = int(rank)
        self.remainder = remainder
        self.shared = shared
        self.squared = squared
        wide = inputs if remainder == "diagonal" else 1
        self.mu = nn.Parameter(torch.empty(classes, inputs, device=device, dtype=dtype))
        self.axes = nn.Parameter(torch.empty(shapes, rank, inputs, device=device, dtype=dtype))
        self.log_spread = nn.Parameter(torch.empty(shapes, wide, device=device, dtype=dtype))
        self.reset_parameters()

    @classmethod
    def from_data(
        cls,
        x: Tensor,
        y: Tensor,
        *,
        rank: int,
        classes: int | None = None,
        remainder: str = "spherical",
        shared: bool = False,
        squared: bool = False,
        ridge: float = 0.0,
        shrinkage: float | str = 0.0,
    ) -> Mahalanobis:
        """Make a layer whose ellipsoids are those of the samples x [N, D] of each class y [N].

        In closed form: class means, the R longest axes of each class covariance, and the mean
        variance of the rest as s²; if ``shared``, of the pooled covariance within classes. See
        :func:`mahalens.geometry.ellipsoids.from_data` for ``ridge`` and ``shrinkage``. Labels are
        0 to C − 1, each with 2 samples or more; ``classes`` is the largest + 1 if not given.

        >>> x = torch.tensor([[0.0, 0.0], [2.0, 2.0], [0.0, 2.0], [2.0, 0.0]])
        >>> Mahalanobis.from_data(x, torch.zeros(4, dtype=torch.long), rank=1).mu.tolist()
        [[1.0, 1.0]]
        """
        x = tensor_of("features", x)
        features, labels, classes = check_labelled(x, y, classes, owner="Mahalanobis")
        layer = cls(
            features.shape[1],
            classes,
            rank,
            remainder=remainder,
            shared=shared,
            squared=squared,
            device=x.device,
            dtype=x.dtype,
        )
        fit_mahalanobis(layer, features, labels, ridge=ridge, shrinkage=shrinkage)
        return layer

    def reset_parameters(self) -> None:
        """Draw prototypes and axes anew and set every spread to 1."""
        nn.init.normal_(self.mu, std=0.1)
        nn.init.normal_(self.axes, std=self.inputs**-0.5)
        nn.init.zeros_(self.log_spread)

    def forward(self, x: Tensor) -> Tensor:
        """Return the distance of each sample to each class."""
        squares = self._exact_squares(x, _TILE)
        # The root first: squares of distances above 255 are no numbers of float16.
        return (squares if self.squared else root(squares)).to(self._dtype(x))

    def squares(self, x: Tensor, *, tile: int = _TILE) -> Tensor:
        """Return the squared distances, whatever ``squared`` says: [..., D] to [..., C].

        Where no gradient is wanted, about ``tile`` differences are held at once.
        """
        return self._exact_squares(x, tile).to(self._dtype(x))

    def _dtype(self, x: Tensor) -> torch.dtype:
        return torch.promote_types(x.dtype, self.mu.dtype)

    def _exact_squares(self, x: Tensor, tile: int) -> Tensor:
        """Return the squared distances in float32 at least."""
        require_width("Mahalanobis", x, self.inputs)
        exact = torch.promote_types(self._dtype(x), torch.float32)
        flat = x.reshape(-1, self.inputs).to(exact)
        scale, rows, factor = self._factor(exact)
        with without_autocast(x.device.type):
            mu = self.mu.to(exact)
            if self.shared:
                squares = _shared_squares(flat, mu, scale, rows[0], factor[0])
            else:
                squares = _squares(flat, mu, scale, rows, factor, tile)
        return squares.reshape(*x.shape[:-1], self.classes)

    @property
    def covariances(self) -> Tensor:
        """Σ_c [C, D, D]."""
        variances = (2 * self.log_spread).exp().expand(-1, self.inputs)
        with without_autocast(self.axes.device.type):
            covariances = torch.diag_embed(variances) + self.axes.mT @ self.axes
        return covariances.expand(self.classes, -1, -1)

    @property
    def log_determinants(self) -> Tensor:
        """log det Σ_c [C], from R × R factors: ``Σᵢ log sᵢ² + log det(I + UUᵀ)``."""
        exact = torch.promote_types(self.mu.dtype, torch.float32)
        _, _, factor = self._factor(exact)
        inner = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        spreads = self.log_spread.to(exact).expand(-1, self.inputs).sum(-1)
        return (2 * (spreads + inner)).expand(self.classes).to(self.mu.dtype)

    @torch.no_grad()
    def ellipsoids(self) -> Ellipsoids:
        """Return the ellipsoids as they are now, to measure many points or to look at their axes.

        Spherical remainders are kept as :class:`~mahalens.geometry.LowRankEllipsoids`, diagonal
        ones make full ellipsoids. Those of half precision are in float32.
        """
        if self.mu.dtype.itemsize < 4:
            return copy.deepcopy(self).float().ellipsoids()
        count = self.classes
        if self.remainder == "diagonal":
            return from_covariance(self.mu.clone(), self.covariances.contiguous())
        _, sizes, vectors = torch.linalg.svd(self.axes.double(), full_matrices=False)
        rest = self.log_spread.double().exp()
        spreads = (sizes.square() + rest.square()).sqrt()
        return LowRankEllipsoids(
            self.mu.clone(),
            vectors.to(self.mu).expand(count, -1, -1).contiguous(),
            spreads.to(self.mu).expand(count, -1).contiguous(),
            rest[:, 0].to(self.mu).expand(count).contiguous(),
        )

    def extra_repr(self) -> str:
        """Return the arguments: the printed layer can be pasted back."""
        parts = [f"inputs={self.inputs}, classes={self.classes}, rank={self.rank}"]
        if self.remainder != "spherical":
            parts.append(f"remainder={self.remainder!r}")
        parts += [f"{name}=True" for name in ("shared", "squared") if getattr(self, name)]
        return ", ".join(parts)

    def _factor(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return 1/s, U [C, R, D] and the triangular factor of I + UUᵀ [C, R, R]."""
        scale = (-self.log_spread.to(dtype)).exp()
        rows = self.axes.to(dtype) * scale[:, None]
        identity = torch.eye(self.rank, dtype=dtype, device=rows.device)
        # No error is asked for: a parameter that is NaN gives NaN, as in other layers.
        with without_autocast(rows.device.type):
            factor, _ = torch.linalg.cholesky_ex(identity + rows @ rows.mT)
        return scale, rows, factor


def _squares(
    x: Tensor, mu: Tensor, scale: Tensor, rows: Tensor, factor: Tensor, tile: int
) -> Tensor:
    """Return d² [N, C] for samples [N, D], as ``‖ξ − Uᵀz‖² + ‖z‖²``."""
    whole_batch = torch.is_grad_enabled() or is_exporting()
    parts = []
    for samples in [x] if whole_batch else x.split(max(1, tile // mu.numel())):
        whole = (samples - mu[:, None]) * scale[:, None]  # ξ [C, N, D]
        across, z = _apart(whole, rows, factor)
        parts.append((across.square().sum(-1) + z.square().sum(-1)).mT)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _shared_squares(x: Tensor, mu: Tensor, scale: Tensor, rows: Tensor, factor: Tensor) -> Tensor:
    """Return d² [N, C] where classes share one ellipsoid: whitened once, then plain distances."""
    # From the middle of the prototypes, or a common offset would cost digits.
    middle = mu.detach().mean(0)
    samples, prototypes = (
        torch.cat(_apart((points - middle) * scale, rows, factor), -1) for points in (x, mu)
    )
    return weighted_squares(samples, prototypes, torch.ones_like(prototypes))


def _apart(whole: Tensor, rows: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``ξ − Uᵀz`` [..., N, D] and z [..., N, R], linear in ξ, whose squares add up to d²."""
    along = whole @ rows.mT  # Uξ [..., N, R]
    half = torch.linalg.solve_triangular(factor, along.mT, upper=False)
    z = torch.linalg.solve_triangular(factor.mT, half, upper=True).mT
    return whole - z @ rows, z


def check_features(
    features: Tensor,
    inputs: int | None,
    owner: str = "DistanceHead",
    least: int = 1,
    like: Tensor | None = None,
) -> Tensor:
    """Return finite features [N, D] with N ≥ ``least``, or raise.

    D must be ``inputs``, the width of ``owner``, unless that is None. NumPy arrays become tensors,
    of the dtype and device of ``like``.
    """
    features = tensor_of("features", features, like)
    wanted = inputs or "D"
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = type(features).__name__
        if isinstance(features, Tensor):
            kind = f"tensor of {dtype_name(features.dtype)}"
        raise InputError(f"features are a {kind}, wanted a tensor of floats [N, {wanted}]")
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


def check_labels(y: Tensor, samples: int, classes: int | None) -> Tensor:
    """Return labels [N] as int64, one from 0 to C - 1 for each sample, or raise."""
    y = labels_of("labels", y, samples)
    low, high = int(y.min()), int(y.max())
    if low < 0 or (classes is not None and high >= classes):
        wanted = "at least 0" if classes is None else f"from 0 to {classes - 1}"
        label = low if low < 0 else high
        raise InputError(f"label {label} is not one of the classes; labels are {wanted}")
    return y.long()


def check_labelled(
    x: Tensor,
    y: Tensor,
    classes: int | None = None,
    inputs: int | None = None,
    owner: str = "DistanceHead",
) -> tuple[Tensor, Tensor, int]:
    """Return features in float64 and labels, both on the CPU, and the number of classes, or raise.

    Every class must have 2 samples or more, not all of them the same, to show its spread.
    """
    features = check_features(x, inputs, owner).detach().cpu().double()
    labels = check_labels(y, len(features), classes).cpu()
    sizes = torch.bincount(labels, minlength=classes or 0)
    if int(sizes.min()) < 2:
        smallest = int(sizes.argmin())
        count = int(sizes[smallest])
        raise InputError(
            f"class {smallest} of {len(sizes)} has {count or 'no'} sample{'s' * (not count)}, "
            "wanted at least 2 of each to see its spread; give more, or number the classes "
            "without it"
        )
    for k in range(len(sizes)):
        samples = features[labels == k]
        if bool((samples == samples[0]).all()):
            raise SingularCovarianceError(
                f"class {k} has {len(samples)} samples that are all the same, so it has no spread "
                "to measure distances in; give features that vary, or leave the class out"
            )
    return features, labels, len(sizes)


def class_ellipsoids(
    x: Tensor, y: Tensor, kind: str, shared: bool, **options: object
) -> tuple[Ellipsoids, Tensor]:
    """Fit one ellipsoid per class, or a single one around all class means [C, D]; return both."""
    for name, kinds in (("ridge", Real), ("shrinkage", Real | str)):
        if not isinstance(options[name], kinds):
            raise InputError(f"{name} is {options[name]!r}, wanted a number of at least 0")
    try:
        if not shared:
            ellipsoids = from_data(x, y, kind=kind, **options)  # type: ignore[arg-type]
            return ellipsoids, ellipsoids.means
        classes = int(y.max()) + 1
        means = torch.stack([x[y == k].mean(0) for k in range(classes)])
        # from_data divides by N - 1, but C means have been taken off.
        factor = ((len(x) - 1) / (len(x) - classes)) ** 0.5
        rest = (x - means[y]) * factor
        return from_data(rest, torch.zeros_like(y), kind=kind, **options), means  # type: ignore[arg-type]
    except InputError as error:
        owner = "the ellipsoid of all classes" if shared else "the ellipsoids of the classes"
        raise type(error)(f"{owner}: {error}") from None


def fit_mahalanobis(
    layer: Mahalanobis, x: Tensor, y: Tensor, *, ridge: float, shrinkage: float | str = 0.0
) -> None:
    """Set the ellipsoids of a layer to those of features that :func:`check_labelled` returned.

    Axes and remainder come from :func:`mahalens.geometry.ellipsoids.from_data`, where no spread is
    below the remainder: ``b_r = v_r √(spread_r² − remainder²)`` gives the very same ellipsoid. With
    as many axes as inputs nothing remains, and s is put at half the shortest spread: any value
    below it gives the same distances, and leaves every axis free to learn.
    """
    ellipsoids, means = class_ellipsoids(
        x, y, "low-rank+remainder", layer.shared, rank=layer.rank, ridge=ridge, shrinkage=shrinkage
    )
    assert isinstance(ellipsoids, LowRankEllipsoids)
    assert ellipsoids.remainder is not None
    rest = ellipsoids.remainder[:, None]
    if layer.rank == layer.inputs:
        rest = REST_SHARE * ellipsoids.spreads[:, -1:]
    lengths = (ellipsoids.spreads.square() - rest.square()).clamp(min=0).sqrt()
    set_fit(
        (layer.mu, means),
        (layer.axes, ellipsoids.axes * lengths[..., None]),
        (layer.log_spread, rest.log()),
    )


def set_fit(*values: tuple[Tensor, Tensor]) -> None:
    """Set parameters to fitted values, or raise where their dtype cannot hold these."""
    set_parameters(
        values,
        f"the spreads or means of these features are too small or too large for "
        f"{dtype_name(values[0][0].dtype)}; scale the features, or take a wider dtype",
    )
