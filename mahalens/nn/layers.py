"""Layers that measure along a direction or to prototypes, and the checks that all layers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from mahalens.errors import InputError
from mahalens.geometry._checks import require_memory
from mahalens.nn.chain import VARIANTS

_FLOOR = 1e-12  # the published code takes no root of less
_TILE = 2**18  # differences held at once: few enough to stay in the cache of a processor core
_UNITS = 16  # units of a tile where there are many samples


class Abs(nn.Module):
    """Absolute value: the distance of a sample from a unit's hyperplane, on either side.

    A linear unit followed by ``Abs`` is ``|w·x + b|``, the Mahalanobis distance of a
    one-dimensional Gaussian whose mean lies on the hyperplane and whose spread is ``1/‖w‖``
    (arXiv 2410.19352, section 3.3).

    Shapes: any to the same.

    >>> Abs()(torch.tensor([-2.0, 3.0]))
    tensor([2., 3.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``|x|``."""
        return x.abs()


class Neg(nn.Module):
    """Sign flip: turns a distance (small = near) into an intensity (large = near).

    Shapes: any to the same.

    >>> Neg()(torch.tensor([2.0]))
    tensor([-2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return ``-x``."""
        return -x


class Norm(nn.Module):
    """Euclidean norm over units, ``√(Σₖ xₖ²)``: square, sum and square root in one.

    The square root has an infinite slope at 0. There the gradient and the second derivative are
    defined as 0: a sample at which every unit is off leaves training alone instead of turning it
    into NaN. Half precision is computed in float32, whose squares do not overflow.

    Shapes: ``[..., K]`` to ``[...]``.

    >>> x = torch.zeros(2, requires_grad=True)
    >>> Norm()(x).backward(); x.grad
    tensor([0., 0.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of the last axis."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        length = root((exact * exact).sum(-1))
        return length.to(x.dtype) if x.is_floating_point() else length


class AbsReLU(nn.Module):
    """Activation ``|zₖ|`` for the units marked ``absolute``, ``max(zₖ, 0)`` for the others.

    Two mirrored ReLU units that are read with equal weights are one absolute value,
    ``relu(z) + relu(-z) = |z|``. A layer in which some units have such a mirror and others have
    none becomes, without its mirrors, a layer of both kinds. :func:`mahalens.prune` makes these.

    Args:
        absolute: which units are absolute values, K times true or false.
        dim: the axis of the units: -1 for a Linear, -3 for a Conv2d (with or without a batch
            axis), -2 for a Conv1d.

    Shapes: any to the same; K along axis ``dim``. The buffer ``absolute`` is ``[K]``, bool.

    >>> AbsReLU([True, False])(torch.tensor([[-2.0, -3.0], [2.0, 3.0]]))
    tensor([[2., 0.],
            [2., 3.]])
    """

    if TYPE_CHECKING:  # TorchScript reads annotations of a class, and not as text
        absolute: Tensor

    def __init__(
        self,
        absolute: Tensor | Sequence[bool],
        *,
        dim: int = -1,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        mask = torch.as_tensor(absolute, device=device)
        if mask.ndim != 1 or mask.dtype != torch.bool or not len(mask):
            raise InputError(
                f"AbsReLU was given {str(mask.dtype).removeprefix('torch.')} of shape "
                f"{tuple(mask.shape)}; give true or false for each unit"
            )
        if dim >= 0:
            raise InputError(
                f"AbsReLU with dim {dim}; count it from the end: -1 for a Linear, -3 for a Conv2d"
            )
        self.dim = dim
        self.register_buffer("absolute", mask.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations."""
        units = self.absolute.shape[0]
        wrong = x.ndim < -self.dim or x.shape[self.dim] != units
        if not torch.jit.is_scripting() and wrong:  # type: ignore[attr-defined]
            raise InputError(
                f"AbsReLU of {units} units along axis {self.dim} was given an array of shape "
                f"{tuple(x.shape)}; give {units} along that axis"
            )
        mask = self.absolute.reshape([units] + [1] * (-self.dim - 1))
        return torch.where(mask, x.abs(), x.relu())

    def extra_repr(self) -> str:
        """Return the number of units of each kind."""
        if self.absolute.is_meta:  # a mask without values, as before weights are loaded
            return f"units={len(self.absolute)}, dim={self.dim}"
        count = int(self.absolute.sum())
        return f"absolute={count}, relu={len(self.absolute) - count}, dim={self.dim}"


def first_units(absolute: int, units: int) -> Tensor:
    """Return the mask ``[K]`` of a layer whose first ``absolute`` units are absolute values."""
    return torch.arange(units) < absolute


class PointSlope(nn.Module):
    """K linear units, each with a point in place of a bias: ``yₖ = Σᵢ wₖᵢ (xᵢ − pₖᵢ)``.

    ``weight`` holds the slopes and starts as that of ``nn.Linear``, number by number from the same
    seed; ``point`` starts at N(0, 0.1²), as the prototypes of :class:`~mahalens.nn.OffsetL2`.
    The layer is the linear one with the bias ``−Σᵢ wₖᵢ pₖᵢ``. Unlike a bias, a point can be read
    in the space of the inputs, and gradients move it along the slope.

    No differences ``[N, K, D]`` are made. Samples and points are both taken relative to the mean
    point of all units, which changes nothing but rounding: far from the origin, outputs keep
    their digits near the points as long as these are near each other.

    Shapes: ``[..., D]`` to ``[..., K]``; ``weight`` and ``point`` ``[K, D]``.

    >>> layer = PointSlope(2, 1)
    >>> state = {"weight": torch.tensor([[3.0, 2.0]]), "point": torch.ones(1, 2)}
    >>> _ = layer.load_state_dict(state)
    >>> layer(torch.tensor([[2.0, 3.0], [1.0, 1.0]])).tolist()
    [[7.0], [0.0]]
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("PointSlope", inputs=inputs, units=units)
        require_parameters(f"PointSlope({inputs}, {units})", 2 * inputs * units, device, dtype)
        self.inputs = inputs
        self.units = units
        self.weight = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.point = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw slopes and points anew, slopes first."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # what nn.Linear does
        nn.init.normal_(self.point, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the slope of each unit times the way from its point to each sample."""
        require_width("PointSlope", x, self.inputs)
        # No gradient goes through the centre: the outputs are the same whatever it is.
        centre = self.point.detach().mean(0)
        start = (self.weight * (centre - self.point)).sum(-1)
        return functional.linear(x - centre, self.weight, start)

    def extra_repr(self) -> str:
        """Return the arguments: the printed layer can be pasted back."""
        return f"inputs={self.inputs}, units={self.units}"


class OffsetL2(nn.Module):
    """Distances to K prototypes, each with a scale per input: ``yₖ = ‖αₖ (x − μₖ)‖₂``.

    ``mu`` holds the prototypes and starts at N(0, 0.1²), ``alpha`` the scales and starts at 1
    (arXiv 2502.02103, section 6.4). Where a distance is 0 its gradient and its second
    derivative are defined as 0, as in :class:`~mahalens.nn.Norm`.

    The code published with the paper computes something else: α enters unsquared, which makes
    its sign matter, and the sum is cut off below. ``variant="published-code"`` is
    ``yₖ = √max(Σᵢ αₖᵢ (xᵢ − μₖᵢ)², 10⁻¹²)``, whose gradient is 0 below the cut.

    Prototypes are subtracted before anything is squared: a distance keeps its digits near its
    prototype. Neither the outputs nor their gradient hold the ``[N, K, D]`` differences;
    only a gradient that is itself to be differentiated does. Half precision is computed in
    float32, because float16 holds neither the squares of distances above 255 nor the cut. Samples
    are scaled before they are squared: only distances whose squares leave the range of
    the dtype (1.8e19 in float32) become infinite, or 0 below 1e-23.

    Args:
        inputs: D.
        units: K.
        variant: "paper" or "published-code", see above.

    Shapes: ``[..., D]`` to ``[..., K]``; ``mu`` and ``alpha`` ``[K, D]``.

    >>> layer = OffsetL2(2, 1)
    >>> _ = layer.load_state_dict({"mu": torch.ones(1, 2), "alpha": torch.tensor([[3.0, 2.0]])})
    >>> layer(torch.tensor([[2.0, 3.0], [1.0, 1.0]])).tolist()
    [[5.0], [0.0]]
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        variant: str = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes("OffsetL2", inputs=inputs, units=units)
        require_parameters(f"OffsetL2({inputs}, {units})", 2 * inputs * units, device, dtype)
        require_known("OffsetL2", "variant", variant, VARIANTS)
        self.inputs = inputs
        self.units = units
        self.variant = variant
        self.mu = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.alpha = nn.Parameter(torch.empty(units, inputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the prototypes anew and set every scale to 1."""
        nn.init.normal_(self.mu, std=0.1)
        nn.init.ones_(self.alpha)

    def forward(self, x: Tensor) -> Tensor:
        """Return the distance of each sample to each prototype."""
        require_width("OffsetL2", x, self.inputs)
        dtype = torch.promote_types(x.dtype, self.mu.dtype)
        exact = torch.promote_types(dtype, torch.float32)
        published = self.variant == "published-code"
        flat, mu, alpha = x.reshape(-1, self.inputs).to(exact), self.mu.to(exact), self.alpha
        square = weighted_squares(flat, mu, alpha.to(exact), inside=not published)
        distance = square.clamp(min=_FLOOR).sqrt() if published else root(square)
        return distance.to(dtype).reshape(*x.shape[:-1], self.units)

    def extra_repr(self) -> str:
        """Return the arguments: the printed layer can be pasted back."""
        sizes = f"inputs={self.inputs}, units={self.units}"
        return sizes if self.variant == "paper" else f"{sizes}, variant={self.variant!r}"


def weighted_squares(
    x: Tensor, mu: Tensor, weight: Tensor, *, inside: bool = False, tile: int = _TILE
) -> Tensor:
    """Return ``sₙₖ = Σᵢ wₖᵢ (xₙᵢ − μₖᵢ)²``, or with ``inside`` ``Σᵢ (wₖᵢ (xₙᵢ − μₖᵢ))²``.

    The expanded square ``x² − 2xμ + μ²`` would need no differences, but near a prototype it is a
    small remainder of large numbers. Weights ``inside`` bring differences of any size into range
    before they are squared. About ``tile`` differences are held at once.

    Shapes: x ``[N, D]``, mu and weight ``[K, D]`` to ``[N, K]``.
    """
    if is_exporting():  # tiles are cut by sizes that an exported graph does not know
        difference = x[:, None] - mu
        scaled = (difference * weight).square() if inside else difference.square() * weight
        return scaled.sum(-1)
    # PyTorch loses terms where forward derivatives of a Function are nested (its issue 197867).
    # Should the level ever have another name, it refuses forward derivatives instead.
    if getattr(forward_ad, "_current_level", -1) >= 0:
        return _Squares.forward(x, mu, weight, inside, tile)
    result: Tensor = _Squares.apply(x, mu, weight, inside, tile)  # type: ignore[no-untyped-call]
    return result


class _Squares(torch.autograd.Function):
    """Squares with a gradient that makes the differences again.

    Autograd would keep those of every tile for the way back, ``[N, K, D]`` in all.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mu: Tensor, weight: Tensor, inside: bool, tile: int) -> Tensor:
        rows, units = _tile_shape(x, tile)
        bands = []
        for xs in x.split(rows):
            cut = zip(mu.split(units), weight.split(units), strict=True)
            if inside:
                parts = [((xs[:, None] - ms) * ws).square().sum(-1) for ms, ws in cut]
            else:
                parts = [((xs[:, None] - ms).square() * ws).sum(-1) for ms, ws in cut]
            bands.append(torch.cat(parts, 1))
        return torch.cat(bands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.inside, ctx.tile = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mu, weight = ctx.saved_tensors
        for_x, for_mu, for_weight, *_ = ctx.needs_input_grad
        rows, units = _tile_shape(x, ctx.tile)
        # Sums by tile of samples or of units, in the order of the tiles.
        d_x: dict[int, Tensor] = {}
        d_mu: dict[int, Tensor] = {}
        d_weight: dict[int, Tensor] = {}
        for i, (xs, gs) in enumerate(zip(x.split(rows), grad.split(rows), strict=True)):
            cut = zip(mu.split(units), weight.split(units), gs.split(units, 1), strict=True)
            for j, (ms, ws, g) in enumerate(cut):
                difference = xs[:, None] - ms
                pull = g[..., None] * (difference * ws if ctx.inside else difference)
                if for_x:
                    _add(d_x, i, (pull * ws).sum(1))
                if for_mu:
                    _add(d_mu, j, pull.sum(0))
                if for_weight:
                    _add(d_weight, j, (pull * difference).sum(0))
        return (
            2 * torch.cat(list(d_x.values())) if for_x else None,
            -2 * weight * torch.cat(list(d_mu.values())) if for_mu else None,
            (1 + ctx.inside) * torch.cat(list(d_weight.values())) if for_weight else None,
            None,
            None,
        )


def _tile_shape(x: Tensor, tile: int) -> tuple[int, int]:
    """Return the samples and units taken at once, which keep the differences of a tile few."""
    samples, inputs = x.shape
    # Tiles neither long nor flat: sums over samples and sums over units then both stay small.
    rows = max(1, min(samples, tile // (_UNITS * inputs)))
    return rows, max(1, tile // (rows * inputs))


def _add(sums: dict[int, Tensor], place: int, term: Tensor) -> None:
    """Add without changing a tensor in place, which vmap could not follow."""
    sums[place] = sums[place] + term if place in sums else term


def root(square: Tensor) -> Tensor:
    """Return ``√square``, with a slope defined as 0 where the square is 0.

    Shapes: any to the same.
    """
    zero = square == 0  # false for NaN, which must come out as NaN
    # The root is taken of 1 where the square is 0: no infinite slope ever enters the graph.
    length = torch.where(zero, torch.ones_like(square), square).sqrt()
    return torch.where(zero, torch.zeros_like(length), length)


def scale_lengths(x: Tensor, beta: float) -> Tensor:
    """Return ``x / ‖x‖^β`` for each sample: β = 0 changes nothing, β = 1 gives length 1.

    Samples of length 0 stay 0. Lengths are measured in float32 at least.

    Shapes: ``[..., D]`` to the same.

    >>> scale_lengths(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), 1.0)
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    if beta == 0:
        return x
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    # Divided by its largest entry first, because squares overflow and vanish.
    largest = exact.abs().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest, torch.ones_like(largest))
    unit = exact / largest
    length = root(unit.square().sum(-1, keepdim=True)).clamp(min=1)  # 1 or more, unless it is 0
    return (unit / length * (length * largest) ** (1 - beta)).to(x.dtype)


def is_exporting() -> bool:
    """Return whether torch.export follows this call: sizes of batches are symbols then."""
    return torch.compiler.is_exporting()


@torch.no_grad()
def set_parameters(values: Sequence[tuple[Tensor, Tensor]], message: str) -> None:
    """Copy each second tensor into the first, or raise where a dtype cannot hold a number."""
    pairs = [(old, new.to(old.device, old.dtype).expand_as(old)) for old, new in values]
    if not all(bool(new.isfinite().all()) for _, new in pairs):
        raise InputError(message)
    for old, new in pairs:
        old.copy_(new)


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number, of Python or of NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_sizes(owner: str, **sizes: object) -> None:
    """Raise unless all sizes are whole numbers of at least 1."""
    for name, size in sizes.items():
        if not is_whole(size):
            raise InputError(f"{owner} with {size!r} {name}; give a whole number of at least 1")
        if not size >= 1:  # type: ignore[operator]
            raise InputError(f"{owner} with {size} {name}; give at least 1")


def require_known(owner: str, option: str, value: str, known: Sequence[str]) -> None:
    """Raise unless an option has one of its known values."""
    if value not in known:
        raise InputError(f"unknown {option} {value!r} of {owner}; known: {', '.join(known)}")


def require_width(owner: str, x: Tensor, inputs: int) -> None:
    """Raise unless ``x`` is a tensor whose last axis has ``inputs`` entries."""
    if not isinstance(x, Tensor):
        raise InputError(
            f"{owner} of {inputs} inputs was given a {type(x).__name__}; give a tensor, as by "
            "torch.as_tensor"
        )
    if x.ndim < 1 or x.shape[-1] != inputs:
        raise InputError(
            f"{owner} of {inputs} inputs was given an array of shape {tuple(x.shape)}; "
            f"give [..., {inputs}]"
        )


def require_parameters(
    owner: str, count: int, device: torch.device | str | None, dtype: torch.dtype | None
) -> None:
    """Raise where the memory for ``count`` parameters on the CPU is not there."""
    if torch.device(device or "cpu").type == "cpu":
        size = count * (dtype or torch.get_default_dtype()).itemsize
        require_memory(size, owner, "give fewer inputs, units or axes")
