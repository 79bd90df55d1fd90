"""A layer whose units are distances to classes, each in units of its own spreads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mahalens.errors import InputError
from mahalens.geometry.checks import tensor_of
from mahalens.geometry.ellipsoids import Ellipsoids, LowRankEllipsoids, from_covariance
from mahalens.nn.layers import root, without_autocast
from mahalens.nn.sizes import is_whole, require_parameters, require_sizes
from mahalens.nn.squares import weighted_squares

REMAINDERS = ("spherical", "diagonal")
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

    which takes one R × R factor per class, and is a sum of squares: no digits are lost in a
    difference, neither near a prototype nor along an axis much longer than s. At distance 0 the
    gradient is defined as 0, as in :class:`~mahalens.nn.Norm`. Half precision is computed in
    float32, also under ``torch.autocast``.

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
        if remainder not in REMAINDERS:
            known = ", ".join(REMAINDERS)
            raise InputError(f"unknown remainder {remainder!r} of Mahalanobis; known: {known}")
        self.inputs = inputs
        self.classes = classes
        self.rank = rank
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
        from mahalens.nn.fitting import fit_mahalanobis, labelled

        x = tensor_of("features", x)
        features, labels, classes = labelled(x, y, classes, owner="Mahalanobis")
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
        squares = self._exact_squares(x)
        # The root first: squares of distances above 255 are no numbers of float16.
        return (squares if self.squared else root(squares)).to(self._kind(x))

    def squares(self, x: Tensor) -> Tensor:
        """Return the squared distances, whatever ``squared`` says: [..., D] to [..., C]."""
        return self._exact_squares(x).to(self._kind(x))

    def _kind(self, x: Tensor) -> torch.dtype:
        return torch.promote_types(x.dtype, self.mu.dtype)

    def _exact_squares(self, x: Tensor) -> Tensor:
        """The same in float32 at least."""
        if x.ndim < 1 or x.shape[-1] != self.inputs:
            raise InputError(
                f"Mahalanobis of {self.inputs} inputs was given an array of shape "
                f"{tuple(x.shape)}; give [..., {self.inputs}]"
            )
        exact = torch.promote_types(self._kind(x), torch.float32)
        flat = x.reshape(-1, self.inputs).to(exact)
        with without_autocast(x.device.type):
            scale, rows, factor = self._factor(exact)
            mu = self.mu.to(exact)
            if self.shared:
                found = _shared_squares(flat, mu, scale, rows[0], factor[0])
            else:
                found = _squares(flat, mu, scale, rows, factor)
        return found.reshape(*x.shape[:-1], self.classes)

    @property
    def covariances(self) -> Tensor:
        """Σ_c [C, D, D]."""
        variances = (2 * self.log_spread).exp().expand(-1, self.inputs)
        found = torch.diag_embed(variances) + self.axes.mT @ self.axes
        return found.expand(self.classes, -1, -1)

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
        """Give the ellipsoids as they are now, to measure many points or to look at their axes.

        Spherical remainders are kept as :class:`~mahalens.geometry.LowRankEllipsoids`, diagonal
        ones make full ellipsoids.
        """
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
        """Return the arguments, so that what is printed can be pasted back."""
        parts = [f"inputs={self.inputs}, classes={self.classes}, rank={self.rank}"]
        if self.remainder != "spherical":
            parts.append(f"remainder={self.remainder!r}")
        parts += [f"{name}=True" for name in ("shared", "squared") if getattr(self, name)]
        return ", ".join(parts)

    def _factor(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Give 1/s, U [C, R, D] and the triangular factor of I + UUᵀ [C, R, R]."""
        scale = (-self.log_spread.to(dtype)).exp()
        rows = self.axes.to(dtype) * scale[:, None]
        identity = torch.eye(self.rank, dtype=dtype, device=rows.device)
        # No error is asked for: a parameter that is NaN gives NaN, as in other layers.
        factor, _ = torch.linalg.cholesky_ex(identity + rows @ rows.mT)
        return scale, rows, factor


def _squares(x: Tensor, mu: Tensor, scale: Tensor, rows: Tensor, factor: Tensor) -> Tensor:
    """Return d² [N, C] for samples [N, D], as ``‖ξ − Uᵀz‖² + ‖z‖²``."""
    count = len(x)
    if not torch.is_grad_enabled():
        count = max(1, _TILE // mu.numel())
    parts = []
    for some in x.split(count or 1):
        whole = (some - mu[:, None]) * scale[:, None]  # ξ [C, N, D]
        across, z = _apart(whole, rows, factor)
        parts.append((across.square().sum(-1) + z.square().sum(-1)).mT)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _shared_squares(x: Tensor, mu: Tensor, scale: Tensor, rows: Tensor, factor: Tensor) -> Tensor:
    """The same where all classes have one ellipsoid: whitened once, then plain distances."""
    # From the middle of the prototypes, or a common offset would cost digits.
    middle = mu.detach().mean(0)
    samples, prototypes = (
        torch.cat(_apart((points - middle) * scale, rows, factor), -1) for points in (x, mu)
    )
    return weighted_squares(samples, prototypes, torch.ones_like(prototypes))


def _apart(whole: Tensor, rows: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Give ``ξ − Uᵀz`` [..., N, D] and z [..., N, R], linear in ξ, whose squares add up to d²."""
    along = whole @ rows.mT  # Uξ [..., N, R]
    half = torch.linalg.solve_triangular(factor, along.mT, upper=False)
    z = torch.linalg.solve_triangular(factor.mT, half, upper=True).mT
    return whole - z @ rows, z
